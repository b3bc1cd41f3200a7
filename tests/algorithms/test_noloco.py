"""NoLoCo against its update by hand; its mean takes DiLoCo's steps, its models stay together."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import noloco
from algorithms.base import AXIS
from algorithms.noloco import meet_with_momentum
from comms import topology
from stragglers import delays
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N
from tests.marks import slow_but

RATE, H = 0.05, 3
ALPHA, BETA, GAMMA = 0.4, 0.6, 1.2
GRAPH = topology.hypercube(N)


def run(updates, wait="barrier", rate=RATE):
    """([n, d] models, schedule, method)."""
    method = noloco(optax.sgd(rate), GRAPH, alpha=ALPHA, beta=BETA, gamma=GAMMA, seed=5)
    law = delays.exponential(1.0)
    models, schedule = quadratics.simulated(method, wait, law, updates, mini_batches=H)
    return models, schedule, method


@pytest.mark.parametrize("wait", slow_but(("first_finisher",), ("barrier", "first_finisher")))
def test_it_is_the_update_by_hand_and_its_mean_is_dilocos(wait):
    models, schedule, method = run(21, wait)
    assert (schedule.batches == 0).any() == (wait != "barrier")
    phi, velocity = np.zeros((2, N, D))
    mean, momentum = np.zeros((2, D))
    for used, batches in zip(schedule.matchings, schedule.batches, strict=True):
        partner = method.links.partners[np.flatnonzero(used)[0]]
        kept = (1 - RATE * CURVATURE.astype(float)) ** batches[:, None]
        progress = (1 - kept) * (CENTRE - phi)
        momentum = ALPHA * momentum + BETA * progress.mean(0)
        mean = mean + momentum
        pairs = (progress + progress[partner]) / 2
        velocity = ALPHA * velocity + BETA * pairs - GAMMA * (phi - phi[partner]) / 2
        phi = phi + velocity
        np.testing.assert_allclose(phi.mean(0), mean, atol=1e-12)
    np.testing.assert_allclose(models, phi, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_without_an_all_reduce_it_comes_to_where_all_reduced_progress_vanishes():
    """Within a distance that falls with the local rate, as the models' distance does."""
    off, apart = [], []
    for rate in (0.04, 0.01):
        models, *_ = run(round(24 / rate), rate=rate)
        share = 1 - (1 - rate * CURVATURE.astype(float)) ** H
        rest = (share * CENTRE).sum(0) / share.sum(0)
        off.append(np.abs(models.mean(0) - rest).max())
        apart.append(np.abs(models - models.mean(0)).max())
    assert off[1] < off[0] / 2 and off[1] < 0.05
    assert apart[1] < apart[0] / 2


@pytest.mark.parametrize("gamma", [0.5, 2.7])
def test_a_pair_that_always_meets_comes_together_as_its_recurrence_says(gamma):
    """d <- d + e with e <- alpha e - gamma d: the larger root is what is left per meeting."""
    method = noloco(optax.sgd(RATE), topology.ring(2), alpha=0.5, gamma=gamma)
    active = np.ones(1, bool)

    @jax.jit
    @jax.vmap
    def start(x):
        return x, method.exchange.init(x)

    def meeting(carry, _):
        def of_worker(x, state):
            moved, state = method.exchange.update(jnp.zeros(()), state, x, active=active)
            return x + moved, state

        x, state = jax.vmap(of_worker, axis_name=AXIS)(*carry)
        return (x, state), x[0] - x[1]

    _, gaps = jax.lax.scan(meeting, start(jnp.array([1.0, -1.0])), length=40)
    matrix = np.array([[1 - gamma, 0.5], [-gamma, 0.5]])
    expected = [(np.linalg.matrix_power(matrix, t + 1) @ [2.0, 0.0])[0] for t in range(40)]
    np.testing.assert_allclose(gaps, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(np.linalg.eigvals(matrix)).max() < 1


@pytest.mark.parametrize(("gamma", "updates"), [(0.43, 3000), (1.0, 400)])
def test_random_pairs_bear_less_than_one_pair(gamma, updates):
    """Without progress: what is refused grows, the largest that is not comes together."""
    method = noloco(optax.sgd(RATE), topology.complete(8), alpha=0.9, gamma=0.43)
    exchange = meet_with_momentum(method.links.partners, 0.9, 0.7, gamma)

    def whole(x):
        def update(carry, active):
            x, state = carry
            moved, state = exchange.update(jnp.zeros(()), state, x, active=active)
            return (x + moved, state), None

        rows = method.links.active(0, updates)
        return jax.lax.scan(update, (x, exchange.init(x)), rows)[0][0]

    start = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    end = np.asarray(jax.jit(jax.vmap(whole, axis_name=AXIS))(start))
    assert end.std() > 1e3 * start.std() if gamma > 0.43 else end.std() < 1e-3 * start.std()


def test_what_would_drive_models_apart_is_refused():
    with pytest.raises(ValueError, match=r"noloco: needs gamma > 0, got 0"):
        noloco(optax.sgd(RATE), GRAPH, gamma=0)
    with pytest.raises(
        ValueError, match=r"by 1\.072 .*; set gamma to 0\.43 or less, or alpha lower"
    ):
        noloco(optax.sgd(RATE), topology.complete(8), alpha=0.9)
    with pytest.raises(ValueError, match="noloco: needs 0 <= momentum < 1, got 1"):
        noloco(optax.sgd(RATE), GRAPH, alpha=1)
    with pytest.raises(ValueError, match="a single worker has nobody to meet"):
        noloco(optax.sgd(RATE), topology.complete(1))


def test_progress_of_who_finished_nothing_is_never_looked_at():
    """As an all-reduce leaves out whoever has the weight 0, NaN or not."""
    partners = np.array([[1, 0]])
    exchange = meet_with_momentum(partners, ALPHA, BETA, GAMMA)
    params, updates = jnp.float32([[1, 2], [3, 5]]), jnp.float32([[0.5, 1], [jnp.nan, jnp.inf]])

    def update(progress, params, batches):
        state = exchange.init(params)
        return exchange.update(progress, state, params, active=np.ones(1, bool), batches=batches)[0]

    found = jax.vmap(update, axis_name=AXIS)(updates, params, jnp.array([2, 0]))
    expected = -BETA * np.array([[0.25, 0.5]] * 2) - GAMMA * np.array([[-1, -1.5], [1, 1.5]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
