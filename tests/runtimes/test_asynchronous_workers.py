"""Workers under a server, without processes: the server's orders are carried out at once.

Their arrivals come in the order of a virtual clock, so that the rows equal the rule's plan.
"""

import concurrent.futures
import functools
import heapq
import queue
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from runtimes.asynchronous import pool
from runtimes.asynchronous import runtime as asynchronous_runtime
from runtimes.asynchronous.pool import News, Options, ProcessRuntime, Resources
from runtimes.asynchronous.runtime import AsynchronousRuntime
from runtimes.asynchronous.server import Begin, ParameterServer, Stop
from runtimes.asynchronous.worker import AsynchronousWorker, Order
from runtimes.base import WorkersLost
from runtimes.simulate import Simulator
from runtimes.worker import WorkerState
from stragglers import delays
from stragglers.processes import as_process, by_sample
from stragglers.rule import most_mini_batches, whole
from stragglers.schedule import concatenate
from tests import planned
from tests.marks import slow
from tests.runtimes.free import IN_STEP, LAW, N, actors, parts, replayed, used_once
from tests.runtimes.toy import DATA, SAMPLES, X0, losses

RULES = {
    "k_batch_sync": {"k": 3},
    "k_async": {"k": 2},
    "k_batch_async": {"k": 2},
    "ringmaster": {"limit": 2, "interrupt": True},
    "k_async/grace": {"k": 1, "grace": 0.01},
    "quorum_async": {"k": 2, "gamma": 0.7},
}
FRESH = WorkerState((), ())
GRACES = ("k_async/grace", "quorum_async")  # updates that wait on after their k-th push


class World:
    """A server and workers on a virtual clock, in which processes can be lost."""

    def __init__(self, method, wait, mini_batches=1, delay=LAW, **knobs):
        built = parts(method, mini_batches, None)
        self.algorithm = built.algorithm
        self.rule = planned.rule(wait.split("/")[0], delay, N, mini_batches, 3, **knobs)
        self.recipe, self._delay = lambda: built, as_process(delay).seeded(3)
        self.server = ParameterServer(
            built.algorithm,
            self.rule.arrivals,
            X0,
            workers=N,
            mini_batches=most_mini_batches(mini_batches),
            batch_size=SAMPLES.batch_size,
            renews=self._delay.costs is not None,
        )
        self.workers = {who: self.process(who) for who in range(N)}
        self.queue, self.seconds = [], 0.0
        self.carry_out(self.server.begin(0.0))

    def process(self, who):
        worker = AsynchronousWorker(self.recipe, who)
        worker.ready(X0)
        return worker

    def carry_out(self, commands):
        for command in commands:
            if isinstance(command, Stop):
                self.workers[command.worker].interrupt(command.number)
                self.queue = [e for e in self.queue if e[1:3] != (command.worker, command.number)]
                heapq.heapify(self.queue)
            else:
                self.begin(command)

    def begin(self, command: Begin):
        order, now = command.order, self.seconds
        for step in range(order.batches):
            now += float(self._delay.duration(command.worker, now, order.attempt + step))
        delivery = self.workers[command.worker].step(order, command.params)
        heapq.heappush(self.queue, (now, command.worker, order.number, delivery))

    def step(self):
        """To the next delivery, or to the time at which the server reacts without any."""
        if not self.queue or self.server.due < self.queue[0][0]:
            self.seconds = self.server.due
            self.carry_out(self.server.passed(self.seconds))
        else:
            self.seconds, who, _, delivery = heapq.heappop(self.queue)
            self.carry_out(self.server.arrived(who, delivery, self.seconds))

    def run(self, updates):
        while self.server.update < updates:
            self.step()
        return self.server.log.take()

    def run_into_a_grace(self):
        """Until an update waits on for others, and has more than it needs; the rows until then."""
        while not (self.server.due > self.seconds and len(self.server._held) > 2):
            self.step()
        return self.server.log.take()

    def lose(self, who):
        """Let the process of a worker go, and another one come at once."""
        self.queue = [event for event in self.queue if event[1] != who]
        heapq.heapify(self.queue)
        self.server.lost(who, self.seconds)
        self.workers[who] = self.process(who)
        self.carry_out(self.server.returned(who, self.seconds))

    def packed(self):
        """Return what a checkpoint has of the server."""
        server = self.server
        return server.state, server.counters(), server.log.pack(server.update)

    def resume(self, packed, seconds=0.0, states=(FRESH,) * N, observed=()):
        """Go on from the checkpoint of another world; whatever was on its way is lost."""
        self.server.resume(*packed, list(observed))
        self.queue.clear()
        self.seconds = seconds
        for who, number in enumerate(packed[1]["counted"].tolist()):
            self.workers[who].restore(number, states[who])
        self.carry_out(self.server.begin(seconds))


def difference(world, method, schedule, mini_batches):
    """Between the parameters of the server and of a simulated replay, relative."""
    simulator = replayed(method, schedule, mini_batches)
    run, _ = simulator.advance(simulator.start(X0), np.inf)
    ours, theirs = world.server.state.params, np.asarray(simulator.models(run))[0]
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def same_rows(schedule, plan):
    width = schedule.workers.shape[1]
    assert (plan.batches[:, width:] == 0).all()
    np.testing.assert_allclose(schedule.time, plan.time, atol=1e-9)
    for column in ("workers", "batches", "first", "version"):
        planned = getattr(plan, column)[:, :width]
        np.testing.assert_array_equal(getattr(schedule, column), planned, err_msg=column)
    for column in ("start", "finish"):
        planned = getattr(plan, column)[:, :width]
        np.testing.assert_allclose(getattr(schedule, column), planned, atol=1e-9, err_msg=column)


# Rules that cancel, wait for workers, queue, interrupt and wait on; all are in `test_arrivals`.
@pytest.mark.parametrize(
    ("wait", "method"),
    [
        ("k_batch_sync", "ringleader"), ("k_async", "top_k"), slow("k_batch_async", "all_reduce"),
        slow("ringmaster", "local_sgd"), slow("k_async/grace", "decoupled_diloco"),
    ],
)  # fmt: skip
def test_rows_are_those_of_the_plan_and_replay_gives_the_parameters(wait, method):
    world = World(method, wait, 2, **RULES[wait])
    schedule = world.run(40)
    schedule.validate()
    same_rows(schedule, world.rule.extend(world.rule.init(), 40)[1])
    assert difference(world, method, schedule, 2) < 2e-6


def test_pushes_that_are_ignored_are_counted_as_in_the_plan():
    world = World("all_reduce", "ringmaster", 2, limit=2)
    schedule, plan = world.run(40), world.rule.extend(world.rule.init(), 40)[1]
    same_rows(schedule, plan)
    assert plan.ignored.any()
    np.testing.assert_array_equal(schedule.ignored, plan.ignored)


def test_what_is_cancelled_loses_its_samples_where_they_have_costs():
    world = World("all_reduce", "ringmaster", 2, by_sample(LAW), **RULES["ringmaster"])
    schedule = world.run(40)
    same_rows(schedule, world.rule.extend(world.rule.init(), 40)[1])
    used = np.zeros(N, int)
    np.add.at(used, schedule.workers, schedule.batches)
    last = np.zeros(N, int)
    np.maximum.at(last, schedule.workers, schedule.first + schedule.batches)
    assert (used < last).any()  # some of what was offered is in no row
    assert difference(world, "all_reduce", schedule, 2) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "method"), [("k_async/grace", "top_k"), ("quorum_async", "decoupled_diloco")]
)
def test_processes_are_lost_and_a_run_resumes_while_an_update_waits_on(wait, method):
    """Of the contributions that it has already, and of one on its way, no sample gets lost."""
    world = World(method, wait, 2, **RULES[wait])
    pieces = [world.run(8), world.run_into_a_grace()]
    due, (first, *_) = world.server.due, world.server._held
    in_flight = next(who for who in range(N) if world.server.waits_for(who) is not None)
    for who in (first.worker, in_flight):
        world.lose(who)
    assert world.server.due == due  # it waits for nobody in particular
    world.queue.clear()  # nobody delivers any more
    world.step()
    assert world.seconds == due
    last = world.server.log.take()
    assert last.updates == 1 and first.worker in last.workers[0][last.batches[0] > 0]
    pieces.append(last)

    world = resumed(world, method, wait)
    pieces += [world.run(30), world.run_into_a_grace()]
    consumed = world.server.consumed.sum()
    assert world.server.counters()["consumed"].sum() < consumed  # what waits is made anew
    world = resumed(world, method, wait)
    schedule = concatenate([piece for piece in (*pieces, world.run(60)) if piece is not None])
    schedule.validate()
    used_once(schedule, 2)
    assert difference(world, method, schedule, 2) < 2e-6


def resumed(world, method, wait):
    """Return a world that goes on from what a checkpoint has of another one."""
    other, packed = World(method, wait, 2, **RULES[wait]), world.packed()
    numbers = packed[1]["counted"].tolist()
    states = [world.workers[who].state(number) for who, number in enumerate(numbers)]
    other.resume(packed, world.seconds, states)
    return other


@pytest.mark.parametrize("wait", ["k_async", "quorum_async"])
def test_what_waits_for_an_update_is_made_anew_by_a_run_that_resumes(wait):
    """By the same rule, after as many updates, and with the same samples."""
    world = World("all_reduce", wait, 2, **RULES[wait])
    rows = world.run(6)
    while not world.server._held:
        world.step()
    again = resumed(world, "all_reduce", wait)
    assert again.server.rule.update == again.server.update == 6
    used_once(concatenate([rows, again.run(20)]), 2)


def test_a_contribution_that_waits_is_made_anew_though_a_later_one_was_left_out():
    """Its samples were skipped, and the bad ones came again."""
    world = World("all_reduce", "k_batch_sync", 2, **RULES["k_batch_sync"])
    rows = world.run(6)
    while not world.server._held:
        world.step()
    (held,) = world.server._held
    world.carry_out(world.server.drop(held.worker, world.seconds))
    assert world.server.consumed[held.worker] == held.order.first + 4
    used_once(concatenate([rows, resumed(world, "all_reduce", "k_batch_sync").run(20)]), 2)


@pytest.mark.parametrize("method", ["top_k", slow("easgd")])
def test_lost_processes_lose_their_state_and_no_sample(method):
    world, rng = World(method, "k_async", 2, k=2), np.random.default_rng(0)
    pieces = []
    for updates in range(5, 60, 5):
        pieces.append(world.run(updates))
        world.lose(int(rng.integers(N)))
    schedule = concatenate([*pieces, world.run(64)])
    schedule.validate()
    assert (schedule.restored >= 0).sum() >= 8
    assert [event.kind for event in schedule.events] == ["lost", "restored"] * 11
    used_once(schedule, 2)
    assert difference(world, method, schedule, 2) < 2e-6


def test_a_server_that_resumes_stands_where_it_stood():
    observed = []
    knobs = {"protocol": "k_async", "interval": 0.1, "k": 1, "lowest_loss": 0.0}
    world, other = (World("all_reduce", "adasync", **knobs) for _ in range(2))
    for until, loss in ((0.0, 4.0), (0.3, 1.0), (0.5, 0.2)):
        while world.seconds < until:
            world.run(world.server.update + 1)
        observed.append((until, loss))  # the server has gone on in the meantime
        world.server.observe(*observed[-1])
    other.resume(world.packed(), world.seconds, observed=observed)
    assert other.server.samples == world.server.samples
    assert other.server.rule.k == world.server.rule.k > 1
    assert other.server.rule.update == other.server.update == world.server.update
    before = other.server.update
    schedule = other.run(before + 30)
    assert schedule.offset == before and (schedule.version >= before).all()


@pytest.mark.parametrize("protocol", ["k_sync", "k_batch_sync", "k_async", "k_batch_async"])
def test_a_loss_among_the_arrivals_of_an_update_is_seen_there_again(protocol):
    """Seen before all of them, a smaller k would have had fewer for an update."""
    knobs = {"protocol": protocol, "interval": 0.01, "k": 4}
    world, other = (World("all_reduce", "adasync", **knobs) for _ in range(2))
    observed = [(0.0, 1.0)]
    world.server.observe(*observed[0])
    pieces = [world.run(1)]
    while len(world.server._held) < 3:
        world.step()
    observed.append((world.seconds, 16.0))
    world.server.observe(*observed[-1])
    pieces.append(world.run(2))
    assert world.server.rule.k < 4
    other.resume(world.packed(), world.seconds, observed=observed)
    assert (other.server.rule.k, other.server.rule.update) == (world.server.rule.k, 2)
    used_once(concatenate([*pieces, other.run(20)]), 1)


def test_a_loss_after_a_checkpoint_is_the_first_thing_that_each_resumed_run_sees():
    """It was seen two updates later, which the run that resumes does not have."""
    knobs = {"protocol": "k_sync", "interval": 0.01, "k": 4}
    first, second, third = (World("all_reduce", "adasync", **knobs) for _ in range(3))
    observed = [(0.0, 1.0)]
    first.server.observe(*observed[0])
    first.run(1)
    state, counters, _ = first.packed()
    first.run(3)
    observed.append((first.seconds, 16.0))
    first.server.observe(*observed[-1])
    second.resume((state, counters, first.server.log.pack(1)), observed=observed)
    assert second.server.rule.k < 4
    second.run(9)
    third.resume(second.packed(), observed=observed)
    assert third.server.rule.update == third.server.update == 9
    assert third.run(20).updates == 11


def ready(method, mini_batches=1, law=None, **changes):
    """Return a worker that has what it needs."""
    built = parts(method, mini_batches, law)._replace(**changes)
    worker = AsynchronousWorker(lambda: built, 0)
    worker.ready(X0)
    return worker


def test_an_order_is_stopped_before_it_begins_and_inside_a_delay():
    worker = ready("all_reduce", 1, LAW)
    order = Order(1, 0, (), 0, 0, 1, 0, 0, 0.0)
    worker.interrupt(1)
    assert worker.step(order, X0).contribution is None
    assert worker.step(order._replace(number=2), X0).contribution is not None
    slow = ready("all_reduce", 1, delays.deterministic(60.0))
    threading.Timer(0.2, slow.interrupt, [1]).start()
    assert slow.step(order, X0).contribution is None


def test_durations_are_those_of_the_attempts_that_the_order_names():
    """Attempts are more than its mini-batches once orders have been stopped."""

    class Noted:
        counts = ()

        def duration(self, who, at, count):
            self.counts = (*self.counts, int(count))
            return 0.0

    noted = Noted()
    worker = ready("all_reduce", 2, delay=noted)
    noted.counts = ()
    worker.step(Order(1, 0, (), 0, 4, 2, 7, 0, 0.0), X0)
    assert noted.counts == (7, 8)


def test_a_contribution_goes_on_from_the_state_that_its_order_names():
    worker = ready("local_sgd", 2)
    first = worker.step(Order(1, 0, (0,), 0, 0, 2, 0, 0, 0.0), X0).contribution
    later = worker.step(Order(2, 1, (0,), 0, 0, 2, 0, 0, 0.0), X0).contribution
    again = worker.step(Order(3, 0, (0,), 0, 0, 2, 0, 0, 0.0), X0).contribution
    assert np.abs(first - later).max() > 0  # it has momentum
    np.testing.assert_array_equal(first, again)
    worker.step(Order(4, 3, (0, 1), 0, 0, 2, 0, 0, 0.0), X0)
    assert set(worker._states) == {0, 1, 3, 4}


def test_a_delivery_that_is_not_finite_says_so():
    worker = ready("all_reduce")
    assert not worker.step(Order(1, 0, (), 0, 0, 1, 0, 0, 0.0), X0 * np.nan).finite


# --- local steps by speed, and memory that must be equal on all workers

BY_SPEED = (1, 2, 2, 2)  # mini-batches of every worker's contribution


def test_each_worker_makes_its_own_number_of_local_steps():
    """Rows, parameters and what a lost process changes are as with one number for all."""
    world = World("async_diloco", "k_async/grace", BY_SPEED, **RULES["k_async/grace"])
    pieces = [world.run(40)]
    same_rows(pieces[0], world.rule.extend(world.rule.init(), 40)[1])
    for updates, who in ((52, 0), (64, 1)):
        world.lose(who)
        pieces.append(world.run(updates))
    schedule = concatenate(pieces)
    schedule.validate()
    real = schedule.batches > 0
    np.testing.assert_array_equal(
        schedule.batches[real], np.array(BY_SPEED)[schedule.workers[real]]
    )
    assert set(schedule.workers[schedule.restored >= 0].tolist()) == {0, 1}
    used_once(schedule, BY_SPEED)
    assert difference(world, "async_diloco", schedule, BY_SPEED) < 2e-6


@pytest.mark.slow
def test_what_the_server_remembers_of_a_worker_outlives_its_process():
    """Nothing is lost, and the parameters are as in a run without losses."""
    world, pieces = World("one_bit_adam", "k_sync", 2, k=N), []
    for update, who in ((5, 2), (12, 0), (20, 3), (21, 2)):
        pieces.append(world.run(update))
        world.lose(who)
    schedule = concatenate([*pieces, world.run(35)])
    assert (schedule.restored == -1).all() and len(schedule.events) == 8
    used_once(schedule, 2)
    assert difference(world, "one_bit_adam", schedule, 2) < 2e-6
    untouched = World("one_bit_adam", "k_sync", 2, k=N)
    untouched.run(35)
    np.testing.assert_allclose(
        world.server.state.params, untouched.server.state.params, rtol=1e-5, atol=1e-6
    )


def test_a_method_that_needs_everybody_refuses_a_rule_that_may_leave_some_out():
    """Also a grace that may be too short, though the first updates have all."""
    for wait in ("k_async", "quorum_async"):  # which waits on for all, but not long enough
        with pytest.raises(ValueError, match="an update may have only 2 of 4"):
            actors("one_bit_adam", wait, 2, k=2)
    assert actors("one_bit_adam", "k_sync", 2, k=4).start(X0).update == 0
    rule = planned.rule("k_async", LAW, N, 2, 3, k=1, grace=0.1)
    assert rule.extend(rule.init(), 1)[1].fewest == N
    with pytest.raises(ValueError, match="an update may have only 1 of 4"):
        Simulator(IN_STEP["top_k/warm-up"](), losses, DATA, SAMPLES, rule, mini_batches=2)


# --- the loop of a server whose workers are scripted, on a clock that moves as it waits


class Script:
    """An actor pool, and its queue of news: members deliver after the seconds that the law says."""

    def __init__(self, over, spoil):
        """over: () -> whether nobody is to say anything any more; spoil: of worker 1's news."""
        self.news, self.now, self._over, self._events = self, 0.0, over, []
        self._spoil = spoil
        self.waits = []  # s for which the loop would have waited at most
        self._delay = as_process(LAW).seeded(3)
        recipe = functools.partial(parts, "local_sgd", 1, None)
        self._workers = [AsynchronousWorker(recipe, who) for who in range(N)]
        for worker in self._workers:
            worker.ready(X0)

    def handle(self, member):
        return self._workers[member]

    def call(self, member, method, order, params, tag, process):
        assert (method, tag, process) == ("step", order, self._workers[member])
        lasts = float(self._delay.duration(member, self.now, order.attempt))
        delivery = self._workers[member].step(order, params)
        news = News(member, "answer", delivery, tag)
        news = self._spoil(news) if member == 1 else news
        heapq.heappush(self._events, (self.now + lasts, member, news))

    def get(self, timeout):
        self.waits.append(timeout)
        if not self._over():
            if self._events and self._events[0][0] <= self.now + timeout:
                self.now, _, news = heapq.heappop(self._events)
                return news
            self.now += timeout
        raise queue.Empty

    def submit(self, call, *arguments):
        """Of the thread that talks to the workers: at once."""
        call(*arguments)


class Loop(AsynchronousRuntime):
    """A server's loop until an update, in the thread of the test."""

    def __init__(self, wait, updates, spoil=lambda news: news, **options):
        rule = self.rule = planned.rule(wait.split("/")[0], LAW, N, 1, 3, **RULES[wait])
        super().__init__(parts("local_sgd", 1, None), None, rule, Options(**options))
        self.start(X0)
        self._pool = self._aside = Script(self._ends, spoil)
        self._updates, self._limit = updates, float("inf")

    def now(self):
        return self._pool.now

    def _ends(self):
        self._closing = self._server.update >= self._updates
        return self._closing

    def run(self):
        self._alive.update(range(N))
        self._send(self._server.begin(0.0))
        self._watch()
        if self.error is not None:
            raise self.error
        return self._server.log.take()


@pytest.fixture
def by_value(monkeypatch):
    """Parameters that are handed on as they are, without Ray."""
    monkeypatch.setattr(asynchronous_runtime, "_put", lambda params: params)


@pytest.mark.parametrize("wait", GRACES)
def test_an_update_is_made_as_its_grace_ends_though_nobody_pushes(wait, by_value):
    """The loop wakes in time, and what it makes of news and of time is what is planned."""
    loop = Loop(wait, 40)
    schedule = loop.run()
    same_rows(schedule, whole(loop.rule, schedule.updates))
    used_once(schedule, 1)
    counts = (schedule.batches > 0).sum(axis=1)
    assert (counts < N).sum() > 5 and counts.max() > RULES[wait]["k"]
    assert min(loop._pool.waits) >= 0


SPOILT = {
    "is not finite": lambda news: news._replace(value=news.value._replace(finite=False)),
    "has other shapes than it should": lambda news: news._replace(
        value=news.value._replace(contribution=X0[:2])
    ),
    "fails with no memory": lambda news: news._replace(kind="failed", value=OSError("no memory")),
}


@pytest.mark.parametrize("says", SPOILT)
def test_a_contribution_that_cannot_be_used_ends_the_run_or_is_left_out(says, by_value):
    message = rf"contribution of worker 1 at update . {says}.*bad_contribution='drop'"
    with pytest.raises(RuntimeError, match=message):
        Loop("k_async", 40, SPOILT[says]).run()
    loop = Loop("k_async", 40, SPOILT[says], drops=True)
    schedule = loop.run()
    assert loop._server.dropped > 1 and 1 not in schedule.workers
    assert loop._server.consumed[1] >= loop._server.dropped
    pushes = schedule.batches.sum() + len(loop._server._held)
    left_out = loop._server.dropped * (says == "is not finite") + loop._server.log.ignored
    if "shapes" not in says:  # all that has come was sent
        assert loop.sent == X0.nbytes * (pushes + left_out)


def test_a_delivery_that_is_heard_after_its_process_was_lost_is_computed_again(by_value):
    """A new process goes on from nothing that the old one remembered."""
    loop = Loop("k_async", 40)
    worker, loop._pool = loop._pool._workers[1], MagicMock()
    loop._alive.update(range(N))
    begun = {command.worker: command.order for command in loop._server.begin(0.0)}
    late = News(1, "answer", worker.step(begun[1], X0), begun[1])
    loop._heed(News(1, "lost"))
    assert loop._heed(late) == [] and loop._server.counted[1] == 0
    stop, again = loop._heed(News(1, "ready"))
    assert stop == Stop(1, begun[1].number)
    assert (again.order.first, again.order.number) == (begun[1].first, begun[1].number + 1)
    stale = News(1, "failed", KeyError(17), begun[1])
    assert loop._heed(stale) == [] and loop._server.waits_for(1) == again.order
    loop._heed(News(1, "answer", worker.step(again.order, X0), again.order))
    assert loop._server.counted[1] == again.order.number


def test_an_order_never_reaches_a_later_process_of_its_worker(by_value):
    """The later one has no state to go on from; the order was still to be sent."""
    loop, sent = Loop("k_async", 40), []
    loop._pool = calls = MagicMock()
    calls.handle = lambda member: calls.start.call_count
    calls.call = lambda *arguments, tag, process, **_: sent.append((tag.number, process))
    waiting = loop._aside = MagicMock()
    loop._send([next(loop._server.begin(0.0))])
    loop._heed(News(0, "lost"))
    (call, *arguments), _ = waiting.submit.call_args
    call(*arguments)
    (restarted,) = calls.start.mock_calls
    assert restarted.args[0] == 0 and sent == [(1, 0)] and loop.error is None


def test_a_new_process_lives_though_it_has_no_memory_of_the_last_evaluation():
    loop = Loop("k_async", 40)
    loop._pool = calls = MagicMock()
    loop._state_of(1, 17)
    loop._heed(News(1, "failed", KeyError(17), calls.call.call_args.kwargs["tag"]))
    assert not calls.kill.called
    loop._heed(News(1, "failed", KeyError(17)))  # another call, which each of them can answer
    calls.kill.assert_called_once_with(1)


def test_an_order_that_cannot_be_handed_out_ends_the_run(monkeypatch):
    def fails(params):
        raise MemoryError("no room for parameters")

    monkeypatch.setattr(asynchronous_runtime, "_put", fails)
    loop = Loop("k_async", 40)
    loop._aside = concurrent.futures.ThreadPoolExecutor(1)
    loop._send([next(loop._server.begin(0.0))])
    loop._aside.shutdown()
    assert isinstance(loop.error, MemoryError)


def test_nobody_waits_for_a_run_that_is_closed():
    watched = ProcessRuntime(1, None, Options())

    def waits():
        with watched.changed:
            watched.wait(np.inf, lambda: False)

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    watched.close()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_number_of_a_process_that_has_gone_is_not_ended_and_a_closed_pool_starts_none(
    monkeypatch,
):
    ray, ended, ready, lost = MagicMock(), [], Future(), Future()
    ray.exceptions.RayActorError = type("RayActorError", (Exception,), {})
    ray.get_runtime_context().get_node_id.return_value = "here"
    actor = ray.remote()().options().remote()
    actor.begin_member.remote().future.return_value = ready
    actor.watch_member.options().remote().future.return_value = lost
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(pool.os, "kill", lambda pid, _: ended.append(pid))
    actors = pool.ActorPool(object, lambda who: (), 1, Resources())
    actors.start(0)
    ready.set_result(pool.Place(7, "here"))
    actors.kill(0)
    lost.set_exception(ray.exceptions.RayActorError())
    actors.close()
    assert ended == [7] and actors.place(0) is None
    ray.kill.reset_mock()
    actors.start(0)
    ray.kill.assert_called_once_with(actor)


def test_a_run_ends_with_too_few_workers_or_with_one_that_dies_again_and_again():
    watched = ProcessRuntime(4, None, Options(least_workers=3))
    watched._alive = {0, 1, 2}
    watched._check_enough(10.0)
    assert watched._died_again(1, "a delivery")
    for now in (20.0, 79.0):
        watched._check_enough(now)
    with pytest.raises(WorkersLost, match=r"only 2 of 4 .* no more have come for 60 s"):
        watched._check_enough(81.0)
    assert all(watched._died_again(1, "a delivery") for _ in range(3)) and watched.deaths == 4
    watched._spares = lambda gone: gone == {1}  # as a gossip run does, while there are enough
    assert not watched._died_again(1, "a meeting")
    del watched._spares
    with pytest.raises(WorkersLost, match="worker 1 has died 5 times in a row without a delivery"):
        watched._died_again(1, "a delivery")


def test_a_process_that_is_silent_or_computes_for_too_long_is_ended():
    """By five times the usual time; a moment in which nobody listens does not count."""
    watched = ProcessRuntime(3, None, Options())
    watched._pool = pool = MagicMock()
    watched._alive, now = {0, 1}, time.monotonic()
    assert watched._lives(1, computing=200.0) and not pool.kill.called  # local steps may be long
    watched._heard[0] = now - 25.0  # and one that computes gives signs
    watched._look(away=0.0)
    pool.kill.assert_called_once_with(0)
    pool.kill.reset_mock()
    watched._durations.extend([4.0] * 10)
    assert watched.patience == 20.0
    watched._heard = {0: now - 35.0, 1: now - 25.0}
    for away in (8.0, 0.0):
        watched._look(away)
        assert not pool.kill.called
    watched._heard[0] -= 5.0
    watched._look(away=0.0)
    assert watched._lives(1, computing=19.0) and not watched._lives(1, computing=21.0)
    assert [call.args[0] for call in pool.kill.mock_calls] == [0, 1]
    assert [call.args[0] for call in pool.call.mock_calls] == [1, 1]


def test_a_system_without_shared_memory_is_not_asked_for_its_room(monkeypatch, tmp_path):
    """As macOS, where Ray keeps its store in a file."""
    monkeypatch.setattr(pool, "_SHARED_MEMORY", str(tmp_path / "shm"))
    pool.Session().check_room(2, 2**60)
    (tmp_path / "shm").mkdir()
    with pytest.raises(ValueError, match=r"workers need .* MB of shared memory"):
        pool.Session().check_room(2, 2**60)


def test_a_service_of_ray_that_has_gone_is_named(monkeypatch):
    """By connections that are refused, and by a socket that closes."""
    monkeypatch.setattr(pool, "SERVICE_LOOK", 0.05)
    with (
        tempfile.TemporaryDirectory() as place,
        socket.socket() as control,
        socket.socket(socket.AF_UNIX) as raylet,
    ):
        path = str(Path(place, "raylet"))
        raylet.bind(path)
        raylet.listen()
        control.bind(("127.0.0.1", 0))
        given = path, f"127.0.0.1:{control.getsockname()[1]}", 0.1
        assert pool._gone(*given, threading.Event()) == "control service"
        control.listen()
        raylet.accept()[0].close()  # of the call before
        threading.Timer(0.3, lambda: raylet.accept()[0].close()).start()
        assert pool._gone(*given, threading.Event()) == "raylet"
        ended = threading.Event()
        ended.set()
        assert pool._gone(*given, ended) is None
        raylet.close()
        assert pool._gone(*given, threading.Event()) == "raylet"
