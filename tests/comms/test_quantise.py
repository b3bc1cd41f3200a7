import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from comms import bitmap, hashing, quantise

DRAWS = 4000


def gradient(size=60, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def qsgd(x, levels, key, bucket=16):
    return quantise.qsgd_decode(quantise.qsgd(x, levels, key, bucket), x.size, levels, bucket)


def natural(x, key):
    return quantise.natural_decode(quantise.natural(x, key))


natural_jit = jax.jit(natural)


def int8(x, key):
    """Return the sum at one of two workers, if the other one's gradient is zero."""

    def body(x, key):
        return quantise.int8_all_reduce(x, bucket=16, key=key)

    both = jnp.stack([x, jnp.zeros_like(x)])
    return jax.vmap(body, axis_name="workers")(both, jax.random.split(key))[0]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "codec",
    [functools.partial(lambda x, key, levels: qsgd(x, levels, key), levels=s) for s in (1, 127)]
    + [natural, int8],
    ids=["qsgd 1", "qsgd 127", "natural", "int8"],
)
def test_unbiased(codec):
    x = jnp.asarray(gradient())
    keys = jax.random.split(jax.random.key(0), DRAWS)
    found = np.asarray(jax.jit(jax.vmap(lambda key: codec(x, key)))(keys), np.float64)
    errors = found - np.asarray(x)
    spread = errors.std(axis=0) > 1e-4 * np.abs(x)
    assert spread.any()
    assert stats.ttest_1samp(errors[:, spread], 0).pvalue.min() > 1e-2 / x.size
    np.testing.assert_allclose(found[0, ~spread], x[~spread], rtol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("levels, bits", [(7, 4), (1, 2), (32767, 16)])
def test_qsgd_gives_multiples_of_the_norm_next_to_the_entries(levels, bits):
    assert quantise.qsgd_bits(levels) == bits
    x = gradient()
    found = np.asarray(qsgd(x, levels, jax.random.key(0)))
    for start in range(0, 60, 16):
        part, entries = found[start : start + 16], x[start : start + 16]
        unit = np.linalg.norm(entries) / levels
        np.testing.assert_allclose(part / unit, np.round(part / unit), atol=0.01)
        assert (np.abs(part - entries) <= 1.001 * unit).all()
        assert (part * entries >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "size"), [(1, 600), (7, 991), (300, 1024)])
def test_qsgd_part_by_part_is_qsgd_at_once(levels, size, monkeypatch):
    x, key = gradient(size), jax.random.key(3)
    x[5], x[-3] = np.nan, np.inf
    count, bits = -(-size // 16), quantise.qsgd_bits(levels)
    stretches = jnp.pad(x, (0, 16 * count - size)).reshape(count, 16)
    draws = hashing.uniform(key, stretches.shape)
    codes, scale = jax.jit(quantise._qsgd_codes, static_argnums=1)(stretches, levels, draws)
    at_once = bitmap.pack_codes(codes.ravel()[:size], bits), scale
    for part in (1, 300, 1 << 18):
        monkeypatch.setattr(quantise, "_PART", part)
        found = jax.jit(functools.partial(quantise.qsgd, levels=levels, bucket=16))(x, key=key)
        jax.tree.map(np.testing.assert_array_equal, tuple(found), at_once)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_qsgd_of_extreme_values(scale):
    """Their squares are no float32."""
    x = gradient()
    found = qsgd(np.float32(scale) * x, 127, jax.random.key(0)) / np.float32(scale)
    np.testing.assert_allclose(found, qsgd(x, 127, jax.random.key(0)), rtol=1e-5, atol=0.06)


def test_only_the_stretch_that_is_not_finite_is_lost():
    x = gradient()
    x[20] = np.nan
    found = np.asarray(qsgd(x, 7, jax.random.key(0)))
    np.testing.assert_array_equal(np.isnan(found), (np.arange(60) >= 16) & (np.arange(60) < 32))


def test_natural_gives_one_of_the_powers_of_two_next_to_the_entry():
    x = gradient(500) * 10.0 ** np.random.default_rng(1).integers(-12, 12, 500)
    x = x.astype(np.float32)
    found = np.asarray(natural_jit(x, jax.random.key(0)))
    mantissa, _ = np.frexp(found)
    np.testing.assert_array_equal(np.abs(mantissa), 0.5)
    ratio = found / x
    assert (ratio > 0.5).all() and (ratio <= 2).all()
    relative = (found - x) ** 2 / x**2
    assert relative.mean() < 1 / 8 + 0.02  # its variance bound, Theorem 1


@pytest.mark.parametrize("largest", [2.0**-126, 2.0**-10, 1.0, 2.0**127])
def test_natural_keeps_powers_of_two_as_they_are(largest):
    x = np.float32(largest) * np.float32([1, -0.5, 0.25, 0, -1])
    x = np.where(np.abs(x) < 2.0**-126, 0, x)  # subnormal numbers are zero to the device
    for seed in range(5):
        np.testing.assert_array_equal(natural_jit(x, jax.random.key(seed)), x)


def test_natural_of_entries_below_its_range():
    """2^-126 of the largest: one half of the smallest power, up half of the times."""
    x = np.float32([2.0**20, 2.0**-106, -(2.0**-106), 2.0**-120])
    draw = jax.jit(jax.vmap(lambda key: natural(x, key)))
    found = np.asarray(draw(jax.random.split(jax.random.key(0), 1000)))
    np.testing.assert_array_equal(found[:, 0], 2.0**20)
    assert set(np.unique(found[:, 1])) == {0.0, 2.0**-105}
    assert set(np.unique(found[:, 2])) == {-(2.0**-105), 0.0}
    assert abs((found[:, 1] > 0).mean() - 0.5) < 0.07
    assert (found[:, 3] == 0).mean() > 0.99


def test_sign_by_hand():
    x = jnp.array([[1.0, -3.0], [0.0, 4.0]])
    np.testing.assert_array_equal(quantise.sign_decode(quantise.sign(x), 4), [2, -2, 2, 2])


@pytest.mark.few(2)
@pytest.mark.parametrize(("workers", "size"), [(3, 10), (8, 1000), (2, 1)])
def test_int8_is_near_the_sum(workers, size):
    x = np.random.default_rng(0).normal(size=(workers, size)).astype(np.float32)
    body = jax.jit(jax.vmap(lambda x: quantise.int8_all_reduce(x, bucket=64), axis_name="workers"))
    total = x.sum(axis=0)
    # Half a step of every worker, and half a step of their sum.
    bound = 0.5 * (np.abs(x).max() * workers + np.abs(total).max() + 0.1) / 127
    assert np.abs(np.asarray(body(x)) - total).max() <= bound


def test_int8_of_a_single_worker_is_the_gradient():
    x = gradient()[None]
    body = jax.vmap(quantise.int8_all_reduce, axis_name="workers")
    np.testing.assert_array_equal(body(x), x)


@pytest.mark.slow
def test_an_outlier_costs_its_own_stretch_only():
    x = np.stack([gradient(256), gradient(256, 1)])
    x[0, 3] = 1e6
    body = jax.vmap(lambda x: quantise.int8_all_reduce(x, bucket=32), axis_name="workers")
    error = np.abs(body(x)[0] - x.sum(axis=0))
    assert error[:32].max() > 1 and error[32:].max() < 0.1


@pytest.mark.parametrize("levels", [0, 2**15])
def test_levels_without_a_code_are_refused(levels):
    with pytest.raises(ValueError, match="levels must be 1 to 32767"):
        quantise.qsgd(jnp.ones(3), levels, jax.random.key(0))
