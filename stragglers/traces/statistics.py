"""Statistics of recorded durations, and delays of any length with the same statistics.

A duration is the quantile at Phi(z) of its worker's recorded durations, for a Gaussian z. The
autocorrelation of z gives durations the recorded autocorrelation. The z of two workers at equal
counts are correlated as their durations are. `stragglers/data` has the statistics of public traces,
whose licences ask for attribution: Alibaba's mini-batch times (cluster-trace-gpu-v2020, CC BY 4.0),
and ByteDance's StragglerAnalysis (arXiv 2505.05713, Apache 2.0). They are `of` and `moments` of
`trace("job_1_norm.csv", mean=1).records`, or of `trace("SE.parquet").records`, in four digits. Job
2 has one time twice, so that its trace needs time=None.
"""

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from stragglers.processes import Draw, Process
from stragglers.traces.files import trace

PUBLIC = Path(__file__).parents[1] / "data" / "public_traces.json"
PROBABILITIES = np.array(
    [0, 0.005, 0.02, 0.05, *np.arange(0.1, 0.91, 0.05), 0.95, 0.98, 0.995, 1.0]
)
LONGEST_LAG, LEAST = 128, 64  # mini-batches; LEAST: fewest recorded durations of a worker
LENGTH = 4096  # mini-batches of a worker after which its durations repeat
CALIBRATIONS, SEEDS = 6, 8  # rounds that correct the autocorrelation, and draws of each round


class Statistics(NamedTuple):
    """Statistics of durations.

    quantiles: [workers, probabilities], of each worker's durations, at PROBABILITIES.
    autocorrelation: [lags], of z at lags of 1, 2, 4, ...; 0 from four times the last lag on.
    between: [workers, workers], correlation of the z of two workers at equal counts.
    """

    quantiles: np.ndarray
    autocorrelation: np.ndarray
    between: np.ndarray


class Moments(NamedTuple):
    """Quantities of durations that drawn durations should share with recorded ones."""

    autocorrelation: np.ndarray  # of deviations from the worker's mean, at lags 1, 2, 4, ...
    share: float  # of the variance that lies between the means of workers
    barrier: float  # mean seconds until all workers have a mini-batch, over the mean duration


def moments(records: Sequence[np.ndarray], lags: int = 1) -> Moments:
    """Return the moments of durations by worker, in order of time; lags: number of lags."""
    means = np.array([values.mean() for values in records])
    away = [values - mean for values, mean in zip(records, means, strict=True)]
    squares = sum(float(np.square(values).sum()) for values in away) or 1.0
    found = [sum(float(x[lag:] @ x[:-lag]) for x in away) for lag in 2 ** np.arange(lags)]
    within = squares / sum(map(len, away))
    common = min(map(len, records))
    together = np.array([values[:common] for values in records])
    return Moments(
        np.array(found) / squares,
        float(means.var() / (means.var() + within)),
        float(together.max(axis=0).mean() / together.mean()),
    )


def of(records: Sequence[np.ndarray]) -> Statistics:
    """Return the statistics of durations, given by worker in the order of time.

    CALIBRATIONS rounds correct the autocorrelation of z, so that draws have the recorded value.
    """
    shortest = min(map(len, records))
    if shortest < LEAST:
        raise ValueError(
            f"like: a worker has {shortest} durations, and an autocorrelation takes {LEAST}; "
            "replay them with the delay `trace`, or record more"
        )
    quantiles = np.array([np.quantile(values, PROBABILITIES) for values in records])
    with np.errstate(divide="ignore", invalid="ignore"):  # of workers that never vary
        between = np.corrcoef([values[:shortest] for values in records]).reshape(2 * [len(records)])
    between = np.where(np.isfinite(between), between, np.eye(len(records)))
    lags = 1 + int(np.log2(min(LONGEST_LAG, shortest // 4)))
    wanted = moments(records, lags).autocorrelation
    found = Statistics(quantiles, wanted, between)
    for _ in range(CALIBRATIONS):
        tables = [_table(found, seed, len(records)) for seed in range(SEEDS)]
        missing = wanted - np.mean([moments(one, lags).autocorrelation for one in tables], axis=0)
        better = np.clip(found.autocorrelation + missing, -0.999, 0.999)
        found = found._replace(autocorrelation=better)
    return found


def drawn(name: str, statistics: Statistics, read: str = "") -> Process:
    """Return a process with these statistics; further workers reuse the quantiles in turn."""

    def bind(seed: int) -> Draw:
        table = np.empty((0, LENGTH))

        def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            nonlocal table
            if worker.max(initial=-1) >= len(table):
                table = _table(statistics, seed, int(worker.max()) + 1)
            return table[worker, count % LENGTH]

        return draw

    return Process(name, float(statistics.quantiles.min()), False, bind, read=read)


def like(path: str, **columns: Any) -> Process:
    """Draw any number of durations like a recorded trace, for any number of workers.

    columns: all other parameters of the delay `trace`.
    """
    recorded = trace(path, **columns)
    process = drawn(f"like({path})", of(recorded.records), recorded.read)
    return replace(process, exchange=recorded.exchange)


like.__signature__ = inspect.signature(trace)


def _table(statistics: Statistics, seed: int, workers: int) -> np.ndarray:
    """Return drawn durations [workers, LENGTH] with these statistics."""
    known = 2 ** np.arange(len(statistics.autocorrelation))
    points = np.log1p([0, *known, 4 * known[-1]])
    lags = np.minimum(np.arange(LENGTH), LENGTH - np.arange(LENGTH))
    correlation = np.interp(np.log1p(lags), points, [1.0, *statistics.autocorrelation, 0.0])
    filtered = np.sqrt(np.maximum(np.fft.rfft(correlation).real, 0.0))
    values, vectors = np.linalg.eigh(statistics.between)
    mixed = vectors * np.sqrt(np.maximum(values, 0.0))  # mixed mixed^T is the correlation
    recorded, table = len(mixed), np.empty((workers, LENGTH))
    for first in range(0, workers, recorded):
        streams = [np.random.default_rng([seed, first + i]) for i in range(recorded)]
        white = [stream.standard_normal(LENGTH) for stream in streams]
        z = mixed @ np.fft.irfft(filtered * np.fft.rfft(white), LENGTH)
        for i in range(min(recorded, workers - first)):
            u = special.ndtr(_scores(z[i]))
            table[first + i] = np.interp(u, PROBABILITIES, statistics.quantiles[i])
    return table


def _scores(values: np.ndarray) -> np.ndarray:
    """Return the normal scores of the ranks of values."""
    ranks = np.argsort(np.argsort(values, kind="stable"))
    return special.ndtri((ranks + 0.5) / len(values))


# --- public traces ---


@functools.cache
def _public() -> dict[str, dict]:
    return json.loads(PUBLIC.read_text("utf-8"))


def workers(name: str) -> int:
    """Return the number of workers of a public trace, 0 for any other name."""
    return len(_public()[name]["between"]) if name in _public() else 0


def _named(name: str) -> Callable[..., Process]:
    def public(mean: float | None = None) -> Process:
        row = _public()[name]
        quantiles = np.array(row["quantiles"])
        scale = 1.0 if mean is None else mean / np.trapezoid(quantiles, PROBABILITIES).mean()
        if not 0 < scale < np.inf:
            raise ValueError(f"{name}: needs mean > 0, got mean={mean}; set seconds")
        rest = (np.array(row[part]) for part in ("autocorrelation", "between"))
        return drawn(name, Statistics(scale * quantiles, *rest), row["about"])

    public.__name__ = public.__qualname__ = name
    public.__doc__ = (
        f"Draw durations like {_public()[name]['about']}.\n\n"
        "mean [s]: of all durations, by default the recorded one, or 1 where that has no unit."
    )
    return public


alibaba_job_1, alibaba_job_2, alibaba_job_3, alibaba_job_4 = (
    _named(f"alibaba_job_{number}") for number in (1, 2, 3, 4)
)
bytedance_ar, bytedance_se, bytedance_st = (
    _named(f"bytedance_{job}") for job in ("ar", "se", "st")
)
