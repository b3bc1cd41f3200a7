"""Lattice codec: a vector in b bits a coordinate, for a receiver that holds something near it.

The sender rounds x to integers k = round(x / s) and sends k mod q, q = 2^b: the point's *colour*.
The receiver takes the lattice point of that colour nearest to its own reference. The error depends
on the side s alone, not on ||x||, but beyond a radius (q - 1) s / 2 of the reference the result is
off by multiples of q s, and looks like any other. A checksum of the whole k, one per bucket of
coordinates, tells. Davies et al., arXiv 2002.09268; for gossip: SwarmSGD, arXiv 1910.12308.

    encode, decode     the codec
    side_for, radius   its parameters
    ravel_floats       a pytree as the flat vector that these work on

What follows a failed decode, and how far off to expect the next reference: `comms.lattice_ladder`.

A side belongs to a bucket: the vector is cut into ceil(size / bucket) parts as equal as can be. All
functions are pure, with static shapes, for one vector [size]; ``jax.vmap`` gives many.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

BUCKET = 1024  # coordinates: the header is then 1.2 % of a message of 8 bits
BITS = (2, 16)
_LIMIT = 2.0**22  # |x / s| from which float32 steps of x are no longer small against s
_SIDES = (2.0**-126, 2.0**126)  # both s and 1 / s are normal numbers
_SEEDS = (0x9E3779B9, 0x3C6EF372)
HEADER_BYTES = 12  # bytes per bucket: the side and two sums


class Encoded(NamedTuple):
    """What travels: nothing in it depends on the receiver."""

    colours: jax.Array  # [bits, ceil(size / 32)] uint32, k mod q packed densely
    checksum: jax.Array  # [buckets, 2] uint32
    side: jax.Array  # [buckets] float32, 0 where x did not fit


def buckets(size: int, bucket: int = BUCKET) -> int:
    """Number of buckets of at most ``bucket`` coordinates that a vector is cut into."""
    if bucket < 1:
        raise ValueError(f"lattice: bucket = {bucket} holds no coordinate; set bucket >= 1")
    return -(-size // bucket)


def payload_bytes(size: int, bits: int, buckets: int) -> int:
    """Bytes of one message: size * bits / 8, filled up to 32 coordinates, and 12 per bucket."""
    return 4 * _check_bits(bits) * -(-size // 32) + HEADER_BYTES * buckets


def side_for(bound, bits: int, stochastic: bool = False) -> jax.Array:
    """Side s whose radius is ``bound``: 2 y / (q - 1), or 2 y / (q - 2) for stochastic rounding.

    bound: y >= max |x - reference|, a number or an array. arXiv 2002.09268.
    """
    return jnp.asarray(bound, jnp.float32) * np.float32(1 / radius(1.0, bits, stochastic))


def radius(side, bits: int, stochastic: bool = False) -> float | jax.Array:
    """Distance |x - reference| below which every coordinate decodes rightly.

    (q - 1) s / 2, or (q / 2 - 1) s for stochastic rounding, which moves x by up to s, not s / 2.
    """
    levels = 2 ** _check_bits(bits)
    return side * (levels / 2 - (1 if stochastic else 0.5))


def encode(x, side, bits: int, key=None, bucket: int = BUCKET) -> Encoded:
    """Colours of the lattice points nearest to x, or with ``key`` of unbiased random ones.

    x: float [size]; side: s, scalar or [buckets]; bits: 2 to 16. Without a key |error| <= s / 2,
    with one < s, mean 0 and variance <= s^2 / 4, aside from x's own float32 rounding. A bucket that
    holds NaN, infinity or |x / s| >= 2^22 is sent as one that no reference decodes. The sender
    itself learns its lattice point, as others will decode it, from ``decode(encoded, x)``.
    Raises ValueError for other bits or shapes.
    """
    _check_bits(bits)
    x = as_vector(x)
    side = as_sides(side, buckets(x.size, bucket))
    scaled, sound = _scale(by_bucket(x, side.size), side)
    if key is None:
        k = jnp.round(scaled)
    else:
        # floor(x / s + u), but for a sum whose rounding would be a bias where |x / s| is large.
        k = jnp.floor(scaled)
        k += jax.random.uniform(key, scaled.shape, jnp.float32) < scaled - k
    k = k.astype(jnp.int32)
    colours = k & (2**bits - 1)  # in two's complement the floored modulus, also below zero
    return Encoded(
        _pack(colours.ravel()[: x.size], bits), _checksum(k), jnp.where(sound, side, 0.0)
    )


def decode(encoded: Encoded, reference) -> tuple[jax.Array, jax.Array]:
    """(value [size], ok [buckets]): the lattice points of these colours nearest to ``reference``.

    reference: float [size], the receiver's own. ok: whether the bucket's value is exactly what the
    sender rounded to; where it is not, value is the reference. A wrong bucket passes once in about
    2^(62 - 2 bits). Never ok: |reference / s| >= 2^22, or not finite. Raises ValueError if the
    message is of another size.
    """
    reference = as_vector(reference)
    bits, words = encoded.colours.shape
    if words != -(-reference.size // 32):
        raise ValueError(
            f"lattice: a message of {words} x 32 coordinates meets a reference of "
            f"{reference.size}; decode against a vector of the sender's size"
        )
    rows = by_bucket(reference, encoded.side.size)
    scaled, sound = _scale(rows, encoded.side)
    colours = by_bucket(_unpack(encoded.colours, reference.size), encoded.side.size)
    turns = jnp.round((scaled - colours.astype(jnp.float32)) * np.float32(0.5**bits))
    k = colours + (turns.astype(jnp.int32) << bits)
    value = k.astype(jnp.float32) * encoded.side[:, None]
    ok = sound & (_checksum(k) == encoded.checksum).all(1) & jnp.isfinite(value).all(1)
    return jnp.where(ok[:, None], value, rows).ravel()[: reference.size], ok


def ravel_floats(tree) -> tuple[jax.Array, Callable]:
    """(vector [size] float32, restore): a pytree's float leaves, and the way back.

    restore(vector) is the tree with these values, shapes and dtypes kept, other leaves untouched.
    """

    def is_float(x):
        return jnp.issubdtype(jnp.result_type(x), jnp.floating)

    def restore(vector):
        return jax.tree.map(
            lambda x, y: y.astype(x.dtype) if is_float(x) else x, tree, unravel(vector)
        )

    nothing = jnp.zeros(0, jnp.float32)
    vector, unravel = ravel_pytree(
        jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) if is_float(x) else nothing, tree)
    )
    return vector, restore


def _scale(rows, side):
    """(x / s, 0 where it is out of range, [buckets] whether all of it is in range)."""
    usable = (side >= _SIDES[0]) & (side <= _SIDES[1])
    inverse = jnp.where(usable, 1 / jnp.where(usable, side, 1), 0)
    scaled = rows * inverse[:, None]
    within = jnp.abs(scaled) < _LIMIT  # NaN is not
    # The choice also keeps compilers from fusing this product and a later sum into one rounding,
    # by which a jitted result would differ from one computed step by step.
    return jnp.where(within, scaled, 0), usable & within.all(1)


def _checksum(k):
    """[buckets, 2] sums of k times odd pseudo-random weights, modulo 2^32; k: [buckets, n] int32.

    A wrong turn of one coordinate changes k by q and is always seen: odd times q is not 0.
    """
    sums = []
    for seed in _SEEDS:
        # The hash lowbias32 of the coordinate (C. Wellons, "Prospecting for hash functions").
        x = jnp.arange(k.shape[1], dtype=jnp.uint32) + np.uint32(seed)
        x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
        weights = (x ^ (x >> 16)) | 1
        sums.append((k.astype(jnp.uint32) * weights[None]).sum(1, dtype=jnp.uint32))
    return jnp.stack(sums, 1)


def _pack(colours, bits):
    """[size] int32 below 2^bits -> [bits, ceil(size / 32)] uint32.

    Coordinates ceil(size / 32) apart make a group of 32, and it one stream of ``bits`` words.
    """
    rows = jnp.pad(colours.astype(jnp.uint32), (0, -colours.size % 32))
    rows = rows.reshape(1, 32, -(-colours.size // 32))
    # Where each of 32 colours begins in each word; shifts by 32 or more leave nothing.
    at = bits * np.arange(32) - 32 * np.arange(bits)[:, None]
    up, down = (np.where(a >= 0, a, 32).astype(np.uint32)[:, :, None] for a in (at, -at))
    return jnp.where(at[:, :, None] >= 0, rows << up, rows >> down).sum(1, dtype=jnp.uint32)


def _unpack(words, size):
    bits = words.shape[0]
    word, shift = np.divmod(bits * np.arange(32), 32)
    after = words[np.minimum(word + 1, bits - 1)] << (32 - shift).astype(np.uint32)[:, None]
    colours = (words[word] >> shift.astype(np.uint32)[:, None]) | after
    return (colours & (2**bits - 1)).ravel()[:size].astype(jnp.int32)


def as_vector(x) -> jax.Array:
    x = jnp.asarray(x, jnp.float32)
    if x.ndim != 1:
        raise ValueError(
            f"lattice: got an array of shape {x.shape}; flatten it, or a tree with ravel_floats, "
            "and map over workers with jax.vmap"
        )
    return x


def as_sides(side, count) -> jax.Array:
    side = jnp.asarray(side, jnp.float32)
    if side.shape not in ((), (count,)):
        raise ValueError(
            f"lattice: got sides or bounds of shape {side.shape} for {count} buckets; "
            f"pass a scalar or [{count}], or the bucket size that they were made for"
        )
    return jnp.broadcast_to(side, (count,))


def longest_bucket(size, count) -> int:
    """Coordinates in every one of ``count`` buckets but the last."""
    return -(-size // max(count, 1))


def by_bucket(x, count) -> jax.Array:
    """[size] -> [count, n], with zeros at the end."""
    longest = longest_bucket(x.size, count)
    return jnp.pad(x, (0, count * longest - x.size)).reshape(count, longest)


def spread(mask, size) -> jax.Array:
    """[count] -> [size], the inverse of ``by_bucket`` for one value per row."""
    return jnp.repeat(mask, longest_bucket(size, mask.size))[:size]


def _check_bits(bits):
    if not BITS[0] <= bits <= BITS[1] or bits != int(bits):
        raise ValueError(
            f"lattice: {bits} bits a coordinate; set an integer from {BITS[0]} to {BITS[1]}, "
            "or send the values themselves"
        )
    return bits
