import functools

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.powersgd import factor_shape, factored_all_reduce, first_factor, orthonormal

FIRST = first_factor((30, 20), 2, jax.random.key(1))
body = jax.jit(jax.vmap(factored_all_reduce, axis_name="workers"))


def reduce(x, q):
    total, q = body(x, jnp.stack([q] * len(x)))
    np.testing.assert_array_equal(q, np.broadcast_to(q[:1], q.shape))
    return np.asarray(total[0]), q[0]


def test_factors_of_float64_are_float32():
    """As their bytes are counted, and as a dense leaf of the warm-up is."""
    with jax.enable_x64():
        assert first_factor((30, 20), 2, jax.random.key(1)).dtype == jnp.float32


def low_rank(workers, rank):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(workers, 30, rank)), rng.normal(size=(1, rank, 20))
    return (left @ right).astype(np.float32)


def test_a_sum_of_that_rank_is_exact():
    x = low_rank(2, 2)
    np.testing.assert_allclose(reduce(x, FIRST)[0], x.sum(axis=0), rtol=1e-4, atol=1e-4)


def test_warm_start_approaches_the_best_approximation():
    x = np.random.default_rng(0).normal(size=(2, 30, 20)).astype(np.float32) + 5 * low_rank(2, 2)
    u, s, v = np.linalg.svd(x.sum(axis=0))
    best = (u[:, :2] * s[:2]) @ v[:2]
    q, errors = FIRST, []
    for _ in range(6):
        total, q = reduce(x, q)
        errors.append(np.linalg.norm(total - best))
    assert errors[-1] < 0.01 * errors[0]
    np.testing.assert_allclose(total, best, rtol=1e-2, atol=1e-2)


def test_shapes():
    """Of leaves with fewer than two axes, or of factors that would be as large, nothing is cut."""
    for shape, rank, expected in (
        ((30, 20), 2, (30, 20, 2)),
        ((3, 3, 8, 16), 4, (72, 16, 4)),
        ((3, 30), 2, (3, 30, 2)),
        ((7,), 1, None),
        ((0, 5), 1, None),
        ((2, 2), 1, None),
        ((30, 20), 20, None),
    ):
        assert factor_shape(shape, rank) == expected
        q = jax.eval_shape(functools.partial(first_factor, shape, rank), jax.random.key(0))
        _, m, r = expected or (0, 0, 0)
        assert q.shape == (m, r)
    for shape in ((7,), (3, 3, 8, 16)):
        x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
        total, _ = reduce(x, first_factor(shape, 1, jax.random.key(0)))
        assert total.shape == shape
        if len(shape) < 3:
            np.testing.assert_array_equal(total, x.sum(axis=0))


def test_orthonormal_even_if_the_rank_is_lower():
    full = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    for p in (full, np.zeros_like(full), full[:, :1] * np.ones((1, 3), np.float32)):
        basis = orthonormal(p)
        np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-5)
        np.testing.assert_allclose(basis @ (basis.T @ p), p, atol=1e-5)


def test_a_zero_or_broken_gradient_is_seen_but_not_kept_in_q():
    for poison in (0.0, np.nan, np.inf):
        x = low_rank(2, 1)
        x[0, 5, 7] = poison
        total, q = reduce(x if poison else 0 * x, FIRST)
        assert np.isnan(total).all() if poison else (total == 0).all()
        np.testing.assert_array_equal(q, FIRST)
