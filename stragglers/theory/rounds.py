"""Gains of non-blocking rounds over blocking ones: the reference for schedules and runs.

A round is the one of Non-blocking SGD (arXiv 2211.00889, run-time analysis) with landing at all
workers. For iid durations and for fixed speeds there are closed forms and quadratures, without
random numbers. `estimate_gain` simulates both rules with the same delays, for durations with a
memory and for landing at neighbours.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from stragglers.delays import Law
from stragglers.order_statistics import cuts, finished, moments
from stragglers.processes import Process
from stragglers.round_clock import RoundClock, never, until_first_finisher
from stragglers.rule import Cost, Setting


def throughput_gain(
    law: Law,
    workers: int,
    mini_batches: int,
    communication: float = 0.0,
    draw: str = "round",
    in_flight: str = "cut",
) -> float:
    """Return the ratio of samples per second of non-blocking to blocking rounds.

    share * (E[T_max] + D) / (E[T] + D), 2211.00889, with D the seconds of `communication` in a
    round; draw and in_flight as in `moments`. Infinite where only blocking rounds have no mean;
    where neither has, ValueError.
    """
    means = moments(law, workers, mini_batches, draw, in_flight)
    return means.share * _shorter(means.blocking, means.nonblocking, communication)


def speeds_gain(
    factors: ArrayLike, mini_batches: int, communication: float = 0.0, *, in_flight: str = "cut"
) -> float:
    """Return the throughput gain of non-blocking rounds for workers always `factors` times slower.

    `communication` of a round is in units of a mini-batch at factor 1: in seconds if the factors
    are. Without it and with the speeds v = 1 / factors: sum_i floor(M v_i / v_max) v_max /
    (M n min v) if others are "cut"; one worker s times slower gains s (n - 1 + 1/s) / n for large
    M (2211.00889).
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
    """Simulate non-blocking over blocking samples per second, with the same delays for both.

    For settings without a closed form: durations with a memory (Markov, traces), and D-PSGD
    (1705.09056) or MATCHA (1905.09435), given their `graph` or `links`, where blocking rounds wait
    for neighbours. rounds: simulated of either rule. landing, in_flight: of the non-blocking
    rounds. Further options as in `Setting`.
    """
    if rounds < 1:
        raise ValueError(f"theory: needs rounds >= 1 to simulate, got {rounds}; set at least 1")
    setting = Setting(
        process, workers, mini_batches, seed, communication=communication, draw=draw, **options
    )
    clocks = (
        RoundClock(setting, never, "neighbours", "carry", "finish"),
        RoundClock(setting, until_first_finisher(), landing, "carry", in_flight),
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
            "in_flight='cut', or a law with a mean"
        )
    return (blocking + communication) / (nonblocking + communication)
