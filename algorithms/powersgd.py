"""PowerSGD: gradients all-reduced as two thin factors, with error feedback and a warm start.

T. Vogels, S. P. Karimireddy, M. Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization*, arXiv 1905.13727, Algorithms 1 and 2.
"""

import jax
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer
from comms import powersgd as codec
from comms.messages import Payload


def low_rank(rank: int, seed: int) -> Reducer:
    """Sum arrays that are larger than their factors, to rank `rank`; the state is Q."""

    def reduce(x, q, draw):
        total, q = codec.all_reduce(x, q, AXIS)
        return total, compression.share(total, draw), q

    def payload(leaf, workers, update):
        n, m, r = codec.factor_shape(leaf.shape, rank)
        return Payload((4 * n * r, 4 * m * r))

    return Reducer(lambda leaf: codec.init(leaf.shape, rank, jax.random.key(seed)), reduce, payload)


def powersgd(
    optimizer: optax.GradientTransformation,
    *,
    rank: int = 2,
    warmup_updates: int = 0,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce a low-rank approximation, keep its error for later, then step.

    rank: of every matrix; parameters that would not get smaller are all-reduced as they are.
    warmup_updates: this number of updates at the start are all-reduced dense.
    Every update needs all workers: a rule in rounds.
    """
    codec.factor_shape((), rank)  # raises ValueError for a rank of 0
    reducer = compression.with_dense_warmup(low_rank(rank, seed), warmup_updates)
    reducer = compression.with_error_feedback(reducer)
    return compressed(
        "powersgd",
        optimizer,
        lambda path, leaf: reducer if codec.factor_shape(leaf.shape, rank) else None,
        warmup_updates=warmup_updates,
        equal_memory=True,
        weighting=weighting,
        seed=seed,
    )
