"""Sparse all-gather: every worker sends the non-zero rows of its own gradient.

Frameworks usually treat sparse gradients of embedding tables in this way, and S2 Reducer (arXiv
2110.02140) is compared with it. The sum is exact, but a worker's received bytes grow with the
number of workers. Rows and their indices fill a fixed budget. Where a worker has more rows, all
workers send everything; `fallbacks` and `fallback_bytes` count such updates and their bytes.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm
from algorithms.row_sparse import AGREEMENT, budget_rows, in_lists, list_bytes, with_tables_reduced
from comms import bitmap
from comms.messages import Payload


def gathered_rows(x, words, budget: int) -> jax.Array:
    """Sum arrays [n, ...] of at most `budget` non-zero rows each; words: bitmap of x's rows."""
    position = bitmap.positions(words, budget)
    values = x.at[position].get(mode="fill", fill_value=0)
    message = jax.lax.all_gather((position, values), AXIS)

    def add(total, message):
        return total.at[message[0]].add(message[1], mode="drop"), None

    return jax.lax.scan(add, jnp.zeros_like(x), message)[0]


def sparse_all_gather(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    ratio: float | None = None,
    budget: int | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Gather the non-zero rows of all workers, then let `optimizer` take one step on their mean.

    sparse: as in `s2_reducer`. ratio, budget: rows of a table that a worker may send, as a share of
    the table or as a number.
    """
    budget_of = budget_rows("sparse_all_gather", ratio, budget)

    def payload(leaf, workers, update):
        return Payload((AGREEMENT,), (list_bytes(budget_of(leaf.shape[0]), leaf),))

    reducer = in_lists(budget_of, gathered_rows, payload)
    return with_tables_reduced("sparse_all_gather", optimizer, reducer, sparse, weighting)
