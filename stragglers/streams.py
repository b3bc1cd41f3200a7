"""Uniform random numbers by address, compiled, with the bits of NumPy's generators.

A block of numbers is the sequence of draws of `default_rng(SeedSequence(seed,
spawn_key=key)).random()`. NumPy makes a generator per block, which costs as much as some thousand
draws. Here a generator costs a few dozen multiplications, and a draw in the middle of a block skips
the earlier draws. The algorithms are PCG XSL RR 128/64 (M. O'Neill, PCG: A Family of Simple Fast
Space-Efficient Statistically Good Algorithms for Random Number Generation, 2014, section 6.3.4) and
the hash of NumPy's SeedSequence (after M. O'Neill, Developing a seed_seq Alternative, 2015).
"""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType

import numpy as np

_BLOCK = 256  # draws per generator: creating one costs as much as some thousand draws
# Limits of kept draws; beyond them, each number is drawn anew when it is looked up.
MOST_ROWS, MOST_KNOWN = 2**15, 2**25
AT_ONCE = 2**16  # draws in one pass
MANY_BLOCKS = 2**14  # blocks that take NumPy about as long as the import of a compiler
MANY_WITH_COMPILER = 2**10  # the same if a compiler is loaded already
_POOL = 4  # 32-bit words of a SeedSequence
_WORD = 2**32


def addressed(
    seed: int, *stream: int, transform: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a look-up of transformed uniforms by (worker, count), drawn in blocks when needed.

    Blocks are kept, unless all workers together have too many; then every call draws anew.
    """
    table, workers = np.empty((0, 0)), 0

    def lookup(worker: np.ndarray, count: np.ndarray) -> np.ndarray:
        nonlocal table, workers
        rows = worker.max(initial=-1) + 1
        columns = count.max(initial=-1) + 1
        if rows > table.shape[0] or columns > table.shape[1]:
            workers = max(rows, workers)
            if workers > MOST_ROWS or workers * -(-columns // _BLOCK) * _BLOCK > MOST_KNOWN:
                return transform(uniforms(seed, stream, worker, count))
            table = grown(table, workers, columns)
        return table[worker, count]

    def grown(old: np.ndarray, rows: int, columns: int) -> np.ndarray:
        # Doubling keeps the cost of copies linear in the length of a growing run.
        capacity = old.shape[1] if columns <= old.shape[1] else max(columns, 2 * old.shape[1])
        blocks = -(-capacity // _BLOCK)
        new = np.empty((rows, blocks, _BLOCK))
        known_rows, known_blocks = old.shape[0], old.shape[1] // _BLOCK
        new[:known_rows, :known_blocks] = old.reshape(known_rows, known_blocks, _BLOCK)
        unknown = np.ones((rows, blocks), bool)
        unknown[:known_rows, :known_blocks] = False
        missing = np.argwhere(unknown)
        if len(missing) > (MANY_WITH_COMPILER if "numba" in sys.modules else MANY_BLOCKS):
            worker, block = missing.T[..., None]
            count = _BLOCK * block + np.arange(_BLOCK)
            new[unknown] = transform(uniforms(seed, stream, worker, count))
            return new.reshape(rows, blocks * _BLOCK)
        for worker, block in missing.tolist():
            address = np.random.SeedSequence(seed, spawn_key=(worker, block, *stream))
            new[worker, block] = np.random.default_rng(address).random(_BLOCK)
        new[unknown] = transform(new[unknown])
        return new.reshape(rows, blocks * _BLOCK)

    return lookup


def parts(workers: int, counts: int) -> Iterator[np.ndarray]:
    """Yield workers [n, 1], a few at a time, so that arrays of [n, counts] stay in a cache.

    The last workers come first, so that a look-up grows its memory once.
    """
    together = max(1, AT_ONCE // counts)
    for end in range(workers, 0, -together):
        yield np.arange(max(0, end - together), end)[:, None]


def uniforms(seed: int, stream: Sequence[int], worker: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Draw uniforms in [0, 1), float64, one per (worker, count), in the shape of these two.

    Number `count` of a worker is draw count % 256 of the generator with the spawn key (worker,
    count // 256, *stream). Successive counts of a worker cost least if they are neighbours in the
    arrays.
    """
    worker, count = np.broadcast_arrays(worker, count)
    head = words(seed)
    head += [0] * (_POOL - len(head))  # as a SeedSequence does before a spawn key
    known = np.array(head, np.uint32)
    tail = np.array([word for number in stream for word in words(number)], np.uint32)
    out = np.empty(worker.size)
    flat = (np.ascontiguousarray(part, np.int64).ravel() for part in (worker, count))
    compiled(_fill, _product, _advanced, _mixed)(known, tail, _BLOCK, *flat, out)
    return out.reshape(worker.shape)


def words(number: int) -> list[int]:
    """Return a whole number as its 32-bit words, the lowest first, at least one."""
    found = [number % _WORD]
    while number := number // _WORD:
        found.append(number % _WORD)
    return found


# The two algorithms, to be compiled.
_U32, _U64 = np.uint32, np.uint64
_LOW = _U64(0xFFFFFFFF)
_STEP_HIGH, _STEP_LOW = _U64(2549297995355413924), _U64(4865540595714422341)
_FIRST_A, _TIMES_A = _U32(0x43B0D7E5), _U32(0x931E8875)
_FIRST_B, _TIMES_B = _U32(0x8B51F9DD), _U32(0x58F38DED)
_LEFT, _RIGHT = _U32(0xCA01F9DD), _U32(0x4973F715)
_HALF = _U32(16)


def _product(a, b):
    """Return the product of a and b, 64 bits each, as its (high, low) 64 bits."""
    a_high, a_low, b_high, b_low = a >> _U64(32), a & _LOW, b >> _U64(32), b & _LOW
    low, cross = a_low * b_low, a_high * b_low
    middle = (low >> _U64(32)) + (cross & _LOW) + a_low * b_high
    high = a_high * b_high + (cross >> _U64(32)) + (middle >> _U64(32))
    return high, (middle << _U64(32)) | (low & _LOW)


def _advanced(high, low, by_high, by_low, plus_high, plus_low):
    """Return state * by + plus modulo 2^128; all numbers are in two halves (high, low)."""
    new_high, new_low = _product(low, by_low)
    new_high = new_high + high * by_low + low * by_high
    new_low = new_low + plus_low
    new_high = new_high + plus_high + _U64(new_low < plus_low)
    return new_high, new_low


def _mixed(x, y):
    result = _U32(_U32(_LEFT * x) - _U32(_RIGHT * y))
    return _U32(result ^ (result >> _HALF))


def _fill(known, tail, block, workers, counts, out):
    entropy = np.zeros(known.size + 4 + tail.size, np.uint32)
    pool, seeds = np.zeros(4, np.uint32), np.zeros(4, np.uint64)
    at_worker, at_count = -1, -1
    high, low, plus_high, plus_low = _U64(0), _U64(0), _U64(0), _U64(0)
    for n in range(out.size):
        worker, count = workers[n], counts[n]
        if worker != at_worker or count != at_count + 1 or count % block == 0:
            # The SeedSequence of the block.
            size = known.size
            entropy[:size] = known
            for number in (worker, count // block):
                entropy[size] = _U32(number & 0xFFFFFFFF)
                size += 1
                if number >> 32:
                    entropy[size] = _U32(number >> 32)
                    size += 1
            for word in tail:
                entropy[size] = word
                size += 1
            salt = _FIRST_A
            for i in range(4):
                value = _U32(entropy[i] ^ salt)
                salt = _U32(salt * _TIMES_A)
                value = _U32(value * salt)
                pool[i] = _U32(value ^ (value >> _HALF))
            for source in range(size):
                for i in range(4):
                    if source != i:
                        value = pool[source] if source < 4 else entropy[source]
                        value = _U32(value ^ salt)
                        salt = _U32(salt * _TIMES_A)
                        value = _U32(value * salt)
                        pool[i] = _mixed(pool[i], _U32(value ^ (value >> _HALF)))
            salt = _FIRST_B
            for i in range(8):
                value = _U32(pool[i % 4] ^ salt)
                salt = _U32(salt * _TIMES_B)
                value = _U32(value * salt)
                value = _U32(value ^ (value >> _HALF))
                if i % 2 == 0:
                    seeds[i // 2] = _U64(value)
                else:
                    seeds[i // 2] |= _U64(value) << _U64(32)
            # The generator of these seeds, before its first draw.
            plus_high = (seeds[2] << _U64(1)) | (seeds[3] >> _U64(63))
            plus_low = (seeds[3] << _U64(1)) | _U64(1)
            low = plus_low + seeds[1]
            high = plus_high + seeds[0] + _U64(low < plus_low)
            high, low = _advanced(high, low, _STEP_HIGH, _STEP_LOW, plus_high, plus_low)
            # Skip by squaring: k steps are state by^k + plus (by^k - 1) / (by - 1).
            skip = count % block
            all_high, all_low, sum_high, sum_low = _U64(0), _U64(1), _U64(0), _U64(0)
            by_high, by_low, add_high, add_low = _STEP_HIGH, _STEP_LOW, plus_high, plus_low
            while skip:
                if skip & 1:
                    all_high, all_low = _advanced(
                        all_high, all_low, by_high, by_low, _U64(0), _U64(0)
                    )
                    sum_high, sum_low = _advanced(
                        sum_high, sum_low, by_high, by_low, add_high, add_low
                    )
                next_low = by_low + _U64(1)
                next_high = by_high + _U64(next_low == 0)
                add_high, add_low = _advanced(
                    add_high, add_low, next_high, next_low, _U64(0), _U64(0)
                )
                by_high, by_low = _advanced(by_high, by_low, by_high, by_low, _U64(0), _U64(0))
                skip >>= 1
            high, low = _advanced(high, low, all_high, all_low, sum_high, sum_low)
        high, low = _advanced(high, low, _STEP_HIGH, _STEP_LOW, plus_high, plus_low)
        turn = high >> _U64(58)
        folded = high ^ low
        drawn = (folded >> turn) | (folded << ((_U64(64) - turn) & _U64(63)))
        out[n] = np.float64(drawn >> _U64(11)) * (1.0 / 9007199254740992.0)
        at_worker, at_count = worker, count


@functools.cache
def compiled(function: Callable, *helpers: Callable) -> Callable:
    """Return a function of a module as machine code, kept on disk if the disk can be written to.

    helpers: functions that it calls. numba is imported only here, as its import takes a second;
    ImportError without numba.
    """
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError as error:
        raise ImportError(
            f"this schedule needs numba ({error}); run pip install 'gossax[schedules]'"
        ) from error
    for helper in helpers:
        register_jitable(helper)
    parts = ("code", "globals", "name", "defaults", "closure")
    named = FunctionType(*(getattr(function, f"__{part}__") for part in parts))
    try:
        # Numba checks only the file of the function for changes, and keeps code by its name.
        sources = {helper.__code__.co_filename for helper in helpers}
        files = b"".join(Path(source).read_bytes() for source in sorted(sources))
        named.__qualname__ += f"_{hashlib.sha256(files).hexdigest()[:16]}"
        return numba.njit(named, cache=True)
    except (RuntimeError, OSError):  # neither the package nor a home can be read and written to
        return numba.njit(function)
