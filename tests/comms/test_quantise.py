"""Few bits an entry: unbiased rounding, NumPy's and ml_dtypes' rounding, sums in two phases."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scipy import stats

from comms import bitmap, hashing, quantise
from comms.cost import payload_bytes
from tests.marks import slow

DRAWS = 4000
KEY = jax.random.key(0)


def gradient(size=60, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@functools.partial(jax.jit, static_argnums=1)
def qsgd(x, levels, key):
    return quantise.qsgd_decode(quantise.qsgd(x, levels, key, 16), x.size, levels, 16)


@jax.jit
def natural(x, key):
    return quantise.natural_decode(quantise.natural(x, key))


def blocks(bucket):
    """Return the codecs of blocks by name."""
    return {
        "int8": quantise.int8_codec(bucket),
        "int4": quantise.int4_codec(bucket),
        "e4m3": quantise.fp8_codec(quantise.E4M3, bucket),
        "e5m2": quantise.fp8_codec(quantise.E5M2, bucket),
        "mxfp4": quantise.mxfp4_codec(),
    }


def in_two_phases(codec, x, key):
    """Return the sum at one of two workers, if the other one's gradient is zero."""

    def body(x, key):
        return quantise.two_phase_all_reduce(x, codec, key=key).total

    both = jnp.stack([x, jnp.zeros_like(x)])
    return jax.vmap(body, axis_name="workers")(both, jax.random.split(key))[0]


@pytest.mark.parametrize(
    "codec", ["qsgd", "natural", "int8", *map(slow, ("mxfp4", "int4", "e4m3", "e5m2"))]
)
def test_unbiased(codec):
    if codec in blocks(16):
        of = functools.partial(in_two_phases, blocks(16)[codec])
    else:
        of = {"qsgd": lambda x, key: qsgd(x, 7, key), "natural": natural}[codec]
    x = jnp.asarray(gradient())
    keys = jax.random.split(KEY, DRAWS)
    found = np.asarray(jax.jit(jax.vmap(lambda key: of(x, key)))(keys), np.float64)
    errors = found - np.asarray(x)
    spread = errors.std(axis=0) > 1e-4 * np.abs(x)
    assert spread.any()
    assert stats.ttest_1samp(errors[:, spread], 0).pvalue.min() > 1e-2 / x.size
    np.testing.assert_allclose(found[0, ~spread], x[~spread], rtol=1e-4)


@pytest.mark.parametrize("levels", [7, 32767])
def test_qsgd_gives_multiples_of_the_norm_next_to_the_entries(levels):
    """Also of numbers whose squares are no float32; a NaN costs its own stretch."""
    assert [quantise.qsgd_bits(some) for some in (1, 7, 32767)] == [2, 4, 16]
    for scale in np.float32([1, 1e-30, 1e30]):
        x = gradient() * scale
        x[50] = np.nan
        found = np.asarray(qsgd(x, levels, KEY))
        for start in range(0, 48, 16):
            part, entries = found[start : start + 16] / scale, x[start : start + 16] / scale
            unit = np.linalg.norm(entries) / levels
            np.testing.assert_allclose(part / unit, np.round(part / unit), atol=0.01)
            assert (np.abs(part - entries) <= 1.001 * unit).all()
            assert (part * entries >= 0).all()
        assert np.isnan(found[48:]).all()


def test_qsgd_part_by_part_is_qsgd_at_once(monkeypatch):
    levels, size = 7, 991
    x, key = gradient(size), jax.random.key(3)
    count, bits = -(-size // 16), quantise.qsgd_bits(levels)
    stretches = jnp.pad(x, (0, 16 * count - size)).reshape(count, 16)
    draws = hashing.uniform(key, stretches.shape)
    codes, scale = jax.jit(quantise._qsgd_codes, static_argnums=1)(stretches, levels, draws)
    at_once = bitmap.pack_codes(codes.ravel()[:size], bits), scale
    for part in (1, 300):
        monkeypatch.setattr(quantise, "_PART", part)
        found = jax.jit(functools.partial(quantise.qsgd, levels=levels, bucket=16))(x, key=key)
        jax.tree.map(np.testing.assert_array_equal, tuple(found), at_once)


def test_natural_gives_one_of_the_powers_of_two_next_to_the_entry():
    x = gradient(500) * 10.0 ** np.random.default_rng(1).integers(-12, 12, 500)
    x = x.astype(np.float32)
    found = np.asarray(natural(x, KEY))
    mantissa, _ = np.frexp(found)
    np.testing.assert_array_equal(np.abs(mantissa), 0.5)
    ratio = found / x
    assert (ratio > 0.5).all() and (ratio <= 2).all()
    relative = (found - x) ** 2 / x**2
    assert relative.mean() < 1 / 8 + 0.02  # its variance bound, Theorem 1


def test_natural_does_not_leave_the_range_of_float32():
    found = natural(jnp.tile(jnp.float32([3e38, -3e38]), 50), KEY)
    assert (jnp.abs(found) == 2.0**127).all()


def test_natural_of_entries_below_its_range():
    """2^-126 of the largest: one half of the smallest power, up half of the times."""
    x = np.float32([2.0**20, 2.0**-106, -(2.0**-106), 2.0**-120])
    draw = jax.jit(jax.vmap(lambda key: natural(x, key)))
    found = np.asarray(draw(jax.random.split(KEY, 1000)))
    np.testing.assert_array_equal(found[:, 0], 2.0**20)
    assert set(np.unique(found[:, 1])) == {0.0, 2.0**-105}
    assert set(np.unique(found[:, 2])) == {-(2.0**-105), 0.0}
    assert abs((found[:, 1] > 0).mean() - 0.5) < 0.07
    assert (found[:, 3] == 0).mean() > 0.99


def test_sign_by_hand():
    x = jnp.array([[1.0, -3.0], [0.0, 4.0]])
    np.testing.assert_array_equal(quantise.sign_decode(quantise.sign(x), 4), [2, -2, 2, 2])


def test_what_fills_the_last_chunk_up_weighs_nothing_in_a_sum_of_signs():
    """Seven entries of three workers in chunks of three: a sign has no zero."""

    def signs(x):
        return np.where(x < 0, -1, 1) * np.abs(x).mean(axis=-1, keepdims=True)

    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    sums = signs(np.pad(x, ((0, 0), (0, 2))).reshape(3, 3, 3)).sum(0)
    sums[2, 1:] = 0
    codec = quantise.sign_codec()
    body = jax.vmap(lambda x: quantise.two_phase_all_reduce(x, codec).total, axis_name="workers")
    found = jax.jit(body)(x)
    np.testing.assert_allclose(found, np.tile(signs(sums).ravel()[:7], (3, 1)), rtol=1e-5)


def test_a_single_worker_rounds_nothing():
    x, codec = gradient()[None], quantise.int8_codec(25)
    body = jax.vmap(lambda x: quantise.two_phase_all_reduce(x, codec).total, axis_name="workers")
    np.testing.assert_array_equal(jax.jit(body)(x), x)


FORMS = {
    "e4m3": (quantise.E4M3, ml_dtypes.float8_e4m3fn),
    "e5m2": (quantise.E5M2, ml_dtypes.float8_e5m2),
    "e2m1": (quantise.E2M1, ml_dtypes.float4_e2m1fn),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FORMS)
def test_floats_of_few_bits_are_those_of_ml_dtypes(name):
    """All codes, and the nearest of numbers of all sizes, ties, zeros, and what is too large."""
    form, dtype = FORMS[name]
    codes = np.arange(2**form.bits, dtype=np.uint8)
    finite = codes[codes % 2 ** (form.bits - 1) <= form.top]
    values = finite.view(dtype).astype(np.float32)
    found = np.asarray(quantise.minifloat_decode(finite, form))
    np.testing.assert_array_equal(found.view(np.uint32), values.view(np.uint32))
    rng = np.random.default_rng(0)
    random = rng.standard_normal(20_000) * np.exp2(rng.integers(form.least - 6, 18, 20_000))
    positive = np.unique(np.abs(values))
    x = np.concatenate([random, values, positive[:-1] + np.diff(positive) / 2]).astype(np.float32)
    expected = np.clip(x, -form.most, form.most).astype(dtype).view(np.uint8)
    found = jax.jit(lambda x: quantise.minifloat_encode(x, form))(x)
    np.testing.assert_array_equal(found, expected)


def nibbles(octets, n):
    return np.concatenate([octets & 15, octets >> 4], axis=-1)[..., :n]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", blocks(16))
def test_blocks_are_numpys_bit_for_bit(name):
    """Codes and scales in float64 where the scales are powers of two, which divide exactly."""
    width = 32 if name == "mxfp4" else 16
    most = {"int8": 127, "int4": 7, "mxfp4": 7.9}.get(name) or FORMS[name][0].most
    rng = np.random.default_rng(0)
    x = rng.uniform(-most, most, (3, 5, width))
    x[..., 2] = most  # an entry between 6 and 8 is cut off by MXFP4
    x = (x * np.exp2(rng.integers(-60, 60, (3, 5, 1)))).astype(np.float32)
    x[0, 0] = 0
    rows = x.reshape(3, -1)[:, :-3]  # the last block is not full
    message = jax.jit(lambda x: blocks(16)[name].encode(x, None))(rows)
    x[:, -1, -3:] = 0
    largest = np.abs(x).max(-1).astype(np.float64)
    if name == "mxfp4":
        with np.errstate(divide="ignore"):
            power = np.maximum(np.floor(np.log2(largest)) - 2, -126)
        np.testing.assert_array_equal(message.scale, power + 127)
        expected = np.clip(x / np.exp2(power)[..., None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
        decoded, codes = expected.astype(float) * np.exp2(power)[..., None], expected.view(np.uint8)
    else:
        scale = largest / most
        np.testing.assert_array_equal(message.scale, scale)
        unit = x / np.where(scale > 0, scale, 1)[..., None]
        if name in FORMS:
            expected = unit.astype(FORMS[name][1])
            codes = expected.view(np.uint8)
        else:
            expected = np.rint(unit)
            codes = expected.astype(np.int8).view(np.uint8) & (15 if name == "int4" else 255)
        decoded = expected.astype(float) * scale[..., None]
    found = np.asarray(message.codes).view(np.uint8)
    np.testing.assert_array_equal(found if found.shape == x.shape else nibbles(found, width), codes)
    read = blocks(16)[name].decode(message, rows.shape[1])
    np.testing.assert_array_equal(read, decoded.reshape(3, -1)[:, :-3])


def test_blocks_are_as_large_as_said():
    for codec in blocks(16).values():
        for entries in (1, 15, 331):
            rows = jax.ShapeDtypeStruct((3, entries), jnp.float32)
            message = jax.eval_shape(codec.encode, rows, KEY)
            assert payload_bytes(message) == 3 * codec.payload_bytes(entries)


def test_a_nan_of_a_large_array_costs_its_block():
    """XLA on CPU leaves it out of the maxima of arrays that are not small."""
    x = np.random.default_rng(0).standard_normal((1, 10_000)).astype(np.float32)
    x[0, 70] = np.nan
    for codec in (blocks(128)["int8"], blocks(32)["mxfp4"]):
        read = jax.jit(lambda x, codec=codec: codec.decode(codec.encode(x, KEY), x.shape[1]))
        assert np.isnan(read(x)).sum() in (32, 128)
    assert np.isnan(natural(x[0], KEY)).all()


@pytest.mark.parametrize("name", ["int8", slow("mxfp4")])
def test_blocks_in_parts_are_those_at_once(name, monkeypatch):
    codec = blocks(16)[name]
    x = np.random.default_rng(1).standard_normal((3, 331)).astype(np.float32)
    at_once = jax.jit(codec.encode)(x, KEY)
    monkeypatch.setattr(quantise, "_BLOCKS", 200)
    found = jax.jit(lambda x, key: codec.encode(x, key))(x, KEY)
    jax.tree.map(np.testing.assert_array_equal, found, at_once)


@pytest.mark.parametrize(
    "encode", [lambda x, key: quantise.qsgd(x, 7, key, 16), blocks(16)["int8"].encode]
)
def test_parts_are_for_processors_with_caches_alone(encode, monkeypatch):
    monkeypatch.setattr(quantise, "_BLOCKS", 200)
    x = jnp.ones((3, 1000))
    assert "scan" in str(jax.make_jaxpr(lambda x, key: encode(x, key))(x, KEY))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "scan" not in str(jax.make_jaxpr(lambda x, key: encode(x, key))(x, KEY))


def test_levels_without_a_code_are_refused():
    for levels in (0, 2**15):
        with pytest.raises(ValueError, match="levels must be 1 to 32767"):
            quantise.qsgd(jnp.ones(3), levels, KEY)


# --- short floats ---

LARGEST = np.finfo(np.float32).max
SHORT = {
    "bf16": (quantise.BFLOAT16, ml_dtypes.bfloat16, 2.0**-8, 0.0),
    "fp16": (quantise.FLOAT16, np.float16, 2.0**-11, 2.0**-39),
}  # codec, dtype, half a unit in the last place of 1; what small ones lose, of the largest


def read(codec, rows):
    """Return rows [n, m] that were written and read again."""
    rows = jnp.asarray(rows, jnp.float32)
    message = jax.eval_shape(codec.encode, rows)
    assert message.dtype == jnp.uint16
    assert 2 * message.size == len(rows) * codec.payload_bytes(rows.shape[1])
    return np.asarray(jax.jit(lambda x: codec.decode(codec.encode(x, None), x.shape[1]))(rows))


def test_bfloat16_is_rounded_as_ml_dtypes_does_and_saturates():
    """Normal float32 of all exponents, with signed zeros and what is next to ties."""
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    bits[::3] &= np.uint32(0xFFFF8000)  # ties of bfloat16
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) >= 2.0**-126)]
    x = np.concatenate([x, np.float32([0.0, -0.0])])
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    largest = np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    assert np.isinf(expected).any()
    expected = np.clip(expected, -largest, largest)
    found = read(quantise.BFLOAT16, x[None])[0]
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("power", [-100, 100])
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
    for largest in (LARGEST, 65519.0, 65520.0, 1e-30):
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


def values(workers, shape=(37, 5), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((workers, *shape)) * np.exp2(rng.integers(-12, 5, (workers, *shape)))
    return x.astype(np.float32)


@pytest.mark.few(2)
@pytest.mark.parametrize(("workers", "name"), [(3, "bf16"), (8, "fp16")])
def test_a_sum_is_rounded_once_per_contribution_and_once_itself(spmd, workers, name):
    """Of bfloat16 it is NumPy's: by halves in float32."""
    codec, dtype, half, small = SHORT[name]

    def body(x):
        reduced = quantise.two_phase_all_reduce(x, codec)
        rounding = quantise.at_own_chunk(reduced.left, x.size).reshape(x.shape)
        return reduced.total, reduced.sent - rounding

    x = values(workers)
    total, sent = map(np.asarray, spmd(body, x))
    np.testing.assert_array_equal(total, np.broadcast_to(total[:1], x.shape))
    if name == "bf16":
        rows = list(x.astype(dtype).astype(np.float32))
        while len(rows) > 1:
            middle = len(rows) // 2
            pairs = zip(rows[:middle], rows[middle : 2 * middle], strict=True)
            rows = [a + b for a, b in pairs] + rows[2 * middle :]
        np.testing.assert_array_equal(total[0], rows[0].astype(dtype).astype(np.float32))
    x = x.astype(np.float64)
    of_each = half * np.abs(x).sum(0) + small * workers * np.abs(x).max()
    exact = x.sum(0)
    of_sum = half * (np.abs(exact) + of_each) + small * workers * np.abs(x).max()
    float32 = workers * 2.0**-24 * np.abs(x).sum(0)
    assert (np.abs(total[0] - exact) <= of_each + of_sum + float32).all()
    assert np.abs(total[0] - exact).max() > 2.0**-24 * np.abs(exact).max()  # it is rounded
    np.testing.assert_allclose(sent.sum(0, dtype=np.float64), total[0], rtol=1e-5, atol=1e-5)
