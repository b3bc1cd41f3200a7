"""Parts of both compiled event loops: tables of future durations, and a tree of event times."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stragglers import speed_paths, streams
from stragglers.processes import Process

WINDOW = 256  # mini-batches of a worker that are looked up at once
MANY_ENTRIES = 2**20  # of all workers; larger tables are cut to about the expected need
MOST_ENTRIES = 2**24  # of all workers together
_ALWAYS = 2**62  # mini-batches: beyond any lookahead
_NO_PATH = np.zeros((0, 0, 3))
_NO_LINKS = _NO_PATH, np.zeros((0, 0, 2), np.int32), np.inf


class Seconds(NamedTuple):
    """Table of durations: table[i, n - counter[i]] s for mini-batch n of worker i.

    With speed paths, the table has the work in seconds at full speed, and the time that the work
    takes is multiplied by a constant of the worker. See `stragglers.speed_paths`.
    """

    table: np.ndarray  # [P, C], or a `Live`
    counter: np.ndarray  # [P] int64, of the first column
    columns: int  # C
    constant: np.ndarray  # [P]
    path: np.ndarray  # [P, S + 1, 3] of speeds, or [0, 0, 3] without
    slowest: float  # s, the longest time that a second of work takes


class Live(NamedTuple):
    """Table that draws a duration when it is looked up, as durations depend on their start."""

    process: Process
    begin: np.ndarray  # [P] s, which the loop updates

    def __getitem__(self, at: tuple[int, int]) -> float:
        worker, count = at
        return float(self.process.duration(worker, self.begin[worker], count))


class Ahead:
    """Durations of a process for event loops, as arrays if a compiled loop can use them."""

    def __init__(self, process: Process, seed: int):
        self._process = process.seeded(seed)
        self._in_time = None if process.in_time is None else process.in_time(seed)

    def first_ends(self, mini_batches: np.ndarray) -> np.ndarray:
        """Return the ends [P] s of each worker's first `mini_batches` [P], begun at 0 s."""
        end = np.zeros(mini_batches.size)
        for step in range(mini_batches.max()):
            at = np.flatnonzero(step < mini_batches)
            end[at] += self._process.duration(at, end[at], step)
        return end

    def of(self, counter: np.ndarray, columns: int, begin: np.ndarray, until: float) -> Seconds:
        """Return all workers' durations from `counter` [P] on, with speed paths beyond `until` s.

        begin: [P] s, start of a mini-batch, which the loop sets before it reads the duration.
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
        if (cost := self._process.cost) is not None:
            plain = work

            def work(i, n):
                return cost(i, n) * plain(i, n)

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
    """Return `draw(i, n)` of every worker i for n from counter[i] on, [P, columns]."""
    table = np.empty((counter.size, columns), kind)
    for some in streams.parts(counter.size, columns):
        table[some[0, 0] :][: some.size] = draw(some, counter[some] + np.arange(columns))
    return table


def links_of(communication: Any, until: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (paths, links' numbers of paths, s until which paths are known), see `slowness`.

    until: s beyond which the paths must be known. Without spells there are no paths.
    """
    spells = getattr(communication, "spells", None)
    if spells is None:
        return _NO_LINKS
    sojourns = spells.path(until).sojourns
    return sojourns, spells.links, float(sojourns[:, -1, speed_paths.SWITCH].min())


def slowness(sojourns: np.ndarray, links: np.ndarray, i: int, j: int, at: float) -> float:
    """Return the slowness factor of a message between i and j at a time; to be compiled.

    sojourns: [C, S + 1, 3] of paths; links: [P, P, 2], a link's two paths; the slower path counts.
    """
    one, other = links[i, j, 0], links[i, j, 1]
    a = sojourns[one, speed_paths.sojourn(sojourns, one, speed_paths.SWITCH, at)]
    b = sojourns[other, speed_paths.sojourn(sojourns, other, speed_paths.SWITCH, at)]
    return 1 / min(a[speed_paths.SPEED], b[speed_paths.SPEED])


def columns_of(workers: int, least: int, each: float) -> int:
    """Return the number of mini-batches to look ahead per worker, at least two times `least`.

    each: expected need of a worker. For many workers the number is little more than twice `each`.
    """
    if workers * WINDOW > MANY_ENTRIES:
        return max(2 * least, min(WINDOW, int(2 * each) + 4, MOST_ENTRIES // workers))
    return max(2 * least, WINDOW)


# A tree of least times with eight branches finds the earliest of many workers.
_LINE = 64  # bytes of a cache line
BRANCHES = 8  # of a node: a change reads one group of eight adjacent numbers per level


def aligned(size: int) -> np.ndarray:
    """Return an array of `size` numbers of 8 bytes that begins with a cache line."""
    memory = np.empty(size + _LINE // 8)
    return memory[-(memory.ctypes.data // 8) % (_LINE // 8) :][:size]


def tree_of(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a tree of these times, and the places of its levels from the leaves up to its end.

    The branches of a node share a cache line.
    """
    levels, size = [0], times.size * BRANCHES
    while len(levels) == 1 or size > 1:
        size = -(-size // BRANCHES)
        levels.append(levels[-1] + -(-size // BRANCHES) * BRANCHES)
    tree, below = aligned(levels[-1]), times
    for start, end in itertools.pairwise(levels):
        tree[start:end] = np.inf
        tree[start : start + below.size] = below
        below = tree[start:end].reshape(-1, BRANCHES).min(axis=1)
    return tree, np.array(levels)


def lesser(a: float, b: float) -> float:
    """Return the lesser of two times."""
    return a if a < b else b


def least_below(tree: np.ndarray, levels: np.ndarray, level: int, node: int) -> float:
    """Return the least time of a node's branches, by comparisons that can run side by side."""
    at = levels[level - 1] + BRANCHES * node
    return lesser(
        lesser(lesser(tree[at], tree[at + 1]), lesser(tree[at + 2], tree[at + 3])),
        lesser(lesser(tree[at + 4], tree[at + 5]), lesser(tree[at + 6], tree[at + 7])),
    )


def set_time(tree: np.ndarray, levels: np.ndarray, who: int, time: float) -> None:
    """Set the time of a leaf, and update the nodes above the leaf as far as they change."""
    tree[who] = time
    node = who
    for level in range(1, levels.size - 1):
        node //= BRANCHES
        least = least_below(tree, levels, level, node)
        if tree[levels[level] + node] == least:
            return
        tree[levels[level] + node] = least


def earliest(tree: np.ndarray, levels: np.ndarray) -> int:
    """Return the worker with the least time; of several, the one with the lowest number."""
    node = 0
    for level in range(levels.size - 2, 0, -1):
        least, branch = tree[levels[level] + node], levels[level - 1] + BRANCHES * node
        lowest = BRANCHES - 1
        for other in range(BRANCHES - 2, -1, -1):  # all branches: a jump cannot be predicted
            lowest = other if tree[branch + other] == least else lowest
        node = BRANCHES * node + lowest
    return node


@functools.cache
def compiled(loop: Callable, *own: Callable) -> Callable:
    """Return a loop as machine code; own: functions that this loop calls beside the common ones."""
    tree = lesser, least_below, set_time, earliest
    speed = speed_paths.sojourn, speed_paths.duration, slowness
    return streams.compiled(loop, *own, *tree, *speed)
