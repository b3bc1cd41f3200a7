"""Matchings of graphs, and MATCHA's probabilities and weights beside the published ones."""

import itertools

import networkx as nx
import numpy as np
import pytest

from comms import edge_colouring, matcha, mixing, topology
from tests.refusals import refused


def check(graph):
    """Validate a decomposition independently of `validate` and return its matchings."""
    matchings = edge_colouring.decompose(graph)
    edges = sorted(edge for found in matchings for edge in found)
    assert edges == sorted(tuple(sorted(edge)) for edge in graph.edges)
    for found in matchings:
        assert found
        assert len({worker for edge in found for worker in edge}) == 2 * len(found)
    most = max((d for _, d in graph.degree), default=0)
    assert len(matchings) <= most + (not nx.is_bipartite(graph))
    edge_colouring.validate(graph, matchings)
    return matchings


def test_random_graphs_and_all_of_up_to_six_nodes():
    for graph in nx.graph_atlas_g()[1:209]:
        check(graph)
    for seed in range(100):
        print("seed", seed)  # seen where one fails
        rng = np.random.default_rng(seed)
        check(nx.gnp_random_graph(int(rng.integers(1, 25)), rng.random(), seed=seed))


@pytest.mark.parametrize(
    "graph",
    [topology.ring(64), topology.torus(64), topology.hypercube(32), topology.complete(33),
     nx.complete_bipartite_graph(7, 5), nx.random_regular_graph(8, 30, seed=0)],
)  # fmt: skip
def test_larger_graphs_whatever_the_order_of_insertion(graph):
    matchings = check(graph)
    edges = [(j, i) for i, j in graph.edges]
    np.random.default_rng(0).shuffle(edges)
    again = nx.Graph()
    again.add_nodes_from(reversed(range(len(graph))))
    again.add_edges_from(edges)
    assert edge_colouring.decompose(again) == matchings


def test_ring_of_four_by_hand():
    assert edge_colouring.decompose(topology.ring(4)) == [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]
    assert edge_colouring.decompose(topology.ring(1)) == []


@pytest.mark.parametrize("graph", [nx.cycle_graph(64), nx.gnp_random_graph(60, 0.2, seed=3)])
def test_large_graphs_take_the_colours_that_are_left(graph, monkeypatch):
    expected = edge_colouring.decompose(graph)
    monkeypatch.setattr(edge_colouring, "COLOURED", 8)
    found = check(graph)
    if nx.is_bipartite(graph):
        assert found == expected


@pytest.mark.parametrize("n", [9, 10])
def test_a_large_complete_graph_has_the_rounds_of_a_tournament(n, monkeypatch):
    monkeypatch.setattr(edge_colouring, "COLOURED", 8)
    matchings = check(topology.complete(n))
    assert len(matchings) == n - 1 + n % 2 and {len(m) for m in matchings} == {n // 2}
    assert all(i < j for m in matchings for i, j in m)


test_validate_names_what_is_wrong = refused(
    ([[(0, 1), (2, 3)], [(1, 2)]], r"1 edges are in none of them, first \(0, 3\)"),
    ([[(0, 1), (1, 2)], [(2, 3), (0, 3)]], "matching 0: worker 1 has two partners"),
    (
        [[(0, 1), (2, 3)], [(1, 2), (0, 3)], [(1, 0)]],
        r"matching 2: edge \(1, 0\) appears twice",
    ),
    ([[(0, 2)]], r"matching 0: \(0, 2\) is not an edge"),
    by=lambda matchings: edge_colouring.validate(topology.ring(4), matchings),
)


def test_partners_by_hand():
    np.testing.assert_array_equal(edge_colouring.partners([(0, 3), (1, 4)], 6), [3, 4, 2, 0, 1, 5])
    for edges, message in (
        ([(0, 3)], r"\(0, 3\) does not pair two of the workers 0..2"),
        ([(1, 1)], r"\(1, 1\) does not pair"),
        ([(0, 1), (1, 2)], "worker 1 has two partners"),
    ):
        with pytest.raises(ValueError, match=message):
            edge_colouring.partners(edges, 3)
    with pytest.raises(ValueError, match="relabel the nodes, remove the loops"):
        edge_colouring.decompose(nx.Graph([(0, 1), (1, 1)]))


# --- MATCHA ---

# (graph, budget): lambda_2, alpha, rho, rho of the periodic baseline, by the public code's own
# semidefinite programme on its base graphs.
GOLDEN = {
    (0, 0.1): (0.1122, 0.56207, 0.93679),
    (0, 0.2): (0.2245, 0.59156, 0.85769),
    (0, 0.5): (0.5612, 0.39643, 0.64398),
    (0, 0.6): (0.6571, 0.36559, 0.57727),
    (0, 1.0): (0.67, 0.28571, 0.65378),
    (4, 0.1): (0.1385, 0.55494, 0.92237),
    (4, 0.5): (0.6678, 0.28309, 0.67554),
    (5, 0.5): (0.2929, 0.60737, 0.78391),
}


def laplacian(matchings, workers, p):
    """sum_j p_j L_j, edge by edge."""
    L = np.zeros((workers, workers))
    for weight, found in zip(p, matchings, strict=True):
        for i, j in found:
            e = np.eye(workers)[i] - np.eye(workers)[j]
            L += weight * np.outer(e, e)
    return L


def lambda_2(matchings, workers, p):
    return np.linalg.eigvalsh(laplacian(matchings, workers, p))[1]


@pytest.mark.parametrize(("k", "budget"), GOLDEN)
def test_reference_graphs(k, budget):
    graph = topology.matcha_graph(k)
    matchings = graph.graph["matchings"]
    p = matcha.activation_probabilities(matchings, len(graph), budget)
    alpha, rho = matcha.mixing_weight(matchings, len(graph), p)
    assert ((p >= 0) & (p <= 1)).all() and p.sum() <= len(p) * budget * (1 + 1e-9)
    found = lambda_2(matchings, len(graph), p), alpha, rho
    np.testing.assert_allclose(found, GOLDEN[k, budget], atol=1e-4)


def test_all_links_active_are_best_mixed_by_equal_weights_as_in_the_public_code():
    graph = topology.matcha_graph(4)
    alpha, rho = matcha.mixing_weight(graph.graph["matchings"], 16, np.ones(8))
    assert (alpha, rho) == pytest.approx((0.193069, 0.713048), abs=1e-6)
    assert alpha == pytest.approx(mixing.best_step(graph), abs=1e-6)
    assert rho == pytest.approx(mixing.rho(mixing.best_constant(graph)), abs=1e-9)


def test_rho_is_the_second_moment_over_all_outcomes():
    graph = topology.ring(5)
    matchings = edge_colouring.decompose(graph)
    p = np.array([0.9, 0.5, 0.3])
    alpha, rho = matcha.mixing_weight(matchings, 5, p)
    moment = np.zeros((5, 5))
    for active in itertools.product([0, 1], repeat=3):
        W = np.eye(5) - alpha * laplacian(matchings, 5, active)
        moment += np.prod(np.where(active, p, 1 - p)) * W.T @ W
    assert np.linalg.norm(moment - 1 / 5, 2) == pytest.approx(rho, abs=1e-12)


def test_single_link_and_single_worker():
    np.testing.assert_allclose(matcha.activation_probabilities([[(0, 1)]], 2, 0.3), [0.3])
    # E[W'W] - J has the one eigenvalue 1 - .3 * 4a(1 - a): least at a = 1/2.
    assert matcha.mixing_weight([[(0, 1)]], 2, [0.3]) == pytest.approx((0.5, 0.7))
    assert matcha.activation_probabilities([], 1, 0.3).shape == (0,)
    assert matcha.mixing_weight([], 1, []) == (0, 0)


def test_activations():
    p = np.array([0.0, 0.25, 0.8, 1.0])
    active = matcha.activations(p, 4000, seed=7)
    assert active.dtype == bool
    assert active.shape == (4000, 4)
    np.testing.assert_array_equal(active, matcha.activations(p, 4000, seed=7))
    np.testing.assert_array_equal(active[:10], matcha.activations(p, 10, seed=7))
    assert (active != matcha.activations(p, 4000, seed=8)).any()
    # Five standard deviations of a mean of 4000 draws.
    np.testing.assert_allclose(active.mean(axis=0), p, atol=5 * 0.5 / np.sqrt(4000))
    assert not active[:, 0].any()
    assert active[:, 3].all()


def test_what_makes_no_sense_is_refused():
    for budget in (0, 1.01, float("nan")):
        with pytest.raises(ValueError, match=r"communication in \(0, 1\], got"):
            matcha.activation_probabilities([[(0, 1)]], 2, budget)
    with pytest.raises(ValueError, match="2 matchings together do not connect the 4 workers"):
        matcha.activation_probabilities([[(0, 1)], [(2, 3)]], 4, 0.5)
    for p in ([0.5], [0.0, 0.0], [0.5, 1.2], [0.5, float("nan")]):
        with pytest.raises(ValueError, match="needs 2 probabilities in"):
            matcha.mixing_weight([[(0, 1)], [(1, 2)]], 3, p)


def test_a_budget_in_seconds_is_spent_as_well_as_a_grid_can(monkeypatch):
    matchings, budget = edge_colouring.decompose(topology.complete(4)), 0.4
    seconds = np.array([1.0, 4.0, 2.0])
    one, two = np.meshgrid(*[np.linspace(0, 1, 101)] * 2)
    three = (budget * seconds.sum() - one * seconds[0] - two * seconds[1]) / seconds[2]
    grid = np.stack([one, two, three], axis=-1)[(three >= 0) & (three <= 1)]
    laplacians = np.stack([laplacian([found], 4, [1.0]) for found in matchings])
    best = np.linalg.eigvalsh(np.tensordot(grid, laplacians, 1))[:, 1].max()
    p = matcha.activation_probabilities(matchings, 4, budget, seconds=seconds)
    assert p @ seconds == pytest.approx(budget * seconds.sum())
    assert best * (1 - 1e-6) <= lambda_2(matchings, 4, p) <= best * 1.02
    plain = matcha.activation_probabilities(matchings, 4, budget)
    alike = matcha.activation_probabilities(matchings, 4, budget, seconds=[0.3] * 3)
    np.testing.assert_array_equal(alike, plain)
    assert lambda_2(matchings, 4, plain) < 0.9 * best
    monkeypatch.setattr(matcha, "SMALL", 2)
    quick = matcha.activation_probabilities(matchings, 4, budget, seconds=seconds)
    assert lambda_2(matchings, 4, quick) >= (1 - matcha.CLOSE) * best
    for bad in ([1.0, 2.0], [1.0, 0.0, 1.0]):
        with pytest.raises(ValueError, match="needs 3 positive, finite seconds"):
            matcha.activation_probabilities(matchings, 4, budget, seconds=bad)


UNEVEN = topology.erdos_renyi(20, 0.2, seed=3)  # whose matchings are not alike


@pytest.mark.parametrize("graph", [topology.torus(36), topology.complete(12), UNEVEN])
def test_what_is_quick_for_many_workers_agrees_with_what_is_exact_for_few(graph, monkeypatch):
    matchings, workers, budget = edge_colouring.decompose(graph), len(graph), 0.3
    exact = matcha.activation_probabilities(matchings, workers, budget)
    weight = matcha.mixing_weight(matchings, workers, exact)
    monkeypatch.setattr(matcha, "SMALL", 2)
    quick = matcha.activation_probabilities(matchings, workers, budget)
    best, found = (lambda_2(matchings, workers, p) for p in (exact, quick))
    assert found >= (1 - matcha.CLOSE) * best
    assert quick.sum() <= budget * len(matchings) + 1e-6 and quick.min() >= 0
    assert (np.ptp(exact) > 0.1) == (graph is UNEVEN)
    again = matcha.mixing_weight(matchings, workers, exact)
    assert again == pytest.approx(weight, abs=1e-5)
    assert again[1] == pytest.approx(weight[1], abs=1e-8)
