"""Stateless 32-bit hashing: all workers compute the same buckets and signs, and keep no tables.

`mix` is two rounds of MurmurHash3's finaliser (Appleby, public domain), with the seed mixed in
before each; `lowbias32` is a single round of another hash, for callers that chain many.

Indices and seeds: whole numbers in [0, 2^32), the seed possibly traced. The number of samples seen
so far addresses draws that all workers of an update share. Devices hold its 64 bits as two words.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np


def mix(index, seed) -> jax.Array:
    """Return a pseudo-random uint32 of every index, of the shape of `index` and `seed`."""
    index, seed = jnp.uint32(index), jnp.uint32(seed)
    return _finalise(_finalise(index + jnp.uint32(0x9E3779B9)) ^ _finalise(seed))


def bucket(index, seed, columns: int) -> jax.Array:
    """Return a bucket in [0, columns) of every index, int32; two collide at rate 1/columns.

    Bucket hash h of the count-sketch (Charikar, Chen, Farach-Colton, ICALP 2002).
    """
    return (mix(index, seed) % jnp.uint32(columns)).astype(jnp.int32)


def sign(index, seed) -> jax.Array:
    """Return the sign of every index, float32 of +1 or -1.

    The top bit of the hash in `bucket`, independent of the bucket up to columns / 2^32. Sign hash s
    of the count-sketch.
    """
    return 1.0 - 2.0 * (mix(index, seed) >> 31).astype(jnp.float32)


def uniform(key, shape: tuple[int, ...], first=0) -> jax.Array:
    """Draw float32 in [0, 1), multiples of 2^-24, from a key: for rounding at random.

    first: number of the first draw, for draws that are made piece by piece; may be traced.
    Many times faster on a CPU than `jax.random.uniform`, which hashes with 20 rounds of Threefry.
    """
    index = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape) + jnp.uint32(first)
    return fraction(index, jax.random.bits(key))


def fraction(index, seed) -> jax.Array:
    """Return the draw in [0, 1) of every index; `uniform` takes its key's bits as the seed."""
    return (mix(index, seed) >> 8).astype(jnp.int32).astype(jnp.float32) * 2.0**-24


def lowbias32(x) -> jax.Array:
    """Apply lowbias32, a bijection of uint32 (C. Wellons, "Prospecting for hash functions")."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def words(count) -> np.ndarray:
    """Return whole numbers below 2^63 as words, uint32 [..., 2], the low one first."""
    return np.asarray(count, "<i8")[..., None].view("<u4")


def plus(held, count) -> jax.Array:
    """Return the words [2] of a number increased by count, below 2^32."""
    low = held[0] + jnp.asarray(count).astype(jnp.uint32)
    return jnp.stack([low, held[1] + (low < held[0])])


def counted(held) -> dict[str, jax.Array]:
    """Return the number in words [..., 2] as `samples`, float32, and as `count`, uint32.

    The count is exact below 2^32; within each later run of 2^32 numbers counts are distinct.
    """
    low, high = held[..., 0], held[..., 1]
    samples = high.astype(jnp.float32) * 2.0**32 + low.astype(jnp.float32)
    return {"samples": samples, "count": low ^ (high * jnp.uint32(0x9E3779B9))}


def address(count) -> jax.Array:
    """Return the uint32 address of random draws after this many samples, [] for [].

    A count below 2^24, exact as float32, has the bits of that float as its address; a larger count
    is its own address, with the top bit flipped. A count given as a float also has its bits; such a
    count, if known and 2^24 or more, raises ValueError, as two counts would be the same float.
    """
    if isinstance(count, int | np.integer):
        count = counted(words(count))["count"]
    count = jnp.asarray(count)
    bits = jax.lax.bitcast_convert_type(count.astype(jnp.float32), jnp.uint32)
    if jnp.issubdtype(count.dtype, jnp.floating):
        if not isinstance(count, jax.core.Tracer) and np.max(count, initial=0) >= 2**24:
            raise ValueError(
                f"random draws: {np.max(count):.0f} samples are too many for a float to count by "
                "one, and counts that are the same float draw alike; give `samples` as a whole "
                "number, or `count` beside it"
            )
        return bits
    count = count.astype(jnp.uint32)
    return jnp.where(count < 2**24, bits, count ^ jnp.uint32(1 << 31))


def _finalise(h):
    """Apply MurmurHash3's fmix32, a bijection: a flipped input bit flips half the output."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
