"""One update of D-PSGD and of Local SGD against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import dpsgd, local_sgd
from algorithms.base import AXIS
from comms import mixing, topology

N, M, RATE = 6, 4, 0.1
GRAPH = topology.star(N)  # whose weights differ between workers and between kinds
RNG = np.random.default_rng(0)
X, G = RNG.normal(size=(2, N, 3)).astype(np.float32)
BATCHES = np.array([4, 2, 0, 1, 3, 4], np.int32)
STEPS = {
    "equal": np.ones(N),
    "confidence": BATCHES * N / BATCHES.sum(),  # n m_i / sum_j m_j
    "local_sum": BATCHES / M,  # m_i / M
}


def moved(method, x):
    """Return how workers at x [n, 3] move in their first exchange."""

    def one(x, g, batches):
        given = {"batches": batches, "nominal": M, "samples": 0.0, "active": None}
        return method.exchange.update(g, method.exchange.init(x), x, **given)[0]

    return jax.jit(jax.vmap(one, axis_name=AXIS))(x, G, BATCHES)


@pytest.mark.parametrize(
    ("kind", "order", "weighting"),
    [
        ("metropolis", "combine_while_adapting", "confidence"),
        ("metropolis", "adapt_then_combine", "local_sum"),
        ("best_constant", "combine_while_adapting", "local_sum"),
        ("uniform_neighbour", "adapt_then_combine", "equal"),
    ],
)
def test_a_step_of_dpsgd(kind, order, weighting):
    """W x - lr c g or W (x - lr c g), where who finished nothing takes no step."""
    method = dpsgd(optax.sgd(RATE), GRAPH, mixing_matrix=kind, order=order, weighting=weighting)
    W = mixing.MIXINGS[kind](GRAPH)
    step = RATE * (STEPS[weighting] * (BATCHES > 0))[:, None] * G
    expected = W @ X - step if order == "combine_while_adapting" else W @ (X - step)
    np.testing.assert_allclose(X + moved(method, X), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighting", ["confidence", "local_sum"])
def test_who_finished_less_takes_a_shorter_step_whatever_the_optimizer(weighting):
    """Adam makes a first step of the length of its rate, however large the gradient."""
    found = moved(dpsgd(optax.adam(RATE), GRAPH, weighting=weighting), np.zeros_like(X))
    length = RATE * STEPS[weighting] * (BATCHES > 0)
    np.testing.assert_allclose(found, -length[:, None] * np.sign(G), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "weighting", [pytest.param("equal", marks=pytest.mark.slow), "proportional"]
)
def test_two_updates_of_local_sgd(weighting):
    """Step by x <- x - rate v, v <- momentum v + mean progress of those who finished some."""
    method = local_sgd(
        optax.sgd(RATE), weighting=weighting, server_learning_rate=0.5, server_momentum=0.8
    )
    weight = BATCHES if weighting == "proportional" else BATCHES > 0

    def mean(progress, batches):
        state = method.exchange.init(progress)
        given = {"weight": method.weight(batches), "batches": batches}
        return method.exchange.update(progress, state, progress, **given)[0]

    x, state = jnp.asarray(X[0]), method.server.init(jnp.asarray(X[0]))
    for _ in range(2):
        found = jax.jit(jax.vmap(mean, axis_name=AXIS))(G, BATCHES)
        update, state = method.server.update(found[0], state, x, batches=BATCHES.sum())
        x = optax.apply_updates(x, update)
    average = weight @ G / weight.sum()
    np.testing.assert_allclose(x, X[0] - 0.5 * (1 + 1.8) * average, rtol=1e-5, atol=1e-6)
