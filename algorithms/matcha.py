"""MATCHA: D-PSGD over a random subset of the graph's matchings in every round.

J. Wang, A. K. Sahu, Z. Yang, G. Joshi, S. Kar, *MATCHA: Speeding Up Decentralized SGD via Matching
Decomposition Sampling*, arXiv 1905.09435. With the waiting rule `first_finisher` MATCHA becomes
Non-blocking SGD over MATCHA (H. He, P. Dube, arXiv 2211.00889).

    x_i <- x_i + alpha sum_j B_j^(k) (x_partner_j(i) - x_i)     after the local step

Matching j is active with probability p_j, drawn from a seed that all workers share. The expected
communication is a share `budget` of D-PSGD's on the whole graph. Periodic decentralised SGD
activates the whole graph at once, with probability `budget`. `periodic` can also use all links in
a given range of updates, such as the last update alone: T. Zhu, T. Zhang, M. Wang, Z. Zhou, C.
Wang, *On the Surprising Effectiveness of a Single Global Merging in Decentralized Learning*, arXiv
2507.06542, after the authors' code.
"""

from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, choose, freeze_when_idle
from algorithms.gossip import (
    ORDERS,
    gossip_messages,
    graph_matchings,
    scale_by_finished,
)
from algorithms.links import Links, drawn_in_blocks, given
from comms import gossip, mixing
from comms import matcha as sampling


def _gossip_over(
    optimizer, graph, links: Links, alpha: float, order: str, weighting: str
) -> Algorithm:
    mixes = choose("order", ORDERS, order)

    def exchange_of(tree, active):
        return gossip.mix_active(tree, alpha, links.partners, given(active), AXIS)

    return Algorithm(
        exchange=optax.chain(
            freeze_when_idle(optimizer), scale_by_finished(weighting), mixes.combine(exchange_of)
        ),
        messages=gossip_messages(links.partners, mixes.beside_gradient),
        graph=graph,
        links=links,
    )


def matcha(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    budget: float = 0.5,
    order: str = "adapt_then_combine",
    weighting: str = "equal",
    by_seconds: bool = False,
    matching_seconds: Callable[[np.ndarray], np.ndarray] | None = None,
    seed: int = 0,
) -> Algorithm:
    """Apply D-PSGD over matchings that are active with optimised probabilities.

    budget: expected share of the matchings that are active in a round, in (0, 1].
    by_seconds: make the budget a share of the matchings' seconds on a network without slow spells.
    matching_seconds: partners [M, n] -> seconds [M], for `by_seconds`; None: all are equal.
    order, weighting: as in `algorithms.dpsgd`. seed: of the activations.
    """
    matchings, partners = graph_matchings(graph)
    workers = graph.number_of_nodes()
    seconds = matching_seconds(partners) if by_seconds and matching_seconds else None
    p = sampling.activation_probabilities(matchings, workers, budget, seconds=seconds)
    alpha, _ = sampling.mixing_weight(matchings, workers, p)
    active = drawn_in_blocks(lambda block, rows: sampling.activations(p, rows, (seed, block)))
    return _gossip_over(optimizer, graph, Links(partners, active), alpha, order, weighting)


def periodic(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    budget: float = 0.5,
    order: str = "adapt_then_combine",
    weighting: str = "equal",
    dense: Sequence[int] | None = None,
    seed: int = 0,
) -> Algorithm:
    """Average over all links at once with probability `budget`, else not (periodic D-PSGD).

    dense: (first, last): all links are active in the updates first to last - 1, whatever the
    budget, which may then be 0. On a complete graph such an update sets every model to the mean of
    all models. As the last update of a run it is the paper's global merging.
    """
    first, last = (0, 0) if dense is None else _stretch(dense)
    if dense is None or budget:
        sampling.check_budget("periodic", budget)
    matchings, partners = graph_matchings(graph)
    whole = np.array([budget])
    drawn = drawn_in_blocks(
        lambda block, rows: np.repeat(
            sampling.activations(whole, rows, (seed, block)), len(matchings), axis=1
        )
    )

    def active(start: int, count: int) -> np.ndarray:
        update = np.arange(start, start + count)[:, None]
        return drawn(start, count) | ((first <= update) & (update < last))

    alpha = mixing.best_step(graph)
    links = Links(partners, active, fixed=last)
    return _gossip_over(optimizer, graph, links, alpha, order, weighting)


def _stretch(dense: Sequence[int]) -> tuple[int, int]:
    """Return `dense` as ints (first, last); ValueError unless 0 <= first < last."""
    if np.shape(dense) != (2,) or not 0 <= dense[0] < dense[1]:
        raise ValueError(
            f"periodic: needs dense=(first, last) with 0 <= first < last, got {dense}; the last "
            "update is not in it"
        )
    return int(dense[0]), int(dense[1])
