"""Lattice codec: a vector in b bits a coordinate, for a receiver with a vector near it.

The sender rounds x to integers k = round(x / s) and sends k mod q, q = 2^b: the point's *colour*.
The receiver takes the lattice point of that colour nearest to its own reference. The error depends
on the side s alone, not on ||x||, but beyond a radius (q - 1) s / 2 of the reference the result is
off by multiples of q s, and looks like a correct one. A checksum of the whole k, one per bucket of
coordinates, detects this. Davies et al., arXiv 2002.09268; for gossip: SwarmSGD, arXiv 1910.12308.

A bucket has its own side, checksum and row of the message. All functions are pure, with static
shapes, for one vector [size] as rows [buckets, n]; `jax.vmap` gives many.

In a conversation both send their vector at once, in few bits, then a bit per bucket: set if it
could not be read. Unreadable buckets go again with more levels, and at last in full precision, so
that finite numbers always arrive. The workers of an axis converse in pairs in one program, and
climb together: a repetition has one of a few sizes, 1, 4, 16, ... buckets, large enough for the
pair that needs most. Under `jax.vmap` and `jax.shard_map`, and in programs of their own, pairs find
the same bits.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from comms.hashing import lowbias32

BUCKET = 1024  # coordinates: the header is then 1.2 % of a message of 8 bits
BITS = (2, 16)
HEADER_BYTES = 12  # bytes of a bucket's header: two sums and the side
_LIMIT = 2.0**22  # |x / s| from which float32 steps of x are no longer small against s
_FINEST = 2.0**-21  # side relative to the largest |x| of the bucket: below _LIMIT with room
_SIDES = (2.0**-126, 2.0**126)  # both s and 1 / s are normal numbers
_SEEDS = (0x9E3779B9, 0x3C6EF372)
_INFINITE = np.uint32(0x7F800000)  # bits of a float32; a NaN's bits are a larger number


def buckets(size: int, bucket: int = BUCKET) -> int:
    """Return the number of buckets of at most `bucket` coordinates that a vector is cut into.

        >>> buckets(10_000)
        10
    """
    if bucket < 1:
        raise ValueError(f"lattice: bucket = {bucket} holds no coordinate; set bucket >= 1")
    return -(-size // bucket)


def in_buckets(vector, bucket: int = BUCKET) -> jax.Array:
    """Cut [size] into [buckets, n]: parts as equal as can be, the last one filled up with zeros."""
    vector = jnp.asarray(vector, jnp.float32)
    if vector.ndim != 1:
        raise ValueError(
            f"lattice: got an array of shape {vector.shape}; flatten it, or a tree with "
            "ravel_floats, and map over workers with jax.vmap"
        )
    count = buckets(vector.size, bucket)
    n = -(-vector.size // max(count, 1))
    return jnp.pad(vector, (0, count * n - vector.size)).reshape(count, n)


def flat(rows, size: int) -> jax.Array:
    """Return [buckets, n] as [size], the inverse of `in_buckets`."""
    return rows.ravel()[:size]


def row_bytes(n: int, bits: int) -> int:
    """Return the bytes of a bucket of n coordinates: 12, and n * bits / 8 in whole bytes."""
    return HEADER_BYTES + sum(-(-n * width // 8) for width in _planes(bits))


def payload_bytes(size: int, bits: int, bucket: int = BUCKET) -> int:
    """Return the bytes of a vector's message, whose buckets have equal length.

        >>> payload_bytes(10_000, bits=8)
        10120
    """
    count = buckets(size, bucket)
    return count * row_bytes(-(-size // max(count, 1)), bits)


def side_for(bound, bits: int, stochastic: bool = False) -> jax.Array:
    """Return the side s whose `radius` is `bound`: 2 y / (q - 1), if stochastic 2 y / (q - 2).

    bound: y >= max |x - reference|, a number or an array. arXiv 2002.09268.
    """
    return jnp.asarray(bound, jnp.float32) * np.float32(1 / radius(1.0, bits, stochastic))


def radius(side, bits: int, stochastic: bool = False) -> jax.Array:
    """Return the distance |x - reference| below which every coordinate decodes rightly.

    (q - 1) s / 2, or (q / 2 - 1) s for stochastic rounding, which moves x by up to s, not s / 2.
    """
    levels = 2 ** _check_bits(bits)
    return side * (levels / 2 - (1 if stochastic else 0.5))


def encode(rows, side, bits: int, noise=None) -> tuple[jax.Array, jax.Array]:
    """Return (message uint8 [buckets, bytes], points [buckets, n]): colours and their points.

    rows: float32 [buckets, n]; side: s, scalar or [buckets]; bits: 2 to 16. The points are the
    lattice points nearest to x, |error| <= s / 2. With noise, uniform in [0, 1) and of the shape of
    the rows, they are unbiased random ones: |error| < s, variance <= s^2 / 4. A side below 2^-21 of
    the bucket's largest |x|, which float32 does not resolve, is raised to that. A bucket that holds
    NaN or infinity, or has an impossible side, is *void*: no reference decodes it, and its points
    are its x. Raises ValueError for other bits or shapes.
    """
    _check_bits(bits)
    count = rows.shape[0]
    side = jnp.asarray(side, jnp.float32)
    if side.shape not in ((), (count,)):
        raise ValueError(
            f"lattice: got sides or bounds of shape {side.shape} for {count} buckets; "
            f"pass a scalar or [{count}]"
        )
    largest = _largest_bits(rows)
    sound = (largest < _INFINITE) & _usable(side)
    finest = jax.lax.bitcast_convert_type(largest, jnp.float32) * np.float32(_FINEST)
    side = jnp.where(sound, jnp.maximum(side, finest), jnp.nan)
    scaled = _scale(rows, side)
    if noise is None:
        k = jnp.round(scaled)
    else:
        # floor(x / s + u), without a sum whose rounding would be a bias where |x / s| is large.
        k = jnp.floor(scaled)
        k += noise < scaled - k
    # The choice keeps compilers from fusing a product and a later sum into one rounding.
    points = jnp.where(sound[:, None], k * side[:, None], rows)
    k = k.astype(jnp.int32)
    header = jnp.concatenate(
        [_checksum(k), jax.lax.bitcast_convert_type(side, jnp.uint32)[:, None]], 1
    )
    header = jax.lax.bitcast_convert_type(header, jnp.uint8).reshape(count, HEADER_BYTES)
    return jnp.concatenate([header, *_pack(k, bits)], 1), points


def decode(message, rows, bits: int) -> tuple[jax.Array, jax.Array]:
    """Return (points [buckets, n], ok [buckets]): the points of these colours nearest to `rows`.

    rows: float32 [buckets, n], the receiver's own. ok: True where the bucket's points are exactly
    the sender's; elsewhere the points are `rows`. A wrong bucket seems right once in
    about 2^(62 - 2 bits). Raises ValueError if the message is of another size.
    """
    count, n = rows.shape
    if message.shape != (count, row_bytes(n, bits)):
        raise ValueError(
            f"lattice: a message {message.shape} meets a reference of {count} buckets of {n} in "
            f"{bits} bits; decode against a vector of the sender's size"
        )
    side, checksum = _side(message), _words(message[:, :8])
    scaled = _scale(rows, side)
    colours = _unpack(message[:, HEADER_BYTES:], n, bits)
    turns = jnp.round((scaled - colours.astype(jnp.float32)) * np.float32(0.5**bits))
    k = colours + (turns.astype(jnp.int32) << bits)
    # A reference too far off to be scaled decodes a wrong point, as any distant one.
    ok = _usable(side) & (_checksum(k) == checksum).all(1)
    return jnp.where(ok[:, None], k.astype(jnp.float32) * side[:, None], rows), ok


def is_void(message) -> jax.Array:
    """Return True, [buckets], for buckets that the sender marks as void."""
    return jnp.isnan(_side(message))


def bound_of(message, bits: int, stochastic: bool = False) -> jax.Array:
    """Return the distance [buckets] up to which a message decodes, from its side."""
    return radius(_side(message), bits, stochastic)


def ravel_floats(tree) -> tuple[jax.Array, Callable]:
    """Return (vector [size] float32, restore): a pytree's float leaves, and the way back.

    restore(vector) is the tree with these values in its own shapes and dtypes. Other leaves, and
    float64 entries whose float32 value has not changed, stay as they are.
    """

    def is_float(x):
        return jnp.issubdtype(jnp.result_type(x), jnp.floating)

    def put(x, y):
        if not is_float(x):
            return x
        new = y.astype(x.dtype)
        return jnp.where(y == x.astype(y.dtype), x, new) if x.dtype == jnp.float64 else new

    def restore(vector):
        return jax.tree.map(put, tree, unravel(vector))

    nothing = jnp.zeros(0, jnp.float32)
    vector, unravel = ravel_pytree(
        jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) if is_float(x) else nothing, tree)
    )
    return vector, restore


def largest(rows) -> jax.Array:
    """Return max |x| of every bucket, [buckets], infinite or NaN if one of its entries is."""
    return jax.lax.bitcast_convert_type(_largest_bits(rows), jnp.float32)


def _largest_bits(rows):
    """Return `largest` in bits, which are ordered alike and compared faster; 0 if empty."""
    bits = jax.lax.bitcast_convert_type(rows, jnp.uint32) & np.uint32(0x7FFFFFFF)
    return bits.max(1, initial=0)


def _usable(side):
    return (side >= _SIDES[0]) & (side <= _SIDES[1])  # false for NaN


def _scale(rows, side):
    """Return x / s, or 0 where it is out of range or the side is not usable."""
    inverse = jnp.where(_usable(side), 1 / side, 0)
    scaled = rows * inverse[:, None]
    # As in `encode`, the choice also makes jitted results equal to results without jit.
    return jnp.where(jnp.abs(scaled) < _LIMIT, scaled, 0)


def _side(message):
    return jax.lax.bitcast_convert_type(_words(message[:, 8:HEADER_BYTES])[:, 0], jnp.float32)


def _words(octets):
    """View uint8 [buckets, 4 m] as uint32 [buckets, m]."""
    count, size = octets.shape
    return jax.lax.bitcast_convert_type(octets.reshape(count, size // 4, 4), jnp.uint32)


def _checksum(k):
    """Return two sums [buckets, 2] of k [buckets, n] times odd random weights, modulo 2^32.

    One coordinate of k that is wrong by q is always seen: an odd weight times q is not 0.
    """
    places = np.arange(k.shape[1], dtype=np.uint32)
    odd = [lowbias32(places + np.uint32(seed)) | np.uint32(1) for seed in _SEEDS]
    weighted = [k.astype(jnp.uint32) * weights[None] for weights in odd]
    # One reduction of both: XLA on CPU fuses two reductions into one loop, which is 30 times
    # slower.
    zero = np.uint32(0)
    sums = jax.lax.reduce(weighted, [zero, zero], lambda a, b: [a[0] + b[0], a[1] + b[1]], (1,))
    return jnp.stack(sums, 1)


def _planes(bits: int) -> list[int]:
    """Return the widths of a colour's fields, lowest first: whole bytes, then 4, 2, 1."""
    _check_bits(bits)
    return [8] * (bits // 8) + [width for width in (4, 2, 1) if bits & width]


def _pack(k, bits: int) -> list[jax.Array]:
    """Return the fields of k mod q as uint8 [buckets, ceil(n * width / 8)] each.

    A byte holds the fields of coordinates that lie ceil(n * width / 8) apart, the first lowest. In
    two's complement the lowest bits of k are k mod q, also for a negative k.
    """
    planes, shift = [], 0
    for width in _planes(bits):
        each = 8 // width
        m = -(-k.shape[1] // each)
        field = ((k >> shift) & (2**width - 1)).astype(jnp.uint8)
        field = jnp.pad(field, ((0, 0), (0, each * m - k.shape[1])))
        parts = [field[:, i * m : (i + 1) * m] << np.uint8(width * i) for i in range(each)]
        planes.append(sum(parts[1:], parts[0]))
        shift += width
    return planes


def _unpack(octets, n: int, bits: int):
    """Unpack uint8 [buckets, bytes] into int32 [buckets, n]."""
    colours, shift, begin = 0, 0, 0
    for width in _planes(bits):
        each = 8 // width
        m = -(-n // each)
        plane = octets[:, begin : begin + m]
        parts = [(plane >> np.uint8(width * i)) & np.uint8(2**width - 1) for i in range(each)]
        field = jnp.concatenate(parts, 1)[:, :n]
        colours += field.astype(jnp.int32) << shift
        shift, begin = shift + width, begin + m
    return colours


def _check_bits(bits):
    if not BITS[0] <= bits <= BITS[1] or bits != int(bits):
        raise ValueError(
            f"lattice: {bits} bits a coordinate; set an integer from {BITS[0]} to {BITS[1]}, "
            "or send the values themselves"
        )
    return bits


MARGIN = 2.0  # factor from the largest recent distance to the bound
DECAY = 0.9  # share of the bound that is kept after a conversation
GROWTH = 4  # factor of the number of repeated buckets, from one size to the next
WIDER = 4.0  # factor of the side at the second try, where q^2 levels do not fit into a colour


class Wire(NamedTuple):
    """Communication of a worker with its partner, and with the other pairs of the axis."""

    swap: Callable[[Any], Any]  # a tree -> the partner's; one's own, without a partner
    agree: Callable[[jax.Array], jax.Array]  # a number -> the largest over the axis
    met: jax.Array  # [] bool, true with a partner
    lockstep: bool  # every pair repeats as much as the one that needs most


class Report(NamedTuple):
    """Statistics of a conversation at one of its workers, and the bounds for the next one."""

    bound: jax.Array  # [buckets] float32, expected max |x - reference| of the next one
    failed: jax.Array  # int32, buckets that were sent again
    full_precision: jax.Array  # int32, buckets sent in float32 at last
    skipped: jax.Array  # int32, buckets that were not finite at one of the two
    extra_messages: jax.Array  # int32, beyond a first message and its answer
    extra_bytes: jax.Array  # float32, bytes of these


class _Known(NamedTuple):
    """Vectors as the two workers know them between two tries."""

    mine: jax.Array  # [buckets, n], as the partner reads it
    theirs: jax.Array  # [buckets, n], as read here
    missing: jax.Array  # [buckets] bool, the buckets of theirs that could not be read


class _Rung(NamedTuple):
    """Encoding of the buckets that one try sends again."""

    send: Callable  # (rows, their indices) -> (message, points)
    read: Callable  # (message, reference) -> (points, ok)
    row_bytes: int


def converse(rows, bound, wire: Wire, bits: int, key=None) -> tuple[jax.Array, Report]:
    """Return (theirs - mine [buckets, n], Report): the difference of two vectors as both read them.

    rows: float32 [buckets, n], one's own vector; bound: [buckets], expected |x - reference|;
    key: for unbiased rounding, None: to the nearest point. The partner gets the same numbers with
    the other sign, so that both can add any share of them and keep their sum. A bucket that is not
    finite at one of the two is left out: its difference is 0. Raises ValueError as `lattice.encode`
    does.
    """
    count, n = rows.shape
    stochastic = key is not None
    side = side_for(bound, bits, stochastic)
    first = _coded(side, bits, n, key, 0)
    message, mine = first.send(rows, jnp.arange(count))
    heard = wire.swap(message)
    theirs, ok = first.read(heard, rows)
    void = is_void(message) | is_void(heard)
    known = _Known(mine, theirs, wire.met & ~ok & ~void)
    asked, needed, spent = _ask(known.missing, wire)
    failed = asked.sum(dtype=jnp.int32)

    wide = min(2 * bits, BITS[1])
    more = _coded(side * (1.0 if wide == 2 * bits else WIDER), wide, n, key, 1)
    whole = _Rung(lambda rows, _: (rows, rows), lambda message, _: (message, True), 4 * n)

    def found(known):
        difference = jnp.where(void[:, None], 0, known.theirs - known.mine)
        return difference, largest(known.theirs - rows)

    # Both branches compute the final results: otherwise `cond` would copy whole vectors.
    def climb(known):
        known = _send_again(more, known, rows, asked, needed, wire)
        last, still_needed, still_spent = _ask(known.missing, wire)
        known = _send_again(whole, known, rows, last, still_needed, wire)
        return *found(known), last.sum(dtype=jnp.int32), still_spent

    def rest(known):
        return *found(known), jnp.zeros_like(failed), jnp.zeros_like(spent)

    difference, distance, full_precision, still_spent = jax.lax.cond(needed > 0, climb, rest, known)
    heard_bound = bound_of(heard, bits, stochastic)
    return difference, Report(
        bound=next_bound(bound, heard_bound, distance),
        failed=failed,
        full_precision=full_precision,
        skipped=(wire.met & void).sum(dtype=jnp.int32),
        extra_messages=2 * (spent > 0).astype(jnp.int32) + (still_spent > 0),
        extra_bytes=_resent(spent, count, more.row_bytes)
        + jnp.where(spent > 0, flag_bytes(count), 0)
        + _resent(still_spent, count, whole.row_bytes),
    )


def next_bound(bound, heard, distance) -> jax.Array:
    """Return the bound [buckets] for the next partner: `MARGIN` times the largest recent distance.

    bound: the last one; heard: the partner's bound, which remembers other meetings; distance: max
    |theirs - x| of this conversation. Values that are not finite do not count.
    """
    heard, distance = (jnp.where(jnp.isfinite(a), a, 0) for a in (heard, distance))
    following = jnp.maximum(DECAY * jnp.maximum(bound, heard), MARGIN * distance)
    # Sides stay normal numbers for any bits; float32 cannot hold larger distances anyhow.
    return jnp.clip(following, 2.0**-100, 2.0**100)


def flag_bytes(count: int) -> int:
    """Return the bytes of an answer: a bit per bucket, set if it could not be read."""
    return -(-count // 8)


def _sizes(count: int) -> list[int]:
    """Return the numbers of buckets that may be sent again at once: 1, 4, 16, ... and all."""
    found = []
    while count > (found[-1] if found else 0):
        found.append(min(GROWTH ** len(found), count))
    return found


def _coded(side, bits: int, n: int, key, rung: int) -> _Rung:
    """Return the rung of colours of `bits`; side: [buckets] of all buckets, sent or not."""

    def send(rows, index):
        noise = None
        if key is not None:  # addressed by the bucket, not by the number of sent buckets
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, rung), index)
            noise = jax.vmap(lambda key: jax.random.uniform(key, (n,), jnp.float32))(keys)
        return encode(rows, _taken(side, index), bits, noise)

    return _Rung(send, functools.partial(decode, bits=bits), row_bytes(n, bits))


def _ask(missing, wire: Wire):
    """Return (the partner's missing buckets, most that any pair misses, number for the report)."""
    count = missing.shape[0]
    asked = jnp.unpackbits(wire.swap(jnp.packbits(missing)), count=count).astype(bool)
    pair = jnp.maximum(missing.sum(dtype=jnp.int32), asked.sum(dtype=jnp.int32))
    needed = wire.agree(pair)
    return asked, needed, needed if wire.lockstep else pair


def _send_again(rung: _Rung, known: _Known, rows, asked, needed, wire: Wire) -> _Known:
    """Return the knowledge once each of a pair has sent at most `needed` buckets again."""
    count = rows.shape[0]

    def of_size(size: int):
        def branch(known):
            out, into = (
                jnp.nonzero(mask, size=size, fill_value=count)[0] for mask in (asked, known.missing)
            )
            message, points = rung.send(_taken(rows, out), out)
            found, ok = rung.read(wire.swap(message), _taken(rows, into))
            return _Known(
                known.mine.at[out].set(points, mode="drop"),
                known.theirs.at[into].set(found, mode="drop"),
                known.missing.at[into].set(jnp.logical_not(ok), mode="drop"),
            )

        return branch

    branches = [lambda known: known, *(of_size(size) for size in _sizes(count))]
    return jax.lax.switch(_which(needed, count), branches, known)


def _taken(array, index):
    return array.at[index].get(mode="fill", fill_value=0)


def _which(needed, count: int):
    """Return 0 for nothing, else 1 + the index of the smallest size that holds as many."""
    return jnp.searchsorted(np.array([0, *_sizes(count)]), needed).astype(jnp.int32)


def _resent(needed, count: int, row_bytes: int):
    return row_bytes * jnp.asarray([0, *_sizes(count)], jnp.float32)[_which(needed, count)]
