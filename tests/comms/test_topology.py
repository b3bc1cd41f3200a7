"""Graphs by hand, from files, and refused in a sentence."""

import math

import networkx as nx
import numpy as np
import pytest

from comms import mixing, topology
from tests.refusals import refused


def edges(graph):
    return sorted(tuple(sorted(edge)) for edge in graph.edges)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (topology.ring(1), []),
        (topology.ring(2), [(0, 1)]),
        (topology.ring(4), [(0, 1), (0, 3), (1, 2), (2, 3)]),
        (topology.torus(1), []),
        (topology.torus(6), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (3, 5),
                             (4, 5)]),
        (topology.grid(6), [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]),
        (topology.complete(3), [(0, 1), (0, 2), (1, 2)]),
        (topology.star(4), [(0, 1), (0, 2), (0, 3)]),
        (topology.hypercube(4), [(0, 1), (0, 2), (1, 3), (2, 3)]),
        (topology.exponential(5), edges(nx.complete_graph(5))),
        (topology.edge_list(3, [(2, 1), (0, 1), (1, 2)]), [(0, 1), (1, 2)]),
    ],
)  # fmt: skip
def test_small_graphs(graph, expected):
    assert edges(graph) == expected
    assert list(graph.nodes) == list(range(len(graph)))


def test_regular_graphs_have_their_degree():
    for graph, degree in (
        (topology.torus(16), 4),
        (topology.hypercube(16), 4),
        (topology.exponential(16), 7),  # hops 1, 2, 4 both ways, hop 8 either way
        (topology.random_regular(16, 3, seed=0), 3),
    ):
        assert {d for _, d in graph.degree} == {degree}
    assert nx.diameter(topology.grid(36)) == 10  # the most square shape


def test_random_graphs_follow_their_seed():
    for draw in (
        lambda seed: topology.random_regular(16, 4, seed),
        lambda seed: topology.erdos_renyi(16, 0.4, seed),
        lambda seed: topology.geometric(16, 0.6, seed),
    ):
        assert edges(draw(1)) == edges(draw(1)) != edges(draw(2))


def test_matcha_graphs():
    for k in range(6):
        graph = topology.matcha_graph(k)
        matchings = graph.graph["matchings"]
        assert list(graph.nodes) == list(range(8 if k in (0, 5) else 16))
        assert graph.number_of_edges() == sum(map(len, matchings)) == [12, 22, 45, 65, 34, 8][k]
        assert len(matchings) == [5, 5, 10, 13, 8, 2][k]
        for matching in matchings:
            assert len({worker for edge in matching for worker in edge}) == 2 * len(matching)


test_errors_are_one_clear_sentence = refused(
    (lambda: topology.ring(0), "ring: needs at least 1 worker, got n=0"),
    (lambda: topology.torus(7), "torus: 7 workers are a prime .* set workers=8"),
    (lambda: topology.hypercube(12), "power of two, got n=12; set workers=8 or 16, or take"),
    (lambda: topology.random_regular(5, 3, seed=0), "n=5, degree=3"),
    (lambda: topology.random_regular(6, 1, seed=0), "falls into 3 components"),
    (lambda: topology.erdos_renyi(8, 1.5, seed=0), r"in \[0, 1\], got 1.5"),
    (lambda: topology.geometric(8, math.nan, seed=0), "positive radius, got nan"),
    (lambda: topology.edge_list(2, [(0, 2)]), r"\(0, 2\) does not link two of the workers"),
    (lambda: topology.matcha_graph(6), "base graphs 0 to 5, got k=6"),
)


test_a_graph_that_methods_cannot_use_is_refused_in_a_sentence = refused(
    ("ring", r"mine: needs an undirected networkx.Graph .*, got str; make one by"),
    (nx.DiGraph([(0, 1), (1, 0)]), "got DiGraph"),
    (nx.Graph(), "mine: needs at least 1 worker"),
    (nx.path_graph(range(1, 4)), "nodes must be the workers' numbers, 0 to 2, got 3; use"),
    (nx.path_graph([False, True]), "0 to 1, got False"),
    (nx.Graph([(0, 1), (1, 1)]), "mine: worker 1 has an edge to itself, .* remove it"),
    (nx.Graph([(0, 1, {"weight": 0.5})]), r"the edge \(0, 1\) has weight=0.5, .* mixing_"),
    (nx.Graph([(0, 1), (2, 3)]), "of 4 workers falls into 2 components, .* try more edges"),
    by=lambda graph: topology.check(graph, name="mine"),
)


FILES = {
    "zoo.graphml": (
        '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<graph edgedefault="directed"><node id="Oslo"/><node id="Bonn"/><node id="Riga"/>'
        '<edge source="Riga" target="Bonn"/><edge source="Bonn" target="Oslo"/>'
        '<edge source="Oslo" target="Bonn"/><edge source="Riga" target="Riga"/></graph></graphml>'
    ),
    "zoo.gml": (
        'graph [ node [ id 7 label "a" ] node [ id 9 label "a" ] node [ id 8 label "c" ] '
        "edge [ source 7 target 9 ] edge [ source 9 target 8 ] ]"
    ),
    "numbers.csv": "\ufeffsource,target,weight\n10,9,0.5\n9, 11,2\n",
    "names.txt": "# links\na b\n\nb;c  # the last\n",
    "blanks.csv": 'node 1,node 2\n"node 2", node 3, 0.5\n',
    "index.csv": ",source,target\n0,1,0\n1,0,2\n",
    "matrix.txt": "0 1 0\n1 0 1\n0 1 0\n",
    "weights.txt": "0 1 2\n1 2 0\n1 2 1\n",
}


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("zoo.graphml", [(0, 1), (1, 2)]),
        ("zoo.gml", [(0, 1), (1, 2)]),
        ("numbers.csv", [(0, 1), (0, 2)]),
        ("names.txt", [(0, 1), (1, 2)]),
        ("blanks.csv", [(0, 1), (1, 2)]),
        ("index.csv", [(0, 1), (0, 2)]),
        ("matrix.txt", [(0, 1), (1, 2)]),
        ("weights.txt", [(0, 1), (1, 2)]),
    ],
)
def test_a_graph_of_a_file_has_its_links(tmp_path, name, edges):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    graph = topology.from_file(3, str(tmp_path / name))
    assert sorted(graph.edges) == edges and list(graph) == [0, 1, 2]
    topology.check(graph, 3)
    with pytest.raises(ValueError, match="has 3 nodes, but there are 8 workers; set workers=3"):
        topology.from_file(8, str(tmp_path / name))


def test_a_matrix_of_a_file_is_a_graph_and_its_weights(tmp_path):
    graph = topology.ring(5)
    W = mixing.metropolis(graph)
    np.save(tmp_path / "W.npy", W)
    np.savetxt(tmp_path / "W.csv", W, delimiter=",")
    for name in ("W.npy", "W.csv"):
        path = str(tmp_path / name)
        assert nx.utils.edges_equal(topology.from_file(5, path).edges, graph.edges)
        np.testing.assert_array_equal(mixing.own(graph, mixing.weights(path)), W)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.graphml", "<graphml>", "a.graphml cannot be read as a graph"),
        ("a.csv", "a\nb\n", "'a' is no edge"),
        ("a.npy", "", "a.npy cannot be read as a graph"),
        ("a.json", '{"nodes": [0, 1], "links": []}', "'{.nodes.:' is no edge"),
        ("a.csv", "0,1,3,9\n1,2,4,9\n2,3,1,9\n3,0,9,9\n", "a matrix, but one that is not symm"),
        ("a.csv", ",a,b,c\na,0,1,1\nb,1,0,0\nc,1,0,0\n", "a matrix with names; leave out its firs"),
    ],
)
def test_a_file_that_is_no_graph_is_refused_in_a_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        topology.from_file(4, str(tmp_path / name))


def test_a_file_that_is_no_matrix_is_refused_in_a_sentence(tmp_path):
    for content, message in (
        ("1,2\n3\n", "cannot be read as a matrix"),
        ("1,2\n", r"of shape \(1, 2\)"),
        ("nan,1\n1,0\n", "where finite ones"),
    ):
        (tmp_path / "W.txt").write_text(content)
        with pytest.raises(ValueError, match=message):
            mixing.weights(str(tmp_path / "W.txt"))
