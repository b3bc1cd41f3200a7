"""Communication graphs: the links over which workers may talk.

Every function returns a connected `networkx.Graph` with nodes 0..n-1 (the workers), without
self-loops, or raises a ValueError of one sentence. Random graphs depend on `seed` alone.

A graph whose links change with time has all of them, and in its attribute `graph["rounds"]` the
rounds of `comms.rounds`, which D-PSGD and its relatives use in turn. Other methods use all links.
"""

import csv
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from comms import mixing, rounds

Edge = tuple[int, int]


def ring(n: int) -> nx.Graph:
    """Return a cycle of n workers; one worker alone for n=1, a single edge for n=2.

        >>> list(ring(4).edges)
        [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    return _connected("ring", n, ((i, (i + 1) % n) for i in range(n) if n > 1))


def torus(n: int) -> nx.Graph:
    """Return a grid whose rows and columns close to rings, as square as possible; n not prime.

        >>> torus(9).number_of_edges()
        18
    """
    graph = nx.grid_2d_graph(*_most_square("torus", n), periodic=True)
    return _connected("torus", n, nx.convert_node_labels_to_integers(graph).edges)


def grid(n: int) -> nx.Graph:
    """Return a grid in the most square r x c shape, worker = row * c + column; n not prime."""
    graph = nx.grid_2d_graph(*_most_square("grid", n))
    return _connected("grid", n, nx.convert_node_labels_to_integers(graph).edges)


def complete(n: int) -> nx.Graph:
    """Link every worker to every other."""
    return _connected("complete", n, itertools.combinations(range(n), 2))


def star(n: int) -> nx.Graph:
    """Link worker 0 to every other worker.

        >>> list(star(4).edges)
        [(0, 1), (0, 2), (0, 3)]
    """
    return _connected("star", n, ((0, i) for i in range(1, n)))


def hypercube(n: int) -> nx.Graph:
    """Link workers whose binary numbers differ in one bit; n a power of two.

        >>> sorted(hypercube(8)[0])
        [1, 2, 4]
    """
    _check_workers("hypercube", n)
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise ValueError(
            f"hypercube: needs a power of two, got n={n}; set workers={below} or {2 * below}, or "
            "take another graph, such as ring"
        )
    bits = range(n.bit_length() - 1)
    return _connected("hypercube", n, ((i, i ^ (1 << b)) for i in range(n) for b in bits))


def exponential(n: int) -> nx.Graph:
    """Return the static undirected exponential graph: i -- i +- 2^k mod n for every 2^k < n.

    Undirected form of the graph of Assran et al., arXiv 1811.10792.

        >>> sorted(exponential(8)[0])
        [1, 2, 4, 6, 7]
    """
    hops = [1 << k for k in range((n - 1).bit_length())]
    return _connected("exponential", n, ((i, (i + hop) % n) for i in range(n) for hop in hops))


def _of_rounds(make: Callable[..., list[rounds.Round]]) -> Callable[..., nx.Graph]:
    """Return a function that makes the graph of all links that the rounds of `make` use."""

    @functools.wraps(make)
    def graph_of(n: int, *args: Any, **parameters: Any) -> nx.Graph:
        _check_workers(make.__name__, n)
        turn = make(n, *args, **parameters)
        everyone = np.arange(n)
        heard = [
            n * np.minimum(everyone, partner) + np.maximum(everyone, partner)
            for one in turn
            for partner in one.partners.astype(np.int64)
        ]
        below, above = np.divmod(np.unique(np.concatenate([*heard, [0]])), n)
        linked = below < above
        edges = zip(below[linked].tolist(), above[linked].tolist(), strict=True)
        graph = _connected(make.__name__, n, edges, "another seed or more peers")
        graph.graph["rounds"] = turn
        return graph

    return graph_of


one_peer_exponential = _of_rounds(rounds.one_peer_exponential)
base_k = _of_rounds(rounds.base_k)
equi_static = _of_rounds(rounds.equi_static)
equi_dyn = _of_rounds(rounds.equi_dyn)
hierarchical = _of_rounds(rounds.hierarchical)


def random_regular(n: int, degree: int, seed: int) -> nx.Graph:
    """Draw a uniform graph of workers with `degree` neighbours each; n * degree must be even."""
    _check_workers("random_regular", n)
    if not 0 <= degree < n or n * degree % 2:
        raise ValueError(
            f"random_regular: needs 0 <= degree < n and n * degree even, got n={n}, "
            f"degree={degree}; change degree or workers"
        )
    graph = nx.random_regular_graph(degree, n, seed=seed)
    return _connected("random_regular", n, graph.edges, "another seed or a higher degree")


def erdos_renyi(n: int, probability: float, seed: int) -> nx.Graph:
    """Link every pair with `probability`, independently."""
    _check_workers("erdos_renyi", n)
    if not 0 <= probability <= 1:
        raise ValueError(
            f"erdos_renyi: needs a probability in [0, 1], got {probability}; "
            f"log(n)/n = {math.log(n) / n:.3g} is where graphs become connected"
        )
    graph = nx.gnp_random_graph(n, probability, seed=seed)
    return _connected("erdos_renyi", n, graph.edges, "another seed or a higher probability")


def geometric(n: int, radius: float, seed: int) -> nx.Graph:
    """Place workers at random in the unit square, and link pairs within `radius`."""
    _check_workers("geometric", n)
    if not radius > 0:
        raise ValueError(
            f"geometric: needs a positive radius, got {radius}; sqrt(2) links every pair"
        )
    graph = nx.random_geometric_graph(n, radius, seed=seed)
    return _connected("geometric", n, graph.edges, "another seed or a larger radius")


def edge_list(n: int, edges: Iterable[Edge]) -> nx.Graph:
    """Link n workers as given, in either direction; repeated links count once.

        >>> list(edge_list(3, [(0, 1), (2, 1)]).edges)
        [(0, 1), (1, 2)]
    """
    _check_workers("edge_list", n)
    try:
        edges = [(int(i), int(j)) for i, j in edges]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"edge_list: edges must be pairs of workers, got {edges!r}; write them as "
            "edges=[(0, 1), (1, 2)], or take from_file(path='...')"
        ) from error
    for i, j in edges:
        if not (0 <= i < n and 0 <= j < n and i != j):
            raise ValueError(
                f"edge_list: ({i}, {j}) does not link two of the workers 0..{n - 1}; "
                "correct the edge or the number of workers"
            )
    return _connected("edge_list", n, edges, "more edges")


def from_file(n: int, path: str) -> nx.Graph:
    """Read a graph from a file: GraphML, GML, a list of edges, or a matrix that is not 0 at edges.

    path: `.graphml`, `.gml`, a matrix as `comms.mixing.weights` reads it, or text with an edge on
    each line, its ends separated by commas, semicolons, tabs or else blanks; the rest of a line is
    ignored. Workers are the nodes in the file's order, or in the order of their numbers if all ends
    of edges in a text are numbers. Directions, weights, repeated edges and loops are left out.
    """
    place = Path(path).expanduser()
    try:
        graph = _READERS.get(place.suffix.lower(), _read_edges)(place)
    except Exception as error:  # parsers raise many kinds
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise ValueError(
            f"from_file: {path} cannot be read as a graph ({reason}); give GraphML, GML, lines of "
            "two workers, or a matrix"
        ) from error
    if len(graph) != n:
        raise ValueError(
            f"from_file: {path} has {len(graph)} nodes, but there are {n} workers; set "
            f"workers={len(graph)}"
        )
    edges = nx.convert_node_labels_to_integers(graph).edges()
    return _connected("from_file", n, ((i, j) for i, j in edges if i != j), "more edges in it")


def _read_edges(path: Path) -> nx.Graph:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:  # a .npy file
        return nx.from_numpy_array(mixing.read_matrix("from_file", path) != 0)
    lines = [line.partition("#")[0].rstrip(" \t,;") for line in text.splitlines()]
    lines = [line for line in lines if line]
    mark = next((m for m in ",;\t" if all(m in line.partition("{")[0] for line in lines)), None)
    cells = (re.split(r"[\s,;]+", line.lstrip(" \t,;")) for line in lines)
    if mark is not None:  # names may have blanks
        cells = csv.reader(lines, delimiter=mark, skipinitialspace=True)
    rows = [[cell.strip() for cell in row] for row in cells]
    if not rows:
        raise ValueError("it has no edges")
    n, first = len(rows), rows[0]
    wide = n > 2 and all(len(row) == n for row in rows[1:])
    numbered = re.match(r"[-+.\d]", "".join(first[: 1 - n]))  # the corner above the names
    if wide and n > 3 and not numbered and first[1 - n :] == [row[0] for row in rows[1:]]:
        raise ValueError("it is a matrix with names; leave out its first line and column")
    if wide and len(first) == n == 3:  # edges with weights are not symmetric
        wide = first[0] == rows[1][1] and [*map(list, zip(*rows, strict=True))] == rows
    if wide and len(first) == n:
        linked = mixing.read_matrix("from_file", path) != 0
        if (linked != linked.T).any():
            raise ValueError(
                "it is as wide as long, so a matrix, but one that is not symmetric; of edges, "
                "leave out what follows the two workers"
            )
        return nx.from_numpy_array(linked)
    ends = {"source", "from", "src", "target", "to", "dst"}
    if named := [i for i, name in enumerate(first) if name.lower() in ends]:
        rows = [row[named[0] if len(named) > 1 else 0 :] for row in rows[1:]]
    bad = [row for row in rows if not all([*row, ""][:2]) or set("{}[]<>*") & set(row[0] + row[1])]
    if bad or not rows:
        raise ValueError(f"{(bad or [first])[0][0]!r} is no edge")
    ends = [end for row in rows for end in row[:2]]
    numbers = all(end.isdecimal() for end in ends)
    graph = nx.Graph()
    graph.add_nodes_from(sorted(set(ends), key=int) if numbers else dict.fromkeys(ends))
    graph.add_edges_from(row[:2] for row in rows)
    return graph


_READERS: dict[str, Callable[[Path], nx.Graph]] = {
    ".graphml": nx.read_graphml,
    ".gml": functools.partial(nx.read_gml, label="id"),
}


def matcha_graph(k: int) -> nx.Graph:
    """Return base graph `k` in 0..5 of MATCHA's public code (arXiv 1905.09435); 8 or 16 workers.

    Its attribute `graph["matchings"]` holds that code's own matchings, edges as (low, high).
    """
    if k not in range(len(_MATCHINGS)):
        raise ValueError(f"matcha_graph: has base graphs 0 to 5, got k={k}; choose one of these")
    matchings = [
        [(int(i, 16), int(j, 16)) for i, j in matching.split()]
        for matching in _MATCHINGS[k].split("|")
    ]
    edges = [edge for matching in matchings for edge in matching]
    graph = _connected("matcha_graph", 1 + max(map(max, edges)), edges)
    graph.graph["matchings"] = matchings
    return graph


def _matcha_of(n: int, k: int) -> nx.Graph:
    """Return base graph `k`, 0 to 5, of MATCHA (arXiv 1905.09435), with 8 or 16 workers."""
    graph = matcha_graph(k)
    if len(graph) != n:
        raise ValueError(
            f"matcha: graph k={k} has {len(graph)} workers, got n={n}; set workers={len(graph)}"
        )
    return graph


# Graphs by name, each called with the number of workers and then its own arguments.
GRAPHS: dict[str, Callable[..., nx.Graph]] = {
    make.__name__: make
    for make in (
        ring, torus, grid, complete, star, hypercube, exponential, one_peer_exponential, base_k,
        equi_static, equi_dyn, hierarchical, random_regular, erdos_renyi, geometric, edge_list,
        from_file,
    )
} | {"matcha": _matcha_of}  # fmt: skip


def check(graph: Any, workers: int | None = None, name: str = "graph") -> None:
    """Raise ValueError unless methods can gossip on `graph`, a user's or one of this module.

    workers: number of workers; None: the number of nodes. name: the graph's name in errors.
    """
    if not isinstance(graph, nx.Graph) or graph.is_directed() or graph.is_multigraph():
        raise ValueError(
            f"{name}: needs an undirected networkx.Graph with one edge at most between two "
            f"workers, got {type(graph).__name__}; make one by networkx.Graph(...)"
        )
    nodes = len(graph)
    if workers is not None and nodes != workers:
        raise ValueError(
            f"{name} has {nodes} nodes but there are {workers} workers; set config.workers={nodes}"
        )
    _check_workers(name, nodes)
    for node in graph:
        if not isinstance(node, Integral) or isinstance(node, bool) or not 0 <= node < nodes:
            raise ValueError(
                f"{name}: nodes must be the workers' numbers, 0 to {nodes - 1}, got {node!r}; use "
                "networkx.convert_node_labels_to_integers"
            )
    loops = sorted(nx.nodes_with_selfloops(graph))
    if loops:
        raise ValueError(
            f"{name}: worker {loops[0]} has an edge to itself, which sends nothing; remove it, as "
            "a mixing matrix weighs what a worker holds"
        )
    for i, j, weight in graph.edges(data="weight", default=1):
        if weight != 1:
            raise ValueError(
                f"{name}: the edge ({i}, {j}) has weight={weight!r}, and a graph says only who is "
                "linked; remove it, and give weights as mixing_matrix=weights(path='...') of the "
                "method"
            )
    _check_connected(name, graph)


def _connected(name: str, n: int, edges: Iterable[Edge], way_out: str = "") -> nx.Graph:
    _check_workers(name, n)
    graph = nx.empty_graph(n)
    # Sorted, so that iteration over the graph never depends on the order of its edges.
    graph.add_edges_from(sorted((int(min(edge)), int(max(edge))) for edge in edges))
    _check_connected(name, graph, way_out)
    return graph


def _check_connected(name: str, graph: nx.Graph, way_out: str = "more edges") -> None:
    components = nx.number_connected_components(graph)
    if components > 1:
        raise ValueError(
            f"{name}: the graph of {len(graph)} workers falls into {components} components, "
            f"so gossip cannot agree; try {way_out}"
        )


def _check_workers(name: str, n: int) -> None:
    if n < 1:
        raise ValueError(f"{name}: needs at least 1 worker, got n={n}; set workers >= 1")


def _most_square(name: str, n: int) -> tuple[int, int]:
    _check_workers(name, n)
    rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    if rows == 1 < n:
        raise ValueError(
            f"{name}: {n} workers are a prime number and fill no rectangle; "
            f"use a ring or set workers={n + 1 if n > 2 else 4}"
        )
    return rows, n // rows


# Matchings of the base graphs: an edge is two hexadecimal digits, its workers.
_MATCHINGS = (
    # graph 0: 8 workers, 12 edges
    "15 67 04 23|17 36|01 37 56|12 07|13",
    # graph 1: 16 workers, 22 edges
    "48 6b 7d 0c 5e af 23 19|bd 2e 56 3f 9a|8b 25 4d 3e 0a|5b ef 8d|2b",
    # graph 2: 16 workers, 45 edges
    "27 cf 3d 56 08 49 be 1a|68 0b 23 45 ef 19|38 06 2b 14 ce|8b 36 05|28 03 67 bc|"
    "58 46 02 7b|8f 37 04 26|8e 35 6b 09|78 bf 25 34 01 6d|8c",
    # graph 3: 16 workers, 65 edges
    "3c 48 1d 57 9a be 6f 02|7e 26 5d 8a 1f 0b 39 4c|27 3f 9d 6b 4e ac 18 05|"
    "5e 1c 8d 49 2b 07|15 8e cd 4a 67|59 1e 3d 28 7b|5c de 19 08|25 ae 13 89 df|"
    "58 ce 14 ad|35 2e 9c 1a 4d|56 0e 8c 12|5f 9e|5b",
    # graph 4: 16 workers, 34 edges
    "27 3f de 89 15 0a 6c 4b|bc 56 1e 9a 2f 8d|5c 6b 18 39 2a|ce 9b 5f 06 17|8c 25 be 16|"
    "cf bd 5a 3e|9c|0c",
    # graph 5: 8 workers, 8 edges
    "01 23 45 67|07 12 34 56",
)
