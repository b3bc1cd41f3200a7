"""Stability of gossip: growth or decay of the differences between workers without gradients.

An update without gradients is linear in the workers' arrays. Even if each mixing matrix contracts,
momentum or a method's corrections may drive workers apart.
"""

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import numpy as np
import scipy

EXACT = 32  # workers up to which eigenvalues are taken; beyond, updates are followed
UPDATES = 512  # updates that are followed, also where links do not repeat
TRANSIENT = 10.0  # transient growth that stable links may have in the second half
PAIRS = 64  # workers up to which second moments are followed on a graph that is not complete
MOMENTS = 200  # updates for these moments, at most

Step = Callable[..., Sequence[np.ndarray]]


def matrices(partners: np.ndarray, weights: np.ndarray, active: np.ndarray) -> list:
    """Return W [n, n], sparse, of every update: I + sum_m weights_m (P_m - I), m active.

    partners, weights: [M, n], as in `comms.gossip.pull`. active: [updates, M] bool.
    """
    workers = partners.shape[1]

    def of_row(used) -> Any:
        heard = partners[used].ravel(), weights[used].ravel()
        listeners = np.tile(np.arange(workers), used.sum())
        W = scipy.sparse.csr_array((heard[1], (listeners, heard[0])), (workers, workers))
        return W + scipy.sparse.diags_array(1 - W.sum(axis=1))

    found = {row.tobytes(): of_row(row) for row in np.unique(active, axis=0)}
    return [found[row.tobytes()] for row in active]


def radius(step: Step, arrays: int, mixed: Sequence, repeats: bool = True) -> float:
    """Return the spectral radius per update of differences between workers; they die away below 1.

    step: (mix, *arrays) -> arrays after an update without gradients, each [n, k]; mix: x -> W x.
    arrays: number of arrays of a worker. mixed: W [n, n] of the updates, which begin again if
    `repeats`. Exact up to EXACT workers; beyond, and without repeats, a bound from below by UPDATES
    updates of one random state, which misses growth below 1 % an update.
    """
    workers = mixed[0].shape[0]
    exact = repeats and workers <= EXACT and len(mixed) <= UPDATES
    size = arrays * workers
    state = np.eye(size) if exact else np.random.default_rng(0).standard_normal((size, 1))
    state = state.reshape(arrays, workers, -1)
    grown = []
    for update in range(len(mixed) if exact else UPDATES):
        W = mixed[update % len(mixed)]
        state = np.stack(step(W.__matmul__, *state))
        state -= state.mean(axis=1, keepdims=True)
        if not exact:
            grown.append(np.linalg.norm(state))
            if not grown[-1]:
                return 0.0
            state /= grown[-1]
    if exact:
        values = np.linalg.eigvals(state.reshape(size, size))
        return float(np.abs(values).max() ** (1 / len(mixed)))
    late = np.log(grown[UPDATES // 2 :])
    return float(np.exp((late.sum() - np.log(TRANSIENT)) / len(late)))


def radius_of_pairs(graph: nx.Graph, partners: np.ndarray, alpha: float, gamma: float) -> float:
    """Return the factor per update of E|d|^2 where pairs step with momentum.

    Pairs step by v <- alpha v - gamma (x - y) / 2 and x <- x + v; d is the difference of workers.
    partners: [M, n] matchings of `graph`, one of which is drawn for every update. On a complete
    graph the moments E x^2, E x v and E v^2 follow a 3 x 3 map. On others of up to PAIRS workers
    all moments between two workers are followed; larger graphs are treated as complete.
    """
    count, workers = partners.shape
    pull = gamma / 2
    if workers > PAIRS or 2 * graph.number_of_edges() == workers * (workers - 1):
        # The sum of (x - y)^2 over the workers is 2 apart times the sum of x^2.
        apart = workers / (workers - 1 + workers % 2)
        v = np.array([2 * apart * pull**2, -2 * apart * alpha * pull, alpha**2])
        xv = np.array([-apart * pull, alpha, 0])
        moments = np.array([[1, 0, 0] + 2 * xv + v, xv + v, v])
        return float(np.abs(np.linalg.eigvals(moments)).max())
    everyone = np.arange(workers)
    mean = np.zeros((workers, workers))
    np.add.at(mean, (np.broadcast_to(everyone, partners.shape), partners), 1 / count)
    mean -= np.eye(workers)  # of P - I
    xx, xv, vv = np.eye(workers) - 1 / workers, np.zeros_like(mean), np.zeros_like(mean)
    found = 0.0
    for _ in range(MOMENTS):
        met = xx[partners[:, :, None], partners[:, None, :]].mean(axis=0)
        moved, cross = mean @ xx, mean @ xv
        spread = met - xx - moved - moved.T  # E (P - I) x x' (P - I)'
        vv = alpha**2 * vv + alpha * pull * (cross + cross.T) + pull**2 * spread
        cross = alpha * xv + pull * moved.T  # E x v'
        xx, xv = xx + cross + cross.T + vv, cross + vv
        for moment in (xx, xv, vv):  # the mean's share from rounding would stay
            moment -= moment.mean(axis=0)
            moment -= moment.mean(axis=1, keepdims=True)
        before, found = found, np.trace(xx) + np.trace(vv)
        if not found or abs(found - before) <= 1e-7 * found:
            break
        xx, xv, vv = xx / found, xv / found, vv / found
    return float(found)


def largest(stable: Callable[[float], bool], least: int, above: float) -> float | None:
    """Return the largest stable multiple of 0.01, at least 0.01 `least`, found by bisection.

    above: an unstable value. Returns None if not even 0.01 `least` is stable.
    """
    low, high = least, int(np.ceil(100 * above))
    if low >= high or not stable(low / 100):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stable(middle / 100) else (low, middle)
    return low / 100
