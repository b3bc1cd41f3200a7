"""D-PSGD: every worker steps on its own model and averages with its neighbours on a graph.

X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu, *Can Decentralized Algorithms Outperform
Centralized Algorithms?*, arXiv 1705.09056. With the waiting rule `first_finisher` it is
Non-blocking SGD over D-PSGD (H. He, P. Dube, arXiv 2211.00889).

The default order is the paper's, combine while adapting; see `algorithms.gossip`.
"""

import networkx as nx
import numpy as np
import optax

from algorithms.base import Algorithm, choose, freeze_when_idle
from algorithms.gossip import ORDERS, mixing_over, scale_by_finished
from algorithms.links import Links


def dpsgd(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    mixing_matrix: str | np.ndarray | None = None,
    order: str = "combine_while_adapting",
    weighting: str = "equal",
    links: Links | None = None,
) -> Algorithm:
    """Step locally with `optimizer`, and average models over the neighbours of `graph`.

    mixing_matrix: a name in `comms.mixing.MIXINGS`, or your own weights, [n, n], symmetric with
        rows that sum to 1, and 0 where the graph has no edge; None: metropolis. Graphs and links
        that change with time have weights of their own instead.
    order: of mixing and stepping, see the two formulas of `algorithms.gossip`.
    weighting: step length of a worker that finished only some of its mini-batches: "equal",
        "confidence" or "local_sum", see `algorithms.gossip`.
    links: links of `graph` that an update uses, and their weights, for graphs that change with
        time; None: as the graph says, see `algorithms.gossip.mixing_over`.
    """
    mixes = choose("order", ORDERS, order)
    over = mixing_over(graph, mixing_matrix, links)
    exchange = optax.chain(
        freeze_when_idle(optimizer), scale_by_finished(weighting), mixes.combine(over.mix)
    )
    return over.method(exchange, beside_gradient=mixes.beside_gradient)
