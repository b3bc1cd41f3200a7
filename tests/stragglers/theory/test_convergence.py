"""Bounds, floors and complexities against recursions and numbers worked out here."""

import numpy as np
import pytest

from stragglers import delays
from stragglers.theory import convergence
from tests import planned

PROBLEM = {"smoothness": 2.0, "gap": 3.0, "variance": 4.0}
BOUND = {"smoothness": 1.0, "convexity": 1.0, "variance": 1.0}


@pytest.mark.parametrize("k", [1, 4])
def test_stationary_loss_is_the_fixed_point_of_the_variance(k):
    rate, variance = 0.3, 2.0
    second_moment = 0.0
    for _ in range(500):
        second_moment = (1 - rate) ** 2 * second_moment + rate**2 * variance / k
    assert convergence.stationary_loss(rate, k, variance) == pytest.approx(second_moment / 2)


def test_stationary_loss_adds_up_the_axes_of_a_quadratic():
    rate, k, samples = 0.3, 2, 5
    curvature, variance = np.array([0.1, 4.0]), np.array([2.0, 0.5])
    second_moment = np.zeros(2)
    for _ in range(2000):
        noise = rate**2 * variance / (k * samples)
        second_moment = (1 - rate * curvature) ** 2 * second_moment + noise
    expected = np.sum(curvature * second_moment / 2)
    found = convergence.stationary_loss(rate, k, variance, curvature=curvature, batch_size=samples)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("delay", [0, 1, 2, 7, 30])
def test_stability_limit_puts_a_root_on_the_unit_circle(delay):
    def radius(rate):
        polynomial = np.zeros(delay + 2)
        polynomial[:2] = 1, -1
        polynomial[-1] += rate
        return np.abs(np.roots(polynomial)).max()

    limit = convergence.stability_limit(delay)
    assert radius(limit) == pytest.approx(1, abs=1e-9)
    assert radius(0.95 * limit) < 1 < radius(1.05 * limit)


def test_convex_bound_holds_on_the_quadratic_and_reaches_its_floor():
    """F = w^2 / 2 from w = 2: E[F] is known after every update."""
    rate, k, variance = 0.1, 2, 1.5
    problem = {"smoothness": 1.0, "convexity": 1.0, "variance": variance}
    bound = convergence.convex_bound(np.arange(200), rate, k, 2.0, **problem)
    second_moment, exact = 4.0, []
    for _ in range(200):
        exact.append(second_moment / 2)
        second_moment = (1 - rate) ** 2 * second_moment + rate**2 * variance / k
    assert (bound >= exact).all() and bound[0] == exact[0]
    floor = convergence.error_floor(rate, k, **problem)
    assert bound[-1] == pytest.approx(floor, rel=1e-6)
    assert convergence.stationary_loss(rate, k, variance) < floor
    # A larger k, a larger batch and fresher gradients all lower the floor.
    assert convergence.error_floor(rate, 2 * k, **problem) == pytest.approx(floor / 2)
    assert convergence.error_floor(rate, k, batch_size=3, **problem) == pytest.approx(floor / 3)
    stale = convergence.staleness_factor(0.8, 0.2)
    assert stale == pytest.approx(0.3)
    assert convergence.error_floor(rate, k, factor=stale, **problem) == pytest.approx(floor / 0.3)


def test_gradient_bound_holds_on_the_quadratic():
    rate, k, variance = 0.1, 2, 1.5
    bound = convergence.gradient_bound(
        np.arange(100), rate, k, 2.0, smoothness=1.0, variance=variance
    )
    second_moment, squares = 4.0, []
    for _ in range(100):
        squares.append(second_moment)
        second_moment = (1 - rate) ** 2 * second_moment + rate**2 * variance / k
    assert (bound >= np.cumsum(squares) / np.arange(1, 101)).all()


def test_bounds_by_hand():
    """eta = 1/8, L = 2, c = 1/2, s^2 = 3, k m = 2 x 3, gamma' = 1/4."""
    own = {"smoothness": 2.0, "variance": 3.0, "batch_size": 3, "factor": 0.25}
    floor = convergence.error_floor(0.125, 2, convexity=0.5, **own)
    assert floor == pytest.approx(0.75 / 1.5)
    left = 1 - 0.125 * 0.5 * 0.25
    bound = convergence.convex_bound([0, 1, 3], 0.125, 2, 4.0, convexity=0.5, **own)
    np.testing.assert_allclose(bound, 0.5 + np.array([1, left, left**3]) * 3.5)
    bound = convergence.gradient_bound([0, 3], 0.125, 2, 4.0, **own)
    np.testing.assert_allclose(bound, [256.0 + 0.5, 64.0 + 0.5])
    # The largest rate is 1 / (2 L (M_G / (k m) + 1)), here 1 / 8 for M_G = k m.
    convergence.gradient_bound(0, 0.125, 2, 4.0, growth=6.0, **own)
    with pytest.raises(ValueError, match=r"0 < rate <= 0\.125, got 0\.126"):
        convergence.gradient_bound(0, 0.126, 2, 4.0, growth=6.0, **own)


def test_time_complexities_of_equal_and_of_unequal_speeds():
    """L D / e = 6 / 0.1 = 60 and s^2 / e = 40 (2305.12387, Table 1)."""
    forms = (
        convergence.minibatch_complexity,
        convergence.async_complexity,
        convergence.rennala_complexity,
    )
    for form in forms:
        assert form([2.0] * 4, 0.1, **PROBLEM) == pytest.approx(2 * 60 * (1 + 40 / 4))
    speeds = [1.0, 1.0, 1e6]
    minibatch, asynchronous, rennala = (form(speeds, 0.1, **PROBLEM) for form in forms)
    assert minibatch == pytest.approx(1e6 * 60 * (1 + 40 / 3))
    assert asynchronous == pytest.approx(3 / (2 + 1e-6) * 60 * (1 + 40 / 3))
    assert rennala == pytest.approx(60 * (1 + 40 / 2))  # the slow worker is left out
    assert rennala <= asynchronous <= minibatch


def test_rennala_never_loses():
    speeds = np.random.default_rng(0).pareto(1.0, (50, 20)) + 0.1
    for row in speeds:
        asynchronous = convergence.async_complexity(row, 0.1, **PROBLEM)
        assert convergence.rennala_complexity(row, 0.1, **PROBLEM) <= asynchronous
        assert asynchronous <= convergence.minibatch_complexity(row, 0.1, **PROBLEM)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convergence.staleness_factor(1.5, 0.2), "must be > 0, got -0.4"),
        (
            lambda: convergence.stationary_loss(2.0, 1, 1.0),
            r"needs 0 < rate \* curvature < 2, got 2 to 2",
        ),
        (
            lambda: convergence.stationary_loss(1.0, 1, 1.0, curvature=[0.5, 3.0]),
            "got 0.5 to 3; it diverges",
        ),
        (lambda: convergence.stability_limit(-1), "delay >= 0 updates, got -1"),
        (lambda: convergence.convex_bound(1, 0.6, 1, 1.0, **BOUND), "0 < rate <= 0.5, got 0.6"),
        (lambda: convergence.convex_bound(1, 0.4, 1, 1.0, **BOUND, growth=1.0), "rate <= 0.25"),
        (lambda: convergence.async_complexity([0.0, 1.0], 0.1, **PROBLEM), "needs positive seco"),
        (lambda: convergence.async_complexity([1.0], 0.0, **PROBLEM), "needs accuracy > 0, got 0"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_updates_of_varying_batches_stay_below_their_bound():
    """F(x) = 1 - cos x from x = 2, on the samples that rounds of the first finisher have used."""
    law = delays.shifted_exponential(1.0, 1.0)
    schedule = planned.plan("first_finisher", law, 8, 60, 8, in_flight="cut", draw="round")
    batches = schedule.batches.sum(axis=1)
    assert batches.min() < 0.7 * batches.max()
    gap, variance = 1 - np.cos(2.0), 9.0
    rng = np.random.default_rng(0)
    for rates in (np.full(60, 0.2), 0.5 * batches / batches.max()):
        bound = convergence.varying_batches_bound(
            batches, rates, gap, smoothness=1.0, variance=variance
        )
        x, squares = np.full(4000, 2.0), []
        for size, rate in zip(batches, rates, strict=True):
            squares.append(np.mean(np.sin(x) ** 2))
            x = x - rate * (np.sin(x) + np.sqrt(variance / size) * rng.normal(size=x.size))
        measured = np.average(squares, weights=rates)
        assert measured <= bound < 5 * measured


def test_equal_batches_are_those_of_synchronous_sgd_and_uneven_ones_cost_more():
    known = {"smoothness": 2.0, "variance": 4.0}
    equal = convergence.varying_batches_bound(np.full(30, 12), 0.1, 3.0, **known)
    synchronous = convergence.gradient_bound(29, 0.1, 4, 3.0, batch_size=3, **known)
    assert equal == pytest.approx(synchronous)
    uneven = convergence.varying_batches_bound([4, 20] * 15, 0.1, 3.0, **known)
    harmonic = convergence.varying_batches_bound(
        np.full(30, 2 / (1 / 4 + 1 / 20)), 0.1, 3.0, **known
    )
    assert uneven == pytest.approx(harmonic) and uneven > equal
    # A rate in proportion to the samples makes up for it: only their sum counts.
    in_proportion = 0.1 / 12 * np.array([4, 20] * 15)
    again = convergence.varying_batches_bound([4, 20] * 15, in_proportion, 3.0, **known)
    assert again == pytest.approx(equal)


def test_batches_and_rates_without_a_bound_are_refused():
    known = {"smoothness": 2.0, "variance": 4.0}
    with pytest.raises(ValueError, match="at least one sample each; leave out the others"):
        convergence.varying_batches_bound([3, 0], 0.1, 3.0, **known)
    with pytest.raises(ValueError, match=r"rates of 0\.1 to 0\.6 must .* exceed 1 / L = 0\.5"):
        convergence.varying_batches_bound([3, 1], [0.1, 0.6], 3.0, **known)
