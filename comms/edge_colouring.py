"""Matchings of a graph: its edges in colours, each of which meets a worker at most once.

A matching is a list of edges (i, j), i < j, without a common worker: one full permutation, one
unit of communication time. Edges are coloured as in Misra and Gries, "A constructive proof of
Vizing's theorem" (1992). In large graphs this would take minutes: there an edge takes a colour that
is free at both ends, if there is one. Complete graphs have the rounds of a tournament (Kirkman,
1847).
"""

from collections.abc import Iterable

import networkx as nx
import numpy as np

Edge = tuple[int, int]
Matching = list[Edge]
COLOURED = 256  # workers up to which every graph is coloured as by Misra and Gries


def decompose(graph: nx.Graph) -> list[Matching]:
    """Split all edges into at most max degree + 1 matchings; max degree if bipartite.

    Deterministic: the same graph gives the same matchings on every host. Raises ValueError unless
    its nodes are 0..n-1 and no edge is a loop.

        >>> decompose(nx.cycle_graph(4))
        [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]
    """
    if set(graph) != set(range(len(graph))) or nx.number_of_selfloops(graph):
        raise ValueError(
            f"decompose: needs the nodes 0..{len(graph) - 1} and edges between two of them, got "
            f"{sorted(graph, key=str)} with {nx.number_of_selfloops(graph)} loops; relabel the "
            "nodes, remove the loops"
        )
    if len(graph) > COLOURED and 2 * graph.number_of_edges() == len(graph) * (len(graph) - 1):
        return _tournament(len(graph))
    few = max(dict(graph.degree).values(), default=0) if len(graph) > COLOURED else 0
    # at[u][c] is the neighbour of u by an edge of colour c.
    at: list[dict[int, int]] = [{} for _ in graph]
    for u, v in sorted((min(edge), max(edge)) for edge in graph.edges):
        both = next((c for c in range(few) if c not in at[u] and c not in at[v]), None)
        if both is not None:
            at[u][both], at[v][both] = v, u
            continue
        c, d = _free(at, u), _free(at, v)
        path = _path(at, u, c, d)
        if path[-1] == v:
            # Flipping would take d from v as well, so the fan must find another end.
            fan = _fan(at, u, v)
            d = _free(at, fan[-1])
            path = _path(at, u, c, d)
        else:
            # Koenig's case, the only one in bipartite graphs; without it Vizing's extra colour
            # would cost even the ring a third matching.
            fan = [v]
        _flip(at, path, c, d)
        # The prefix up to the first member with d free is still a fan after the flip.
        fan = fan[: 1 + next(i for i, w in enumerate(fan) if d not in at[w])]
        _rotate(at, u, fan, d)
    colours = {c for joined in at for c in joined}
    return sorted([(u, at[u][c]) for u in range(len(at)) if at[u].get(c, -1) > u] for c in colours)


def _tournament(n: int) -> list[Matching]:
    """Let every worker meet every other once, in n - 1 rounds, or n if n is odd and one pauses.

    In round r two workers meet if their sum is r modulo the number of rounds. With an even n the
    last worker stands aside, and meets the one that would be alone.
    """
    rounds = n - 1 + n % 2
    matchings = []
    for r in range(rounds):
        matching = [(i, (r - i) % rounds) for i in range(rounds) if i < (r - i) % rounds]
        if rounds < n:
            alone = next(i for i in range(rounds) if (2 * i - r) % rounds == 0)
            matching.append((alone, n - 1))
        matchings.append(sorted(matching))
    return sorted(matchings)


def validate(graph: nx.Graph, matchings: Iterable[Iterable[Edge]]) -> None:
    """Raise ValueError unless `matchings` are matchings that hold every edge exactly once."""
    seen: set[frozenset[int]] = set()
    for m, matching in enumerate(matchings):
        busy: set[int] = set()
        for i, j in matching:
            if not graph.has_edge(i, j):
                raise ValueError(
                    f"matching {m}: ({i}, {j}) is not an edge of the graph; leave it out"
                )
            if frozenset((i, j)) in seen:
                raise ValueError(f"matching {m}: edge ({i}, {j}) appears twice; keep one of them")
            if i in busy or j in busy:
                raise ValueError(
                    f"matching {m}: worker {i if i in busy else j} has two partners; "
                    "move one of its edges to another matching"
                )
            busy |= {i, j}
            seen.add(frozenset((i, j)))
    missing = sorted(tuple(sorted(edge)) for edge in graph.edges if frozenset(edge) not in seen)
    if missing:
        raise ValueError(
            f"matchings: {len(missing)} edges are in none of them, first {missing[0]}; "
            "add them or use decompose(graph)"
        )


def partners(matching: Iterable[Edge], n: int) -> np.ndarray:
    """Return the partners of all workers, int64 [n]: unmatched workers map to themselves.

    Raises ValueError where an edge leaves 0..n-1 or a worker has two partners.

        >>> partners([(0, 1)], 3).tolist()
        [1, 0, 2]
    """
    partner = np.arange(n)
    for i, j in matching:
        if not (0 <= i < n and 0 <= j < n and i != j):
            raise ValueError(
                f"partners: ({i}, {j}) does not pair two of the workers 0..{n - 1}; correct it"
            )
        if partner[i] != i or partner[j] != j:
            raise ValueError(
                f"partners: worker {i if partner[i] != i else j} has two partners; "
                "pass one matching at a time"
            )
        partner[i], partner[j] = j, i
    return partner


def _free(at: list[dict[int, int]], u: int) -> int:
    """Return the smallest colour on no edge of u."""
    return next(c for c in range(len(at[u]) + 1) if c not in at[u])


def _path(at: list[dict[int, int]], u: int, c: int, d: int) -> list[int]:
    """Return the nodes of the longest path from u, edges coloured d, c, d, ...; c is free at u."""
    path, colour, other = [u], d, c
    while colour in at[path[-1]]:
        path.append(at[path[-1]][colour])
        colour, other = other, colour
    return path


def _flip(at: list[dict[int, int]], path: list[int], c: int, d: int) -> None:
    """Swap colours c and d along a path, after which d is free at its first node."""
    for u in path:
        swapped = {k: at[u].pop(k) for k in (c, d) if k in at[u]}
        at[u].update({c + d - k: v for k, v in swapped.items()})


def _fan(at: list[dict[int, int]], u: int, v: int) -> list[int]:
    """Return a maximal fan of u from v: each next edge's colour is free at the member before."""
    fan, joined, members = [v], sorted(at[u].items()), {v}
    while True:
        following = (w for c, w in joined if c not in at[fan[-1]] and w not in members)
        if (w := next(following, None)) is None:
            return fan
        fan.append(w)
        members.add(w)


def _rotate(at: list[dict[int, int]], u: int, fan: list[int], d: int) -> None:
    """Give every fan edge at u the colour of the next one, and the last one colour d."""
    colour_of = {w: c for c, w in at[u].items()}
    colours = [colour_of[w] for w in fan[1:]]
    for c, w in zip(colours, fan[1:], strict=True):
        del at[w][c]
    for c, w in zip([*colours, d], fan, strict=True):
        at[u][c], at[w][c] = w, u
