"""The slow worker of a run, named while it goes on.

In each round workers are ranked by their seconds of a mini-batch. If all draw from one
distribution, whichever it is and whatever a round has in common, ranks are uniform and independent
over rounds, and the sum of a worker's ranks has a known distribution: that of n numbers of 0, 1,
..., P - 1. It counts where P times its tail is at most LEVEL, in the RECENT rounds or in all of the
MEMORY. Named is a worker that also takes SLOW times as long as the median of the others, in the
median of the recent rounds. It is persistent if that holds in at least half of the memory.

Rules that move in pairs or without rounds are ranked by the last contributions of each worker.
`k_batch_sync`, whose schedule has all workers busy until the end of a round, tells nothing.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from stragglers.schedule import Schedule

SLOW = 1.25  # times the median worker, from which on a worker is called slow
RECENT, MEMORY = 20, 256  # rounds
LEVEL = 1e-5  # chance that any of P equal workers is taken for slow, at one look


class Slow(NamedTuple):
    """The slowest of n rounds."""

    column: int
    factor: float  # times the median of the others, inf if it was cut off
    persistent: bool


def slowest(seconds: np.ndarray) -> Slow | None:
    """Return the slow column of `seconds` [rounds, P], of workers or of links; None without one.

    Infinite: cut off, so that all others were faster.
    """
    rounds, count = seconds.shape
    ranks = _ranks(seconds)
    for window in (min(RECENT, rounds), rounds):
        sums = ranks[rounds - window :].sum(axis=0)
        column = int(sums.argmax())
        if sums[column] < _critical(count, window):
            continue
        others = np.median(np.delete(seconds, column, axis=1), axis=1)
        with np.errstate(invalid="ignore"):
            ratio = np.nan_to_num(seconds[:, column] / others, nan=1.0, posinf=np.inf)
        factor = float(np.median(ratio[-RECENT:]))
        if factor >= SLOW:
            return Slow(column, factor, bool(np.median(ratio) >= SLOW))
    return None


def _ranks(seconds: np.ndarray) -> np.ndarray:
    """Return the ranks from 0 of each row's entries; equal ones share their mean."""
    pairs = zip(seconds, np.sort(seconds), strict=True)
    below = (rising.searchsorted(row) + rising.searchsorted(row, "right") for row, rising in pairs)
    return (np.stack([*below]) - 1) / 2  # as scipy.stats.rankdata, whose import takes a second


@functools.cache
def _critical(count: int, rounds: int) -> float:
    """Return the least sum of ranks that counts; inf where none is rare enough."""
    size = rounds * (count - 1) + 1
    mass = np.fft.irfft(np.fft.rfft(np.full(count, 1 / count), 2 * size) ** rounds, 2 * size)
    tail = np.cumsum(mass[:size][::-1])[::-1]
    rare = np.flatnonzero(count * tail <= LEVEL)
    return float(rare[0]) if rare.size else np.inf


class Watch:
    """Seconds of a mini-batch of all workers in the last rounds, or in their last contributions.

    cuts_off: whether a worker that is not in an update has lost its work, as in K-sync.
    """

    def __init__(self, workers: int, cuts_off: bool):
        self._workers, self._cuts_off = workers, cuts_off
        self._past = [np.empty(0)] * workers

    def take(self, schedule: Schedule) -> None:
        """Remember the next rows of a run."""
        count, named = self._workers, schedule.workers < self._workers
        row, position = np.nonzero(named & (schedule.busy > 0))
        own = row * count + schedule.workers[row, position]
        keys, where = np.unique(own, return_inverse=True)
        busy = np.bincount(where, schedule.busy[row, position])
        # Work that was cut before its first mini-batch has taken at least so long.
        values = busy / np.maximum(np.bincount(where, schedule.batches[row, position]), 1)
        if self._cuts_off:
            absent = np.ones((schedule.updates, count), bool)
            absent[np.nonzero(named)[0], schedule.workers[named]] = False
            cut = np.flatnonzero(absent)
            keys, values = np.append(keys, cut), np.append(values, np.full(cut.size, np.inf))
        order = np.lexsort((keys, keys % count))
        parts = np.searchsorted(keys[order] % count, np.arange(1, count))
        for worker, new in enumerate(np.split(values[order], parts)):
            self._past[worker] = np.append(self._past[worker], new)[-MEMORY:]

    def metrics(self) -> dict[str, Any]:
        """Return the slow worker as entries of a record, {} without one."""
        rounds = min(map(len, self._past))
        if self._workers < 2 or not rounds:
            return {}
        found = slowest(np.stack([past[-rounds:] for past in self._past], axis=1))
        return {} if found is None else dict(zip(ENTRIES, found, strict=True))


ENTRIES = ("slow_worker", "slow_factor", "slow_persistent")  # of a record


def described(record: dict[str, Any]) -> str:
    """Return a record's slow worker in words, "" without one.

        >>> described({"slow_worker": 3, "slow_factor": 1.5, "slow_persistent": True})
        'worker 3 takes 1.5x, persistent'
    """
    worker, factor, persistent = map(record.get, ENTRIES)
    if worker is None:
        return ""
    by = "is always cut off" if factor is None or factor == np.inf else f"takes {factor:.2g}x"
    return f"worker {worker} {by}, {'persistent' if persistent else 'passing'}"
