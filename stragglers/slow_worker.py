"""The slow worker and the slow link of a run, named while it goes on.

In each round workers are ranked by their seconds of a mini-batch. If all draw from one
distribution, whichever it is and whatever a round has in common, ranks are uniform and independent
over rounds, and the sum of a worker's ranks has a known distribution: that of n numbers of 0, 1,
..., P - 1. It counts where P times its tail is at most LEVEL, in the RECENT rounds or in all of the
MEMORY. Named is a worker that also takes SLOW times as long as the median of the others, in the
median of the recent rounds. It is persistent if that holds in at least half of the memory.

Rules that move in pairs or without rounds are ranked by the last contributions of each worker.
`k_batch_sync`, whose schedule has all workers busy until the end of a round, tells nothing.

Links are ranked in the same way by the seconds of what travels over them: the meetings of each
pair, each worker's pushes to a server, and in rounds the gossip of a worker over its own links,
where all have as many. Nothing is said of links where all workers wait for the slowest.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from stragglers.schedule import Schedule

SLOW = 1.25  # times the median worker, from which on a worker is called slow
RECENT, MEMORY = 20, 256  # rounds
LEVEL = 1e-5  # chance that any of P equal workers is taken for slow, at one look
MOST_LINKS = 4096  # that are looked at


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


class _Recent:
    """Last seconds of workers or links, by their numbers."""

    def __init__(self, most: float = np.inf):
        """Begin with nothing; most: of them, beyond which nothing is said."""
        self._most, self._past = most, {}

    def take(self, numbers: np.ndarray, seconds: np.ndarray) -> None:
        """Remember the next seconds [n], in their order."""
        if not numbers.size or len(self._past) > self._most:
            return
        order = np.argsort(numbers, kind="stable")
        found, begins = np.unique(numbers[order], return_index=True)
        for number, new in zip(found.tolist(), np.split(seconds[order], begins[1:]), strict=True):
            self._past[number] = np.append(self._past.get(number, ()), new)[-MEMORY:]

    def slowest(self, count: int = 2) -> Slow | None:
        """Return the slow one, by its number; None also if fewer than `count` are known."""
        if not count <= len(self._past) <= self._most:
            return None
        rounds = min(map(len, self._past.values()))
        numbers = sorted(self._past)
        found = slowest(np.stack([self._past[number][-rounds:] for number in numbers], axis=1))
        return None if found is None else found._replace(column=numbers[found.column])


class Watch:
    """Seconds of all workers and links in the last rounds, or in their last contributions.

    cuts_off: whether a worker that is not in an update has lost its work, as in K-sync.
    partners: [M, P] of the matchings over which a round exchanges, if each worker waits for its own
        links alone; None: if not.
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
        # Work that was cut before its first mini-batch has taken at least so long.
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
        """Return links of rows, i * P + j of workers i <= j, or i = j, and their seconds, [n]."""
        one, count = schedule.workers, self._workers
        other, used = one, named & (schedule.communication > 0)
        if schedule.partner is not None:  # who asked stands in the first half
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
