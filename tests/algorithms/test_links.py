"""Links of an update: draws that do not depend on how they are cut, and weights of a link each."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms import dpsgd, matcha, periodic, swarm
from algorithms.base import AXIS
from algorithms.links import Links, drawn_in_blocks, in_turn, of_rounds, one_at_a_time
from comms import mixing, rounds, topology
from comms.messages import Row

CUTS = [0, 1, 6, 7, 8, 20, 21, 50, 63, 64, 99, 100]


def test_rows_do_not_depend_on_how_they_are_cut():
    """Nor on what was asked for before; every block is drawn as a whole, and as a block."""
    block = 7
    asked = []

    def draw(index, rows):
        asked.append((index, rows))
        return np.random.default_rng((5, index)).random((rows, 3)) < 0.5

    rows = drawn_in_blocks(draw, block)
    whole = rows(0, 100)
    assert whole.shape == (100, 3) and rows(0, 0).shape == rows(block, 0).shape == (0, 3)
    parts = [rows(first, last - first) for first, last in pairwise(CUTS)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(drawn_in_blocks(draw, block)(61, 20), whole[61:81])
    assert {rows for _, rows in asked} == {block}
    expected = [draw(index, block) for index in range(-(-100 // block))]
    np.testing.assert_array_equal(np.concatenate(expected)[:100], whole)


def test_methods_draw_the_same_rows_for_a_resumed_run():
    sgd, ring = optax.sgd(0.1), topology.ring(8)
    for build in (
        lambda: matcha(sgd, topology.matcha_graph(0), budget=0.3),
        lambda: periodic(sgd, ring, budget=0.3),
        lambda: swarm(sgd, ring, lockstep=True),
    ):
        whole = build().links.active(0, 3000)
        np.testing.assert_array_equal(build().links.active(1100, 1500), whole[1100:2600])


def test_matcha_keeps_its_budget_and_periodic_gossip_uses_all_links_or_none():
    sgd, graph = optax.sgd(0.1), topology.matcha_graph(0)
    drawn = (matcha(sgd, graph, budget=0.3, seed=seed).links.active(0, 3000) for seed in (5, 6))
    one, other = drawn
    assert abs(one.mean() - 0.3) < 0.02 and (one != other).any()
    active = periodic(sgd, topology.ring(6), budget=0.25).links.active(0, 4000)
    assert set(active.sum(1)) == {0, 2} and abs(active.mean() - 0.25) < 0.03


def test_one_at_a_time_and_in_turn_use_one_matching_each():
    drawn, turned = one_at_a_time(3, 0)(0, 2000), in_turn(3)(4, 5)
    assert (drawn.sum(1) == 1).all()
    np.testing.assert_allclose(drawn.mean(0), 1 / 3, atol=0.04)
    np.testing.assert_array_equal(turned.argmax(1), [1, 2, 0, 1, 2])
    assert (turned.sum(1) == 1).all()


def mixed(method, updates):
    """Return [updates, 7, ...] models after every exchange, without gradients."""

    def whole(x):
        state = method.exchange.init(x)

        def step(x, active):
            moved, _ = method.exchange.update(
                jnp.zeros_like(x), state, x, batches=1, nominal=1, active=active, samples=0.0
            )
            return x + moved, x + moved

        return jax.lax.scan(step, x, method.links.active(0, updates))[1]

    return np.asarray(jax.jit(jax.vmap(whole, axis_name=AXIS, out_axes=1))(START))


START = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)


def test_a_base_3_graph_averages_seven_workers_in_a_turn():
    graph = topology.base_k(7, 2)
    turn, links = graph.graph["rounds"], of_rounds(graph.graph["rounds"])
    method = dpsgd(optax.sgd(0.0), nx.Graph(graph.edges), order="adapt_then_combine", links=links)
    expected = START.astype(float)
    for one, models in zip(turn, mixed(method, len(turn)), strict=True):
        expected = rounds.matrix(one) @ expected
        np.testing.assert_allclose(models, expected, atol=1e-6)
    np.testing.assert_allclose(expected, np.tile(START.mean(0), (7, 1)), atol=1e-6)


def test_links_without_weights_keep_the_methods_matrix():
    """All links of a ring in every update: plain D-PSGD, to rounding."""
    graph = topology.ring(7)
    plain = dpsgd(optax.sgd(0.0), graph)
    partners = plain.messages(np.zeros(2), 7, Row(0))[0].matchings
    always = Links(partners, lambda first, count: np.ones((count, len(partners)), bool))
    found = mixed(dpsgd(optax.sgd(0.0), graph, links=always), 4)
    expected = np.linalg.matrix_power(mixing.metropolis(graph), 4) @ START
    np.testing.assert_allclose(found[-1], expected, atol=1e-6)
