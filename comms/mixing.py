"""Mixing matrices W: weights of the neighbours' values in one round of gossip.

Every W is [n, n] float64, symmetric, with rows and columns that sum to 1, and non-zero only on
the diagonal and on edges; an isolated worker (n=1) keeps its value. Gossip x <- W x preserves
the mean, and per round contracts the squared distance to the mean by rho(W) (Lian et al., D-PSGD,
arXiv 1705.09056).
"""

import os
from pathlib import Path

import networkx as nx
import numpy as np


def _check(graph: nx.Graph) -> None:
    """Raise ValueError for a graph that would not have symmetric matrices here."""
    simple = isinstance(graph, nx.Graph) and not graph.is_directed() and not graph.is_multigraph()
    if not simple or set(graph) != set(range(len(graph))) or nx.number_of_selfloops(graph):
        raise ValueError(
            "mixing: needs an undirected nx.Graph of nodes 0 to n - 1 without loops or double "
            "links; number the nodes, or build it by graphs.edge_list(n, edges)"
        )


def laplacian(graph: nx.Graph) -> np.ndarray:
    """Return the Laplacian L = D - A [n, n] float64 of a graph with nodes 0..n-1.

        >>> laplacian(nx.path_graph(3)).tolist()
        [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    """
    _check(graph)
    adjacency = nx.to_numpy_array(graph, nodelist=range(len(graph)), weight=None)
    return np.diag(adjacency.sum(axis=1)) - adjacency


def metropolis(graph: nx.Graph) -> np.ndarray:
    """Return Metropolis-Hastings weights, W_ij = 1 / (1 + max(d_i, d_j)) on edges.

    Xiao, Boyd, Lall, "Distributed average consensus with time-varying Metropolis weights", 2006.
    """
    _check(graph)
    W = np.zeros((len(graph), len(graph)))
    for i, j in graph.edges:
        W[i, j] = W[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    np.fill_diagonal(W, 1 - W.sum(axis=1))
    return W


def best_constant(graph: nx.Graph) -> np.ndarray:
    """Return the fastest equal weights of all edges, W = I - a L with a = `best_step(graph)`.

    The diagonal may be negative (Xiao, Boyd, "Fast linear iterations for distributed averaging").
    """
    return np.eye(len(graph)) - best_step(graph) * laplacian(graph)


def uniform_neighbour(graph: nx.Graph) -> np.ndarray:
    """Return equal weights 1 / (max degree + 1) of all edges, and the rest on the diagonal.

    On a regular graph it is the average over a worker and its neighbours.
    """
    _check(graph)
    step = 1 / (1 + max(degree for _, degree in graph.degree))
    return np.eye(len(graph)) - step * laplacian(graph)


def best_step(graph: nx.Graph) -> float:
    """Return the edge weight a = 2 / (lambda_2 + lambda_n) that minimises rho(I - a L).

    lambda: eigenvalues of the Laplacian L. It is 0 for a single worker; a disconnected graph raises
    ValueError, as no weight contracts there.

        >>> round(best_step(nx.complete_graph(4)), 6)
        0.25
    """
    if len(graph) == 1:
        return 0.0
    components = nx.number_connected_components(graph)
    if components > 1:
        raise ValueError(
            f"best_step: the graph falls into {components} components; add edges between them"
        )
    eigenvalues = np.linalg.eigvalsh(laplacian(graph))
    return float(2 / (eigenvalues[1] + eigenvalues[-1]))


def rho(W: np.ndarray) -> float:
    """Return the contraction per round of the squared distance to the mean.

    rho = max(|lambda_2|, |lambda_n|)^2, and the spectral gap is 1 - sqrt(rho); 0 for a single
    worker. Raises ValueError for a W [n, n] that is not symmetric with rows that sum to 1.

        >>> round(rho(metropolis(nx.cycle_graph(4))), 4)
        0.1111
    """
    W = _doubly_stochastic("rho", W)
    return float(np.abs(np.linalg.eigvalsh(W - 1 / len(W))).max() ** 2)


def own(graph: nx.Graph, W: np.ndarray) -> np.ndarray:
    """Return the user's own weights, [n, n] float64, as all methods take them.

    Raises ValueError unless they are symmetric, their rows sum to 1, they are 0 where the graph has
    no edge, and mixing by them brings workers to consensus.
    """
    W = _doubly_stochastic("mixing_matrix", W)
    if len(W) != len(graph):
        raise ValueError(
            f"mixing_matrix: W is for {len(W)} workers, but the graph has {len(graph)}; pass W "
            f"[{len(graph)}, {len(graph)}]"
        )
    apart = nx.to_numpy_array(graph, nodelist=range(len(graph)), weight=None) == 0
    beside = np.argwhere(apart & (W != 0) & ~np.eye(len(W), dtype=bool))
    if len(beside):
        i, j = beside[0].tolist()
        raise ValueError(
            f"mixing_matrix: W[{i}, {j}] = {W[i, j]:.3g}, but the graph has no edge between these "
            "workers; put 0 there, or add the edge"
        )
    if not rho(W) < 1 - 1e-9:
        raise ValueError(
            "mixing_matrix: workers that mix by W do not come together, as rho(W) is "
            f"{rho(W):.6g}; it must be below 1: give edges more weight where it is 1, less where "
            "it is larger"
        )
    return W


def weights(path: str | os.PathLike) -> np.ndarray:
    """Read own weights [n, n] float64 from a file, `.npy` or text with a row on each line.

    Commas, semicolons or blanks separate numbers. `own` lists the conditions on weights.
    """
    return read_matrix("weights", path)


def read_matrix(name: str, path: str | os.PathLike) -> np.ndarray:
    """Read a square matrix [n, n] float64 from a `.npy` file or text; name: for errors."""
    place = Path(path).expanduser()
    try:
        if place.suffix == ".npy":
            W = np.load(place, allow_pickle=False)
        else:
            lines = place.read_text(encoding="utf-8-sig").replace(",", " ").replace(";", " ")
            W = np.loadtxt(lines.splitlines(), ndmin=2)
        W = np.asarray(W, np.float64)
    except (OSError, ValueError, TypeError, EOFError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(
            f"{name}: {path} cannot be read as a matrix ({reason}); give the path of n lines of n "
            "numbers, or of a .npy file [n, n]"
        ) from error
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not np.isfinite(W).all():
        raise ValueError(
            f"{name}: {path} holds numbers of shape {W.shape}, where finite ones of shape [n, n] "
            "are due; give a row and a column to every worker"
        )
    return W


def _doubly_stochastic(name: str, W: np.ndarray) -> np.ndarray:
    W = np.asarray(W, dtype=np.float64)
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(
            f"{name}: needs a square mixing matrix, got shape {W.shape}; pass W [n, n]"
        )
    skew = np.abs(W - W.T).max()
    if not skew <= 1e-6:
        raise ValueError(
            f"{name}: W is not symmetric, |W - W'| reaches {skew:.2g}; "
            "use weights that both ends of an edge agree on"
        )
    off = np.abs(W.sum(axis=1) - 1).max()
    if not off <= 1e-6:
        raise ValueError(
            f"{name}: W is not doubly stochastic, a row sum is off 1 by {off:.2g}; "
            "put 1 minus the other weights on the diagonal"
        )
    return W


MIXINGS = {
    "metropolis": metropolis,
    "best_constant": best_constant,
    "uniform_neighbour": uniform_neighbour,
}
