"""MATCHA as a transform: what one round does to models, and how fast gossip alone agrees."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import dpsgd, matcha, periodic
from algorithms.base import AXIS
from algorithms.gossip import graph_matchings
from comms import matcha as sampling
from comms import mixing, topology


def gossip_only(method, x, updates):
    """[updates + 1, n, d] models when every gradient is 0."""
    active = None if method.links is None else method.links.active(0, updates)
    state = jax.vmap(method.exchange.init)(x)

    def one(x, state, active):
        zero = jnp.zeros_like(x)
        update, state = method.exchange.update(
            zero, state, x, batches=jnp.int32(1), nominal=1, samples=0.0, active=active
        )
        return x + update, state

    step = jax.vmap(one, in_axes=(0, 0, None), axis_name=AXIS)

    def scan(carry, active):
        x, state = step(*carry, active)
        return (x, state), x

    _, trajectory = jax.lax.scan(scan, (x, state), active, length=updates)
    return np.concatenate([x[None], trajectory])


def distance(x):
    """[T] squared distance to the mean, summed over workers."""
    return ((x - x.mean(1, keepdims=True)) ** 2).sum((1, 2))


@pytest.mark.parametrize(
    ("k", "build", "order"),
    [
        (0, matcha, "adapt_then_combine"),
        (4, periodic, "combine_while_adapting"),
        (0, dpsgd, "adapt_then_combine"),
    ],
)
def test_gossip_preserves_the_mean_and_contracts_no_slower_than_rho(k, build, order):
    graph = topology.matcha_graph(k)
    workers = len(graph)
    x = np.random.default_rng(k).standard_normal((workers, 64)).astype(np.float32)
    matchings, _ = graph_matchings(graph)
    if build is dpsgd:
        method = dpsgd(optax.sgd(0.1), graph, order=order, mixing_matrix="best_constant")
        rho = mixing.rho(mixing.best_constant(graph))
    else:
        method = build(optax.sgd(0.1), graph, budget=0.5, order=order)
        p = sampling.activation_probabilities(matchings, workers, 0.5)
        rho = sampling.mixing_weight(matchings, workers, p)[1]
        if build is periodic:
            rho = sampling.periodic_rho(0.5, sampling.vanilla(graph)[1])
    updates = 24
    models = gossip_only(method, x, updates)
    np.testing.assert_allclose(models.mean(1), np.tile(x.mean(0), (updates + 1, 1)), atol=3e-6)
    # 64 coordinates average over the initial values; the activations are one draw of 24 rounds.
    shrunk = distance(models)
    slack = 1.0 if build is dpsgd else 4.0
    assert shrunk[-1] <= slack * 1.01 * rho**updates * shrunk[0]


def test_activations_do_not_depend_on_how_they_are_asked_for():
    links = matcha(optax.sgd(0.1), topology.matcha_graph(0), budget=0.3, seed=5).links
    whole = links.active(0, 3000)
    parts = [links.active(first, 500) for first in range(0, 3000, 500)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert abs(whole.mean() - 0.3) < 0.02
    other = matcha(optax.sgd(0.1), topology.matcha_graph(0), budget=0.3, seed=6).links
    assert not np.array_equal(other.active(0, 3000), whole)


def test_periodic_gossip_uses_all_links_or_none():
    active = periodic(optax.sgd(0.1), topology.ring(6), budget=0.25).links.active(0, 4000)
    assert set(active.sum(1)) == {0, 2}
    assert abs(active.mean() - 0.25) < 0.03


def test_matcha_with_the_whole_budget_is_dpsgd_with_the_best_constant():
    graph = topology.matcha_graph(0)
    x = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    models = gossip_only(matcha(optax.sgd(0.1), graph, budget=1.0), x, 3)
    W = mixing.best_constant(graph)
    np.testing.assert_allclose(models[3], np.linalg.matrix_power(W, 3) @ x, atol=1e-4)


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.5, float("nan")])
@pytest.mark.parametrize("build", [matcha, periodic])
def test_a_budget_outside_its_range_is_refused(build, budget):
    with pytest.raises(ValueError, match="budget is a share"):
        build(optax.sgd(0.1), topology.ring(4), budget=budget)
