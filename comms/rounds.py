"""Graphs that change with time: senders of every worker in rounds that repeat in order.

A round is an index array of senders, so that memory grows in proportion to the workers. `matrix`
is its mixing matrix [n, n], float64 and doubly stochastic. `comms.topology` makes graphs of rounds.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np

from comms import edge_colouring

Weighted = list[tuple[int, int, float]]  # links of a round: two workers and their weight


class Round(NamedTuple):
    """Permutations of workers that are used at once; a worker's own weight is the rest of 1."""

    partners: np.ndarray  # [m, n] int32, sender that every worker hears, or itself
    weights: np.ndarray  # [m, n] float64, weights of senders, 0 without a sender

    @property
    def directed(self) -> bool:
        """True if a worker hears another one that does not hear it in the same exchange."""
        everyone = np.arange(self.partners.shape[1])
        return any((partner[partner] != everyone).any() for partner in self.partners)


def matrix(one: Round) -> np.ndarray:
    """Return W [n, n] of a round, for few workers."""
    whole = np.eye(one.partners.shape[1])
    moved = (
        weight[:, None] * (whole[partner] - whole) for partner, weight in zip(*one, strict=True)
    )
    return sum(moved, whole)


def one_peer_exponential(n: int) -> list[Round]:
    """Link each worker to one peer at a time, 1, 2, 4, ... places before (arXiv 2110.13363).

    Links are directed: a worker takes half of its own and half of the peer's value. The product of
    all rounds is the mean if n is a power of two.

        >>> len(one_peer_exponential(8))
        3
    """
    hops = [1 << t for t in range((n - 1).bit_length())]
    return [_shifted(n, [hop], 0.5) for hop in hops] or [_shifted(n, [], 0.0)]


def equi_static(
    n: int, peers: int | None = None, seed: int = 0, directed: bool = False
) -> list[Round]:
    """Return an EquiTopo graph of `peers` random shifts (arXiv 2210.07881).

    peers: shifts, by default ceil(log2 n); without `directed` each one links to two neighbours. The
    basis matrix of a shift u takes (n - 1) / n of the value u places before and 1 / n of one's own.
    O(log n) random matrices contract at a rate that does not grow with n. Undirected: half of each
    shift goes the other way. Algorithms 1 and 2 there, without repetition.
    """
    hops = _hops("equi_static", n, (n - 1).bit_length() if peers is None else peers, seed)
    if directed:
        return [_shifted(n, hops, (n - 1) / n / max(len(hops), 1))]
    share = (n - 1) / (2 * n * max(len(hops), 1))
    weights: dict[tuple[int, int], float] = {}
    for hop, i in itertools.product(hops, range(n)):
        pair = min(i, (i + hop) % n), max(i, (i + hop) % n)
        weights[pair] = weights.get(pair, 0.0) + share
    return [_of_links(n, [(*pair, weight) for pair, weight in weights.items()])]


def equi_dyn(
    n: int, peers: int | None = None, seed: int = 0, directed: bool = False
) -> list[Round]:
    """Return a one-peer EquiTopo graph: `peers` random shifts in turn (arXiv 2210.07881).

    peers: shifts, by default 2 ceil(log2 n), at most n - 1. A worker takes half of the result of
    `equi_static`'s basis matrix and half of its own value. Without `directed`, workers exchange in
    pairs: from a random worker on, each is paired with the worker u places after it, if both are
    still alone. Algorithms 3 and 4 there with eta = 1/2; these draw one of the shifts each time.
    """
    if peers is None:
        peers = min(2 * (n - 1).bit_length(), n - 1)
    hops = _hops("equi_dyn", n, peers, seed)
    share = (n - 1) / (2 * n)
    if directed:
        return [_shifted(n, [hop], share) for hop in hops] or [_shifted(n, [], 0.0)]
    first = np.random.default_rng((seed, 1)).integers(n, size=len(hops))
    pairs = [_paired(n, hop, begin) for hop, begin in zip(hops, first.tolist(), strict=True)]
    return [_of_links(n, [(i, j, share) for i, j in links]) for links in pairs or [[]]]


def base_k(n: int, k: int = 1) -> list[Round]:
    """Return the Base-(k+1) graph: at most k peers at a time, then the mean (arXiv 2305.11420).

    Algorithms 1 to 3 there: the shorter one of two plans. Raises ValueError unless k >= 1.

        >>> [one.partners.tolist() for one in base_k(4)]
        [[[1, 0, 3, 2]], [[2, 3, 0, 1]]]
    """
    if k < 1:
        raise ValueError(f"base_k: needs k >= 1 peers, got {k}; 1 is the Base-2 graph")
    nodes = list(range(n))
    plans = [_simple_base(nodes, k)]
    smooth = _smooth_part(n, k)
    if 1 < smooth < n:
        parts = [part.tolist() for part in np.array_split(np.array(nodes), smooth)]
        within = _side_by_side([_simple_base(part, k) for part in parts])
        across = _side_by_side([_hyper_hypercube(row, k) for row in np.array(parts).T.tolist()])
        plans.append(within + across)
    shortest = min(plans, key=len)
    return [_of_links(n, links) for links in shortest or [[]]]


def hierarchical(n: int, group: int) -> list[Round]:
    """Take the mean within groups of `group` workers, then gossip on a ring of groups, in turn.

    Groups hold consecutive workers; between groups all first members mix among themselves, all
    second ones, and so on. Raises ValueError unless `group` divides n.
    """
    if group < 1 or n % group:
        raise ValueError(
            f"hierarchical: needs groups of one size, got {n} workers and group={group}; let group "
            "divide workers"
        )
    pairs = list(itertools.combinations(range(group), 2))
    within = [(first + i, first + j, 1 / group) for first in range(0, n, group) for i, j in pairs]
    if n == group:
        return [_of_links(n, within)]
    groups = nx.cycle_graph(n // group) if n > 2 * group else nx.path_graph(n // group)
    between = [
        (a * group + member, b * group + member, 1 / (1 + max(groups.degree[a], groups.degree[b])))
        for a, b in groups.edges
        for member in range(group)
    ]  # Metropolis weights
    return [_of_links(n, within), _of_links(n, between)]


def _shifted(n: int, hops: Sequence[int], weight: float) -> Round:
    """Let every worker receive from the workers that are these numbers of places before it."""
    partners = (np.arange(n) - np.array(hops, int).reshape(-1, 1)) % n
    return Round(partners.astype(np.int32), np.full(partners.shape, weight))


def _hops(name: str, n: int, peers: int, seed: int) -> list[int]:
    """Draw `peers` distinct shifts in 1 ... n - 1; name: the graph's name in errors."""
    if not min(1, n - 1) <= peers <= n - 1:
        raise ValueError(
            f"{name}: needs 1 <= peers <= {n - 1} of {n} workers, got peers={peers}; set it in "
            "this range, or leave it out"
        )
    return (1 + np.random.default_rng(seed).choice(n - 1, peers, replace=False)).tolist()


def _paired(n: int, hop: int, begin: int) -> list[tuple[int, int]]:
    """Return pairs of workers `hop` places apart, in the order from `begin` on."""
    alone, pairs = np.ones(n, bool), []
    for i in itertools.chain(range(begin, n), range(begin)):
        j = (i + hop) % n
        if alone[i] and alone[j]:
            alone[[i, j]] = False
            pairs.append((i, j))
    return pairs


def _hyper_hypercube(nodes: Sequence[int], k: int) -> list[Weighted]:
    """Return rounds of cliques of at most k + 1 nodes that end in the mean (Algorithm 1)."""
    rounds, stride = [], 1
    for size in _factors(len(nodes), k + 1):
        cliques = {}
        for position, node in enumerate(nodes):
            key = position // (stride * size), position % stride
            cliques.setdefault(key, []).append(node)
        rounds.append(
            [
                (i, j, 1 / size)
                for clique in cliques.values()
                for i, j in itertools.combinations(clique, 2)
            ]
        )
        stride *= size
    return rounds


def _simple_base(nodes: Sequence[int], k: int) -> list[Weighted]:
    """Return the Simple Base-(k+1) graph (Algorithm 2).

    The number of nodes, in base k + 1, gives groups of a_l blocks of (k+1)^p_l nodes. Every group
    takes its own mean. Then each node of the later groups exchanges with one node of every block of
    the first group, by a weight that gives blocks and later groups the mean of all. The blocks
    spread this mean among their nodes, and the later groups go on alike.
    """
    base, n = k + 1, len(nodes)
    if _smooth_part(n, k) == n:
        return _hyper_hypercube(nodes, k)
    groups, start = [], 0
    for power in reversed(range(n.bit_length())):
        digit = n // base**power % base
        if digit:
            size = digit * base**power
            members = nodes[start : start + size]
            groups.append([members[a * base**power : (a + 1) * base**power] for a in range(digit)])
            start += size
    own = [_hyper_hypercube(_joined(blocks), k) for blocks in groups]
    plans = []
    for index, blocks in enumerate(groups):
        rest = _joined(map(_joined, groups[index + 1 :]))
        size = len(blocks) * len(blocks[0])
        weight = size / (len(blocks) * (size + len(rest)))
        exchange = [
            (node, block[place], weight) for place, node in enumerate(rest) for block in blocks
        ]
        spread = _side_by_side([_hyper_hypercube(block, k) for block in blocks])
        idle = [[] for _ in range(index)]  # rounds in which this group exchanges with earlier ones
        plans.append([*idle, exchange, *spread] if rest else idle)
    return _side_by_side(own) + _side_by_side(plans)


def _side_by_side(plans: Sequence[list[Weighted]]) -> list[Weighted]:
    """Return the rounds of plans of disjoint nodes that run at the same time."""
    return [_joined(links) for links in itertools.zip_longest(*plans, fillvalue=[])]


def _joined(lists: Iterable[list]) -> list:
    return list(itertools.chain.from_iterable(lists))


def _of_links(n: int, links: Weighted) -> Round:
    """Return the links as matchings, each of which is a permutation."""
    graph = nx.empty_graph(n)
    graph.add_weighted_edges_from(links)
    matchings = edge_colouring.decompose(graph)
    partners = np.array([edge_colouring.partners(edges, n) for edges in matchings], np.int32)
    partners = partners.reshape(-1, n)
    weights = np.zeros(partners.shape)
    for row, edges in zip(weights, matchings, strict=True):
        for i, j in edges:
            row[[i, j]] = graph.edges[i, j]["weight"]
    return Round(partners, weights)


def _smooth_part(n: int, k: int) -> int:
    """Return the largest divisor of n without a prime factor above k + 1."""
    smooth = 1
    for prime in range(2, k + 2):  # numbers that are not prime divide nothing any more
        while n % prime == 0:
            n, smooth = n // prime, smooth * prime
    return smooth


@functools.cache
def _factors(n: int, largest: int) -> tuple[int, ...]:
    """Return the fewest factors of 2 to `largest` whose product is n."""
    if n == 1:
        return ()
    found = [
        (factor, *_factors(n // factor, largest))
        for factor in range(2, min(n, largest) + 1)
        if n % factor == 0
    ]
    return min(found, key=len)
