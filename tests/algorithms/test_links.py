"""Links of an update: draws that do not depend on how they are cut, and weights of a link each."""

import functools
from itertools import pairwise

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import dpsgd, matcha, periodic, swarm
from algorithms.base import AXIS
from algorithms.links import Links, drawn_in_blocks, in_turn, one_at_a_time
from comms import mixing, topology
from comms.messages import Row, sent_bytes
from runtimes import simulate
from stragglers import delays
from tests import planned

CUTS = [0, 1, 6, 7, 8, 20, 21, 50, 63, 64, 99, 100]


@pytest.mark.parametrize("block", [7, 32, 1024])
def test_rows_do_not_depend_on_how_they_are_cut(block):
    """Nor on what was asked for before; every block is drawn as a whole, and as a block."""
    asked = []

    def draw(index, rows):
        asked.append((index, rows))
        return np.random.default_rng((5, index)).random((rows, 3)) < 0.5

    rows = drawn_in_blocks(draw, block)
    whole = rows(0, 100)
    assert whole.shape == (100, 3)
    parts = [rows(first, last - first) for first, last in pairwise(CUTS)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(drawn_in_blocks(draw, block)(61, 20), whole[61:81])
    assert {rows for _, rows in asked} == {block}
    expected = [draw(index, block) for index in range(-(-100 // block))]
    np.testing.assert_array_equal(np.concatenate(expected)[:100], whole)


@pytest.mark.parametrize(
    "links",
    [
        lambda: matcha(optax.sgd(0.1), topology.matcha_graph(0), budget=0.3).links,
        lambda: periodic(optax.sgd(0.1), topology.ring(8), budget=0.3).links,
        lambda: swarm(optax.sgd(0.1), topology.ring(8), lockstep=True).links,
    ],
    ids=["matcha", "periodic", "swarm"],
)
def test_methods_draw_the_same_rows_for_a_resumed_run(links):
    whole = links().active(0, 3000)
    np.testing.assert_array_equal(links().active(1100, 1500), whole[1100:2600])


def test_one_at_a_time_and_in_turn_use_one_matching_each():
    drawn, turned = one_at_a_time(3, 0)(0, 2000), in_turn(3)(4, 5)
    assert (drawn.sum(1) == 1).all()
    np.testing.assert_allclose(drawn.mean(0), 1 / 3, atol=0.04)
    np.testing.assert_array_equal(turned.argmax(1), [1, 2, 0, 1, 2])
    assert (turned.sum(1) == 1).all()


# The Base-3 graph of 7 = 2 x 3 + 1 workers (Takezawa et al., arXiv 2305.11420, k = 2): six average
# exactly as a hyper-hypercube, in pairs and triangles; the seventh exchanges with one worker of
# each triangle, so heavily that both have the mean of all on average; then triangles once more.
TRIANGLES = [[(0, 1), (3, 4)], [(1, 2), (4, 5)], [(0, 2), (3, 5)]]
ROUNDS = [
    (1 / 2, [[(0, 3), (1, 4), (2, 5)]]),
    (1 / 3, TRIANGLES),
    (3 / 7, [[(0, 6)], [(3, 6)]]),
    (1 / 3, TRIANGLES),
]


def base_3() -> tuple[nx.Graph, Links]:
    matchings = [(weight, edges) for weight, several in ROUNDS for edges in several]
    round_of = np.repeat(np.arange(len(ROUNDS)), [len(several) for _, several in ROUNDS])
    partners = np.tile(np.arange(7), (len(matchings), 1))
    for m, (_, edges) in enumerate(matchings):
        for i, j in edges:
            partners[m, [i, j]] = j, i
    weights = np.where(partners == np.arange(7), 0, [[weight] for weight, _ in matchings])

    def active(first, count):
        return np.arange(first, first + count)[:, None] % len(ROUNDS) == round_of

    return nx.Graph([edge for _, edges in matchings for edge in edges]), Links(
        partners, active, weights=weights
    )


def mixed(method, start, axis):
    """[rounds, 7, ...] models after every exchange, without gradients, by "vmap" or a mesh."""
    active = method.links.active(0, len(ROUNDS))

    def whole(x):
        state = method.exchange.init(x)

        def step(x, active):
            moved, _ = method.exchange.update(
                jnp.zeros_like(x), state, x, batches=1, nominal=1, active=active, samples=0.0
            )
            return x + moved, x + moved

        return jax.lax.scan(step, x, active)[1]

    if axis == "vmap":
        return jax.jit(jax.vmap(whole, axis_name=AXIS, out_axes=1))(start)
    devices = jax.make_mesh((7,), (AXIS,), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:7])
    run = functools.partial(
        jax.shard_map, mesh=devices, in_specs=P(AXIS), out_specs=P(None, AXIS), check_vma=False
    )(lambda x: whole(x[0])[:, None])
    return jax.jit(run)(start)


@pytest.mark.few(2)
@pytest.mark.parametrize("axis", ["vmap", "shard_map"])
@pytest.mark.parametrize("order", ["combine_while_adapting", "adapt_then_combine"])
def test_a_base_3_graph_averages_seven_workers_in_four_rounds(axis, order):
    graph, links = base_3()
    method = dpsgd(optax.sgd(0.0), graph, order=order, links=links)
    start = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    found = np.asarray(mixed(method, start, axis))
    expected = start.astype(float)
    for t, models in enumerate(found):
        W = np.eye(7)
        for m in np.flatnonzero(links.active(t, 1)[0]):
            W[np.arange(7), links.partners[m]] += links.weights[m]
            W[np.arange(7), np.arange(7)] -= links.weights[m]
        np.testing.assert_allclose(W.sum(0), 1)  # so that the mean is kept
        expected = W @ expected
        np.testing.assert_allclose(models, expected, atol=1e-6)
    average = np.broadcast_to(start.mean(0), (7, 5))
    np.testing.assert_allclose(found[-1], average, atol=1e-6)
    assert np.abs(found[-2] - average).max() > 0.01


def test_the_simulator_mixes_with_the_weights_of_the_links():
    """Workers that do not learn agree after four rounds of the clock; each sends what it uses."""
    graph, links = base_3()
    method = dpsgd(optax.sgd(0.0), graph, links=links)
    rule = planned.rule(
        "neighbour_barrier", delays.deterministic(1.0), 7, 1, 0, graph=graph, links=links
    )
    data = {"x": np.zeros(16, np.float32)}

    class First:
        batch_size = 1

        def indices(self, workers, counters):
            return np.zeros((*np.broadcast_shapes(np.shape(workers), np.shape(counters)), 1), int)

    runtime = simulate.Simulator(
        method,
        lambda params, examples: examples["x"] * params.sum(),
        data,
        First(),
        rule,
        mini_batches=1,
    )
    start = np.float32([1.0, -2.0])
    state = runtime.start(start)
    apart = np.random.default_rng(1).standard_normal((7, 2)).astype(np.float32)
    state = state._replace(model=state.model._replace(params=jnp.asarray(apart)))
    state, schedule = runtime.advance(state, np.inf, 4)
    np.testing.assert_allclose(
        runtime.models(state), np.broadcast_to(apart.mean(0), (7, 2)), atol=1e-6
    )
    ends = np.array([2 * sum(map(len, several)) for _, several in ROUNDS])
    np.testing.assert_allclose(sent_bytes(method, start, schedule), 8 * ends / 7)


def test_links_without_weights_keep_the_methods_matrix():
    """All links of a ring in every update: plain D-PSGD, to rounding."""
    graph = topology.ring(7)
    plain = dpsgd(optax.sgd(0.0), graph)
    partners = plain.messages(np.zeros(2), 7, Row(0))[0].matchings
    always = Links(partners, lambda first, count: np.ones((count, len(partners)), bool))
    start = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    found = mixed(dpsgd(optax.sgd(0.0), graph, links=always), start, "vmap")
    expected = np.linalg.matrix_power(mixing.metropolis(graph), 4) @ start
    np.testing.assert_allclose(found[-1], expected, atol=1e-6)


def test_weights_of_another_shape_are_refused():
    graph, links = base_3()
    with pytest.raises(ValueError, match=r"their weights \(2, 7\); give both as \[M, 7\]"):
        dpsgd(optax.sgd(0.1), graph, links=links._replace(weights=links.weights[:2]))
    with pytest.raises(ValueError, match="the graph has 8 workers, but partners"):
        dpsgd(optax.sgd(0.1), topology.ring(8), links=links)
