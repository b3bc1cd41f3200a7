"""GASLoC by hand: its formula, its mean, its speed, and the method that it is without momentum."""

import jax
import numpy as np
import optax
import pytest

from algorithms import dpsgd, gasloc
from algorithms.base import AXIS
from algorithms.gasloc import without_progress
from comms import mixing, stability, topology
from stragglers import delays
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N

UPDATES, WORKERS, ETA, GAMMA = 12, 5, 0.7, 0.6
RNG = np.random.default_rng(7)
START = RNG.standard_normal((WORKERS, D))
PROGRESS = RNG.standard_normal((UPDATES, WORKERS, D)) * np.arange(1, WORKERS + 1)[:, None]
BATCHES = RNG.integers(0, 3, (UPDATES, WORKERS)).astype(np.int32)
SGD = optax.sgd(0.05)


def exchanged(method):
    """Return the models [updates, n, d] after each of the updates, in float64."""

    def whole(theta, progress, batches):
        def update(carry, row):
            theta, state = carry
            progress, batches, active = row
            moved, state = method.exchange.update(
                -progress, state, theta, batches=batches, nominal=2, active=active
            )
            return (theta + moved, state), theta + moved

        active = None if method.links is None else method.links.active(0, UPDATES)
        start = theta, method.exchange.init(theta)
        return jax.lax.scan(update, start, (progress, batches, active))[1]

    unseen = np.where(BATCHES[..., None] > 0, PROGRESS, np.nan)
    with jax.enable_x64():
        run = jax.jit(jax.vmap(whole, axis_name=AXIS, in_axes=(0, 1, 1), out_axes=1))
        return np.asarray(run(START, unseen, BATCHES))


@pytest.mark.parametrize(("alpha", "pairs"), [(1.3, False), (0.5, True)])
def test_its_formula_and_its_mean_that_is_dilocos(alpha, pairs):
    """Uneven progress, of workers that start apart and some of which finish nothing at times."""
    graph = topology.ring(WORKERS)
    own = {"eta": ETA, "alpha": alpha, "gamma": GAMMA, "pairs": pairs, "seed": 3}
    method = gasloc(SGD, graph, **own)
    found = exchanged(method)
    assert found.dtype == np.float64 and (BATCHES == 0).any()
    theta, last, mean = START, START, START.mean(0)
    outer = optax.sgd(ETA, momentum=GAMMA, nesterov=True)
    with jax.enable_x64():
        server = outer.init(mean)
    for t in range(UPDATES):
        W = mixing.metropolis(graph)
        if pairs:
            used = np.flatnonzero(method.links.active(t, 1)[0])[0]
            W = (np.eye(WORKERS) + np.eye(WORKERS)[method.links.partners[used]]) / 2
        progress = PROGRESS[t] * (BATCHES[t, :, None] > 0)
        u = theta + ETA * progress
        theta, last = u - alpha * (np.eye(WORKERS) - W) @ u + GAMMA * (u - last), u
        np.testing.assert_allclose(found[t], theta, rtol=1e-12, atol=1e-12)
        with jax.enable_x64():
            step, server = outer.update(-progress.mean(0), server)
        mean = mean + np.asarray(step)
        np.testing.assert_allclose(found[t].mean(0), mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("workers", [8, 16, 32])
def test_momentum_brings_models_together_like_the_root(workers):
    """On a ring without progress: by 1 - 1/sqrt(chi) an update, by 1 - 1/chi without momentum."""
    W, eye = mixing.metropolis(topology.ring(workers)), np.eye(workers)
    chi = 1 / (1 - np.linalg.eigvalsh(W)[-2])
    apart = eye - 1 / workers

    def radius(gamma, alpha=1.0):
        mixed = eye - alpha * (eye - W)
        ball = np.block([[apart @ (mixed + gamma * eye), -gamma * apart], [apart, 0 * eye]])
        expected = np.abs(np.linalg.eigvals(ball)).max()

        def step(mix, x, moved):
            return without_progress(mix, x, moved, alpha=alpha, gamma=gamma)

        assert stability.radius(step, 2, [W]) == pytest.approx(expected, abs=1e-6)
        return expected

    best = (1 - chi**-0.5) ** 2
    assert radius(0) == pytest.approx(1 - 1 / chi)
    assert radius(best) == pytest.approx(1 - chi**-0.5, abs=1e-6)
    assert min(map(radius, (best - 0.05, best + 0.05))) > 1 - chi**-0.5 + 1e-3
    limit = 2 * (1 + best) / (1 - np.linalg.eigvalsh(W)[0])
    assert radius(best, 0.99 * limit) < 1 < radius(best, 1.01 * limit)


def test_without_momentum_it_is_local_sgd_with_gossip():
    """An exchange as in D-PSGD's second order, and two local steps by hand."""
    graph = topology.ring(WORKERS)
    combined = dpsgd(optax.sgd(1.0), graph, order="adapt_then_combine")
    found = exchanged(gasloc(SGD, graph, eta=1.0, gamma=0.0))
    np.testing.assert_allclose(found, exchanged(combined), rtol=1e-12, atol=1e-12)
    ring, law = topology.ring(N), delays.exponential(1.0)
    method = gasloc(SGD, ring, eta=1.0, gamma=0.0)
    found, schedule = quadratics.simulated(method, "first_finisher", law, 9, mini_batches=2)
    assert (schedule.batches == 0).any()
    x = np.zeros((N, D))
    for batches in schedule.batches:
        x = mixing.metropolis(ring) @ (
            CENTRE + (1 - 0.05 * CURVATURE.astype(float)) ** batches[:, None] * (x - CENTRE)
        )
    np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-6)
