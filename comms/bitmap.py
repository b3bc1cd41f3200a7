"""Bitmaps in packed words: the non-zero entries of arrays, over all workers.

Bit b of word w stands for entry 32 w + b. A bitmap also serves to compact non-zeros: its set bits
are found by counts of bits per word, which read 1/32 of the bytes that `jnp.nonzero` reads.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from comms.collectives import AXIS

Carry = TypeVar("Carry")


def occupied(x) -> jax.Array:
    """Mark the entries of x [n] or [n, ...] that are not all zeros, bool [n]; NaN is non-zero."""
    return (x != 0).any(axis=tuple(range(1, x.ndim)))


def pack(mask) -> jax.Array:
    """Return a mask, bool [n], as words, uint32 [ceil(n / 32)]; padded with zeros.

        >>> pack(jnp.array([True, False, True])).tolist()
        [5]
    """
    return pack_codes(mask, 1)


def unpack(words, size: int) -> jax.Array:
    """Return words, uint32 [ceil(size / 32)], as bool [size]."""
    return unpack_codes(words, 1, size).astype(bool)


def pack_codes(codes, bits: int) -> jax.Array:
    """Pack codes in [0, 2^bits), integers or bool [n], into uint32 words of 32 // bits codes."""
    per_word = 32 // bits
    if bits <= 2 and codes.size % per_word == 0:
        return _packed_by_fours(codes, bits)
    codes = jnp.pad(codes.astype(jnp.uint32), (0, -codes.size % per_word)).reshape(-1, per_word)
    shifts = jnp.arange(per_word, dtype=jnp.uint32) * bits
    return jnp.sum(codes << shifts[None], axis=1, dtype=jnp.uint32)


def unpack_codes(words, bits: int, size: int) -> jax.Array:
    """Return the codes, uint32 [size], that `pack_codes` packed."""
    shifts = jnp.arange(32 // bits, dtype=jnp.uint32) * bits
    codes = (words[:, None] >> shifts[None]) & jnp.uint32(2**bits - 1)
    return codes.ravel()[:size]


def union(words, axis: str = AXIS) -> jax.Array:
    """Return words of the bits that are set on any worker, equal on all of them.

    XLA has no OR in an all-reduce. An all-to-all of shares, ORs and an all-gather send
    2 (n - 1) / n of the bitmap, as a ring all-reduce does.
    """
    workers = jax.lax.axis_size(axis)
    if workers == 1 or words.size == 0:
        return words
    shares = jnp.pad(words, (0, -words.size % workers)).reshape(workers, -1)
    shares = jax.lax.all_to_all(shares, axis, split_axis=0, concat_axis=0)
    share = jax.lax.reduce(shares, jnp.uint32(0), jax.lax.bitwise_or, (0,))
    return jax.lax.all_gather(share, axis).ravel()[: words.size]


def count(words) -> jax.Array:
    """Return the number of set bits, int32 scalar.

        >>> int(count(pack(jnp.array([True, False, True]))))
        2
    """
    return jnp.sum(jax.lax.population_count(words), dtype=jnp.int32)


def positions(words, slots: int) -> jax.Array:
    """Return the rising positions of the first `slots` set bits, int32 [slots].

    Unused slots hold 32 times the number of words, which is out of bounds for every array of the
    bitmap's size: read with `mode="fill"`, write with `mode="drop"`.
    """
    return _select(words, jnp.cumsum(_counts(words)), 0, slots)


def fold(words, body: Callable[[jax.Array, Carry], Carry], init: Carry, slots: int) -> Carry:
    """Fold `carry = body(positions, carry)` over all set bits, `slots` of them at a time.

    positions: int32 [slots], as `positions` returns them. Shapes stay static and no set bit is
    left out, while the work follows the number of set bits.
    """
    if words.size == 0:
        return init
    ends = jnp.cumsum(_counts(words))

    def step(i, carry):
        return body(_select(words, ends, i * slots, slots), carry)

    return jax.lax.fori_loop(0, -(-ends[-1] // slots), step, init)


def payload_bytes(size: int) -> int:
    """Return the bytes of a bitmap of `size` entries, the payload of its `union`: uint32 words.

        >>> payload_bytes(1000)
        128
    """
    return 4 * -(-size // 32)


def _packed_by_fours(codes, bits: int):
    """Pack codes of 1 or 2 bits that fill all words, four at first: several times faster on CPU."""
    word = jax.lax.bitcast_convert_type(codes.astype(jnp.uint8).reshape(-1, 4), jnp.uint32)
    if bits == 1:
        word = ((word * 0x01020408) >> 24) & 0xF
    else:
        word = (word | word >> 6) & 0x000F000F
        word = (word | word >> 12) & 0xFF
    return pack_codes(word, 4 * bits)


def _counts(words):
    return jax.lax.population_count(words).astype(jnp.int32)


def _select(words, ends, first, slots: int):
    """Return the positions of set bits by rank, first ... first + slots - 1."""
    if words.size == 0:
        return jnp.zeros(slots, jnp.int32)
    number = first + jnp.arange(slots, dtype=jnp.int32)
    starts = ends - _counts(words)
    # The word of a bit is the last one that starts at or before it: counting the starts is
    # several times faster than a binary search for every bit.
    started = jnp.zeros(slots, jnp.int32)
    started = started.at[jnp.maximum(starts - first, 0)].add(
        1, mode="drop", indices_are_sorted=True
    )
    word = jnp.cumsum(started) - 1
    # A binary search within the word skips the lower half where the wanted bit lies above it.
    rank, rest = number - starts[word], words[word]
    bit = jnp.zeros(slots, jnp.int32)
    for width in (16, 8, 4, 2, 1):
        lower = _counts(rest & jnp.uint32(2**width - 1))
        above = rank >= lower
        rank = jnp.where(above, rank - lower, rank)
        rest = jnp.where(above, rest >> width, rest)
        bit += jnp.where(above, width, 0)
    return jnp.where(number < ends[-1], 32 * word + bit, 32 * words.size)
