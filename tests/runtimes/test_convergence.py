"""Training in the simulator reaches the error floors and stability limits that theory predicts.

F(w) = w^2 / 2 in every one of many independent coordinates, with additive gradient noise of
variance s^2: losses (w - a)^2 / 2 at noise a, drawn anew for every mini-batch.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import all_reduce
from algorithms.base import scale_by_samples
from runtimes import simulate
from stragglers import delays
from stragglers.theory import stability_limit
from tests import planned

P, WIDTH = 8, 2048  # workers, coordinates
VARIANCE = 0.25


class Independent:
    """Every mini-batch is one example, drawn with replacement."""

    batch_size = 1

    def __init__(self, examples: int):
        drawn = np.random.default_rng(1).integers(0, examples, (64, 4096))
        self.table = drawn.astype(np.int32)

    def indices(self, workers, counters):
        return self.table[workers, np.asarray(counters) % 4096][..., None]


def noise() -> np.ndarray:
    """Examples whose mean is 0 and whose variance is s^2, exactly, in every coordinate."""
    drawn = np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    drawn = (drawn - drawn.mean(0)) / drawn.std(0)
    return (np.sqrt(VARIANCE) * drawn).astype(np.float32)


NOISE = noise()


def losses(w, centres):
    return 0.5 * ((w[None] - centres) ** 2).sum(-1)


def training(rule, rate, start, losses, examples):
    """Parameters after every further `updates`: a function of `updates`."""
    method = all_reduce(scale_by_samples(rate))
    runtime = simulate.Simulator(
        method, losses, examples, Independent(len(examples)), rule, mini_batches=1
    )
    state = runtime.start(start)

    def advance(updates):
        nonlocal state
        state, schedule = runtime.advance(state, np.inf, updates)
        return np.asarray(runtime.models(state))[0].astype(np.float64), schedule

    return advance


def test_a_gradient_one_update_old_raises_the_floor_as_an_ar2_process_says():
    """Of w <- w - rate * w_before + noise, against w <- (1 - rate) w - rate * noise / sqrt(k)."""
    rate, k = 0.2, P // 2
    fresh = rate * VARIANCE / (2 * k * (2 - rate))  # E[w^2 / 2] in the stationary state
    expected = fresh * (1 + rate) * (2 - rate) / ((1 - rate) * (2 + rate))
    rule = planned.rule("k_async", delays.deterministic(1.0), P, 1, 0, k=k)
    advance = training(rule, rate, jnp.zeros(WIDTH), losses, NOISE)
    apart = round(2 / rate)
    _, schedule = advance(4 * apart)
    assert (schedule.staleness[1:] == 1).all()
    # Over coordinates and over times.
    found = np.mean([0.5 * np.mean(advance(apart)[0] ** 2) for _ in range(40)])
    assert found == pytest.approx(expected, rel=0.03)


def test_round_robin_delays_are_stable_up_to_the_limit_and_no_further():
    """One coordinate 5 % below the limit, one 5 % beyond it, no noise."""
    delay = P - 1
    rule = planned.rule("k_async", delays.deterministic(1.0), P, 1, 0, k=1)
    curvature = jnp.asarray([0.95, 1.05]) * stability_limit(delay)

    def losses(w, centres):
        return 0.5 * (w[None] - centres) ** 2 @ curvature

    advance = training(rule, 1.0, jnp.ones(2), losses, np.zeros((64, 2), np.float32))
    size, seen = [], 0
    for _ in range(8 * P):
        w, schedule = advance(16)
        assert (schedule.staleness[max(0, delay - seen) :] == delay).all()
        size.append(np.abs(w))
        seen += 16
    stable, unstable = np.max(size[-2 * P :], axis=0)
    assert stable < 0.5 and unstable > 2
