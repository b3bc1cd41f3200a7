"""Sketched SGD: one sketch of the whole gradient, and steps along its heavy hitters.

D. Rothchild et al., *FetchSGD*, arXiv 2007.07682, Algorithm 1; N. Ivkin et al., *Communication-
efficient distributed SGD with sketching*, arXiv 1903.04488. S is the mean of the workers' sketches.
The server keeps one copy of momentum u and error e, both sketches. So workers keep nothing, and any
of them may be absent:

    u <- decay u + S,  e <- e + u,  x <- top-k of the medians of e

Then cells of u and e that x touches are set to 0, as in the authors' code. Algorithm 1 has
e <- e - sketch(x), which loses nothing but diverges unless k is small: top-k picks an entry of
noise if two of its three cells are large. m picked entries hash to a large cell; m is Poisson with
mean l = 0.8 sqrt(k d) / c, for d entries and c columns. The cell loses its content m times, and
each pick adds to a third cell. The energy changes by l^2 - l / 2, and grows if sqrt(k d) > .6 c.

The learning rate is applied after e, not inside it; at a constant rate both are the same.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from algorithms.base import AXIS, WEIGHTINGS, Algorithm, choose, freeze_when_idle, whole
from comms import collectives, sketch, sparse
from comms.messages import Payload


class SketchedState(NamedTuple):
    """Memory of the server."""

    momentum: jax.Array  # [rows, columns]
    error: jax.Array  # [rows, columns]


def sketch_mean(rows: int, ratio: float, seed: int) -> optax.GradientTransformationExtraArgs:
    """Replace contributions by the sketch, [rows, columns], of their weighted mean."""

    def update_fn(updates, state, params=None, *, weight=None, **extra):
        del params, extra
        flat, _ = ravel_pytree(updates)
        table = sketch.encode(flat, rows, _columns(flat.size, rows, ratio), seed)
        return collectives.weighted_mean(table, weight, AXIS), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def heavy_hitters(
    rows: int, ratio: float, k_ratio: float, decay: float, seed: int
) -> optax.GradientTransformation:
    """Replace a sketch by the accumulated error's k_ratio * size largest entries; others are 0."""

    def init_fn(params):
        shape = (rows, _columns(_entries(params), rows, ratio))
        return SketchedState(jnp.zeros(shape), jnp.zeros(shape))

    def update_fn(table, state, params):
        flat, restore = ravel_pytree(params)
        momentum = decay * state.momentum + table
        error = state.error + momentum
        estimates = sketch.decode(error, flat.size, seed)
        k = max(1, round(k_ratio * flat.size))
        update = sparse.decode(sparse.top_k(estimates, k), flat.size)
        applied = sketch.encode(update, *table.shape, seed)
        kept = SketchedState(*(jnp.where(applied != 0, 0, cells) for cells in (momentum, error)))
        return restore(update.astype(flat.dtype)), kept

    return optax.GradientTransformation(init_fn, update_fn)


def sketched_sgd(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.1,
    rows: int = 3,
    k_ratio: float = 0.01,
    momentum: float = 0.0,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce a sketch, then let `optimizer` step along its heavy hitters.

    ratio: size of the sketch relative to the gradient. rows: of the sketch.
    k_ratio: share of entries that a step changes.
    momentum: decay of the momentum in sketch space, which replaces the optimizer's momentum.
    """
    whole("sketched_sgd", rows=rows)
    if not (0 < ratio <= 1 and 0 < k_ratio <= 1 and rows >= 1 and 0 <= momentum < 1):
        raise ValueError(
            "sketched_sgd: needs 0 < ratio, k_ratio <= 1, rows >= 1 and 0 <= momentum < 1, got "
            f"{ratio}, {k_ratio}, {rows} and {momentum}; correct it"
        )

    def messages(params, workers, row):
        del workers, row
        size = sketch.payload_bytes(rows, _columns(_entries(params), rows, ratio))
        return (Payload((size,), encoded=True),)

    return Algorithm(
        exchange=sketch_mean(rows, ratio, seed),
        messages=messages,
        server=freeze_when_idle(
            optax.chain(heavy_hitters(rows, ratio, k_ratio, momentum, seed), optimizer)
        ),
        weight=choose("weighting", WEIGHTINGS, weighting),
    )


def _columns(size: int, rows: int, ratio: float) -> int:
    return max(1, round(ratio * size / rows))


def _entries(tree) -> int:
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree))
