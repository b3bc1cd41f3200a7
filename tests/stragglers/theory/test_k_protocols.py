"""Closed forms against simulation, recursions worked out here, and published numbers."""

import math

import numpy as np
import pytest

from stragglers import delays
from stragglers.order_statistics import order_statistic_mean
from stragglers.theory import k_protocols as theory
from stragglers.theory.k_protocols import expected_runtime
from tests import planned

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


def simulated(rule, law, k, workers, updates=20_000):
    return planned.plan(rule, law, workers, updates, seed=1, k=k).time[-1] / updates


@pytest.mark.few(2)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_runtimes_equal_simulation(law):
    for rule in ("k_sync", "k_batch_sync", "k_batch_async"):
        for k, workers in ((2, 8), (8, 8), (5, 3)):
            if k > workers and "batch" not in rule:
                continue
            expected = expected_runtime(rule, law, k, workers)
            assert simulated(rule, law, k, workers) == pytest.approx(expected, rel=0.015)


@pytest.mark.parametrize(("law", "k"), zip(LAWS, [3, 8, 1] * 3, strict=False), ids=str)
def test_k_async_lies_between_its_bounds(law, k):
    low, high = theory.runtime_bounds("k_async", law, k, 8)
    seconds = simulated("k_async", law, k, 8)
    assert low * 0.99 <= seconds <= high * 1.01
    if low == high:
        assert expected_runtime("k_async", law, k, 8) == low


def test_bounds_follow_from_how_a_law_ages():
    def bounds(law, k):
        return theory.runtime_bounds("k_async", law, k, 8)

    shorter, longer = delays.gamma(2.0, 0.5), delays.weibull(1.0, 0.7)  # what is left of old ones
    assert bounds(shorter, 3) == pytest.approx((3 / 8, order_statistic_mean(shorter, 3, 8)))
    assert bounds(longer, 3) == pytest.approx((3 / 8 * longer.mean(), math.inf))
    assert bounds(longer, 6) == pytest.approx((order_statistic_mean(longer, 6, 8), math.inf))
    assert simulated("k_async", longer, 6, 8) > bounds(longer, 6)[0]
    assert bounds(PARETO, 3) == pytest.approx((3 / 8 * 1.5, math.inf))


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


@pytest.mark.parametrize(
    ("law", "k", "workers"),
    [
        (delays.pareto(1.0, 0.8), 1, 2),
        (delays.lognormal(0.0, 3.0), 1, 2),
        (delays.weibull(1.0, 0.3), 1, 3),
        (delays.gamma(0.1, 1.0), 1, 3),
        (delays.bernoulli_slowdown(1.0, 50.0, 0.01), 1, 2),
        (delays.lognormal(0.0, 2.0), 3, 1),
        (delays.weibull(1.0, 0.3), 5, 1),
    ],
    ids=str,
)
def test_superposition_of_heavy_tails_and_of_few_workers(law, k, workers):
    """The first of all, or k one after the other."""
    expected = order_statistic_mean(law, 1, workers) if k == 1 else k * law.mean()
    assert theory._superposed(law, k, workers) == pytest.approx(expected, rel=0.005)


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
    assert expected_runtime("k_batch_sync", law, 9, 2) < math.inf
    assert expected_runtime("k_batch_sync", delays.pareto(1.0, 0.5), 9, 2) == math.inf
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_runtime("async", SHIFTED, 1, 8), "unknown rule 'async'; choose one of"),
        (lambda: expected_runtime("k_sync", SHIFTED, 9, 8), "k <= 8 workers, got workers=8, k=9"),
        (lambda: theory.mean_staleness("k_batch_async", 0, 8), "1 <= k, got workers=8, k=0"),
        (lambda: theory.fresh_share("k_async", 9, 8), "k=9; set k in this range"),
        (lambda: expected_runtime("k_async", PARETO, 2, 8), "take runtime_bounds, or simulate"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
