"""Which samples a worker's next mini-batch holds: addressed, never consumed.

Every epoch a worker walks its shard in a new random order. The order is not stored: it is a
bijection of 0 .. n-1 that is evaluated where it is needed, an alternating Feistel network over
Z_a x Z_b with a b >= n, walked on until it falls below n (J. Black, P. Rogaway, *Ciphers with
Arbitrary Finite Domains*, CT-RSA 2002).
"""

from collections.abc import Sequence

import numpy as np

ROUNDS = 6  # half of them move either coordinate


class Sampler:
    """Addresses mini-batches: which samples are worker i's c-th is a function of (seed, i, c).

    There is no gap between epochs: a mini-batch may end one epoch and begin the next.

    shards: per worker its indices into the training set, none empty.
    """

    def __init__(self, shards: Sequence[np.ndarray], batch_size: int, seed: int):
        if batch_size < 1:
            raise ValueError(f"Sampler: batch_size must be at least 1, got {batch_size}; raise it")
        empty = [worker for worker, shard in enumerate(shards) if not len(shard)]
        if empty:
            raise ValueError(
                f"Sampler: workers {empty} have no samples; use fewer workers or another split"
            )
        self.batch_size = batch_size
        self.sizes = np.array([len(shard) for shard in shards], np.int64)
        self._starts = np.cumsum([0, *self.sizes[:-1]])
        self._flat = np.concatenate(shards).astype(np.int32)
        self._seed = _scramble(np.array([seed & 0xFFFFFFFF], np.uint32))

    def indices(self, workers, counters) -> np.ndarray:
        """[..., batch_size] int32 indices of mini-batch number counters[...] of workers[...].

        workers, counters: integer arrays that broadcast; counters start at 0.
        """
        workers, counters = np.broadcast_arrays(workers, np.asarray(counters, np.int64))
        workers = workers[..., None]
        size = self.sizes[workers]
        position = counters[..., None] * self.batch_size + np.arange(self.batch_size)
        epoch, offset = np.divmod(position, size)
        # Worker and epoch go into the key one after the other, or (1, 2) would equal (2, 1).
        key = _scramble(_scramble(self._seed + workers.astype(np.uint32)) + epoch.astype(np.uint32))
        size = np.broadcast_to(size, offset.shape)
        shuffled = permute(offset.ravel(), size.ravel(), key.ravel()).reshape(offset.shape)
        return self._flat[self._starts[workers] + shuffled]


def permute(index: np.ndarray, size: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Where the random order `key` of 0 .. size-1 puts `index`; flat arrays, one element each.

    size: 1 .. 2^32 - 1; key: uint32. For every (size, key) this is a bijection of `index`.
    """
    rows = np.ceil(np.sqrt(size)).astype(np.uint32)
    columns = (-(-size // rows)).astype(np.uint32)
    out = _feistel(index.astype(np.uint32), rows, columns, key)
    outside = np.flatnonzero(out >= size)
    while outside.size:  # at most one in sqrt(size) elements, on average
        out[outside] = _feistel(out[outside], rows[outside], columns[outside], key[outside])
        outside = outside[out[outside] >= size[outside]]
    return out.astype(np.int64)


def _feistel(x, rows, columns, key):
    left, right = np.divmod(x, columns)
    for number in range(0, ROUNDS, 2):
        left = _add(left, right, key + _KEYS[number], rows)
        right = _add(right, left, key + _KEYS[number + 1], columns)
    return left * columns + right


_KEYS = np.arange(1, ROUNDS + 1, dtype=np.uint32) * np.uint32(0x9E3779B9)


def _add(moved, fixed, key, modulus):
    """moved + hash(fixed, key) modulo `modulus` (at most 2^16), without a division."""
    step = fixed * np.uint32(0x85EBCA6B)
    step += key
    step ^= step >> np.uint32(15)
    step *= np.uint32(0x2C1B3C6D)
    step ^= step >> np.uint32(12)
    step *= np.uint32(0x297A2D39)
    step >>= np.uint32(16)
    step *= modulus
    step >>= np.uint32(16)
    step += moved
    return np.where(step >= modulus, step - modulus, step)


def _scramble(x: np.ndarray) -> np.ndarray:
    """A bijection of uint32 that looks random (lowbias32 of C. Wellons' hash prospector)."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
