"""Analytical predictions for waiting rules: the reference for schedules and runs.

Protocols of a server, of "Slow and Stale Gradients" (Dutta, Joshi, Ghosh, Dube, Nagpurkar, arXiv
1803.01113): P workers have iid durations X of a mini-batch, and a server updates on k gradients.
Rules have the names of `stragglers.rules.server`: k_sync, k_batch_sync, k_async or k_batch_async.

Gains of non-blocking over blocking rounds, for the round of Non-blocking SGD (arXiv 2211.00889,
run-time analysis) and landing at all workers: closed forms and quadratures for iid durations and
for fixed speeds. Only `estimate_gain` draws random numbers: it simulates both rules with the same
delays, for durations with a memory and for landing at neighbours.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from stragglers.delays import Law, Residual
from stragglers.order_statistics import (
    convolved,
    cuts,
    finished,
    graded,
    moments,
    order_statistic_mean,
)
from stragglers.processes import Process
from stragglers.round_clock import RoundClock, at_first_finisher, never
from stragglers.rule import Cost, Setting

# --- a server that updates on k gradients


def runtime_bounds(rule: str, law: Law, k: int, workers: int) -> tuple[float, float]:
    """Return (low, high), bounds of the expected seconds between two updates without communication.

    The bounds are equal if the value is known. k_sync: E[X_{k:P}]. k_batch_async: k E[X] / P.
    k_batch_sync: the k-th point of P superposed renewal processes, by quadrature to about 0.5 %.
    k_async: known for exponential durations, for k = 1 or P, and for deterministic ones if k
    divides P; else low is k E[X] / P and high is inf. If residual durations are shorter than new
    ones ("new-longer-than-used"), high is E[X_{k:P}]. If residual durations are longer, low is at
    least E[X_{k:P}]. A bad k raises ValueError. Source: 1803.01113.
    """
    if rule not in _THEORY:
        raise ValueError(f"theory: unknown rule {rule!r}; choose one of {', '.join(_THEORY)}")
    bounds, distinct = _THEORY[rule]
    if workers < 1 or k < 1 or (distinct and k > workers):
        most = f" <= {workers} workers" if distinct else ""
        raise ValueError(
            f"theory: {rule} needs workers >= 1 and 1 <= k{most}, got workers={workers}, k={k}; "
            "set k in this range"
        )
    return bounds(law, k, workers)


def stability_limit(delay: float) -> float:
    """Return the largest stable rate eta times curvature l if all stalenesses are d, the `delay`.

    At eta l = 2 sin(pi / (2 (2 d + 1))) a root of z^(d+1) - z^d + eta l reaches the unit circle.

        >>> round(stability_limit(0), 6), round(stability_limit(1), 6)
        (2.0, 1.0)
    """
    if delay < 0:
        raise ValueError(f"stability_limit: needs delay >= 0 updates, got {delay}; count updates")
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def _batch_async(law: Law, k: int, workers: int) -> tuple[float, float]:
    return (k * law.mean() / workers,) * 2


def _sync(law: Law, k: int, workers: int) -> tuple[float, float]:
    return (order_statistic_mean(law, k, workers),) * 2


def _async(law: Law, k: int, workers: int) -> tuple[float, float]:
    busy = k * law.mean() / workers
    if k == 1 or (len(law.atoms) == 1 and workers % k == 0):
        return busy, busy
    fresh = order_statistic_mean(law, k, workers)
    if k == workers or law.residual is Residual.MEMORYLESS:
        return fresh, fresh
    if law.residual is Residual.SHORTER:
        return busy, fresh
    if law.residual is Residual.LONGER:
        return max(busy, fresh), math.inf
    return busy, math.inf


def _batch_sync(law: Law, k: int, workers: int) -> tuple[float, float]:
    if len(law.atoms) == 1:
        return (math.ceil(k / workers) * law.mean(),) * 2
    if law.residual is Residual.MEMORYLESS or workers == 1:
        return _batch_async(law, k, workers)
    if k == 1:
        return _sync(law, k, workers)
    return (_superposed(law, k, workers),) * 2


# Rule -> (law, k, workers -> bounds in seconds; True if the k contributions come from k workers).
_THEORY: dict[str, tuple[Callable[[Law, int, int], tuple[float, float]], bool]] = {
    "k_sync": (_sync, True),
    "k_batch_sync": (_batch_sync, False),
    "k_async": (_async, True),
    "k_batch_async": (_batch_async, False),
}

_POINTS = 2**14 + 1  # points of a lattice, up to its horizon
_TIMES = 2**15  # divided by k: number of times at which the counts of all workers are superposed


def _superposed(law: Law, k: int, workers: int) -> float:
    """Return E[T], the mean seconds until the workers together have ended k mini-batches.

    E[T] integrates P(T > t), for workers that all begin at 0. The horizon of the integral doubles
    from piece to piece. Every piece has a lattice of its own, as a heavy tail has no scale.
    """
    if math.isinf(order_statistic_mean(law, 1, workers)):
        return math.inf  # T is beyond t only if all workers are in a mini-batch of at least t / k
    probability, tail = graded(2**16, 2)
    durations = law.quantile(1 - tail)
    # At first less than T, as a horizon of rare durations would be too coarse a lattice for T.
    horizon = math.ceil(k / workers) * float(law.quantile(min(k / (workers + 1), 0.5)))
    begin, seconds, piece = 0, 0.0, math.inf
    while piece > 1e-5 * seconds:
        step = horizon / (_POINTS - 1)
        counts = _counts(durations / step, probability, k)
        at = np.unique(np.linspace(begin, _POINTS - 1, max(_TIMES // k, 256)).astype(int))
        waiting = _fewer(counts[at], k, workers)
        piece = step * np.trapezoid(waiting, at)
        seconds += piece
        begin, horizon = (_POINTS - 1) // 2, 2 * horizon
    return float(seconds)


def _counts(durations: np.ndarray, probability: np.ndarray, k: int) -> np.ndarray:
    """Return P(a worker has ended n mini-batches by t), [points, n], n < k; durations in steps."""
    ends = durations < _POINTS - 1  # longer durations do not end before the horizon
    at, mass = durations[ends], probability[ends]
    low = at.astype(np.int64)
    upper = (at - low) * mass  # a linear split between two points keeps the mean
    one = np.bincount(low, mass - upper, _POINTS) + np.bincount(low + 1, upper, _POINTS)
    ended, total = [np.ones(_POINTS)], one  # P(at least n have ended)
    while len(ended) < k and total.sum() > 1e-12:
        ended.append(np.cumsum(total))
        total = np.clip(convolved(total, one)[:_POINTS], 0, None)
    return -np.diff([*ended, np.cumsum(total)], axis=0).T


def _fewer(counts: np.ndarray, k: int, workers: int) -> np.ndarray:
    """Return P(all workers together have ended fewer than k), [points]; counts: see `_counts`."""
    total, power, left = np.ones((len(counts), 1)), counts, workers
    while left:
        if left % 2:
            total = convolved(total, power)[:, :k]
        power, left = convolved(power, power)[:, :k], left // 2
    return np.clip(total.sum(axis=1), 0, 1)


# --- trials with a time limit (MindFlayer SGD, arXiv 2410.04285)

_LEVELS = np.concatenate([np.linspace(1e-4, 0.99, 4000), 1 - np.geomspace(0.01, 1e-6, 2000)[1:]])


def _trials(law: Law) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return limits t in s, F(t), and the part of E[min(X, t)] from durations X that end by t."""
    levels = np.concatenate([[0.0], _LEVELS])
    limits = law.quantile(levels)
    below = np.concatenate([[0.0], np.cumsum((limits[1:] + limits[:-1]) / 2 * np.diff(levels))])
    return limits, levels, below


def trial_rate(law: Law, limit: float) -> float:
    """Return a worker's gradients per second if it gives up mini-batches after `limit` seconds.

    The rate is F(t) / E[min(X, t)], to about 0.1 %. Without a limit, and for exponential durations,
    the rate is 1 / E[X]. Raises ValueError if no mini-batch ends within the limit, or if fewer than
    one of a million exceed it. Source: 2410.04285, where a trial has probability p_i = F(t_i).

        >>> from stragglers.delays import exponential
        >>> round(trial_rate(exponential(0.5), limit=0.1), 2)
        2.0
    """
    limits, levels, below = _trials(law)
    if not limit >= limits[0]:
        raise ValueError(
            f"theory: no mini-batch of {law} ends within {limit} s; set at least {limits[0]:g}"
        )
    if limit >= law.quantile(1.0):
        return 1 / law.mean()
    last = int(np.searchsorted(limits, limit, side="right")) - 1
    if last == limits.size - 1:
        raise ValueError(
            f"theory: a limit of {limit:g} s is too long for {law}; set at most {limits[-1]:g} s, "
            "or inf"
        )
    low, high = levels[last], levels[last + 1]
    for _ in range(50):  # F(t) lies between these
        middle = (low + high) / 2
        low, high = (middle, high) if law.quantile(middle) <= limit else (low, middle)
    # Where the limit lies between two atoms, no duration is as long as the limit.
    ended = below[last] + (limits[last] + law.quantile(low)) / 2 * (low - levels[last])
    return float(low / (ended + (1 - low) * limit))


def best_limit(law: Law) -> float:
    """Return the limit in seconds at which a worker has the most gradients per second.

    The limit is inf if no limit gains more than 0.1 %, the accuracy of `trial_rate`.
    """
    limits, levels, below = (values[1:] for values in _trials(law))
    rates = levels / (below + (1 - levels) * limits)
    return float(limits[rates.argmax()]) if rates.max() > 1.001 / law.mean() else math.inf


# --- non-blocking rounds


def throughput_gain(
    law: Law,
    workers: int,
    mini_batches: int,
    communication: float = 0.0,
    draw: str = "round",
    in_flight: str = "cut",
) -> float:
    """Return the ratio of samples per second of non-blocking to blocking rounds.

    The ratio is share * (E[T_max] + D) / (E[T] + D), 2211.00889, with D the seconds of
    `communication` in a round; draw and in_flight as in `moments`. The ratio is inf if only
    blocking rounds have an infinite mean. Raises ValueError if both kinds have.
    """
    means = moments(law, workers, mini_batches, draw, in_flight)
    return means.share * _shorter(means.blocking, means.nonblocking, communication)


def speeds_gain(
    factors: ArrayLike, mini_batches: int, communication: float = 0.0, *, in_flight: str = "cut"
) -> float:
    """Return the throughput gain of non-blocking rounds for workers always `factors` times slower.

    communication: of a round, in units of a mini-batch at factor 1; in seconds if the factors are
    seconds. Without communication, and with speeds v = 1 / factors, the gain is sum_i floor(M v_i /
    v_max) v_max / (M n min v) if mini-batches in flight are "cut". One worker s times slower gives
    s (n - 1 + 1/s) / n for large M (2211.00889).

        >>> speeds_gain([4, 1, 1, 1], mini_batches=8)  # one of four workers is 4x slower
        3.25
    """
    slowness = np.asarray(factors, np.float64)
    if slowness.ndim != 1 or not slowness.size or not (slowness > 0).all() or mini_batches < 1:
        raise ValueError(
            f"speeds_gain: needs positive factors, one a worker, and mini_batches >= 1, got "
            f"{factors} and {mini_batches}; set both"
        )
    done = finished(mini_batches * slowness.min() / slowness, in_flight)
    seconds = mini_batches * slowness.min()
    if not cuts(in_flight):
        seconds = (done * slowness).max()
    share = done.sum() / (mini_batches * slowness.size)
    return float(share * _shorter(mini_batches * slowness.max(), seconds, communication))


def estimate_gain(
    process: Law | Process,
    workers: int,
    mini_batches: int,
    communication: Cost = 0.0,
    *,
    rounds: int = 4000,
    seed: int = 0,
    draw: str = "round",
    in_flight: str = "cut",
    landing: str = "neighbours",
    **options,
) -> float:
    """Return the simulated ratio of samples per second of non-blocking to blocking rounds.

    Both rules have the same delays. Simulation is for settings without a closed form: durations
    with a memory (Markov, traces), and D-PSGD (1705.09056) or MATCHA (1905.09435), given their
    `graph` or `links`, where blocking rounds wait for neighbours. rounds: of either rule. landing,
    in_flight: of the non-blocking rounds. Further options as in `Setting`.
    """
    if rounds < 1:
        raise ValueError(f"theory: needs rounds >= 1 to simulate, got {rounds}; set at least 1")
    setting = Setting(
        process, workers, mini_batches, seed, communication=communication, draw=draw, **options
    )
    clocks = (
        RoundClock(setting, never, "neighbours", "carry", "finish"),
        RoundClock(setting, at_first_finisher, landing, "carry", in_flight),
    )
    blocking, nonblocking = (clock.extend(clock.init(), rounds)[1] for clock in clocks)
    share = nonblocking.batches.sum() / blocking.batches.sum()
    return float(share * blocking.time[-1] / nonblocking.time[-1])


def _shorter(blocking: float, nonblocking: float, communication: float) -> float:
    """Return the ratio of blocking to non-blocking seconds of a round, `communication` included."""
    if not communication >= 0:
        raise ValueError(
            f"theory: needs communication >= 0, got {communication}; set it in seconds"
        )
    if math.isinf(nonblocking):
        raise ValueError(
            "theory: neither round has a finite mean, so their ratio has none; take "
            "in_flight='cut', or a distribution with a mean"
        )
    return (blocking + communication) / (nonblocking + communication)
