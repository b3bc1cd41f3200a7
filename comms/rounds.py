"""Graphs that change with time: mixing matrices [n, n] that rounds use in turn, again and again.

All are float64 and doubly stochastic. `comms.topology` makes graphs of them.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence

import networkx as nx
import numpy as np

from comms import mixing

Weighted = list[tuple[int, int, float]]  # links of a round: two workers, and what each hears


def one_peer_exponential(n: int) -> list[np.ndarray]:
    """Half of one's own, half of the worker 2^t places before; t = 0 .. ceil(log2 n) - 1.

    Directed, one message per worker and round; the product of all rounds is the mean where n is a
    power of two. B. Ying et al., arXiv 2110.13363.
    """
    everyone = np.eye(n)
    hops = [1 << t for t in range((n - 1).bit_length())] or [0]
    return [(everyone + np.roll(everyone, hop, axis=0)) / 2 for hop in hops]


def base_k(n: int, k: int) -> list[np.ndarray]:
    """Base-(k+1) graph: at most k neighbours in a round, the mean of all n after the last one.

    Y. Takezawa et al., arXiv 2305.11420, Algorithms 1 to 3: the shorter one of two plans.
    """
    nodes = list(range(n))
    plans = [_simple_base(nodes, k)]
    smooth = _smooth_part(n, k)
    if 1 < smooth < n:
        parts = np.array_split(np.array(nodes), smooth)
        within = _side_by_side([_simple_base(part.tolist(), k) for part in parts])
        across = _side_by_side([_hyper_hypercube(row, k) for row in np.array(parts).T.tolist()])
        plans.append(within + across)
    shortest = min(plans, key=len)
    return [_matrix(n, links) for links in shortest or [[]]]


def hierarchical(n: int, group: int) -> list[np.ndarray]:
    """The mean within groups of neighbours in number, then gossip on a ring between groups.

    Between groups the first members mix among themselves, then so do all second ones, and so on.
    """
    within = np.kron(np.eye(n // group), np.full((group, group), 1 / group))
    groups = nx.cycle_graph(n // group) if n > 2 * group else nx.path_graph(n // group)
    between = np.kron(mixing.metropolis(groups), np.eye(group))
    return [within, between] if n > group else [within]


def _hyper_hypercube(nodes: Sequence[int], k: int) -> list[Weighted]:
    """Rounds of cliques of at most k + 1, after which all have the mean (Algorithm 1)."""
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
    """Simple Base-(k+1) graph (Algorithm 2).

    Their number is written in base k + 1: groups V_1, V_2, ... of a_l blocks, of (k+1)^p_l nodes
    each. When every group has its own mean, each node of the later groups exchanges with one node
    of every block of V_1, so heavily that the mean over a block, and over the later groups, is that
    of all: the blocks then spread it within, and the later groups go on alike.
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
        idle = [[] for _ in range(index)]  # rounds in which it exchanges with earlier groups
        plans.append([*idle, exchange, *spread] if rest else idle)
    return _side_by_side(own) + _side_by_side(plans)


def _side_by_side(plans: Sequence[list[Weighted]]) -> list[Weighted]:
    """Plans of different nodes at the same time."""
    return [_joined(links) for links in itertools.zip_longest(*plans, fillvalue=[])]


def _joined(lists: Iterable[list]) -> list:
    return list(itertools.chain.from_iterable(lists))


def _matrix(n: int, links: Weighted) -> np.ndarray:
    W = np.zeros((n, n))
    for i, j, weight in links:
        W[i, j] = W[j, i] = weight
    np.fill_diagonal(W, 1 - W.sum(axis=1))
    return W


def _smooth_part(n: int, k: int) -> int:
    """The largest divisor of n without a prime factor above k + 1."""
    smooth = 1
    for prime in range(2, k + 2):  # those that are not prime divide nothing any more
        while n % prime == 0:
            n, smooth = n // prime, smooth * prime
    return smooth


@functools.cache
def _factors(n: int, largest: int) -> tuple[int, ...]:
    """The fewest factors of 2 to `largest` whose product is n, which has no larger prime factor."""
    if n == 1:
        return ()
    found = [
        (factor, *_factors(n // factor, largest))
        for factor in range(2, min(n, largest) + 1)
        if n % factor == 0
    ]
    return min(found, key=len)
