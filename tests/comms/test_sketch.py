import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from comms import bitmap, hashing, sketch


def sparse(size, nonzeros, seed=0, row_shape=()):
    rng = np.random.default_rng(seed)
    x = np.zeros((size, *row_shape), np.float32)
    x[rng.choice(size, nonzeros, replace=False)] = rng.normal(size=(nonzeros, *row_shape))
    return x


encode = jax.jit(sketch.encode, static_argnums=(1, 2))
decode_at = jax.jit(sketch.decode_at, static_argnums=2)
FAST = {"xla_backend_optimization_level": 0}  # compiling is what takes the time
unresolved = jax.jit(sketch.unresolved, static_argnums=(1, 2, 3), compiler_options=FAST)
resolving_seed = jax.jit(sketch.resolving_seed, static_argnums=(1, 2, 3), compiler_options=FAST)
recover = jax.jit(sketch.recover, static_argnums=2, compiler_options=FAST)
SEED = jnp.uint32(2**32 - 1)


def words_of(x):
    return bitmap.pack(bitmap.occupied(jnp.asarray(x)))


@pytest.mark.slow
@pytest.mark.parametrize("size, nonzeros", [(50, 50), (5000, 100)])
def test_encode_is_the_sum_of_signed_buckets(size, nonzeros):
    x = sparse(size, nonzeros)
    seeds = hashing.mix(np.arange(3)[:, None], 9)
    buckets = np.asarray(hashing.bucket(np.arange(size)[None], seeds, 77))
    signs = np.asarray(hashing.sign(np.arange(size)[None], seeds))
    expected = np.zeros((3, 77))
    for row in range(3):
        np.add.at(expected[row], buckets[row], signs[row] * x)
    found = jax.jit(lambda x: sketch.encode(x, 3, 77, 9))(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_decode_is_the_median_of_signed_buckets(rows):
    table = np.random.default_rng(0).normal(size=(rows, 13)).astype(np.float32)
    seeds = hashing.mix(np.arange(rows)[:, None], 9)
    buckets = np.asarray(hashing.bucket(np.arange(200)[None], seeds, 13))
    signs = np.asarray(hashing.sign(np.arange(200)[None], seeds))
    expected = np.median(signs * np.take_along_axis(table, buckets, axis=1), axis=0)
    np.testing.assert_allclose(sketch.decode(table, 200, 9), expected, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("row_shape", [(), (4,)])
def test_linear(row_shape):
    a, b = (jnp.asarray(sparse(3000, 900, seed, row_shape)) for seed in (0, 1))
    one, other, both = (encode(x, 3, 500, 7) for x in (a, b, 2 * a + b))
    np.testing.assert_allclose(2 * one + other, both, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 5])
def test_zero_outside_the_union_and_as_decoded_within(rows):
    x = sparse(2000, 300)
    table = encode(x, rows, 100, 3)
    found = np.asarray(decode_at(table, words_of(x), 2000, 3))
    np.testing.assert_array_equal(found, np.where(x != 0, sketch.decode(table, 2000, 3), 0))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_a_matrix_are_vectors_of_one_hash(rows):
    x = sparse(300, 60, row_shape=(2, 3))
    table = encode(x, rows, 40, 3)
    found = decode_at(table, words_of(x), 300, 3)
    assert table.shape == (rows, 40, 2, 3) and found.shape == x.shape
    assert table.nbytes == sketch.payload_bytes(rows, 40, (2, 3))
    for i, j in np.ndindex(2, 3):
        column = encode(x[:, i, j], rows, 40, 3)
        np.testing.assert_allclose(table[:, :, i, j], column, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            found[:, i, j],
            decode_at(column, words_of(x), 300, 3),
            rtol=1e-5,
            atol=1e-6,
        )


def test_one_row_is_unbiased_with_the_known_variance():
    x = sparse(200, 60)

    @jax.jit
    @jax.vmap
    def estimates(seed):
        return sketch.decode(sketch.encode(x, 1, 20, seed), 200, seed)

    errors = np.asarray(estimates(jnp.arange(4000))) - x
    assert stats.ttest_1samp(errors, 0).pvalue.min() > 1e-2 / 200
    variance = ((x**2).sum() - x**2) / 20
    np.testing.assert_allclose(errors.var(axis=0), variance, rtol=0.2)


@pytest.mark.slow
def test_nearly_exact_with_three_columns_per_nonzero_and_five_rows():
    x = sparse(20_000, 400)

    @jax.jit
    @jax.vmap
    def estimates(seed):
        return sketch.decode_at(sketch.encode(x, 5, 1200, seed), words_of(x), 20_000, seed)

    errors = np.asarray(estimates(jnp.arange(20))) - x
    exact = (np.abs(errors) < 1e-5)[:, x != 0].mean()
    assert exact > 0.93
    assert (errors**2).sum() / (20 * (x**2).sum()) < 0.02


def test_a_single_nonzero_is_exact():
    x = jnp.zeros(100).at[41].set(-3.5)
    for rows in (1, 4):
        table = encode(x, rows, 1, SEED)
        np.testing.assert_array_equal(decode_at(table, words_of(x), 100, SEED), x)


@pytest.mark.few(1)
@pytest.mark.parametrize(("rows", "poison"), [(1, np.inf), (4, np.nan)])
def test_what_is_not_finite_comes_back(rows, poison):
    x = sparse(500, 100)
    x[33] = poison
    found = np.asarray(decode_at(encode(x, rows, 400, 1), words_of(x), 500, 1))
    assert np.isnan(found[33]) if np.isnan(poison) else found[33] == poison
    assert np.isfinite(found[x == 0]).all()


@pytest.mark.parametrize("rows, columns", [(0, 5), (5, 0)])
def test_an_empty_sketch_is_refused(rows, columns):
    with pytest.raises(ValueError, match="needs rows and columns >= 1"):
        sketch.encode(jnp.ones(3), rows, columns, 0)


@pytest.mark.slow
def test_workers_of_different_density_reduce_alike(spmd):
    """One worker passes over its non-zeros many times, another never."""
    x = np.stack([sparse(9000, n, seed=n) for n in (0, 10, 9000)])

    def body(x):
        words = bitmap.union(words_of(x))
        table = sketch.all_reduce(sketch.encode(x, 1, 300_000, 4))
        return sketch.decode_at(table, words, 9000, 4)

    found = np.asarray(spmd(body, x))
    wrong = np.abs(found - x.sum(axis=0, keepdims=True)) > 1e-5
    assert wrong.mean() < 0.05  # collisions of about 9000 in 300,000 buckets
    np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))


def peeled(table, nonzero, size, seed):
    """NumPy: entries alone in a bucket, one after the other; 0 for what is left, and how much."""
    rows, columns = table.shape
    seeds = hashing.mix(np.arange(rows)[:, None], seed)
    buckets = np.asarray(hashing.bucket(np.arange(size)[None], seeds, columns))
    signs = np.asarray(hashing.sign(np.arange(size)[None], seeds))
    table, left, found = np.float64(table), set(nonzero.tolist()), np.zeros(size)
    every = np.arange(rows)
    alone = True
    while alone:
        held = np.zeros((rows, columns), int)
        for i in left:
            held[every, buckets[:, i]] += 1
        alone = [(i, r) for i in left for r in every if held[r, buckets[r, i]] == 1][:1]
        for i, r in alone:
            found[i] = signs[r, i] * table[r, buckets[r, i]]
            table[every, buckets[:, i]] -= signs[:, i] * found[i]
            left.remove(i)
    return found, len(left)


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns, some_left", [(2, 60, True), (3, 60, False)])
def test_recover_peels_and_leaves_the_rest_at_zero(rows, columns, some_left):
    x = sparse(500, 100)
    table = encode(x, rows, columns, 3)
    expected, left = peeled(np.asarray(table), np.flatnonzero(x), 500, 3)
    assert (left > 0) == some_left and left < 100
    found = recover(table, words_of(x), 500, 3)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    unknown = unresolved(words_of(x), rows, columns, 500, 3)
    assert bitmap.count(unknown) == left
    assert not found[np.asarray(bitmap.unpack(unknown, 500))].any()
    if not some_left:
        np.testing.assert_allclose(found, x, atol=1e-4)


@pytest.mark.slow
def test_recover_is_exact_up_to_four_fifths_of_the_buckets():
    """3 rows of columns, 1.3 buckets per non-zero: almost all of it for every hash."""
    x = sparse(20_000, 3000, row_shape=(2,))
    for seed in range(5):
        table = encode(x, 3, 1300, seed)
        found = recover(table, words_of(x), 20_000, seed)
        np.testing.assert_allclose(found, x, atol=1e-3)
        estimated = np.asarray(decode_at(table, words_of(x), 20_000, seed))
        assert (np.abs(estimated - x) > 1e-3)[x != 0].mean() > 0.5


LOADS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0)


def error(found, x):
    """Relative to sending nothing."""
    return np.linalg.norm(np.asarray(found) - x) / np.linalg.norm(x)


@pytest.mark.slow
def test_recover_is_never_worse_than_nothing_and_says_what_it_leaves():
    for load in LOADS:
        entries = int(load * 720)
        for seed in range(4):
            x = sparse(4000, entries, seed, (16,))
            words = words_of(x)
            found = np.asarray(recover(encode(x, 3, 240, seed), words, 4000, seed))
            left = np.asarray(bitmap.unpack(unresolved(words, 3, 240, 4000, seed), 4000))
            assert error(found, x) <= 1.0
            np.testing.assert_allclose(found[~left], x[~left], atol=2e-3)
            assert not found[left].any()
            assert left.sum() < 10 if load <= 0.7 else left.sum() > 0.3 * entries
            _, unknown = resolving_seed(words, 3, 240, 4000, seed)
            assert unknown == 0 if load <= 0.7 else unknown > 0


@pytest.mark.slow
def test_a_seed_that_resolves_is_found_where_the_first_does_not():
    """Of 12 entries in 3 x 5 buckets; the seeds are tried one by one here."""
    moved = 0
    for seed in range(0, 400, 20):
        words = words_of(sparse(100, 12, seed))
        left = [
            int(bitmap.count(unresolved(words, 3, 5, 100, seed + trial)))
            for trial in range(sketch.SEEDS)
        ]
        found, unknown = resolving_seed(words, 3, 5, 100, seed)
        first = left.index(0) if 0 in left else sketch.SEEDS - 1
        assert (int(found), int(unknown)) == (seed + first, left[first])
        moved += first > 0
    assert moved


@pytest.mark.slow
def test_an_overloaded_sketch_by_both_decoders():
    """Peeling leaves what it does not find; the median is as wrong as the theory says."""
    rng = np.random.default_rng(0)
    for load, peeled_error, wrong in ((0.5, 0.0, 0.70), (1, 0.9, 1.08), (1.5, 0.98, 1.35)):
        entries = int(load * 720)
        x = np.zeros((4000, 16), np.float32)
        x[rng.choice(4000, entries, replace=False)] = rng.normal(size=(entries, 16))
        table, words = encode(x, 3, 240, 1), words_of(x)
        assert error(recover(table, words, 4000, 1), x) == pytest.approx(peeled_error, abs=0.03)
        found = error(decode_at(table, words, 4000, 1), x)
        assert found == pytest.approx(wrong, rel=0.06)
        assert found == pytest.approx(sketch.estimate_error(entries, 3, 240), rel=0.06)


@pytest.mark.slow
def test_recover_shows_what_is_not_finite_and_little_else():
    x = sparse(500, 60)
    x[[33, 44]] = np.nan, np.inf
    found = np.asarray(recover(encode(x, 3, 60, 1), words_of(x), 500, 1))
    assert not np.isfinite(found[[33, 44]]).any()
    assert (~np.isfinite(found)).sum() < 12 and np.isfinite(found[x == 0]).all()
