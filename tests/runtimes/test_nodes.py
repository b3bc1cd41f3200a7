"""Nodes as threads of one process: nobody waits for ever, nothing gets lost, replay is exact."""

import queue
import random
import threading
import time
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.swarm import SwarmState
from runtimes import desk, meeting, nodes, peers, worker
from runtimes.local_steps import Holding
from runtimes.matchmaking import Matchmaker, by_itself
from stragglers.pair_log import PairLog
from stragglers.schedule import concatenate
from tests.marks import slow, slow_but
from tests.runtimes import meeters
from tests.runtimes.meeters import H, N
from tests.runtimes.toy import DATA, SAMPLES, X0, B, losses


class Together:
    """Nodes of one method as threads of this process, tied together by calls.

    begin: (node, its exchange state) -> the state that it begins with; partner: node -> whom it
    always asks, in place of what the rule says; repeated: share of turns that come more than once;
    log, holdings: of an earlier run that goes on.
    """

    def __init__(
        self,
        name,
        meetings,
        *,
        repeated=0.0,
        begin=None,
        partner=None,
        rate=0.02,
        log=None,
        holdings=None,
    ):
        self.method, self.log = meeters.method(name, rate), log or PairLog(N)
        rule = meeters.rule(name)
        self._face = rule.arrivals
        self._programs = meeting.build(
            self.method, losses, X0, DATA, H, B, goes_on=rule.arrivals.apart
        )
        self._meetings, self._repeated = self.log.updates + meetings, repeated
        self._began, self._over = time.monotonic(), False
        self._lock, self._done = threading.Lock(), threading.Event()
        self._steps = [queue.Queue() for _ in range(N)]
        self._matchmaker = Matchmaker(rule.arrivals, lambda node, step: self._steps[node].put(step))
        self._chance, self._late = random.Random(1), []
        holdings = holdings or [self._first(i, begin) for i in range(N)]
        self.nodes = [self._node(i, holdings[i], partner) for i in range(N)]
        threads = [threading.Thread(target=node.run, daemon=True) for node in self.nodes]
        for thread in threads:
            thread.start()
        assert self._done.wait(120), f"{self.log.updates} meetings, then no more"
        self.holdings = [node.freeze() for node in self.nodes]
        self.schedule, self._over = self.log.take(), True
        assert [int(place.meetings) for place in self.holdings] == self.log.counts().tolist()
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.thaw()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()

    def _first(self, i, begin):
        params, zero = jnp.asarray(X0), np.int64(0)
        state = worker.init(self.method, params)
        exchange = state.exchange if begin is None else begin(i, state.exchange)
        rule = self._face.init() if self._face.apart else ()
        return Holding(params, state.work, exchange, rule, zero, zero)

    def _node(self, i, holding, partner):
        face = self._face
        arrive = by_itself(face, i) if face.apart else self._arrive(i)
        if partner is not None:
            step = nodes.Step(partner(i), True, H, holding.rule)
            arrive = lambda *_: step  # noqa: E731
        return nodes.Node(
            i,
            N,
            self._programs,
            holding,
            face.mini_batches(holding.rule if face.apart else face.init(), i),
            SAMPLES,
            arrive=arrive,
            turn=self._turn,
            report=self._report,
            now=lambda: time.monotonic() - self._began,
        )

    def _arrive(self, node):
        def arrive(state, now):
            del state
            self._matchmaker.arrived(node, now)
            while not self._done.is_set():
                try:
                    return self._steps[node].get(timeout=0.1)
                except queue.Empty:
                    pass
            raise nodes.Stopped

        return arrive

    def _turn(self, partner, turn):
        """Some turns come twice at once, and some once more when their attempt is long over."""
        reply = self.nodes[partner].answer(turn)
        if self._chance.random() < self._repeated:
            again = self.nodes[partner].answer(turn)
            assert (again is None) == (reply is None)
            if reply is not None:
                jax.tree.map(np.testing.assert_array_equal, again, reply)
            self._late.append((partner, turn))
            if len(self._late) > 5:
                partner, turn = self._late.pop(0)
                self.nodes[partner].answer(turn)
        return reply

    def _report(self, happened):
        with self._lock:
            if self._over:
                return
            self.log.add(happened)
            if self.log.updates >= self._meetings:
                self._done.set()

    def of_all(self, what):
        return jax.tree.map(
            lambda *leaves: np.stack(leaves), *[getattr(p, what) for p in self.holdings]
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(("float32", "blocking"), meeters.METHODS))
def test_replay_gives_the_same_bits(name):
    """Parameters, momentum, public copies and what the codec has learnt, after 200 meetings."""
    run = Together(name, 200)
    run.schedule.validate()
    simulator = meeters.replayed(name, run.schedule)
    model = simulator.advance(simulator.start(X0), np.inf)[0].model
    real = (run.of_all("params"), run.of_all("work"), run.of_all("exchange"))
    simulated = (model.params, model.workers.work, model.workers.exchange)
    jax.tree.map(np.testing.assert_array_equal, real, simulated)
    assert np.abs(run.of_all("params") - X0).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "8 bits", "ad_psgd"])
def test_nodes_that_begin_anew_from_an_old_model_or_a_neighbour_replay_to_the_same_bits(name):
    """Node 2 takes what it was 70 meetings before, and then 10; node 1 takes what 0 shows."""
    parts, pieces = meeters.parts(name), []
    first = Together(name, 50)
    kept, holdings, log = first, first.holdings, first.log
    version = kept.schedule.updates
    pieces.append(kept.schedule)
    for meetings in (70, 10):
        later = Together(name, meetings, log=log, holdings=holdings)
        holdings = list(later.holdings)
        log.restored(2, 2, 0.0, version)
        model = jax.device_get(kept.holdings[2].params)
        holdings[2] = peers.begins(parts, 2, model, **log.known(2))
        log.restored(1, 0, 0.0)
        model = peers.shown(parts, holdings[0])
        holdings[1] = peers.begins(parts, 1, model, **log.known(1))
        holdings = [on_device(holding) for holding in holdings]
        pieces.append(later.schedule)
        kept, version = later, log.updates - 2
    last = Together(name, 30, log=log, holdings=holdings)
    schedule = concatenate([*pieces, last.schedule])
    schedule.validate()
    own = schedule.restored[:, 0] == 2
    assert schedule.staleness[own].max() >= 70 and own.sum() == 2
    assert [event.source for event in schedule.events] == [2, 0, 2, 0]
    simulator = meeters.replayed(name, schedule)
    model = simulator.advance(simulator.start(X0), np.inf)[0].model
    real = [last.of_all(what) for what in ("params", "work", "exchange")]
    simulated = [model.params, model.workers.work, model.workers.exchange]
    jax.tree.map(np.testing.assert_array_equal, real, simulated)


def on_device(holding):
    """As a process holds it."""
    return holding._replace(**jax.tree.map(jnp.asarray, holding._asdict() | {"rule": ()}))._replace(
        rule=holding.rule, counter=holding.counter, meetings=holding.meetings
    )


def scattered(i, exchange):
    """Public copies that begin far from each other."""
    return exchange._replace(comm=jnp.asarray(np.random.default_rng(i).normal(size=X0.shape), "f"))


@pytest.mark.parametrize("name", ["float32", slow("8 bits")])
def test_the_sum_is_kept_over_a_thousand_meetings_with_turns_that_come_twice(name):
    """Without steps of their own, as these change it."""
    run = Together(name, 1000, repeated=0.2, begin=scattered, rate=0.0)
    before = np.stack([scattered(i, SwarmState((), ())).comm for i in range(N)])
    after = run.of_all("exchange").comm
    rounding = 1000 * np.finfo(np.float32).eps * np.abs(before).max()
    np.testing.assert_allclose(after.sum(0), before.sum(0), atol=rounding)
    assert np.ptp(after, axis=0).max() < 1e-3 < np.ptp(before, axis=0).max()  # they have met


@pytest.mark.slow
@pytest.mark.parametrize(
    "partner", [lambda i: (i + 1) % N, lambda i: i ^ 1], ids=["a cycle", "each other"]
)
@pytest.mark.parametrize("name", ["float32", "8 bits"])
def test_nodes_that_ask_in_a_cycle_or_each_other_all_get_to_meet(name, partner):
    run = Together(name, 200, partner=partner)
    assert min(node.traffic().asked for node in run.nodes) > 10
    assert sum(node.traffic().refused for node in run.nodes) > 0


class AtOnce:
    """An executor whose work is over before `submit` returns, as a fast thread's may be."""

    def __init__(self, *_):
        pass

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def test_a_reply_is_counted_before_its_meeting_is_over(monkeypatch):
    """Counters are read at any moment between two meetings, and have to count whole ones alone."""
    early, size = [], meeters.message_bytes("float32")

    class Counted(nodes.Node):
        def _answered(self, met, result):
            meetings = int(self._holding.meetings) + 1
            early.append(self.traffic().sent_bytes < size * meetings)
            super()._answered(met, result)

    monkeypatch.setattr(desk, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(nodes, "Node", Counted)
    Together("float32", 20)
    assert len(early) >= 20 and not any(early)


@pytest.mark.parametrize("name", ["float32", slow("8 bits")])
def test_as_many_bytes_are_sent_as_the_method_says(name):
    """And what it says that it has sent again; the number on which two agree has four bytes."""
    run = Together(name, 200)
    meetings = sum(node.traffic().asked for node in run.nodes)
    states = [node.freeze().exchange for node in run.nodes]
    again = 0.0
    if run.method.metrics is not None:
        counted = run.method.metrics(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))
        again = N * float(counted["extra_bytes_per_worker"])
        assert again > 0
    said = 2 * meetings * meeters.message_bytes(name) + again
    agreed = 0 if run.method.metrics is None else 2 * meetings * 3 * 4
    assert said <= sum(node.traffic().sent_bytes for node in run.nodes) <= said + agreed
