"""Plans of a simulated run: what lands in time, and versions that outlive a segment."""

import numpy as np

from runtimes import inputs, planning
from stragglers import delays
from stragglers.rules.replay import recorded
from tests import planned
from tests.runtimes.toy import SAMPLES, B


def planner(rule, stale=True):
    return planning.Planner(rule, B, 1, stale, inputs.of((), SAMPLES).most)


def test_an_update_that_lands_on_time_is_in_time():
    """One worker, an update every second."""
    plans = planner(planned.rule("k_async", delays.deterministic(1.0), 1, 1, 0, k=1))
    plan, turn = plans.take(plans.start(remembers=False), 3.0, np.inf)
    assert turn.schedule.updates == plan.update == 3 and plan.samples == 3 * B
    np.testing.assert_array_equal(turn.samples, [0, B, 2 * B])  # seen before each update
    assert plans.take(plan, 3.5, np.inf)[1] is None
    plan, turn = plans.take(plan, 100.0, 2)
    assert turn.schedule.offset == 3 and plan.update == 5


def test_a_replayed_version_lives_until_the_segment_that_reads_it_last():
    made = planned.plan(
        "k_async", delays.exponential(1.0), 8, 5 * planning.PLANNED_UPDATES // 2, k=2
    )
    assert made.staleness.max() > 10
    plans = planner(recorded(made))
    plan, ran = plans.skip(plans.start(remembers=False), np.inf, np.inf)
    assert plan.planned is None and plan.update == made.updates
    np.testing.assert_array_equal(ran.version, made.version)
