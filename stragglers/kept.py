"""Share of the offered work that waiting rules keep, by cost of samples: measured and expected.

A worker is offered its mini-batches in the order of their counters, up to the last one in a row of
the schedule. An offered mini-batch in no row was dropped. Mini-batches in flight after a worker's
last row are not counted; `lost` adds the mini-batches that the last updates dropped.

A rule that drops late mini-batches drops long ones. Let durations be iid, S(m) the sum of m of
them, and n workers take M mini-batches a round. A worker's j-th mini-batch, of x seconds, is kept
with probability

    deadline d, cut           P(S(j-1) + x <= d)
    first finisher, cut       E (1 - F_M(S(j-1) + x))^(n-1),  F_M the distribution of S(M)
    quorum of k, cut          P(j - 1 + N(S(j-1) + x) < k),  N(t) mini-batches of others by t
    K-sync with k of n        P(of n - 1 others fewer than k have S(M) < S(M-1) + x)

A round that finishes the mini-batch in flight keeps all mini-batches begun. The probability that a
mini-batch is begun does not depend on x, so no mini-batch is dropped for its length. All workers
begin a round together, and no durations tie. Rules: arXiv 2006.05752, 2211.00889, 2306.10598,
1803.01113.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from stragglers.order_statistics import convolved, cuts
from stragglers.schedule import Schedule

Costs = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, counter [n] -> [n] or [n, b]


class Kept(NamedTuple):
    """Shares of the samples that were kept; parts have equally many samples, the cheapest first."""

    by_part: np.ndarray  # [parts], kept share of each part
    share: float  # of all samples
    mean_cost: float  # of the kept samples, over the mean cost of all samples offered


def offered(
    schedule: Schedule, lost: int | Sequence[int] = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the worker, the counter and the kept flag of every mini-batch offered, [n] each.

    lost: mini-batches, one number or one per worker, that a worker loses to each update after its
    last row, as in K-sync; earlier losses show as gaps between a worker's counters.
    """
    there = schedule.workers < schedule.all_workers
    who, first, row = schedule.workers[there], schedule.first[there], np.nonzero(there)[0]
    end = first + schedule.batches[there]
    most, last = np.zeros((2, schedule.all_workers), np.int64)
    np.maximum.at(most, who, end)
    np.maximum.at(last, who, row + 1)
    most += np.asarray(lost) * (schedule.updates - last)
    begins = np.concatenate([[0], np.cumsum(most)])
    # +1 at a row's first mini-batch of a worker and -1 after its last; rows do not overlap.
    steps = np.zeros(begins[-1] + 1, np.int64)
    np.add.at(steps, begins[who] + first, 1)
    np.add.at(steps, begins[who] + end, -1)
    worker = np.repeat(np.arange(len(most)), most)
    return worker, np.arange(len(worker)) - begins[worker], np.cumsum(steps[:-1]) > 0


def by_cost(
    schedule: Schedule, costs: Costs, parts: int = 10, lost: int | Sequence[int] = 0
) -> Kept | None:
    """Return the shares that a schedule kept, by `parts` of equal size.

    None if the schedule kept nothing, or has fewer samples than parts.
    costs: function from workers and counters to the costs of these mini-batches, or of each of
    their samples. lost: as in `offered`.
    """
    worker, counter, kept = offered(schedule, lost)
    if not kept.any():
        return None
    cost = np.asarray(costs(worker, counter), np.float64)
    kept = np.broadcast_to(kept.reshape(-1, *[1] * (cost.ndim - 1)), cost.shape).ravel()
    cost = cost.ravel()
    if cost.size < parts:
        return None
    order = np.argsort(cost, kind="stable")
    rising, in_order = cost[order], kept[order]
    begin, end = (np.searchsorted(rising, rising, side) for side in ("left", "right"))
    # A sample counts as the kept share of all samples of its cost, in whichever part it is.
    totals = np.concatenate([[0.0], np.cumsum(in_order, dtype=np.float64)])
    level = (totals[end] - totals[begin]) / (end - begin)
    by_part = np.array([part.mean() for part in np.array_split(level, parts)])
    return Kept(by_part, float(kept.mean()), float(cost[kept].mean() / cost.mean()))


def weights(found: Kept, cost: ArrayLike) -> np.ndarray:
    """Return weights [n] of samples of these costs [n] that correct for the dropped samples.

    A weight is the kept share of all samples over the kept share of the sample's part. Weights have
    mean 1 over the kept samples, and equal costs have equal weights. D. G. Horvitz, D. J. Thompson,
    *A Generalization of Sampling Without Replacement From a Finite Universe*, JASA 47, 1952.
    """
    cost = np.asarray(cost)
    order = np.argsort(cost, kind="stable")
    sizes = [part.size for part in np.array_split(order, len(found.by_part))]
    share = np.empty(len(cost))
    share[order] = np.repeat(found.by_part, sizes)
    _, equals = np.unique(cost, return_inverse=True)
    return found.share / (np.bincount(equals, share) / np.bincount(equals))[equals]


def effective_share(weight: ArrayLike) -> float:
    """Return the effective number of weighted samples over their number, (sum w)^2 / (n sum w^2).

        >>> round(effective_share([1.0, 1.0, 2.0]), 3)
        0.889
    """
    weight = np.asarray(weight, np.float64)
    return float(weight.sum() ** 2 / (weight.size * (weight**2).sum()))


# --- the expectation ---

POINTS, MOST_POINTS = 2**13, 2**15  # of the lattice on which durations are summed

Expected = Callable[["Sums"], np.ndarray]  # -> [M, L], kept share by place in a round and duration


class Sums:
    """Distributions of the sums of iid durations, on a lattice of times.

    durations: equally likely seconds of a mini-batch. Bad values, and durations too long for the
    lattice, raise ValueError.
    """

    def __init__(self, durations: ArrayLike, workers: int, mini_batches: int):
        self.durations = np.sort(np.asarray(durations, np.float64).ravel())
        self.workers, self.mini_batches = workers, mini_batches
        if not self.durations.size or not 0 < self.durations[0] <= self.durations[-1] < np.inf:
            raise ValueError(
                "kept: needs positive, finite durations of mini-batches; give a delay's"
            )
        if workers < 1 or mini_batches < 1:
            raise ValueError(
                f"kept: needs workers >= 1 and mini_batches >= 1, got {workers} and "
                f"{mini_batches}; set at least 1"
            )
        longest, median = self.durations[-1] * mini_batches, np.median(self.durations)
        self.step = longest / np.clip(16 * longest / median, POINTS, MOST_POINTS)
        if self.step > median / 4:
            raise ValueError(
                f"kept: a duration is {self.durations[-1] / median:.3g} times the median, too "
                "long for a lattice of sums; plan the rule, and measure with kept.by_cost"
            )
        at = self.durations / self.step
        self.low = at.astype(np.int64)
        self.share = at - self.low  # of the upper one of the two lattice points around a duration
        points = self.low[-1] + 2
        one = np.bincount(self.low, 1 - self.share, points) / at.size
        one += np.bincount(self.low + 1, self.share, points) / at.size
        self.masses = [np.ones(1)]  # of S(0), S(1), ..., S(M)
        for _ in range(mini_batches):
            self.masses.append(np.clip(convolved(self.masses[-1], one), 0, None))
        self.length = self.masses[-1].size

    def before(self, count: int) -> np.ndarray:
        """Return P(S(count) < t) at every lattice point t, [length]; a tie counts for a half."""
        mass = np.zeros(self.length)
        mass[: self.masses[count].size] = self.masses[count]
        return np.clip(np.cumsum(mass) - mass / 2, 0, 1)

    @functools.cached_property
    def ends_of_others(self) -> np.ndarray:
        """P(N(t) <= count), [counts, length]; by t the other workers end N(t) mini-batches."""
        ended = np.stack([self.before(m) for m in range(1, self.mini_batches + 1)])
        edges = np.concatenate([np.ones((1, self.length)), ended, np.zeros((1, self.length))])
        size = (self.workers - 1) * self.mini_batches + 1
        of_one = scipy.fft.rfft(-np.diff(edges, axis=0), size, axis=0)
        others = scipy.fft.irfft(of_one ** (self.workers - 1), size, axis=0)
        return np.cumsum(np.clip(others, 0, 1), axis=0)

    def after(self, count: int, chance: np.ndarray) -> np.ndarray:
        """Return E chance(S(count) + x) for all durations x, [L]; chance: [length], of times."""
        mass = self.masses[count]
        reached = convolved(mass[::-1], chance)[mass.size - 1 :]
        each = (1 - self.share) * reached[self.low] + self.share * reached[self.low + 1]
        return np.clip(each, 0, 1)


def deadline(seconds: float, in_flight: str = "cut") -> Expected:
    """Return the kept shares of rounds that end after `seconds`: `anytime`, `drop_compute`."""
    return _rounds(
        lambda sums, place: np.float64(np.arange(sums.length) <= seconds / sums.step), in_flight
    )


def first_finisher(in_flight: str = "cut") -> Expected:
    """Return the kept shares of rounds that end with the first worker's last mini-batch."""

    def chance(sums: Sums, place: int) -> np.ndarray:
        del place
        return (1 - sums.before(sums.mini_batches)) ** (sums.workers - 1)

    return _rounds(chance, in_flight)


def quorum(k: int, in_flight: str = "cut") -> Expected:
    """Return the kept shares of rounds that end with the k-th mini-batch of all workers."""

    def chance(sums: Sums, place: int) -> np.ndarray:
        below = sums.ends_of_others
        count = k - place  # the worker itself has ended `place` - 1 before
        return np.zeros(sums.length) if count < 0 else below[min(count, len(below) - 1)]

    return _rounds(chance, in_flight)


def k_sync(k: int) -> Expected:
    """Return the kept shares of K-sync: whole contributions of the k fastest (1803.01113)."""

    def kept(sums: Sums) -> np.ndarray:
        if not 1 <= k <= sums.workers:
            raise ValueError(f"kept: needs 1 <= k <= {sums.workers}, got k={k}; set k in it")
        faster = sums.before(sums.mini_batches)
        chance = scipy.special.bdtr(k - 1, sums.workers - 1, faster)
        each = sums.after(sums.mini_batches - 1, chance)
        return np.broadcast_to(each, (sums.mini_batches, each.size))

    return kept


def _rounds(chance: Callable[[Sums, int], np.ndarray], in_flight: str) -> Expected:
    """Return the kept shares of rounds; chance: (sums, place j) -> P(no signal by t), [length]."""
    cut = cuts(in_flight)

    def kept(sums: Sums) -> np.ndarray:
        rows = []
        for place in range(1, sums.mini_batches + 1):
            alive = chance(sums, place)
            if cut:
                rows.append(sums.after(place - 1, alive))
            else:
                mass = sums.masses[place - 1]
                rows.append(np.full(sums.low.size, mass @ alive[: mass.size]))
        return np.stack(rows)

    return kept


def share_by_cost(
    kept: Expected, durations: ArrayLike, workers: int, mini_batches: int, parts: int = 10
) -> np.ndarray:
    """Return the expected kept share of mini-batches, by `parts` of their duration, [parts].

    kept: of a rule, such as `quorum(k)`. durations: at least `parts` equally likely seconds of a
    mini-batch, as the quantiles of a delay.

        >>> share_by_cost(k_sync(1), [1.0, 2.0], workers=2, mini_batches=1, parts=2).round(3)
        array([0.75, 0.25])
    """
    sums = Sums(durations, workers, mini_batches)
    if not 1 <= parts <= sums.durations.size:
        raise ValueError(
            f"kept: needs 1 <= parts <= {sums.durations.size} durations, got parts={parts}; set "
            "fewer parts, or give more durations"
        )
    each = kept(sums).mean(axis=0)
    return np.array([part.mean() for part in np.array_split(each, parts)])
