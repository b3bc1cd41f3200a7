"""Which methods free workers run: local steps by speed, and memory that must be equal on all."""

import numpy as np
import pytest

from algorithms.streaming_diloco import fragment_size
from runtimes.simulate import Simulator
from stragglers.schedule import concatenate
from tests import planned
from tests.marks import slow, slow_but
from tests.runtimes.free import IN_STEP, LAW, METHODS, N, actors, used_once
from tests.runtimes.toy import DATA, SAMPLES, X0, D, losses
from tests.runtimes.world import REPEATING, World, difference, fitting, same_rows

BY_SPEED = (1, 2, 2, 2)  # mini-batches of every worker's contribution


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("wait", "method"),
    [("k_async", "async_diloco"), ("k_async/grace", "async_diloco")]
    + [slow("k_async", method) for method in METHODS if method != "async_diloco"]
    + [slow(wait, "async_diloco") for wait in ("k_sync", "ringmaster", "quorum_async")]
    + [slow(wait, "coordinate_median") for wait in REPEATING],
)
def test_each_worker_makes_its_own_number_of_local_steps(wait, method):
    """Rows, parameters and what a lost process changes are as with one number for all."""
    world = fitting(method, wait, BY_SPEED)
    pieces = [world.run(40)]
    same_rows(pieces[0], world.rule.extend(world.rule.init(), 40)[1])
    assert difference(world, method, pieces[0], BY_SPEED) < 2e-6
    for updates, who in ((60, 0), (80, 1)):
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
    assert difference(world, method, schedule, BY_SPEED) < 2e-6


def lossy(method, updates=35):
    """(world, rows) of a run in which everybody is waited for, and a process lost now and then."""
    world, pieces = World(method, "k_sync", 2, k=N), []
    for update, who in ((5, 2), (12, 0), (20, 3), (21, 2)):
        pieces.append(world.run(update))
        world.lose(who)
    return world, concatenate([*pieces, world.run(updates)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", slow_but(("one_bit_adam",), [name for name in IN_STEP if name != "streaming_diloco"])
)
def test_what_the_server_remembers_of_a_worker_outlives_its_process(method):
    """Nothing is lost, and the parameters are as in a run without losses."""
    world, schedule = lossy(method)
    assert (schedule.restored == -1).all() and len(schedule.events) == 8
    used_once(schedule, 2)
    assert difference(world, method, schedule, 2) < 2e-6
    untouched = World(method, "k_sync", 2, k=N)
    untouched.run(35)
    np.testing.assert_allclose(
        world.server.state.params, untouched.server.state.params, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_who_takes_the_place_of_a_lost_one_streams_the_same_fragment_as_the_others():
    """The server then has the workers' mean in that fragment, and elsewhere what it had."""
    world, size = World("streaming_diloco", "k_sync", 2, k=N), fragment_size(X0, 3)
    apply = world.server._applied

    def applied(taken, points):
        before, state = np.array(world.server.state.params), apply(taken, points)
        live = np.mean([p - h.contribution for p, h in zip(points, taken, strict=True)], axis=0)
        due = np.arange(D) // size == world.server.update % 3
        np.testing.assert_allclose(state.params, np.where(due, live, before), rtol=1e-5, atol=1e-6)
        return state

    world.server._applied = applied
    pieces = [world.run(5)]
    world.lose(2)
    schedule = concatenate([*pieces, world.run(12)])
    assert (schedule.restored >= 0).sum() == 1
    assert difference(world, "streaming_diloco", schedule, 2) < 2e-6


@pytest.mark.parametrize("method", IN_STEP)
def test_a_method_that_needs_everybody_refuses_a_rule_that_may_leave_some_out(method):
    with pytest.raises(ValueError, match="an update may have only 2 of 4"):
        actors(method, "k_async", 2, k=2)
    with pytest.raises(ValueError, match="an update may have only 2 of 4"):
        actors(method, "quorum_async", 2, k=2)  # which waits on for all, but not long enough
    assert actors(method, "k_sync", 2, k=4).start(X0).update == 0


def test_a_grace_that_may_be_too_short_is_refused_though_the_first_updates_have_all():
    rule = planned.rule("k_async", LAW, N, 2, 3, k=1, grace=0.1)
    assert rule.extend(rule.init(), 1)[1].fewest == N
    with pytest.raises(ValueError, match="an update may have only 1 of 4"):
        Simulator(IN_STEP["top_k/warm-up"](), losses, DATA, SAMPLES, rule, mini_batches=2)
