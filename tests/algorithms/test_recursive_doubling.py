import numpy as np
import pytest

from algorithms.sparcml import doubling_all_reduce, steps


def arrays(workers, size, own, width=3, seed=0):
    """Return whole numbers, so that every order of addition gives the same bits."""
    rng = np.random.default_rng(seed)
    x = np.zeros((workers, size, width), np.float32)
    for worker in range(workers):
        rows = rng.choice(size, own, replace=False)
        x[worker, rows] = rng.integers(-99, 100, (own, width))
    return x


@pytest.mark.few(1)
def test_the_sum_on_every_worker(spmd):
    few, many = (arrays(6, 40, own) for own in (2, 20))
    noise = np.random.default_rng(0).normal(size=many.shape).astype(np.float32) * (many != 0)
    *sums, same = spmd(
        lambda *each: [doubling_all_reduce(*one) for one in zip(each, (2, 20, 20), strict=True)],
        few, many, noise,
    )  # fmt: skip
    for found, x in zip(sums, (few, many), strict=True):
        np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))
    np.testing.assert_array_equal(same, np.broadcast_to(same[:1], same.shape))


def test_workers_beyond_a_power_of_two_meet_one_below_it_first_and_last():
    first, *middle, last = steps(6, 1000, 10, 12)
    np.testing.assert_array_equal(first.partners, [4, 5, 2, 3, 0, 1])
    np.testing.assert_array_equal(last.partners, first.partners)
    assert (first.capacity, last.capacity, last.replaces) == (10, 60, True)
    assert [step.capacity for step in middle] == [20, 40]
    np.testing.assert_array_equal(middle[1].partners, [2, 3, 0, 1, 4, 5])
