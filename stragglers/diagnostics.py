"""Effects of a schedule on SGD: tree distances of gradients, shares of workers, and waits.

The tree distance is that of Birch SGD (Tyurin, Sivtsov, arXiv 2505.09218). A run is a tree whose
edges are gradients. The distance of a gradient that is computed at one node and applied at another
is the number of edges from the two to their common ancestor. With R the largest of these distances,
(R + 1) L D / e + s^2 L D / e^2 gradients, up to a constant, reach a squared gradient norm of e.
"""

from typing import NamedTuple

import numpy as np

from stragglers.schedule import Schedule

NOTHING = 1e-6  # share of an update's time; shorter waits count as none


class Diagnostics(NamedTuple):
    """Diagnostics of a schedule of T updates by P workers."""

    tree_distance: int  # the largest tree distance, in mini-batches
    mean_distance: float  # tree distance, mean over mini-batches
    staleness: float  # in updates, mean over mini-batches
    share: np.ndarray  # [P] of all used mini-batches
    sent: np.ndarray  # [P] of all messages, which is that of the bytes if messages are alike
    limits: np.ndarray  # [P] share of the updates in which others waited for each worker
    waits: np.ndarray  # [P, P] s that a worker (row) waited for another (column)


def diagnose(schedule: Schedule, workers: int) -> Diagnostics:
    """Return the diagnostics; a contribution before its first row is as old as that row.

    A worker's mini-batches are taken to be computed at the version that it read, so that local
    steps count as gradients of an accumulated one do.
    """
    real = schedule.batches > 0
    batches = schedule.batches
    in_update = batches.sum(axis=1, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(in_update)])
    version = np.clip(schedule.version - schedule.offset, 0, schedule.updates)
    ahead = before[:-1, None] - before[version]  # mini-batches applied since the version was read
    # The n-th mini-batch of an update is n - 1 further from the version than the first.
    last = ahead + batches.cumsum(axis=1) - 1
    weight = max(1, batches[real].sum())
    largest = int(last[real].max(initial=0))
    mean = float(((last - (batches - 1) / 2) * batches)[real].sum() / weight)
    staleness = float((schedule.staleness * batches)[real].sum() / weight)
    used = np.bincount(schedule.workers[real], batches[real], workers)[:workers]
    sent = np.bincount(schedule.workers.ravel(), minlength=workers)[:workers]
    shares = (part / max(1.0, part.sum()) for part in (used, sent))
    return Diagnostics(largest, mean, staleness, *shares, *_waiting(schedule, workers))


def _waiting(schedule: Schedule, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shares of the updates [P], and seconds [P, P], in which others waited for workers."""
    takes_part = (schedule.finish > schedule.start) & (schedule.workers < workers)
    ready = np.where(takes_part, schedule.start + schedule.busy, -np.inf)
    rows = np.flatnonzero(takes_part.any(axis=1))
    last = schedule.workers[rows, ready[rows].argmax(axis=1)]
    lasted = schedule.finish[rows].max(axis=1) - schedule.start[rows].min(axis=1)
    waited = (schedule.idle[rows] * takes_part[rows]).max(axis=1) > NOTHING * lasted
    limits = np.bincount(last[waited], minlength=workers) / max(1, rows.size)
    waits = np.zeros((workers, workers))
    row, position = np.nonzero(takes_part)
    by_row = np.full(schedule.updates, -1)
    by_row[rows] = last
    np.add.at(waits, (schedule.workers[row, position], by_row[row]), schedule.idle[row, position])
    return limits, waits
