"""SparCML: lists of non-zero rows merged by recursive doubling, dense where an array is shorter.

C. Renggli et al., *SparCML: High-Performance Sparse Communication for Machine Learning*, SC 2019,
arXiv 1802.08021, Sec. 5 (SSAR_Recursive_double, and its switch to a dense array beyond the size
delta at which an array is as short as a list). `doubling_all_reduce` computes the exact sum. A
merged list has room for all rows of both lists. The rows of a worker have a budget. If a worker
exceeds it, all workers send everything; the records count such updates as `fallbacks`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm
from algorithms.row_sparse import AGREEMENT, budget_rows, in_lists, row_bytes, with_tables_reduced
from comms import bitmap, gossip
from comms.messages import Payload


class Step(NamedTuple):
    """One message of every worker that has a partner."""

    partners: np.ndarray  # [workers], a worker itself if it has no partner
    capacity: int | None  # rows of the list; None: the array is sent
    replaces: bool  # True: workers with a lower partner take its array; False: partners add arrays


def steps(workers: int, size: int, own: int, row_bytes: int) -> list[Step]:
    """Return the messages for an array of `size` rows, at most `own` non-zero ones per worker.

    Each worker beyond the largest power of two first meets a worker below, and gets the result from
    the same worker at the end. Both meetings swap messages, as `ppermute` needs a permutation.
    """
    power = 1 << (workers.bit_length() - 1)
    everyone = np.arange(workers)
    beyond = everyone.copy()
    extra = workers - power
    beyond[:extra], beyond[power:] = everyone[power:], everyone[:extra]

    def capacity(sources: int) -> int | None:
        rows = min(size, sources * own)
        return rows if rows * (4 + row_bytes) < size * row_bytes else None

    found = [Step(beyond, capacity(1), replaces=False)] if extra else []
    distance = 1
    while distance < power:
        partners = np.where(everyone < power, everyone ^ distance, everyone)
        found.append(Step(partners, capacity(distance * (2 if extra else 1)), replaces=False))
        distance *= 2
    return [*found, Step(beyond, capacity(workers), replaces=True)] if extra else found


def doubling_bytes(step: Step, size: int, row_bytes: int) -> int:
    """Return the bytes of a step's message: int32 indices and rows, or all rows."""
    return size * row_bytes if step.capacity is None else step.capacity * (4 + row_bytes)


def doubling_all_reduce(x, own: int, axis: str = AXIS) -> jax.Array:
    """Sum x [n, ...] over the workers, each with at most `own` non-zero rows.

    Both workers of a pair add the same two arrays, so that all workers get equal bits.
    """
    workers, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    row_bytes = x.itemsize * x[:1].size if len(x) else 0
    for step in steps(workers, len(x), own, row_bytes):
        heard = _heard(x, step, axis)
        everyone = np.arange(workers)
        if step.replaces:
            takes = step.partners < everyone
            x = jnp.where(jnp.asarray(takes)[me], heard, x)
        else:
            meets = step.partners != everyone
            x = x + jnp.where(jnp.asarray(meets)[me], heard, 0)
    return x


def _heard(x, step: Step, axis):
    """Return the partner's array, sent as it is or as a list of its non-zero rows."""
    if step.capacity is None:
        return gossip.hear(x, step.partners, axis)
    rows = bitmap.positions(bitmap.pack(bitmap.occupied(x)), step.capacity)
    listed = rows, x.at[rows].get(mode="fill", fill_value=0)
    rows, values = gossip.hear(listed, step.partners, axis)
    return jnp.zeros_like(x).at[rows].set(values, mode="drop")


def sparcml(
    optimizer: optax.GradientTransformation,
    *,
    sparse: tuple[str, ...] | str = "auto",
    ratio: float | None = None,
    budget: int | None = None,
    weighting: str = "proportional",
) -> Algorithm:
    """Add up row-sparse gradients by recursive doubling, then let `optimizer` take one step.

    sparse: as in `s2_reducer`. ratio, budget: rows of a table that a worker may send, as a share of
    the table or as a number.
    """
    budget_of = budget_rows("sparcml", ratio, budget)

    def payload(leaf, workers, update):
        size, row = leaf.shape[0], row_bytes(leaf.shape)
        sent = tuple(
            Payload(exchanged=doubling_bytes(step, size, row), matchings=step.partners[None])
            for step in steps(workers, size, budget_of(size), row)
        )
        return Payload((AGREEMENT,)), *sent

    def summed(x, words, budget):
        return doubling_all_reduce(x, budget, AXIS)

    reducer = in_lists(budget_of, summed, payload)
    return with_tables_reduced("sparcml", optimizer, reducer, sparse, weighting)
