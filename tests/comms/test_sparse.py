"""Few entries: as by a sort, above a threshold, or at random with equal chances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import sparse
from tests.refusals import refused


def test_top_k_by_hand():
    x = jnp.array([[0.5, -4.0, 0.0], [3.0, 0.25, -1.0]], jnp.bfloat16)
    message = sparse.top_k(x, 3)
    assert message.values.dtype == jnp.bfloat16
    np.testing.assert_array_equal(message.values.astype(np.float32), [-4, 3, -1])
    np.testing.assert_array_equal(message.indices, [1, 3, 5])
    np.testing.assert_array_equal(sparse.decode(message, 6), [0, -4, 0, 3, 0, -1])


@pytest.mark.slow
@pytest.mark.parametrize("law", ["few", "ties", "trend", "nan"])
def test_of_many_entries_the_largest_are_exactly_those_of_a_sort(law, monkeypatch):
    monkeypatch.setattr(sparse, "LARGE", 2**12)
    monkeypatch.setattr(sparse, "SAMPLES", 2**10)
    rng, size = np.random.default_rng(1), 20_000
    x = rng.normal(size=size).astype(np.float32)
    x = {
        "few": np.where(rng.random(size) < 0.001, x, 0),  # fewer than k are not zero
        "ties": np.round(x),
        "trend": x * np.linspace(0, 1, size, dtype=np.float32) ** 4,
        "nan": np.where(np.arange(size) == 7, np.nan, x),
    }[law]
    for k in (1, 2000):
        message = jax.jit(sparse.top_k, static_argnums=1)(x, k)
        order = np.argsort(-np.abs(x), kind="stable")[:k]
        if law == "nan":
            assert np.isnan(message.values).all()
        else:
            np.testing.assert_array_equal(message.indices, order)
            np.testing.assert_array_equal(message.values, x[order])
        message = jax.jit(sparse.top_k, static_argnums=(1, 2))(x, k, False)
        if law == "nan":
            assert np.isnan(message.values).all()
        else:
            smallest = np.abs(x[order[-1]])
            over = np.abs(x[np.sort(order)]) > smallest
            expected = [*np.sort(order)[over], *np.sort(order)[~over]]
            np.testing.assert_array_equal(message.indices, expected)
            np.testing.assert_array_equal(message.values, x[expected])


def test_the_sum_counts_an_index_once_per_worker():
    x = jnp.array([[5.0, 4.0, 0.0, 1.0], [0.0, -3.0, 7.0, 1.0], [2.0, 2.0, 2.0, -9.0]])
    body = jax.vmap(lambda x: sparse.all_gather_sum(sparse.top_k(x, 2), 4), axis_name="workers")
    np.testing.assert_array_equal(jax.jit(body)(x), [[7.0, 1.0, 7.0, -9.0]] * 3)


def test_above_sends_the_first_so_many_and_tells_how_many_there_were():
    @jax.jit
    def above(x):
        both = (sparse.above(x, 1.0, capacity) for capacity in (4, 2))
        return [(message.indices, found, sparse.decode(message, 5)) for message, found in both]

    (indices, *four), (_, *two) = above(jnp.array([0.5, -4.0, 1.0, 3.0, -2.0]))
    assert four[0] == two[0] == 3
    np.testing.assert_array_equal(four[1], [0, -4, 0, 3, -2])
    assert len(set(np.asarray(indices).tolist())) == 4
    np.testing.assert_array_equal(two[1], [0, -4, 0, 3, 0])


def test_random_indices_are_distinct_and_equally_likely():
    size, k = 100, 7
    draws = jax.jit(jax.vmap(lambda key: sparse.random_indices(size, k, key)))
    found = np.asarray(draws(jax.random.split(jax.random.key(0), 5000)))
    assert found.min() >= 0 and found.max() < size
    assert (np.diff(np.sort(found, axis=1), axis=1) > 0).all()
    counts = np.bincount(found.ravel(), minlength=size)
    expected = 5000 * k / size
    assert np.abs(counts - expected).max() <= 4.5 * np.sqrt(expected)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_is_seen_even_if_it_is_not_sent(poison):
    x = np.arange(100, dtype=np.float32)
    x[13] = poison
    key = jax.random.key(0)

    @jax.jit
    def decoded(x):
        messages = [
            sparse.top_k(x, 1),
            sparse.above(x, 50.0, 1)[0],
            sparse.Sparse(sparse.random_k(x, 1, key), sparse.random_indices(100, 1, key)),
        ]
        return [sparse.decode(message, 100) for message in messages]

    assert np.isnan(decoded(x)).all()


test_refusals = refused(
    (lambda: sparse.top_k(jnp.ones(3), 0), "k = 0 entries send nothing; set k >= 1"),
    (lambda: sparse.random_k(jnp.ones(3), 0, jax.random.key(0)), "k = 0 entries"),
)
