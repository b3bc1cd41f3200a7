"""Work that waiting rules keep of what is offered, by the cost of samples: measured, and expected.

A worker is offered its mini-batches in order. One that is in no row of a schedule, though a later
one is or its update is over, was dropped. Rules that drop nothing keep all, the last few that were
under way excepted. What the last row drops is in no later one, and not counted but for `lost`.

A rule that drops what is late drops what is long. With iid seconds X of a mini-batch, S(m) the sum
of m of them and n workers of M mini-batches a round, the j-th mini-batch of a worker, of x seconds,
is kept with probability

    deadline d, cut           P(S(j-1) + x <= d)
    first finisher, cut       E (1 - F_M(S(j-1) + x))^(n-1),  F_M the distribution of S(M)
    quorum of k, cut          P(j - 1 + N(S(j-1) + x) < k),  N(t) ends of others by t
    K-sync with k of n        P(of n - 1 others fewer than k have S(M) < S(M-1) + x)

and, in a round that finishes the mini-batch in flight, as soon as it was begun: this does not
depend on x, so that nothing is dropped for its length. Rounds begin together. Durations of two
mini-batches do not tie. Rules: arXiv 2006.05752, 2211.00889, 2306.10598, 1803.01113.
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


def offered(
    schedule: Schedule, lost: int | Sequence[int] = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return worker, counter, and whether it was kept, of each mini-batch offered, [n] each.

    lost: mini-batches, one number or one per worker, that a worker loses to an update without it,
    as in K-sync.
    """
    there = schedule.workers < schedule.all_workers
    who, first, row = schedule.workers[there], schedule.first[there], np.nonzero(there)[0]
    end = first + schedule.batches[there]
    most, last = np.zeros((2, schedule.all_workers), np.int64)
    np.maximum.at(most, who, end)
    np.maximum.at(last, who, row + 1)
    most += np.asarray(lost) * (schedule.updates - last)
    begins = np.concatenate([[0], np.cumsum(most)])
    # +1 where a stretch of kept mini-batches begins and -1 behind it; stretches do not overlap.
    steps = np.zeros(begins[-1] + 1, np.int64)
    np.add.at(steps, begins[who] + first, 1)
    np.add.at(steps, begins[who] + end, -1)
    worker = np.repeat(np.arange(len(most)), most)
    return worker, np.arange(len(worker)) - begins[worker], np.cumsum(steps[:-1]) > 0


def by_cost(
    schedule: Schedule, costs: Costs, parts: int = 10, lost: int | Sequence[int] = 0
) -> Kept | None:
    """Return what a schedule has kept, by `parts` of equal size; None without any mini-batch.

    costs: of the mini-batches with these counters, or of each of their samples. lost: as of
    `offered`.
    """
    worker, counter, kept = offered(schedule, lost)
    if not kept.any():
        return None
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


def weights(found: Kept, cost: ArrayLike) -> np.ndarray:
    """Return weights of samples [n] of these costs [n] that make up for what was dropped.

    The mean share kept over that of their part: 1 in the mean of what is kept. Equal costs weigh
    alike. D. G. Horvitz, D. J. Thompson, *A Generalization of Sampling Without Replacement From a
    Finite Universe*, JASA 47, 1952.
    """
    cost = np.asarray(cost)
    order = np.argsort(cost, kind="stable")
    sizes = [part.size for part in np.array_split(order, len(found.by_part))]
    share = np.empty(len(cost))
    share[order] = np.repeat(found.by_part, sizes)
    _, equals = np.unique(cost, return_inverse=True)
    return found.share / (np.bincount(equals, share) / np.bincount(equals))[equals]


def effective_share(weight: ArrayLike) -> float:
    """Return the share of samples without weights whose mean is as certain: (sum w)^2/(n sum w^2).

        >>> round(effective_share([1.0, 1.0, 2.0]), 3)
        0.889
    """
    weight = np.asarray(weight, np.float64)
    return float(weight.sum() ** 2 / (weight.size * (weight**2).sum()))


# --- the expectation ---

POINTS = 2**13  # of the lattice on which durations are summed

Expected = Callable[["Sums"], np.ndarray]  # -> [M, L], probability by place and duration


class Sums:
    """Sums of iid durations on a lattice.

    durations: equally likely seconds of a mini-batch.
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
        self.step = self.durations[-1] * mini_batches / POINTS
        self.at = np.maximum(1, np.round(self.durations / self.step)).astype(np.int64)
        one = np.bincount(self.at, minlength=self.at[-1] + 1) / self.at.size
        self.masses = [np.ones(1)]  # of S(0), S(1), ..., S(M)
        for _ in range(mini_batches):
            self.masses.append(np.clip(convolved(self.masses[-1], one), 0, None))
        self.length = self.masses[-1].size

    def before(self, count: int) -> np.ndarray:
        """Return P(S(count) < t) for lattice points t, a tie counting for a half, [length]."""
        mass = np.zeros(self.length)
        mass[: self.masses[count].size] = self.masses[count]
        return np.clip(np.cumsum(mass) - mass / 2, 0, 1)

    @functools.cached_property
    def ends_of_others(self) -> np.ndarray:
        """P(N(t) <= count) that all other workers have ended so much by t, [counts, length]."""
        ended = np.stack([self.before(m) for m in range(1, self.mini_batches + 1)])
        edges = np.concatenate([np.ones((1, self.length)), ended, np.zeros((1, self.length))])
        size = (self.workers - 1) * self.mini_batches + 1
        of_one = scipy.fft.rfft(-np.diff(edges, axis=0), size, axis=0)
        others = scipy.fft.irfft(of_one ** (self.workers - 1), size, axis=0)
        return np.cumsum(np.clip(others, 0, 1), axis=0)

    def after(self, count: int, chance: np.ndarray) -> np.ndarray:
        """Return E chance(S(count) + x) for every duration x, [L]; chance: by lattice point."""
        mass = self.masses[count]
        reached = convolved(mass[::-1], chance)[mass.size - 1 :][: self.at[-1] + 1]
        return np.clip(reached[self.at], 0, 1)


def deadline(seconds: float, in_flight: str = "cut") -> Expected:
    """Return the kept work of rounds that end after `seconds`, as `anytime`, `drop_compute`."""
    return _rounds(
        lambda sums, place: np.float64(np.arange(sums.length) <= seconds / sums.step), in_flight
    )


def first_finisher(in_flight: str = "cut") -> Expected:
    """Return the kept work of rounds that end with the first worker's last mini-batch."""

    def chance(sums: Sums, place: int) -> np.ndarray:
        del place
        return (1 - sums.before(sums.mini_batches)) ** (sums.workers - 1)

    return _rounds(chance, in_flight)


def quorum(k: int, in_flight: str = "cut") -> Expected:
    """Return the kept work of rounds that end with the k-th mini-batch of all workers."""

    def chance(sums: Sums, place: int) -> np.ndarray:
        below = sums.ends_of_others
        count = k - place  # `place` - 1 of its own have ended before
        return np.zeros(sums.length) if count < 0 else below[min(count, len(below) - 1)]

    return _rounds(chance, in_flight)


def k_sync(k: int) -> Expected:
    """Return the kept work of K-sync: whole contributions, of the k fastest (1803.01113)."""

    def kept(sums: Sums) -> np.ndarray:
        if not 1 <= k <= sums.workers:
            raise ValueError(f"kept: needs 1 <= k <= {sums.workers}, got k={k}; set k in it")
        faster = sums.before(sums.mini_batches)
        chance = scipy.special.bdtr(k - 1, sums.workers - 1, faster)
        each = sums.after(sums.mini_batches - 1, chance)
        return np.broadcast_to(each, (sums.mini_batches, each.size))

    return kept


def _rounds(chance: Callable[[Sums, int], np.ndarray], in_flight: str) -> Expected:
    """Return the kept work of rounds; chance: (sums, place j) -> P(no signal before), [length]."""
    cut = cuts(in_flight)

    def kept(sums: Sums) -> np.ndarray:
        rows = []
        for place in range(1, sums.mini_batches + 1):
            alive = chance(sums, place)
            if cut:
                rows.append(sums.after(place - 1, alive))
            else:
                mass = sums.masses[place - 1]
                rows.append(np.full(sums.at.size, mass @ alive[: mass.size]))
        return np.stack(rows)

    return kept


def share_by_cost(
    kept: Expected, durations: ArrayLike, workers: int, mini_batches: int, parts: int = 10
) -> np.ndarray:
    """Return the expected share of mini-batches kept, by tenths of their duration, [parts].

    kept: of a rule above; durations: equally likely seconds of a mini-batch, at least `parts` of
    them, as the quantiles of a delay.

        >>> share_by_cost(k_sync(1), [1.0, 2.0], workers=2, mini_batches=1, parts=2).round(3)
        array([0.75, 0.25])
    """
    sums = Sums(durations, workers, mini_batches)
    each = kept(sums).mean(axis=0)
    return np.array([part.mean() for part in np.array_split(each, parts)])


def bias(shares: ArrayLike, gradients: ArrayLike) -> np.ndarray:
    """Return how far the mean of what is kept is from the mean of what is offered, [...].

    shares: kept, by parts of the data of one size, [parts]; gradients: mean of each part,
    [parts, ...], or anything else that is averaged over samples.
    """
    shares, gradients = np.asarray(shares, np.float64), np.asarray(gradients, np.float64)
    if not (shares >= 0).all() or not shares.sum() > 0 or len(shares) != len(gradients):
        raise ValueError(
            f"bias: needs shares >= 0 of {len(gradients)} parts, not all 0, got {shares}; give one "
            "a part"
        )
    return np.average(gradients, axis=0, weights=shares) - gradients.mean(axis=0)
