"""Which methods free workers run: local steps by speed, and memory that must be equal on all."""

import numpy as np
import pytest

from stragglers.schedule import concatenate
from tests.marks import slow
from tests.runtimes.free import METHODS, used_once
from tests.runtimes.world import REPEATING, difference, fitting, same_rows

BY_SPEED = (1, 2, 2, 2)  # mini-batches of every worker's contribution


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
