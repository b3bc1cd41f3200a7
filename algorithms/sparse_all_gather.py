"""Sparse all-gather: every worker sends the rows of its own gradient that are not zero.

What frameworks do with sparse gradients of embedding tables, and what S2 Reducer (arXiv 2110.02140)
is compared with: exact, but what a worker receives grows with the number of workers. Rows and their
indices fill a fixed budget; where a worker has more, all send everything, which the metrics
`fallbacks` and `fallback_bytes` count.
"""

import math

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer
from algorithms.s2_reducer import budget_rows, row_sparse, with_known_paths
from comms import bitmap
from comms.messages import Payload


def gathered_rows(budget_of) -> Reducer:
    """Sum of arrays [n, ...], each of at most budget_of(n) non-zero rows, or else dense."""

    def payload(leaf, workers, update):
        budget, row = budget_of(leaf.shape[0]), math.prod(leaf.shape[1:])
        return Payload((4,), (budget * (4 + 4 * row),))  # whether all fit; indices and values

    def reduce(x, state, draw):
        words = bitmap.pack(bitmap.occupied(x))
        budget = budget_of(len(x))
        fell_back = jax.lax.pmax(bitmap.count(words), AXIS) > budget

        def listed(x):
            position = bitmap.positions(words, budget)
            values = x.at[position].get(mode="fill", fill_value=0)
            message = jax.lax.all_gather((position, values), AXIS)

            def add(total, message):
                return total.at[message[0]].add(message[1], mode="drop"), None

            return jax.lax.scan(add, jnp.zeros_like(x), message)[0]

        total = jax.lax.cond(fell_back, lambda x: jax.lax.psum(x, AXIS), listed, x)
        sent = payload(x, jax.lax.axis_size(AXIS), 0)
        return total, x, compression.count_fallback(state, fell_back, sent, x.size)

    return Reducer(compression.no_fallbacks, reduce, payload)


def sparse_all_gather(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    ratio: float | None = None,
    budget: int | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Gather the non-zero rows of all workers, then let `optimizer` take one step on their mean.

    sparse: as in `s2_reducer`. ratio, budget: rows that a worker may send of a table, relative to
    the table or as a number.
    """
    chosen = row_sparse("sparse_all_gather", sparse)
    reducer = gathered_rows(budget_rows("sparse_all_gather", ratio, budget))
    method = compressed(
        "sparse_all_gather",
        optimizer,
        lambda path, leaf: reducer if chosen(path) and leaf.ndim else None,
        weighting=weighting,
    )
    return with_known_paths("sparse_all_gather", sparse, method)
