"""Plain mean over the workers, the exchange of many methods, and its messages."""

from collections import Counter

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, choose
from comms import collectives
from comms.messages import Payload, Row

COLLECTIVES = {
    "psum": collectives.weighted_mean,
    "ring": collectives.ring_weighted_mean,
}


def mean_over_workers(collective: str | None = None) -> optax.GradientTransformationExtraArgs:
    """Replace every worker's contribution by the weighted mean over workers.

    A worker of weight 0 adds nothing; if all weigh 0 the mean is 0. collective: in COLLECTIVES,
    by default "psum".
    """
    mean = choose("collective", COLLECTIVES, collective or "psum")

    def update_fn(updates, state, params=None, *, weight=None, **extra):
        del params, extra
        return mean(updates, weight, AXIS), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def mean_messages(params, workers: int, row: Row) -> tuple[Payload, ...]:
    """Return an all-reduce of everything, a buffer per dtype; integers travel as floats."""
    del workers, row
    elements = Counter()
    for leaf in jax.tree.leaves(params):
        elements[jnp.result_type(leaf.dtype, float)] += leaf.size
    return tuple(
        Payload((size * dtype.itemsize,), itemsize=dtype.itemsize)
        for dtype, size in elements.items()
    )
