"""Work that a schedule has kept of what was offered, by the cost of the samples.

A worker is offered its mini-batches in order. One that is not in any row, though a later one is,
was dropped. Rules that drop nothing keep all, the last few that were under way excepted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers.schedule import Schedule

Costs = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, counter [n] -> [n] or [n, b]


class Kept(NamedTuple):
    """Shares of what was kept; a part has the same number of samples, the cheapest first."""

    by_part: np.ndarray  # [parts] of the samples of each part
    share: float  # of all samples
    mean_cost: float  # of what was kept, over that of what was offered

    @property
    def longest(self) -> float:
        """Share that was kept of the most expensive part."""
        return float(self.by_part[-1])

    @property
    def shorter_half(self) -> float:
        """Share that was kept of the cheaper half."""
        return float(self.by_part[: len(self.by_part) // 2].mean())


def by_cost(schedule: Schedule, costs: Costs, parts: int = 10) -> Kept | None:
    """Return what a schedule has kept, by `parts` of equal size; None without any mini-batch.

    costs: of the mini-batches with these counters, or of each of their samples.
    """
    real = (schedule.batches > 0) & (schedule.workers < schedule.all_workers)
    who, first = schedule.workers[real], schedule.first[real]
    end = first + schedule.batches[real]
    if not who.size:
        return None
    offered = np.zeros(schedule.all_workers, np.int64)
    np.maximum.at(offered, who, end)
    begins = np.concatenate([[0], np.cumsum(offered)])
    # +1 where a stretch of kept mini-batches begins and -1 behind it; stretches do not overlap.
    steps = np.zeros(begins[-1] + 1, np.int64)
    np.add.at(steps, begins[who] + first, 1)
    np.add.at(steps, begins[who] + end, -1)
    kept = np.cumsum(steps[:-1]) > 0
    worker = np.repeat(np.arange(len(offered)), offered)
    counter = np.arange(len(worker)) - begins[worker]
    cost = np.asarray(costs(worker, counter), np.float64)
    kept = np.broadcast_to(kept.reshape(-1, *[1] * (cost.ndim - 1)), cost.shape).ravel()
    cost = cost.ravel()
    order = np.argsort(cost, kind="stable")
    rising, in_order = cost[order], kept[order]
    begin, end = (np.searchsorted(rising, rising, side) for side in ("left", "right"))
    # Equal costs share their parts: each counts as the mean of its equals.
    totals = np.concatenate([[0.0], np.cumsum(in_order, dtype=np.float64)])
    level = (totals[end] - totals[begin]) / (end - begin)
    by_part = np.array([part.mean() for part in np.array_split(level, parts)])
    return Kept(by_part, float(kept.mean()), float(cost[kept].mean() / cost.mean()))
