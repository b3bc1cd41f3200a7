"""Messages of few entries of every chunk: indices in few bits, and values that share a scale.

An array of any shape and float dtype is seen as a flat vector of `size` entries and cut into
chunks, the last of which is filled up with zeros. An index within its chunk needs log2(chunk) bits;
codes are packed without a gap. A chunk with an entry that is not finite is read as NaN.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap
from comms.collectives import AXIS, divide


class Chunked(NamedTuple):
    """Message of k entries of every chunk."""

    codes: jax.Array  # uint32 words, `bits` per entry
    places: jax.Array  # uint32 words, log2(chunk) bits per entry
    scale: jax.Array  # float32 [chunks], the largest magnitude of a chunk


class Spectrum(NamedTuple):
    """Message of k frequencies of every block of a matrix."""

    values: jax.Array  # float32 [blocks, k]
    places: jax.Array  # uint8 [blocks, k], or uint16 if a block has more than 256 entries


class Cut(NamedTuple):
    """Cut of a vector into chunks, each of which sends `k` entries; none exceeds the vector."""

    chunk: int
    k: int

    def of(self, size: int) -> tuple[int, int, int]:
        """Return (chunks, entries of a chunk, sent entries of a chunk) for a vector of `size`."""
        chunk = max(1, min(self.chunk, size))
        return -(-size // chunk), chunk, min(self.k, chunk)


def _rows(x, cut: Cut) -> jax.Array:
    chunks, chunk, _ = cut.of(x.size)
    flat = jnp.ravel(x).astype(jnp.float32)
    return jnp.pad(flat, (0, chunks * chunk - x.size)).reshape(chunks, chunk)


def _largest(rows, k: int) -> tuple[jax.Array, jax.Array]:
    """Return ([chunks, k] values, their places), NaN wherever a chunk is not finite."""
    _, places = jax.lax.top_k(jnp.abs(rows), k)
    values = jnp.take_along_axis(rows, places, axis=1)
    finite = jnp.isfinite(rows).all(axis=1, keepdims=True)
    return jnp.where(finite, values, jnp.nan), places


def _scattered(values, places, chunk: int) -> jax.Array:
    rows = jnp.zeros((len(values), chunk), jnp.float32)
    return jax.vmap(lambda row, at, value: row.at[at].set(value))(rows, places, values)


def encode(x, cut: Cut, bits: int) -> Chunked:
    """Encode the k largest entries of every chunk, each rounded to the nearest of 2^bits levels.

    The levels are evenly spaced between plus and minus the chunk's largest magnitude, without 0.
    """
    _, chunk, k = cut.of(x.size)
    values, places = _largest(_rows(x, cut), k)
    scale = jnp.abs(values).max(axis=1, initial=0)
    share = values / jnp.where(scale > 0, scale, 1)[:, None]
    top = 2**bits - 1
    level = jnp.round((jnp.where(jnp.isfinite(share), share, 0) + 1) * (top / 2))
    return Chunked(_packed(level, bits), _packed(places, _index_bits(chunk)), scale)


def decode(message: Chunked, size: int, cut: Cut, bits: int) -> jax.Array:
    """Return the vector, float32 [size], with zeros for unsent entries."""
    chunks, chunk, k = cut.of(size)
    level = _unpacked(message.codes, bits, chunks * k).reshape(chunks, k)
    places = _unpacked(message.places, _index_bits(chunk), chunks * k).reshape(chunks, k)
    values = (level * (2 / (2**bits - 1)) - 1) * message.scale[:, None]
    whole = _scattered(values, places, chunk)
    whole = jnp.where(jnp.isnan(message.scale)[:, None], jnp.nan, whole)
    return whole.ravel()[:size]


def payload_bytes(size: int, cut: Cut, bits: int) -> int:
    """Return the bytes of codes, indices and scales.

        >>> payload_bytes(4096, Cut(4096, 64), bits=2)
        116
    """
    chunks, chunk, k = cut.of(size)
    words = sum(-(-chunks * k * width // 32) for width in (bits, _index_bits(chunk)))
    return 4 * words + 4 * chunks


class Blocks(NamedTuple):
    """Cut of a matrix [n, m] in both directions; a vector is a matrix of one row."""

    chunk: int  # rows and columns of a block, or all where there are fewer
    k: int

    def of(self, shape: tuple[int, int]) -> tuple[int, int, int]:
        """Return the numbers (rows, columns, sent frequencies) of a block."""
        height, width = (max(1, min(self.chunk, size)) for size in shape)
        return height, width, min(self.k, height * width)


def encode_frequencies(x, cut: Blocks) -> Spectrum:
    """Encode the k largest coefficients of every block's discrete cosine transform, in float32."""
    height, width, k = cut.of(x.shape)
    x = jnp.pad(x.astype(jnp.float32), ((0, -x.shape[0] % height), (0, -x.shape[1] % width)))
    rows = x.reshape(x.shape[0] // height, height, x.shape[1] // width, width).swapaxes(1, 2)
    rows = rows @ cosines(width).T
    rows = cosines(height) @ rows if height > 1 else rows
    values, places = _largest(rows.reshape(-1, height * width), k)
    return Spectrum(values, places.astype(_place(height * width)))


def decode_frequencies(message: Spectrum, shape: tuple[int, int], cut: Blocks) -> jax.Array:
    """Return the matrix, float32 of this shape, that has these coefficients."""
    height, width, _ = cut.of(shape)
    spectra = _scattered(message.values, message.places.astype(jnp.int32), height * width)
    return _from_spectra(spectra, shape, cut)


def mean_of_senders(message: Spectrum, weight, shape: tuple[int, int], cut: Blocks) -> jax.Array:
    """Return the matrix whose coefficients are weighted means over the workers that sent them.

    message: the spectrum of a matrix times `weight`, which is 0 for a worker that does not count.
    """

    height, width, _ = cut.of(shape)

    def placed(message, weight):
        places = message.places.astype(jnp.int32)
        weights = jnp.full_like(message.values, weight)
        return [_scattered(v, places, height * width) for v in (message.values, weights)]

    sums, weights = jax.vmap(placed)(*jax.lax.all_gather((message, weight), AXIS))
    return _from_spectra(divide(sums.sum(0), weights.sum(0)), shape, cut)


def frequency_bytes(shape: tuple[int, int], cut: Blocks) -> int:
    """Return the bytes of coefficients, 4 each, and of their places, 1 or 2 each."""
    height, width, k = cut.of(shape)
    blocks = -(-shape[0] // height) * -(-shape[1] // width)
    return blocks * k * (4 + _place(height * width)(0).itemsize)


def _place(entries: int) -> type:
    return np.uint8 if entries <= 256 else np.uint16


def _from_spectra(spectra, shape: tuple[int, int], cut: Blocks) -> jax.Array:
    height, width, _ = cut.of(shape)
    down, across = (-(-size // side) for size, side in zip(shape, (height, width), strict=True))
    rows = spectra.reshape(down, across, height, width) @ cosines(width)
    rows = cosines(height).T @ rows if height > 1 else rows
    whole = rows.swapaxes(1, 2).reshape(down * height, across * width)
    return whole[: shape[0], : shape[1]]


@functools.cache
def cosines(n: int) -> np.ndarray:
    """Return the orthonormal cosine transform (DCT-II), [n, n]: a row per frequency."""
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
