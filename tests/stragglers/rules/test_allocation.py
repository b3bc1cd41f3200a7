"""ATA: bounds and allocations by hand and by brute force, and rounds that follow them."""

import itertools
import math

import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import persistent
from stragglers.rules import allocation
from tests import planned


def test_bounds_by_hand():
    """Mu - 4 e alpha (sqrt(c) + c), c = ln(2 k^2) / K, and 2 mu for alpha as in ATA-Empirical."""
    seconds, tasks, k = np.array([10.0, 0.0, 400.0]), np.array([5, 0, 100]), 7
    c = math.log(2 * 49) / 100
    spread = 4 * math.e * (math.sqrt(c) + c)
    found = allocation.scores(seconds, tasks, k, alpha=0.1)
    np.testing.assert_allclose(found, [0.0, -np.inf, 4.0 - 0.1 * spread])
    np.testing.assert_allclose(allocation.scores(seconds, tasks, k, None), [0.0, -np.inf, 0.0])
    many = np.array([10**6])
    c = math.log(2 * 49) / 10**6
    expected = 3.0 - 8 * math.e * 3.0 * (math.sqrt(c) + c)
    np.testing.assert_allclose(allocation.scores(3.0 * many, many, k, None), [expected])


def test_the_greedy_allocation_is_optimal():
    rng = np.random.default_rng(0)
    for _ in range(30):
        score, most = rng.uniform(0.1, 3.0, 4), int(rng.integers(2, 5))
        total = int(rng.integers(1, 4 * most + 1))
        found = allocation.allocated(score, np.zeros(4, int), total, most)
        assert found.sum() == total and found.max() <= most
        best = min(
            (np.array(a) * score).max()
            for a in itertools.product(range(most + 1), repeat=4)
            if sum(a) == total
        )
        assert (found * score).max() == pytest.approx(best)


@pytest.mark.parametrize(
    ("score", "tasks", "total", "expected"),
    [
        ([-np.inf, 1.0, 2.0], [0, 4, 4], 4, [1, 2, 1]),  # an unknown worker gets one
        ([0.0, 0.0, 5.0], [9, 3, 1], 5, [2, 3, 0]),  # those without a bound share evenly
        ([-np.inf] * 3, [0, 0, 0], 4, [2, 1, 1]),
    ],
)
def test_what_is_not_known_yet(score, tasks, total, expected):
    found = allocation.allocated(np.array(score), np.array(tasks), total, most=9)
    np.testing.assert_array_equal(found, expected)


def test_rounds_last_as_long_as_the_slowest_share_and_learn_who_is_slow():
    slow = persistent(delays.deterministic(1.0), [4.0, 1.0, 1.0, 1.0])
    rows = planned.plan("ata", slow, 4, 60, 8, tasks=13, alpha=1e-3, communication=0.5)
    took = rows.batches * [4.0, 1.0, 1.0, 1.0]
    np.testing.assert_allclose(np.diff(rows.time, prepend=0.0), took.max(axis=1) + 0.5)
    np.testing.assert_array_equal(rows.batches[0], [4, 3, 3, 3])  # nothing is known
    np.testing.assert_array_equal(rows.batches[-1], [1, 4, 4, 4])
    assert (rows.batches.sum(axis=1) == 13).all()
    np.testing.assert_array_equal(rows.first[-1], rows.batches[:-1].sum(axis=0))
    with pytest.raises(ValueError, match=r"1 <= tasks <= 32 \(workers x mini-batches\), got 33"):
        planned.rule("ata", slow, 4, 8, tasks=33)
