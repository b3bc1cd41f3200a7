"""Bounds of gossip against descents on f_i(x) = 1 - cos(x - b_i), 1-smooth and not convex."""

import networkx as nx
import numpy as np
import pytest

from comms import matcha, mixing, topology
from stragglers.theory import convergence
from stragglers.theory.gossip import (
    gossip_bound,
    largest_rate,
    linear_speedup_rate,
    swarm_distance_bound,
)

N, RUNS, UPDATES = 8, 300, 60
CENTRES = np.linspace(-0.7, 0.7, N)
NOISE = 0.5  # standard deviation
GRID = np.linspace(-np.pi, np.pi, 2001)[:, None]
SLOPES = np.sin(GRID - CENTRES)
HETEROGENEITY = SLOPES.var(axis=1).max()
LOSS = (1 - np.cos(GRID - CENTRES)).mean(axis=1)
START = 2.0
GAP = (1 - np.cos(START - CENTRES)).mean() - LOSS.min()
RING = topology.ring(N)


def descend(rate, matrices, mixed_last, seed):
    """(mean ||grad f||^2 at the mean model, mean squared distance to it); x [RUNS, N]."""
    rng = np.random.default_rng(seed)
    x = np.full((RUNS, N), START)
    gradients, distances = [], []
    for _ in range(UPDATES):
        mean = x.mean(axis=1, keepdims=True)
        gradients.append(np.mean(np.sin(mean - CENTRES).mean(axis=1) ** 2))
        distances.append(np.mean((x - mean) ** 2))
        step = rate * (np.sin(x - CENTRES) + NOISE * rng.normal(size=x.shape))
        W = matrices(rng)
        sent = x - step if mixed_last else x
        x = np.einsum("rij,rj->ri", W, sent) - (0.0 if mixed_last else step)
    return np.mean(gradients), np.mean(distances)


def fixed(W):
    return lambda rng: np.broadcast_to(W, (RUNS, N, N))


def of_matcha(budget):
    """(matrices of rounds, rho) as MATCHA draws them."""
    matchings = matcha.decompose(RING)
    p = matcha.activation_probabilities(matchings, N, budget)
    alpha, rho = matcha.mixing_weight(matchings, N, p)
    graphs = [nx.Graph() for _ in matchings]
    for graph, edges in zip(graphs, matchings, strict=True):
        graph.add_nodes_from(range(N))
        graph.add_edges_from(edges)
    laplacians = np.stack([mixing.laplacian(graph) for graph in graphs])

    def matrices(rng):
        active = rng.random((RUNS, len(p))) < p
        return np.eye(N) - alpha * np.einsum("rm,mij->rij", active, laplacians)

    return matrices, rho


METROPOLIS = mixing.metropolis(RING)
MIXERS = {
    "ring": (fixed(METROPOLIS), mixing.rho(METROPOLIS)),
    "matcha": of_matcha(0.5),
    "complete": (fixed(np.full((N, N), 1 / N)), 0.0),
}


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("mixed_last", [False, True])
def test_descents_stay_below_the_bound(name, mixed_last):
    matrices, rho = MIXERS[name]
    known = {"smoothness": 1.0, "variance": NOISE**2, "heterogeneity": HETEROGENEITY}
    for share in (0.3, 0.8):
        rate = share * min(0.5, largest_rate(rho, 1.0, mixed_last))
        bound = gossip_bound(UPDATES, rate, N, rho, GAP, mixed_last=mixed_last, **known)
        gradient, distance = descend(rate, matrices, mixed_last, seed=1)
        assert distance <= bound.consensus * (1 + 1e-9) + 1e-20  # L = 1
        assert gradient <= bound.total
        assert bound.total < 20 * gradient  # and says something
        if not mixed_last:
            assert bound.consensus < 100 * distance


def test_without_a_distance_it_is_the_bound_of_synchronous_sgd():
    """All models are equal after a complete mixing."""
    known = {"smoothness": 2.0, "variance": 3.0}
    ours = gossip_bound(40, 0.05, N, 0.0, 1.5, mixed_last=True, heterogeneity=9.0, **known)
    assert ours.consensus == 0
    assert ours.total == pytest.approx(convergence.gradient_bound(39, 0.05, N, 1.5, **known))


def test_worse_mixing_costs_more_and_workers_share_the_noise():
    known = {"smoothness": 1.0, "variance": 1.0, "heterogeneity": 0.1}
    totals = [gossip_bound(1000, 0.002, N, rho, 1.0, **known).total for rho in (0, 0.5, 0.9, 0.98)]
    assert (np.diff(totals) > 0).all()
    last = gossip_bound(1000, 0.002, N, 0.5, 1.0, mixed_last=True, **known)
    assert last.consensus < gossip_bound(1000, 0.002, N, 0.5, 1.0, **known).consensus
    for workers in (1, 4, 64):  # equal up to the consensus, which vanishes with the updates
        updates = 10**9 * workers**3
        rate = linear_speedup_rate(updates, workers, 1.0, smoothness=1.0, variance=1.0)
        total = gossip_bound(updates, rate, workers, 0.9, 1.0, **known).total
        assert total == pytest.approx(np.sqrt(8 / (workers * updates)), rel=0.3)


def test_rates_and_graphs_without_a_bound_are_refused():
    known = {"smoothness": 2.0, "variance": 1.0}
    with pytest.raises(
        ValueError, match=r"got rate=0\.3, it holds below 0\.125; take a smaller rate"
    ):
        gossip_bound(10, 0.3, N, 0.25, 1.0, **known)
    assert gossip_bound(10, 0.2, N, 0.25, 1.0, mixed_last=True, **known).total > 0
    with pytest.raises(ValueError, match="0 <= rho < 1, got 1; take a graph that connects all"):
        gossip_bound(10, 0.1, N, 1.0, 1.0, **known)
    with pytest.raises(ValueError, match="needs updates >= 1 and variance > 0"):
        linear_speedup_rate(10, N, 1.0, smoothness=1.0, variance=0.0)
    with pytest.raises(ValueError, match="take a connected graph of at least 2 nodes"):
        swarm_distance_bound(3, 4, 1, 0.0, 0.1, steps=1, second_moment=1.0)


def meet(graph, rate, steps, meetings, blocking, apart, seed):
    """[meetings] mean of Gamma over runs in which gradients of norm 1 push the nodes apart."""
    rng = np.random.default_rng(seed)
    edges = np.array(graph.edges)
    x = np.zeros((RUNS, len(graph)))
    runs = np.arange(RUNS)
    seen = []
    for _ in range(meetings):
        pair = edges[rng.integers(len(edges), size=RUNS)]
        pair = np.where(rng.random((RUNS, 1)) < 0.5, pair, pair[:, ::-1])
        mine = x[runs[:, None], pair]
        away = np.sign(mine - x.mean(axis=1, keepdims=True)) if apart else 0.0
        away = np.where(away == 0, rng.choice([-1.0, 1.0], mine.shape), away)
        number = steps(rng)[:, None]
        moved = rate * number * away * ([1.0, 1.0] if blocking else [1.0, 0.0])
        if blocking:
            x[runs[:, None], pair] = (mine + moved).mean(axis=1, keepdims=True)
        else:
            x[runs[:, None], pair] = mine.mean(axis=1, keepdims=True) + moved
        seen.append(np.mean(((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)))
    return np.array(seen)


@pytest.mark.few(3)
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("graph", [topology.ring(N), topology.complete(N), topology.hypercube(N)])
def test_nodes_do_not_drift_further_apart_than_the_bound(graph, blocking):
    graph = nx.convert_node_labels_to_integers(graph)
    degree = graph.degree[0]
    connectivity = np.linalg.eigvalsh(mixing.laplacian(graph))[1]
    laws = {
        "fixed": (lambda rng: np.full(RUNS, 3.0), 9.0),
        "geometric": (lambda rng: rng.geometric(1 / 3, RUNS).astype(float), 2 * 9.0 - 3),
    }
    for draw, squared in laws.values():
        for apart in (False, True):
            seen = meet(graph, 0.1, draw, 400, blocking, apart, seed=2)
            bound = swarm_distance_bound(
                np.arange(1, 401),
                N,
                degree,
                connectivity,
                0.1,
                steps=3.0,
                second_moment=1.0,
                steps_squared=squared,
                blocking=blocking,
            )
            assert (seen <= bound).all()
        assert bound[-1] < 100 * seen[-1]  # of gradients that push


def test_gossip_alone_contracts_at_least_as_fast_as_the_bound():
    """Exactly by 1 - 1 / (n - 1) on a complete graph; the bound has half of that gap."""
    nodes, degree, connectivity = N, N - 1, N
    left = swarm_distance_bound(
        [0, 1, 50], nodes, degree, connectivity, 0.1, steps=1, second_moment=0.0, start=3.0
    )
    assert left[0] == 3
    assert (left[1:] >= 3 * (1 - 1 / (N - 1)) ** np.array([1, 50])).all()
    assert left[1] == pytest.approx(3 * (1 - 1 / (2 * (N - 1))))
