"""Closed forms against simulation, recursions worked out here, and published numbers."""

import math

import numpy as np
import pytest

from stragglers import asynchronous_theory as theory
from stragglers import clock, delays
from stragglers.theory import expected_runtime, order_statistic_mean

EXPONENTIAL = delays.exponential(1.0)
SHIFTED = delays.shifted_exponential(1.0, 1.0)
PARETO = delays.pareto(1.0, 3.0)
LAWS = [
    EXPONENTIAL,
    SHIFTED,
    PARETO,
    delays.uniform(0.5, 1.5),
    delays.weibull(1.0, 0.7),
    delays.gamma(2.0, 0.5),
    delays.lognormal(0.0, 0.7),
    delays.bernoulli_slowdown(1.0, 5.0, 0.1),
]
PROBLEM = {"smoothness": 2.0, "gap": 3.0, "variance": 4.0}


def simulated(rule, law, k, workers, updates=20_000):
    return getattr(clock, rule)(law, workers, k, updates, 1).time[-1] / updates


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_runtimes_equal_simulation(law):
    for rule in ("k_sync", "k_batch_sync", "k_batch_async"):
        for k, workers in ((2, 8), (8, 8), (5, 3)):
            if k > workers and "batch" not in rule:
                continue
            expected = expected_runtime(rule, law, k, workers)
            assert simulated(rule, law, k, workers) == pytest.approx(expected, rel=0.015)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_k_async_lies_between_its_bounds(law, k):
    low, high = theory.runtime_bounds("k_async", law, k, 8)
    seconds = simulated("k_async", law, k, 8)
    assert low * 0.99 <= seconds <= high * 1.01
    if low == high:
        assert expected_runtime("k_async", law, k, 8) == low


def test_published_runtimes():
    """Seconds per update for K = 1, 2, 4, 8 of 8 workers, measured to 0.5 % (1803.01113)."""
    for law, rule, seconds in (
        (EXPONENTIAL, "k_async", [0.125, 0.267, 0.635, 2.718]),
        (SHIFTED, "k_batch_sync", [1.123, 1.268, 1.629, 2.666]),
        (PARETO, "k_batch_sync", [1.043, 1.096, 1.242, 2.041]),
        (PARETO, "k_batch_async", [0.187, 0.374, 0.752, 1.502]),
    ):
        expected = [expected_runtime(rule, law, k, 8) for k in (1, 2, 4, 8)]
        np.testing.assert_allclose(expected, seconds, rtol=0.006)


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_superposition_equals_the_closed_forms(workers):
    for k in (1, workers, 3 * workers):
        seconds = theory._superposed(EXPONENTIAL, k, workers)
        assert seconds == pytest.approx(k / workers, rel=0.003)
    lone = theory._superposed(PARETO, 1, workers)
    assert lone == pytest.approx(order_statistic_mean(PARETO, 1, workers), rel=0.003)


def test_deterministic_runtimes():
    law = delays.deterministic(2.0)
    assert expected_runtime("k_batch_sync", law, 9, 8) == 4.0
    assert expected_runtime("k_async", law, 4, 8) == 1.0
    assert expected_runtime("k_sync", law, 3, 8) == 2.0
    assert theory.runtime_bounds("k_async", law, 2, 3) == pytest.approx((4 / 3, 2.0))
    assert simulated("k_async", law, 2, 3) == pytest.approx(2.0, rel=1e-3)


def test_infinite_means():
    law = delays.pareto(1.0, 0.8)
    assert expected_runtime("k_batch_async", law, 2, 8) == math.inf
    assert expected_runtime("k_sync", law, 1, 8) < math.inf
    with pytest.raises(ValueError, match="has no mean"):
        theory.sync_over_async(law, 8)


def test_sync_over_async_of_exponential_delays():
    """P H_P: 21.74 for 8 and 54.09 for 16 workers (1803.01113)."""
    assert theory.sync_over_async(EXPONENTIAL.scaled(3.0), 8) == pytest.approx(21.74, abs=0.005)
    assert theory.sync_over_async(EXPONENTIAL, 16) == pytest.approx(54.09, abs=0.005)
    assert theory.sync_over_async(delays.deterministic(1.0), 16) == 16


def test_staleness_and_fresh_share():
    assert theory.mean_staleness("k_async", 2, 8) == 3
    assert theory.mean_staleness("k_batch_async", 2, 8) == 3.5
    assert theory.mean_staleness("k_batch_sync", 20, 8) == 0
    assert theory.fresh_share("k_async", 2, 8) == 0.25
    assert theory.fresh_share("k_batch_async", 2, 8) == pytest.approx((1 / 8 + 15 / 64) / 2)
    assert theory.fresh_share("k_sync", 2, 8) == 1
    # One contribution at a time: both asynchronous protocols are Async-SGD.
    assert theory.fresh_share("k_async", 1, 8) == theory.fresh_share("k_batch_async", 1, 8)


@pytest.mark.parametrize("k", [1, 4])
def test_stationary_loss_is_the_fixed_point_of_the_variance(k):
    rate, variance = 0.3, 2.0
    second_moment = 0.0
    for _ in range(500):
        second_moment = (1 - rate) ** 2 * second_moment + rate**2 * variance / k
    assert theory.stationary_loss(rate, k, variance) == pytest.approx(second_moment / 2)


@pytest.mark.parametrize("delay", [0, 1, 2, 7, 30])
def test_stability_limit_puts_a_root_on_the_unit_circle(delay):
    def radius(rate):
        polynomial = np.zeros(delay + 2)
        polynomial[:2] = 1, -1
        polynomial[-1] += rate
        return np.abs(np.roots(polynomial)).max()

    limit = theory.stability_limit(delay)
    assert radius(limit) == pytest.approx(1, abs=1e-9)
    assert radius(0.95 * limit) < 1 < radius(1.05 * limit)


def test_convex_bound_holds_on_the_quadratic_and_reaches_its_floor():
    """F = w^2 / 2 from w = 2: E[F] is known after every update."""
    rate, k, variance = 0.1, 2, 1.5
    problem = {"smoothness": 1.0, "convexity": 1.0, "variance": variance}
    bound = theory.convex_bound(np.arange(200), rate, k, 2.0, **problem)
    second_moment, exact = 4.0, []
    for _ in range(200):
        exact.append(second_moment / 2)
        second_moment = (1 - rate) ** 2 * second_moment + rate**2 * variance / k
    assert (bound >= exact).all() and bound[0] == exact[0]
    floor = theory.error_floor(rate, k, **problem)
    assert bound[-1] == pytest.approx(floor, rel=1e-6)
    assert theory.stationary_loss(rate, k, variance) < floor
    # A larger k, a larger batch and fresher gradients all lower the floor.
    assert theory.error_floor(rate, 2 * k, **problem) == pytest.approx(floor / 2)
    assert theory.error_floor(rate, k, batch_size=3, **problem) == pytest.approx(floor / 3)
    stale = theory.staleness_factor(0.8, 0.2)
    assert stale == pytest.approx(0.3)
    assert theory.error_floor(rate, k, factor=stale, **problem) == pytest.approx(floor / 0.3)


def test_gradient_bound_holds_on_the_quadratic():
    rate, k, variance = 0.1, 2, 1.5
    bound = theory.gradient_bound(np.arange(100), rate, k, 2.0, smoothness=1.0, variance=variance)
    second_moment, squares = 4.0, []
    for _ in range(100):
        squares.append(second_moment)
        second_moment = (1 - rate) ** 2 * second_moment + rate**2 * variance / k
    assert (bound >= np.cumsum(squares) / np.arange(1, 101)).all()


def test_time_complexities_of_equal_and_of_unequal_speeds():
    """L D / e = 6 / 0.1 = 60 and s^2 / e = 40 (2305.12387, Table 1)."""
    forms = (
        theory.minibatch_complexity,
        theory.async_complexity,
        theory.rennala_complexity,
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
        asynchronous = theory.async_complexity(row, 0.1, **PROBLEM)
        assert theory.rennala_complexity(row, 0.1, **PROBLEM) <= asynchronous
        assert asynchronous <= theory.minibatch_complexity(row, 0.1, **PROBLEM)


BOUND = {"smoothness": 1.0, "convexity": 1.0, "variance": 1.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_runtime("async", SHIFTED, 1, 8), "unknown rule 'async'; choose one of"),
        (lambda: expected_runtime("k_sync", SHIFTED, 9, 8), "k <= 8 workers, got workers=8, k=9"),
        (lambda: theory.mean_staleness("k_batch_async", 0, 8), "1 <= k, got workers=8, k=0"),
        (lambda: theory.fresh_share("k_async", 9, 8), "k=9; set k in this range"),
        (lambda: expected_runtime("k_async", PARETO, 2, 8), "take runtime_bounds, or simulate"),
        (lambda: theory.staleness_factor(1.5, 0.2), "must be > 0, got -0.4"),
        (lambda: theory.stationary_loss(2.0, 1, 1.0), "needs 0 < rate < 2, got 2"),
        (lambda: theory.stability_limit(-1), "delay >= 0 updates, got -1"),
        (lambda: theory.convex_bound(1, 0.6, 1, 1.0, **BOUND), "0 < rate <= 0.5, got 0.6"),
        (lambda: theory.convex_bound(1, 0.4, 1, 1.0, **BOUND, growth=1.0), "rate <= 0.25"),
        (lambda: theory.async_complexity([0.0, 1.0], 0.1, **PROBLEM), "needs positive seconds"),
        (lambda: theory.async_complexity([1.0], 0.0, **PROBLEM), "needs accuracy > 0, got 0"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
