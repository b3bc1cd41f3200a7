"""MindFlayer's trials: by a plain loop, by hand, and their rate by theory."""

import numpy as np
import pytest

from stragglers import delays, theory
from stragglers.processes import as_process, from_law, markov
from stragglers.rule import Setting
from stragglers.rules.trials import mindflayer
from tests import planned

HEAVY = delays.pareto(0.2, 1.2)


@pytest.mark.parametrize("draw", ["mini_batch", "round"])
@pytest.mark.parametrize("delay", [HEAVY, markov(HEAVY, 5.0, 9.0, 3.0)], ids=["law", "time"])
def test_rounds_are_those_of_a_plain_loop(delay, draw):
    workers, trials, limit, cost = 5, 4, 0.5, 0.3
    rows = planned.plan(
        "mindflayer", delay, workers, 40, trials, 7, seconds=limit, draw=draw, communication=cost
    )
    duration, now = as_process(delay).seeded(7).duration, 0.0
    for t in range(40):
        ends, done = np.full(workers, now), np.zeros(workers, int)
        for i, j in np.ndindex(workers, trials):
            at, count = (now, t) if draw == "round" else (ends[i], t * trials + j)
            took = float(duration(i, at, count))
            done[i] += took <= limit
            ends[i] += min(took, limit)
        now = ends.max() + cost
        np.testing.assert_array_equal(rows.batches[t], done)
        assert rows.time[t] == pytest.approx(now, rel=1e-12)
        np.testing.assert_array_equal(rows.first[t], t * trials)


def test_limits_that_no_mini_batch_keeps_and_times_of_samples_are_refused():
    with pytest.raises(ValueError, match=r"at least 1 s, the shortest mini-batch, got seconds=0.5"):
        planned.rule("mindflayer", delays.shifted_exponential(1.0, 1.0), 3, seconds=0.5)
    by_sample = from_law(HEAVY).costing(lambda worker, counter: 1.0 + 0 * worker, 1.0)
    with pytest.raises(ValueError, match="durations belong to samples here"):
        mindflayer(Setting(by_sample, 2, 1, 0), seconds=1.0)


def test_the_rate_of_trials():
    """Pareto: F(t) = 1 - (m/t)^a and E[min(X, t)] = (a m - m^a t^(1-a)) / (a - 1)."""
    m, a = 0.2, 1.2
    for t in (0.25, 0.5, 2.0):
        expected = (1 - (m / t) ** a) * (a - 1) / (a * m - m**a * t ** (1 - a))
        assert theory.trial_rate(HEAVY, t) == pytest.approx(expected, rel=2e-3)
    for t in (0.01, 1.0):  # without a memory no limit gains or loses
        assert theory.trial_rate(delays.exponential(0.5), t) == pytest.approx(2.0, rel=2e-3)
    pause = delays.bernoulli_slowdown(1.0, 5.0, 0.2)  # 1 s, or 5 s
    for t in (1.0, 3.0, 4.9):
        assert theory.trial_rate(pause, t) == pytest.approx(0.8 / (0.8 + 0.2 * t), rel=2e-3)
    rare = delays.bernoulli_slowdown(1.0, 1e4, 0.0101)  # none is nearly as long as the limit
    expected = 0.9899 / (0.9899 + 0.0101 * 1000)
    assert theory.trial_rate(rare, 1000.0) == pytest.approx(expected, rel=1e-3)
    heaviest = delays.pareto(1.0, 1.05)  # a quarter of the mean lies beyond any limit
    assert theory.trial_rate(heaviest, np.inf) == pytest.approx(1 / heaviest.mean())
    with pytest.raises(ValueError, match=r"is too long for .*; set at most .* s, or inf"):
        theory.trial_rate(heaviest, 1e9)
    limit = theory.best_limit(HEAVY)
    grid = [theory.trial_rate(HEAVY, t) for t in np.geomspace(0.21, 50, 300)]
    assert theory.trial_rate(HEAVY, limit) == pytest.approx(max(grid), rel=1e-3)
    rows = planned.plan("mindflayer", HEAVY, 1, 4000, seconds=limit)
    assert rows.batches.sum() / rows.time[-1] == pytest.approx(max(grid), rel=0.05)
    for law in (delays.shifted_exponential(1.0, 1.0), delays.uniform(0.0, 2.0)):
        without = theory.best_limit(law)  # whoever has worked for long is nearly done
        assert without == np.inf and theory.trial_rate(law, without) == 1 / law.mean()
    for law, limit in ((HEAVY, 0.1), (delays.bernoulli_slowdown(1.0, 5.0, 1.0), 3.0)):
        with pytest.raises(ValueError, match="no mini-batch of"):
            theory.trial_rate(law, limit)
