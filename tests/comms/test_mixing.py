"""Mixing matrices by hand, by their defining properties, and refused in a sentence."""

import itertools

import networkx as nx
import numpy as np
import pytest

from comms import mixing, topology
from tests.refusals import refused

GRAPHS = [
    topology.ring(1),
    topology.ring(5),
    topology.star(6),
    topology.complete(7),
    topology.matcha_graph(4),
    topology.erdos_renyi(20, 0.3, seed=3),
]


@pytest.mark.parametrize("name", mixing.MIXINGS)
def test_symmetric_doubly_stochastic_and_only_on_edges(name):
    for graph in GRAPHS:
        W = mixing.MIXINGS[name](graph)
        assert W.dtype == np.float64
        np.testing.assert_array_equal(W, W.T)
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-12)
        edges = np.argwhere(W - np.diag(np.diag(W)))
        assert {tuple(sorted(map(int, edge))) for edge in edges} == set(graph.edges)
        assert 0 <= mixing.rho(W) < 1
        assert name == "best_constant" or (W >= 0).all()


def test_path_of_three_by_hand():
    path = topology.edge_list(3, [(0, 1), (1, 2)])
    thirds = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    np.testing.assert_allclose(mixing.metropolis(path), thirds)
    np.testing.assert_allclose(mixing.uniform_neighbour(path), thirds)
    # Laplacian eigenvalues 0, 1, 3, so a = 1/2 and rho = (2/4)^2.
    halves = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]]) / 2
    np.testing.assert_allclose(mixing.best_constant(path), halves, atol=1e-15)
    assert mixing.rho(mixing.best_constant(path)) == pytest.approx(0.25)


test_rho_refuses_what_is_no_mixing_matrix = refused(
    (np.ones((2, 3)) / 3, r"square mixing matrix, got shape \(2, 3\)"),
    ([[0.5, 0.5], [0.2, 0.8]], "not symmetric"),
    by=lambda W: mixing.rho(W),
)


test_weights_of_ones_own_that_do_not_mix_are_refused = refused(
    (np.full((2, 2), 1 / 2), r"W is for 2 workers, but the graph has 4; pass W \[4, 4\]"),
    (np.eye(4) / 2, "mixing_matrix: W is not doubly stochastic, a row sum is off 1 by 0.5"),
    (np.full((4, 4), 1 / 4), r"W\[0, 2\] = 0.25, but the graph has no edge .*; put 0 there"),
    (np.eye(4), r"do not come together, as rho\(W\) is 1;"),
    (np.eye(4) - 0.6 * mixing.laplacian(topology.ring(4)), r"rho\(W\) is 1.96;"),
    by=lambda W: mixing.own(topology.ring(4), W),
)


def test_graphs_whose_matrix_would_not_be_symmetric_are_refused():
    """With a loop, directed, of words, from 1 on, with double edges."""
    for matrix, graph in itertools.product(
        (mixing.metropolis, mixing.uniform_neighbour, mixing.laplacian),
        (nx.Graph([(0, 1), (1, 2), (0, 0)]), nx.DiGraph([(0, 1), (1, 2)]), nx.Graph([("a", "b")]),
         nx.Graph([(1, 2), (2, 3)]), nx.MultiGraph([(0, 1), (0, 1)])),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"an undirected nx\.Graph of nodes 0 to n - 1 withou"):
            matrix(graph)


def test_weights_that_would_have_to_be_unpickled_are_refused(tmp_path):
    """A pickle may run any code."""
    np.save(tmp_path / "weights.npy", np.eye(2).astype(object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"weights\.npy cannot be read as a matrix"):
        mixing.weights(tmp_path / "weights.npy")
