"""Few entries of every chunk of a vector: an index in few bits, and values that share a scale.

Of an array of any shape and float dtype, seen as a flat vector of `size` entries and cut into
chunks, the last of which is filled up with zeros. An index counts within its chunk, so that it
needs log2(chunk) bits; codes are packed without a gap. A chunk that is not finite (NaN or infinite
somewhere) is NaN when it is read.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap


class Chunked(NamedTuple):
    """Message of k entries of every chunk."""

    codes: jax.Array  # uint32 words, `bits` per entry
    places: jax.Array  # uint32 words, log2(chunk) bits per entry
    scale: jax.Array  # float32 [chunks], the largest magnitude of a chunk


class Spectrum(NamedTuple):
    """Message of k frequencies of every chunk."""

    values: jax.Array  # float32 [chunks, k]
    places: jax.Array  # uint8 [chunks, k]


class Cut(NamedTuple):
    """How a vector is cut; a chunk is never longer than the vector."""

    chunk: int
    k: int

    def of(self, size: int) -> tuple[int, int, int]:
        """(chunks, entries of a chunk, of which are sent) for a vector of `size` entries."""
        chunk = max(1, min(self.chunk, size))
        return -(-size // chunk), chunk, min(self.k, chunk)


def _rows(x, cut: Cut) -> jax.Array:
    chunks, chunk, _ = cut.of(x.size)
    flat = jnp.ravel(x).astype(jnp.float32)
    return jnp.pad(flat, (0, chunks * chunk - x.size)).reshape(chunks, chunk)


def _largest(rows, k: int) -> tuple[jax.Array, jax.Array]:
    """([chunks, k] values, their places), NaN wherever a chunk is not finite."""
    _, places = jax.lax.top_k(jnp.abs(rows), k)
    values = jnp.take_along_axis(rows, places, axis=1)
    finite = jnp.isfinite(rows).all(axis=1, keepdims=True)
    return jnp.where(finite, values, jnp.nan), places


def _scattered(values, places, chunk: int) -> jax.Array:
    rows = jnp.zeros((len(values), chunk), jnp.float32)
    return jax.vmap(lambda row, at, value: row.at[at].set(value))(rows, places, values)


def encode(x, cut: Cut, bits: int) -> Chunked:
    """The k largest entries of every chunk, each rounded to the nearest of 2^bits levels.

    The levels lie evenly between plus and minus the chunk's largest magnitude; 0 is none of them.
    """
    _, chunk, k = cut.of(x.size)
    values, places = _largest(_rows(x, cut), k)
    scale = jnp.abs(values).max(axis=1, initial=0)
    share = values / jnp.where(scale > 0, scale, 1)[:, None]
    top = 2**bits - 1
    level = jnp.round((jnp.where(jnp.isfinite(share), share, 0) + 1) * (top / 2))
    return Chunked(_packed(level, bits), _packed(places, _index_bits(chunk)), scale)


def decode(message: Chunked, size: int, cut: Cut, bits: int) -> jax.Array:
    """The vector, float32 [size], that is zero where nothing was sent."""
    chunks, chunk, k = cut.of(size)
    level = _unpacked(message.codes, bits, chunks * k).reshape(chunks, k)
    places = _unpacked(message.places, _index_bits(chunk), chunks * k).reshape(chunks, k)
    values = (level * (2 / (2**bits - 1)) - 1) * message.scale[:, None]
    whole = _scattered(values, places, chunk)
    whole = jnp.where(jnp.isnan(message.scale)[:, None], jnp.nan, whole)
    return whole.ravel()[:size]


def payload_bytes(size: int, cut: Cut, bits: int) -> int:
    """Bytes of codes, indices and scales."""
    chunks, chunk, k = cut.of(size)
    words = sum(-(-chunks * k * width // 32) for width in (bits, _index_bits(chunk)))
    return 4 * words + 4 * chunks


def encode_frequencies(x, cut: Cut) -> Spectrum:
    """The k largest coefficients of every chunk's discrete cosine transform, in float32."""
    _, chunk, k = cut.of(x.size)
    values, places = _largest(_rows(x, cut) @ cosines(chunk).T, k)
    return Spectrum(values, places.astype(jnp.uint8))


def decode_frequencies(message: Spectrum, size: int, cut: Cut) -> jax.Array:
    """The vector, float32 [size], that has these coefficients."""
    _, chunk, _ = cut.of(size)
    spectrum = _scattered(message.values, message.places.astype(jnp.int32), chunk)
    return (spectrum @ cosines(chunk)).ravel()[:size]


def frequency_bytes(size: int, cut: Cut) -> int:
    """Bytes of coefficients and of their places, a byte each."""
    chunks, _, k = cut.of(size)
    return chunks * k * (4 + 1)


@functools.cache
def cosines(n: int) -> np.ndarray:
    """[n, n] the orthonormal cosine transform (DCT-II): a row per frequency."""
    angles = np.pi / n * np.outer(np.arange(n), np.arange(n) + 0.5)
    return (np.sqrt(np.where(np.arange(n) == 0, 1, 2) / n)[:, None] * np.cos(angles)).astype("f4")


def _index_bits(chunk: int) -> int:
    return max(1, (chunk - 1).bit_length())


def _packed(codes, bits: int) -> jax.Array:
    shifts = jnp.arange(bits, dtype=jnp.uint32)[None]
    digits = codes.astype(jnp.uint32).ravel()[:, None] >> shifts
    return bitmap.pack((digits & 1).astype(bool).ravel())


def _unpacked(words, bits: int, count: int) -> jax.Array:
    digits = bitmap.unpack(words, count * bits).reshape(count, bits)
    return (digits * (1 << jnp.arange(bits))[None]).sum(axis=1)
