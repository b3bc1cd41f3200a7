"""MATCHA: D-PSGD in which every round uses a random few of the graph's matchings.

J. Wang, A. K. Sahu, Z. Yang, G. Joshi, S. Kar, *MATCHA: Speeding Up Decentralized SGD via Matching
Decomposition Sampling*, arXiv 1905.09435. With the waiting rule `first_finisher` it is
Non-blocking SGD over MATCHA (H. He, P. Dube, arXiv 2211.00889).

    x_i <- x_i + alpha sum_j B_j^(k) (x_partner_j(i) - x_i)     after the local step

Matching j is active with probability p_j, drawn from a seed that all workers share, so that the
expected communication is `budget` of that of D-PSGD on the whole graph. Periodic decentralised SGD
activates the whole graph at once, with probability `budget`.
"""

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
    seed: int = 0,
) -> Algorithm:
    """Apply D-PSGD over matchings that are active with optimised probabilities.

    budget: expected share of the matchings that talk in a round, in (0, 1].
    order, weighting: as in `algorithms.dpsgd`. seed: of the activations.
    """
    matchings, partners = graph_matchings(graph)
    workers = graph.number_of_nodes()
    p = sampling.activation_probabilities(matchings, workers, budget)
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
    seed: int = 0,
) -> Algorithm:
    """Average over all links at once with probability `budget`, else none (periodic D-PSGD)."""
    sampling.check_budget("periodic", budget)
    matchings, partners = graph_matchings(graph)
    whole = np.array([budget])
    active = drawn_in_blocks(
        lambda block, rows: np.repeat(
            sampling.activations(whole, rows, (seed, block)), len(matchings), axis=1
        )
    )
    alpha = mixing.best_step(graph)
    return _gossip_over(optimizer, graph, Links(partners, active), alpha, order, weighting)
