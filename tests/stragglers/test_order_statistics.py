import math

import numpy as np
import pytest

from stragglers import delays
from stragglers.order_statistics import moments, order_statistic_mean, quadrature, sums_means

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
def test_closed_forms_equal_the_quadrature(law):
    for workers, k in ((1, 1), (2, 1), (8, 4), (30, 21), (30, 30), (64, 1), (64, 32), (64, 64)):
        closed = order_statistic_mean(law, k, workers)
        assert closed == pytest.approx(quadrature(law, k, workers), rel=1e-8)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_order_statistics_equal_samples(law):
    uniforms = np.random.default_rng(0).random((30_000, 8))
    sample = np.sort(law.quantile(uniforms), axis=1).mean(axis=0)
    means = [order_statistic_mean(law, k, 8) for k in range(1, 9)]
    np.testing.assert_allclose(sample, means, rtol=0.02)
    assert np.mean(means) == pytest.approx(law.mean(), rel=1e-6)


def test_infinite_means_are_infinite_and_a_bad_k_is_refused():
    with pytest.raises(ValueError, match="1 <= k <= 8 workers, got k=9"):
        order_statistic_mean(LAWS[1], 9, 8)
    law = delays.pareto(1.0, 0.8)
    assert order_statistic_mean(law, 8, 8) == math.inf
    assert order_statistic_mean(law, 1, 8) == pytest.approx(6.4 / 5.4)


def test_sums_of_exponentials_are_gamma():
    """Erlang: the sum of three exponentials is Gamma(3), on a lattice to about 1 %."""
    of_sums = sums_means(delays.exponential(2.0), 8, 3)
    expected = [order_statistic_mean(delays.gamma(3.0, 2.0), k, 8) for k in range(1, 9)]
    np.testing.assert_allclose(of_sums, expected, rtol=0.01)
    alone = [order_statistic_mean(delays.pareto(1.0, 3.0), k, 8) for k in range(1, 9)]
    np.testing.assert_array_equal(sums_means(delays.pareto(1.0, 3.0), 8, 1), alone)


def test_sums_of_a_constant_and_of_a_rare_pause():
    np.testing.assert_allclose(sums_means(delays.deterministic(0.5), 3, 4), 2.0)
    # Two of (1 s, or 3 s with probability 1/4): 2, 4 or 6 s with 9/16, 6/16, 1/16; the faster of 2.
    pause = delays.bernoulli_slowdown(1.0, 3.0, 0.25)
    survival = np.array([1.0, 1.0, 7 / 16, 7 / 16, 1 / 16, 1 / 16])  # beyond 0, 1, ... s
    faster, slower = sums_means(pause, 2, 2)
    np.testing.assert_allclose([faster, slower], [sum(survival**2), sum(1 - (1 - survival) ** 2)])


def test_laws_of_ones_own_are_told_apart_by_how_they_are_drawn():
    """Of one name and mean: 1 s always, or 2 s half of the time and nearly nothing else."""
    always = delays.Law("own", (), 1.0, lambda u: np.ones_like(u))
    seldom = delays.Law("own", (), 1.0, lambda u: np.where(u < 0.5, 1e-9, 2.0))
    found = [moments(law, 8, 1, "round", "cut").blocking for law in (always, seldom)]
    assert found == pytest.approx([1.0, 2.0 * (1 - 0.5**8)], rel=1e-3)
