"""Sparse all-gather: every worker sends the non-zero rows of its own gradient.

The usual treatment of sparse gradients of embedding tables in frameworks, with which S2 Reducer
(arXiv 2110.02140) is compared: exact, but the bytes that a worker receives grow with the number of
workers. Rows and their indices fill a fixed budget; where a worker has more, all send everything,
which the metrics `fallbacks` and `fallback_bytes` count.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compression import Reducer
from algorithms.row_sparse import budget_rows, row_bytes, with_tables_reduced
from comms import bitmap
from comms.messages import Payload


def gathered_rows(budget_of) -> Reducer:
    """Sum arrays [n, ...], each of at most budget_of(n) non-zero rows, or else dense."""

    def payload(leaf, workers, update):
        return Payload((4,), (list_bytes(leaf),))  # a flag that all fit; indices and values

    def list_bytes(leaf):
        return budget_of(leaf.shape[0]) * (4 + row_bytes(leaf.shape))

    def reduce(x, state, draw):
        words = bitmap.pack(bitmap.occupied(x))
        budget = budget_of(len(x))
        most = jax.lax.pmax(bitmap.count(words), AXIS)
        fell_back = most > budget

        def listed(x):
            position = bitmap.positions(words, budget)
            values = x.at[position].get(mode="fill", fill_value=0)
            message = jax.lax.all_gather((position, values), AXIS)

            def add(total, message):
                return total.at[message[0]].add(message[1], mode="drop"), None

            return jax.lax.scan(add, jnp.zeros_like(x), message)[0]

        total = jax.lax.cond(fell_back, lambda x: jax.lax.psum(x, AXIS), listed, x)
        left = jnp.maximum(most - budget, 0)
        return total, x, compression.count_fallback(state, fell_back.astype(jnp.int32), left)

    return Reducer(
        lambda leaf: compression.no_fallbacks(1),
        reduce,
        payload,
        instead=lambda leaf, workers: ((Payload((4, leaf.shape[0] * row_bytes(leaf.shape))),),),
        pushed=lambda leaf: Payload(gathered=(list_bytes(leaf),)),
    )


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
    reducer = gathered_rows(budget_rows("sparse_all_gather", ratio, budget))
    return with_tables_reduced("sparse_all_gather", optimizer, reducer, sparse, weighting)
