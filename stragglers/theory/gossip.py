"""Convergence of gossip: error bounds of D-PSGD and MATCHA, distances between Swarm's nodes.

Workers i = 1..n descend on f_i with gradients of variance at most `variance`, at a fixed rate eta.
Their mean x has the loss f = mean_i f_i, all f_i are L-smooth, and mean_i ||grad f_i - grad f||^2
is at most `heterogeneity`. The papers are X. Lian et al., D-PSGD, arXiv 1705.09056; J. Wang et al.,
MATCHA, 1905.09435; G. Nadiradze et al., SwarmSGD, 1910.12308. The arguments are theirs; constants
follow from the lines in the docstrings, and differ from the papers' constants.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Bound(NamedTuple):
    """Bound on the mean of E||grad f||^2 over the first K means of models, and its parts."""

    descent: np.ndarray  # of the start of training, 2 (f_0 - f*) / (eta K)
    noise: float  # by the mean of n gradients, eta L s^2 / n
    consensus: float  # by the distance between models

    @property
    def total(self) -> np.ndarray:
        """Sum of the three parts."""
        return self.descent + self.noise + self.consensus


def gossip_bound(
    updates: ArrayLike,
    rate: float,
    workers: int,
    rho: float,
    gap: float,
    *,
    smoothness: float,
    variance: float,
    heterogeneity: float = 0.0,
    mixed_last: bool = False,
) -> Bound:
    """Bound the mean of E||grad f(mean model)||^2 over K = `updates` updates, from equal models.

    rho: ||E[W'W] - J||, of D-PSGD `comms.mixing.rho`, of MATCHA that of
    `comms.matcha.mixing_weight`; gap: f_0 - f*; mixed_last: adapt then combine, else combine while
    adapting. With V the mean of E||x_i - x||^2 over workers and updates, c = rho if mixed last and
    1 otherwise,

        mean E||grad f(x)||^2 <= 2 gap / (eta K) + eta L s^2 / n + L^2 V     for eta L <= 1
        V <= 2 eta^2 c (s^2 / (1 - rho) + (2 h + 2 L^2 V) / (1 - sqrt(rho))^2)

    The first line is the descent lemma; the second follows from x_i - x = -eta sum_k G_k (prod W -
    J), in which common parts of gradients cancel. A rate for which neither holds raises ValueError.
    Source: the analyses of arXiv 1705.09056 and 1905.09435.
    """
    if not 0 <= rho < 1:
        raise ValueError(
            f"gossip_bound: needs 0 <= rho < 1, got {rho:g}; take a graph that connects all"
        )
    kept = rho if mixed_last else 1.0
    spread = 4 * rate**2 * smoothness**2 * kept / (1 - np.sqrt(rho)) ** 2
    if not (0 < rate * smoothness <= 1 and spread < 1):
        raise ValueError(
            f"gossip_bound: got rate={rate:g}, it holds below "
            f"{largest_rate(rho, smoothness, mixed_last):g}; take a smaller rate > 0"
        )
    noise = variance / (1 - rho) + 2 * heterogeneity / (1 - np.sqrt(rho)) ** 2
    apart = 2 * rate**2 * kept * noise / (1 - spread)
    return Bound(
        2 * gap / (rate * np.asarray(updates, float)),
        rate * smoothness * variance / workers,
        float(smoothness**2 * apart),
    )


def largest_rate(rho: float, smoothness: float, mixed_last: bool = False) -> float:
    """Return the rate up to which `gossip_bound` holds.

    eta L < (1 - sqrt(rho)) / (2 sqrt(c)), and <= 1.
    """
    kept = rho if mixed_last else 1.0
    mixing = (1 - np.sqrt(rho)) / (2 * np.sqrt(kept)) if kept else np.inf
    return float(min(1.0, mixing) / smoothness)


def linear_speedup_rate(
    updates: int, workers: int, gap: float, *, smoothness: float, variance: float
) -> float:
    """Return the rate that minimises the parts of `gossip_bound` that do not depend on the graph.

    sqrt(2 gap n / (K L s^2)): these parts are then sqrt(8 gap L s^2 / (n K)), n times fewer updates
    for n workers. The consensus term falls as n / K and is hidden from some K on, as Corollary 2 of
    arXiv 1705.09056 has it.
    """
    if not (updates >= 1 and variance > 0):
        raise ValueError(
            f"linear_speedup_rate: needs updates >= 1 and variance > 0, got {updates} and "
            f"{variance:g}; without noise take the largest rate"
        )
    return float(np.sqrt(2 * gap * workers / (updates * smoothness * variance)))


def swarm_distance_bound(
    meetings: ArrayLike,
    nodes: int,
    degree: int,
    connectivity: float,
    rate: float,
    *,
    steps: float,
    second_moment: float,
    steps_squared: float | None = None,
    blocking: bool = True,
    start: float = 0.0,
) -> np.ndarray:
    """Bound E[Gamma] = E sum_i ||x_i - x||^2 after some meetings over uniformly drawn edges.

    degree: r of a regular graph; connectivity: lambda_2 of its Laplacian; steps: H, local steps
    between meetings; steps_squared: E[H^2], by default H^2, and 2 H^2 - H if they are geometric;
    second_moment: M^2, which E||gradient||^2 nowhere exceeds; blocking: both nodes of a meeting
    bring their steps along, otherwise the one that asks, and Gamma is that of the public copies;
    start: Gamma before.

    Neighbours at the distances a and b from the mean, which have moved by u in all, change Gamma by
    -|a - b|^2 / 2 + (a + b) u + |u|^2 / 2 at most, or |u|^2 if one has moved. E|a - b|^2 is at
    least 2 lambda_2 Gamma / (r n), and half of that pays for (a + b) u, so that

        E[Gamma'] <= (1 - q) Gamma + B,   q = lambda_2 / (2 r n)
        B = eta^2 E[H^2] M^2 (2 + 8 r / lambda_2)   blocking
        B = eta^2 E[H^2] M^2 (1 + 2 r / lambda_2)   else

    and E[Gamma] stays below B / q, in O(n r^2 / lambda_2^2 eta^2 H^2 M^2). Source: the lemma on
    E[Gamma_t] of arXiv 1910.12308; its constants are larger.
    """
    if not (connectivity > 0 and degree >= 1 and nodes >= 2):
        raise ValueError(
            f"swarm_distance_bound: got {nodes} nodes of degree {degree} and lambda_2 = "
            f"{connectivity:g}; take a connected graph of at least 2 nodes"
        )
    moved = (steps**2 if steps_squared is None else steps_squared) * rate**2 * second_moment
    mixing = degree / connectivity
    added = (2 + 8 * mixing if blocking else 1 + 2 * mixing) * moved
    left = (1 - connectivity / (2 * degree * nodes)) ** np.asarray(meetings, float)
    return left * start + (1 - left) * added * 2 * nodes * mixing
