"""Two bytes per value: bfloat16 and float16 as codes that travel as unsigned integers.

XLA on CPU widens collectives of bfloat16 to float32, and may leave out a conversion there and back;
of integers it does neither. Rounding is to the nearest, ties to even, as in NumPy and `ml_dtypes`;
numbers that are not finite stay as they are, and finite numbers stay finite.
"""

import jax
import jax.numpy as jnp

from comms.two_phase import Codec

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
    """Return the bits of 2^shift x, uint16 [rows, 1 + m] with the shift of each row in front.

    The largest finite entry of a row is moved to 2^14 ... 2^15, so that none is infinite and
    entries down to 2^-29 of it have 11 bits.
    """
    del key
    magnitudes = jnp.where(jnp.isfinite(x), jnp.abs(x), 0)
    exponent = (_bits(magnitudes.max(axis=-1, keepdims=True, initial=0)) >> 23).astype(jnp.int32)
    shift = jnp.minimum(TOP + 127 - exponent, 126)  # [rows, 1]
    # In the topmost row 2^15 would be read as infinity: the next number below replaces it.
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
