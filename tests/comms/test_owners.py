import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import compact, owners
from tests.algorithms.test_recursive_doubling import arrays


def body(fits):
    return lambda x: owners.all_reduce(x, fits, compact.dense_sum)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_sum_whether_or_not_lists_hold_it(spmd, workers):
    """41 rows, which no number of workers divides; owners have 41 or 14 of them."""
    x = arrays(workers, 41, 6)
    by_owner = [x[:, owner::workers].any(axis=2) for owner in range(workers)]
    pushed = max(int(part.sum(axis=1).max()) for part in by_owner)
    pulled = max(int(part.any(axis=0).sum()) for part in by_owner)
    for push, pull in ((pushed, pulled), (pushed - 1, pulled), (pushed, pulled - 1)):
        found = spmd(body(owners.Room(push, pull)), x)
        np.testing.assert_array_equal(found.total, np.broadcast_to(x.sum(0), x.shape))
        assert (np.asarray(found.push_overflow) == pushed - push).all()
        # Of rows that were not pushed nobody knows how many would have come back.
        assert (np.asarray(found.pull_overflow) == (pulled - pull) * (push == pushed)).all()


def test_nan_and_infinity_are_sent():
    x = np.zeros((2, 20, 3), np.float32)
    x[0, 7, 1], x[1, 8, 2], x[0, 9, 0], x[1, 9, 0] = np.nan, np.inf, np.inf, -np.inf
    found = jax.vmap(body(owners.Room(3, 3)), axis_name="workers")(jnp.asarray(x))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found.total[1], x.sum(0))


def test_room_holds_rows_that_spread_by_chance():
    """Of 4 workers and 1,000 rows; 16 of 64 own rows go to an owner, and 13.9 more."""
    assert owners.room(4, 1000, 64, 64) == owners.Room(30, 30)
    assert owners.room(4, 1000, 1000, 2000) == owners.Room(250, 250)
    assert owners.room(1, 1000, 64, 900) == owners.Room(64, 900)
    rng, overflows = np.random.default_rng(0), 0
    for _ in range(500):
        rows = rng.choice(1000, 64, replace=False)
        overflows += np.bincount(rows % 4, minlength=4).max() > 30
    assert overflows == 0
