"""SparCML: lists of non-zero rows merged by recursive doubling, dense where an array is shorter.

C. Renggli et al., *SparCML: High-Performance Sparse Communication for Machine Learning*, SC 2019,
arXiv 1802.08021, Sec. 5 (SSAR_Recursive_double, and its switch to a dense array beyond the size
delta at which an array is as short as a list). Exact: one step is one of `all_reduce`. A list has
room for the rows of both sides. The rows of a worker have a budget; beyond it all workers send
everything, which the records count as `fallbacks`.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compression import Reducer
from algorithms.row_sparse import budget_rows, row_bytes, with_tables_reduced
from comms import bitmap, compact, recursive_doubling
from comms.messages import Payload

AGREEMENT = 4  # bytes of the largest number of rows of a worker


def doubled(budget_of) -> Reducer:
    """Sum arrays [n, ...], each of at most budget_of(n) non-zero rows, or else dense."""

    def payload(leaf, workers, update):
        size, row = leaf.shape[0], row_bytes(leaf.shape)
        sent = tuple(
            Payload(
                exchanged=recursive_doubling.payload_bytes(step, size, row),
                matchings=step.partners[None],
            )
            for step in recursive_doubling.steps(workers, size, budget_of(size), row)
        )
        return Payload((AGREEMENT,)), *sent

    def reduce(x, state, draw):
        budget = budget_of(len(x))
        most = jax.lax.pmax(bitmap.count(bitmap.pack(bitmap.occupied(x))), AXIS)
        fell_back = most > budget
        total = jax.lax.cond(
            fell_back,
            lambda x: compact.dense_sum(x, fell_back, AXIS),
            lambda x: recursive_doubling.all_reduce(x, budget, AXIS),
            x,
        )
        left = jnp.maximum(most - budget, 0)
        return total, x, compression.count_fallback(state, fell_back.astype(jnp.int32), left)

    def list_bytes(leaf):
        return budget_of(leaf.shape[0]) * (4 + row_bytes(leaf.shape))

    return Reducer(
        lambda leaf: compression.no_fallbacks(1),
        reduce,
        payload,
        instead=lambda leaf, workers: (
            (Payload((AGREEMENT, leaf.shape[0] * row_bytes(leaf.shape))),),
        ),
        pushed=lambda leaf: Payload(gathered=(list_bytes(leaf),)),
    )


def sparcml(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    ratio: float | None = None,
    budget: int | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Add up row-sparse gradients by recursive doubling, then let `optimizer` take one step.

    sparse: as in `s2_reducer`. ratio, budget: rows that a worker may send of a table, relative to
    the table or as a number.
    """
    reducer = doubled(budget_rows("sparcml", ratio, budget))
    return with_tables_reduced("sparcml", optimizer, reducer, sparse, weighting)
