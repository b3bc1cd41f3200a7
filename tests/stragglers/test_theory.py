import math

import numpy as np
import pytest

from stragglers import clock, delays, theory

LAWS = [
    delays.deterministic(0.125),
    delays.exponential(1.0),
    delays.shifted_exponential(1.0, 1.0),
    delays.pareto(1.0, 3.0),
    delays.weibull(1.0, 1.5),
    delays.gamma(2.0, 0.5),
    delays.lognormal(0.0, 0.7),
    delays.uniform(0.5, 1.5),
    delays.bernoulli_slowdown(0.125, 5.0, 0.1),
]
CLOSED = [law for law in LAWS if law.name not in ("gamma", "lognormal", "bernoulli_slowdown")]


@pytest.mark.parametrize("law", CLOSED, ids=str)
@pytest.mark.parametrize("workers", [1, 2, 8, 30, 64])
def test_closed_forms_equal_the_quadrature(law, workers):
    for k in {1, (workers + 1) // 2, workers}:
        closed = theory.order_statistic_mean(law.scaled(2.0), k, workers)
        assert closed == pytest.approx(2 * theory.quadrature(law, k, workers), rel=1e-8)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_order_statistics_equal_samples(law):
    sample = np.sort(law.sample(np.random.default_rng(0), (60_000, 8)), axis=1).mean(axis=0)
    means = [theory.order_statistic_mean(law, k, 8) for k in range(1, 9)]
    np.testing.assert_allclose(sample, means, rtol=0.02)
    assert np.mean(means) == pytest.approx(law.mean(), rel=1e-6)


def test_order_statistics_of_two_published_laws():
    """E[X_{K:8}] for K = 1, 2, 4, 8, rounded to three decimals (1803.01113, K-sync)."""
    for law, expected in (
        (delays.exponential(1.0), [0.125, 0.268, 0.634, 2.718]),
        (delays.shifted_exponential(1.0, 1.0), [1.125, 1.268, 1.635, 3.718]),
        (delays.pareto(1.0, 3.0), [1.043, 1.096, 1.243, 2.746]),
    ):
        means = [theory.order_statistic_mean(law, k, 8) for k in (1, 2, 4, 8)]
        np.testing.assert_allclose(means, expected, atol=1e-3)


def test_infinite_means_are_infinite():
    law = delays.pareto(1.0, 0.8)
    assert theory.order_statistic_mean(law, 8, 8) == math.inf
    assert theory.order_statistic_mean(law, 1, 8) == pytest.approx(6.4 / 5.4)
    assert theory.round_time(law, 8, 8, blocking=False, in_flight="finish") == math.inf
    assert theory.throughput_gain(law, 8, 8) == math.inf


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("draw", ["round", "mini_batch"])
def test_rules_reach_the_theory(law, draw):
    """Round times E[max] and E[min], finished shares and gains, in both in-flight policies."""
    # The minimum of exponentials varies as much as it is long: it takes more rounds.
    updates = 20_000 if (law.name, draw) == ("exponential", "round") else 5000
    blocking = clock.barrier(law, 8, 8, updates, 1, draw=draw)
    expected = theory.round_time(law, 8, 8, blocking=True, draw=draw)
    assert blocking.time[-1] / updates == pytest.approx(expected, rel=0.02)
    for in_flight in ("cut", "finish"):
        options = {"draw": draw, "in_flight": in_flight}
        rounds = clock.first_finisher(law, 8, 8, updates, 1, **options)
        expected = theory.round_time(law, 8, 8, blocking=False, **options)
        assert rounds.time[-1] / updates == pytest.approx(expected, rel=0.02)
        share = theory.finished_share(law, 8, 8, **options)
        assert rounds.batches.mean() / 8 == pytest.approx(share, rel=0.02)
        gain = rounds.batches.mean() / 8 * blocking.time[-1] / rounds.time[-1]
        assert gain == pytest.approx(theory.throughput_gain(law, 8, 8, **options), rel=0.02)


@pytest.mark.parametrize(
    "law, workers, draw, in_flight, gain",
    [
        (delays.shifted_exponential(1.0, 1.0), 8, "round", "cut", 1.99),
        (delays.shifted_exponential(1.0, 1.0), 8, "mini_batch", "cut", 1.21),
        (delays.bernoulli_slowdown(1.0, 5.0, 0.1), 8, "round", "cut", 2.99),
        (delays.bernoulli_slowdown(1.0, 5.0, 0.1), 8, "round", "finish", 2.67),
        (delays.shifted_exponential(1.0, 1.0), 16, "round", "cut", 2.34),
    ],
)
def test_gains_of_the_run_time_model(law, workers, draw, in_flight, gain):
    computed = theory.throughput_gain(law, workers, 8, draw=draw, in_flight=in_flight)
    assert computed == pytest.approx(gain, rel=0.02)


def test_communication_dilutes_the_gain():
    law = delays.shifted_exponential(1.0, 1.0)
    gains = [theory.throughput_gain(law, 8, 8, communication=d) for d in (0.0, 4.0, 1e9)]
    assert gains[0] > gains[1] > gains[2]
    assert gains[2] == pytest.approx(theory.finished_share(law, 8, 8), rel=1e-6)


def test_one_worker_gains_nothing():
    for draw in ("round", "mini_batch"):
        for in_flight in ("cut", "finish"):
            gain = theory.throughput_gain(LAWS[1], 1, 4, draw=draw, in_flight=in_flight)
            assert gain == pytest.approx(1.0, rel=1e-6)


def test_fixed_speeds():
    assert theory.speeds_gain([1, 1, 1, 1], 8) == 1
    assert theory.speeds_gain([2] + 7 * [1], 8) == pytest.approx(1.875)
    assert theory.speeds_gain([4] + 7 * [1], 8, in_flight="finish") == pytest.approx(4 * 58 / 64)
    # Many mini-batches: s (n - 1 + 1/s) / n.
    assert theory.speeds_gain([5] + 7 * [1], 10_000) == pytest.approx(5 * 7.2 / 8, rel=1e-3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: theory.order_statistic_mean(LAWS[1], 9, 8), "1 <= k <= 8 workers, got k=9"),
        (lambda: theory.finished_share(LAWS[1], 8, 8, draw="epoch"), "unknown draw='epoch'"),
        (lambda: theory.finished_share(LAWS[1], 8, 8, in_flight="x"), "unknown in_flight='x'"),
        (lambda: theory.finished_share(LAWS[1], 8, 0), "mini_batches >= 1"),
        (lambda: theory.throughput_gain(LAWS[1], 8, 8, -1.0), "communication >= 0, got -1.0"),
        (lambda: theory.speeds_gain([1.0, 0.0], 8), "needs positive factors"),
        (
            lambda: theory.finished_share(delays.pareto(1.0, 1.1), 8, 8, draw="mini_batch"),
            "too heavy for a lattice",
        ),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()
