"""Expected order statistics of iid durations and of their sums, by closed form or quadrature.

They give the expected seconds of the k-th fastest of P workers (K-sync SGD, arXiv 1803.01113), and
of rounds of M mini-batches (Non-blocking SGD, arXiv 2211.00889, run-time analysis).
"""

import functools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy

from stragglers.delays import Law
from stragglers.rule import IN_FLIGHT


def order_statistic_mean(law: Law, k: int, workers: int) -> float:
    """Return the expected seconds until the k-th of `workers` iid durations ends, E[X_{k:P}].

    The value is the integral over u of F^{-1}(u) Beta(u; k, P-k+1) (1803.01113, K-sync), or inf for
    a heavy tail; closed forms are used if known. Raises ValueError if k is outside 1..P.

        >>> from stragglers.delays import uniform
        >>> order_statistic_mean(uniform(0.0, 1.0), k=3, workers=3)
        0.75
    """
    if not 1 <= k <= workers:
        raise ValueError(
            f"order_statistic_mean: needs 1 <= k <= {workers} workers, got k={k}; choose k in it"
        )
    closed = _CLOSED_FORMS.get(law.name, lambda k, n, **_: None)(k, workers, **dict(law.params))
    return closed if closed is not None else quadrature(law, k, workers)


def quadrature(law: Law, k: int, workers: int) -> float:
    """Return E[X_{k:P}] in seconds for any distribution, by the trapezoidal rule in logit(u).

    As a function of logit(u), the integrand of a smooth distribution is analytic and decays
    exponentially at both ends. The trapezoidal rule then converges geometrically.
    """
    a, b = k, workers - k + 1
    centre = scipy.special.digamma(a) - scipy.special.digamma(b)
    width = math.sqrt(scipy.special.polygamma(1, a) + scipy.special.polygamma(1, b))
    right = min(centre + 12 * width + 40 / b, 34.0)  # beyond, rounding swallows 1 - u
    z = np.linspace(centre - 12 * width - 40 / a, right, 8001)
    below, above = scipy.special.log_expit(z), scipy.special.log_expit(-z)
    weight = np.exp(a * below + b * above - scipy.special.betaln(a, b))
    return float(np.trapezoid(weight * law.quantile(scipy.special.expit(z)), z))


def sums_means(law: Law, workers: int, mini_batches: int) -> np.ndarray:
    """Return the expected seconds [P] until the k-th of P workers has ended M mini-batches.

    k runs over 1..P. Sums of several durations are computed on a lattice, to about 1 %. Raises
    ValueError if the tail is too heavy for a lattice.
    """
    if mini_batches == 1:
        ks = range(1, workers + 1)
        return np.array([order_statistic_mean(law, k, workers) for k in ks])
    one, step, _ = _lattice(law, mini_batches)
    total = one
    for _ in range(mini_batches - 1):
        total = np.clip(convolved(total, one)[: one.size], 0, None)
    ended = np.clip(np.cumsum(total), 0, 1)
    ks = np.arange(1, workers + 1)[:, None]
    return step * scipy.special.betaincc(ks, workers - ks + 1, ended).sum(axis=1)


class Moments(NamedTuple):
    """Means of a round that lands at all workers, without communication."""

    blocking: float  # s per round
    nonblocking: float  # s per round
    share: float  # finished in a non-blocking round, of the M mini-batches of every worker


def moments(law: Law, workers: int, mini_batches: int, draw: str, in_flight: str) -> Moments:
    """Return the means of a round in which each worker has M mini-batches (2211.00889).

    A blocking round waits for all workers, E[T_max]. Otherwise the first finisher stops the others,
    and the round takes E[T_min] if mini-batches in flight are "cut"; with "finish" the round lasts
    until the last of them ends. draw: "round": one duration holds for a round, and the means are
    nested quadratures. "mini_batch": every mini-batch has its own, and the means are sums on a
    lattice, to about 1 %. Raises ValueError if the lattice is too coarse for a heavy tail or for
    the fastest of many workers.
    """
    methods = {"round": _per_round, "mini_batch": _per_mini_batch}
    if draw not in methods:
        raise ValueError(f"theory: unknown draw={draw!r}; choose one of {', '.join(methods)}")
    if workers < 1 or mini_batches < 1:
        raise ValueError(
            f"theory: needs workers >= 1 and mini_batches >= 1, got {workers} and {mini_batches}; "
            "set at least 1"
        )
    # A user's laws may be equal in all that is compared, and differ in `inverse`.
    return _moments(methods[draw], law, law.inverse, workers, mini_batches, in_flight)


@functools.lru_cache(maxsize=64)  # a table asks for the same moments repeatedly
def _moments(
    method: Callable, law: Law, inverse: Callable, workers: int, mini_batches: int, in_flight: str
) -> Moments:
    del inverse  # a part of the cache's key only, as laws are compared without it
    return method(law, workers, mini_batches, in_flight)


def finished(progress: np.ndarray, in_flight: str) -> np.ndarray:
    """Return how many mini-batches count if `progress`, a real number, is done at the signal."""
    tie = 1e-9  # for ratios that are whole but for rounding
    # However slow a worker is, it has begun its first mini-batch.
    return np.floor(progress + tie) if cuts(in_flight) else np.maximum(np.ceil(progress - tie), 1)


def cuts(in_flight: str) -> bool:
    """Return True if a mini-batch in flight at the signal is lost; ValueError for another word."""
    if in_flight not in IN_FLIGHT:
        raise ValueError(
            f"theory: unknown in_flight={in_flight!r}; choose one of {', '.join(IN_FLIGHT)}"
        )
    return IN_FLIGHT[in_flight]


def _per_round(law: Law, workers: int, mini_batches: int, in_flight: str) -> Moments:
    """Return the moments, integrated over the least duration x; the others are iid beyond x."""
    fastest = mini_batches * order_statistic_mean(law, 1, workers)
    slowest = mini_batches * order_statistic_mean(law, workers, workers)
    if mini_batches == 1 and not cuts(in_flight):  # all begin their only mini-batch
        return Moments(slowest, slowest, 1.0)
    # At quantile q of the minimum of n durations, a duration has the survival (1 - q)^(1/n).
    survival = (1 - (np.arange(200) + 0.5) / 200) ** (1 / workers)
    cells, middles = graded(2000, 3)
    shortest = law.quantile(1 - survival)[:, None]
    other = law.quantile(1 - survival[:, None] * middles)
    done = finished(mini_batches * shortest / other, in_flight)
    share = (1 + (workers - 1) * (done @ cells).mean() / mini_batches) / workers
    if cuts(in_flight) or workers == 1:
        return Moments(slowest, fastest, float(share))
    if math.isinf(law.mean()):  # some worker's first mini-batch is always waited for
        return Moments(slowest, math.inf, float(share))
    # The maximum over the n - 1 others of the end of the mini-batch in flight.
    ready = done * other
    order = np.argsort(ready, axis=1)
    below = np.cumsum(cells[order], axis=1) ** (workers - 1)
    landing = np.take_along_axis(ready, order, axis=1) * np.diff(below, prepend=0, axis=1)
    return Moments(slowest, float(landing.sum(axis=1).mean()), float(share))


def _per_mini_batch(law: Law, workers: int, mini_batches: int, in_flight: str) -> Moments:
    """Return the moments by sums on a lattice: P(l done at the signal) = P(S_i(l) <= min_j S_j(M)).

    S_i(l) is the sum of l durations of worker i, of n. Since S_i(l) <= S_i(M), this probability is
    the expectation over S_i(l) of P(S(M) >= S_i(l))^(n-1).
    """
    if mini_batches == 1 and not law.atoms:
        return _per_round(law, workers, mini_batches, in_flight)
    lost = cuts(in_flight)
    one, step, atoms = _lattice(law, mini_batches)
    sums = [np.zeros_like(one)]
    sums[0][0] = 1.0
    for _ in range(mini_batches):
        sums.append(np.clip(convolved(sums[-1], one)[: one.size], 0, None))
    whole = sums[-1]
    beyond = np.clip(1 - np.cumsum(whole), 0, 1)  # P(S(M) > lattice point)
    fastest, slowest = step * (beyond**workers).sum(), step * (1 - (1 - beyond) ** workers).sum()
    if not (atoms or step < fastest / 16):
        raise ValueError(
            f"theory: the fastest of {workers} workers is too fast for a lattice of sums of {law}; "
            "take draw='round', or simulate the rule"
        )
    # Continuous durations tie on the lattice only: half of each tie counts. Atoms do tie: a
    # mini-batch that ends at the signal counts, and none begins there.
    counted = 0.5 if not atoms else float(lost)
    alive = (beyond + counted * whole) ** (workers - 1)
    each = [mass @ alive for mass in (sums[1:] if lost else sums[1:-1])]
    share = float((np.sum(each) + (not lost)) / mini_batches)  # each begins a mini-batch
    if not lost and mini_batches == 1:
        fastest = slowest  # no second mini-batch begins
    elif not lost and workers > 1:
        fastest = _landing(one, sum(sums[:-1]), whole, beyond, workers) * step
    return Moments(float(slowest), float(fastest), share)


def _lattice(law: Law, mini_batches: int) -> tuple[np.ndarray, float, bool]:
    """Return (masses of a duration at 0, h, 2h, ...; h in seconds; True if it has atoms)."""
    if law.atoms:
        (shortest, _), (longest, _) = law.atoms[0], law.atoms[-1]
        whole = all(float(value / shortest).is_integer() for value, _ in law.atoms)
        parts = 1 if whole else 64  # whole multiples of the shortest are met exactly
        one = np.zeros(mini_batches * math.ceil(longest / shortest) * parts + 1)
        for value, probability in law.atoms:
            one[round(value / shortest * parts)] += probability
        return one, shortest / parts, True
    points = 2**15
    tail = float(law.quantile(1 - 1e-7))
    typical = float(law.quantile(1 - 1 / (4 * mini_batches)))
    step = 2 * (tail + mini_batches * typical) / points
    if not step < law.quantile(0.5) / 4:
        raise ValueError(
            f"theory: the tail of {law} is too heavy for a lattice of sums; take draw='round', "
            "or simulate the rule"
        )
    cells, middles = graded(2**16, 2)
    at = np.minimum(law.quantile(1 - middles) / step, points - 1)
    low = np.minimum(at.astype(np.int64), points - 2)
    upper = (at - low) * cells  # a linear split between two points keeps the mean
    one = np.bincount(low, cells - upper, points)
    return one + np.bincount(low + 1, upper, points), step, False


def graded(cells: int, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of cells that shrink towards the tail, and survival at their middles.

    With equal cells, the last cell would have much of the mean of a heavy-tailed maximum.
    """
    grid = np.linspace(1, 0, 2 * cells + 1) ** power
    return -np.diff(grid[::2]), grid[1::2]


def _landing(
    one: np.ndarray, begun: np.ndarray, whole: np.ndarray, beyond: np.ndarray, workers: int
) -> float:
    """Return the expected end, in steps, of the last mini-batch in flight at the signal.

    The signal s is the end of the first worker. Each worker is ready when its mini-batch in flight
    ends. The worker began this mini-batch at z < s (density `begun`, summed over the mini-batches),
    and the mini-batch takes at least s - z.
    """
    first_by = 1 - beyond**workers
    edges = np.unique(np.searchsorted(first_by, np.linspace(0, 1, 65)[1:-1]))
    edges = np.concatenate([[0], edges + 1, [one.size]])
    lattice, expected = np.arange(one.size), 0.0
    for low, high in pairwise(edges):
        mass = whole[low:high].sum()
        above = beyond[low - 1] if low else 1.0
        if mass <= 1e-12 or above <= 1e-12:
            continue
        s = max(1, round(lattice[low:high] @ whole[low:high] / mass))
        ready = convolved(np.where(lattice < s, begun, 0), one)[: one.size]
        by = np.cumsum(np.where(lattice >= s, ready, 0))
        by = np.clip(by / by[-1], 0, 1)
        # All n have S(M) >= s, less the cases in which none has S(M) = s.
        at_s = min(mass / above, 1.0)
        last_by = by**workers - np.clip(by - at_s, 0, 1) ** workers
        probability = 1 - (1 - at_s) ** workers
        mean = s + (1 - last_by[s:] / probability).sum()
        expected += above**workers * probability * mean
    return float(expected)


def _pareto_order(k: int, n: int, minimum: float, shape: float) -> float:
    tail = n - k + 1 - 1 / shape
    if tail <= 0:
        return math.inf
    log = scipy.special.gammaln([n + 1, tail, n - k + 1, n + 1 - 1 / shape])
    return minimum * math.exp(log[0] + log[1] - log[2] - log[3])


def _weibull_order(k: int, n: int, scale: float, shape: float) -> float | None:
    if n > 30:  # its terms may overflow
        return None
    terms = [
        math.comb(k - 1, j) * (-1) ** j * (n - k + 1 + j) ** (-1 - 1 / shape) for j in range(k)
    ]
    total = math.fsum(terms)
    if max(map(abs, terms)) > 1e6 * total:  # the alternating sum loses its digits
        return None
    mean = scale * float(scipy.special.gamma(1 + 1 / shape))
    return math.inf if math.isinf(mean) else mean * k * math.comb(n, k) * total


def _exponential_order(k: int, n: int, scale: float) -> float:
    return scale * float(scipy.special.digamma(n + 1) - scipy.special.digamma(n - k + 1))


# (k, n, **parameters of the distribution) -> E[X_{k:n}] in seconds (1803.01113, K-sync)
_CLOSED_FORMS = {
    "deterministic": lambda k, n, value: value,
    "exponential": _exponential_order,
    "shifted_exponential": lambda k, n, shift, scale: shift + _exponential_order(k, n, scale),
    "pareto": _pareto_order,
    "weibull": _weibull_order,
    "uniform": lambda k, n, low, high: low + (high - low) * k / (n + 1),
    # Slow iff the k-th uniform exceeds 1 - probability.
    "bernoulli_slowdown": lambda k, n, value, factor, probability: (
        value * (1 + (factor - 1) * float(scipy.special.betaincc(k, n - k + 1, 1 - probability)))
    ),
}


def convolved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Convolve along the last axis, [..., n] and [..., m] -> [..., n + m - 1].

    The method is the same as in scipy.signal, whose import takes most of a second.
    """
    size = a.shape[-1] + b.shape[-1] - 1
    length = scipy.fft.next_fast_len(size, real=True)
    product = scipy.fft.rfft(a, length) * scipy.fft.rfft(b, length)
    return scipy.fft.irfft(product, length)[..., :size]
