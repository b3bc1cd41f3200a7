"""Delayed Nesterov momentum: DiLoCo's step where nothing is stale, and what plain momentum does."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import async_diloco, local_sgd
from algorithms.async_diloco import delayed_nesterov
from stragglers import delays, local_updates, processes
from tests import planned
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N

RATE, H = 0.05, 4
LAW = delays.exponential(1.0)


def run(method, updates, mini_batches=H, delay=LAW):
    models, schedule = quadratics.simulated(
        method, "k_async", delay, updates, mini_batches=mini_batches, k=1
    )
    return models[0], schedule


def off(x):
    """Return the distance of a model from the point without mean progress of H local steps."""
    share = 1 - (1 - RATE * CURVATURE.astype(float)) ** H
    return float(np.abs(x - (share * CENTRE).sum(0) / share.sum(0)).max())


def test_a_turn_of_pushes_is_one_step_of_nesterov_with_their_mean():
    pushes = np.random.default_rng(0).standard_normal((6, 5, 3)).astype(np.float32)
    late, plain = delayed_nesterov(0.7, 0.9, 5), optax.sgd(0.7, 0.9, nesterov=True)
    x = y = jnp.zeros(3)
    state, other = late.init(x), plain.init(x)
    for turn in pushes:
        for push in turn:
            step, state = late.update(push, state)
            x = x + step
        step, other = plain.update(jnp.asarray(turn.mean(0)), other)
        y = y + step
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_every_push_by_hand():
    """The model that a worker went on from, its local steps, and the server's two kinds of step."""
    found, schedule = run(async_diloco(optax.sgd(RATE), N), 45)
    versions, gathered, momentum = [np.zeros(D)], np.zeros(D), np.zeros(D)
    for t in range(schedule.updates):
        (i,), (read,) = schedule.workers[t], schedule.version[t]
        kept = (1 - RATE * CURVATURE[i].astype(float)) ** H
        push = (1 - kept) * (versions[read] - CENTRE[i])
        gathered, step = gathered + push, push / N
        if (t + 1) % N == 0:
            momentum = 0.9 * momentum + gathered / N
            gathered, step = np.zeros(D), step + 0.9 * momentum
        versions.append(versions[-1] - 0.7 * step)
    assert schedule.staleness.max() > N
    np.testing.assert_allclose(found, versions[-1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_plain_momentum_at_every_push_diverges_and_delayed_does_not():
    """At the rates of DiLoCo, and at an eighth of them, which moves as far in a turn of pushes."""
    for rate, bound in ((0.7, 1.0), (0.7 / N, 0.2)):
        plain = local_sgd(optax.sgd(RATE), server=optax.sgd(rate, 0.9, nesterov=True))
        delayed = async_diloco(optax.sgd(RATE), N, server_learning_rate=rate)
        assert off(run(delayed, 480)[0]) < bound
        assert off(run(plain, 480)[0]) > 3


def test_local_steps_by_speed_let_all_push_equally_often():
    """DyLU from the speeds of a first schedule: the slow worker makes a quarter of the steps."""
    slow = processes.persistent(delays.jitter(mean=1.0, sigma=0.05), factors={0: 4.0})
    _, first = run(async_diloco(optax.sgd(RATE), N), 120, delay=slow)
    speeds = local_updates.measured_speeds(first, N)
    np.testing.assert_allclose(speeds[1:] / speeds[0], 4, rtol=0.05)
    steps = local_updates.dynamic([0.25, *[1.0] * (N - 1)], H)
    assert steps == (1, *[H] * (N - 1))
    graced = planned.plan("k_async", slow, N, 120, H, k=1, grace=0.5)
    assert (graced.workers == N).any()  # nobody's, beside fewer contributions than workers
    speeds = local_updates.measured_speeds(graced, N)
    np.testing.assert_allclose(speeds[1:] / speeds[0], 4, rtol=0.05)
    for each, share in ((H, 0.25), (steps, 1.0)):
        schedule = planned.plan("k_async", slow, N, 400, each, k=1)
        pushes = np.bincount(schedule.workers.ravel(), minlength=N)
        assert pushes[0] == pytest.approx(share * pushes[1:].mean(), rel=0.1)


def test_what_moves_nothing_is_refused():
    with pytest.raises(ValueError, match="async_diloco: needs period >= 1, got 0"):
        async_diloco(optax.sgd(RATE), N, period=0)
    with pytest.raises(ValueError, match="async_diloco: needs 0 <= momentum < 1, got 1"):
        async_diloco(optax.sgd(RATE), N, server_momentum=1)
    with pytest.raises(ValueError, match="needs most >= 1 and positive speeds, got 0 and 1"):
        local_updates.dynamic([1.0], 0)
    schedule = planned.plan("k_async", LAW, N, 2, H, k=1)
    with pytest.raises(ValueError, match="finished nothing in 2 updates"):
        local_updates.measured_speeds(schedule, N)
