"""Means that a few faulty workers cannot move far: median, trimmed mean, Krum, centred clipping.

    coordinate_median, trimmed_mean   D. Yin et al., arXiv 1803.01498, Definitions 1 and 2
    krum, Multi-Krum                  P. Blanchard et al., arXiv 1703.02757, Sections 4 and 5
    centred_clipping                  S. P. Karimireddy, L. He, M. Jaggi, arXiv 2012.10333, Sec. 4

A faulty worker may send anything: noise, the opposite direction, infinities. A sum does not show
the faulty contribution. So every worker gathers all contributions, n - 1 times the bytes of one. A
worker that finished nothing is not counted. On uneven data honest contributions differ, too, and
all these methods converge to a point beside the optimum of the mean.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm, Needs, equal, freeze_when_idle, whole
from comms import cost
from comms.collectives import HEADROOM
from comms.messages import Payload

# (contributions [k, ...], bool [k] whether they count, centre) -> (their aggregate, centre)
Aggregate = Callable[[Any, jax.Array, Any], tuple[Any, Any]]


def coordinate_median(optimizer: optax.GradientTransformation) -> Algorithm:
    """Let `optimizer` step along the coordinate-wise median over the workers."""
    return _robust(optimizer, _between(lambda count: (count - 1) // 2))


def trimmed_mean(optimizer: optax.GradientTransformation, *, trim: int = 1) -> Algorithm:
    """Let `optimizer` step along the coordinate-wise mean without extremes.

    trim: number of largest values, and of smallest values, that are left out; fewer if otherwise no
    value would be left.
    """
    whole("trimmed_mean", 0, trim=trim)
    return _robust(optimizer, _between(lambda count: jnp.minimum(trim, (count - 1) // 2)))


def krum(optimizer: optax.GradientTransformation, *, faulty: int = 1, keep: int = 1) -> Algorithm:
    """Let `optimizer` step along the contribution that is nearest to its n - faulty - 2 neighbours.

    faulty: workers that may send anything; the proof needs 2 faulty + 2 < n. keep: number of such
    contributions that are averaged; more than one is Multi-Krum.
    """
    whole("krum", 0, faulty=faulty)
    whole("krum", 1, keep=keep)
    return _robust(optimizer, _nearest(faulty, keep))


def centred_clipping(
    optimizer: optax.GradientTransformation, *, radius: float, iterations: int = 1
) -> Algorithm:
    """Let `optimizer` step along a centre that no worker pulls farther than `radius`.

    A step v <- v + mean_i (g_i - v) min(1, radius / |g_i - v|) begins at the last update's v, so
    that every update needs all workers. iterations: number of these steps in an update.
    """
    whole("centred_clipping", 1, iterations=iterations)
    if not radius > 0:
        raise ValueError(
            f"centred_clipping: needs radius > 0, got {radius}; the usual distance of honest "
            "gradients leaves them whole"
        )
    zeros = functools.partial(optax.tree.zeros_like, dtype=jnp.float32)
    method = _robust(optimizer, _clipped(radius, iterations), init=zeros)
    return method._replace(needs=Needs("all workers keep the same centre"))


def _robust(
    optimizer, aggregate: Aggregate, init: Callable[[Any], Any] = optax.init_empty_state
) -> Algorithm:
    def update_fn(updates, centre, params=None, *, weight=None, **extra):
        del params, extra
        weight = jnp.float32(1) if weight is None else weight  # None: all weigh alike
        counts = jax.lax.all_gather(weight, AXIS) > 0
        everybodys = jax.tree.map(
            lambda x: jax.lax.all_gather(x, AXIS).astype(jnp.float32), updates
        )
        found, centre = aggregate(everybodys, counts, centre)
        return jax.tree.map(lambda f, x: f.astype(x.dtype), found, updates), centre

    def messages(params, workers, row):
        del workers, row
        return (Payload(gathered=(cost.payload_bytes(params),)),)

    return Algorithm(
        exchange=optax.GradientTransformationExtraArgs(init, update_fn),
        server=freeze_when_idle(optimizer),
        messages=messages,
        weight=equal,
    )


def _between(cut: Callable[[jax.Array], jax.Array]) -> Aggregate:
    """Return an aggregate: the mean of sorted values without the first and last `cut(count)`."""

    def leaf(x, counts):
        count = counts.sum()
        # NaN sorts as the largest, next to contributions that do not count.
        ordered = jnp.sort(jnp.where(_aligned(counts, x) & ~jnp.isnan(x), x, jnp.inf), axis=0)
        rank, out = jnp.arange(len(x)), cut(jnp.maximum(count, 1))
        kept = (rank >= out) & (rank < count - out)
        return _mean_of(ordered, kept)

    def aggregate(everybodys, counts, centre):
        return jax.tree.map(lambda x: leaf(x, counts), everybodys), centre

    return aggregate


def _nearest(faulty: int, keep: int) -> Aggregate:
    """Return an aggregate: the mean of the `keep` contributions with the nearest neighbours."""

    def aggregate(everybodys, counts, centre):
        count, workers = counts.sum(), len(counts)
        rank = jnp.arange(workers)

        def distances(i):
            return _squared(jax.tree.map(lambda x: x - x[i][None], everybodys))

        apart = jax.lax.map(distances, rank)  # [k, k]
        others = counts[:, None] & counts[None] & (rank[:, None] != rank[None])
        apart = jnp.sort(jnp.where(others & ~jnp.isnan(apart), apart, jnp.inf), axis=1)
        neighbours = jnp.maximum(count - faulty - 2, 1)
        score = jnp.where(rank[None] < neighbours, apart, 0).sum(axis=1)
        score = jnp.where(counts, jnp.minimum(score, jnp.finfo(jnp.float32).max), jnp.inf)
        place = jnp.argsort(jnp.argsort(score))
        kept = (place < keep) & counts
        return jax.tree.map(lambda x: _mean_of(x, kept), everybodys), centre

    return aggregate


def _clipped(radius: float, iterations: int) -> Aggregate:
    """Return an aggregate: a centre that each worker pulls by at most `radius`."""

    def aggregate(everybodys, counts, centre):
        for _ in range(iterations):
            pulls = jax.tree.map(lambda x, v: x - v[None], everybodys, centre)
            length = jnp.sqrt(_squared(pulls))
            usable = counts & jnp.isfinite(length)
            scale = jnp.minimum(1.0, radius / jnp.maximum(length, jnp.finfo(jnp.float32).tiny))
            share = jnp.where(usable, scale, 0) / jnp.maximum(counts.sum(), 1)

            def pulled(v, pull, share=share, usable=usable):
                within = jnp.where(_aligned(usable, pull), pull, 0)
                return v + (_aligned(share, pull) * within).sum(axis=0)

            centre = jax.tree.map(pulled, centre, pulls)
        return centre, centre

    return aggregate


def _squared(tree) -> jax.Array:
    """Return [k] squared lengths of vectors that are spread over the leaves [k, ...]."""
    return sum((x.reshape(len(x), -1) ** 2).sum(axis=1) for x in jax.tree.leaves(tree))


def _mean_of(x, kept) -> jax.Array:
    """Return the mean of x [k, ...] over the kept entries, [k] bool; 0 if there are none."""
    count = HEADROOM * jnp.maximum(kept.sum(), 1)
    return (HEADROOM * jnp.where(_aligned(kept, x), x, 0)).sum(axis=0) / count


def _aligned(values, like) -> jax.Array:
    """Return values [k] in the shape [k, 1, ...], which broadcasts against `like` [k, ...]."""
    return values.reshape((-1, *[1] * (like.ndim - 1)))
