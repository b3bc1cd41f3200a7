"""Lookahead of event loops: the durations of every worker's next mini-batches."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers.processes import Process
from stragglers.streams import parts

WINDOW = 256  # mini-batches of a worker that are looked up at once
MANY_ENTRIES = 2**20  # of all workers together; with more, the number of drawn entries matters
MOST_ENTRIES = 2**24  # of all workers together
_ALWAYS = 2**62  # mini-batches: beyond any lookahead
_NO_PATH = np.zeros((0, 0, 3))


class Seconds(NamedTuple):
    """Durations by worker i and counter n: table[i, n - counter[i]] s.

    Where there are paths of speeds, the table has the work in seconds at full speed, and its time
    is multiplied with a constant. See `stragglers.speed_paths`.
    """

    table: np.ndarray  # [P, C], or a `Live`
    counter: np.ndarray  # [P] int64, of the first column
    columns: int  # C
    constant: np.ndarray  # [P]
    path: np.ndarray  # [P, S + 1, 3] of speeds, or [0, 0, 3] without
    slowest: float  # s, the longest time of a second of work


class Live(NamedTuple):
    """Table of durations that are drawn when they are looked up, as they depend on the start."""

    process: Process
    begin: np.ndarray  # [P] s, which the loop updates

    def __getitem__(self, at: tuple[int, int]) -> float:
        worker, count = at
        return float(self.process.duration(worker, self.begin[worker], count))


class Ahead:
    """Durations of a process for loops, compiled ones if the process lets them."""

    def __init__(self, process: Process, seed: int):
        self._process = process.seeded(seed)
        self._in_time = None if process.in_time is None else process.in_time(seed)

    def of(self, counter: np.ndarray, columns: int, begin: np.ndarray, until: float) -> Seconds:
        """Return the next durations of all workers from the counters on, paths beyond `until` s.

        begin: [P] s, begin of a mini-batch, which the loop writes before it looks up its duration.
        """
        workers, counter = len(counter), counter.copy()
        ones = np.ones(workers)
        if self._in_time is None and self._process.uses_time:
            live = Live(self._process, begin)
            return Seconds(live, np.zeros_like(counter), _ALWAYS, ones, _NO_PATH, slowest=1.0)
        if self._in_time is None:
            duration = self._process.duration
            table = table_of(lambda i, n: duration(i, 0.0, n), counter, columns, np.float64)
            return Seconds(table, counter, columns, ones, _NO_PATH, slowest=1.0)
        work, known, slowest, constant = self._in_time
        table = table_of(work, counter, columns, np.float64)
        constant = ones if constant is None else constant(workers)
        path = known.beyond(workers, until).sojourns
        return Seconds(table, counter, columns, constant, path, slowest=float(slowest))


def table_of(
    draw: Callable[[np.ndarray, np.ndarray], np.ndarray],
    counter: np.ndarray,
    columns: int,
    kind: type,
) -> np.ndarray:
    """Return the values of `draw` for workers and counts from their `counter` on, [P, columns]."""
    table = np.empty((counter.size, columns), kind)
    for some in parts(counter.size, columns):
        table[some[0, 0] :][: some.size] = draw(some, counter[some] + np.arange(columns))
    return table


def columns_of(workers: int, least: int, each: float) -> int:
    """Return the number of mini-batches to look ahead, at least two times `least`.

    each: expected need of a worker. Many workers draw not many more than these.
    """
    if workers * WINDOW > MANY_ENTRIES:
        return max(2 * least, min(WINDOW, int(2 * each) + 4, MOST_ENTRIES // workers))
    return max(2 * least, WINDOW)
