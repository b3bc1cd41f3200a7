import math

import numpy as np
import pytest

from stragglers import delays
from tests.refusals import refused
from tests.stragglers.test_order_statistics import LAWS


@pytest.mark.parametrize("law", [*LAWS, delays.jitter(3.0, 0.1)], ids=str)
def test_samples_quantiles_and_the_mean_agree(law):
    sample = law.quantile(np.random.default_rng(0).random((200, 1000)))
    assert sample.shape == (200, 1000)
    assert sample.min() >= law.quantile(0.0)
    np.testing.assert_allclose(sample.mean(), law.mean(), rtol=0.01)
    u = np.linspace(0, 1, 101)[:-1]
    assert (np.diff(law.quantile(u)) >= 0).all()


def test_quantiles_worked_out():
    assert delays.exponential(2.0).quantile(0.5) == pytest.approx(2 * math.log(2))
    assert delays.pareto(1.0, 2.0).quantile(0.75) == pytest.approx(2.0)
    assert delays.weibull(1.0, 2.0).quantile(1 - math.exp(-4)) == pytest.approx(2.0)
    assert delays.lognormal(0.0, 1.0).quantile(0.5) == pytest.approx(1.0)
    law = delays.bernoulli_slowdown(2.0, 5.0, 0.25)
    np.testing.assert_array_equal(law.quantile([0.0, 0.75, 0.76, 1.0]), [2, 2, 10, 10])
    always = delays.bernoulli_slowdown(2.0, 5.0, 1.0)
    np.testing.assert_array_equal(always.quantile([0.0, 0.5]), [10, 10])
    assert delays.exponential(1.0).quantile(1.0) == math.inf
    a, b = (law.quantile(np.random.default_rng(3).random(50)) for law in (LAWS[1], LAWS[2]))
    np.testing.assert_allclose(b, 1 + a)  # the same uniforms


def test_means_at_the_edges_texts_and_the_registry():
    for law in (delays.pareto(1.0, 1.0), delays.lognormal(700.0, 5.0), delays.weibull(1.0, 0.005)):
        assert law.mean() == math.inf
    assert delays.jitter(2.0, 0.0) == delays.deterministic(2.0)
    assert delays.jitter(2.0, 0.7).mean() == pytest.approx(2.0)
    assert str(delays.pareto(1.0, 3.0)) == "pareto(minimum=1, shape=3)"
    assert set(delays.LAWS) == {law.name for law in LAWS} | {"jitter"}


test_bad_values = refused(
    (lambda: delays.deterministic(0), "deterministic: needs value > 0, got value=0"),
    (lambda: delays.exponential(math.nan), "needs scale > 0, got scale=nan"),
    (lambda: delays.exponential(math.inf), "needs scale > 0, got scale=inf"),
    (lambda: delays.uniform(2, 1), "uniform: needs 0 <= low < high, got low=2, high=1"),
    (lambda: delays.bernoulli_slowdown(1, 0.5, 0.1), "needs factor >= 1, got factor=0.5"),
    (lambda: delays.lognormal(math.inf, 1), "finite mu"),
    (lambda: delays.jitter(1, -0.1), "lognormal: needs sigma > 0"),
    (lambda: delays.gamma(1, 1).quantile(1.5), "0 <= u <= 1"),
)
