"""Gossip on uneven data: which methods reach the optimum, and where the others rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import decentlam, dpsgd, exact_diffusion, gradient_tracking, qg_dsgdm
from algorithms.base import AXIS, scale_by_samples
from algorithms.decentlam import accelerated_mixing
from algorithms.exact_diffusion import adapt_correct_combine
from algorithms.gossip import mixing_over
from algorithms.qg_dsgdm import quasi_global as quasi_global_mixing
from comms import mixing, rounds, topology
from tests.algorithms import quadratics
from tests.algorithms.quadratics import D, N, distance, gradients, in_step
from tests.marks import slow

RATE = 0.05
STAR = topology.star(N)  # whose weights differ between workers
UPDATES = 7
FINISHED = np.random.default_rng(3).integers(0, 2, (UPDATES, N)).astype(np.int32)
FINISHED[0, 2] = 0  # one that has finished nothing yet


def matrices(graph):
    """Return W [UPDATES, n, n] of the updates: the graph's rounds in turn, or always the same."""
    turn = list(map(rounds.matrix, graph.graph.get("rounds", []))) or [mixing.metropolis(graph)]
    return [turn[t % len(turn)] for t in range(UPDATES)]


def track(graph):
    x, tracker, old = np.zeros((3, N, D))
    for W, finished in zip(matrices(graph), FINISHED, strict=True):
        new = np.where(finished[:, None] > 0, gradients(x), old)
        tracker += new - old
        x, tracker, old = W @ (x - RATE * tracker), W @ tracker, new
    return x


def diffuse(graph):
    x, gradient = np.zeros((2, N, D))
    before = x
    for W, finished in zip(matrices(graph), FINISHED, strict=True):
        gradient = np.where(finished[:, None] > 0, gradients(x), gradient)
        psi = x - RATE * gradient
        x, before = (np.eye(N) + W) / 2 @ (psi + x - before), psi
    return x


def quasi_global(graph):
    x, m = np.zeros((2, N, D))
    for W, finished in zip(matrices(graph), FINISHED, strict=True):
        busy = finished[:, None] > 0
        new = W @ np.where(busy, x - RATE * (0.9 * m + gradients(x)), x)
        m = np.where(busy, 0.9 * m + 0.1 * (x - new) / RATE, m)
        x = new
    return x


def accelerate(graph):
    x, m = np.zeros((2, N, D))
    momentum = 0.6  # .9 is refused on graphs that change
    for W, finished in zip(matrices(graph), FINISHED, strict=True):
        busy = finished[:, None] > 0
        d = (x - W @ (x - RATE * busy * gradients(x))) / RATE
        new = momentum * m + d
        x, m = x - RATE * np.where(busy, new, d), np.where(busy, new, m)
    return x


@pytest.mark.few(4)
@pytest.mark.parametrize("graph", [STAR, topology.one_peer_exponential(N)], ids=["star", "peers"])
@pytest.mark.parametrize(
    ("make", "reference"),
    [
        (gradient_tracking, track),
        (exact_diffusion, diffuse),
        (qg_dsgdm, quasi_global),
        (functools.partial(decentlam, momentum=0.6), accelerate),
    ],
)
def test_updates_of_workers_some_of_which_finished_nothing(make, reference, graph):
    found = in_step(make(optax.sgd(RATE), graph), UPDATES, FINISHED)
    np.testing.assert_allclose(found, reference(graph), rtol=1e-5, atol=1e-6)


def test_an_idle_worker_follows_its_tracker_at_the_rate_of_one_mini_batch():
    """While the rate of the others grows with the root of their mini-batches."""
    x, tracker, old = np.zeros((3, N, D))
    W, finished = mixing.metropolis(STAR), 4 * FINISHED
    for count in finished:
        new = np.where(count[:, None] > 0, gradients(x), old)
        tracker += new - old
        rate = RATE * np.sqrt(np.maximum(count, 1))[:, None]
        x, tracker, old = W @ (x - rate * tracker), W @ tracker, new
    method = gradient_tracking(scale_by_samples(RATE, batch_power=0.5), STAR)
    found = in_step(method, UPDATES, finished)
    np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-6)


RING = topology.ring(N)


@pytest.mark.few(1)
@pytest.mark.parametrize("graph", [RING, topology.hierarchical(N, 4)], ids=["ring", "groups"])
def test_tracking_and_exact_diffusion_reach_the_optimum_and_dpsgd_does_not(graph):
    assert distance(in_step(gradient_tracking(optax.sgd(RATE), graph), 600)) < 1e-6
    assert distance(in_step(exact_diffusion(optax.sgd(0.1), graph), 600)) < 1e-6
    assert distance(in_step(dpsgd(optax.sgd(RATE), graph), 600)) > 0.05


def test_dpsgd_rests_where_it_has_a_bias_and_momentum_makes_it_larger():
    """It rests at x = W (x - rate g); with momentum as if the rate were rate / (1 - momentum)."""
    W, rate = mixing.metropolis(RING), 0.02

    def rests(momentum=None):
        optimizer = optax.sgd(rate, momentum)
        return in_step(dpsgd(optimizer, RING, order="adapt_then_combine"), 1500)

    expected = quadratics.rest_of_dpsgd(W, rate)
    np.testing.assert_allclose(rests(), expected, atol=1e-5)
    with_momentum = quadratics.rest_of_dpsgd(W, rate / (1 - 0.8))
    np.testing.assert_allclose(rests(0.8), with_momentum, atol=1e-5)
    assert distance(with_momentum) > 2 * distance(expected) > 0.2


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [qg_dsgdm, decentlam])
def test_quasi_global_momentum_and_decentlam_rest_where_dpsgd_rests_without(make):
    found = in_step(make(optax.sgd(0.02), RING, momentum=0.8), 1500)
    expected = quadratics.rest_of_dpsgd(mixing.metropolis(RING), 0.02)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert distance(found) > 0.1  # the bias remains


def growth(exchange, over, updates=2000):
    """Return the factor per update of the spread of models without gradients, in the end."""
    n = over.partners.shape[1]
    rows = np.ones((updates, 0)) if over.links is None else over.links.active(0, updates)

    def whole(x):
        def update(carry, active):
            x, state = carry
            active = None if over.links is None else active
            moved, state = exchange.update(jnp.zeros(()), state, x, batches=1, active=active)
            apart = jax.tree.map(lambda a: a - jax.lax.pmean(a, AXIS), (x + moved, state))
            size = jnp.sqrt(jax.lax.psum(sum(a**2 for a in jax.tree.leaves(apart)), AXIS))
            # All is linear: scaled, no number leaves the range of float32.
            return jax.tree.map(lambda a: a / size, apart), jnp.log(size)

        return jax.lax.scan(update, (x, exchange.init(x)), rows)[1]

    start = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    logs = jax.jit(jax.vmap(whole, axis_name=AXIS))(start - start.mean())
    return float(np.exp(np.asarray(logs)[0, updates // 2 :].mean()))


@pytest.mark.parametrize(("workers", "radius"), [(16, None), slow(9, "1.013")])
def test_exact_diffusion_is_built_where_models_come_together(workers, radius):
    graph = topology.one_peer_exponential(workers)
    over = mixing_over(graph)
    found = growth(adapt_correct_combine(optax.sgd(0.0), over.pull), over)
    if radius is None:
        exact_diffusion(optax.sgd(0.0), graph)
        assert found < 0.999
    else:
        with pytest.raises(ValueError, match=rf"differences by {radius}.* use a graph that stays"):
            exact_diffusion(optax.sgd(0.0), graph)
        assert found == pytest.approx(float(radius), abs=0.02) and found > 1.01


@pytest.mark.parametrize(
    ("make", "exchange", "graph", "matrix", "inside"),
    [
        (decentlam, accelerated_mixing, topology.base_k(N), None, 0.7),
        slow(qg_dsgdm, quasi_global_mixing, topology.ring(16), "best_constant", 0.04),
    ],
)
def test_the_largest_momentum_that_an_error_names_is_stable_and_more_is_not(
    make, exchange, graph, matrix, inside
):
    over = mixing_over(graph, matrix)
    with pytest.raises(ValueError, match="models do not come together") as refused:
        make(optax.sgd(0.0), graph, mixing_matrix=matrix, momentum=0.85)
    most = float(str(refused.value).partition("set momentum to ")[2].split()[0])
    assert most == inside
    make(optax.sgd(0.0), graph, mixing_matrix=matrix, momentum=most)
    assert growth(exchange(optax.sgd(0.0), over.mix, most), over) < 1
    with pytest.raises(ValueError, match=rf"set momentum to {most:g} or less"):
        make(optax.sgd(0.0), graph, mixing_matrix=matrix, momentum=most + 0.01)
    assert growth(exchange(optax.sgd(0.0), over.mix, most + 0.02), over) > 1


def test_weights_of_ones_own_are_what_models_mix_by():
    W = np.array([[0.5, 0.2, 0.3], [0.2, 0.7, 0.1], [0.3, 0.1, 0.6]])
    over = mixing_over(topology.complete(3), W)
    x = np.float32([1.0, -2.0, 5.0])
    mixed = jax.vmap(lambda x: over.mix(x, None), axis_name=AXIS)(x)
    np.testing.assert_allclose(mixed, W @ x, rtol=1e-6)


def test_what_mixing_moves_is_mixing_without_its_rounding():
    """W x - x of models far from 0 and close to each other."""
    for graph in (STAR, topology.base_k(N, 2)):
        over = mixing_over(graph)
        active = None if over.links is None else over.links.active(0, 1)[0]
        x = (1e3 + np.random.default_rng(0).standard_normal((N, D)) / 100).astype(np.float32)
        moved = jax.vmap(lambda x, over=over, a=active: over.pull(x, a), axis_name=AXIS)(x)
        W = matrices(graph)[0]
        np.testing.assert_allclose(moved, W @ x.astype(float) - x, rtol=1e-5, atol=1e-7)
