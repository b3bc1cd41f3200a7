"""Arrays of numbers per worker in one piece of memory, a worker's numbers next to each other.

A loop over events goes from one worker to any other. With many workers hardly any number is in a
cache when it is needed, and numbers that share a cache line come together.
"""

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
