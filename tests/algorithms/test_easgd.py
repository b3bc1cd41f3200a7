"""Elastic averaging against its equations by hand, and where its models come to rest."""

import numpy as np
import optax
import pytest

from algorithms import easgd
from stragglers import delays, processes
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N, ran

RATE, BETA = 0.05, 0.8
SLOW = processes.persistent(delays.exponential(1.0), factors={0: 4.0})


def run(wait, updates, mini_batches=1, momentum=None, delta=0.0, **options):
    """Return (centre [d], models [n, d], schedule)."""
    method = easgd(optax.sgd(RATE, momentum), N, beta=BETA, momentum=delta)
    runtime, state, schedule = ran(method, wait, SLOW, updates, mini_batches, **options)
    (centre,) = np.asarray(runtime.models(state))
    return centre, np.asarray(state.model.params), schedule


def by_hand(schedule, momentum):
    """Apply eq. 5 and 6 of the paper, worker by worker."""
    alpha = BETA / N
    centre, x, velocity = np.zeros(D), np.zeros((N, D)), np.zeros((N, D))
    for who, finished in zip(schedule.workers, schedule.batches, strict=True):
        before, pulled = centre, np.zeros(D)
        for i, count in zip(who, finished, strict=True):
            if count == 0:
                continue
            pull = alpha * (x[i] - before)
            live = x[i]
            for _ in range(count):
                velocity[i] = momentum * velocity[i] + CURVATURE[i] * (live - CENTRE[i])
                live = live - RATE * velocity[i]
            x[i] = live - pull
            pulled += pull
        centre = before + pulled
    return centre, x


@pytest.mark.parametrize(
    ("wait", "mini_batches", "options"),
    [
        ("first_finisher", 3, {"leftovers": "drop", "in_flight": "cut"}),  # most are idle at times
        ("k_async", 2, {"k": 1}),
    ],
)
def test_it_is_the_papers_update_whoever_takes_part(wait, mini_batches, options):
    centre, models, schedule = run(wait, 23, mini_batches, momentum=0.5, **options)
    assert (schedule.batches == 0).any() == (wait == "first_finisher")
    expected_centre, expected_models = by_hand(schedule, 0.5)
    np.testing.assert_allclose(centre, expected_centre, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(models, expected_models, rtol=2e-5, atol=1e-6)
    assert np.abs(models - centre).max() > 0.1


def test_momentum_steps_from_the_look_ahead_point_and_pulls_the_parameters():
    """Algorithm 2 of the paper; the workers' own models are their look-ahead points."""
    delta, alpha = 0.7, BETA / N
    centre, models, schedule = run(
        "first_finisher", 30, 3, delta=delta, leftovers="drop", in_flight="cut"
    )
    expected, x, v = np.zeros(D), np.zeros((N, D)), np.zeros((N, D))
    for who, finished in zip(schedule.workers, schedule.batches, strict=True):
        busy = who[finished > 0]
        pull = alpha * (x[busy] - expected)
        v[busy] = delta * v[busy] - RATE * CURVATURE[busy] * (
            x[busy] + delta * v[busy] - CENTRE[busy]
        )
        x[busy] += v[busy] - pull
        expected = expected + pull.sum(0)
    np.testing.assert_allclose(centre, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(models, x + delta * v, rtol=2e-5, atol=1e-6)
    assert np.abs(models - centre).max() > 0.1
