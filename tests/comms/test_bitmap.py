"""Packed words against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import bitmap

SIZES = [0, 1000]


def mask(size, share, seed=0):
    return np.random.default_rng(seed).random(size) < share


@pytest.mark.parametrize("size", SIZES)
def test_pack_is_little_endian(size):
    bits = mask(size, 0.4)
    words = bitmap.pack(bits)
    assert words.dtype == jnp.uint32 and words.nbytes == bitmap.payload_bytes(size)
    expected = np.packbits(np.pad(bits, (0, -size % 32)), bitorder="little").view("<u4")
    np.testing.assert_array_equal(words, expected)
    found = bitmap.unpack(words, size)
    assert found.dtype == bool
    np.testing.assert_array_equal(found, bits)
    assert bitmap.count(words) == bits.sum()


@pytest.mark.few(2)
@pytest.mark.parametrize("bits", [2, 3, 16])
def test_codes_lie_side_by_side_and_come_back(bits):
    rng = np.random.default_rng(0)
    codes = {size: rng.integers(0, 2**bits, size) for size in (0, 1, 10, 11, 100, 1021, 1024)}
    per_word = 32 // bits
    shifts = np.arange(per_word, dtype=np.uint32) * bits

    @jax.jit  # one program for all sizes
    def both_ways(codes):
        words = {size: bitmap.pack_codes(some, bits) for size, some in codes.items()}
        return words, {size: bitmap.unpack_codes(w, bits, size) for size, w in words.items()}

    words, found = both_ways(codes)
    for size, some in codes.items():
        rows = np.pad(some, (0, -size % per_word)).astype(np.uint32).reshape(-1, per_word)
        np.testing.assert_array_equal(words[size], (rows << shifts).sum(axis=1, dtype=np.uint32))
        np.testing.assert_array_equal(found[size], some)


def test_occupied():
    x = np.array([[0, 0], [-0.0, 1e-30], [np.nan, 0], [0, -np.inf], [0, -0.0]], np.float32)
    np.testing.assert_array_equal(bitmap.occupied(x), [False, True, True, True, False])
    np.testing.assert_array_equal(bitmap.occupied(x[:, 1]), [False, True, False, True, False])


@pytest.mark.parametrize("size", [*SIZES, 1024])  # whose last word is full
def test_positions(size):
    each = 0, size // 2, size + 3
    positions = jax.jit(lambda bits: [bitmap.positions(bitmap.pack(bits), slots) for slots in each])
    for share in (0, 0.02, 0.5, 1):
        bits = mask(size, share)
        expected = np.flatnonzero(bits)
        for slots, found in zip(each, map(np.asarray, positions(bits)), strict=True):
            held = min(slots, len(expected))
            np.testing.assert_array_equal(found[:held], expected[:held])
            assert (found[held:] >= size).all()


@pytest.mark.parametrize(("size", "slots"), [(0, 7), (1024, 7)])
def test_fold_visits_every_set_bit_once(size, slots):
    @jax.jit
    def visits(words):
        def visit(position, counts):
            return counts.at[position].add(1, mode="drop")

        return bitmap.fold(words, visit, jnp.zeros(size, jnp.int32), slots)

    for share in (0, 0.02, 0.5, 1):
        bits = mask(size, share, seed=1)
        np.testing.assert_array_equal(visits(bitmap.pack(bits)), bits, err_msg=f"{share=}")


def test_union(spmd):
    """Of words that three workers cannot share evenly."""
    for workers in (1, 3):
        bits = mask((workers, 300), 0.2)
        found = spmd(lambda bits: bitmap.unpack(bitmap.union(bitmap.pack(bits)), 300), bits)
        np.testing.assert_array_equal(found, np.broadcast_to(bits.any(axis=0), found.shape))
