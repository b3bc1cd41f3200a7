import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.powersgd import (
    factor_bytes,
    factor_shape,
    factored_all_reduce,
    first_factor,
    orthonormal,
)


def reduce(x, q):
    workers = len(x)
    body = jax.jit(jax.vmap(factored_all_reduce, axis_name="workers"))
    total, q = body(x, jnp.stack([q] * workers))
    np.testing.assert_array_equal(q, np.broadcast_to(q[:1], q.shape))
    return np.asarray(total[0]), q[0]


def low_rank(workers, n, m, rank, seed=0):
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(workers, n, rank)), rng.normal(size=(1, rank, m))
    return (left @ right).astype(np.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_sum_of_that_rank_is_exact(rank):
    x = low_rank(3, 30, 20, rank)
    total, _ = reduce(x, first_factor((30, 20), rank, jax.random.key(0)))
    np.testing.assert_allclose(total, x.sum(axis=0), rtol=1e-4, atol=1e-4)


def test_warm_start_approaches_the_best_approximation():
    x = np.random.default_rng(0).normal(size=(2, 30, 20)).astype(np.float32)
    x += 5 * low_rank(2, 30, 20, 2)
    u, s, v = np.linalg.svd(x.sum(axis=0))
    best = (u[:, :2] * s[:2]) @ v[:2]
    q = first_factor((30, 20), 2, jax.random.key(1))
    errors = []
    for _ in range(6):
        total, q = reduce(x, q)
        errors.append(np.linalg.norm(total - best))
    assert errors[-1] < 0.01 * errors[0]
    np.testing.assert_allclose(total, best, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "shape, rank, expected",
    [
        ((30, 20), 2, (30, 20, 2)),
        ((3, 3, 8, 16), 4, (72, 16, 4)),
        ((7,), 1, None),
        ((), 1, None),
        ((0, 5), 1, None),
        ((2, 2), 1, None),  # the factors would be as large
        ((30, 20), 20, None),
        ((3, 30), 2, (3, 30, 2)),
    ],
)
def test_shapes_and_bytes(shape, rank, expected):
    assert factor_shape(shape, rank) == expected
    q = first_factor(shape, rank, jax.random.key(0))
    if expected is None:
        assert q.shape == (0, 0)
        assert factor_bytes(shape, rank) == 4 * int(np.prod(shape))
    else:
        n, m, r = expected
        assert q.shape == (m, r)
        assert factor_bytes(shape, rank) == 4 * (n + m) * r < 4 * n * m
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    total, after = reduce(x, q)
    assert total.shape == shape and after.shape == q.shape
    if expected is None:
        np.testing.assert_array_equal(total, x.sum(axis=0))


@pytest.mark.parametrize("rank", [1, 3])
def test_orthonormal_even_if_the_rank_is_lower(rank):
    full = np.random.default_rng(0).normal(size=(12, rank)).astype(np.float32)
    for p in (full, np.zeros_like(full), full[:, :1] * np.ones((1, rank), np.float32)):
        basis = orthonormal(p)
        np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-5)
        np.testing.assert_allclose(basis @ (basis.T @ p), p, atol=1e-5)


@pytest.mark.parametrize("poison", [0.0, np.nan, np.inf])
def test_a_zero_or_broken_gradient_is_seen_but_not_kept_in_q(poison):
    x = low_rank(2, 30, 20, 1)
    x[0, 5, 7] = poison
    if poison == 0:
        x = 0 * x
    start = first_factor((30, 20), 2, jax.random.key(0))
    total, q = reduce(x, start)
    assert (total == 0).all() if poison == 0 else np.isnan(total).all()
    np.testing.assert_array_equal(q, start)


def test_a_rank_of_zero_is_refused():
    with pytest.raises(ValueError, match="rank 0 leaves nothing"):
        first_factor((3, 3), 0, jax.random.key(0))
