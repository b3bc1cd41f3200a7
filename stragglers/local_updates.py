"""Dynamic local updates: numbers of local steps with which all workers push equally often.

In DyLU of B. Liu et al., arXiv 2401.09135, Section 5, a worker makes H local steps times the ratio
of its speed to the speed of the fastest worker. A config takes these numbers as `mini_batches`, one
per worker.
"""

import numpy as np

from stragglers.schedule import Schedule


def measured_speeds(schedule: Schedule, workers: int) -> np.ndarray:
    """Return each worker's mini-batches per second of work; ValueError if a worker made none."""
    there = schedule.workers < workers  # rows with fewer contributions are padded
    made, busy = (
        np.bincount(schedule.workers[there], values[there], workers)
        for values in (schedule.batches, schedule.busy)
    )
    if not (made > 0).all():
        raise ValueError(
            f"speeds: worker {int(np.argmin(made))} finished nothing in {schedule.updates} "
            "updates; look at a longer schedule"
        )
    return made / busy


def dynamic(speeds, most: int) -> tuple[int, ...]:
    """Return every worker's local steps: floor(speed / largest speed * most), at least one.

        >>> dynamic([1.0, 2.0], most=8)
        (4, 8)
    """
    speeds = np.asarray(speeds, float)
    if most < 1 or not (speeds > 0).all():
        raise ValueError(
            f"local updates: needs most >= 1 and positive speeds, got {most} and {speeds.min():g}"
        )
    share = speeds / speeds.max() * most
    return tuple(np.maximum(1, np.floor(share + 1e-9)).astype(int).tolist())
