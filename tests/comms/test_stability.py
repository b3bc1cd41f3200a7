"""Growth without gradients against eigenvalues of whole maps, written out."""

import numpy as np
import pytest

from comms import edge_colouring, rounds, stability, topology


def map_of_pairs(partner, alpha, gamma):
    """(x, v) -> the next, [2n, 2n], where every worker meets its partner."""
    n = len(partner)
    apart = np.eye(n)[partner] - np.eye(n)
    velocity = np.hstack([gamma / 2 * apart, alpha * np.eye(n)])
    whole = np.vstack([velocity + np.eye(n, 2 * n), velocity])
    return np.kron(np.eye(2), np.eye(n) - 1 / n) @ whole


@pytest.mark.parametrize(
    ("name", "workers", "alpha", "gamma"),
    [("star", 5, 0.8, 0.9), ("ring", 5, 0.5, 2.1), ("complete", 4, 0.5, 1.2)],
)
def test_second_moments_of_random_pairs(name, workers, alpha, gamma):
    graph = topology.GRAPHS[name](workers)
    matchings = edge_colouring.decompose(graph)
    partners = np.array([edge_colouring.partners(edges, workers) for edges in matchings])
    maps = [map_of_pairs(partner, alpha, gamma) for partner in partners]
    whole = np.mean([np.kron(one, one) for one in maps], axis=0)
    expected = np.abs(np.linalg.eigvals(whole)).max()
    found = stability.radius_of_pairs(graph, partners, alpha, gamma)
    assert found == pytest.approx(expected, rel=1e-4)


def corrected(mix, x, c):
    """Make an update of exact diffusion."""
    return (x + c + mix(x + c)) / 2, (c - x + mix(x + c)) / 2


def mixed(graph):
    """W [n, n] of the rounds, sparse."""
    turn = graph.graph["rounds"]
    partners, weights = (
        np.concatenate(part) for part in zip(*((r.partners, r.weights) for r in turn), strict=True)
    )
    of = np.repeat(np.arange(len(turn)), [len(one.partners) for one in turn])
    return stability.matrices(partners, weights, np.arange(len(turn))[:, None] == of)


@pytest.mark.parametrize("graph", [topology.base_k(7), topology.equi_dyn(9, seed=3)])
def test_a_radius_is_that_of_the_product_over_a_period(graph):
    n, found = len(graph), mixed(graph)
    product, centred = np.eye(2 * n), np.kron(np.eye(2), np.eye(n) - 1 / n)
    for one, W in zip(graph.graph["rounds"], found, strict=True):
        np.testing.assert_allclose(W.toarray(), rounds.matrix(one), atol=1e-12)
        half = (np.eye(n) + rounds.matrix(one)) / 2
        product = centred @ np.block([[half, half], [half - np.eye(n), half]]) @ product
    expected = np.abs(np.linalg.eigvals(product)).max() ** (1 / len(found))
    assert stability.radius(corrected, 2, found) == pytest.approx(expected, rel=1e-6)


def test_the_largest_stable_hundredth():
    assert stability.largest(lambda value: value < 0.4321, 0, 0.9) == 0.43
    assert stability.largest(lambda value: value < 0.89999, 0, 0.9) == 0.89
    assert stability.largest(lambda value: False, 1, 0.9) is None
