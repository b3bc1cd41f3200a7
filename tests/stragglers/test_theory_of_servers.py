"""Closed forms against simulation, recursions worked out here, and published numbers."""

import math

import numpy as np
import pytest

from stragglers import delays, theory
from stragglers.order_statistics import order_statistic_mean
from tests import planned
from tests.refusals import refused
from tests.stragglers.test_order_statistics import LAWS

EXPONENTIAL = delays.exponential(1.0)
SHIFTED = delays.shifted_exponential(1.0, 1.0)
PARETO = delays.pareto(1.0, 3.0)


def expected_runtime(rule, law, k, workers):
    low, high = theory.runtime_bounds(rule, law, k, workers)
    assert low == high
    return low


def simulated(rule, law, k, workers, updates=20_000):
    return planned.plan(rule, law, workers, updates, seed=1, k=k).time[-1] / updates


@pytest.mark.parametrize("law", [SHIFTED, delays.weibull(1.0, 0.7)], ids=str)
def test_runtimes_equal_simulation(law):
    for rule in ("k_sync", "k_batch_sync", "k_batch_async"):
        for k, workers in ((2, 8), (8, 8), (5, 3)):
            if k > workers and "batch" not in rule:
                continue
            expected = expected_runtime(rule, law, k, workers)
            assert simulated(rule, law, k, workers) == pytest.approx(expected, rel=0.015)


@pytest.mark.parametrize(
    ("law", "k"),
    [*zip([*LAWS[1:], delays.weibull(1.0, 0.7)], [3, 8, 1] * 3, strict=True)], ids=str,
)  # fmt: skip
def test_k_async_lies_between_its_bounds(law, k):
    low, high = theory.runtime_bounds("k_async", law, k, 8)
    seconds = simulated("k_async", law, k, 8)
    assert low * 0.99 <= seconds <= high * 1.01


def test_bounds_follow_from_how_a_law_ages():
    def bounds(law, k):
        return theory.runtime_bounds("k_async", law, k, 8)

    shorter, longer = delays.gamma(2.0, 0.5), delays.weibull(1.0, 0.7)  # what is left of old ones
    assert bounds(shorter, 3) == pytest.approx((3 / 8, order_statistic_mean(shorter, 3, 8)))
    assert bounds(longer, 3) == pytest.approx((3 / 8 * longer.mean(), math.inf))
    assert bounds(longer, 6) == pytest.approx((order_statistic_mean(longer, 6, 8), math.inf))
    assert bounds(PARETO, 3) == pytest.approx((3 / 8 * 1.5, math.inf))


@pytest.mark.parametrize(
    ("law", "k", "workers"),
    [
        (EXPONENTIAL, 1, 20),
        (delays.pareto(1.0, 0.8), 1, 2),
        (delays.lognormal(0.0, 3.0), 1, 2),
        (delays.bernoulli_slowdown(1.0, 50.0, 0.01), 1, 2),
        (delays.weibull(1.0, 0.3), 5, 1),
    ],
    ids=str,
)
def test_superposition_of_heavy_tails_and_of_few_workers(law, k, workers):
    """The first of all, or k one after the other."""
    expected = order_statistic_mean(law, 1, workers) if k == 1 else k * law.mean()
    assert theory._superposed(EXPONENTIAL, k, workers) == pytest.approx(k / workers, rel=0.003)
    assert theory._superposed(law, k, workers) == pytest.approx(expected, rel=0.005)


def test_superposition_does_not_see_how_far_behind_the_slowest_of_many_are():
    """At least 100 of 128 workers end a mini-batch in each of three seconds."""
    law = delays.bernoulli_slowdown(1.0, 1000.0, 0.01)
    assert theory._superposed(law, 300, 128) == pytest.approx(3.0, rel=0.005)


def test_deterministic_runtimes():
    law = delays.deterministic(2.0)
    assert expected_runtime("k_batch_sync", law, 9, 8) == 4.0
    assert expected_runtime("k_async", law, 4, 8) == 1.0
    assert expected_runtime("k_sync", law, 3, 8) == 2.0
    assert theory.runtime_bounds("k_async", law, 2, 3) == pytest.approx((4 / 3, 2.0))


def test_infinite_means():
    law = delays.pareto(1.0, 0.8)
    assert expected_runtime("k_batch_async", law, 2, 8) == math.inf
    assert expected_runtime("k_sync", law, 1, 8) < math.inf
    assert expected_runtime("k_batch_sync", law, 9, 2) < math.inf
    assert expected_runtime("k_batch_sync", delays.pareto(1.0, 0.5), 9, 2) == math.inf


test_bad_values = refused(
    (lambda: expected_runtime("async", SHIFTED, 1, 8), "unknown rule 'async'; choose one of"),
    (lambda: expected_runtime("k_sync", SHIFTED, 9, 8), "k <= 8 workers, got workers=8, k=9"),
    (lambda: expected_runtime("k_batch_async", SHIFTED, 0, 8), "1 <= k, got workers=8, k=0"),
    (lambda: theory.stability_limit(-1), "delay >= 0 updates, got -1"),
)


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
