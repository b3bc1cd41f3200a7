import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import lattice
from tests.comms import host_lattice
from tests.marks import slow

ROUNDINGS = [False, True]
BOTH = pytest.mark.parametrize(
    ("bits", "stochastic"), [(8, False), slow(2, True), slow(16, True)]
)  # of widths and of roundings


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
    """x [size], and a reference at up to `distance` from it."""
    x = rng.normal(scale=spread, size=size).astype(np.float32)
    return x, (x + rng.uniform(-distance, distance, size)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "stochastic"), [(5, False), (8, True)])
def test_host_equals_jit_bit_for_bit(bits, stochastic):
    size = 1_000_000
    count = lattice.buckets(size)
    rng = np.random.default_rng(0)
    side = rng.uniform(1e-3, 3e-2, count).astype(np.float32)
    x, reference = near(rng, size, 0.9 * lattice.radius(1e-3, bits, stochastic))
    u = noise_for(stochastic, size)
    expected = host_lattice.encode(x, side, bits, u)
    traced, points = encode(x, side, bits, u)
    constant, _ = jax.jit(lambda x: encode(x, side, bits, u))(x)
    np.testing.assert_array_equal(traced, expected)
    np.testing.assert_array_equal(constant, expected)
    value, ok = decode(traced, reference, bits)
    expected_value, k = host_lattice.decode(expected, reference, bits)
    np.testing.assert_array_equal(
        host_lattice.checksum(k).astype("<u4").view("<u1"), expected[:, :8]
    )
    assert ok.all()
    np.testing.assert_array_equal(value, expected_value)
    np.testing.assert_array_equal(points, value)


def test_constant_sides_are_not_divided_by():
    # Compilers like to rewrite x * (1 / s); a rounding in between would move ties.
    rng = np.random.default_rng(1)
    x = rng.normal(size=1_000_000).astype(np.float32)
    for side in (0.3, 7e-5):
        found, _ = jax.jit(lambda x, side=side: encode(x, side, 8))(x)
        np.testing.assert_array_equal(found, host_lattice.encode(x, np.float32(side), 8))


def test_small_vector_by_hand():
    # k = round(x / 0.5) = [-3, 2, 7, 0]; modulo 4: [1, 2, 3, 0].
    message, points = encode(np.array([-1.4, 0.9, 3.6, 0.2]), 0.5, 2)
    # Four coordinates in a byte, the first one lowest; 0.5 in float32 before it.
    np.testing.assert_array_equal(message[:, 8:], [[0, 0, 0, 0x3F, 0b00_11_10_01]])
    value, ok = decode(message, np.array([-1.0, 0.5, 3.9, -0.5]), 2)
    assert ok.tolist() == [True]
    np.testing.assert_array_equal(value, [-1.5, 1.0, 3.5, 0.0])
    np.testing.assert_array_equal(points, value)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 7, 8, 13, 16])
def test_colours_of_any_width_are_packed_and_found_again(bits):
    """Also in buckets that no byte divides."""
    rng = np.random.default_rng(bits)
    for n in (1, 3, 8, 50):
        x = rng.uniform(-1, 1, (3, n)).astype(np.float32)
        message, points = lattice.encode(jnp.asarray(x), 2.0 / 2**bits, bits)
        assert message.shape == (3, lattice.row_bytes(n, bits))
        colours = np.mod(np.round(x * np.float32(2 ** (bits - 1))).astype(int), 2**bits)
        np.testing.assert_array_equal(message[:, 12:], host_lattice.pack(colours, bits))
        found, ok = lattice.decode(message, jnp.asarray(x), bits)
        assert ok.all()
        np.testing.assert_array_equal(found, points)


@BOTH
def test_error_is_bounded_inside_the_radius(bits, stochastic):
    rng = np.random.default_rng(bits)
    side = 0.01
    x, reference = near(rng, 5_000, 0.999 * lattice.radius(side, bits, stochastic))
    message, _ = encode(x, side, bits, noise_for(stochastic, x.size))
    value, ok = decode(message, reference, bits)
    assert ok.all()
    bound = side if stochastic else side / 2
    assert np.abs(value - x).max() <= bound * (1 + 1e-3)


@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_error_does_not_depend_on_where_x_and_the_reference_are(stochastic):
    rng = np.random.default_rng(2)
    side = 2.0**-6
    x, reference = np.round(np.array(near(rng, 3_000, 1.5, 1.0)) * 2**12) / 2**12
    errors = []
    for offset in (0, 100, -1_000):  # multiples of s: the same point of a cell of the lattice
        message, _ = encode(x + offset, side, 8, noise_for(stochastic, x.size))
        value, ok = decode(message, reference + offset, 8)
        assert ok.all()
        errors.append(value - np.float32(x + offset))
    np.testing.assert_array_equal(errors[0], errors[1])
    np.testing.assert_array_equal(errors[0], errors[2])


@pytest.mark.few(1)
@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_half_the_distance_at_half_the_side_is_half_the_error(stochastic):
    rng = np.random.default_rng(3)
    x = rng.normal(size=20_000).astype(np.float32)
    errors = []
    for distance in (0.2, 0.1):
        side = lattice.side_for(1.01 * distance, 6, stochastic)
        reference = x + rng.uniform(-distance, distance, x.size).astype(np.float32)
        message, _ = encode(x, side, 6, noise_for(stochastic, x.size))
        value, ok = decode(message, reference, 6)
        assert ok.all()
        errors.append(float(jnp.sqrt(jnp.square(value - x).mean())))
    assert errors[1] / errors[0] == pytest.approx(0.5, rel=0.02)


def test_stochastic_rounding_is_unbiased():
    x = np.linspace(-1.7, 1.9, 40, dtype=np.float32)
    side, draws = 0.25, 20_000
    noise = np.random.default_rng(4).random((draws, 1, 40), np.float32)

    def one(noise):
        message, _ = encode(x, side, 6, noise)
        return decode(message, x, 6)

    value, ok = jax.jit(jax.vmap(one))(noise)
    assert ok.all()
    part = x / side - np.floor(x / side)
    variance = side**2 * part * (1 - part)
    assert variance.max() <= side**2 / 4
    error = np.asarray(value, np.float64) - x
    assert (np.abs(error.mean(0)) <= 5 * np.sqrt(variance / draws) + 1e-6).all()
    np.testing.assert_allclose(error.var(0), variance, atol=0.03 * side**2)


@BOTH
def test_a_decode_at_1_2_times_the_radius_is_detected(bits, stochastic):
    # With 4 levels and random rounding 1 coordinate in 50 goes wrong.
    side, trials, size = 0.01, 1_000, 1_000 if bits == 2 else 100
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    at = 1.2 * lattice.radius(side, bits, stochastic)
    reference = (x + rng.choice([-at, at], x.shape)).astype(np.float32)
    message, points, value, ok = trial(x, reference, side, bits, stochastic)
    wrong = silent(message, reference, bits) != points
    assert wrong.any(1).all()  # every trial has something to detect
    assert not ok.any()
    np.testing.assert_array_equal(value, reference)


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", [2, 8])
def test_one_wrong_coordinate_is_detected(bits):
    side, trials, size = 0.01, 1_000, 500
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    reference = x.copy()
    where = rng.integers(0, size, trials)
    turns = rng.choice([-2, -1, 1, 2], trials)
    reference[np.arange(trials), where] += (turns * 2**bits * side).astype(np.float32)
    assert not trial(x, reference, side, bits)[3].any()


@BOTH
def test_no_false_alarm_inside_the_radius(bits, stochastic):
    side, trials, size = 0.01, 1_000, 200
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    signs = rng.choice([-1, 1], x.shape) * rng.uniform(0.9, 0.9995, x.shape)
    reference = (x + signs * lattice.radius(side, bits, stochastic)).astype(np.float32)
    _, points, value, ok = trial(x, reference, side, bits, stochastic)
    assert ok.all()
    np.testing.assert_array_equal(value, points)


def trial(x, reference, side, bits, stochastic=False):
    """(message, points, value, ok) of a bucket per trial."""
    noise = np.random.default_rng(5).random(x.shape, np.float32) if stochastic else None

    @jax.jit
    def all_of_them(x, reference):
        message, points = lattice.encode(x, side, bits, noise)
        return message, points, *lattice.decode(message, reference, bits)

    return all_of_them(x, reference)


def silent(message, reference, bits):
    """Return the result of decoding without a checksum."""
    value, _ = host_lattice.decode(np.asarray(message), reference.ravel(), bits)
    return value.reshape(reference.shape)


def test_one_message_serves_every_receiver_and_the_sender():
    rng = np.random.default_rng(6)
    x = rng.normal(size=3_000).astype(np.float32)
    message, points = encode(x, 0.01, 8, noise_for(True, x.size))
    for distance in (0, *[1.2] * 5):
        reference = x + rng.uniform(-distance, distance, x.size).astype(np.float32)
        value, ok = decode(message, reference, 8)
        assert ok.all()
        np.testing.assert_array_equal(value, points)


@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_a_pair_average_in_difference_form_keeps_the_sum_exactly(stochastic):
    rng = np.random.default_rng(7)
    # Multiples of 2^-12 below 2^4 and a side of 2^-6: no float32 rounding anywhere.
    x_i, x_j = np.float32(np.round(np.array(near(rng, 2_000, 1.5, 1.0)) * 2**12) / 2**12)
    side = 2.0**-6
    from_i, point_i = encode(x_i, side, 8, noise_for(stochastic, 2_000, 1))
    from_j, point_j = encode(x_j, side, 8, noise_for(stochastic, 2_000, 2))
    at_i = (decode(from_j, x_i, 8)[0] - point_i) / 2
    at_j = (decode(from_i, x_j, 8)[0] - point_j) / 2
    np.testing.assert_array_equal((x_i + at_i) + (x_j + at_j), x_i + x_j)
    assert np.abs((x_i + at_i) - (x_i + x_j) / 2).max() <= side


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bucket_that_is_not_finite_is_void(bad):
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


@pytest.mark.parametrize("large", [2.0**21, -(2.0**25), 1e4, 3e38])
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


def test_a_reference_out_of_range_reads_nothing_wrong():
    x = np.full(32, 0.3, np.float32)
    message, _ = encode(x, 1e-3, 8)
    for far in (1e4, -1e9, 3e38, np.inf, np.nan):
        value, ok = decode(message, np.full(32, far, np.float32), 8)
        assert not ok.any()
        np.testing.assert_array_equal(value, np.full(32, far, np.float32))
    assert decode(message, x, 8)[1].all()


@pytest.mark.parametrize("side", [0.0, -1.0, np.nan, np.inf, 1e-40, 3e38])
def test_impossible_sides_are_void(side):
    for x in (np.zeros(5), np.ones(5)):
        message, points = encode(x, side, 8)
        assert lattice.is_void(message).all()
        value, ok = decode(message, x, 8)
        assert ok.tolist() == [False]
        np.testing.assert_array_equal(value, x)
        np.testing.assert_array_equal(points, x)


def test_a_corrupted_message_is_detected():
    x = np.random.default_rng(8).normal(size=96).astype(np.float32)
    message, _ = encode(x, 0.01, 8)
    for octet, bit in ((12, 1), (50, 2), (107, 128), (0, 1), (6, 1)):
        flipped = message.at[0, octet].set(message[0, octet] ^ np.uint8(bit))
        assert not decode(flipped, x, 8)[1].any()


@pytest.mark.few(2)
@pytest.mark.parametrize(("size", "bits"), [(0, 8), (32, 16), (1_025, 7), (41, 3)])
def test_bytes_are_those_of_the_message(size, bits):
    message, _ = encode(np.zeros(size), 0.1, bits, bucket=300)
    count = lattice.buckets(size, 300)
    assert message.nbytes == lattice.payload_bytes(size, bits, 300)
    if size % (8 * max(count, 1)) == 0:
        assert message.nbytes == size * bits // 8 + 12 * count
    value, ok = decode(message, np.zeros(size), bits, bucket=300)
    assert value.shape == (size,)
    assert ok.shape == (count,)
    assert ok.all()


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1, 33, 1_000])
def test_buckets_have_their_own_sides_and_verdicts(size):
    rng = np.random.default_rng(9)
    count = lattice.buckets(size, 10)
    n = -(-size // count)
    side = rng.uniform(0.01, 1, count).astype(np.float32)
    x = rng.normal(size=size).astype(np.float32)
    far = rng.random(count) < 0.3
    shift = np.repeat(np.where(far, 300, 100) * side, n)[:size]
    value, ok = decode(encode(x, side, 8, bucket=10)[0], x + shift, 8, bucket=10)
    np.testing.assert_array_equal(ok, ~far)
    kept = np.repeat(~far, n)[:size]
    assert (np.abs(value - x)[kept] <= 0.5001 * np.repeat(side, n)[:size][kept]).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_vmap_equals_a_loop(stochastic):
    rng = np.random.default_rng(10)
    x, reference = (a.reshape(6, 500) for a in near(rng, 3_000, 1.0))
    side = rng.uniform(0.005, 0.02, (6, 5)).astype(np.float32)
    noise = rng.random((6, 5, 100), np.float32)

    def both(x, reference, side, noise):
        message, points = encode(x, side, 8, noise if stochastic else None, bucket=100)
        return message, points, decode(message, reference, 8, bucket=100)

    together = jax.jit(jax.vmap(both))(x, reference, side, noise)
    one = jax.jit(both)
    for i in range(6):
        alone = one(x[i], reference[i], side[i], noise[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(a[i], b)


def test_messages_travel_between_workers(spmd):
    rng = np.random.default_rng(11)
    x = (rng.normal(size=100) + rng.uniform(-1, 1, (4, 100))).astype(np.float32)

    def body(x):
        message = jax.lax.ppermute(
            encode(x, 0.05, 8)[0], "workers", [(i, (i + 1) % 4) for i in range(4)]
        )
        return decode(message, x, 8)

    value, ok = spmd(body, x)
    assert ok.all()
    assert np.abs(value - np.roll(x, 1, axis=0)).max() <= 0.02501


@pytest.mark.parametrize("bits", [2, 16])
def test_sides_and_radii(bits):
    q, theta = 2**bits, 0.3
    assert float(lattice.side_for(theta, bits)) == pytest.approx(2 * theta / (q - 1))
    assert float(lattice.side_for(theta, bits, True)) == pytest.approx(2 * theta / (q - 2))
    for stochastic in (False, True):
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
    assert restored["b"] == 8
    assert restored["count"] == 2**30 + 1
    assert lattice.ravel_floats({"count": jnp.int32(1)})[0].shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
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
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
