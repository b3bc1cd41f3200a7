"""Exact all-reduce of row-sparse arrays: only rows that are non-zero on some worker are sent.

The workers agree on the union of their non-zero rows by a bitmap, and all-reduce these rows,
compacted into a budget, without loss. The bitmap is the one of S2 Reducer (arXiv 2110.02140).
`comms.owners` sends the non-zero rows of a worker without agreeing on the union first.
"""

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap
from comms.collectives import AXIS


def all_reduce(x, budget: int, axis: str = AXIS) -> tuple[jax.Array, jax.Array]:
    """Return the sum of x, [n] or [n, ...], over the workers, and bool scalar: True if sent dense.

    A union of more than `budget` rows does not fit and is all-reduced dense. Either way the
    result has the bits of `psum(x)` (but that -0 may come back as +0) where the backend adds
    the workers in an order that does not depend on the array's size: CPU meshes do, and `vmap`
    on CPU does for up to 5 workers; beyond that, equal to rounding. Raises ValueError if the
    budget is negative.
    """
    if budget < 0:
        raise ValueError(
            f"compact: a budget of {budget} rows holds nothing; set the rows of an expected union"
        )
    return sum_within(x, bitmap.union(bitmap.pack(bitmap.occupied(x)), axis), budget, axis)


def sum_within(x, words, budget: int, axis: str = AXIS) -> tuple[jax.Array, jax.Array]:
    """Sum as `all_reduce` does, with the bitmap of the union at hand."""
    fell_back = bitmap.count(words) > min(budget, len(x))
    # All workers hold the same union, so that all of them take the same branch.
    total = jax.lax.cond(
        fell_back,
        lambda x: dense_sum(x, fell_back, axis),
        lambda x: sum_of_rows(x, words, budget, axis),
        x,
    )
    return total, fell_back


def sum_of_rows(x, words, budget: int, axis: str = AXIS) -> jax.Array:
    """Sum over the workers the rows of x that a common bitmap names, at most `budget`."""
    rows = bitmap.positions(words, min(budget, len(x)))
    sent = x.at[rows].get(mode="fill", fill_value=0)
    # Fused into the sum of simulated workers, the gather would change the order of addition.
    total = jax.lax.psum(jax.lax.optimization_barrier(sent), axis)
    return jnp.zeros_like(x).at[rows].set(total, mode="drop", indices_are_sorted=True)


def dense_sum(x, fell_back, axis: str = AXIS) -> jax.Array:
    """Sum x over the workers, for the branch that is taken where `fell_back`.

    For shard_map's types compacted rows vary over the axis, as their indices do, and a sum alone
    would not; all branches must agree.
    """
    varies = x.ravel()[:0].astype(bool).any()  # always false
    return jnp.where(fell_back | varies, jax.lax.psum(x, axis), 0)


def payload_bytes(shape: tuple[int, ...], dtype, budget: int, fell_back: bool = False) -> int:
    """Return the bytes of the bitmap and of compacted rows, or of all rows after a fallback."""
    rows = shape[0] if fell_back else min(budget, shape[0])
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * np.dtype(dtype).itemsize
    return bitmap.payload_bytes(shape[0]) + rows * row_bytes
