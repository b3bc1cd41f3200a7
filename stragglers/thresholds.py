"""Seconds of computing before a deadline, chosen from measured durations."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from stragglers.rule import Calibration


def drop_compute_threshold(
    durations: ArrayLike, communication: ArrayLike = 0.0, candidates: int = 200
) -> float:
    """Return DropCompute's tau, the seconds of computing per round of most throughput (2306.10598).

    durations: seconds of every mini-batch, [rounds, workers, M], in rounds in which all were
    finished; communication: seconds of a round, scalar or [rounds]. A threshold keeps the
    mini-batches that have ended by then and shortens a round to it. It has the most mini-batches
    per second of `candidates` evenly spaced quantiles of the measured ends; of equal ones it is the
    latest. Missing or negative numbers raise ValueError.
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
    # A threshold between two ends gains nothing; the first candidate keeps everything.
    taus = np.quantile(ends, np.linspace(1, 0, candidates), method="lower")
    kept = np.searchsorted(np.sort(ends, axis=None), taus, side="right")
    full = ends.max(axis=(1, 2))
    seconds = np.minimum(taus[:, None], full).mean(axis=1) + np.mean(communication)
    rate = kept / seconds
    # At equal throughput more samples are better, and equal rates differ by rounding.
    return float(taus[np.argmax(rate >= rate.max() * (1 - 1e-9))])


class Measured:
    """Calibration under way: the durations of its rounds, and the deadline that follows.

    mini_batches: of a worker's round that are still measured, 0 once the deadline is known.
    deadline: seconds after which a worker stops, inf before.
    """

    def __init__(self, calibration: Calibration, workers: int, mini_batches: int):
        self.mini_batches, self.deadline = mini_batches, np.inf
        self._calibration = calibration
        self._durations = np.zeros((0, workers, mini_batches))  # s
        self._exchanges = np.zeros(0)  # s

    def add(self, durations: np.ndarray, exchanges: np.ndarray) -> None:
        """Add rounds, [rounds, workers, M] and [rounds] s; choose once there are enough."""
        rounds = self._calibration.rounds
        self._durations = np.concatenate([self._durations, durations])[:rounds]
        self._exchanges = np.concatenate([self._exchanges, exchanges])[:rounds]
        if len(self._durations) == rounds:
            self.deadline = self._calibration.choose(self._durations, self._exchanges)
            self.mini_batches = 0

    def pack(self) -> dict[str, np.ndarray]:
        """Return the state for `unpack`."""
        return {"durations": self._durations, "exchanges": self._exchanges}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Go on from the state of a packed calibration."""
        self.add(packed["durations"], packed["exchanges"])
