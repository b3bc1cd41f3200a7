"""Hashes against their authors' values, and statistics of what they draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from comms import hashing

# Indices of embedding rows come in runs and in strides.
INDICES = {
    "run": np.arange(20_000),
    "stride": np.arange(20_000) * 512,
    "far": 2**32 - 1 - np.arange(20_000),
}


def test_the_finaliser_is_that_of_murmur3():
    # MurmurHash3_x86_32 of an empty key is the finaliser of the seed.
    found = hashing._finalise(jnp.array([0, 1, 0xFFFFFFFF], jnp.uint32))
    np.testing.assert_array_equal(found, np.array([0, 0x514E28B7, 0x81F16F39], np.uint32))


def test_the_largest_index_and_seed_may_be_whole_numbers_of_python():
    last = np.uint32(2**32 - 1)
    assert hashing.mix(2**32 - 1, 2**32 - 1) == hashing.mix(last, last)


def test_lowbias32_is_that_of_its_author():
    """Beside whole numbers of any length, and undone: its steps in reverse (same source)."""
    x = np.array([0, 1, 2, 0x9E3779B9, 0xFFFFFFFF], np.uint32)
    found = np.asarray(hashing.lowbias32(jnp.asarray(x)))
    for value, hashed in zip(x.tolist(), found.tolist(), strict=True):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            value = (value ^ value >> shift) * factor % 2**32
        assert hashed == value
    back = (found ^ found >> 16) * np.uint32(0x43021123)
    back = (back ^ back >> 15 ^ back >> 30) * np.uint32(0x1D69E2A5)
    np.testing.assert_array_equal(back ^ back >> 16, x)


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_buckets_are_uniform_and_signs_fair_and_independent_of_them(index):
    index = index.astype(np.uint32)
    signs = np.asarray(hashing.sign(index, 11))
    assert set(signs) == {-1.0, 1.0}
    bound = 4 * np.sqrt(len(index))
    assert abs(signs.sum()) < bound
    assert abs((signs[1:] * signs[:-1]).sum()) < bound
    for columns in (2, 37, 1000):
        found = np.asarray(hashing.bucket(index, 11, columns))
        assert found.dtype == np.int32 and found.min() >= 0 and found.max() < columns
        assert stats.chisquare(np.bincount(found, minlength=columns)).pvalue > 1e-3
        table = np.stack([np.bincount(found[signs == s], minlength=columns) for s in (-1, 1)])
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_uniform():
    draw = jax.jit(jax.vmap(lambda key: hashing.uniform(key, (40, 5))))
    found = np.asarray(draw(jax.random.split(jax.random.key(0), 500)))
    assert found.shape == (500, 40, 5) and found.dtype == np.float32
    assert found.min() >= 0 and found.max() < 1
    assert stats.kstest(found.ravel(), "uniform").pvalue > 1e-3
    # Neither along an array nor from key to key does a draw tell the next one.
    for draws in (found.reshape(500, -1), found.reshape(500, -1).T):
        centred = draws - 0.5
        assert abs((centred[:, 1:] * centred[:, :-1]).mean()) < 4 / 12 / np.sqrt(found.size)
    assert hashing.uniform(jax.random.key(0), (0, 3)).shape == (0, 3)
    rest = jax.jit(hashing.uniform, static_argnums=1)(jax.random.key(0), (4,), 6)
    np.testing.assert_array_equal(rest, hashing.uniform(jax.random.key(0), (10,))[6:])


FAR = [0, 1, 999, 2**24 - 1, 2**24, 2**24 + 1, 2**31, 2**31 + 128, 2**32 - 1, 2**32, 2**40, 2**62]


def test_a_count_of_64_bits_is_held_added_to_and_told_apart():
    held = hashing.words(FAR)
    np.testing.assert_array_equal(held[:, 0] + 2**32 * held[:, 1].astype(np.uint64), FAR)
    further = [hashing.plus(jnp.asarray(two), 300) for two in held]
    np.testing.assert_array_equal(further, hashing.words(np.array(FAR) + 300))
    known = hashing.counted(jnp.asarray(held))
    np.testing.assert_array_equal(known["samples"], np.array(FAR, np.float32))
    np.testing.assert_array_equal(known["count"][:9], np.array(FAR[:9], np.uint32))
    for apart in (1, 64, 2**20):  # two updates in a row, wherever the run stands
        both = np.array([FAR, np.array(FAR) + apart])
        counts = hashing.counted(jnp.asarray(hashing.words(both)))["count"]
        assert (counts[0] != counts[1]).all()
        before, after = hashing.address(counts)
        assert (before != after).all()
    # Alike as a float while that is exact.
    for count in FAR[:4]:
        assert hashing.address(count) == hashing.address(jnp.float32(count))
        assert hashing.address(count) == hashing.address(jnp.uint32(count))
    assert hashing.address(2**24 + 1) != hashing.address(2**24)
    with pytest.raises(ValueError, match="too many for a float to count"):
        hashing.address(np.float32(2**25))
