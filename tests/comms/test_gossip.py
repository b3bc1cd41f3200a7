"""Values of neighbours: products with W, and the messages of compiled programs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import collectives, edge_colouring, gossip, mixing, topology
from tests.refusals import refused


def network(graph, build=mixing.metropolis):
    """W [n, n] of a graph and the partners [M, n] in its matchings."""
    n = len(graph)
    found = [edge_colouring.partners(m, n) for m in edge_colouring.decompose(graph)]
    return build(graph), np.reshape(found, (-1, n)).astype(int)


def tree(workers):
    rng = np.random.default_rng(0)
    return {
        "matrix": rng.normal(size=(workers, 3, 4)).astype(np.float32),
        "scalar": rng.normal(size=workers).astype(np.float32),
    }


def assert_leaves(found, expected, rtol=1e-5, atol=1e-6):
    for got, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, leaf, rtol=rtol, atol=atol)
        assert got.dtype == np.float32


@pytest.mark.parametrize(
    "graph", [topology.ring(1), topology.ring(3), topology.star(8), topology.matcha_graph(0)]
)
def test_mixing_is_a_product_with_w(spmd, graph):
    W, partners = network(graph, mixing.best_constant)
    x = tree(len(graph))
    expected = jax.tree.map(lambda leaf: np.tensordot(W, leaf, 1), x)
    assert_leaves(spmd(lambda x: gossip.mix(x, W, partners), x), expected)


def test_sums_of_short_floats_are_kept_in_float32(spmd):
    # In bfloat16 1 + 1/256 rounds to 1 after each neighbour, and the sum would stay at 1.
    n = 5
    W = np.full((n, n), 1 / 256) + np.eye(n) * (1 - 5 / 256)
    _, partners = network(topology.complete(n))
    x = jnp.ones(n, jnp.bfloat16).at[0].set(256)
    row = [256 * (W[i] @ np.where(np.arange(n) == 0, 1, 1 / 256)) for i in range(n)]
    expected = jnp.asarray(row, jnp.bfloat16)
    np.testing.assert_array_equal(spmd(lambda x: gossip.mix(x, W, partners), x), expected)


def test_directed_weights_go_through_permutations(spmd):
    # Partners may be any permutation: here everyone hears from the worker before.
    partners = np.array([[2, 0, 1]])
    W = np.array([[0.5, 0, 0.5], [0.25, 0.75, 0], [0, 1, 0]])
    x = np.array([4.0, 8.0, 16.0], np.float32)
    np.testing.assert_array_equal(spmd(lambda x: gossip.mix(x, W, partners), x), [10, 7, 8])


def test_active_matchings_mix_by_their_laplacians(spmd):
    """And pull by W - I, also where every end of a link has a weight of its own."""
    _, partners = network(topology.matcha_graph(0))
    n, active = partners.shape[1], np.array([0, 1, 0, 0, 1], bool)
    everyone, x, switches = np.arange(n), tree(n), np.tile(active, (n, 1))
    own = np.random.default_rng(1).uniform(0.1, 0.3, partners.shape).astype(np.float32)
    for alpha in (0.3, own):
        W = np.eye(n)
        weights = np.broadcast_to(alpha, partners.shape)
        for partner, weight in zip(partners[active], weights[active], strict=True):
            W[everyone, everyone] -= weight * (partner != everyone)
            W[everyone, partner] += weight * (partner != everyone)
        expected = jax.tree.map(lambda leaf, W=W: np.tensordot(W, leaf, 1), x)
        pulled = jax.tree.map(lambda new, old: new - old, expected, x)
        mix, pull = (
            functools.partial(f, alpha=alpha, partners=partners)
            for f in (gossip.mix_active, gossip.pull)
        )
        assert_leaves(spmd(lambda x, on, mix=mix: mix(x, active=on), x, switches), expected)
        pull = jax.vmap(functools.partial(pull, active=active), axis_name="workers")
        assert_leaves(jax.jit(pull)(x), pulled)


def test_on_one_device_what_is_heard_at_once_is_what_is_heard_one_by_one(monkeypatch):
    """5 matchings, more than are heard in a pass."""
    monkeypatch.setattr(gossip, "AT_ONCE", 2)
    n = 6
    _, partners = network(topology.complete(n))
    rng = np.random.default_rng(0)
    alpha = rng.random(partners.shape).astype(np.float32)  # of every end of a link

    def mixed(x, active):
        def one(x):
            return gossip.mix_active(x, alpha, partners, active)

        return jax.vmap(one, axis_name="workers")(x)

    x, at_once, one_by_one = tree(n), jax.jit(mixed), jax.jit(lambda *given: mixed(*given))
    for heard in (0, 1, 2, 3, 5):
        active = rng.permutation(len(partners)) < heard
        with collectives.on_one_device():
            found = at_once(x, active)
        assert_leaves(found, one_by_one(x, active))


def test_exchanges_are_those_of_numpy(spmd):
    """With any partner as data, and over fixed matchings."""
    workers = 3
    _, partners = network(topology.complete(workers))
    x = tree(workers)
    partner = np.random.default_rng(1).integers(0, workers, workers).astype(np.int32)
    index = np.full(workers, len(partners) - 1, np.int32)
    any_one, fixed = spmd(
        lambda x, partner, i: (
            gossip.exchange(x, partner),
            gossip.exchange_matching(x, i, partners),
        ),
        x,
        partner,
        index,
    )
    assert_leaves(any_one, jax.tree.map(lambda leaf: leaf[partner], x), 0, 0)
    assert_leaves(fixed, jax.tree.map(lambda leaf: leaf[partners[-1]], x), 0, 0)


test_mix_refuses_matchings_of_another_graph = refused(
    (np.eye(3), np.zeros((0, 4), int), r"has 4 workers, got W \(3, 3\)"),
    (np.eye(4), np.zeros((1, 3), int), r"partners \(1, 3\)"),
    (mixing.metropolis(topology.ring(4)), [[1, 0, 3, 2]], "these workers 0 times"),
    (mixing.metropolis(topology.ring(4)), [[1, 0, 3, 2], [3, 2, 1, 0]] * 2, "2 times"),
    by=lambda W, partners: jax.vmap(lambda x: gossip.mix(x, W, partners), axis_name="workers")(
        jnp.zeros(4)
    ),
)


@pytest.mark.parametrize(
    ("partners", "active", "words"),
    [
        ([[1, 0]], [True], "partners are given for 2 workers, and the axis 'workers' has 4"),
        ([[1, 0, 3, 2], [3, 2, 1, 0]], [True], r"active has shape \(1,\), where .* the 2 matchi"),
        ([[1, 0, 3, 2]], [[True]], r"active has shape \(1, 1\), where a bool of each"),
    ],
)
def test_links_of_other_workers_or_matchings_are_refused(spmd, partners, active, words):
    """JAX would take the last flag for a missing one, and zeros for what nobody sends."""

    def body(x):
        return gossip.mix_active(x, 0.5, np.array(partners), jnp.array(active))

    with pytest.raises(ValueError, match=words):
        spmd(body, np.arange(4, dtype=np.float32))
