"""Exact sums of row-sparse arrays: the dense sum, whether or not lists hold the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import compact


def gradients(workers, share, dtype=np.float32, shape=(200, 5)):
    rng = np.random.default_rng(0)
    rows = rng.random((workers, shape[0], *[1] * len(shape[1:]))) < share
    x = rng.normal(size=(workers, *shape)) * 10.0 ** rng.integers(-6, 6, (workers, *shape))
    return jnp.asarray(np.where(rows, x, 0), dtype)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "workers, shape, dtype",
    [(3, (200, 5), jnp.float32), (1, (333,), jnp.float32), (4, (60, 2, 3), jnp.bfloat16)],
)
def test_bits_of_the_dense_sum_within_the_budget_and_beyond(spmd, workers, shape, dtype):
    """Budgets of the union that are just too small, just large enough, and ample."""
    x = gradients(workers, 0.1, dtype, shape)
    union = int((np.asarray(x, np.float32) != 0).reshape(*x.shape[:2], -1).any((0, 2)).sum())
    budgets = union - 1, union, 10_000
    found, dense = spmd(
        lambda x: ([compact.all_reduce(x, b) for b in budgets], jax.lax.psum(x, "workers")), x
    )
    for budget, (total, fell_back) in zip(budgets, found, strict=True):
        assert total.dtype == x.dtype
        assert (np.asarray(fell_back) == (budget < union)).all()
        np.testing.assert_array_equal(np.asarray(total, np.float32), np.asarray(dense, np.float32))


@pytest.mark.few(1)
def test_the_sum_through_owners_whether_or_not_lists_hold_it(spmd):
    """41 rows, which three workers do not divide; whole numbers, so that no order matters."""
    workers = 3
    rng = np.random.default_rng(0)
    x = rng.integers(-99, 99, (workers, 41, 6)) * (rng.random((workers, 41, 1)) < 0.3)
    x = x.astype(np.float32)
    by_owner = [x[:, owner::workers].any(axis=2) for owner in range(workers)]
    pushed = max(int(part.sum(axis=1).max()) for part in by_owner)
    pulled = max(int(part.any(axis=0).sum()) for part in by_owner)
    rooms = ((pushed, pulled), (pushed - 1, pulled), (pushed, pulled - 1))

    def sums(x):
        return [compact.owned_all_reduce(x, compact.Room(*room)) for room in rooms]

    for (push, pull), found in zip(rooms, spmd(sums, x), strict=True):
        np.testing.assert_array_equal(found.total, np.broadcast_to(x.sum(0), x.shape))
        assert (np.asarray(found.push_overflow) == pushed - push).all()
        # Of rows that were not pushed nobody knows how many would have come back.
        assert (np.asarray(found.pull_overflow) == (pulled - pull) * (push == pushed)).all()


def test_nan_and_infinity_are_sent():
    x = np.zeros((2, 20, 3), np.float32)
    x[0, 7, 1], x[1, 8, 2], x[0, 9, 0], x[1, 9, 0] = np.nan, np.inf, np.inf, -np.inf

    def sums(x):
        by_owners = compact.owned_all_reduce(x, compact.Room(3, 3)).total
        return by_owners, compact.all_reduce(x, 0)[0], compact.all_reduce(x, 10)[0]

    with np.errstate(invalid="ignore"):
        for total in jax.jit(jax.vmap(sums, axis_name="workers"))(x):
            np.testing.assert_array_equal(total[1], x.sum(0))


def test_room_holds_rows_that_spread_by_chance():
    """Of 4 workers and 1,000 rows; 16 of 64 own rows go to an owner, and 13.9 more."""
    assert compact.room(4, 1000, 64, 64) == compact.Room(30, 30)
    assert compact.room(4, 1000, 1000, 2000) == compact.Room(250, 250)
    assert compact.room(1, 1000, 64, 900) == compact.Room(64, 900)
