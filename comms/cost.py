"""What a message costs: bytes that a worker sends, and seconds in the alpha-beta model.

A transfer of x bytes takes alpha + beta x seconds: start-up and inverse bandwidth.
"""

from typing import NamedTuple

import jax  # pytrees only
import numpy as np


class AlphaBeta(NamedTuple):
    """Cost model of an operation: ``alpha`` seconds and ``beta`` seconds per byte of payload."""

    alpha: float
    beta: float

    def seconds(self, payload):
        """Seconds for a payload in bytes, a number or an array."""
        return self.alpha + self.beta * payload


def payload_bytes(tree) -> int:
    """Bytes of all leaves of a pytree of arrays or ``jax.ShapeDtypeStruct``, padding aside."""
    return sum(int(leaf.size) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def ring_all_reduce_bytes(payload: int, workers: int, itemsize: int = 4) -> int:
    """Bytes that each worker sends to all-reduce one buffer of ``payload`` bytes by a ring.

    2 (n - 1) / n of the payload, with its elements of ``itemsize`` bytes padded to whole chunks.
    """
    chunk = -(-payload // (itemsize * workers))
    return 2 * (workers - 1) * chunk * itemsize


def gossip_bytes(payload: int, degrees) -> np.ndarray:
    """Bytes that each worker [n] sends in one round: the payload to each of its neighbours [n]."""
    return payload * np.asarray(degrees)


def ring(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Cost of a ring all-reduce over links (alpha, beta); ``gamma``: seconds per byte to add.

    Shi, Chu, Li, "MG-WFBP", arXiv 1811.11141. Free for a single worker.
    """
    others = workers - 1
    return AlphaBeta(2 * others * alpha, (2 * beta + gamma) * others / workers)


def neighbour_exchange(matchings: int, alpha: float, beta: float) -> AlphaBeta:
    """Cost of one round of gossip: the graph's matchings in sequence, the links of each at once.

    MATCHA, arXiv 1905.09435: a matching is the unit of communication time.
    """
    return AlphaBeta(matchings * alpha, matchings * beta)
