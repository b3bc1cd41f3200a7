"""How long to compute before a deadline, chosen from measured durations."""

import numpy as np
from numpy.typing import ArrayLike


def drop_compute_threshold(
    durations: ArrayLike, communication: ArrayLike = 0.0, candidates: int = 200
) -> float:
    """Seconds of computing per round that maximise the throughput, DropCompute's tau (2306.10598).

    durations: seconds of every mini-batch, [rounds, workers, M], in rounds in which all were
      finished; communication: seconds of a round, scalar or [rounds].
    A threshold keeps the mini-batches that have ended by then and shortens a round to it. Of so
    many `candidates`, evenly spaced quantiles of the measured ends, the one with the most
    mini-batches per second is taken, the latest such. Missing or negative numbers raise
    ValueError.
    """
    durations = np.asarray(durations, np.float64)
    if durations.ndim != 3 or not durations.size or not (durations > 0).all():
        raise ValueError(
            f"drop_compute_threshold: needs positive durations [rounds, workers, mini-batches], "
            f"got shape {durations.shape}; measure at least one round"
        )
    if candidates < 1 or not np.min(communication) >= 0:
        raise ValueError(
            f"drop_compute_threshold: needs candidates >= 1 and communication >= 0 s, got "
            f"{candidates} and {communication}; set both"
        )
    ends = durations.cumsum(axis=2)
    # Between two ends nothing is gained; the first candidate keeps everything.
    taus = np.quantile(ends, np.linspace(1, 0, candidates), method="lower")
    kept = np.searchsorted(np.sort(ends, axis=None), taus, side="right")
    full = ends.max(axis=(1, 2))
    seconds = np.minimum(taus[:, None], full).mean(axis=1) + np.mean(communication)
    rate = kept / seconds
    # At equal speed more samples are better, and equal rates differ by rounding.
    return float(taus[np.argmax(rate >= rate.max() * (1 - 1e-9))])
