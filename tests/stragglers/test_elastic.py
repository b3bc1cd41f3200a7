"""Elastic all-reduce: steps and stops by hand, and against a plain loop over steps."""

import pytest

from stragglers import delays
from stragglers.elastic import elastic_all_reduce
from stragglers.processes import from_law, markov

STEP = 2.0


def step_by_step(process, learners, step, stop, seconds):
    """(seconds, mini-batches, stops), a step at a time."""
    time, made, stops = 0.0, 0, 0
    attempts, back = [0] * learners, [None] * learners
    while time < seconds:
        joining = [i for i in range(learners) if back[i] is not None and back[i] <= time]
        there = [i for i in range(learners) if back[i] is None]
        if joining:
            for i in joining:
                back[i] = None
            time, stops = time + stop, stops + 1
        elif not there:
            time = min(back)
        else:
            lasts = {i: float(process.duration(i, 0.0, attempts[i])) for i in there}
            failed = [i for i in there if lasts[i] > step]
            time += step
            for i in there:
                attempts[i] += 1
            for i in failed:
                back[i] = time + lasts[i] - step
            if failed:
                time, stops = time + stop, stops + 1
            else:
                made += len(there)
    return time, made, stops


@pytest.mark.parametrize("learners", [3, 20])
@pytest.mark.parametrize("stop", [0.0, 7.0])
def test_it_is_what_a_loop_over_steps_does(learners, stop):
    law = delays.bernoulli_slowdown(STEP, 10.5, 0.02)
    process = from_law(law).seeded(3)
    ran = elastic_all_reduce(process, learners, STEP, stop, 2000.0)
    assert ran == pytest.approx(step_by_step(process, learners, STEP, stop, 2000.0))
    assert ran.stops > 10


def test_delays_that_change_with_time_are_refused():
    process = markov(delays.deterministic(1.0), 5.0, 9.0, 3.0).seeded(0)
    with pytest.raises(ValueError, match="depends on the time; give a distribution"):
        elastic_all_reduce(process, 2, 1.0, 1.0, 10.0)
