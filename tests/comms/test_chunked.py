"""Few entries of every chunk: what is read of them, and what they weigh."""

import math

import jax
import numpy as np
import pytest

from comms import chunked
from comms.chunked import Blocks, Cut

X = np.random.default_rng(0).standard_normal(23).astype(np.float32)
encode = jax.jit(chunked.encode, static_argnums=(1, 2))
decode = jax.jit(chunked.decode, static_argnums=(1, 2, 3))
encode_frequencies = jax.jit(chunked.encode_frequencies, static_argnums=1)
decode_frequencies = jax.jit(chunked.decode_frequencies, static_argnums=(1, 2))


def nbytes(message):
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(message))


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "cut", "bits"), [(23, Cut(8, 3), 2), (5, Cut(4096, 64), 3)])
def test_the_largest_entries_come_back_rounded_to_their_levels(size, cut, bits):
    x = X[:size]
    message = encode(x, cut, bits)
    found = np.asarray(decode(message, size, cut, bits))
    expected = np.zeros(size)
    _, chunk, k = cut.of(size)
    for start in range(0, size, chunk):
        row = x[start : start + chunk]
        top = np.abs(row).max()
        levels = np.linspace(-top, top, 2**bits)
        for place in np.argsort(-np.abs(row))[:k]:
            expected[start + place] = levels[np.abs(levels - row[place]).argmin()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert nbytes(message) == chunked.payload_bytes(size, cut, bits)
    assert not np.any(decode(encode(0 * x, cut, bits), size, cut, bits))
    # 64 of 4,096: 2 bits of value, 12 of index, and a scale.
    assert chunked.payload_bytes(10 * 4096, Cut(4096, 64), 2) == 1160


def test_all_frequencies_are_the_vector_and_some_are_its_best_part():
    transform = chunked.cosines(8)
    np.testing.assert_allclose(transform @ transform.T, np.eye(8), atol=1e-6)
    for shape, cut in (((1, 23), Blocks(8, 8)), ((23, 1), Blocks(8, 8)), ((5, 4), Blocks(3, 9))):
        x = X[: math.prod(shape)].reshape(shape)
        whole = decode_frequencies(encode_frequencies(x, cut), shape, cut)
        np.testing.assert_allclose(whole, x, atol=1e-6)
    cut = Blocks(8, 3)
    message = encode_frequencies(X[None, :16], cut)
    spectrum = X[:16].reshape(2, 8) @ transform.T
    kept = np.sort(np.abs(spectrum), axis=1)[:, -3:]
    found = decode_frequencies(message, (1, 16), cut)
    assert np.square(found).sum() == pytest.approx(np.square(kept).sum(), rel=1e-5)
    assert nbytes(message) == chunked.frequency_bytes((1, 16), cut) == 2 * 3 * 5


def test_a_chunk_that_is_not_finite_is_nan_and_others_are_not():
    x = X.copy()
    x[9] = np.inf
    cut, blocks, whole = Cut(8, 3), Blocks(8, 3), (1, 23)
    for found in (
        decode(encode(x, cut, 2), 23, cut, 2),
        decode_frequencies(encode_frequencies(x[None], blocks), whole, blocks).ravel(),
    ):
        nan = np.isnan(np.asarray(found))
        assert nan[8:16].all() and not nan[:8].any() and not nan[16:].any()
