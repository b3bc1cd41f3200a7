"""Search for the earliest of many: a tree of least times with eight branches, to be compiled.

A change reads one group of eight times a level, next to each other in memory. With two branches, or
with the number of the earliest worker in a node instead of a time, it would read several times
more.
"""

import itertools
from collections.abc import Sequence

import numpy as np

_LINE = 64  # bytes of a cache line
_TOGETHER = 2**12  # workers whose numbers stay in a cache while they are copied one by one


def aligned(size: int) -> np.ndarray:
    """Return memory of `size` numbers of 8 bytes that begins with a cache line."""
    memory = np.empty(size + _LINE // 8)
    return memory[-(memory.ctypes.data // 8) % (_LINE // 8) :][:size]


def interleaved(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copy arrays [P] of 8-byte numbers, as strided views of one piece of memory.

    The numbers of a worker begin with a cache line; the first eight arrays share it.
    """
    words = -(-len(arrays) * 8 // _LINE) * _LINE // 8
    of_worker = aligned(len(arrays[0]) * words).reshape(-1, words)
    views = [of_worker[:, c].view(array.dtype) for c, array in enumerate(arrays)]
    for start in range(0, len(of_worker), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        for view, array in zip(views, arrays, strict=True):
            view[some] = array[some]
    return views


BRANCHES = 8


def levels_of(size: int) -> np.ndarray:
    """Return the first index of every level of a tree of `size` times; leaves first, end last."""
    starts = [0]
    while True:
        starts.append(starts[-1] + -(-size // BRANCHES) * BRANCHES)
        if size <= 1:
            return np.array(starts)
        size = -(-size // BRANCHES)


def tree_of(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a tree of these times, and its levels; the branches of a node share a cache line."""
    levels = levels_of(times.size)
    tree = aligned(levels[-1])
    below = times
    for start, end in itertools.pairwise(levels.tolist()):
        tree[start:end] = np.inf
        tree[start : start + below.size] = below
        below = tree[start:end].reshape(-1, BRANCHES).min(axis=1)
    return tree, levels


def lesser(a: float, b: float) -> float:
    """Return the lesser of two times."""
    return a if a < b else b


def least_below(tree: np.ndarray, levels: np.ndarray, level: int, node: int) -> float:
    """Return the least time of a node's branches, by comparisons that run side by side."""
    at = levels[level - 1] + BRANCHES * node
    return lesser(
        lesser(lesser(tree[at], tree[at + 1]), lesser(tree[at + 2], tree[at + 3])),
        lesser(lesser(tree[at + 4], tree[at + 5]), lesser(tree[at + 6], tree[at + 7])),
    )


def set_time(tree: np.ndarray, levels: np.ndarray, who: int, time: float) -> None:
    """Change the time of a leaf, and the nodes above it as far as they change."""
    tree[who] = time
    node = who
    for level in range(1, levels.size - 1):
        node //= BRANCHES
        least = least_below(tree, levels, level, node)
        if tree[levels[level] + node] == least:
            return
        tree[levels[level] + node] = least


def first(tree: np.ndarray, levels: np.ndarray) -> int:
    """Find the worker with the least time; of several, the one with the lowest number."""
    node = 0
    for level in range(levels.size - 2, 0, -1):
        least, branch = tree[levels[level] + node], levels[level - 1] + BRANCHES * node
        lowest = BRANCHES - 1
        for other in range(BRANCHES - 2, -1, -1):  # all branches: a jump cannot be predicted
            lowest = other if tree[branch + other] == least else lowest
        node = BRANCHES * node + lowest
    return node


def register() -> None:
    """Let compiled functions call these."""
    from numba.extending import register_jitable  # not at the top: importing numba takes a second

    for function in (lesser, least_below, set_time, first):
        register_jitable(function)
