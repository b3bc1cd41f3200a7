"""Exact sum of row-sparse arrays through owners: every row is added up by one of the workers.

Row i belongs to worker i mod n. Workers push the non-zero rows to their owners, which add them up
and send all workers the sums: as parameter servers with shards on the workers do, and the
aggregators of OmniReduce (Fei et al., SIGCOMM 2021). Lists have a fixed length.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap
from comms.collectives import AXIS


class Room(NamedTuple):
    """Room for rows in the list of one worker for one owner, and in that of an owner for all."""

    push: int
    pull: int


def room(workers: int, size: int, own: int, union: int) -> Room:
    """Return the room for `own` rows of a worker and `union` rows of all, which spread by chance.

    Four standard deviations more than the mean number of rows of an owner, but never more than the
    owner's share of `size` rows.
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


def all_reduce(x, fits: Room, dense: Callable, axis: str = AXIS) -> Sum:
    """Sum x [n, ...] over the workers; dense: (x, bool scalar) -> the sum where lists overflow.

    An overflow of a worker's list is known before any rows are sent, one of an owner's list
    when the rows have been pushed.
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
            parts = jax.vmap(lambda rows, values: _placed(rows, values, own))(*listed)
            return parts.swapaxes(0, 1).reshape(padded.shape)[: len(x)]

        return jax.lax.cond(overflow > 0, lambda x: dense(x, overflow > 0), pulled, x), overflow

    def all_dense(x):
        return dense(x, push_overflow > 0), jnp.int32(0) * push_overflow

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


def _placed(rows, values, like):
    return jnp.zeros_like(like).at[rows].set(values, mode="drop")


def _most(overflow, axis):
    """Return the largest of the workers' overflows, 0 if none has any."""
    return jnp.maximum(jax.lax.pmax(overflow, axis), 0)
