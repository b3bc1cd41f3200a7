"""Trajectories of methods against their formulas in NumPy, float64, with idle workers.

A row for each method whose own test file has none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import (
    all_reduce,
    choco_sgd,
    compensated_rate,
    dsgd_ac,
    ef_sign,
    loscar_sgd,
    matcha,
    one_bit_adam,
    periodic,
    qsgd,
    streaming_diloco,
    top_k,
)
from algorithms.base import AXIS
from algorithms.gossip import graph_matchings
from algorithms.reducers import bf16
from comms import matcha as sampling
from comms import mixing, topology
from comms.messages import Row, collective_bytes
from runtimes.own_loop import as_optax
from tests.algorithms.quadratics import D, N, gradients, in_step

RATE, DECAY, UPDATES = 0.05, 0.8, 9
GRAPH = topology.matcha_graph(0)
FINISHED = np.random.default_rng(5).integers(0, 4, (UPDATES, N)).astype(np.int32)
FINISHED[0, 3] = FINISHED[4, :] = 0  # one that has not begun yet, and an update of nobody
SHARES = FINISHED / np.maximum(FINISHED.sum(1, keepdims=True), 1)


def sgd():
    return optax.sgd(RATE, DECAY)


def stepped(combine):
    """Step one model along combine(gradients, finished, shares), unless nobody finished."""
    x, velocity = np.zeros((2, D))
    for finished, shares in zip(FINISHED, SHARES, strict=True):
        if finished.any():
            velocity = DECAY * velocity + combine(gradients(x), finished, shares)
            x = x - RATE * velocity
    return np.tile(x, (N, 1))


def mean(g, finished, shares):
    return shares @ g


def mean_of_workers(g, finished, shares):
    return g[finished > 0].mean(0)


def remembering(encode):
    """Average the messages of workers that keep the rest for later."""
    memory = np.zeros((N, D))

    def combine(g, finished, shares):
        sent = np.array([encode(row) for row in g + memory])
        busy = finished[:, None] > 0
        memory[:] = np.where(busy, g + memory - sent, memory)
        return shares @ sent

    return combine


def largest_two(row):
    return np.where(np.abs(row) >= np.sort(np.abs(row))[-2], row, 0)


def signs(row):
    return np.where(row < 0, -1, 1) * np.abs(row).mean()


def gossip(method, alpha, order, factor):
    """Mix every model by W_t = I - alpha sum_m active_m L_m, which changes with the update."""
    x, velocity = np.zeros((2, N, D))
    matchings, _ = graph_matchings(GRAPH)
    for active, finished in zip(method.links.active(0, UPDATES), FINISHED, strict=True):
        W = np.eye(N)
        for i, j in (edge for on, edges in zip(active, matchings, strict=True) if on
                     for edge in edges):  # fmt: skip
            W[[i, j], [j, i]] += alpha
            W[[i, j], [i, j]] -= alpha
        busy = finished[:, None] > 0
        velocity = np.where(busy, DECAY * velocity + gradients(x), velocity)
        step = np.where(busy, RATE * factor(finished)[:, None] * velocity, 0)
        x = W @ (x - step) if order == "adapt_then_combine" else W @ x - step
    return x


@pytest.mark.parametrize(
    ("method", "combine", "within"),
    [
        (all_reduce(sgd()), mean, 2e-6),
        (all_reduce(sgd(), weighting="equal"), mean_of_workers, 2e-6),
        (top_k(sgd(), ratio=0.4), remembering(largest_two), 2e-6),
        (ef_sign(sgd()), remembering(signs), 2e-6),
        (qsgd(sgd(), levels=32767), mean, 1e-4),  # little is rounded
    ],
    ids=["all_reduce", "equal", "top_k", "ef_sign", "qsgd"],
)
def test_one_model(method, combine, within):
    found = in_step(method, UPDATES, FINISHED)
    np.testing.assert_allclose(found, stepped(combine), rtol=0, atol=within)


def test_a_ring_sends_a_buffer_of_every_dtype_in_whole_elements():
    """Of four workers chunks of 2 float32 and of 3 bfloat16, each of them sent six times."""
    params = {"a": jnp.zeros(5), "b": jnp.zeros(9, jnp.bfloat16), "c": jnp.zeros(2)}
    payloads = all_reduce(sgd()).messages(params, 4, Row(0))
    assert sum(collective_bytes(payload, 4) for payload in payloads) == 6 * 2 * 4 + 6 * 3 * 2


def confidence(finished):
    return finished / max(finished.mean(), 1e-9)


@pytest.mark.parametrize("build", [matcha, periodic])
def test_graphs_whose_links_are_drawn(build):
    """With steps by confidence that are then mixed, or equal ones beside the mixing."""
    if build is matcha:
        method = matcha(sgd(), GRAPH, budget=0.4, weighting="confidence")
        matchings, _ = graph_matchings(GRAPH)
        p = sampling.activation_probabilities(matchings, N, 0.4)
        alpha, _ = sampling.mixing_weight(matchings, N, p)
        expected = gossip(method, alpha, "adapt_then_combine", confidence)
    else:
        order = "combine_while_adapting"
        method = periodic(sgd(), GRAPH, budget=0.5, order=order)
        expected = gossip(method, mixing.best_step(GRAPH), order, np.ones_like)
    found = in_step(method, UPDATES, FINISHED)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_a_stretch_of_updates_has_all_links_and_merges_a_complete_graph():
    """Before it none with a budget of 0; its first update leaves everybody with the mean."""
    graph = topology.complete(N)
    method = periodic(optax.sgd(RATE), graph, budget=0.0, dense=(4, 6))
    active = method.links.active(2, 6)
    assert (active == (np.arange(2, 8)[:, None] // 2 == 2)).all() and active.any()
    x = np.zeros((N, D))
    for t in range(6):
        x = x - RATE * gradients(x)
        x = np.tile(x.mean(0), (N, 1)) if t >= 4 else x
    np.testing.assert_allclose(in_step(method, 6), x, rtol=1e-5, atol=2e-6)
    with pytest.raises(ValueError, match="periodic: needs dense=\\(first, last\\)"):
        periodic(sgd(), graph, dense=(5, 5))
    with pytest.raises(ValueError, match="budget"):
        periodic(sgd(), graph, budget=0.0)


def test_mixing_that_falls_with_the_cube_of_the_rate():
    """By x <- (1 - gamma) x + gamma W x - lr g, gamma = .1 + .9 ((1 + cos(pi s / S)) / 2)^3."""
    total = N * UPDATES
    method = dsgd_ac(sgd(), topology.ring(N), samples=total, floor=0.1)
    W = mixing.metropolis(topology.ring(N))
    x, velocity = np.zeros((2, N, D))
    for t in range(UPDATES):
        gamma = 0.1 + 0.9 * ((1 + np.cos(np.pi * t / UPDATES)) / 2) ** 3
        velocity = DECAY * velocity + gradients(x)
        x = x + gamma * (W @ x - x) - RATE * velocity
    np.testing.assert_allclose(in_step(method, UPDATES), x, rtol=1e-5, atol=2e-6)
    with pytest.raises(ValueError, match="dsgd_ac: needs samples and power above 0"):
        dsgd_ac(sgd(), topology.ring(N), samples=0.0)


def test_distances_of_short_floats_do_not_vanish():
    """Of 2^12 entries that moved by 2^-13, whose squares float16 does not hold: 2^-14 in all."""
    read, current = np.zeros(2**12, np.float16), np.full(2**12, 2.0**-13, np.float16)
    exchange = compensated_rate(sgd(), threshold=2.0**-16).exchange

    def one(gradient):
        return exchange.update(gradient, exchange.init(read), read, current=current)[0]

    found = jax.jit(jax.vmap(one, axis_name=AXIS))(np.ones((1, 2**12), np.float16))
    np.testing.assert_array_equal(found, 0.25)


@pytest.mark.parametrize(
    "method",
    [
        loscar_sgd(sgd(), 2),
        streaming_diloco(sgd(), overlap=1),
        choco_sgd(sgd(), topology.ring(2), exchange=bf16()),
    ],
    ids=["loscar", "streaming", "choco"],
)
def test_models_of_float64_that_agree_stay_as_they_are(method):
    """Their vectors are float32, which cannot hold them."""
    with jax.enable_x64():
        tx, x = as_optax(method), jnp.tile(np.random.default_rng(0).standard_normal(9), (2, 1))

        def alone(x):
            updates, state = tx.update(jnp.zeros_like(x), tx.init(x), x)
            updates, _ = tx.update(jnp.zeros_like(x), state, x)
            return optax.apply_updates(x, updates)

        np.testing.assert_array_equal(jax.jit(jax.vmap(alone, axis_name=AXIS))(x), x)


def test_one_bit_adam_sends_small_leaves_of_short_floats_as_floats():
    """4 entries are no fewer bytes as signs; their momentum is float32."""
    params = {"w": jnp.zeros(4, jnp.bfloat16)}
    messages = one_bit_adam(sgd(), 4).messages(params, 4, Row(0))
    assert sum(message.size for message in messages) == 16
