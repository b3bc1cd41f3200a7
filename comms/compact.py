"""Exact all-reduce of row-sparse arrays: only rows that are non-zero on some worker are sent.

The workers agree on the union of their non-zero rows by a bitmap, and all-reduce these rows,
compacted into a budget, without loss. S2 Reducer (arXiv 2110.02140) has the same bitmap.
`owned_all_reduce` sends the non-zero rows of a worker without agreeing on the union first.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap
from comms.collectives import AXIS


def all_reduce(x, budget: int, axis: str = AXIS) -> tuple[jax.Array, jax.Array]:
    """Return the sum of x, [n] or [n, ...], over the workers, and bool scalar: True if sent dense.

    A union of more than `budget` rows does not fit and is all-reduced dense. On CPU meshes, and
    under `vmap` of up to 5 workers, the result has the bits of `psum(x)`, except that -0 may become
    +0; elsewhere it is equal up to rounding. Raises ValueError if the budget is negative.
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
    """Sum the rows of x that a common bitmap marks, at most `budget`, over the workers."""
    rows = bitmap.positions(words, min(budget, len(x)))
    sent = x.at[rows].get(mode="fill", fill_value=0)
    # Fused into the sum of simulated workers, the gather would change the order of addition.
    total = jax.lax.psum(jax.lax.optimization_barrier(sent), axis)
    return jnp.zeros_like(x).at[rows].set(total, mode="drop", indices_are_sorted=True)


def dense_sum(x, fell_back, axis: str = AXIS) -> jax.Array:
    """Sum x over the workers, for the branch that is taken where `fell_back`.

    In shard_map's types the result varies over the axis, as `sum_of_rows` does: branches agree.
    """
    varies = x.ravel()[:0].astype(bool).any()  # always false
    return jnp.where(fell_back | varies, jax.lax.psum(x, axis), 0)


# Through owners: row i belongs to worker i mod n. Workers push their non-zero rows to the owners,
# in lists of a fixed length; these add them up and send all workers the sums, as parameter servers
# with shards on the workers do, and OmniReduce's aggregators (Fei et al., SIGCOMM 2021).


class Room(NamedTuple):
    """Rows that fit in a worker's list for one owner, and in an owner's list for all."""

    push: int
    pull: int


def room(workers: int, size: int, own: int, union: int) -> Room:
    """Return the room for `own` rows of a worker and `union` rows of all, which spread by chance.

    A list holds its mean plus four standard deviations, at most an owner's share of `size` rows.
    """
    owned = -(-size // workers)

    def of_owner(rows: int) -> int:
        mean = min(rows, size) / workers
        return min(owned, int(np.ceil(mean + 4 * np.sqrt(mean * (1 - 1 / workers)))))

    return Room(of_owner(own), of_owner(union))


class Sum(NamedTuple):
    """Result of the sum, the same on all workers."""

    total: jax.Array  # shape of x
    push_overflow: jax.Array  # [] int32, rows too many in the fullest list of a worker
    pull_overflow: jax.Array  # [] int32, rows too many in the fullest list of an owner


def owned_all_reduce(x, fits: Room, axis: str = AXIS) -> Sum:
    """Sum x [n, ...] over the workers through owners, or dense where lists overflow.

    An overflow of a worker's list is known before any rows are sent, and an overflow of an owner's
    list only after rows have been pushed.
    """
    workers, owned = jax.lax.axis_size(axis), -(-len(x) // jax.lax.axis_size(axis))
    padded = jnp.pad(x, [(0, workers * owned - len(x))] + [(0, 0)] * (x.ndim - 1))
    by_owner = padded.reshape(owned, workers, *x.shape[1:]).swapaxes(0, 1)  # [workers, owned, ...]
    words = jax.vmap(lambda part: bitmap.pack(bitmap.occupied(part)))(by_owner)
    push_overflow = _most(jax.vmap(bitmap.count)(words).max() - fits.push, axis)

    def pushed(x):
        own = _owned_sum(by_owner, words, fits.push, axis)
        held = bitmap.pack(bitmap.occupied(own))
        overflow = _most(bitmap.count(held) - fits.pull, axis)

        def pulled(x):
            listed = jax.lax.all_gather(_listed(own, held, fits.pull), axis)
            parts = jax.vmap(
                lambda rows, values: jnp.zeros_like(own).at[rows].set(values, mode="drop")
            )(*listed)
            return parts.swapaxes(0, 1).reshape(padded.shape)[: len(x)]

        dense = functools.partial(dense_sum, fell_back=overflow > 0, axis=axis)
        return jax.lax.cond(overflow > 0, dense, pulled, x), overflow

    def all_dense(x):
        return dense_sum(x, push_overflow > 0, axis), jnp.int32(0) * push_overflow

    total, pull_overflow = jax.lax.cond(push_overflow > 0, all_dense, pushed, x)
    return Sum(total, push_overflow, pull_overflow)


def _owned_sum(by_owner, words, room: int, axis):
    """Sum the rows [owned, ...] that this worker owns, added in the order of the workers."""
    lists = jax.vmap(lambda part, words: _listed(part, words, room))(by_owner, words)
    received = jax.tree.map(lambda a: jax.lax.all_to_all(a, axis, 0, 0), lists)

    def add(total, listed):
        rows, values = listed
        return total.at[rows].add(values, mode="drop"), None

    return jax.lax.scan(add, jnp.zeros_like(by_owner[0]), received)[0]


def _listed(part, words, room: int):
    """Return (positions [room], rows [room, ...]) of an array's non-zero rows by its bitmap."""
    rows = bitmap.positions(words, room)
    return rows, part.at[rows].get(mode="fill", fill_value=0)


def _most(overflow, axis):
    """Return the largest overflow of any worker, 0 if there is none."""
    return jnp.maximum(jax.lax.pmax(overflow, axis), 0)
