"""Plans of a simulated run: what lands in time, and versions that outlive a segment."""

import numpy as np
import pytest

from runtimes import inputs, planning
from stragglers import delays
from stragglers.rules.replay import recorded
from tests import planned
from tests.runtimes.toy import SAMPLES, B


def planner(rule, stale=True):
    return planning.Planner(rule, B, 1, stale, inputs.of((), SAMPLES).most)


@pytest.mark.slow
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


def test_turns_of_equal_updates_have_equal_shapes():
    """What is left of the rows that were planned is no turn of its own."""
    plans = planner(planned.rule("k_async", delays.exponential(1.0), 8, 1, 0, k=3))
    every = 3 * planning.PLANNED_UPDATES // 8  # does not divide what is planned at once
    plan, counts, ran = plans.start(remembers=False), [], []
    for _ in range(10):
        plan, turn = plans.take(plan, np.inf, every)
        counts.append(turn.schedule.updates)
        ran.append(turn)
    assert counts == [every] * 10
    whole = planned.plan("k_async", delays.exponential(1.0), 8, 10 * every, k=3)
    np.testing.assert_array_equal(
        np.concatenate([turn.schedule.version for turn in ran]), whole.version
    )
    assert plans.take(plan, np.inf, np.inf)[1].schedule.updates == planning.PLANNED_UPDATES


def test_slots_go_on_where_a_turn_takes_rows_of_two_plans():
    """Every contribution reads the slot that its version was written to, and nobody else since."""
    plans = planner(planned.rule("k_async", delays.exponential(1.0), 8, 1, 0, k=1))
    plan, held, update = plans.start(remembers=False), {0: 0}, 0
    for _ in range(12):
        plan, turn = plans.take(plan, np.inf, 25)
        for row in range(turn.schedule.updates):
            versions, read = turn.schedule.version[row], turn.read[row]
            assert [held[slot] for slot in read] == versions.tolist()
            assert held[turn.current[row]] == update
            update += 1
            held[turn.write[row]] = update
    assert plan.update == update == 300


def test_what_is_known_of_all_rows():
    def known(name, **options):
        rule = planned.rule(name, delays.exponential(1.0), 8, 2, 0, **options)
        plans = planner(rule, stale=rule.asynchronous)
        return plans.take(plans.start(remembers=False), np.inf, 10)[1].known

    assert known("barrier") == (True, True, True)
    assert known("first_finisher", in_flight="cut") == (True, False, True)  # somebody has nothing
    assert known("k_async", k=1) == (False, True, True)
