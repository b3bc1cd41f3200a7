"""OmniReduce: blocks of a gradient that are not zero, added up by aggregators.

J. Fei, C.-Y. Ho, A. N. Sahu, M. Canini, A. Sapio, *Efficient Sparse Collective Communication and
its application to Accelerate Distributed Deep Learning*, SIGCOMM 2021, Sec. 3: a gradient is cut
into blocks of 256 elements. Workers send the non-zero blocks, with their numbers, to an aggregator,
which sends all workers the sums. The aggregators live on the workers (colocated mode) and share the
blocks. Exact: one step is one of `all_reduce`. The paper streams blocks, each with the number of
the next one; here lists have a fixed length, and where one is too short all workers send
everything, which the records count as `fallbacks`.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms.base import Algorithm
from algorithms.compression import Reducer
from algorithms.parallax import through_owners
from algorithms.row_sparse import budget_rows, with_tables_reduced


def in_blocks(inner: Reducer, block: int) -> Reducer:
    """Let a reducer of arrays [n, ...] take blocks of elements for rows, the last padded."""

    def shape(leaf):
        return jax.ShapeDtypeStruct((-(-leaf.size // block), block), leaf.dtype)

    def reduce(x, state, draw):
        blocks = jnp.pad(x.ravel(), (0, -x.size % block)).reshape(-1, block)
        total, _, state = inner.reduce(blocks, state, draw)
        return total.ravel()[: x.size].reshape(x.shape), x, state

    return Reducer(
        lambda leaf: inner.init(shape(leaf)),
        reduce,
        lambda leaf, workers, update: inner.payload(shape(leaf), workers, update),
        instead=lambda leaf, workers: inner.instead(shape(leaf), workers),
        pushed=lambda leaf: inner.pushed(shape(leaf)),
    )


def omnireduce(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    block: int = 256,
    ratio: float | None = None,
    budget: int | None = None,
    union_ratio: float | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Add up the non-zero blocks of gradients at aggregators, then let `optimizer` take one step.

    sparse: the parameters that are cut into blocks, as in `s2_reducer`; all others take part in a
        dense mean. block: elements of a block.
    ratio, budget: blocks that a worker may send of a parameter, relative to all or as a number.
    union_ratio: blocks of all workers together, relative to all; None: as if no two workers had a
        block in common.
    """
    if block < 1:
        raise ValueError(
            f"omnireduce: needs a block of 1 element or more, got {block}; 256 is usual"
        )
    own_of = budget_rows("omnireduce", ratio, budget)
    union_of = None if union_ratio is None else budget_rows("omnireduce", union_ratio, None)
    reducer = in_blocks(through_owners(own_of, union_of), block)
    return with_tables_reduced("omnireduce", optimizer, reducer, sparse, weighting)
