"""Workers under a server, on a virtual clock: what happens is what the rule has planned."""

import functools
import heapq
import threading

import jax
import numpy as np
import pytest

from runtimes.actors import Actors, misfit
from runtimes.free_worker import FreeWorker, Order
from runtimes.pulse import SILENCE, Pulse
from runtimes.worker import WorkerState
from stragglers import delays
from stragglers.schedule import concatenate
from tests import planned
from tests.marks import slow, slow_but
from tests.runtimes.free import ENCODED, LAW, METHODS, RELATIVES, N, parts, used_once
from tests.runtimes.toy import X0
from tests.runtimes.world import GRACES, RULES, World, difference, fitting, same_rows

# Every rule with a plain method and one that remembers, and every method with three rules.
PAIRS = [
    (wait, method)
    for wait in RULES
    for method in METHODS
    if method in ("all_reduce", "top_k") or wait in ("k_batch_sync", "k_async", "quorum_async")
]
QUICK = (("k_batch_sync", "ringleader"), ("k_async", "top_k"))


@pytest.mark.parametrize(
    ("wait", "method", "mini_batches"),
    [(*pair, 2) if pair in QUICK else slow(*pair, 1 + n % 2) for n, pair in enumerate(PAIRS)],
)
def test_rows_are_those_of_the_plan_and_replay_gives_the_parameters(wait, method, mini_batches):
    world = fitting(method, wait, mini_batches)
    schedule = world.run(40)
    schedule.validate()
    same_rows(schedule, world.rule.extend(world.rule.init(), 40)[1])
    assert difference(world, method, schedule, mini_batches) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("method", ("top_k", "decoupled_diloco", "async_diloco"))
@pytest.mark.parametrize("wait", GRACES)
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
    last = world.server.rows()
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
    """A world that goes on from what a checkpoint has of another one."""
    counters, history = world.server.counters(), world.server.log.pack(world.server.update)
    other = World(method, wait, 2, **RULES[wait])
    other.server.resume(world.server.state, counters, history, [])
    other.queue.clear()
    other.seconds = world.seconds
    for who, number in enumerate(counters["counted"].tolist()):
        other.workers[who].restore(number, world.workers[who].state(number))
    other.carry_out(other.server.begin(world.seconds))
    return other


@pytest.mark.few(1)
@pytest.mark.parametrize("method", slow_but(METHODS.keys() - RELATIVES, METHODS))
def test_lost_processes_lose_their_state_and_no_sample(method):
    world, rng = World(method, "k_async", 2, k=2), np.random.default_rng(0)
    pieces = []
    for updates in range(5, 60, 5):
        pieces.append(world.run(updates))
        world.lose(int(rng.integers(N)))
    schedule = concatenate([*pieces, world.run(65)])
    schedule.validate()
    assert (schedule.restored >= 0).sum() >= 8
    assert [event.kind for event in schedule.events] == ["lost", "restored"] * 11
    used_once(schedule, 2)
    assert difference(world, method, schedule, 2) < 2e-6


@pytest.mark.slow
def test_a_worker_encodes_what_it_sends_where_it_can():
    sent = {}
    for method in METHODS:
        world = World(method, "k_async", k=1)
        delivery = world.queue[0][-1]
        sent[method] = sum(leaf.nbytes for leaf in jax.tree.leaves(delivery.contribution))
        assert bool(jax.tree.leaves(world.server.state.memory)) == (method == "decoupled_diloco")
    assert max(sent.pop(method) for method in ENCODED) < X0.nbytes
    assert set(sent.values()) == {X0.nbytes}


def test_a_server_keeps_the_parameters_that_somebody_reads_and_no_others():
    world = World("all_reduce", "k_batch_async", k=1)
    world.run(200)
    assert len(world.server.points) <= N + 1


def test_a_server_that_resumes_stands_where_it_stood():
    observed = []
    knobs = {"protocol": "k_async", "interval": 0.1, "k": 1, "lowest_loss": 0.0}
    world, other = (World("all_reduce", "adasync", **knobs) for _ in range(2))
    for until, loss in ((0.0, 4.0), (0.3, 1.0), (0.5, 0.2)):
        while world.seconds < until:
            world.run(world.server.update + 1)
        observed.append((until, loss))  # the server has gone on in the meantime
        world.server.observe(*observed[-1])
    counters, history = world.server.counters(), world.server.log.pack(world.server.update)
    other.server.resume(world.server.state, counters, history, observed)
    assert other.server.update == world.server.update
    assert other.server.samples == world.server.samples
    other.queue.clear()
    for who, number in enumerate(counters["counted"].tolist()):
        other.workers[who].restore(number, WorkerState((), ()))
    other.carry_out(other.server.begin(world.seconds))
    assert other.server.rule.k == world.server.rule.k > 1
    before = other.server.update
    schedule = other.run(before + 30)
    assert schedule.offset == before and (schedule.version >= before).all()


def test_what_waits_for_an_update_is_made_anew_from_the_state_before():
    """A checkpoint has every worker's memory as it was at the last update that has its push."""
    world = World("top_k", "k_async", k=2)
    world.run(6)
    seen = 0
    for _ in range(12):
        world.seconds, who, _, delivery = heapq.heappop(world.queue)
        world.carry_out(world.server.arrived(who, delivery, world.seconds))
        counters = world.server.counters()
        for held in world.server._held:
            seen += 1
            assert counters["consumed"][held.worker] == held.order.first
            assert counters["counted"][held.worker] == held.order.after
        for one, number in enumerate(counters["counted"].tolist()):
            world.workers[one].state(number)
    assert seen


def test_a_dropped_contribution_is_left_out_with_its_samples():
    world = World("all_reduce", "k_async", k=1)
    world.run(10)
    consumed, who = world.server.consumed.copy(), world.queue[0][1]
    world.carry_out(world.server.drop(who, world.seconds))
    assert world.server.dropped == 1 and world.server.consumed[who] == consumed[who] + 1


def test_an_order_is_stopped_before_it_begins_and_inside_a_delay():
    worker = FreeWorker(functools.partial(parts, "all_reduce", 1, LAW), 0)
    worker.ready(X0)
    order = Order(1, 0, (), 0, 0, 1, 0, 0, 0.0)
    worker.interrupt(1)
    assert worker.step(order, X0).contribution is None
    assert worker.step(order._replace(number=2), X0).contribution is not None
    slow = FreeWorker(functools.partial(parts, "all_reduce", 1, delays.deterministic(60.0)), 0)
    slow.ready(X0)
    threading.Timer(0.2, slow.interrupt, [1]).start()
    assert slow.step(order, X0).contribution is None


def test_a_contribution_goes_on_from_the_state_that_its_order_names():
    worker = FreeWorker(functools.partial(parts, "local_sgd", 2, None), 0)
    worker.ready(X0)
    first = worker.step(Order(1, 0, (0,), 0, 0, 2, 0, 0, 0.0), X0).contribution
    later = worker.step(Order(2, 1, (0,), 0, 0, 2, 0, 0, 0.0), X0).contribution
    again = worker.step(Order(3, 0, (0,), 0, 0, 2, 0, 0, 0.0), X0).contribution
    assert np.abs(first - later).max() > 0  # it has momentum
    np.testing.assert_array_equal(first, again)
    worker.step(Order(4, 3, (0, 1), 0, 0, 2, 0, 0, 0.0), X0)
    assert set(worker._states) == {0, 1, 3, 4}


def test_a_delivery_that_is_not_finite_says_so():
    worker = FreeWorker(functools.partial(parts, "all_reduce", 1, None), 0)
    worker.ready(X0)
    assert not worker.step(Order(1, 0, (), 0, 0, 1, 0, 0, 0.0), X0 * np.nan).finite


def test_who_is_silent_is_asked_and_then_given_up():
    pulse = Pulse()
    for _ in range(10):
        pulse.delivered(4.0)
    assert pulse.patience == 20.0
    assert pulse.look({0: 0.0, 1: 15.0}, 19.0) == ([], [])
    assert pulse.look({0: 0.0, 1: 15.0}, 21.0) == ([0], [])
    assert pulse.answered(0, 3.0, 22.0)  # it sleeps: so it has until 42 s
    assert pulse.look({0: 0.0, 1: 15.0}, 36.0) == ([1], [])
    assert pulse.look({0: 0.0, 1: 15.0}, 36.0 + SILENCE + 1) == ([0], [1])
    assert not pulse.answered(0, 21.0, 48.0)  # its device hangs


def test_refusals_come_before_any_process():
    recipe = functools.partial(parts, "all_reduce", 1, LAW)
    for wait in ("barrier", "first_finisher"):
        with pytest.raises(ValueError, match="move freely, and the waiting rule has no form"):
            Actors(recipe(), recipe, planned.rule(wait, LAW, N, 1, 3))
    with pytest.raises(ValueError, match="may deliver twice"):
        top_k = functools.partial(parts, "top_k", 1, LAW)
        Actors(top_k(), top_k, planned.rule("k_batch_async", LAW, N, 1, 3, k=4)).start(X0)
    assert misfit(recipe().algorithm, planned.rule("k_async", LAW, N, 1, 3, k=2)) is None
