"""The lattice codec against NumPy bit for bit, and what its bounds and checksums promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import lattice
from tests.comms import host_lattice
from tests.refusals import refused

ROUNDINGS = [False, True]


def encode(x, side, bits, noise=None, bucket=lattice.BUCKET):
    """(message, points [size]) of a vector."""
    x = jnp.asarray(x)
    message, points = lattice.encode(lattice.in_buckets(x, bucket), side, bits, noise)
    return message, lattice.flat(points, x.size)


def decode(message, reference, bits, bucket=lattice.BUCKET):
    """(points [size], ok) of a message that meets a vector."""
    reference = jnp.asarray(reference)
    points, ok = lattice.decode(message, lattice.in_buckets(reference, bucket), bits)
    return lattice.flat(points, reference.size), ok


encode = jax.jit(encode, static_argnames=("bits", "bucket"))
decode = jax.jit(decode, static_argnames=("bits", "bucket"))


def noise_for(stochastic, size, seed=0, bucket=lattice.BUCKET):
    """Uniform in [0, 1) for every coordinate of every bucket, or None."""
    count = lattice.buckets(size, bucket)
    shape = (count, -(-size // count))
    return np.random.default_rng(seed).random(shape, np.float32) if stochastic else None


def near(rng, size, distance, spread=3.0):
    """Draw x [size], and a reference at up to `distance` from it."""
    x = rng.normal(scale=spread, size=size).astype(np.float32)
    return x, (x + rng.uniform(-distance, distance, size)).astype(np.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize(("bits", "stochastic"), [(5, False), (8, True)])
def test_host_equals_jit_bit_for_bit(bits, stochastic):
    """Also where sides are constants, by which compilers like to divide."""
    size = 200_000
    rng = np.random.default_rng(0)
    side = rng.uniform(1e-3, 3e-2, lattice.buckets(size)).astype(np.float32)
    x, reference = near(rng, size, 0.9 * lattice.radius(1e-3, bits, stochastic))
    u = noise_for(stochastic, size)
    expected = host_lattice.encode(x, side, bits, u)
    traced, points = encode(x, side, bits, u)
    np.testing.assert_array_equal(traced, expected)
    for constant in (side, 0.3):
        found, _ = jax.jit(lambda x, side=constant: encode(x, side, bits, u))(x)
        np.testing.assert_array_equal(found, host_lattice.encode(x, np.float32(constant), bits, u))
    value, ok = decode(traced, reference, bits)
    expected_value, k = host_lattice.decode(expected, reference, bits)
    sums = host_lattice.checksum(k).astype("<u4").view("<u1")
    np.testing.assert_array_equal(sums, expected[:, :8])
    assert ok.all()
    np.testing.assert_array_equal(value, expected_value)
    np.testing.assert_array_equal(points, value)


def test_small_vector_by_hand():
    # k = round(x / 0.5) = [-3, 2, 7, 0]; modulo 4: [1, 2, 3, 0].
    message, points = encode(np.array([-1.4, 0.9, 3.6, 0.2]), 0.5, 2)
    # Four coordinates in a byte, the first one lowest; 0.5 in float32 before it.
    np.testing.assert_array_equal(message[:, 8:], [[0, 0, 0, 0x3F, 0b00_11_10_01]])
    value, ok = decode(message, np.array([-1.0, 0.5, 3.9, -0.5]), 2)
    assert ok.tolist() == [True]
    np.testing.assert_array_equal(value, [-1.5, 1.0, 3.5, 0.0])
    np.testing.assert_array_equal(points, value)


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", [7, 13, 16])
def test_colours_of_any_width_are_packed_and_found_again(bits):
    """Also in buckets that no byte divides, and of no coordinates."""
    write, read = (jax.jit(one, static_argnums=2) for one in (lattice.encode, lattice.decode))
    rng = np.random.default_rng(bits)
    for n in (3, 50):
        x = rng.uniform(-1, 1, (3, n)).astype(np.float32)
        message, points = write(x, 2.0 / 2**bits, bits)
        assert message.shape == (3, lattice.row_bytes(n, bits))
        colours = np.mod(np.round(x * np.float32(2 ** (bits - 1))).astype(int), 2**bits)
        np.testing.assert_array_equal(message[:, 12:], host_lattice.pack(colours, bits))
        found, ok = read(message, x, bits)
        assert ok.all()
        np.testing.assert_array_equal(found, points)
    message, _ = encode(np.zeros(0), 0.1, bits)
    assert message.nbytes == lattice.payload_bytes(0, bits) == 0
    assert lattice.payload_bytes(1_025, bits, 300) == 4 * lattice.row_bytes(257, bits)
    assert decode(message, np.zeros(0), bits)[0].shape == (0,)


def trial(x, reference, side, bits, stochastic=False):
    """(message, points, value, ok) of a bucket per trial."""
    noise = np.random.default_rng(5).random(x.shape, np.float32) if stochastic else None

    @jax.jit
    def all_of_them(x, reference):
        message, points = lattice.encode(x, side, bits, noise)
        return message, points, *lattice.decode(message, reference, bits)

    return all_of_them(x, reference)


@pytest.mark.few(1)
@pytest.mark.parametrize(("bits", "stochastic"), [(8, False), (2, True), (16, True)])
def test_a_decode_is_right_inside_the_radius_and_detected_outside(bits, stochastic):
    """At .9 to .9995 of it, and at 1.2; one coordinate that is wrong by some turns is detected.

    With 4 levels and random rounding 1 coordinate in 50 goes wrong.
    """
    side, trials, size = 0.01, 1_000, 1_000 if bits == 2 else 100
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    radius = float(lattice.radius(side, bits, stochastic))
    signs = rng.choice([-1, 1], x.shape)
    inside = x + signs * rng.uniform(0.9, 0.9995, x.shape) * radius
    _, points, value, ok = trial(x, inside.astype(np.float32), side, bits, stochastic)
    assert ok.all()
    np.testing.assert_array_equal(value, points)
    assert np.abs(value - x).max() <= side * (1 if stochastic else 0.5) * 1.01 + 1e-6

    outside = (x + signs * 1.2 * radius).astype(np.float32)
    message, points, value, ok = trial(x, outside, side, bits, stochastic)
    silent, _ = host_lattice.decode(np.asarray(message), outside.ravel(), bits)
    assert (silent.reshape(x.shape) != points).any(1).all()  # every trial has something to detect
    assert not ok.any()
    np.testing.assert_array_equal(value, outside)

    one = x.copy()
    turns = rng.choice([-2, -1, 1, 2], trials)
    one[np.arange(trials), rng.integers(0, size, trials)] += np.float32(turns * 2**bits * side)
    assert not trial(x, one, side, bits)[3].any()


def test_a_bucket_that_is_not_finite_is_void():
    """So is one whose side is impossible."""
    for bad in (np.nan, -np.inf):
        x = np.ones(40, np.float32)
        x[13] = bad  # bucket 1 of 4
        for stochastic in ROUNDINGS:
            message, points = encode(x, 0.5, 8, noise_for(stochastic, 40, bucket=10), bucket=10)
            assert lattice.is_void(message).tolist() == [False, True, False, False]
            np.testing.assert_array_equal(points, x)
            for reference in (np.zeros(40, np.float32), np.nan_to_num(x)):
                value, ok = decode(message, reference, 8, bucket=10)
                assert ok.tolist() == [True, False, True, True]
                np.testing.assert_array_equal(value[10:20], reference[10:20])
                np.testing.assert_array_equal(value[20:], x[20:])
    for side in (0.0, -1.0, np.nan, np.inf, 1e-40, 3e38):
        message, points = encode(np.ones(5), side, 8)
        assert lattice.is_void(message).all() and not decode(message, np.ones(5), 8)[1].any()
        np.testing.assert_array_equal(points, np.ones(5))


@pytest.mark.parametrize("large", [2.0**21, 1e4, 3e38])
def test_a_side_that_float32_cannot_resolve_is_raised(large):
    """To 2^-21 of the bucket's largest number; the silent error of a plain codec is several s."""
    x = np.float32(large) * np.linspace(0.999, 1, 40, dtype=np.float32)
    x[:10] = 0.25
    message, points = encode(x, 1e-3, 8, bucket=10)
    raised = np.abs(x[10:].reshape(3, 10)).max(1) * np.float32(2.0**-21)
    side = lattice.radius(1 / lattice.bound_of(message, 8), 8) ** -1
    np.testing.assert_allclose(side, [1e-3, *np.maximum(raised, 1e-3)], rtol=1e-5)
    value, ok = decode(message, x, 8, bucket=10)
    assert ok.all()
    np.testing.assert_array_equal(value, points)
    error = np.abs(value - x.astype(np.float64)).reshape(4, 10).max(1)
    assert (error <= 0.51 * np.asarray(side) + np.abs(x).reshape(4, 10).max(1) * 2.0**-24).all()


def test_damaged_messages_and_references_out_of_range_read_nothing_wrong():
    x = np.random.default_rng(8).normal(size=96).astype(np.float32)
    message, _ = encode(x, 0.01, 8)
    assert decode(message, x, 8)[1].all()
    for far in (1e4, 3e38, np.inf, np.nan):
        value, ok = decode(message, np.full(96, far, np.float32), 8)
        assert not ok.any()
        np.testing.assert_array_equal(value, np.full(96, far, np.float32))
    for octet, bit in ((12, 1), (50, 2), (107, 128), (0, 1), (6, 1)):
        flipped = message.at[0, octet].set(message[0, octet] ^ np.uint8(bit))
        assert not decode(flipped, x, 8)[1].any()


def test_sides_and_radii():
    for bits in (2, 16):
        q, theta = 2**bits, 0.3
        assert float(lattice.side_for(theta, bits)) == pytest.approx(2 * theta / (q - 1))
        assert float(lattice.side_for(theta, bits, True)) == pytest.approx(2 * theta / (q - 2))
        for stochastic in ROUNDINGS:
            side = float(lattice.side_for(theta, bits, stochastic))
            assert lattice.radius(side, bits, stochastic) == pytest.approx(theta)


def test_floats_of_a_tree_travel_as_one_vector():
    tree = {
        "w": jnp.arange(6.0, dtype=jnp.bfloat16).reshape(2, 3),
        "b": jnp.float32(7),
        "count": jnp.int32(2**30 + 1),
        "key": jax.random.key(0),
        "none": jnp.zeros((0, 3)),
    }
    vector, restore = lattice.ravel_floats(tree)
    assert vector.dtype == jnp.float32
    assert sorted(vector.tolist()) == [0, 1, 2, 3, 4, 5, 7]
    restored = jax.jit(lambda v: restore(v))(vector + 1)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), restored) == jax.tree.map(
        lambda x: (x.shape, x.dtype), tree
    )
    np.testing.assert_array_equal(restored["w"].astype(float), [[1, 2, 3], [4, 5, 6]])
    assert restored["b"] == 8 and restored["count"] == 2**30 + 1
    assert lattice.ravel_floats({"count": jnp.int32(1)})[0].shape == (0,)


test_refusals = refused(
    (lambda: encode(np.ones(3), 0.1, 17), "17 bits a coordinate; set an integer"),
    (lambda: lattice.side_for(0.1, 1), "1 bits a coordinate"),
    (lambda: lattice.payload_bytes(10, 2.5), "2.5 bits a coordinate"),
    (lambda: encode(np.ones((2, 3)), 0.1, 8), r"shape \(2, 3\); flatten it"),
    (lambda: encode(np.ones(3), np.ones(2), 8), r"\(2,\) for 1 buckets"),
    (lambda: lattice.buckets(3, 0), "holds no coordinate"),
    (
        lambda: decode(encode(np.ones(3), 0.1, 8)[0], np.ones(33), 8),
        r"a message \(1, 15\) meets a reference of 1 buckets of 33 in 8 bits",
    ),
)
