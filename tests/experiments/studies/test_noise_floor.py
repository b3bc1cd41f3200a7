"""What noise leaves at the minimum of a loss that is worked out by hand."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import noise_floor
from experiments.tasks import Task


class Examples(NamedTuple):
    target: np.ndarray


TARGETS = np.array([[1.0, 3.0], [3.0, -1.0], [2.0, 4.0]], np.float32)


@pytest.fixture(scope="module")
def minimum():
    """Of the mean of (w_0 - t_0)^2 / 2 + 2 (w_1 - t_1)^2, with curvatures 1 and 4."""

    def losses(w, examples):
        apart = w[None] - examples.target
        return apart[:, 0] ** 2 / 2 + 2 * apart[:, 1] ** 2

    examples = Examples(TARGETS)
    task = Task("quadratic", examples, examples, np.zeros(3, int), lambda _: jnp.zeros(2), losses)
    return noise_floor.at_minimum(task)


def test_the_minimum_has_the_loss_the_curvatures_and_the_variances_along_them(minimum):
    spread = TARGETS.var(axis=0)  # the slopes are 1 and 4 times the distances
    assert minimum.loss == pytest.approx(spread[0] / 2 + 2 * spread[1], rel=1e-5)
    np.testing.assert_allclose(minimum.curvatures, [1, 4], rtol=1e-5)
    np.testing.assert_allclose(minimum.variances, [spread[0], 16 * spread[1]], rtol=1e-4)


def test_the_level_is_that_of_both_axes_and_infinite_where_one_of_them_diverges(minimum):
    rate, k, samples = 0.3, 2, 5
    s = minimum.variances
    expected = rate * (s[0] / (2 - rate) + s[1] / (2 - 4 * rate)) / (2 * k * samples)
    assert noise_floor.level(minimum, rate, k, samples) == pytest.approx(expected, rel=1e-4)
    assert noise_floor.level(minimum, 0.51, k, samples) == math.inf


def test_the_bound_takes_the_largest_curvature_the_smallest_and_all_variance(minimum):
    rate, k, samples = 0.1, 2, 5
    expected = rate * 4 * minimum.variances.sum() / (2 * 1 * k * samples)
    assert noise_floor.bound(minimum, rate, k, samples) == pytest.approx(expected, rel=1e-4)
    assert noise_floor.level(minimum, rate, k, samples) < expected


def test_sgd_stays_at_the_level(minimum):
    """Independent samples at a fixed rate, many runs, long after the begin."""
    rate, k, samples = 0.3, 1, 2
    draw = np.random.default_rng(0)
    w, scale = np.zeros((20_000, 2)), np.array([1.0, 4.0])
    for _ in range(60):
        chosen = TARGETS[draw.integers(3, size=(len(w), k * samples))].mean(axis=1)
        w -= rate * scale * (w - chosen)
    apart = w - TARGETS.mean(axis=0)
    excess = (scale * apart**2 / 2).sum(axis=1).mean()
    assert excess == pytest.approx(noise_floor.level(minimum, rate, k, samples), rel=0.03)
