import itertools

import numpy as np
import pytest

from comms import matcha, mixing, topology
from comms.topology import matcha_matchings

# (graph, budget): lambda_2, alpha, rho, rho of the periodic baseline, by the public code's own
# semidefinite programme on its base graphs.
GOLDEN = {
    (0, 0.1): (0.1122, 0.56207, 0.93679, 0.96538),
    (0, 0.2): (0.2245, 0.59156, 0.85769, 0.93076),
    (0, 0.5): (0.5612, 0.39643, 0.64398, 0.82689),
    (0, 0.6): (0.6571, 0.36559, 0.57727, 0.79227),
    (0, 1.0): (0.67, 0.28571, 0.65378, 0.65378),
    (4, 0.1): (0.1385, 0.55494, 0.92237, 0.9713),
    (4, 0.5): (0.6678, 0.28309, 0.67554, 0.85652),
    (5, 0.5): (0.2929, 0.60737, 0.78391, 0.77716),
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
    matchings, graph = matcha_matchings(k), topology.matcha_graph(k)
    expected = GOLDEN[k, budget]
    p = matcha.activation_probabilities(matchings, len(graph), budget)
    alpha, rho = matcha.mixing_weight(matchings, len(graph), p)
    rho_periodic = matcha.periodic_rho(budget, matcha.vanilla(graph)[1])
    found = lambda_2(matchings, len(graph), p), alpha, rho, rho_periodic
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("k", "alpha", "rho"),
    [(0, 0.285714, 0.653777), (4, 0.193069, 0.713048), (5, 0.43613, 0.554311)],
)
def test_vanilla(k, alpha, rho):
    assert matcha.vanilla(topology.matcha_graph(k)) == pytest.approx((alpha, rho), abs=1e-6)


GRAPHS = [
    topology.ring(7),
    topology.star(6),
    topology.complete(9),
    topology.matcha_graph(2),
    topology.geometric(24, 0.4, seed=0),
]


@pytest.mark.few(4)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("budget", [0.001, 0.3])
def test_probabilities_spend_the_budget_and_beat_others(graph, budget):
    matchings, workers = matcha.decompose(graph), len(graph)
    p = matcha.activation_probabilities(matchings, workers, budget)
    assert ((p >= 0) & (p <= 1)).all()
    assert p.sum() == pytest.approx(len(p) * budget)
    best = lambda_2(matchings, workers, p)
    rng = np.random.default_rng(0)
    for other in [np.ones(len(p)), *rng.exponential(size=(20, len(p)))]:
        q = np.minimum(1, other * len(p) * budget / other.sum())
        assert lambda_2(matchings, workers, q) <= best * (1 + 2e-6)


@pytest.mark.slow
def test_optimum_of_three_matchings_by_exhaustion():
    matchings = matcha.decompose(topology.grid(6))[:3]
    p = matcha.activation_probabilities(matchings, 6, 0.5)
    grid = np.linspace(0, 1, 101)
    best = max(
        lambda_2(matchings, 6, (a, b, 1.5 - a - b))
        for a, b in itertools.product(grid, grid)
        if 0 <= 1.5 - a - b <= 1
    )
    assert best <= lambda_2(matchings, 6, p) * (1 + 2e-6)
    assert best == pytest.approx(lambda_2(matchings, 6, p), rel=0.02)


@pytest.mark.slow
def test_large_graph():
    graph = topology.random_regular(64, 8, seed=0)
    matchings = matcha.decompose(graph)
    p = matcha.activation_probabilities(matchings, 64, 0.5)
    uniform = lambda_2(matchings, 64, np.full(len(p), 0.5))
    assert uniform < lambda_2(matchings, 64, p)
    assert matcha.mixing_weight(matchings, 64, p)[1] < 1


def test_rho_is_the_second_moment_over_all_outcomes():
    graph = topology.ring(5)
    matchings = matcha.decompose(graph)
    p = np.array([0.9, 0.5, 0.3])
    alpha, rho = matcha.mixing_weight(matchings, 5, p)
    moment = np.zeros((5, 5))
    for active in itertools.product([0, 1], repeat=3):
        W = np.eye(5) - alpha * laplacian(matchings, 5, active)
        moment += np.prod(np.where(active, p, 1 - p)) * W.T @ W
    assert np.linalg.norm(moment - 1 / 5, 2) == pytest.approx(rho, abs=1e-12)


def test_all_links_active_is_vanilla():
    graph = topology.matcha_graph(4)
    alpha, rho = matcha.mixing_weight(matcha_matchings(4), 16, np.ones(8))
    assert alpha == pytest.approx(mixing.best_step(graph), abs=1e-6)
    assert rho == pytest.approx(mixing.rho(mixing.best_constant(graph)), abs=1e-9)


def test_single_link_and_single_worker():
    np.testing.assert_allclose(matcha.activation_probabilities([[(0, 1)]], 2, 0.3), [0.3])
    # E[W'W] - J has the one eigenvalue 1 - .3 * 4a(1 - a): least at a = 1/2.
    assert matcha.mixing_weight([[(0, 1)]], 2, [0.3]) == pytest.approx((0.5, 0.7))
    assert matcha.activation_probabilities([], 1, 0.3).shape == (0,)
    assert matcha.mixing_weight([], 1, []) == (0, 0)
    assert matcha.vanilla(topology.ring(1)) == (0, 0)


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


@pytest.mark.parametrize("budget", [0, -0.1, 1.01, float("nan")])
def test_budget_out_of_range(budget):
    with pytest.raises(ValueError, match=r"communication in \(0, 1\], got"):
        matcha.activation_probabilities([[(0, 1)]], 2, budget)
    with pytest.raises(ValueError, match="periodic_rho"):
        matcha.periodic_rho(budget, 0.5)


def test_disconnected_matchings():
    with pytest.raises(ValueError, match="2 matchings together do not connect the 4 workers"):
        matcha.activation_probabilities([[(0, 1)], [(2, 3)]], 4, 0.5)


@pytest.mark.parametrize("p", [[0.5], [0.0, 0.0], [0.5, 1.2], [0.5, float("nan")]])
def test_mixing_weight_refuses_what_are_no_probabilities(p):
    with pytest.raises(ValueError, match="needs 2 probabilities in"):
        matcha.mixing_weight([[(0, 1)], [(1, 2)]], 3, p)


@pytest.mark.slow
def test_tolerance_out_of_reach():
    with pytest.raises(RuntimeError, match="raise tolerance"):
        matcha.activation_probabilities(matcha_matchings(0), 8, 0.5, tolerance=-1.0)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "graph",
    [
        topology.ring(32),
        topology.torus(36),
        topology.erdos_renyi(40, 0.2, 0),
        topology.complete(12),
    ],
)
def test_what_is_quick_for_many_workers_agrees_with_what_is_exact_for_few(graph, monkeypatch):
    matchings, workers = matcha.decompose(graph), len(graph)
    for budget in (0.3, 0.8):
        exact = matcha.activation_probabilities(matchings, workers, budget)
        weight = matcha.mixing_weight(matchings, workers, exact)
        with monkeypatch.context() as patch:
            patch.setattr(matcha, "SMALL", 2)
            quick = matcha.activation_probabilities(matchings, workers, budget)
            again = matcha.mixing_weight(matchings, workers, exact)
        of = [np.linalg.eigvalsh(_sum(matchings, workers, p))[1] for p in (exact, quick)]
        assert of[1] >= (1 - matcha.CLOSE) * of[0]
        assert quick.sum() <= budget * len(matchings) + 1e-6 and quick.min() >= 0
        assert again == pytest.approx(weight, abs=1e-5)
        assert again[1] == pytest.approx(weight[1], abs=1e-8)


def _sum(matchings, workers, p):
    L = np.zeros((workers, workers))
    for share, edges in zip(p, matchings, strict=True):
        for i, j in edges:
            L[[i, j], [i, j]] += share
            L[[i, j], [j, i]] -= share
    return L


def test_matchings_of_hundreds_of_workers_that_are_alike_are_active_alike():
    for graph in (topology.ring(256), topology.complete(200)):
        matchings = matcha.decompose(graph)
        p = matcha.activation_probabilities(matchings, len(graph), 0.5)
        np.testing.assert_allclose(p, 0.5, atol=1e-3)  # all matchings are alike
        assert 0 < matcha.mixing_weight(matchings, len(graph), p)[1] < 1
