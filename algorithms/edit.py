"""EDiT's penalty on pseudo-gradients: outliers among local progress are dropped or weigh little.

J. Cheng, N. Gao, Y. Yue, Z. Ye, J. Jiang, J. Sha, *EDiT: A Local-SGD-Based Efficient Distributed
Training Method for Large Language Models*, arXiv 2412.07210, after the authors' code. For every
parameter array worker i has progress D_i, of length G_i. In a round

    D_i, G_i <- 0, G_i + 10^6          where G_i is an outlier among this worker's past lengths
    D        <- sum_i w_i D_i,    w = softmax(-G / temperature)
    D        <- D min(1, clip / |D|)                   |D| over all arrays

and an outer optimizer uses D as its gradient. G is an outlier if (G - mu) / sigma is above
threshold * max(1, s). s is the standard deviation of such ratios in the last `warmup` rounds
without an outlier, each with mu and sigma after the update of its round. If G is no outlier, mu and
sigma are updated:

    mu      <- mu + decay (G - mu)
    sigma^2 <- (1 - decay) (sigma^2 + decay (G - mu) (G - new mu))

Finite progress is never an outlier before there have been `warmup` rounds without one; progress
that is not finite always is. Where all workers of a round are outliers the authors' outer optimizer
rests for that array; here it gets a gradient of 0. Layer-wise overlap and sharding, the other half
of EDiT, are not implemented here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm, equal, freeze_when_idle, whole
from algorithms.mean import mean_messages
from comms import collectives

NULLIFIED = 1e6  # added to the length of an outlier


class Lengths(NamedTuple):
    """Statistics of the lengths of a worker's progress so far; n parameter arrays."""

    mean: jax.Array  # [n]
    variance: jax.Array  # [n]
    count: jax.Array  # [n] int32, rounds without an outlier
    ratios: jax.Array  # [n, warmup] of the last of these rounds


def _ratio(length, mean, variance, count, warmup: int) -> jax.Array:
    known = (variance > 0) & (count >= max(warmup, 2))
    return jnp.where(known, (length - mean) / jnp.sqrt(jnp.where(known, variance, 1)), 0.0)


def watched(
    state: Lengths, length: jax.Array, threshold: float, decay: float
) -> tuple[jax.Array, Lengths]:
    """Return [n] bool, true where `length` [n] is an outlier, and the updated statistics."""
    warmup = state.ratios.shape[1]
    spread = jnp.maximum(1.0, jnp.std(state.ratios, axis=1, ddof=1))
    ratio = _ratio(length, *state[:3], warmup)
    finite = jnp.isfinite(length)
    outlier = ~finite | ((state.count >= warmup) & (ratio > threshold * spread))
    mean = state.mean + decay * (length - state.mean)
    variance = (1 - decay) * (state.variance + decay * (length - state.mean) * (length - mean))
    count = state.count + 1
    newest = _ratio(length, mean, variance, count, warmup)
    ratios = jnp.concatenate([state.ratios[:, 1:], newest[:, None]], axis=1)
    kept = Lengths(mean, variance, count, ratios)

    def chosen(old, new):
        return jnp.where(outlier.reshape(-1, *[1] * (old.ndim - 1)), old, new)

    return outlier, jax.tree.map(chosen, state, kept)


def penalised_mean(
    clip: float, temperature: float, threshold: float, decay: float, warmup: int
) -> optax.GradientTransformationExtraArgs:
    """Replace the workers' progress by its mean without outliers, weighted by length, clipped."""

    def init_fn(params):
        n = len(jax.tree.leaves(params))
        zeros = jnp.zeros(n, jnp.float32)
        return Lengths(zeros, zeros, jnp.zeros(n, jnp.int32), jnp.zeros((n, warmup), jnp.float32))

    def update_fn(updates, state, params=None, *, batches=1, **extra):
        del params, extra
        busy = jnp.asarray(batches) > 0
        leaves, structure = jax.tree.flatten(updates)
        leaves = [jnp.where(busy, leaf, 0) for leaf in leaves]
        length = jnp.stack([jnp.linalg.norm(leaf.astype(jnp.float32)) for leaf in leaves])
        outlier, seen = watched(state, length, threshold, decay)
        state = jax.tree.map(lambda new, old: jnp.where(busy, new, old), seen, state)
        length = jnp.where(jnp.isfinite(length), length, 0) + NULLIFIED * outlier
        length = jnp.where(busy, length, jnp.inf)
        shortest = jax.lax.pmin(length, AXIS)
        weights = jnp.where(busy, jnp.exp((shortest - length) / temperature), 0.0)
        kept = [jnp.where(out, 0, leaf) for out, leaf in zip(outlier, leaves, strict=True)]
        means = [
            collectives.weighted_mean(leaf, weight, AXIS)
            for leaf, weight in zip(kept, weights, strict=True)
        ]
        whole = optax.tree.norm([mean.astype(jnp.float32) for mean in means])
        shrunk = jnp.minimum(1.0, clip / (whole + 1e-6))
        means = [(shrunk * mean).astype(mean.dtype) for mean in means]
        return jax.tree.unflatten(structure, means), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def edit(
    optimizer: optax.GradientTransformation,
    *,
    server: optax.GradientTransformation | None = None,
    clip: float = 10.0,
    temperature: float = 1.0,
    threshold: float = 3.0,
    decay: float = 0.02,
    warmup: int = 120,
) -> Algorithm:
    """Step locally with `optimizer`, and let `server` step along the penalised mean progress.

    server: optimizer, as for `local_sgd`; None: the models are averaged. clip: largest norm of the
    mean progress; temperature: of the softmax over lengths; threshold, decay, warmup: of the test
    for outliers.
    """
    whole("edit", warmup=warmup)
    if not (clip > 0 and temperature > 0 and threshold > 0 and 0 < decay < 1 and warmup >= 2):
        raise ValueError(
            f"edit: needs clip, temperature and threshold above 0, 0 < decay < 1 and warmup >= 2, "
            f"got {clip}, {temperature}, {threshold}, {decay} and {warmup}; leave them out"
        )
    return Algorithm(
        work=optimizer,
        exchange=penalised_mean(clip, temperature, threshold, decay, warmup),
        messages=mean_messages,
        server=freeze_when_idle(optax.sgd(1.0) if server is None else server),
        weight=equal,
    )
