import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from comms import collectives, gossip, matcha, mixing, topology

WORKERS = [1, 3, 8]


def network(graph, build=mixing.metropolis):
    """W [n, n] of a graph and the partners [M, n] in its matchings."""
    n = len(graph)
    found = [matcha.partners(m, n) for m in matcha.decompose(graph)]
    return build(graph), np.reshape(found, (-1, n)).astype(int)


def tree(workers):
    rng = np.random.default_rng(0)
    return {
        "matrix": rng.normal(size=(workers, 3, 4)).astype(np.float32),
        "scalar": rng.normal(size=workers).astype(np.float32),
    }


def assert_mixed(found, W, x):
    for got, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(x), strict=True):
        np.testing.assert_allclose(got, np.tensordot(W, leaf, 1), rtol=1e-5, atol=1e-6)
        assert got.dtype == leaf.dtype


@pytest.mark.parametrize("workers", WORKERS)
def test_mixing_on_a_ring_is_a_product_with_w(spmd, workers):
    W, partners = network(topology.ring(workers))
    x = tree(workers)
    assert_mixed(spmd(lambda x: gossip.mix(x, W, partners), x), W, x)


@pytest.mark.parametrize(
    "graph",
    [topology.star(8), topology.matcha_graph(0), topology.complete(7)],
)
def test_mixing_on_graphs(spmd, graph):
    W, partners = network(graph, mixing.best_constant)
    x = tree(len(graph))
    assert_mixed(spmd(lambda x: gossip.mix(x, W, partners), x), W, x)


def test_mixing_on_a_path_by_hand(spmd):
    W, partners = network(topology.edge_list(3, [(0, 1), (1, 2)]))
    x = np.array([3.0, 0.0, 6.0], np.float32)
    np.testing.assert_allclose(spmd(lambda x: gossip.mix(x, W, partners), x), [2, 3, 4], rtol=1e-6)


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


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.parametrize("active", [[1, 1, 1, 1, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]])
def test_active_matchings_mix_by_their_laplacians(spmd, active):
    graph = topology.matcha_graph(0)
    _, partners = network(graph)
    n, alpha, active = len(graph), 0.3, np.array(active, bool)
    everyone = np.arange(n)
    W = np.eye(n)
    for partner in partners[active]:
        W[everyone, everyone] -= alpha * (partner != everyone)
        W[everyone, partner] += alpha * (partner != everyone)
    x = tree(n)
    switches = np.tile(active, (n, 1))
    assert_mixed(spmd(lambda x, on: gossip.mix_active(x, alpha, partners, on), x, switches), W, x)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["one for all", "of every end"])
def test_on_one_device_what_is_heard_at_once_is_what_is_heard_one_by_one(weights, monkeypatch):
    """5 matchings, more than are heard in a pass."""
    monkeypatch.setattr(gossip, "AT_ONCE", 2)
    n = 6
    _, partners = network(topology.complete(n))
    rng = np.random.default_rng(0)
    alpha = 0.05 if weights == "one for all" else rng.random(partners.shape).astype(np.float32)

    def mixed(x, active):
        def one(x):
            return gossip.mix_active(x, alpha, partners, active)

        return jax.vmap(one, axis_name="workers")(x)

    x, at_once, one_by_one = tree(n), jax.jit(mixed), jax.jit(lambda *given: mixed(*given))
    for heard in (0, 1, 2, 3, 5):
        active = rng.permutation(len(partners)) < heard
        with collectives.on_one_device():
            found = at_once(x, active)
        for got, expected in zip(
            *map(jax.tree.leaves, (found, one_by_one(x, active))), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_on_one_device_active_matchings_are_heard_in_one_pass():
    """One choice between programs, where elsewhere every matching is a choice of its own."""
    _, partners = network(topology.matcha_graph(0))

    def choices():
        body = jax.vmap(
            lambda x, on: gossip.mix_active(x, 0.3, partners, on),
            in_axes=(0, None),
            axis_name="workers",
        )
        jaxpr = jax.make_jaxpr(body)(jnp.zeros((8, 100)), jnp.ones(len(partners), bool)).jaxpr
        return sum(e.primitive.name == "cond" for e in equations(jaxpr))

    assert choices() == len(partners)
    with collectives.on_one_device():
        assert choices() == 1


def test_simulated_exchange_is_one_gather():
    body = jax.vmap(gossip.exchange, axis_name="workers")
    jaxpr = jax.make_jaxpr(body)(jnp.zeros((8, 100)), jnp.zeros(8, int)).jaxpr
    gathers = [e for e in equations(jaxpr) if e.primitive.name == "gather"]
    assert [e.invars[0].aval.shape for e in gathers] == [(8, 100)]
    assert max(v.aval.size for e in equations(jaxpr) for v in e.outvars) == 800


def test_mix_on_a_mesh_sends_one_permutation_per_matching(mesh):
    W, partners = network(topology.matcha_graph(0))
    stacked = PartitionSpec("workers")
    body = jax.shard_map(
        lambda x: gossip.mix(x, W, partners), mesh=mesh, in_specs=stacked, out_specs=stacked
    )
    text = jax.jit(body).lower(jnp.zeros((8, 100))).compile().as_text()
    assert text.count(" collective-permute(") + text.count(" collective-permute-start(") == 5
    assert "all-gather" not in text


@pytest.mark.parametrize("workers", WORKERS)
def test_exchange_with_any_partner(spmd, workers):
    x = tree(workers)
    partner = np.random.default_rng(1).integers(0, workers, workers).astype(np.int32)
    found = spmd(gossip.exchange, x, partner)
    for got, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(x), strict=True):
        np.testing.assert_array_equal(got, leaf[partner])


@pytest.mark.parametrize("workers", WORKERS[1:])
def test_exchange_over_fixed_matchings(spmd, workers):
    _, partners = network(topology.complete(workers))
    x = tree(workers)
    for index in {0, len(partners) - 1}:
        everywhere = np.full(workers, index, np.int32)
        found = spmd(lambda x, i: gossip.exchange_matching(x, i, partners), x, everywhere)
        for got, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(x), strict=True):
            np.testing.assert_array_equal(got, leaf[partners[index]])


def test_one_program_exchanges_over_all_matchings():
    _, partners = network(topology.matcha_graph(0))
    x = tree(8)["matrix"]

    def rounds(x, order):
        def body(x, index):
            return gossip.exchange_matching(x, index, partners), None

        return jax.lax.scan(body, x, order)[0]

    order = np.array([0, 3, 1, 4, 2, 0], np.int32)
    found = jax.vmap(rounds, in_axes=(0, None), axis_name="workers")(x, order)
    for index in order:
        x = x[partners[index]]
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(
    ("W", "partners", "message"),
    [
        (np.eye(3), np.zeros((0, 4), int), r"has 4 workers, got W \(3, 3\)"),
        (np.eye(4), np.zeros((1, 3), int), r"partners \(1, 3\)"),
        (mixing.metropolis(topology.ring(4)), [[1, 0, 3, 2]], "these workers 0 times"),
        (mixing.metropolis(topology.ring(4)), [[1, 0, 3, 2], [3, 2, 1, 0]] * 2, "2 times"),
    ],
)
def test_mix_refuses_matchings_of_another_graph(W, partners, message):
    body = jax.vmap(lambda x: gossip.mix(x, W, partners), axis_name="workers")
    with pytest.raises(ValueError, match=message):
        body(jnp.zeros(4))
