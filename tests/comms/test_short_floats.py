"""Short floats on the wire, against NumPy's and ml_dtypes' own rounding."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from comms import quantise
from comms.collectives import AXIS

LARGEST = np.finfo(np.float32).max
SHORT = {
    "bf16": (quantise.BFLOAT16, ml_dtypes.bfloat16, 2.0**-8, 0.0),
    "fp16": (quantise.FLOAT16, np.float16, 2.0**-11, 2.0**-39),
}  # codec, dtype, half a unit in the last place of 1; what small ones lose, of the largest


def every_kind(seed=0, size=200_000):
    """Normal float32 of all exponents, with signed zeros and what is next to ties."""
    bits = np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32)
    bits[::3] &= np.uint32(0xFFFF8000)  # ties of bfloat16
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) >= 2.0**-126)]
    return np.concatenate([x, np.float32([0.0, -0.0])])


def read(codec, rows):
    """Return rows [n, m] that were written and read again."""
    rows = jnp.asarray(rows, jnp.float32)
    return np.asarray(jax.jit(lambda x: codec.decode(codec.encode(x, None), x.shape[1]))(rows))


def test_bfloat16_is_rounded_as_ml_dtypes_does_and_saturates():
    x = every_kind()
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    largest = np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    assert np.isinf(expected).any()
    expected = np.clip(expected, -largest, largest)
    found = read(quantise.BFLOAT16, x[None])[0]
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("power", [-100, -20, 0, 15, 100])
def test_float16_is_rounded_as_numpy_does_after_a_power_of_two(power):
    """Subnormal halves included."""
    rng = np.random.default_rng(power % 7)
    x = rng.standard_normal(50_000).astype(np.float32) * np.exp2(
        rng.integers(-45, 1, 50_000), dtype=np.float32
    )
    x = np.concatenate([x, np.float32([0.0, -0.0, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11])])
    x *= np.float32(2.0**power)
    x = x[(x == 0) | (np.abs(x) >= 2.0**-126)]  # XLA may take smaller ones for 0
    message = np.asarray(jax.jit(quantise.float16_encode)(x[None]))[0]
    shift = 14 - int(np.floor(np.log2(np.abs(x).max())))
    assert int(message[0]) - 127 == shift
    halves = np.ldexp(x, shift).astype(np.float16)
    if power > -100:
        assert (np.abs(halves[halves != 0]) < 2.0**-14).any()
    np.testing.assert_array_equal(message[1:], halves.view(np.uint16))
    expected = np.ldexp(halves.astype(np.float32), -shift)
    normal = (np.abs(expected) >= 2.0**-126) | (halves == 0)
    found = read(quantise.FLOAT16, x[None])[0]
    np.testing.assert_array_equal(found[normal], expected[normal])


@pytest.mark.parametrize("name", SHORT)
def test_what_is_finite_stays_so_and_what_is_not_stays_visible(name):
    codec, _, half, _ = SHORT[name]
    for largest in (LARGEST, 1e30, 65519.0, 65520.0, 1.0, 1e-30):
        x = np.float32([[largest, -largest, 0.5 * largest]])
        found = read(codec, x)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, x, rtol=2 * half)
    x = np.float32([[np.nan, np.inf, -np.inf, 3.0, LARGEST]])
    found = read(codec, x)[0]
    assert np.isnan(found[0]) and found[1] == np.inf and found[2] == -np.inf
    assert np.isfinite(found[3:]).all()
    quiet = np.uint32([[0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF]]).view(np.float32)
    assert np.isnan(read(codec, quiet)).all()


def summed(codec, x, run="vmap"):
    """[n, ...] sums of x [n, ...], and what of them was sent, under `vmap` or `shard_map`."""

    def body(x):
        reduced = quantise.two_phase_all_reduce(x, codec)
        rounding = quantise.at_own_chunk(reduced.left, x.size).reshape(x.shape)
        return reduced.total, reduced.sent - rounding

    if run == "vmap":
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(body, axis_name=AXIS))(jnp.asarray(x)))
    devices = jax.devices()[: len(x)]
    mesh = jax.make_mesh((len(x),), (AXIS,), (jax.sharding.AxisType.Auto,), devices=devices)
    stacked = jax.sharding.PartitionSpec(AXIS)

    def of_device(x):
        return jax.tree.map(lambda a: a[None], body(x[0]))

    mapped = jax.shard_map(of_device, mesh=mesh, in_specs=stacked, out_specs=stacked)
    return jax.tree.map(np.asarray, jax.block_until_ready(jax.jit(mapped)(x)))


def values(workers, shape=(37, 5), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((workers, *shape)) * np.exp2(rng.integers(-12, 5, (workers, *shape)))
    return x.astype(np.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [3, 8])
def test_bfloat16_sums_are_those_of_numpy(workers):
    """Of rounded contributions, by halves in float32, and rounded once."""
    x = values(workers)
    rows = list(x.astype(ml_dtypes.bfloat16).astype(np.float32))
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [a + b for a, b in zip(rows, rows[half : 2 * half], strict=False)] + rows[2 * half :]
    expected = rows[0].astype(ml_dtypes.bfloat16).astype(np.float32)
    total, _ = summed(quantise.BFLOAT16, x)
    np.testing.assert_array_equal(total, np.broadcast_to(expected, x.shape))


@pytest.mark.parametrize(("workers", "name"), [(3, "bf16"), (8, "fp16")])
def test_a_sum_is_rounded_once_per_contribution_and_once_itself(workers, name):
    codec, _, half, small = SHORT[name]
    x = values(workers).astype(np.float64)
    total, sent = summed(codec, x.astype(np.float32))
    of_each = half * np.abs(x).sum(0) + small * workers * np.abs(x).max()
    exact = x.sum(0)
    of_sum = half * (np.abs(exact) + of_each) + small * workers * np.abs(x).max()
    float32 = workers * 2.0**-24 * np.abs(x).sum(0)
    assert (np.abs(total[0] - exact) <= of_each + of_sum + float32).all()
    assert np.abs(total[0] - exact).max() > 2.0**-24 * np.abs(exact).max()  # it is rounded
    np.testing.assert_allclose(sent.sum(0, dtype=np.float64), total[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_devices_find_the_bits_of_simulated_workers(name):
    for workers, shape in ((3, (37, 5)), (8, (4,)), (8, (1000,)), (1, (6,))):
        x = values(workers, shape)
        here, there = (summed(SHORT[name][0], x, run) for run in ("vmap", "shard_map"))
        jax.tree.map(np.testing.assert_array_equal, here, there)
        np.testing.assert_array_equal(here[0], np.broadcast_to(here[0][:1], x.shape))


@pytest.mark.parametrize("name", SHORT)
def test_a_message_is_as_long_as_it_says(name):
    codec = SHORT[name][0]
    for entries in (1, 5, 1000):
        shape = jax.eval_shape(codec.encode, jax.ShapeDtypeStruct((1, entries), jnp.float32))
        assert shape.dtype == jnp.uint16 and 2 * shape.size == codec.payload_bytes(entries)
