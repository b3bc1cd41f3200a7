"""MATCHA, which draws active matchings of a graph under a communication budget.

In round k matching j is active with probability p_j, and W^(k) = I - alpha sum_j B_j^(k) L_j, where
L_j is the Laplacian of matching j, see `comms.edge_colouring` (Wang et al., arXiv 1905.09435). The
diagonal of W^(k) may be negative.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy

from comms.edge_colouring import Edge

Edges = Sequence[Edge]

MOST_CUTS = 300  # rounds; graphs of 8 to 256 workers need fewer than 100
SMALL = 64  # workers up to which dense matrices are quick
EXACT, CLOSE = 1e-6, 1e-3  # tolerances up to SMALL workers, and beyond
MOST_MODES = 16  # cuts of a round, beyond SMALL workers


def activation_probabilities(
    matchings: Sequence[Edges],
    workers: int,
    budget: float,
    seconds: Sequence[float] | None = None,
) -> np.ndarray:
    """Find probabilities p [M] that maximise lambda_2(sum_j p_j L_j) with sum_j p_j = M * budget.

    MATCHA's step 2. `budget` in (0, 1] is the share of the base graph's communication time.
    seconds: times t [M] of the matchings, if they differ; then sum_j p_j t_j = budget * sum_j t_j.
    lambda_2 of the result is within a share of the optimum, certified by an upper bound: EXACT up
    to SMALL workers, CLOSE beyond. Raises ValueError for a budget out of range and for matchings
    that do not connect the workers.

    Method: lambda_2 is concave and equals the minimum of v' L(p) v over unit vectors v orthogonal
    to 1, so that every such v gives a linear bound on it, a cut. A linear programme over all cuts
    gives the upper bound; the next cuts are taken half-way between its solution and the best p
    (Ben-Ameur and Neto, "Acceleration of cutting-plane and column generation algorithms", 2007).

        >>> ring = [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]
        >>> activation_probabilities(ring, 4, budget=0.5).round(3).tolist()
        [0.5, 0.5]
    """
    check_budget("activation_probabilities", budget)
    count = len(matchings)
    if workers == 1:
        return np.zeros(count)
    small = workers <= SMALL
    form, tolerance = (_Dense, EXACT) if small else (_Sparse, CLOSE)
    form = form(matchings, workers)
    price = np.ones(count) if seconds is None else np.asarray(seconds, np.float64)
    if price.shape != (count,) or not ((price > 0) & (price < np.inf)).all():
        raise ValueError(
            f"activation_probabilities: needs {count} positive, finite seconds, got {price}; give "
            "one per matching"
        )
    price = price / price.max()  # ones where all are equal
    everywhere = form.low_modes(np.ones(count))[0]
    if everywhere < 1e-9:
        raise ValueError(
            f"activation_probabilities: the {count} matchings together do not connect the "
            f"{workers} workers, so lambda_2 is 0 for every p; decompose a connected graph"
        )
    # The programme is in q = p / budget, with lambda_2 = 1 at q = 1: the tolerances of its solver
    # are absolute. More budget never lowers lambda_2, so all of it is spent: sum q t = sum t.
    form.scale(1 / everywhere)
    q = best = np.ones(count)
    lower = 0.0
    if not small and form.trace_bound(budget, price) <= 1 + tolerance:
        return np.full(count, float(budget))  # all equal, as on a complete graph
    cuts = np.empty((0, count))
    limits = [(0, 1 / budget)] * count + [(0, None)]
    for _ in range(MOST_CUTS):
        value, modes = form.low_modes(q)
        if value > lower:
            lower, best = value, q
        cuts = np.concatenate([cuts, form.cuts(modes)])
        programme = scipy.optimize.linprog(
            [0.0] * count + [-1.0],  # maximise the bound
            A_ub=np.column_stack([-cuts, np.ones(len(cuts))]),  # bound <= cut . q
            b_ub=np.zeros(len(cuts)),
            A_eq=[[*price, 0.0]],
            b_eq=[price.sum()],
            bounds=limits,
        )
        upper = programme.x[-1]
        if upper - lower <= tolerance * upper:
            return np.clip(budget * best, 0, 1)
        q = (best + programme.x[:-1]) / 2
    raise RuntimeError(
        f"activation_probabilities: lambda_2 still lies {upper / lower - 1:.1e} below its bound "
        f"after {MOST_CUTS} rounds of cuts; take another graph or budget"
    )


def mixing_weight(matchings: Sequence[Edges], workers: int, p: np.ndarray) -> tuple[float, float]:
    """Find the edge weight alpha of least rho = ||E[W'W] - J||_2, for matchings active with p [M].

    Returns (alpha, rho); since L_j^2 = 2 L_j,
    E[W'W] = I - 2 alpha Lbar + alpha^2 (Lbar^2 + 2 Ltilde) with Lbar = sum_j p_j L_j and
    Ltilde = sum_j p_j (1 - p_j) L_j. A single worker gets (0, 0).
    """
    if workers == 1:
        return 0.0, 0.0
    p = np.asarray(p, dtype=np.float64)
    if p.shape != (len(matchings),) or not np.all((p >= 0) & (p <= 1)) or not p.any():
        raise ValueError(
            f"mixing_weight: needs {len(matchings)} probabilities in [0, 1], not all 0, got {p}; "
            "use activation_probabilities"
        )
    if workers > SMALL:
        return _mixing_weight_of_many(_Sparse(matchings, workers), p)
    laplacians = _laplacians(matchings, workers)
    linear = np.tensordot(p, laplacians, 1)
    quadratic = linear @ linear + 2 * np.tensordot(p * (1 - p), laplacians, 1)
    centred = np.eye(workers) - 1 / workers

    def contraction(alpha: float) -> float:
        moment = centred - 2 * alpha * linear + alpha**2 * quadratic
        return float(np.linalg.eigvalsh(moment)[-1])

    # rho is convex in alpha, and at least 1 again from 2 / lambda_n(Lbar) on.
    return _least(contraction, 2 / np.linalg.eigvalsh(linear)[-1])


def _mixing_weight_of_many(form: "_Sparse", p: np.ndarray) -> tuple[float, float]:
    """Find (alpha, rho) with few eigenvalue problems, as each takes long.

    Where all p are equal, every moment is a polynomial in the Laplacian. Otherwise every vector v
    bounds rho from below by v'(I - J)v - 2 alpha v'Lbar v + alpha^2 v'(Lbar^2 + 2 Ltilde)v, and the
    top eigenvectors at the best alpha so far are added until their bound agrees with rho.
    """
    linear, spread = form.laplacian(p), form.laplacian(p * (1 - p))
    if np.ptp(p) == 0:
        values = np.linalg.eigvalsh(linear.toarray())[1:]  # without that of the constant vector
        squares = values**2 + 2 * (1 - p[0]) * values
        return _least(lambda a: float(np.max(1 - 2 * a * values + a**2 * squares)), 2 / values[-1])
    quadratic = (linear @ linear + 2 * spread).toarray()
    linear, size = linear.toarray(), len(quadratic)
    most = 2 / scipy.linalg.eigvalsh(linear, subset_by_index=[size - 1, size - 1])[0]
    alpha, bounds = most / 2, np.empty((0, 2))
    for _ in range(MOST_CUTS):
        moment = np.eye(size) - 1 / size - 2 * alpha * linear + alpha**2 * quadratic
        values, vectors = scipy.linalg.eigh(moment, subset_by_index=[size - 4, size - 1])
        held = [np.einsum("nk,nm,mk->k", vectors, of, vectors) for of in (linear, quadratic)]
        bounds = np.concatenate([bounds, np.stack(held, axis=1)])
        following, below = _least(
            lambda a, bounds=bounds: float(np.max(1 - 2 * a * bounds[:, 0] + a**2 * bounds[:, 1])),
            most,
        )
        if values[-1] - below <= 1e-9:
            break
        alpha = following
    return alpha, float(values[-1])


def _least(contraction: Callable[[float], float], most: float) -> tuple[float, float]:
    """Return the alpha in (0, `most`) that minimises a convex function, and the minimum."""
    search = scipy.optimize.minimize_scalar(
        contraction, bounds=(0, most), method="bounded", options={"xatol": 1e-10}
    )
    return float(search.x), float(search.fun)


def activations(p: np.ndarray, updates: int, seed: int | Sequence[int]) -> np.ndarray:
    """Draw the active matchings of every update, bool [updates, M], Bernoulli(p_j) each.

    Depends on (p, seed) only, so that all workers agree, and a longer schedule begins with the
    shorter one.
    """
    return np.random.default_rng(seed).random((updates, len(p))) < np.asarray(p)


def check_budget(name: str, budget: float) -> None:
    """Raise ValueError for a budget outside of (0, 1]; `name`: its owner in the error."""
    if not 0 < budget <= 1:
        raise ValueError(
            f"{name}: the budget is a share of the communication in (0, 1], got {budget}; "
            "use 1 for all links in every round"
        )


def _laplacians(matchings: Sequence[Edges], workers: int) -> np.ndarray:
    """Return the Laplacian of every matching, [M, n, n]."""
    laplacians = np.zeros((len(matchings), workers, workers))
    for L, matching in zip(laplacians, matchings, strict=True):
        for i, j in matching:
            L[[i, j], [i, j]] += 1
            L[[i, j], [j, i]] -= 1
    return laplacians


class _Dense:
    """Laplacians of few workers: lambda_2 of their sums, and bounds on p from its eigenvectors."""

    def __init__(self, matchings: Sequence[Edges], workers: int):
        self._laplacians = _laplacians(matchings, workers)

    def scale(self, factor: float) -> None:
        """Multiply all Laplacians by a factor."""
        self._laplacians *= factor

    def low_modes(self, p: np.ndarray) -> tuple[float, np.ndarray]:
        """Return lambda_2 of L(p) and orthonormal eigenvectors [n, k] up to 1.5 lambda_2."""
        L = np.tensordot(p, self._laplacians, 1)
        # Moves the constant vector, eigenvalue 0, above all others: trace(L) >= lambda_n.
        values, vectors = np.linalg.eigh(L + 2 * np.trace(L) / len(L))
        # At the optimum lambda_2 is often multiple: one cut at a time would be slow.
        near = values <= 1.5 * values[0] + 1e-12
        return float(values[0]), vectors[:, near]

    def cuts(self, modes: np.ndarray) -> np.ndarray:
        """Return v' L_j v of every mode v and every matching j, [k, M]."""
        return np.einsum("nk,jnm,mk->kj", modes, self._laplacians, modes)


class _Sparse:
    """Laplacians of many workers, stored as edges; only the lowest eigenvectors are computed.

    An entry of a cut is the sum of a mode's squared differences over the edges of a matching.
    """

    def __init__(self, matchings: Sequence[Edges], workers: int):
        edges = [(i, j, m) for m, matching in enumerate(matchings) for i, j in matching]
        self._i, self._j, self._matching = np.array(edges, np.int64).T
        self._shape, self._count, self._factor = (workers, workers), len(matchings), 1.0

    def scale(self, factor: float) -> None:
        """Multiply all Laplacians by a factor."""
        self._factor *= factor

    def laplacian(self, p: np.ndarray) -> "scipy.sparse.csr_array":
        """Return sum_j p_j L_j."""
        weight = self._factor * p[self._matching]
        off = scipy.sparse.coo_array((weight, (self._i, self._j)), self._shape).tocsr()
        off = off + off.T
        return (scipy.sparse.diags_array(off.sum(axis=1)) - off).tocsr()

    def trace_bound(self, budget: float, price: np.ndarray) -> float:
        """Return max trace(L(q)) / (n-1) >= lambda_2 for q <= 1/budget, q @ price = sum(price)."""
        edges = np.bincount(self._matching, minlength=self._count)
        best = np.argsort(-edges / price, kind="stable")  # by edges for their price
        edges, price = edges[best], price[best]
        left = price.sum() - (np.cumsum(price) - price) / budget
        spent = np.clip(left / price, 0, 1 / budget)
        return self._factor * 2 * float(edges @ spent) / (self._shape[0] - 1)

    def low_modes(self, p: np.ndarray) -> tuple[float, np.ndarray]:
        """Return lambda_2 of L(p) and eigenvectors [n, k] of eigenvalues up to 1.5 lambda_2."""
        L = self.laplacian(p).toarray()
        last = min(MOST_MODES, len(L) - 1) - 1
        shifted = L + 2 * np.trace(L) / len(L)
        values, vectors = scipy.linalg.eigh(shifted, subset_by_index=[0, last])
        return float(values[0]), vectors[:, values <= 1.5 * values[0] + 1e-12]

    def cuts(self, modes: np.ndarray) -> np.ndarray:
        """Return v' L_j v of every mode v and every matching j, [k, M]."""
        squares = self._factor * (modes[self._i] - modes[self._j]) ** 2
        cuts = np.zeros((self._count, modes.shape[1]))
        np.add.at(cuts, self._matching, squares)
        return cuts.T
