"""D-PSGD: every worker steps on its own model and averages with its neighbours on a graph.

X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu, *Can Decentralized Algorithms Outperform
Centralized Algorithms?*, arXiv 1705.09056. With the waiting rule `first_finisher` it is
Non-blocking SGD over D-PSGD (H. He, P. Dube, arXiv 2211.00889).

The default order is the paper's, combine while adapting; see `algorithms.gossip`.
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
from algorithms.links import Links
from comms import gossip, mixing


def dpsgd(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    mixing_matrix: str = "metropolis",
    order: str = "combine_while_adapting",
    weighting: str = "equal",
    links: Links | None = None,
) -> Algorithm:
    """Local steps of `optimizer`, models averaged over the neighbours of `graph`.

    mixing_matrix: a name in `comms.mixing.MIXINGS`.
    order: when the neighbours' models are read, see the module's two formulas.
    weighting: "equal", "confidence" or "local_sum", how far a worker steps that finished only
        some of its mini-batches.
    links: links of `graph` that an update uses, for graphs that change with time, and what they
        weigh; None: all of them, always, as `mixing_matrix` says.
    """
    mixes = choose("order", ORDERS, order)
    weights = choose("mixing_matrix", mixing.MIXINGS, mixing_matrix)(graph)
    if links is None:
        _, partners = graph_matchings(graph)
    else:
        partners = links.partners
        heard = _weights(links, weights)

    def mix(tree, active):
        if links is None:
            return gossip.mix(tree, weights, partners, AXIS)
        return gossip.mix_active(tree, heard, partners, active, AXIS)

    return Algorithm(
        exchange=optax.chain(
            freeze_when_idle(optimizer), scale_by_finished(weighting), mixes.combine(mix)
        ),
        messages=gossip_messages(partners, mixes),
        graph=graph,
        links=links,
    )


def _weights(links: Links, mixing_matrix: np.ndarray) -> np.ndarray:
    """[M, n] weight of what every worker hears: as the links say, or else the matrix."""
    workers = len(mixing_matrix)
    shape = (len(links.partners), workers)
    weights = links.weights
    if weights is None and links.partners.shape == shape:
        weights = mixing_matrix[np.arange(workers), links.partners]
    if links.partners.shape != shape or np.shape(weights) != shape:
        raise ValueError(
            f"dpsgd: the graph has {workers} workers, but partners of the links are "
            f"{links.partners.shape} and their weights {np.shape(weights)}; give both as [M, "
            f"{workers}]"
        )
    return weights
