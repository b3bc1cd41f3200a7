"""MATCHA: which matchings of a graph talk in which round, under a budget of communication.

Wang, Sahu, Yang, Joshi, Kar, "MATCHA: Speeding Up Decentralized SGD via Matching Decomposition
Sampling", arXiv 1905.09435. In round k matching j is active with probability p_j, and
W^(k) = I - alpha sum_j B_j^(k) L_j, where L_j is the Laplacian of matching j and one matching
costs one unit of time. The diagonal of W^(k) may be negative.
"""

from collections.abc import Sequence

import networkx as nx
import numpy as np
from scipy.optimize import linprog, minimize_scalar

from comms import mixing

Matching = Sequence[tuple[int, int]]

MOST_CUTS = 300  # rounds; graphs of 8 to 256 workers need fewer than 100 for the default tolerance


def activation_probabilities(
    matchings: Sequence[Matching], workers: int, budget: float, tolerance: float = 1e-6
) -> np.ndarray:
    """Probabilities p [M] that maximise lambda_2(sum_j p_j L_j) with sum_j p_j = M * budget.

    MATCHA's step 2. `budget` in (0, 1] is the share of the base graph's communication time.
    lambda_2 of the result is within the share `tolerance` of the optimum, certified by an upper
    bound; where several p are optimal, this is one of them. Raises ValueError for a budget out
    of range and for matchings that do not connect the workers.

    Method: lambda_2 is concave and equals the minimum of v' L(p) v over unit vectors v
    orthogonal to 1, so that every such v is a linear bound on it, a cut. A linear programme over
    all cuts gives the upper bound; the next cuts are taken half-way between its solution and the
    best p (Ben-Ameur and Neto, "Acceleration of cutting-plane and column generation algorithms",
    2007).
    """
    check_budget("activation_probabilities", budget)
    laplacians = _laplacians(matchings, workers)
    count = len(laplacians)
    if workers == 1:
        return np.zeros(count)
    everywhere = _low_modes(laplacians, np.ones(count))[0]
    if everywhere < 1e-9:
        raise ValueError(
            f"activation_probabilities: the {count} matchings together do not connect the "
            f"{workers} workers, so lambda_2 is 0 for every p; decompose a connected graph"
        )
    # The programme is in q = p / budget, with lambda_2 = 1 at q = 1: the tolerances of its solver
    # are absolute. More budget never lowers lambda_2, so all of it is spent: sum q = M.
    laplacians /= everywhere
    q = best = np.ones(count)
    lower = 0.0
    cuts = np.empty((0, count))
    limits = [(0, 1 / budget)] * count + [(0, None)]
    for _ in range(MOST_CUTS):
        value, modes = _low_modes(laplacians, q)
        if value > lower:
            lower, best = value, q
        cuts = np.concatenate([cuts, np.einsum("nk,jnm,mk->kj", modes, laplacians, modes)])
        programme = linprog(
            [0.0] * count + [-1.0],  # maximise the bound
            A_ub=np.column_stack([-cuts, np.ones(len(cuts))]),  # bound <= cut . q
            b_ub=np.zeros(len(cuts)),
            A_eq=[[1.0] * count + [0.0]],
            b_eq=[count],
            bounds=limits,
        )
        upper = programme.x[-1]
        if upper - lower <= tolerance * upper:
            return np.clip(budget * best, 0, 1)
        q = (best + programme.x[:-1]) / 2
    raise RuntimeError(
        f"activation_probabilities: lambda_2 still lies {upper / lower - 1:.1e} below its bound "
        f"after {MOST_CUTS} rounds of cuts; raise tolerance above that"
    )


def mixing_weight(
    matchings: Sequence[Matching], workers: int, p: np.ndarray
) -> tuple[float, float]:
    """Edge weight alpha that minimises rho = ||E[W'W] - J||_2 for matchings active with p [M].

    Returns (alpha, rho); since L_j^2 = 2 L_j,
    E[W'W] = I - 2 alpha Lbar + alpha^2 (Lbar^2 + 2 Ltilde) with Lbar = sum_j p_j L_j and
    Ltilde = sum_j p_j (1 - p_j) L_j. (0, 0) for a single worker.
    """
    if workers == 1:
        return 0.0, 0.0
    laplacians, p = _laplacians(matchings, workers), np.asarray(p, dtype=np.float64)
    if p.shape != (len(laplacians),) or not np.all((p >= 0) & (p <= 1)) or not p.any():
        raise ValueError(
            f"mixing_weight: needs {len(laplacians)} probabilities in [0, 1], not all 0, got {p}; "
            "use activation_probabilities"
        )
    linear = np.tensordot(p, laplacians, 1)
    quadratic = linear @ linear + 2 * np.tensordot(p * (1 - p), laplacians, 1)
    centred = np.eye(workers) - 1 / workers

    def contraction(alpha: float) -> float:
        moment = centred - 2 * alpha * linear + alpha**2 * quadratic
        return float(np.linalg.eigvalsh(moment)[-1])

    # rho is convex in alpha, and at least 1 again from 2 / lambda_n(Lbar) on.
    most = 2 / np.linalg.eigvalsh(linear)[-1]
    search = minimize_scalar(
        contraction, bounds=(0, most), method="bounded", options={"xatol": 1e-10}
    )
    return float(search.x), float(search.fun)


def activations(p: np.ndarray, updates: int, seed: int | Sequence[int]) -> np.ndarray:
    """Which matchings are active in which update, bool [updates, M], Bernoulli(p_j) each.

    Depends on (p, seed) only, so that all workers agree, and a longer schedule begins with the
    shorter one.
    """
    return np.random.default_rng(seed).random((updates, len(p))) < np.asarray(p)


def vanilla(graph: nx.Graph) -> tuple[float, float]:
    """(alpha, rho) of D-PSGD with all links active in every round and the best equal weight."""
    return mixing.best_step(graph), mixing.rho(mixing.best_constant(graph))


def periodic_rho(budget: float, rho_vanilla: float) -> float:
    """rho of the whole graph active with probability `budget`: 1 - budget (1 - rho_vanilla)."""
    check_budget("periodic_rho", budget)
    return 1 - budget * (1 - rho_vanilla)


def check_budget(name: str, budget: float) -> None:
    """Refuse a budget outside (0, 1]; `name` says whose it is."""
    if not 0 < budget <= 1:
        raise ValueError(
            f"{name}: the budget is a share of the communication in (0, 1], got {budget}; "
            "use 1 for all links in every round"
        )


def _laplacians(matchings: Sequence[Matching], workers: int) -> np.ndarray:
    """Laplacian of every matching, [M, n, n]."""
    laplacians = np.zeros((len(matchings), workers, workers))
    for L, matching in zip(laplacians, matchings, strict=True):
        for i, j in matching:
            L[[i, j], [i, j]] += 1
            L[[i, j], [j, i]] -= 1
    return laplacians


def _low_modes(laplacians: np.ndarray, p: np.ndarray) -> tuple[float, np.ndarray]:
    """lambda_2 of L(p) and the orthonormal eigenvectors [n, k] that may hold it nearby."""
    L = np.tensordot(p, laplacians, 1)
    # Moves the constant vector, eigenvalue 0, above all others: trace(L) >= lambda_n.
    values, vectors = np.linalg.eigh(L + 2 * np.trace(L) / len(L))
    # At the optimum lambda_2 is often multiple; one cut at a time would find its eigenspace slowly.
    near = values <= 1.5 * values[0] + 1e-12
    return float(values[0]), vectors[:, near]
