"""Graphs that change with time: the mean after finitely many rounds, with few peers in each."""

import math

import networkx as nx
import numpy as np
import pytest

from algorithms.links import of_rounds
from comms import mixing, rounds, topology


def product(matrices):
    """What a whole turn of the rounds does."""
    W = np.eye(len(matrices[0]))
    for one in matrices:
        W = one @ W
    return W


def most_peers(W):
    """The largest number of others that a worker hears from, or that hear from it."""
    heard = (W != 0) & ~np.eye(len(W), dtype=bool)
    return int(max(heard.sum(0).max(), heard.sum(1).max()))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_base_k_finds_the_exact_mean_of_any_number_of_workers(k):
    """With at most k peers in a round, in at most 2 log_(k+1) n + 2 rounds (Theorem 1)."""
    for n in range(2, 65):
        matrices = rounds.base_k(n, k)
        np.testing.assert_allclose(product(matrices), 1 / n, atol=1e-12)
        assert len(matrices) <= 2 * math.log(n, k + 1) + 2
        for W in matrices:
            assert (W >= 0).all() and most_peers(W) <= k
            np.testing.assert_array_equal(W, W.T)
            np.testing.assert_allclose(W.sum(0), 1)


def test_base_k_of_a_power_is_a_hypercube_and_of_few_workers_the_complete_graph():
    assert [len(rounds.base_k(n, 1)) for n in (2, 4, 8, 16, 64)] == [1, 2, 3, 4, 6]
    assert [len(rounds.base_k(n, 2)) for n in (3, 9, 27)] == [1, 2, 3]
    (whole,) = rounds.base_k(5, 4)
    np.testing.assert_allclose(whole, 1 / 5)
    np.testing.assert_array_equal(rounds.base_k(1, 1), np.ones((1, 1, 1)))


def test_one_peer_exponential_finds_the_mean_of_a_power_of_two_only():
    for n in range(2, 65):
        matrices = rounds.one_peer_exponential(n)
        assert len(matrices) == math.ceil(math.log2(n))
        for W in matrices:
            assert most_peers(W) == 1
            np.testing.assert_allclose((W.sum(0), W.sum(1)), 1)
        exact = np.abs(product(matrices) - 1 / n).max() < 1e-12
        assert exact == (n & (n - 1) == 0)
    np.testing.assert_array_equal(rounds.one_peer_exponential(4)[1][0], [0.5, 0, 0.5, 0])


def test_hierarchical_mixes_the_means_of_groups():
    """Twelve workers in groups of three: after both rounds, every worker's group has one value."""
    within, between = rounds.hierarchical(12, 3)
    x = np.random.default_rng(0).standard_normal(12)
    means = x.reshape(4, 3).mean(1)
    expected = np.repeat(mixing.metropolis(nx.cycle_graph(4)) @ means, 3)
    np.testing.assert_allclose(between @ within @ x, expected)
    assert most_peers(within) == 2 and most_peers(between) == 2
    assert [len(rounds.hierarchical(n, 4)) for n in (4, 8)] == [1, 2]
    np.testing.assert_allclose(product(rounds.hierarchical(8, 4)), 1 / 8)


@pytest.mark.parametrize(
    "graph",
    [
        topology.base_k(7, 2),
        topology.base_k(16, 1),
        topology.one_peer_exponential(6),
        topology.hierarchical(12, 4),
    ],
    ids=["base_3", "base_2", "one_peer", "groups"],
)
def test_links_take_the_rounds_apart(graph):
    """Round by round the active links and their weights are the matrix; the graph has all links."""
    matrices, n = graph.graph["rounds"], len(graph)
    links = of_rounds(matrices)
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


def test_bad_graphs_of_rounds_are_refused():
    with pytest.raises(ValueError, match="base_k: needs k >= 1 peers, got 0"):
        topology.base_k(8, 0)
    with pytest.raises(ValueError, match="hierarchical: needs groups of one size, got 8 workers"):
        topology.hierarchical(8, 3)
