import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import lattice

encode = jax.jit(lattice.encode, static_argnames=("bits", "bucket"))
decode = jax.jit(lattice.decode)
ROUNDINGS = [False, True]
BITS = [2, 7, 16]
SOME_BITS = [2, 8, pytest.param(16, marks=pytest.mark.slow)]


def key_for(stochastic, seed=0):
    return jax.random.key(seed) if stochastic else None


def host_encode(x, side, bits, u=None, bucket=lattice.BUCKET):
    """The codec again in NumPy, step by step; u: [buckets, n] in [0, 1), or None."""
    count = -(-x.size // bucket)
    n = -(-x.size // count)
    rows = np.pad(x, (0, count * n - x.size)).reshape(count, n)
    side = np.broadcast_to(side, count).astype(np.float32)
    scaled = rows * (np.float32(1) / side)[:, None]
    sound = (np.abs(scaled) < 2**22).all(1)
    scaled = np.where(np.abs(scaled) < 2**22, scaled, 0)
    low = np.floor(scaled)
    k = np.round(scaled) if u is None else low + (u < scaled - low)
    k = k.astype(np.int64)
    colours = np.mod(k, 2**bits).ravel()[: x.size]
    return host_pack(colours, bits), host_checksum(k), np.where(sound, side, 0)


def host_pack(colours, bits):
    """Groups of 32 coordinates that lie ceil(size / 32) apart, each as one stream of bits."""
    grid = np.pad(colours, (0, -colours.size % 32)).reshape(32, -1)
    stream = (grid.T[:, :, None] >> np.arange(bits)) & 1  # [groups, 32, bits]
    octets = np.packbits(stream.reshape(-1, 32 * bits), axis=1, bitorder="little")
    return octets.view("<u4").T


def host_checksum(k):
    sums = []
    for seed in (0x9E3779B9, 0x3C6EF372):
        x = (np.arange(k.shape[1]) + seed) % 2**32
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        sums.append((k * ((x ^ (x >> 16)) | 1)).sum(1) % 2**32)
    return np.stack(sums, 1)


def host_decode(encoded, reference, bits):
    """Value without regard to the checksum, which the caller has compared."""
    words, _, side = encoded
    stream = np.unpackbits(np.ascontiguousarray(words.T).view(np.uint8), axis=1, bitorder="little")
    grid = (stream.reshape(-1, 32, bits).astype(np.int64) << np.arange(bits)).sum(2).T
    colours = grid.ravel()[: reference.size]
    n = -(-reference.size // side.size)
    padding = (0, side.size * n - reference.size)
    colours, rows = (np.pad(a, padding).reshape(side.size, n) for a in (colours, reference))
    scaled = rows * (np.float32(1) / side)[:, None]
    turns = np.round((scaled - colours.astype(np.float32)) * np.float32(1 / 2**bits))
    k = colours + 2**bits * turns.astype(np.int64)
    return (k.astype(np.float32) * side[:, None]).ravel()[: reference.size], k


def near(rng, size, distance, spread=3.0):
    """x [size], and a reference at up to ``distance`` from it."""
    x = rng.normal(scale=spread, size=size).astype(np.float32)
    return x, (x + rng.uniform(-distance, distance, size)).astype(np.float32)


@pytest.mark.parametrize(("bits", "stochastic"), [(5, False), (8, True)])
def test_host_equals_jit_bit_for_bit(bits, stochastic):
    size = 1_000_000
    count = lattice.buckets(size)
    rng = np.random.default_rng(0)
    side = rng.uniform(1e-3, 3e-2, count).astype(np.float32)
    x, reference = near(rng, size, 0.9 * lattice.radius(1e-3, bits, stochastic))
    key = key_for(stochastic)
    shape = (count, -(-size // count))
    u = np.asarray(jax.random.uniform(key, shape, np.float32)) if stochastic else None
    expected = host_encode(x, side, bits, u)
    traced = encode(x, side, bits, key)
    constant = jax.jit(lambda x: lattice.encode(x, side, bits, key))(x)
    for found in (traced, constant):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)
    value, ok = decode(traced, reference)
    expected_value, k = host_decode(expected, reference, bits)
    np.testing.assert_array_equal(host_checksum(k), expected[1])
    assert ok.all()
    np.testing.assert_array_equal(value, expected_value)
    if not stochastic:
        np.testing.assert_array_equal(value, lattice.decode(traced, reference)[0])


def test_constant_sides_are_not_divided_by():
    # Compilers like to rewrite x * (1 / s); a rounding in between would move ties.
    rng = np.random.default_rng(1)
    x = rng.normal(size=1_000_000).astype(np.float32)
    for side in (0.3, 7e-5):
        found = jax.jit(lambda x, side=side: lattice.encode(x, side, 8))(x)
        for got, want in zip(found, host_encode(x, np.float32(side), 8), strict=True):
            np.testing.assert_array_equal(got, want)


def test_small_vector_by_hand():
    # k = round(x / 0.5) = [-3, 2, 7, 0]; modulo 4: [1, 2, 3, 0].
    encoded = lattice.encode(np.array([-1.4, 0.9, 3.6, 0.2]), 0.5, 2)
    # One coordinate in each of the first four places of one group of 32.
    np.testing.assert_array_equal(encoded.colours, [[0b00_11_10_01], [0]])
    value, ok = lattice.decode(encoded, np.array([-1.0, 0.5, 3.9, -0.5]))
    assert ok.tolist() == [True]
    np.testing.assert_array_equal(value, [-1.5, 1.0, 3.5, 0.0])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_error_is_bounded_inside_the_radius(bits, stochastic):
    rng = np.random.default_rng(bits)
    side = 0.01
    x, reference = near(rng, 5_000, 0.999 * lattice.radius(side, bits, stochastic))
    encoded = encode(x, side, bits, key_for(stochastic))
    value, ok = decode(encoded, reference)
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
        encoded = encode(x + offset, side, 8, key_for(stochastic))
        value, ok = decode(encoded, reference + offset)
        assert ok.all()
        errors.append(value - np.float32(x + offset))
    np.testing.assert_array_equal(errors[0], errors[1])
    np.testing.assert_array_equal(errors[0], errors[2])


@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_half_the_distance_at_half_the_side_is_half_the_error(stochastic):
    rng = np.random.default_rng(3)
    x = rng.normal(size=20_000).astype(np.float32)
    errors = []
    for distance in (0.2, 0.1):
        side = lattice.side_for(1.01 * distance, 6, stochastic)
        reference = x + rng.uniform(-distance, distance, x.size).astype(np.float32)
        encoded = encode(x, side, 6, key_for(stochastic))
        value, ok = decode(encoded, reference)
        assert ok.all()
        errors.append(float(jnp.sqrt(jnp.square(value - x).mean())))
    assert errors[1] / errors[0] == pytest.approx(0.5, rel=0.02)


def test_stochastic_rounding_is_unbiased():
    x = np.linspace(-1.7, 1.9, 40, dtype=np.float32)
    side, draws = 0.25, 20_000
    keys = jax.random.split(jax.random.key(4), draws)
    value, ok = jax.jit(jax.vmap(lambda key: decode(encode(x, side, 6, key), x), out_axes=(0, 0)))(
        keys
    )
    assert ok.all()
    part = x / side - np.floor(x / side)
    variance = side**2 * part * (1 - part)
    assert variance.max() <= side**2 / 4
    error = np.asarray(value, np.float64) - x
    assert (np.abs(error.mean(0)) <= 5 * np.sqrt(variance / draws) + 1e-6).all()
    np.testing.assert_allclose(error.var(0), variance, atol=0.03 * side**2)


@pytest.mark.parametrize("bits", SOME_BITS)
@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_a_decode_at_1_2_times_the_radius_is_detected(bits, stochastic):
    # With 4 levels and random rounding 1 coordinate in 50 goes wrong.
    side, trials, size = 0.01, 1_000, 1_000 if bits == 2 else 100
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    at = 1.2 * lattice.radius(side, bits, stochastic)
    reference = (x + rng.choice([-at, at], x.shape)).astype(np.float32)
    encoded, value, ok = trial(x, reference, side, bits, stochastic)
    points = jax.vmap(lattice.decode)(encoded, x)[0]  # what the sender meant
    wrong = silent(encoded, reference, bits) != points
    assert wrong.any(1).all()  # every trial has something to detect
    assert not ok.any()
    np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("bits", SOME_BITS)
def test_one_wrong_coordinate_is_detected(bits):
    side, trials, size = 0.01, 1_000, 500
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    reference = x.copy()
    where = rng.integers(0, size, trials)
    turns = rng.choice([-2, -1, 1, 2], trials)
    reference[np.arange(trials), where] += (turns * 2**bits * side).astype(np.float32)
    assert not trial(x, reference, side, bits)[2].any()


@pytest.mark.parametrize("bits", SOME_BITS)
@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_no_false_alarm_inside_the_radius(bits, stochastic):
    side, trials, size = 0.01, 1_000, 200
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(trials, size)).astype(np.float32)
    signs = rng.choice([-1, 1], x.shape) * rng.uniform(0.9, 0.9995, x.shape)
    reference = (x + signs * lattice.radius(side, bits, stochastic)).astype(np.float32)
    encoded, value, ok = trial(x, reference, side, bits, stochastic)
    assert ok.all()
    np.testing.assert_array_equal(value, jax.vmap(lattice.decode)(encoded, x)[0])


def trial(x, reference, side, bits, stochastic=False):
    def one(x, reference, key):
        encoded = encode(x, side, bits, key if stochastic else None)
        return encoded, *decode(encoded, reference)

    return jax.jit(jax.vmap(one))(x, reference, jax.random.split(jax.random.key(5), len(x)))


def silent(encoded, reference, bits):
    """What decoding without a checksum would have given."""
    messages = jax.tree.map(np.asarray, encoded)
    messages = zip(*messages, strict=True)
    return np.stack([host_decode(m, r, bits)[0] for m, r in zip(messages, reference, strict=True)])


def test_one_message_serves_every_receiver_and_the_sender():
    rng = np.random.default_rng(6)
    x = rng.normal(size=3_000).astype(np.float32)
    encoded = encode(x, 0.01, 8, jax.random.key(6))
    own, ok = decode(encoded, x)
    assert ok.all()
    for _ in range(5):
        reference = x + rng.uniform(-1.2, 1.2, x.size).astype(np.float32)
        value, ok = decode(encoded, reference)
        assert ok.all()
        np.testing.assert_array_equal(value, own)


@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_a_pair_average_in_difference_form_keeps_the_sum_exactly(stochastic):
    rng = np.random.default_rng(7)
    # Multiples of 2^-12 below 2^4 and a side of 2^-6: no float32 rounding anywhere.
    x_i, x_j = np.float32(np.round(np.array(near(rng, 2_000, 1.5, 1.0)) * 2**12) / 2**12)
    side = 2.0**-6
    from_i = encode(x_i, side, 8, key_for(stochastic, 1))
    from_j = encode(x_j, side, 8, key_for(stochastic, 2))
    at_i = (decode(from_j, x_i)[0] - decode(from_i, x_i)[0]) / 2
    at_j = (decode(from_i, x_j)[0] - decode(from_j, x_j)[0]) / 2
    np.testing.assert_array_equal((x_i + at_i) + (x_j + at_j), x_i + x_j)
    assert np.abs((x_i + at_i) - (x_i + x_j) / 2).max() <= side


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**22 * 0.5, -(2.0**22) * 0.5, 3e38])
def test_what_float32_cannot_hold_is_never_ok(bad):
    x = np.ones(40, np.float32)
    x[13] = bad  # bucket 1 of 4
    for key in (None, jax.random.key(0)):
        encoded = encode(x, 0.5, 8, key, bucket=10)
        for reference in (np.zeros(40, np.float32), np.nan_to_num(x)):
            value, ok = decode(encoded, reference)
            assert ok.tolist() == [True, False, True, True]
            np.testing.assert_array_equal(value[10:20], reference[10:20])
            np.testing.assert_array_equal(value[20:], x[20:])
        # And nothing on the other side makes it so.
        ok = decode(encoded, x)[1]
        assert ok.tolist() == [True, False, True, True]
    sound = encode(np.ones(40), 0.5, 8, bucket=10)
    assert decode(sound, x)[1].tolist() == [True, False, True, True]


def test_a_large_offset_is_reported_where_float32_loses_the_lattice():
    # |x / s| = 1e7: the silent error of a plain implementation is several s.
    x = np.linspace(9_999, 10_001, 500, dtype=np.float32)
    assert not decode(encode(x, 1e-3, 8), x)[1].any()
    assert decode(encode(x, 4e-3, 8), x)[1].all()


@pytest.mark.parametrize("side", [0.0, -1.0, np.nan, np.inf, 1e-40, 3e38])
def test_impossible_sides_are_never_ok(side):
    for x in (np.zeros(5), np.ones(5)):
        value, ok = decode(encode(x, side, 8), x)
        assert ok.tolist() == [False]
        np.testing.assert_array_equal(value, x)


def test_a_corrupted_message_is_detected():
    x = np.random.default_rng(8).normal(size=96).astype(np.float32)
    encoded = encode(x, 0.01, 8)
    for bit in (1, 2**9, 2**31):
        flipped = encoded.colours.at[3, 1].set(encoded.colours[3, 1] ^ np.uint32(bit))
        assert not decode(encoded._replace(colours=flipped), x)[1].any()


@pytest.mark.parametrize(
    ("size", "bits"), [(0, 8), (1, 2), (32, 16), (1_025, 7), (1_024, 13), (4_096, 8)]
)
def test_bytes_are_those_of_the_message(size, bits):
    encoded = encode(np.zeros(size), 0.1, bits, bucket=300)
    count = lattice.buckets(size, 300)
    sent = sum(leaf.nbytes for leaf in encoded)
    assert sent == lattice.payload_bytes(size, bits, count)
    if size % 32 == 0:
        assert sent == size * bits // 8 + 12 * count
    value, ok = decode(encoded, np.zeros(size))
    assert value.shape == (size,)
    assert ok.shape == (count,)
    assert ok.all()


@pytest.mark.parametrize("size", [1, 33, 1_000])
def test_buckets_have_their_own_sides_and_verdicts(size):
    rng = np.random.default_rng(9)
    count = lattice.buckets(size, 10)
    n = -(-size // count)
    side = rng.uniform(0.01, 1, count).astype(np.float32)
    x = rng.normal(size=size).astype(np.float32)
    far = rng.random(count) < 0.3
    shift = np.repeat(np.where(far, 300, 100) * side, n)[:size]
    value, ok = decode(encode(x, side, 8, bucket=10), x + shift)
    np.testing.assert_array_equal(ok, ~far)
    kept = np.repeat(~far, n)[:size]
    assert (np.abs(value - x)[kept] <= 0.5001 * np.repeat(side, n)[:size][kept]).all()


@pytest.mark.parametrize("stochastic", ROUNDINGS)
def test_vmap_equals_a_loop(stochastic):
    rng = np.random.default_rng(10)
    x, reference = (a.reshape(6, 500) for a in near(rng, 3_000, 1.0))
    side = rng.uniform(0.005, 0.02, (6, 5)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 6)

    def both(x, reference, side, key):
        encoded = lattice.encode(x, side, 8, key if stochastic else None, bucket=100)
        return encoded, lattice.decode(encoded, reference)

    together = jax.jit(jax.vmap(both))(x, reference, side, keys)
    one = jax.jit(both)
    for i in range(6):
        alone = one(x[i], reference[i], side[i], keys[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(a[i], b)


def test_messages_travel_between_workers(spmd):
    rng = np.random.default_rng(11)
    x = (rng.normal(size=100) + rng.uniform(-1, 1, (4, 100))).astype(np.float32)

    def body(x):
        message = jax.lax.ppermute(
            lattice.encode(x, 0.05, 8), "workers", [(i, (i + 1) % 4) for i in range(4)]
        )
        return lattice.decode(message, x)

    value, ok = spmd(body, x)
    assert ok.all()
    assert np.abs(value - np.roll(x, 1, axis=0)).max() <= 0.02501


@pytest.mark.parametrize("bits", BITS)
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
        (lambda: lattice.encode(np.ones(3), 0.1, 17), "17 bits a coordinate; set an integer"),
        (lambda: lattice.side_for(0.1, 1), "1 bits a coordinate"),
        (lambda: lattice.payload_bytes(10, 2.5, 1), "2.5 bits a coordinate"),
        (lambda: lattice.encode(np.ones((2, 3)), 0.1, 8), r"shape \(2, 3\); flatten it"),
        (lambda: lattice.encode(np.ones(3), np.ones(2), 8), r"\(2,\) for 1 buckets"),
        (lambda: lattice.buckets(3, 0), "holds no coordinate"),
        (
            lambda: lattice.decode(lattice.encode(np.ones(3), 0.1, 8), np.ones(33)),
            "1 x 32 coordinates meets a reference of 33",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
