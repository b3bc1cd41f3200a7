"""Random draws of nodes in pair schedules: their partners, and the local steps before.

A draw depends on the node and on how often it has drawn before, never on time.
"""

from collections.abc import Callable

import networkx as nx
import numpy as np
import scipy

from stragglers.streams import addressed

PARTNERS, STEPS = 2, 3  # streams of random numbers; processes have no stream and 1

Draw = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, round -> int


def neighbour(name: str, graph: nx.Graph, asks: np.ndarray, seed: int) -> Draw:
    """Draw partners by the weights of a node's edges; a node that never asks meets itself."""
    edges = [
        (i, j, links[j].get("weight", 1.0) if asks[i] else 1.0)
        for i, links in ((i, graph[i]) for i in range(len(graph)))
        for j in (sorted(links) if asks[i] else [i])
    ]
    node, partner, weight = (np.array(column) for column in zip(*edges, strict=True))
    partner = partner.astype(np.int32)
    usable = np.isfinite(weight) & (weight > 0)
    if not usable.all():
        raise ValueError(
            f"{name}: needs positive weights of edges, got {weight[~usable][0]}; remove such an "
            "edge"
        )
    start = np.searchsorted(node, np.arange(len(graph) + 1))  # first edge of each node
    degree, shares = np.diff(start), np.ones(len(weight))
    for d in np.unique(degree):  # the last edge of a node has the rest up to 1
        edges = start[:-1][degree == d, None] + np.arange(d)
        sums = weight[edges].sum(axis=1, keepdims=True)
        shares[edges[:, :-1]] = np.cumsum(weight[edges[:, :-1]], axis=1) / sums
    halvings = int(degree.max() - 1).bit_length()
    uniform = addressed(seed, PARTNERS)

    def drawn(worker: np.ndarray, count: np.ndarray) -> np.ndarray:
        worker, count = np.asarray(worker), np.asarray(count)
        u = uniform(worker, count)
        low, high = start[worker], start[worker + 1] - 1  # the first share above u is between them
        for _ in range(halvings):
            middle = (low + high) // 2
            under = shares[middle] <= u
            low = np.where(under, middle + 1, low)
            high = np.where(under, high, middle)
        return partner[np.broadcast_to(low, u.shape)]

    return drawn


def _fixed(name: str, mean: float, most: int, seed: int) -> Draw:
    """Return a draw of always `mean` local steps."""
    if not 1 <= mean <= most or mean != int(mean):
        raise ValueError(
            f"{name}: needs a whole number 1 <= local_steps <= mini_batches={most}, got {mean}; "
            "set one in this range"
        )
    return lambda worker, count: np.full(np.broadcast(worker, count).shape, int(mean))


def _geometric(name: str, mean: float, most: int, seed: int) -> Draw:
    """Return a draw of geometric local steps, capped at `most`, with mean `mean` after the cap."""
    if not (1 <= mean < most or mean == most == 1):
        raise ValueError(
            f"{name}: needs 1 <= local_steps < mini_batches={most} for geometric steps, which "
            f"are capped there, got {mean}; set fewer local_steps or more mini_batches"
        )
    # sum_{h < M} (1 - p)^h is the mean of a geometric number that is capped at M.
    root = scipy.optimize.brentq
    stay = root(lambda q: sum(q**h for h in range(most)) - mean, 0.0, 1.0, xtol=1e-14)
    uniform = addressed(seed, STEPS)

    def drawn(worker: np.ndarray, count: np.ndarray) -> np.ndarray:
        worker, count = np.broadcast_arrays(worker, count)
        with np.errstate(divide="ignore"):  # stay = 0 always gives one step
            longer = np.log1p(-uniform(worker, count)) / np.log(stay)
        return 1 + np.minimum(longer, most - 1).astype(np.int64)

    return drawn


# draws of a round's number of local steps: (name, mean, most, seed) -> Draw
STEP_DRAWS: dict[str, Callable[..., Draw]] = {"fixed": _fixed, "geometric": _geometric}
CONSTANT = (_fixed,)  # all rounds of these have the mean
