"""Count-sketches against NumPy: buckets, medians, peeling, and the error of estimates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import bitmap, hashing, sketch


def sparse(size, nonzeros, seed=0, row_shape=()):
    rng = np.random.default_rng(seed)
    x = np.zeros((size, *row_shape), np.float32)
    x[rng.choice(size, nonzeros, replace=False)] = rng.normal(size=(nonzeros, *row_shape))
    return x


FAST = {"xla_backend_optimization_level": 0}  # compiling is what takes the time
encode = jax.jit(sketch.encode, static_argnums=(1, 2), compiler_options=FAST)
decode = jax.jit(sketch.decode, static_argnums=1, compiler_options=FAST)
decode_at = jax.jit(sketch.decode_at, static_argnums=2, compiler_options=FAST)
unresolved = jax.jit(sketch.unresolved, static_argnums=(1, 2, 3), compiler_options=FAST)
resolving_seed = jax.jit(sketch.resolving_seed, static_argnums=(1, 2, 3), compiler_options=FAST)
recover = jax.jit(sketch.recover, static_argnums=2, compiler_options=FAST)


@jax.jit
def words_of(x):
    return bitmap.pack(bitmap.occupied(x))


def hashes(rows, columns, size, seed):
    """(buckets, signs), [rows, size] each."""
    seeds = hashing.mix(np.arange(rows)[:, None], seed)
    index = np.arange(size)[None]
    return np.asarray(hashing.bucket(index, seeds, columns)), np.asarray(hashing.sign(index, seeds))


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [1, 4])
def test_encode_sums_signed_buckets_and_decode_is_their_median(rows):
    """An entry outside of the union is 0."""
    x = sparse(500, 100)
    buckets, signs = hashes(rows, 60, 500, 9)
    expected = np.zeros((rows, 60))
    for row in range(rows):
        np.add.at(expected[row], buckets[row], signs[row] * x)
    table = encode(x, rows, 60, 9)
    assert table.dtype == jnp.float32
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-5)
    median = np.median(signs * np.take_along_axis(np.asarray(table), buckets, axis=1), axis=0)
    np.testing.assert_allclose(decode(table, 500, 9), median, rtol=1e-6)
    found = decode_at(table, words_of(x), 500, 9)
    np.testing.assert_allclose(found, np.where(x != 0, median, 0), rtol=1e-6)


def test_rows_of_a_matrix_are_vectors_of_one_hash():
    x = sparse(500, 100, row_shape=(2,))
    table = encode(x, 1, 60, 3)
    assert table.nbytes == sketch.payload_bytes(1, 60, (2,))
    for i in range(2):
        np.testing.assert_allclose(table[..., i], encode(x[:, i], 1, 60, 3), rtol=1e-5, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(("rows", "poison"), [(1, np.inf), (4, np.nan)])
def test_what_is_not_finite_comes_back(rows, poison):
    x = sparse(500, 100)
    x[33] = poison
    found = np.asarray(decode_at(encode(x, rows, 60, 1), words_of(x), 500, 1))
    assert np.isnan(found[33]) if np.isnan(poison) else found[33] == poison
    assert np.isfinite(found[x == 0]).all()
    with pytest.raises(ValueError, match="needs rows and columns >= 1"):
        sketch.encode(x, rows, 0, 0)


def peeled(table, nonzero, size, seed):
    """NumPy: entries alone in a bucket, one after the other; 0 for what is left, and how much."""
    rows, columns = table.shape
    buckets, signs = hashes(rows, columns, size, seed)
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


@pytest.mark.few(1)
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
def test_a_seed_that_resolves_is_found_where_the_first_does_not():
    """Of 12 entries in 3 x 5 buckets; the seeds are tried one by one here."""
    moved = 0
    for seed in range(0, 400, 40):
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


def test_the_largest_seed_may_be_a_whole_number_of_python():
    words = jnp.array([1], jnp.uint32)
    seed, left = sketch.resolving_seed(words, 1, 2, 1, 2**32 - 1)
    assert (int(seed), int(left)) == (2**32 - 1, 0)


# --- the error of estimates ---


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns", [(1, 500), (4, 300), (5, 300)])
def test_the_error_of_estimates_is_the_simulated_one(rows, columns):
    """Over sketches of normal values; an even number of rows is less wrong than is said."""

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def squares(seed, entries):
        x = jax.random.normal(jax.random.key(seed), (3000,))
        x = jnp.where(jnp.arange(3000) < entries, x, 0)
        words = bitmap.pack(bitmap.occupied(x))
        found = sketch.decode_at(sketch.encode(x, rows, columns, seed), words, 3000, seed)
        return jnp.sum((found - x) ** 2), jnp.sum(x**2)

    for load in (0.1, 0.5, 1.5):
        entries = int(load * rows * columns)
        wrong, whole = (v.sum() for v in squares(jnp.arange(60, dtype=jnp.uint32), entries))
        simulated = float(jnp.sqrt(wrong / whole))
        estimated = sketch.estimate_error(entries, rows, columns)
        if rows % 2:
            assert estimated == pytest.approx(simulated, rel=0.05)
        else:
            assert 1 < estimated / simulated < 1.4


def test_errors_and_loads_are_the_published_ones():
    """Reciprocals of Table 1 of arXiv 1101.2245: buckets per entry; one row is a closed form."""
    assert sketch.estimate_error(1, 1, 7) == 0
    assert sketch.estimate_error(51, 1, 200) == 0.5
    for rows, buckets in ((3, 1.222), (4, 1.295), (5, 1.425), (6, 1.570), (7, 1.721)):
        assert sketch.peeling_load(rows) == pytest.approx(1 / buckets, abs=1e-3)
    assert sketch.peeling_load(1) == 0
    assert sketch.peeling_load(2) == pytest.approx(0.5, abs=1e-4)  # a forest
    for rows, columns in ((1, 50), (3, 40)):
        most = sketch.entries_within(0.5, rows, columns)
        assert sketch.estimate_error(most, rows, columns) <= 0.5
        assert sketch.estimate_error(most + 1, rows, columns) > 0.5
