import networkx as nx
import numpy as np
import pytest

from comms import matcha, topology
from comms.topology import matcha_matchings


def check(graph):
    """Validates a decomposition independently of `validate` and returns its matchings."""
    matchings = matcha.decompose(graph)
    edges = sorted(edge for found in matchings for edge in found)
    assert edges == sorted(tuple(sorted(edge)) for edge in graph.edges)
    for found in matchings:
        assert found
        assert len({worker for edge in found for worker in edge}) == 2 * len(found)
    assert len(matchings) <= max((d for _, d in graph.degree), default=0) + 1
    matcha.validate(graph, matchings)
    return matchings


def test_random_graphs():
    for seed in range(300):
        print("seed", seed)  # seen where one fails
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 25))
        check(nx.gnp_random_graph(n, rng.random(), seed=seed))


def test_all_graphs_of_up_to_six_nodes():
    atlas = nx.graph_atlas_g()
    for graph in atlas[1:209]:
        check(graph)


@pytest.mark.parametrize("degree", [3, 8])
def test_random_regular_graphs(degree):
    for seed in range(10):
        print("seed", seed)
        check(nx.random_regular_graph(degree, 30, seed=seed))


@pytest.mark.parametrize("n", [2, 3, 8, 9, 33])
def test_complete_graphs(n):
    check(topology.complete(n))


@pytest.mark.parametrize(
    "graph",
    [
        topology.ring(2),
        topology.ring(64),
        topology.star(9),
        topology.grid(48),
        topology.torus(64),
        topology.hypercube(32),
        nx.complete_bipartite_graph(7, 5),
    ],
)
def test_bipartite_graphs_need_no_more_than_their_degree(graph):
    assert len(check(graph)) == max(d for _, d in graph.degree)


def test_random_bipartite_graphs_need_no_more_than_their_degree():
    for seed in range(30):
        print("seed", seed)
        graph = nx.bipartite.random_graph(12, 9, 0.4, seed=seed)
        assert len(check(nx.convert_node_labels_to_integers(graph))) == max(
            d for _, d in graph.degree
        )


def test_ring_of_four_by_hand():
    assert matcha.decompose(topology.ring(4)) == [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]


def test_odd_ring_needs_a_third_matching():
    assert len(check(topology.ring(7))) == 3


@pytest.mark.parametrize("graph", [nx.cycle_graph(64), nx.gnp_random_graph(60, 0.2, seed=3)])
def test_large_graphs_take_the_colours_that_are_left(graph, monkeypatch):
    expected = matcha.decompose(graph)
    monkeypatch.setattr(matcha, "COLOURED", 8)
    found = matcha.decompose(graph)
    matcha.validate(graph, found)
    most = max(dict(graph.degree).values())
    assert len(found) <= most + (not nx.is_bipartite(graph))
    if most == 2:
        assert found == expected


def test_a_long_ring_is_decomposed_at_once():
    for n, count in ((20_000, 2), (20_001, 3)):
        found = matcha.decompose(nx.cycle_graph(n))
        assert len(found) == count
        assert sum(map(len, found)) == n


def test_one_worker_has_no_matchings():
    assert matcha.decompose(topology.ring(1)) == []


def test_deterministic_whatever_the_order_of_insertion():
    for seed in range(5):
        print("seed", seed)
        graph = topology.erdos_renyi(16, 0.5, seed=seed)
        edges = [(j, i) for i, j in graph.edges]
        np.random.default_rng(seed).shuffle(edges)
        again = nx.Graph()
        again.add_nodes_from(reversed(range(16)))
        again.add_edges_from(edges)
        assert matcha.decompose(again) == matcha.decompose(graph)


@pytest.mark.parametrize("graph", [nx.path_graph(range(1, 4)), nx.Graph([(0, 1), (1, 1)])])
def test_other_nodes_and_loops_are_refused(graph):
    with pytest.raises(ValueError, match="relabel the nodes, remove the loops"):
        matcha.decompose(graph)


def test_reference_matchings_are_valid():
    for k in range(6):
        matcha.validate(topology.matcha_graph(k), matcha_matchings(k))


@pytest.mark.parametrize(
    ("matchings", "message"),
    [
        ([[(0, 1), (2, 3)], [(1, 2)]], r"1 edges are in none of them, first \(0, 3\)"),
        ([[(0, 1), (1, 2)], [(2, 3), (0, 3)]], "matching 0: worker 1 has two partners"),
        (
            [[(0, 1), (2, 3)], [(1, 2), (0, 3)], [(1, 0)]],
            r"matching 2: edge \(1, 0\) appears twice",
        ),
        ([[(0, 2)]], r"matching 0: \(0, 2\) is not an edge"),
    ],
)
def test_validate_names_what_is_wrong(matchings, message):
    with pytest.raises(ValueError, match=message):
        matcha.validate(topology.ring(4), matchings)


def test_partners_by_hand():
    np.testing.assert_array_equal(matcha.partners([(0, 3), (1, 4)], 6), [3, 4, 2, 0, 1, 5])
    np.testing.assert_array_equal(matcha.partners([], 2), [0, 1])


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 3)], r"\(0, 3\) does not pair two of the workers 0..2"),
        ([(1, 1)], r"\(1, 1\) does not pair"),
        ([(0, 1), (1, 2)], "worker 1 has two partners"),
    ],
)
def test_partners_refuses_what_is_no_matching(edges, message):
    with pytest.raises(ValueError, match=message):
        matcha.partners(edges, 3)


def test_matchings_of_a_ring_are_given_probabilities_and_a_weight():
    matchings = matcha.decompose(topology.ring(4))
    p = matcha.activation_probabilities(matchings, 4, 1.0)
    alpha, rho = matcha.mixing_weight(matchings, 4, p)
    np.testing.assert_allclose(p, 1, atol=1e-6)
    # Eigenvalues of the Laplacian are 2 and 4: 1 - 2 alpha = -(1 - 4 alpha), and rho is its square.
    assert (alpha, rho) == (pytest.approx(1 / 3, abs=1e-4), pytest.approx(1 / 9, abs=1e-4))


@pytest.mark.parametrize("n", [257, 258])
def test_a_large_complete_graph_has_the_rounds_of_a_tournament(n):
    graph = topology.complete(n)
    matchings = matcha.decompose(graph)
    matcha.validate(graph, matchings)
    assert len(matchings) == n - 1 + n % 2 and {len(m) for m in matchings} == {n // 2}
    assert all(i < j for m in matchings for i, j in m)
