"""Parallax: rows of sparse parameters pushed to the servers that own them, the rest all-reduced.

S. Kim et al., *Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks*, EuroSys
2019, arXiv 1808.02621, Sec. 3: parameter servers for sparse variables, partitioned over the nodes
(Sec. 3.2), an all-reduce for dense ones. The sum is exact: a step equals one of `all_reduce`.

Here every worker keeps a copy of the table, and gets the sums of all changed rows. Parallax's
workers keep no copy: each pulls the rows of its next mini-batch, as many as it pushes. Lists have a
fixed length. Where a list is too short, all workers send everything; the records count such updates
as `fallbacks`.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compression import Reducer
from algorithms.row_sparse import AGREEMENT, budget_rows, row_bytes, with_tables_reduced
from comms import compact
from comms.messages import Payload


def through_owners(
    method: str, ratio: float | None, budget: int | None, union_ratio: float | None
) -> Reducer:
    """Sum arrays [n, ...] at their rows' owners, or dense if lists overflow; see `comms.compact`.

    ratio, budget, union_ratio: as in `parallax`; method: name of the method, for errors.
    """
    own_of = budget_rows(method, ratio, budget)
    union_of = None if union_ratio is None else budget_rows(method, union_ratio, None)

    def room(size, workers):
        own = own_of(size)
        union = min(size, workers * own) if union_of is None else union_of(size)
        return compact.room(workers, size, own, union)

    def payload(leaf, workers, update):
        fits, listed = room(leaf.shape[0], workers), 4 + row_bytes(leaf.shape)
        return (
            Payload((AGREEMENT,)),
            Payload((AGREEMENT,), (fits.push * listed,)),
            Payload(gathered=(fits.pull * listed,)),
        )

    def instead(leaf, workers):
        agreement, pushed, _ = payload(leaf, workers, 0)
        dense = leaf.shape[0] * row_bytes(leaf.shape)
        return (Payload((AGREEMENT, dense)),), (agreement, pushed, Payload((dense,)))

    def reduce(x, state, draw):
        fits = room(len(x), jax.lax.axis_size(AXIS))
        found = compact.owned_all_reduce(x, fits, AXIS)
        chosen = jnp.where(found.push_overflow > 0, 1, jnp.where(found.pull_overflow > 0, 2, 0))
        left = found.push_overflow + found.pull_overflow
        return found.total, x, compression.count_fallback(state, chosen, left)

    def pushed(leaf):
        return Payload(gathered=(own_of(leaf.shape[0]) * (4 + row_bytes(leaf.shape)),))

    return Reducer(
        lambda leaf: compression.no_fallbacks(2), reduce, payload, instead=instead, pushed=pushed
    )


def parallax(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    ratio: float | None = None,
    budget: int | None = None,
    union_ratio: float | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Push non-zero rows to their owners, which add them up, then let `optimizer` take one step.

    sparse: as in `s2_reducer`. ratio, budget: non-zero rows expected of a worker, as a share of the
    table or as a number; they size the lists. union_ratio: non-zero rows expected of all workers
    together, as a share; None: as if no two workers had a row in common.
    """
    reducer = through_owners("parallax", ratio, budget, union_ratio)
    return with_tables_reduced("parallax", optimizer, reducer, sparse, weighting)
