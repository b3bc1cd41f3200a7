"""What a schedule does to SGD: how far off its gradients land, and who is waited for.

The tree distance is that of Birch SGD (Tyurin, Sivtsov, arXiv 2505.09218): a run is a tree whose
edges are gradients, and a gradient that is computed at one node and applied at another is as far
off as there are edges from the two to their common ancestor. With R the largest of these distances,
(R + 1) L D / e + s^2 L D / e^2 gradients, up to a constant, reach a squared gradient norm of e.
"""

from typing import NamedTuple

import numpy as np

from stragglers.schedule import Schedule

NOTHING = 1e-6  # share of an update's time, below which nobody has waited


class Diagnostics(NamedTuple):
    """What a schedule of T updates by P workers does."""

    tree_distance: int  # the largest, in mini-batches
    mean_distance: float  # over mini-batches
    staleness: float  # updates, averaged over mini-batches
    share: np.ndarray  # [P] of all mini-batches that were used
    sent: np.ndarray  # [P] of all messages, and so of the bytes, where messages are alike
    limits: np.ndarray  # [P] share of the updates in which others waited for each worker
    waits: np.ndarray  # [P, P] s that a worker (row) waited for another (column) to be ready


def diagnose(schedule: Schedule, workers: int) -> Diagnostics:
    """The diagnostics of a schedule; a contribution before its first row is as old as that row.

    A worker's mini-batches are taken to be computed at the version that it read, so that local
    steps count as gradients of an accumulated one do.
    """
    real = schedule.batches > 0
    batches = schedule.batches
    in_update = batches.sum(axis=1, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(in_update)])
    version = np.clip(schedule.version - schedule.offset, 0, schedule.updates)
    ahead = before[:-1, None] - before[version]  # mini-batches applied since the version was read
    # Of the mini-batches of an update the n-th is n - 1 further from the version than the first.
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
    """Shares of the updates [P], and seconds [P, P], in which workers were waited for."""
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
