"""1-bit Adam: Adam with dense gradients first, then momentum in one bit per entry.

H. Tang et al., *1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed*, arXiv 2102.02888, Algorithm 1. Adam's variance settles early. So the first updates are
Adam's. Then the variance is frozen, and later updates are momentum SGD with a fixed preconditioner,
which tolerates compression with error feedback:

    m_i <- C(b1 m + (1 - b1) g_i + e_i)     on every worker, which keeps the error of C in e_i
    m   <- C(mean_i m_i + e)                on the worker that adds up a chunk and keeps e
    x   <- x - rate m / (sqrt(v) + eps)

With n workers a chunk is an n-th of a parameter. C replaces it by its signs times its mean
magnitude. An entry without a gradient in the warm-up, as in the row of a rare word, would never get
a variance. Such an entry takes the mean variance of its parameter's other entries, or of all
parameters' entries if its own parameter has no variance.

A worker holds m, v and e_i, of a parameter's size, and e, an n-th of this size. 0/1 Adam (arXiv
2202.06009), which freezes the variance at intervals and skips exchanges, is not implemented.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm, check_shares, whole
from algorithms.compression import Reducer
from algorithms.mean import CompressionState, compressed
from comms import quantise
from comms.messages import Payload

SIGNS = quantise.sign_codec()
SILENT = 1e-8  # share of the usual variance below which an entry counts as without a gradient


class OneBitAdamState(NamedTuple):
    """State of the exchange of one worker; all fields but `reducers` are equal on all workers."""

    update: jax.Array  # [] int32, updates done, even if no worker contributed
    adam: optax.ScaleByAdamState  # m and v; its count stops with the warm-up, as v does
    reducers: tuple  # e_i and e of every parameter that is compressed


def signs_both_ways(workers: int) -> Reducer:
    """Sum signs, send the sum as signs, and add a chunk's error to its next sum.

    The state of the reducer is e, float32 [chunk], in units of the mean.
    """

    def init(leaf):
        return jnp.zeros(quantise.chunk_entries(leaf.size, workers), jnp.float32)

    def reduce(x, owed, draw):
        reduced = quantise.two_phase_all_reduce(x, SIGNS, AXIS, owed=draw.total * owed)
        some = draw.total > 0
        left = jnp.where(some, reduced.left / jnp.where(some, draw.total, 1), owed)
        return reduced.total, reduced.sent, left

    def payload(leaf, workers, update):
        return Payload((quantise.two_phase_bytes(leaf.size, workers, SIGNS),), itemsize=1)

    return Reducer(init, reduce, payload, name="signs both ways")


def momentum_in_signs(
    mean: optax.GradientTransformationExtraArgs,
    warmup_updates: int,
    b1: float,
    b2: float,
    eps: float,
) -> optax.GradientTransformationExtraArgs:
    """Replace gradients by Adam's direction, from the mean of the workers' messages.

    mean: a `compressed_mean`, which averages gradients in the warm-up, and momenta after it.
    """
    adam = optax.scale_by_adam(b1, b2, eps)

    def init_fn(params):
        start = mean.init(params)
        # Squares of short floats would overflow, or vanish beside eps.
        wide = jax.tree.map(lambda x: jnp.asarray(x, _wide(x)), params)
        return OneBitAdamState(start.update, adam.init(wide), start.reducers)

    def update_fn(updates, state, params=None, *, weight=None, **extra):
        warm = state.update < warmup_updates
        momentum, variance = state.adam.mu, state.adam.nu
        sent = jax.tree.map(
            lambda g, m: jnp.where(warm, g.astype(m.dtype), b1 * m + (1 - b1) * g),
            updates,
            momentum,
        )
        before = CompressionState(state.update, state.reducers, optax.EmptyState(), jnp.int32(0))
        found, after = mean.update(sent, before, params, weight=weight, **extra)
        dense, stepped = adam.update(found, state.adam)
        correction = 1 - b2 ** state.adam.count.astype(jnp.float32)

        def preconditioned(m, v):
            """Return the step; 0 if no parameter has had a gradient yet."""
            step = m / (jnp.sqrt(v / jnp.where(warm, 1, correction)) + eps)
            return jnp.where(v > 0, step, 0)

        coarse = jax.tree.map(preconditioned, found, _without_gaps(variance))
        direction = _choose(warm, dense, coarse)
        new = _choose(warm, stepped, state.adam._replace(mu=found))
        if weight is not None:  # without any contribution there is no mean
            some = jax.lax.psum(jnp.asarray(weight, jnp.float32), AXIS) > 0
            new = _choose(some, new, state.adam)
        return direction, OneBitAdamState(after.update, new, after.reducers)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def one_bit_adam(
    optimizer: optax.GradientTransformation,
    workers: int,
    *,
    warmup_updates: int = 100,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weighting: str = "proportional",
) -> Algorithm:
    """Apply Adam to dense means of gradients, then to means of momenta in one bit per entry.

    optimizer: plain SGD without momentum, which uses Adam's direction as its gradient.
    warmup_updates: number of updates with dense all-reduces; the paper takes 15 % to 25 %.
    b1, b2, eps: of Adam. A parameter whose signs would save no bytes is all-reduced dense.
    Every update needs all workers: take a waiting rule in rounds.
    """
    whole("one_bit_adam", 1, workers=workers)
    whole("one_bit_adam", 1, warmup_updates=warmup_updates)  # which find the variance
    check_shares("one_bit_adam", b1=b1, b2=b2)
    reducer = compression.with_dense_warmup(signs_both_ways(workers), warmup_updates)
    reducer = compression.with_error_feedback(reducer)

    def reducer_of(path, leaf):
        size = leaf.size
        return reducer if quantise.two_phase_bytes(size, workers, SIGNS) < 4 * size else None

    method = compressed(
        "one_bit_adam",
        optimizer,
        reducer_of,
        warmup_updates=warmup_updates,
        equal_memory=True,
        weighting=weighting,
    )

    def metrics(state):
        variance = jax.tree.map(lambda v: v[0], state.adam.nu)  # equal on all workers
        filled = jax.tree.map(jnp.not_equal, _without_gaps(variance), variance)
        return {"entries_without_variance": sum(x.sum() for x in jax.tree.leaves(filled))}

    def messages(params, workers, row):
        wide = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, _wide(x)), params)
        return method.messages(wide, workers, row)

    return method._replace(
        exchange=momentum_in_signs(method.exchange, warmup_updates, b1, b2, eps),
        messages=messages,
        needs=method.needs._replace(workers=workers),
        details=method.details._replace(metrics=metrics),
    )


def _wide(leaf):
    """Return the type of a parameter's momentum."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _without_gaps(variance):
    """Return the variances, with a parameter's mean variance in place of vanishing ones."""

    def usual(*parts):
        count = sum((v > 0).sum() for v in parts)
        return sum(v.sum() for v in parts) / jnp.maximum(count, 1)

    of_all = usual(*jax.tree.leaves(variance))

    def filled(v):
        own = usual(v)
        own = jnp.where(own > 0, own, of_all)
        return jnp.where(v > SILENT * own, v, own).astype(v.dtype)

    return jax.tree.map(filled, variance)


def _choose(condition, chosen: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)
