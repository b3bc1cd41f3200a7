"""What non-blocking rounds gain over blocking ones: the reference for schedules and runs.

A round is the one of Non-blocking SGD (arXiv 2211.00889, run-time analysis) with landing at all
workers.  For iid laws and for fixed speeds there are closed forms and quadratures, without random
numbers.  Durations with a memory and landing at neighbours have none: the `estimate_` functions
simulate both rules with the same delays.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stragglers.delays import Law
from stragglers.order_statistics import cuts, finished, moments
from stragglers.processes import Process
from stragglers.round_clock import RoundClock
from stragglers.round_parts import until_first_finisher, until_full
from stragglers.rule import Cost, Setting
from stragglers.schedule import Schedule


def round_time(
    law: Law,
    workers: int,
    mini_batches: int,
    *,
    blocking: bool,
    draw: str = "round",
    in_flight: str = "cut",
) -> float:
    """Expected seconds of computing in a round of M mini-batches, each of duration `law`.

    blocking waits for all, E[T_max]; otherwise the first finisher stops the others, E[T_min] if
    they are "cut", or when the last has "finish"ed what it had begun (2211.00889).
    draw: one duration per "round", by quadrature, or one per "mini_batch", whose sums are
    convolved on a lattice to about 1 %; a tail too heavy for that raises ValueError.
    """
    means = moments(law, workers, mini_batches, draw, in_flight)
    return means.blocking if blocking else means.nonblocking


def finished_share(
    law: Law, workers: int, mini_batches: int, *, draw: str = "round", in_flight: str = "cut"
) -> float:
    """Expected share of the mini-batches that count in a non-blocking round, E[sum m_i]/(n M)."""
    return moments(law, workers, mini_batches, draw, in_flight).share


def throughput_gain(
    law: Law,
    workers: int,
    mini_batches: int,
    communication: float = 0.0,
    draw: str = "round",
    in_flight: str = "cut",
) -> float:
    """Samples per second of non-blocking over blocking rounds, `communication` seconds in each.

    share * (E[T_max] + D) / (E[T] + D), 2211.00889; options as in `round_time`.  Infinite where
    only blocking rounds have no mean; where neither has, ValueError.
    """
    means = moments(law, workers, mini_batches, draw, in_flight)
    return means.share * _shorter(means.blocking, means.nonblocking, communication)


def noise_limited_gain(
    law: Law,
    workers: int,
    mini_batches: int,
    communication: float = 0.0,
    draw: str = "round",
    in_flight: str = "cut",
) -> float:
    """Expected gain in time to a loss if it takes a fixed number of samples: `throughput_gain`.

    Assumes that gradient noise limits training: with a rate proportional to the samples of an
    update, n samples help as much in many small updates as in few large ones.  The lower of the
    two limits.
    """
    return throughput_gain(law, workers, mini_batches, communication, draw, in_flight)


def update_limited_gain(
    law: Law,
    workers: int,
    mini_batches: int,
    communication: float = 0.0,
    draw: str = "round",
    in_flight: str = "cut",
) -> float:
    """Expected gain in time to a loss if it takes a fixed number of updates.

    (E[T_max] + D) / (E[T] + D), where T is T_min and, if what is in flight may "finish", the wait
    for it.  Assumes that the batch is so large that noise does not matter: an update with fewer
    samples brings as much as a full one.  The upper of the two limits; options and errors as in
    `throughput_gain`.
    """
    means = moments(law, workers, mini_batches, draw, in_flight)
    return _shorter(means.blocking, means.nonblocking, communication)


def speeds_gain(
    factors: ArrayLike, mini_batches: int, communication: float = 0.0, *, in_flight: str = "cut"
) -> float:
    """Throughput gain of non-blocking rounds for workers that are always `factors` times slower.

    `communication` of a round is in units of a mini-batch at factor 1: in seconds if the factors
    are.  Without it and with the speeds v = 1 / factors: sum_i floor(M v_i / v_max) v_max /
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
    **options,
) -> float:
    """Samples per second of non-blocking over blocking rounds, simulated with the same delays.

    For what has no closed form: durations with a memory (Markov, traces), and D-PSGD (1705.09056)
    or MATCHA (1905.09435), given their `graph` or `links`, where blocking rounds wait for
    neighbours.  rounds: simulated of either rule.  Further options as in `Setting`, here with
    draw="round" and in_flight="cut" unless given; `landing` is that of the non-blocking rounds.
    """
    blocking, nonblocking = _simulated(
        process, workers, mini_batches, communication, rounds, seed, **options
    )
    share = nonblocking.batches.sum() / blocking.batches.sum()
    return float(share * blocking.time[-1] / nonblocking.time[-1])


def estimate_update_limited_gain(
    process: Law | Process,
    workers: int,
    mini_batches: int,
    communication: Cost = 0.0,
    *,
    rounds: int = 4000,
    seed: int = 0,
    **options,
) -> float:
    """Updates per second of non-blocking over blocking rounds, simulated with the same delays.

    The assumption is that of `update_limited_gain`; the arguments are those of `estimate_gain`.
    """
    blocking, nonblocking = _simulated(
        process, workers, mini_batches, communication, rounds, seed, **options
    )
    return float(blocking.time[-1] / nonblocking.time[-1])


def _simulated(
    process, workers, mini_batches, communication, rounds, seed, *, draw="round", in_flight="cut",
    landing="neighbours", **options,
) -> tuple[Schedule, Schedule]:  # fmt: skip
    """Schedules of blocking and of non-blocking rounds."""
    if rounds < 1:
        raise ValueError(f"theory: needs rounds >= 1 to simulate, got {rounds}; set at least 1")
    setting = Setting(
        process, workers, mini_batches, seed, communication=communication, draw=draw, **options
    )
    clocks = (
        RoundClock(setting, until_full(), "neighbours", "carry", "finish"),
        RoundClock(setting, until_first_finisher(), landing, "carry", in_flight),
    )
    blocking, nonblocking = (clock.extend(clock.init(), rounds)[1] for clock in clocks)
    return blocking, nonblocking


def _shorter(blocking: float, nonblocking: float, communication: float) -> float:
    """How many times shorter a non-blocking round is, `communication` seconds included."""
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
