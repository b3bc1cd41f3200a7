"""Gossip workers as threads of one process: nobody waits for ever, replay is exact."""

import contextlib
import functools
import random
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.swarm import SwarmState
from runtimes.asynchronous import pool
from runtimes.gossip import worker as gossip_worker
from runtimes.gossip.runtime import shared_state
from runtimes.gossip.worker import (
    Arrival,
    Counted,
    GossipWorker,
    PairHandler,
    Report,
    Request,
    Step,
    WorkerSnapshot,
    arrived,
    compile_programs,
    first_state,
)
from stragglers.pair_log import Entry, Meeting, PairLog
from tests.marks import slow_but
from tests.runtimes import meeters
from tests.runtimes.meeters import H, N
from tests.runtimes.toy import X0, B


class Threaded(GossipWorker):
    """A worker that calls others of the same process, and shares their compiled programs."""

    def __init__(self, together, me):
        super().__init__(lambda: together.parts, me)
        self._together = together

    def _compiled(self, params):
        return self._together.programs

    def _next_step(self, rule):
        if self._together.partner is None:
            return super()._next_step(rule)
        return Step(self._together.partner(self._me), True, H, rule)

    def _call(self, partner, request):
        """Send some requests twice at once, and some once more when their attempt is over."""
        workers, together = self._together.workers, self._together
        reply = workers[partner].answer(request)
        if together.chance.random() < together.repeated:
            again = workers[partner].answer(request)
            assert (again is None) == (reply is None)
            if reply is not None:
                jax.tree.map(np.testing.assert_array_equal, again, reply)
            together.late.append((partner, request))
            if len(together.late) > 5:
                partner, request = together.late.pop(0)
                workers[partner].answer(request)
        return reply

    def _tell(self, item):
        self._together.heard(item)


@functools.cache
def programs_of(name, rate):
    """Return the compiled programs of a method, for the workers of all tests."""
    return compile_programs(meeters.parts(name, None, rate), X0)


class Together:
    """Workers of one method as threads of this process.

    begin: (worker, its exchange state) -> the state that it begins with; partner: worker -> whom it
    always asks, in place of what the rule says; repeated: share of requests that come more than
    once.
    """

    def __init__(self, name, meetings, *, repeated=0.0, begin=None, partner=None, rate=0.02):
        self.parts, self.log = meeters.parts(name, None, rate), PairLog(N)
        self.method = self.parts.worker.algorithm
        self.programs = programs_of(name, rate)
        self.partner, self.repeated = partner, repeated
        self.chance, self.late = random.Random(1), []
        self._meetings, self._over = meetings, False
        self._lock, self._done = threading.Lock(), threading.Event()
        self._rule = self.parts.rule.arrivals.init()
        self.workers = [Threaded(self, me) for me in range(N)]
        states = [self._first(me, begin) for me in range(N)]
        for worker, state in zip(self.workers, states, strict=True):
            worker.ready(state, H)
        for worker in self.workers:
            worker.go(dict(enumerate(self.workers)), 0.0)
        assert self._done.wait(120), f"{self.log.updates} meetings, then no more"
        counts = [worker.freeze() for worker in self.workers]  # for ever
        self.snapshots = [worker.snapshot() for worker in self.workers]
        self.states = [snapshot.state for snapshot in self.snapshots]
        self.schedule, self._over = self.log.take(), True
        assert counts == self.log.counts().tolist()

    def _first(self, me, begin):
        state = first_state(self.parts, me, X0)
        return state if begin is None else state._replace(exchange=begin(me, state.exchange))

    def heard(self, item):
        if isinstance(item, Arrival):
            with self._lock:
                self._rule, steps = arrived(self.parts.rule.arrivals, self._rule, *item)
            for who, step in steps.items():
                self.workers[who].do(step)
            return
        assert isinstance(item, Meeting), item
        with self._lock:
            if not self._over:
                self.log.add(item)
            if self.log.updates >= self._meetings:
                self._done.set()

    def counted(self, name):
        return [getattr(snapshot.counted, name) for snapshot in self.snapshots]

    def of_all(self, what):
        return jax.tree.map(
            lambda *leaves: np.stack(leaves), *[getattr(state, what) for state in self.states]
        )


def same_as_replay(name, run, schedule):
    """Parameters, momentum, public copies and what the codec has learnt."""
    schedule.validate()
    simulator = meeters.replayed(name, schedule)
    model = simulator.advance(simulator.start(X0), np.inf)[0].model
    real = [run.of_all(what) for what in ("params", "work", "exchange")]
    simulated = [model.params, model.workers.work, model.workers.exchange]
    jax.tree.map(np.testing.assert_array_equal, real, simulated)


@pytest.mark.parametrize("name", slow_but(("float32",), meeters.METHODS))
def test_replay_gives_the_same_bits(name):
    run = Together(name, 240)  # and some: no turn of the replay is short, of a shape of its own
    real, rows = run.schedule.batches > 0, run.schedule
    seen = N * B * rows.first[real]  # as if all were as far as the one that asks
    np.testing.assert_array_equal(rows.samples[real], seen)
    same_as_replay(name, run, run.schedule)
    assert np.abs(run.of_all("params") - X0).max() > 0.1
    if name in ("float32", "8 bits"):
        check_bytes(name, run)


def check_bytes(name, run):
    """Compare what was sent with what the method says; numbers to agree on have four bytes."""
    meetings, again, agreed = sum(run.counted("asked")), 0.0, 0
    if run.method.metrics is not None:
        counted = run.method.metrics(run.of_all("exchange"))
        again = N * float(counted["extra_bytes_per_worker"])
        agreed = 2 * meetings * 3 * 4
        assert again > 0
    size = meeters.message_bytes(name)
    said = (2 * meetings + sum(run.counted("refused"))) * size + again
    # A refusal at the end may not be counted yet.
    assert said <= sum(run.counted("sent_bytes")) <= said + agreed + N * size


def scattered(i, exchange):
    """Public copies that begin far from each other."""
    return exchange._replace(comm=jnp.asarray(np.random.default_rng(i).normal(size=X0.shape), "f"))


def test_the_sum_is_kept_over_a_thousand_meetings_with_requests_that_come_twice():
    """Without steps of their own, as these change it."""
    run = Together("float32", 1000, repeated=0.2, begin=scattered, rate=0.0)
    before = np.stack([scattered(i, SwarmState((), ())).comm for i in range(N)])
    after = run.of_all("exchange").comm
    rounding = 1000 * np.finfo(np.float32).eps * np.abs(before).max()
    np.testing.assert_allclose(after.sum(0), before.sum(0), atol=rounding)
    assert np.ptp(after, axis=0).max() < 1e-3 < np.ptp(before, axis=0).max()  # they have met


@pytest.mark.slow
@pytest.mark.parametrize("partner", [lambda i: (i + 1) % N, lambda i: i ^ 1], ids=["ring", "pairs"])
def test_workers_that_ask_in_a_cycle_all_get_to_meet(partner):
    run = Together("8 bits", 200, partner=partner)
    assert min(run.counted("asked")) > 10 and sum(run.counted("refused")) > 0


class Handler(PairHandler):
    """A worker that does nothing but meet."""

    now = staticmethod(time.time)

    def __init__(self, answer, over):
        super().__init__()
        self._answer, self._answered = answer, lambda met, _: over.append(met)

    def _count(self, **more):
        pass


def test_a_silent_asker_is_given_up_and_a_request_twice_gets_the_same_reply(monkeypatch):
    """And what a silent asker says later is refused."""

    def half():
        yield [np.ones(1)]
        yield [np.ones(2)]

    over, entry = [], Entry(0, 0, 1, 0, 0, 0.0, 0.0)
    handler = Handler(lambda: (half(), entry), over)
    lock = handler._lock
    first = handler.answer(Request(1, 7, 0, [5], entry))
    assert first is handler.answer(Request(1, 7, 0, [5], entry)) and lock.locked()
    assert handler.answer(Request(0, 1, 0, [5], entry)) is None  # it is busy
    handler._give_up_the_silent()
    assert lock.locked()
    monkeypatch.setattr(gossip_worker, "PATIENCE", 0.0)
    handler._give_up_the_silent()
    assert not lock.locked() and handler.answer(Request(1, 7, 1, [5], entry)) is None
    for step in range(2):
        (said,) = handler.answer(Request(0, 2, step, [5], entry)).message
        assert said.size == 1 + step
    assert len(over) == 1 and not lock.locked()

    def fails():
        raise MemoryError("no room for a half")

    handler = Handler(fails, over)
    with pytest.raises(MemoryError):
        handler.answer(Request(1, 7, 0, [5], entry))
    assert not handler._lock.locked()


def test_workers_that_wait_for_each_other_go_on_with_their_draws():
    """As they did not, when a run resumed: its partners and steps came again."""
    parts = meeters.parts("blocking")
    states = [gossip_worker.first_state(parts, who, X0, meetings=3 * who) for who in range(N)]
    assert shared_state(parts, states).rounds.tolist() == [3 * who for who in range(N)]
    assert not shared_state(meeters.parts("float32"), states).rounds.any()


def begun(name):
    """Return the runtime of a run whose processes are not real."""
    runtime = meeters.meetings(name)
    runtime.start(X0)
    runtime._pool = MagicMock()
    return runtime


def test_local_steps_of_a_process_that_has_gone_wait_for_nobody():
    """They were reported before, and are heard after; its new process makes them again."""
    runtime = begun("blocking")
    runtime._alive = {0, 1, 3}
    for who in (1, 2):
        runtime._reported(who, Report([Arrival(who, 0.5)], 0.0))
    assert runtime._rule.waits[1] >= 0 > runtime._rule.waits[2]
    # Without worker 2 of the ring, worker 0 meets all who wait; without two, nobody might.
    assert runtime._spares({2}) and not runtime._spares({0, 2})
    assert begun("float32")._spares({0, 2})


def test_meetings_of_both_sides_are_in_a_report_also_of_a_process_that_is_ended():
    """A passive worker never asks; its deaths are in a row only without a meeting between them."""
    runtime = begun("ad_psgd")
    runtime._alive = set(range(N))
    runtime._died |= {0: 2, 1: 4, 2: 4}
    ends = tuple(Entry(who, 0, H, 0, 0, 0.0, 0.1) for who in (0, 1))
    report = Report([Meeting(ends, 0.1, 0.2), Arrival(0, 0.3)], 2 * pool.STARTING)
    runtime._reported(0, report)
    runtime._pool.kill.assert_called_once_with(0)
    assert runtime.log.updates == 1
    assert runtime._died == {0: 0, 1: 0, 2: 4, 3: 0}


def test_local_steps_that_fail_are_left_out_and_counted_where_they_may_be():
    """As a worker's contribution is under a server."""

    def fails(*_):
        raise MemoryError("no room for a gradient")

    parts = meeters.parts("blocking", None)
    for drops in (False, True):
        node = GossipWorker(lambda drops=drops: parts._replace(drops=drops), 0)
        node._state, node._batches = first_state(parts, 0, X0), H
        node._programs = SimpleNamespace(contribute=fails)
        with contextlib.nullcontext() if drops else pytest.raises(MemoryError):
            assert node._local_steps() is None
        assert (node._counted.dropped, node._state.counter) == (drops, H * drops)


def test_a_worker_that_has_gone_may_still_end_a_meeting_before_it_counts_as_gone():
    """Else its partner would look for another one, with local steps that the meeting has taken."""
    node, there = GossipWorker(lambda: meeters.parts("blocking", None), 0), []
    node._peers = {1: None}
    node._expect = lambda *_: there.append(1 in node._peers)
    assert node.absent(1) == [] and there == [True] and not node._peers


def test_the_way_to_a_model_of_halves_is_measured_in_full():
    """Its squares are beyond float16."""
    runtime = begun("blocking")
    state = runtime._last[0].state._replace(params=np.full(4, 300, np.float16))
    runtime._last = [WorkerSnapshot(state, Counted())] * N
    runtime._count_restart(0, np.full(4, 400, np.float16))
    assert runtime._past.moved == pytest.approx(100 / (300 * N))


def test_the_clock_of_a_run_never_goes_back(monkeypatch):
    """The last row may have landed while models were brought to the launcher before."""
    rows = SimpleNamespace(updates=2, batches=np.ones((2, 2), int), time=np.array([4.8, 4.9]))
    runtime = begun("float32")
    run = runtime.start(X0)._replace(seconds=5.0)
    for name, answer in (
        ("_run_processes", None), ("wait", None), ("now", 6.0),
        ("_snapshot", (rows, run.states, Counted(), run.there)),
    ):  # fmt: skip
        monkeypatch.setattr(runtime, name, lambda *_, answer=answer: answer)
    assert runtime.advance(run, np.inf, 2)[0].seconds == 5.0
    assert runtime.advance(run, np.inf, 3)[0].seconds == 6.0
