"""Elastic all-reduce under failures: the group stops, and goes on without failed learners.

In a step every learner of the group computes one mini-batch. A learner whose mini-batch takes
longer than a step has failed. The step is lost, and the other learners stop to form a new group.
They compute their mini-batches again, in which they may fail as in any other.
When the failed learner is back, the group stops again to take it in. A learner that comes back
during a stop causes another stop. No other work is lost, as every learner has the model.

This is the synchronous rival in the goodput study of Decoupled DiLoCo, arXiv 2604.21428.
"""

from typing import NamedTuple

import numpy as np

from stragglers.processes import Process

AHEAD = 4096  # mini-batches of a learner whose durations are looked up in one call


class Ran(NamedTuple):
    """Totals of a run."""

    seconds: float
    mini_batches: int  # of all learners, in the steps that no failure has lost
    stops: int


def elastic_all_reduce(
    process: Process, learners: int, step: float, stop: float, seconds: float
) -> Ran:
    """Simulate a group of `learners` for `seconds`, and on to the end of the last step or stop.

    process: mini-batches of `step` seconds; a longer duration includes an absence of the learner.
    Durations must not depend on their start, else ValueError. stop: seconds of a stop.
    """
    if process.uses_time:
        raise ValueError(
            f"elastic_all_reduce: {process.name} depends on the time; give a distribution, or a "
            "process whose durations are drawn one by one"
        )
    most, drawn = int(seconds / step) + 2, np.zeros(learners, np.int64)

    def failure(learner: int) -> tuple[int, float]:
        """Return (mini-batches before the learner's next failure, seconds of its absence)."""
        before = 0
        while before < most:
            lasts = process.duration(learner, 0.0, int(drawn[learner]) + np.arange(AHEAD))
            failed = np.flatnonzero(lasts > step)
            if failed.size:
                drawn[learner] += failed[0] + 1
                return before + int(failed[0]), float(lasts[failed[0]] - step)
            drawn[learner] += AHEAD
            before += AHEAD
        return before, np.inf

    left, away = (np.array(c) for c in zip(*map(failure, range(learners)), strict=True))
    back = np.full(learners, np.inf)  # s, of absent learners
    time, made, stops = 0.0, 0, 0
    while time < seconds:
        there = np.isinf(back)
        joining = back <= time
        if joining.any():
            back[joining] = np.inf
            time, stops = time + stop, stops + 1
            continue
        if not there.any():
            time = back.min()
            continue
        steps = np.ceil(min(seconds, back.min()) / step - time / step)
        steps = int(min(left[there].min(), max(steps, 1)))
        time, made = time + steps * step, made + steps * int(there.sum())
        left[there] -= steps
        failing = there & (left == 0) & (time < min(seconds, back.min()))
        if not failing.any():
            continue
        time += step
        left[there] -= 1  # all draw anew
        for learner in np.flatnonzero(failing):
            back[learner] = time + away[learner]
            left[learner], away[learner] = failure(learner)
        time, stops = time + stop, stops + 1
    return Ran(time, made, stops)
