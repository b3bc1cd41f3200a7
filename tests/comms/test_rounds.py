"""Graphs that change with time: the mean after finitely many rounds, with few peers in each."""

import math

import networkx as nx
import numpy as np
import pytest

from algorithms.links import of_rounds
from comms import mixing, rounds, topology
from tests.refusals import refused


def matrices_of(turn):
    """[T, n, n] of the rounds."""
    return np.array([rounds.matrix(one) for one in turn])


def product(matrices):
    """Return the product of a whole turn of the rounds."""
    W = np.eye(len(matrices[0]))
    for one in matrices:
        W = one @ W
    return W


def rate(matrices):
    """Return the norm of a turn on what is off the mean, per round."""
    return np.linalg.norm(product(matrices) - 1 / len(matrices[0]), 2) ** (1 / len(matrices))


def most_peers(W):
    """Return the largest number of others that a worker hears from, or that hear from it."""
    heard = (W != 0) & ~np.eye(len(W), dtype=bool)
    return int(max(heard.sum(0).max(), heard.sum(1).max()))


@pytest.mark.parametrize("k", [1, 3])
def test_base_k_finds_the_exact_mean_of_any_number_of_workers(k):
    """With at most k peers in a round, in at most 2 log_(k+1) n + 2 rounds (Theorem 1)."""
    for n in range(2, 50):
        matrices = matrices_of(rounds.base_k(n, k))
        np.testing.assert_allclose(product(matrices), 1 / n, atol=1e-12)
        assert len(matrices) <= 2 * math.log(n, k + 1) + 2
        for W in matrices:
            assert (W >= 0).all() and most_peers(W) <= k
            np.testing.assert_array_equal(W, W.T)
            np.testing.assert_allclose(W.sum(0), 1)
    assert [len(rounds.base_k((k + 1) ** power, k)) for power in (1, 2, 3)] == [1, 2, 3]
    np.testing.assert_array_equal(matrices_of(rounds.base_k(1, 1)), np.ones((1, 1, 1)))


def test_one_peer_exponential_finds_the_mean_of_a_power_of_two_only():
    for n in range(2, 65):
        matrices = matrices_of(rounds.one_peer_exponential(n))
        assert len(matrices) == math.ceil(math.log2(n))
        for W in matrices:
            assert most_peers(W) == 1
            np.testing.assert_allclose((W.sum(0), W.sum(1)), 1)
        exact = np.abs(product(matrices) - 1 / n).max() < 1e-12
        assert exact == (n & (n - 1) == 0)
    one = rounds.one_peer_exponential(4)[1]
    np.testing.assert_array_equal(rounds.matrix(one)[0], [0.5, 0, 0.5, 0])


def test_hierarchical_mixes_the_means_of_groups():
    """Twelve workers in groups of three: after both rounds, every worker's group has one value."""
    within, between = matrices_of(rounds.hierarchical(12, 3))
    x = np.random.default_rng(0).standard_normal(12)
    means = x.reshape(4, 3).mean(1)
    expected = np.repeat(mixing.metropolis(nx.cycle_graph(4)) @ means, 3)
    np.testing.assert_allclose(between @ within @ x, expected)
    assert most_peers(within) == 2 and most_peers(between) == 2
    assert [len(rounds.hierarchical(n, 4)) for n in (4, 8)] == [1, 2]
    np.testing.assert_allclose(product(matrices_of(rounds.hierarchical(8, 4))), 1 / 8)


@pytest.mark.parametrize(
    "graph",
    [
        topology.base_k(7, 2), topology.one_peer_exponential(6), topology.hierarchical(12, 4),
        topology.equi_static(9), topology.equi_dyn(9, directed=True), topology.equi_dyn(9),
    ],
    ids=["base_3", "one_peer", "groups", "U", "OD", "OU"],
)  # fmt: skip
def test_links_take_the_rounds_apart(graph):
    """Round by round the active links and their weights are the matrix; the graph has all links."""
    turn, n = graph.graph["rounds"], len(graph)
    links, matrices = of_rounds(turn), matrices_of(turn)
    assert links.directed == any((W != W.T).any() for W in matrices)
    everyone = np.arange(n)
    for t, active in enumerate(links.active(5, 2 * len(matrices)), start=5):
        W = np.eye(n)
        for m in np.flatnonzero(active):
            assert sorted(links.partners[m]) == list(everyone)
            W[everyone, links.partners[m]] += links.weights[m]
            W[everyone, everyone] -= links.weights[m]
            assert all(graph.has_edge(i, j) for i, j in enumerate(links.partners[m]) if i != j)
        np.testing.assert_allclose(W, matrices[t % len(matrices)], atol=1e-12)


@pytest.mark.parametrize("directed", [True, False])
def test_the_consensus_rate_of_equi_topo_graphs_does_not_grow_with_n(directed):
    """With O(log n) shifts; other graphs of few links come ever closer to 1."""
    for n in (16, 120):
        static = topology.equi_static(n, 2 * math.ceil(math.log2(n)), 0, directed)
        assert rate(matrices_of(static.graph["rounds"])) < 0.75
        turn = matrices_of(topology.equi_dyn(n, None, 0, directed).graph["rounds"])
        assert rate(turn) < 0.85
    assert mixing.rho(mixing.metropolis(topology.ring(120))) > 0.998


EVEN = next(s for s in range(99) if not rounds.equi_dyn(8, 1, s, True)[0].partners[0, 0] % 2)
test_bad_graphs_of_rounds_are_refused = refused(
    (lambda: topology.equi_static(8, 0), "1 <= peers <= 7 of 8 .*, got peers=0"),
    (lambda: topology.equi_dyn(8, 8), "1 <= peers <= 7 of 8 .*, got peers=8"),
    (lambda: topology.equi_dyn(8, 1, seed=EVEN), "falls into .* another seed or more peers"),
    (lambda: topology.base_k(8, 0), "base_k: needs k >= 1 peers, got 0"),
    (lambda: topology.hierarchical(8, 3), "hierarchical: needs groups of one size, got 8"),
)
