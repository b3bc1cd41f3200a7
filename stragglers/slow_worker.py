"""Detector of the slow worker and the slow link of a run, while the run goes on.

Workers are ranked in each round by their seconds per mini-batch. Suppose that all workers draw from
one distribution, times a factor of the round. Ranks are then uniform and independent over rounds.
The rank sum of a worker over n rounds is the sum of n uniform numbers out of 0, 1, ..., P - 1. A
sum is significant if P times the probability of at least this sum is at most LEVEL, in the RECENT
rounds or the whole MEMORY. A worker with a significant sum is slow if, in the median recent round,
it takes at least SLOW times as long as the median of the others; it is persistent if it takes that
long in half of the memory.

For rules in pairs or without rounds, the last contributions of each worker are ranked. A schedule
of `k_batch_sync` with K <= P gives no slow worker, as all are busy until the end of a round.

Links are ranked in the same way by the seconds of transfers: the meetings of each pair, and each
worker's pushes to a server; in rounds the gossip of a worker over its own links, if all workers
have equally many links. Links are not ranked if all workers wait for the slowest link.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from stragglers.schedule import Schedule

SLOW = 1.25  # times the median worker, from which on a worker is called slow
RECENT, MEMORY = 20, 256  # rounds
LEVEL = 1e-5  # probability that any of P equal workers is called slow, at one look
MOST_LINKS = 4096  # most links that are ranked


class Slow(NamedTuple):
    """Slow column: a worker or a link."""

    column: int
    factor: float  # times the median of the others; inf for a worker that was cut off
    persistent: bool


def slowest(seconds: np.ndarray) -> Slow | None:
    """Return the slow column of `seconds` [rounds, P], of workers or of links; None without one.

    Infinite seconds: the worker was cut off, so that all others were faster.
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
    """Return the ranks from 0 of each row's entries; equal entries share the mean of theirs."""
    pairs = zip(seconds, np.sort(seconds), strict=True)
    below = (rising.searchsorted(row) + rising.searchsorted(row, "right") for row, rising in pairs)
    return (np.stack([*below]) - 1) / 2  # as scipy.stats.rankdata, whose import takes a second


@functools.cache
def _critical(count: int, rounds: int) -> float:
    """Return the smallest rank sum that is significant; inf if no sum is rare enough."""
    size = rounds * (count - 1) + 1
    mass = np.fft.irfft(np.fft.rfft(np.full(count, 1 / count), 2 * size) ** rounds, 2 * size)
    tail = np.cumsum(mass[:size][::-1])[::-1]
    rare = np.flatnonzero(count * tail <= LEVEL)
    return float(rare[0]) if rare.size else np.inf


class _Recent:
    """Last seconds of each worker or link, by its number."""

    def __init__(self, most: float = np.inf):
        """Begin empty. most: number of workers or links, beyond which none is called slow."""
        self._most, self._past = most, {}

    def take(self, numbers: np.ndarray, seconds: np.ndarray) -> None:
        """Remember the next seconds [n] of these numbers [n], in their order."""
        if not numbers.size or len(self._past) > self._most:
            return
        order = np.argsort(numbers, kind="stable")
        found, begins = np.unique(numbers[order], return_index=True)
        for number, new in zip(found.tolist(), np.split(seconds[order], begins[1:]), strict=True):
            self._past[number] = np.append(self._past.get(number, ()), new)[-MEMORY:]

    def slowest(self, count: int = 2) -> Slow | None:
        """Return the slow worker or link by number; None also if fewer than `count` are known."""
        if not count <= len(self._past) <= self._most:
            return None
        rounds = min(map(len, self._past.values()))
        numbers = sorted(self._past)
        found = slowest(np.stack([self._past[number][-rounds:] for number in numbers], axis=1))
        return None if found is None else found._replace(column=numbers[found.column])


class Watch:
    """Seconds of all workers and links in the last rounds, or in their last contributions.

    cuts_off: True if a worker that is not in an update has lost its work, as in K-sync.
    partners: [M, P] of the matchings over which a round exchanges, if each worker waits only for
        its own links; else None.
    """

    def __init__(self, workers: int, cuts_off: bool, partners: np.ndarray | None = None):
        self._workers, self._cuts_off = workers, cuts_off
        self._own = None if partners is None else np.int64(partners != np.arange(workers))
        self._of_workers, self._of_links = _Recent(), _Recent(MOST_LINKS)

    def take(self, schedule: Schedule) -> None:
        """Remember the next rows of a run."""
        count, named = self._workers, schedule.workers < self._workers
        row, position = np.nonzero(named & (schedule.busy > 0))
        own = row * count + schedule.workers[row, position]
        keys, where = np.unique(own, return_inverse=True)
        busy = np.bincount(where, schedule.busy[row, position])
        # Work that was cut before the end of its first mini-batch gives a lower bound.
        values = busy / np.maximum(np.bincount(where, schedule.batches[row, position]), 1)
        if self._cuts_off:
            absent = np.ones((schedule.updates, count), bool)
            absent[np.nonzero(named)[0], schedule.workers[named]] = False
            cut = np.flatnonzero(absent)
            keys, values = np.append(keys, cut), np.append(values, np.full(cut.size, np.inf))
        order = np.argsort(keys)
        self._of_workers.take(keys[order] % count, values[order])
        self._of_links.take(*self._links(schedule, named))

    def _links(self, schedule: Schedule, named: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers i * P + j of used links, workers i <= j, and their seconds, [n] each."""
        one, count = schedule.workers, self._workers
        other, used = one, named & (schedule.communication > 0)
        if schedule.partner is not None:  # nodes that asked are in the first half
            other = np.take_along_axis(one, schedule.partner, axis=1)
            used &= (one != other) & (np.arange(one.shape[1]) < one.shape[1] // 2)
        elif schedule.population is None and self._own is None:
            used[:] = False
        elif schedule.population is None:
            active = schedule.matchings
            links = self._own.sum(0)[None] if active is None else active @ self._own
            used &= (links.max(1) == links.min(1))[:, None]
        low, high = np.minimum(one, other)[used], np.maximum(one, other)[used]
        return low.astype(np.int64) * count + high, schedule.communication[used]

    def metrics(self) -> dict[str, Any]:
        """Return the slow worker and the slow link as entries of a record, {} without any."""
        worker, link = self._of_workers.slowest(max(2, self._workers)), self._of_links.slowest()
        found = {} if worker is None else dict(zip(WORKER, worker, strict=True))
        if link is not None:
            found |= dict(zip(LINK, (*divmod(link.column, self._workers), *link[1:]), strict=True))
        return found


WORKER = ("slow_worker", "slow_factor", "slow_persistent")  # of a record
LINK = ("slow_link_from", "slow_link_to", "slow_link_factor", "slow_link_persistent")
ENTRIES = (*WORKER, *LINK)


def described(record: dict[str, Any]) -> str:
    """Return a record's slow worker and slow link in words, "" without any.

        >>> described({"slow_worker": 3, "slow_factor": 1.5, "slow_persistent": True})
        'worker 3 takes 1.5x, persistent'
    """
    said = []
    worker, *how = map(record.get, WORKER)
    if worker is not None:
        said.append(f"worker {worker} {_words(*how)}")
    one, other, *how = map(record.get, LINK)
    if one is not None:
        link = f"link of worker {one}" if one == other else f"link {one}-{other}"
        said.append(f"{link} {_words(*how)}")
    return "; ".join(said)


def _words(factor: float | None, persistent: bool) -> str:
    by = "is always cut off" if factor is None or factor == np.inf else f"takes {factor:.2g}x"
    return f"{by}, {'persistent' if persistent else 'passing'}"
