"""Fewer bits per entry: QSGD, natural compression, signs, few-bit numbers, all-reduces of codes.

An array of any shape and float dtype is seen as a flat vector of `size` entries; decoders give
float32 [size]. Messages of QSGD, natural compression and signs cannot be added: every worker
gathers all and adds the decoded vectors. Every message has a scale per stretch, a run of entries;
one entry that is not finite makes this scale, and so the whole stretch, not finite.

An all-reduce in two phases sends codes twice and adds values in float32. Every worker sends each
chunk of its array to the worker of this chunk (all-to-all), which adds them and sends the sum to
all (all-gather). So 2 (n - 1) / n of an array of codes are sent, as by a ring. Each contribution is
rounded once, and the sum once; the order of additions is the same in all runtimes.

Short floats, bfloat16 and float16, are codes that travel as unsigned integers. XLA on CPU widens
collectives of bfloat16 to float32, and may leave out a conversion there and back; it does neither
with integers. Rounding is to the nearest, ties to even, as NumPy and `ml_dtypes` do; a value that
is not finite stays as it is, and a finite one stays finite. Numbers of 8 and 4 bits, whole or
floats, have a scale per block; a block with an entry that is not finite is read as NaN.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap, hashing
from comms.collectives import AXIS


class Codec(NamedTuple):
    """Codec of float32 rows, each of which is coded independently."""

    encode: Callable[[jax.Array, Any], Any]  # (float32 [rows, m], key or None) -> [rows, ...] each
    decode: Callable[[Any, int], jax.Array]  # (message, m) -> float32 [rows, m]
    payload_bytes: Callable[[int], int]  # m -> bytes of one row's message


class Reduced(NamedTuple):
    """Results of an all-reduce, as a worker knows them."""

    total: jax.Array  # x's shape, float32: the sum over the workers, equal on all of them
    sent: jax.Array  # x's shape, float32: this worker's x as the others read it
    left: jax.Array  # float32 [chunk]: the sum of this worker's chunk less its decoded code


def two_phase_all_reduce(x, codec: Codec, axis: str = AXIS, key=None, owed=None) -> Reduced:
    """Sum an array of any shape over the workers; codes are sent twice.

    key: this worker's key, for codecs that round at random. owed: float32 [chunk], added to the sum
    of this worker's chunk before it is encoded. A single worker sends and rounds nothing.
    """
    workers = jax.lax.axis_size(axis)
    flat = jnp.ravel(x).astype(jnp.float32)
    chunk = chunk_entries(x.size, workers)
    if workers == 1 or x.size == 0:
        whole = flat if owed is None else flat + owed
        return Reduced(whole.reshape(x.shape), flat.reshape(x.shape), jnp.zeros(chunk))
    chunks = jnp.pad(flat, (0, workers * chunk - x.size)).reshape(workers, chunk)
    keys = (None, None) if key is None else jax.random.split(key)
    message = codec.encode(chunks, keys[0])
    received = jax.lax.all_to_all(message, axis, split_axis=0, concat_axis=0)
    mine = sum_by_halves(codec.decode(received, chunk))
    if owed is not None:
        mine = mine + owed
    place = jax.lax.axis_index(axis) * chunk + jnp.arange(chunk)
    mine = jnp.where(place < x.size, mine, 0)  # some codes have no zero for the padding
    written = codec.encode(mine[None], keys[1])
    rows = jax.tree.map(lambda a: a[0], written)
    total = codec.decode(jax.lax.all_gather(rows, axis), chunk)
    left = jnp.where(place < x.size, mine - codec.decode(written, chunk)[0], 0)
    total, sent = (
        rows.ravel()[: x.size].reshape(x.shape) for rows in (total, codec.decode(message, chunk))
    )
    return Reduced(total, sent, left)


def ring_all_reduce(
    x, encode: Callable, decode: Callable, axis: str = AXIS, keys=None
) -> tuple[jax.Array, jax.Array]:
    """Return the sum of an array of any shape over the workers, and this worker's part of it.

    Every hop of a ring decodes a message, adds the worker's own chunk in float32 and encodes the
    next message, so that a value is rounded n times, and no worker holds the messages of all
    others. encode: (float32 [m], key or None) -> message; decode: (message, m) -> float32 [m].
    keys: from `hop_keys`. A part is x less its worker's rounding errors, so that the parts add up
    to the sum.
    """
    workers, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    flat = jnp.ravel(x).astype(jnp.float32)
    if workers == 1 or x.size == 0:
        return (flat.reshape(x.shape),) * 2
    to_next = [(i, (i + 1) % workers) for i in range(workers)]
    chunk = chunk_entries(x.size, workers)
    chunks = jnp.pad(flat, (0, workers * chunk - x.size)).reshape(workers, chunk)

    def read(message):
        return apart(decode(message, chunk))

    def write(held, hop):
        place = (me - hop) % workers * chunk + jnp.arange(chunk)
        held = jnp.where(place < x.size, held, 0)  # some codes have no zero for the padding
        message = encode(held, None if keys is None else keys[hop])
        return message, held - read(message)

    def add(message, hop):
        heard = jax.lax.ppermute(message, axis, to_next)
        return write(read(heard) + chunks[(me - hop) % workers], hop)

    def pass_on(message, _):
        heard = jax.lax.ppermute(message, axis, to_next)
        return heard, read(heard)

    message, first = write(chunks[me], 0)
    message, others = jax.lax.scan(add, message, jnp.arange(1, workers))
    _, values = jax.lax.scan(pass_on, message, None, workers - 1)
    # Errors are of the chunks me, me - 1, ..., and sums of the chunks me + 1, me, ...
    order = me - jnp.arange(workers)
    errors = jnp.concatenate([first[None], others])[order % workers]
    total = jnp.concatenate([read(message)[None], values])[(order + 1) % workers]
    total, errors = (rows.ravel()[: x.size].reshape(x.shape) for rows in (total, errors))
    return total, flat.reshape(x.shape) - errors


def hop_keys(key, axis: str = AXIS) -> jax.Array:
    """Return the keys [n] with which a worker rounds in the hops of a ring."""
    return jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(jax.lax.axis_size(axis)))


def apart(value) -> jax.Array:
    """Return a decoded value; the choice keeps compilers from fusing its product with a sum."""
    return jnp.where(jnp.isfinite(value), value, jnp.nan)


def at_own_chunk(left, size: int, axis: str = AXIS) -> jax.Array:
    """Return float32 [size], `left` at this worker's chunk and 0 elsewhere."""
    everywhere = jnp.zeros(jax.lax.axis_size(axis) * left.size, left.dtype)
    start = jax.lax.axis_index(axis) * left.size
    return jax.lax.dynamic_update_slice(everywhere, left, (start,))[:size]


def chunk_entries(size: int, workers: int) -> int:
    """Return the entries of the chunk that a worker adds up.

        >>> chunk_entries(10, workers=4)
        3
    """
    return -(-size // workers)


def two_phase_bytes(size: int, workers: int, codec: Codec) -> int:
    """Return the bytes of the codes of all chunks; 2 (n - 1) / n are sent as by a ring."""
    return workers * codec.payload_bytes(chunk_entries(size, workers)) if size else 0


def sum_by_halves(rows) -> jax.Array:
    """Sum over the first axis by halves: an order of additions that is the same everywhere."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = jnp.concatenate([rows[:half] + rows[half : 2 * half], rows[2 * half :]])
    return rows[0]


TOP = 14  # power of two of the largest entry of a row of float16; rounded up it is 2^15
LEAST_SHIFT = TOP - 127  # of a row whose largest entry is next to the end of float32


def bfloat16_encode(x, key=None) -> jax.Array:
    """Return the bits of x, uint16 of x's shape; larger values become the largest bfloat16."""
    del key
    bits = _bits(x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    magnitude = bits & 0x7FFFFFFF
    rounded = jnp.where((rounded & 0x7FFF) == 0x7F80, bits >> 16, rounded)  # next to infinity
    not_a_number = (bits >> 16) | 0x40
    return jnp.where(magnitude > 0x7F800000, not_a_number, rounded).astype(jnp.uint16)


def bfloat16_decode(message, entries: int) -> jax.Array:
    """Return the values, float32 of the message's shape, exactly."""
    del entries
    return jax.lax.bitcast_convert_type(message.astype(jnp.uint32) << 16, jnp.float32)


def float16_encode(x, key=None) -> jax.Array:
    """Return the bits of 2^shift x, uint16 [rows, 1 + m], each row after its shift + 127.

    The largest finite entry of a row is scaled to 2^14 ... 2^15, so that none becomes infinite and
    entries down to 2^-29 of the largest have 11 bits.
    """
    del key
    magnitudes = jnp.where(jnp.isfinite(x), jnp.abs(x), 0)
    exponent = (_bits(magnitudes.max(axis=-1, keepdims=True, initial=0)) >> 23).astype(jnp.int32)
    shift = jnp.minimum(TOP + 127 - exponent, 126)  # [rows, 1]
    # With the least shift 2^15 would be read as infinity: the next number below replaces it.
    most = jnp.where(shift == LEAST_SHIFT, jnp.uint32(0x77FF), jnp.uint32(0x7BFF))
    codes = _float16_bits(x * power_of_two(shift), most)
    return jnp.concatenate([(shift + 127).astype(jnp.uint16), codes], axis=-1)


def float16_decode(message, entries: int) -> jax.Array:
    """Return the values, float32 [rows, m]."""
    del entries
    shift = message[:, :1].astype(jnp.int32) - 127
    values = jax.lax.bitcast_convert_type(message[:, 1:], jnp.float16)
    return values.astype(jnp.float32) * power_of_two(-shift)


def power_of_two(exponent) -> jax.Array:
    """Return 2^exponent, exactly, for the exponents -126 ... 127 of normal float32."""
    return jax.lax.bitcast_convert_type((exponent + 127).astype(jnp.int32) << 23, jnp.float32)


def _float16_bits(x, most) -> jax.Array:
    """Return the bits of the float16 nearest to x, uint16; finite ones at most `most`."""
    bits = _bits(x)
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude - (112 << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    # Added to 1/2, numbers below 2^-14 are rounded to multiples of 2^-24, as float16 has them.
    small = _bits(jnp.abs(x) + 0.5) - _bits(jnp.float32(0.5))
    code = jnp.minimum(jnp.where(magnitude < 113 << 23, small, normal), most)
    not_finite = 0x7C00 + ((magnitude > 0x7F800000).astype(jnp.uint32) << 9)
    code = jnp.where(magnitude >= 0x7F800000, not_finite, code)
    return (code | ((bits >> 16) & 0x8000)).astype(jnp.uint16)


def _bits(x) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


BFLOAT16 = Codec(bfloat16_encode, bfloat16_decode, lambda entries: 2 * entries)
FLOAT16 = Codec(float16_encode, float16_decode, lambda entries: 2 * (entries + 1))


_PART = 1 << 18  # entries that QSGD rounds at a time, such that they fit into a cache
_BLOCKS = 1 << 14  # entries of blocks that are coded at a time, for the cache of a core


def _in_parts() -> bool:
    """Return True if parts pay: on accelerators every turn of a loop waits for its kernels."""
    return jax.default_backend() == "cpu"


class Quantised(NamedTuple):
    """Message: packed or short codes of all entries, and a scale per stretch of entries."""

    codes: jax.Array  # uint32 words of QSGD and signs, uint8 [size], or [rows, blocks, k] of blocks
    scale: jax.Array  # of QSGD [stretches], of blocks [rows, blocks], else scalar


def all_gather_sum(message: Quantised, decode, axis: str = AXIS) -> jax.Array:
    """Sum `decode(message)` over the workers: every message goes to every worker."""
    return jax.vmap(decode)(jax.lax.all_gather(message, axis)).sum(axis=0)


def qsgd(x, levels: int, key, bucket: int = 512) -> Quantised:
    """Round entries at random to whole multiples of norm / levels, without bias.

    The norm is the Euclidean one of each stretch of `bucket` entries; the key differs between
    workers and steps. A code has the bits of 2 levels + 1 values. Alistarh et al., arXiv
    1610.02132, section 3. Raises ValueError unless 1 <= levels <= 2^15 - 1.
    """
    bits = qsgd_bits(levels)
    x = jnp.ravel(x).astype(jnp.float32)

    def coded(first, entries):
        stretches = _stretches(entries, bucket)
        draws = hashing.uniform(key, stretches.shape, first)
        return _qsgd_codes(stretches, levels, draws)

    if x.size < 32 * bucket or not _in_parts():
        codes, scale = coded(0, x)
        return Quantised(bitmap.pack_codes(codes.ravel()[: x.size], bits), scale)
    codes, scale = _part_by_part(coded, x, bucket)
    per_word = 32 // bits
    codes = codes.ravel()[: -(-x.size // per_word) * per_word]
    return Quantised(bitmap.pack_codes(codes, bits), scale.ravel()[: -(-x.size // bucket)])


def qsgd_decode(message: Quantised, size: int, levels: int, bucket: int = 512) -> jax.Array:
    """Return the vector, float32 [size], of whole multiples of norm / levels."""
    level = bitmap.unpack_codes(message.codes, qsgd_bits(levels), size).astype(jnp.int32) - levels
    stretches = _stretches(level, bucket)
    return (stretches * (message.scale / levels)[:, None]).ravel()[:size]


def qsgd_bits(levels: int) -> int:
    """Return the bits of a code, which has 2 levels + 1 values.

        >>> qsgd_bits(levels=7)
        4
    """
    if not 1 <= levels < 2**15:
        raise ValueError(f"qsgd: levels must be 1 to 32767, got {levels}; 7 make codes of 4 bits")
    return (2 * levels).bit_length()


def qsgd_payload_bytes(size: int, levels: int, bucket: int = 512) -> int:
    """Return the bytes of packed codes and norms, which every worker gathers from all.

        >>> qsgd_payload_bytes(1024, levels=7)  # 4 bits an entry, 2 norms
        520
    """
    words = -(-size // (32 // qsgd_bits(levels)))
    return 4 * words + 4 * -(-size // bucket)


def natural(x, key) -> Quantised:
    """Round entries at random to a power of two next to them, without bias.

    A code holds the sign and 7 bits of exponent below the largest one; entries 2^-125 times
    smaller become 0 or this power, and powers above 2^127 become 2^127. Horvath et al., arXiv
    1905.10988, section 2.
    """
    x = jnp.ravel(x).astype(jnp.float32)
    largest = peak(x, initial=0)
    top, _ = _exponent(largest)
    exponent, above = _exponent(x)
    chance = hashing.uniform(key, x.shape)
    below = top - exponent  # number of powers of two from the largest down to the entry
    up = (chance < above) & (exponent < 127)  # to what float32 has
    code = jnp.where(up, 1, 2) + below
    # Between 0 and the smallest power: up with their ratio as the probability.
    smallest = power_of_two(jnp.clip(125 - below, -126, 0)) * (1 + above)
    code = jnp.where(below > 125, jnp.where(chance < smallest, 127, 0), code)
    scale = jnp.where(largest > 0, power_of_two(top), 0)
    finite = jnp.isfinite(largest)
    code = jnp.where((x != 0) & finite, code, 0) + 128 * (x < 0)
    return Quantised(code.astype(jnp.uint8), jnp.where(finite, scale, jnp.nan))


def natural_decode(message: Quantised) -> jax.Array:
    """Return the vector, float32 [size], of signed powers of two and zeros."""
    code = message.codes.astype(jnp.int32)
    exponent = 2 - code % 128  # code 1 is twice the scale, code 2 the scale, 3 half of it ...
    magnitude = jnp.where(code % 128 == 0, 0, power_of_two(exponent)) * message.scale
    return jnp.where(code >= 128, -magnitude, magnitude)


def natural_payload_bytes(size: int) -> int:
    """Return the bytes of a message, one per entry and a scale, which every worker gathers."""
    return size + 4


def sign(x) -> Quantised:
    """Encode one bit per entry, set where it is negative, and the mean magnitude.

    Biased: meant for error feedback. Karimireddy et al., arXiv 1901.09847, Algorithm 1. A zero
    counts as positive: for dense leaves.
    """
    x = jnp.ravel(x).astype(jnp.float32)
    scale = 0.5 ** x.size.bit_length()  # changes no bit, and no sum overflows
    return Quantised(bitmap.pack(x < 0), (scale * jnp.abs(x)).sum() / (scale * max(x.size, 1)))


def sign_decode(message: Quantised, size: int) -> jax.Array:
    """Return the vector, float32 [size], of plus and minus the mean magnitude.

        >>> sign_decode(sign(jnp.array([1.0, -3.0])), 2).tolist()
        [2.0, -2.0]
    """
    negative = bitmap.unpack(message.codes, size)
    return jnp.where(negative, -message.scale, message.scale)


def sign_payload_bytes(size: int) -> int:
    """Return the bytes of a message, a bit per entry and a scale, which every worker gathers."""
    return bitmap.payload_bytes(size) + 4


def block_codec(
    scale_of: Callable, code: Callable, read: Callable, code_bytes: Callable, bucket: int
) -> Codec:
    """Return a codec of rows that are cut into blocks of `bucket` entries, each with a scale.

    scale_of: (float32 [..., width], True for random rounding) -> scales [...]; code: (float32
    [..., width], scales, draws in [0, 1) or None) -> codes [..., k]; read: (Quantised, width) ->
    float32 [..., width]; code_bytes: width -> bytes of a block's codes and scale.
    """

    def cut(entries):
        """Return (width, blocks)."""
        width = max(1, min(bucket, entries))
        return width, -(-entries // width)

    def encode(x, key):
        rows, entries = x.shape
        width, count = cut(entries)
        each = max(1, _BLOCKS // max(1, rows * width))  # blocks of a part
        parts = (count - 1) // each
        # XLA does not keep a loop of one turn.
        parts = parts if parts > 1 and _in_parts() else 0

        def by_parts(make):
            """Join the results [rows, blocks, ...] of make(index of the first block, blocks).

            XLA on CPU would fuse a maximum with the operations before and after it into one loop
            that computes the index of every entry, and the maximum anew for each entry.
            """

            def put_part(i, whole):
                part = jax.lax.dynamic_slice_in_dim(x, i * each * width, each * width, 1)
                part = make(i * each, part.reshape(rows, each, width))
                return jax.lax.dynamic_update_slice_in_dim(whole, part, i * each, 1)

            rest = jnp.pad(x[:, parts * each * width :], ((0, 0), (0, count * width - entries)))
            last = make(parts * each, rest.reshape(rows, -1, width))
            if not parts:
                return last
            whole = jnp.zeros((rows, count, *last.shape[2:]), last.dtype)
            whole = jax.lax.dynamic_update_slice_in_dim(whole, last, parts * each, 1)
            return jax.lax.fori_loop(0, parts, put_part, whole)

        scale = by_parts(lambda first, blocks: scale_of(blocks, key is not None))

        def coded(first, blocks):
            number = blocks.shape[1]
            draws = None
            if key is not None:
                skipped = jnp.arange(rows)[:, None, None] * (count - number) + first
                draws = hashing.uniform(key, blocks.shape, skipped * width)
            return code(blocks, jax.lax.dynamic_slice_in_dim(scale, first, number, 1), draws)

        return Quantised(by_parts(coded), scale)

    def decode(message, entries):
        values = read(message, cut(entries)[0])
        return values.reshape(len(values), -1)[:, :entries]

    def payload_bytes(entries):
        width, count = cut(entries)
        return count * code_bytes(width)

    return Codec(encode, decode, payload_bytes)


def int8_codec(bucket: int = 1024) -> Codec:
    """Return a codec in int8; blocks of `bucket` entries share a scale, max |x| over 127.

    With a key rounding is random and without bias; without one it is to the nearest.
    """

    def code(x, scale, draws):
        return steps(x, scale[..., None], 127, draws).astype(jnp.int8)

    def read(message, width):
        # Infinity times a code of 0 is NaN too: the values of such a stretch are unknown.
        return message.codes.astype(jnp.float32) * message.scale[..., None]

    return block_codec(_largest_over(127), code, read, lambda width: width + 4, bucket)


def int4_codec(bucket: int = 128) -> Codec:
    """Return a codec in 4 bits, two entries a byte; `bucket` entries share a scale, max |x| / 7.

    Rounding is as in `int8_codec`. The codes are -7 ... 7, in two's complement.
    """

    def code(x, scale, draws):
        codes = steps(x, scale[..., None], 7, draws).astype(jnp.int8)
        return _paired(codes.astype(jnp.uint8) & np.uint8(15))

    def read(message, width):
        nibbles = _unpaired(message.codes, width).astype(jnp.int8)
        return ((nibbles ^ 8) - 8).astype(jnp.float32) * message.scale[..., None]

    return block_codec(_largest_over(7), code, read, lambda width: -(-width // 2) + 4, bucket)


class Minifloat(NamedTuple):
    """Format of a float of a few bits, without infinities among the codes that are used."""

    bits: int
    mantissa: int  # bits of the mantissa
    least: int  # exponent of the smallest normal number
    most: float  # largest finite number
    top: int  # code of `most`


# "OCP 8-bit Floating Point Specification (OFP8)" and, the last, "OCP Microscaling Formats (MX)".
E4M3, E5M2 = Minifloat(8, 3, -6, 448.0, 0x7E), Minifloat(8, 2, -14, 57344.0, 0x7B)
E2M1 = Minifloat(4, 1, 0, 6.0, 7)
FP8 = {"e4m3": E4M3, "e5m2": E5M2}


def fp8_codec(form: Minifloat = E4M3, bucket: int = 1024) -> Codec:
    """Return a codec in 8-bit floats; `bucket` entries share a scale, max |x| / `form.most`.

    A bucket as long as the array gives it a single scale. Rounding is as in `int8_codec`.
    """

    def code(x, scale, draws):
        return minifloat_encode(x / _divisor(scale[..., None]), form, draws)

    def read(message, width):
        return minifloat_decode(message.codes, form) * message.scale[..., None]

    return block_codec(_largest_over(form.most), code, read, lambda width: width + 4, bucket)


def mxfp4_codec() -> Codec:
    """Return a codec in MXFP4: blocks of 32 E2M1 of 4 bits, each scaled by a power of two, E8M0.

    OCP Microscaling Formats (MX), version 1.0. Without a key, for rounding to the nearest, this
    scale is the largest entry's power of two, divided by the power of two of 6; entries above 6
    scales become 6 scales. With a key the scale is doubled if an entry exceeds 6 scales, since
    clipping is a bias. The least scale is 2^-126.
    """

    def scale_of(x, random):
        bits = _bits(peak(x, axis=-1))
        power = (bits >> 23).astype(jnp.int32) - 127 - 2  # 6 is 1.5 times 2^2
        if random:
            power += (bits & 0x7FFFFF) > 0x400000
        code = jnp.where(bits >= 0x7F800000, 255, jnp.clip(power, -126, 126) + 127)
        return code.astype(jnp.uint8)

    def code(x, scale, draws):
        power = jnp.minimum(scale.astype(jnp.int32) - 127, 126)  # of blocks that are NaN as well
        return _paired(minifloat_encode(x * power_of_two(-power)[..., None], E2M1, draws))

    def read(message, width):
        scale = power_of_two(message.scale.astype(jnp.int32) - 127)
        scale = jnp.where(message.scale == 255, jnp.nan, scale)
        return minifloat_decode(_unpaired(message.codes, width), E2M1) * scale[..., None]

    return block_codec(scale_of, code, read, lambda width: -(-width // 2) + 1, 32)


def minifloat_encode(x, form: Minifloat, draws=None) -> jax.Array:
    """Return the codes, uint8 of x's shape; draws in [0, 1) round at random, else to the nearest.

    Ties go to even codes, larger values become `form.most`, and NaN becomes an arbitrary code.
    """
    magnitude = jnp.minimum(jnp.where(jnp.isfinite(x), jnp.abs(x), 0), form.most)
    exponent = jnp.maximum((_bits(magnitude) >> 23).astype(jnp.int32) - 127, form.least)
    ulps = magnitude * power_of_two(form.mantissa - exponent)
    ulps = jnp.round(ulps) if draws is None else jnp.floor(ulps + draws)
    # 2^mantissa ulps of a normal number are its leading bit, which is 1 in the field of exponents.
    code = ((exponent - form.least) << form.mantissa) + ulps.astype(jnp.int32)
    code = jnp.minimum(code, form.top)
    return (code | (_bits(x) >> 31).astype(jnp.int32) << (form.bits - 1)).astype(jnp.uint8)


def minifloat_decode(codes, form: Minifloat) -> jax.Array:
    """Return the values, float32 of the codes' shape, exactly."""
    code = codes.astype(jnp.int32)
    field = (code >> form.mantissa) & (2 ** (form.bits - 1 - form.mantissa) - 1)
    ulps = (code & (2**form.mantissa - 1)) + jnp.where(field > 0, 2**form.mantissa, 0)
    exponent = jnp.maximum(field - 1, 0) + (form.least - form.mantissa)
    magnitude = ulps.astype(jnp.float32) * power_of_two(exponent)
    return jnp.where(code >> (form.bits - 1) > 0, -magnitude, magnitude)


def sign_codec() -> Codec:
    """Return a codec of rows as signs and a mean magnitude, as `sign` has them."""

    def decode(message, entries):
        return jax.vmap(lambda row: sign_decode(row, entries))(message)

    return Codec(lambda x, key: jax.vmap(sign)(x), decode, sign_payload_bytes)


def _qsgd_codes(stretches, levels: int, draws) -> Quantised:
    """Return unpacked codes and scales of stretches [count, bucket]; draws: in [0, 1)."""
    largest = jnp.abs(stretches).max(axis=1, initial=0)  # NaN comes back by the norm
    unit = stretches / jnp.where(largest > 0, largest, 1)[:, None]
    norm = jnp.sqrt((unit**2).sum(axis=1))  # squares of values up to 1 cannot overflow
    level = jnp.abs(unit) / jnp.where(norm > 0, norm, 1)[:, None] * levels + draws
    level = jnp.minimum(jnp.where(level >= 0, level, 0), levels).astype(jnp.int32)  # NaN becomes 0
    codes = levels + jnp.where(stretches < 0, -level, level)
    dtype = jnp.uint8 if qsgd_bits(levels) <= 8 else jnp.uint16
    return Quantised(codes.astype(dtype), norm * largest)


def _part_by_part(coded, x, bucket: int) -> Quantised:
    """Return codes and scales of parts of x, with a leading axis of parts; zeros at the end.

    coded: (number of the first entry, some entries) -> their codes [count, bucket] and scales.
    Without parts, XLA on CPU would draw random numbers and round one entry at a time, as it packs.
    """
    stretches = x.size // bucket
    # At least two parts, because XLA does not keep a loop of one turn as a loop.
    width = max(1, min(_PART // bucket, stretches // 2))
    parts, each = stretches // width, width * bucket

    def replace(message, i, part):
        return jax.tree.map(
            lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, i, 0), message, part
        )

    def code_part(i, message):
        part = jax.lax.dynamic_slice_in_dim(x, i * each, each)
        return replace(message, i, coded(i * each, part))

    # The rest is coded apart, because padding x would copy it. With fewer than eight stretches XLA
    # on CPU takes the norms in another order.
    rest = x[parts * each :]
    least = min(width, 8) * bucket
    codes, scale = coded(parts * each, jnp.pad(rest, (0, max(0, least - rest.size))))
    codes = jnp.pad(codes.ravel()[: rest.size], (0, each - rest.size)).reshape(width, bucket)
    last = Quantised(codes, jnp.pad(scale, (0, width - scale.size)))
    message = jax.tree.map(lambda a: jnp.zeros((parts + 1, *a.shape), a.dtype), last)
    return jax.lax.fori_loop(0, parts, code_part, replace(message, parts, last))


def peak(x, **reduction) -> jax.Array:
    """Return the largest magnitude, infinite where an entry is NaN; arguments as of `jnp.max`.

    XLA on CPU leaves NaN out of the maxima of arrays that are not small.
    """
    return jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.inf).max(**reduction)


def _largest_over(most: float) -> Callable:
    return lambda x, random: peak(x, axis=-1) / most


def _divisor(scale) -> jax.Array:
    return jnp.where(scale > 0, scale, 1)


def steps(x, scale, most: int, draws) -> jax.Array:
    """Return x in whole steps -most ... most, as floats; draws: in [0, 1), or None for nearest."""
    found = x / _divisor(scale)
    # The choice keeps compilers from fusing the product with the sum that follows.
    found = jnp.where(jnp.isfinite(found), found, 0)
    found = jnp.round(found) if draws is None else jnp.floor(found + draws)
    return jnp.clip(found, -most, most)


def _paired(nibbles) -> jax.Array:
    """Return nibbles, uint8 [..., n], as bytes [..., ceil(n / 2)]: the first half is the lower."""
    half = -(-nibbles.shape[-1] // 2)
    upper = nibbles[..., half:]
    short = [(0, 0)] * (nibbles.ndim - 1) + [(0, half - upper.shape[-1])]
    return nibbles[..., :half] | jnp.pad(upper, short) << np.uint8(4)


def _unpaired(octets, n: int) -> jax.Array:
    """Return the n nibbles of bytes, uint8 [..., n], the inverse of `_paired`."""
    return jnp.concatenate([octets & np.uint8(15), octets >> np.uint8(4)], axis=-1)[..., :n]


def _stretches(x, bucket: int):
    """Return x as float32 [stretches, bucket], padded with zeros."""
    return jnp.pad(jnp.ravel(x).astype(jnp.float32), (0, -x.size % bucket)).reshape(-1, bucket)


def _exponent(x):
    """Return exponent e and fraction f of |x| = 2^e (1 + f), from the bits of float32.

    Exact, where XLA divides by powers of two through reciprocals that may underflow.
    """
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    return (bits >> 23) - 127, (bits & 0x7FFFFF).astype(jnp.float32) * 2.0**-23
