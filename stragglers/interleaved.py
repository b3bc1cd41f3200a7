"""Arrays of numbers per worker in one piece of memory, a worker's numbers next to each other.

A loop over events goes from one worker to any other. Of many workers hardly any number is in a
cache when it is looked at, and numbers that share a cache line come together.
"""

from collections.abc import Sequence

import numpy as np

_LINE = 64  # bytes of a cache line


def interleaved(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copies of arrays [P] of 8-byte numbers, as strided views of one piece of memory.

    The numbers of a worker begin with a cache line; the first eight arrays share it.
    """
    words = -(-len(arrays) * 8 // _LINE) * _LINE // 8
    memory = np.empty(len(arrays[0]) * words + _LINE // 8)
    memory = memory[-(memory.ctypes.data // 8) % (_LINE // 8) :]
    of_worker = memory[: len(arrays[0]) * words].reshape(-1, words)
    views = [of_worker[:, c].view(array.dtype) for c, array in enumerate(arrays)]
    for view, array in zip(views, arrays, strict=True):
        view[:] = array
    return views
