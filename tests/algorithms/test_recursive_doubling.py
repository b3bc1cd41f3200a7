import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.sparcml import doubling_all_reduce, doubling_bytes, steps


def arrays(workers, size, own, width=3, seed=0):
    """Whole numbers, so that every order of addition gives the same bits."""
    rng = np.random.default_rng(seed)
    x = np.zeros((workers, size, width), np.float32)
    for worker in range(workers):
        rows = rng.choice(size, own, replace=False)
        x[worker, rows] = rng.integers(-99, 100, (own, width))
    return x


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [1, 4, 8])
def test_the_sum_on_every_worker(spmd, workers):
    for own in (0, 2, 20):
        x = arrays(workers, 40, own)
        found = spmd(lambda x, own=own: doubling_all_reduce(x, own), x)
        np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [3, 6])
def test_the_sum_where_workers_are_no_power_of_two(spmd, workers):
    x = arrays(workers, 40, 3, seed=1)
    found = spmd(lambda x: doubling_all_reduce(x, 3), x)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))


def test_all_workers_get_equal_bits():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 30, 2)).astype(np.float32))
    found = jax.vmap(lambda x: doubling_all_reduce(x, 30), axis_name="workers")(x)
    np.testing.assert_array_equal(found, jnp.broadcast_to(found[:1], found.shape))
    np.testing.assert_allclose(found[0], x.sum(0), rtol=1e-5, atol=1e-6)


def test_lists_double_until_the_array_is_as_short():
    """100 rows of 12 bytes: lists of 10, 20 and 40 rows of 16 bytes, then 1200 bytes."""
    found = steps(16, 100, 10, 12)
    assert [step.capacity for step in found] == [10, 20, 40, None]
    assert [doubling_bytes(step, 100, 12) for step in found] == [
        160, 320, 640, 1200,
    ]  # fmt: skip
    for step, distance in zip(found, (1, 2, 4, 8), strict=True):
        np.testing.assert_array_equal(step.partners, np.arange(16) ^ distance)


def test_workers_beyond_a_power_of_two_meet_one_below_it_first_and_last():
    first, *middle, last = steps(6, 1000, 10, 12)
    np.testing.assert_array_equal(first.partners, [4, 5, 2, 3, 0, 1])
    np.testing.assert_array_equal(last.partners, first.partners)
    assert (first.capacity, last.capacity, last.replaces) == (10, 60, True)
    assert [step.capacity for step in middle] == [20, 40]
    np.testing.assert_array_equal(middle[1].partners, [2, 3, 0, 1, 4, 5])
