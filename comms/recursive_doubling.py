"""Exact all-reduce of row-sparse arrays by lists that are merged with a partner at every step.

C. Renggli, S. Ashkboos, M. Aghagolzadeh, D. Alistarh, T. Hoefler, "SparCML: High-performance sparse
communication for machine learning", SC 2019, arXiv 1802.08021, Sec. 5: recursive doubling, in which
a list that would not be shorter than the array is replaced by the array, from then on. There the
lengths of the actual lists decide; here, where programs have static shapes, the room for rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import bitmap
from comms.collectives import AXIS


class Step(NamedTuple):
    """One message of every worker that has a partner."""

    partners: np.ndarray  # [workers], itself where there is none
    capacity: int | None  # rows of the list; None: the array is sent
    replaces: bool  # the later half replaces its array by the message, instead of adding it


def steps(workers: int, size: int, own: int, row_bytes: int) -> list[Step]:
    """Return the messages for an array of `size` rows, at most `own` non-zero ones per worker.

    Workers beyond a power of two first meet one below it, and get the result from it at the end;
    both times they swap, as `ppermute` needs a permutation.
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


def payload_bytes(step: Step, size: int, row_bytes: int) -> int:
    """Return the bytes of a step's message: int32 indices and rows, or all rows."""
    return size * row_bytes if step.capacity is None else step.capacity * (4 + row_bytes)


def all_reduce(x, own: int, axis: str = AXIS) -> jax.Array:
    """Sum x [n, ...] over the workers, each with at most `own` non-zero rows.

    The workers add up in pairs, both in the same way, so that all get equal bits.
    """
    workers, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    row_bytes = x.itemsize * x[:1].size if len(x) else 0
    for step in steps(workers, len(x), own, row_bytes):
        pairs = [(int(partner), worker) for worker, partner in enumerate(step.partners)]
        heard = _heard(x, step.capacity, pairs, axis)
        everyone = np.arange(workers)
        if step.replaces:
            takes = step.partners < everyone
            x = jnp.where(jnp.asarray(takes)[me], heard, x)
        else:
            meets = step.partners != everyone
            x = x + jnp.where(jnp.asarray(meets)[me], heard, 0)
    return x


def _heard(x, capacity: int | None, pairs: list[tuple[int, int]], axis):
    """Return the partner's array, sent as it is or as a list of its non-zero rows."""
    if capacity is None:
        return jax.lax.ppermute(x, axis, pairs)
    rows = bitmap.positions(bitmap.pack(bitmap.occupied(x)), capacity)
    listed = rows, x.at[rows].get(mode="fill", fill_value=0)
    rows, values = jax.lax.ppermute(listed, axis, pairs)
    return jnp.zeros_like(x).at[rows].set(values, mode="drop")
