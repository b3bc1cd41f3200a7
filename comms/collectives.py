"""Means over the workers, as functions that run under a named axis.

All of these work alike under `jax.vmap(axis_name=axis)`, `jax.pmap` and `jax.shard_map`.
Results are equal on all workers, but a ring's results cannot be declared replicated: under
`shard_map` return them stacked, `out_specs=P(axis)`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from comms.trees import Tree

AXIS = "workers"  # the axis of workers, in meshes and under `vmap` alike

# Factor of all addends: 65,536 values do not overflow in their sum. A power of two, it changes
# no bit of numbers above 2^-110 in float32.
HEADROOM = 2.0**-16

_on_one_device = contextvars.ContextVar("on_one_device", default=False)


@contextlib.contextmanager
def on_one_device() -> Iterator[None]:
    """Trace with all workers as an array axis under `jax.vmap`, on one device.

    Sums over workers are then dot products over that axis: XLA on CPU takes up to 50 times longer
    to sum large leaves over a leading axis, which is how `psum` is compiled there.
    """
    token = _on_one_device.set(True)
    try:
        yield
    finally:
        _on_one_device.reset(token)


def is_on_one_device() -> bool:
    """Return True while tracing within `on_one_device`."""
    return _on_one_device.get()


def _summed(x, axis):
    """Sum over the workers, in x's dtype."""
    if not (is_on_one_device() and jnp.issubdtype(x.dtype, jnp.floating)):
        return jax.lax.psum(x, axis)
    everyone = jax.lax.all_gather(x, axis)
    ones = jnp.ones(everyone.shape[0], x.dtype)
    return jnp.tensordot(ones, everyone, 1, precision=jax.lax.Precision.HIGHEST)


def weighted_mean(tree: Tree, weight=None, axis: str = AXIS) -> Tree:
    """Return the mean of every leaf over the workers, sum_i w_i x_i / sum_i w_i, by `psum`.

    `weight`: scalar >= 0 per worker, None for equal weights. A worker of weight 0 does not count,
    whatever it holds; if all are 0, the mean is 0. Leaves travel, are summed and come back in
    their own dtype, integers as floats. Sums of weights below 65,536 do not overflow.
    """
    own, total = scaled_weights(weight, axis)
    return jax.tree.map(lambda x: mean_of(_summed(term(x, own, total), axis), total), tree)


def scaled_weights(weight, axis: str = AXIS) -> tuple[jax.Array, jax.Array]:
    """Return the weights of a mean times `HEADROOM`: (this worker's, their sum), float32."""
    own = HEADROOM * jnp.asarray(1 if weight is None else weight, jnp.float32)
    total = own * jax.lax.axis_size(axis) if weight is None else jax.lax.psum(own, axis)
    return own, total


def term(x, own, total) -> jax.Array:
    """Return a worker's term of a mean's sum, in x's dtype; own, total: from `scaled_weights`.

    float16 has no room to scale: its terms are divided before they are summed.
    """
    return weigh(x, own / total if _is_narrow(x) else own)


def mean_of(summed, total) -> jax.Array:
    """Return the mean from the sum of all terms and the total weight of `scaled_weights`."""
    return summed if _is_narrow(summed) else divide(summed, total)


def _is_narrow(x) -> bool:
    """Return True for floats with a smaller range than float32's."""
    return jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).maxexp < 128


def ring_all_reduce(x, axis: str = AXIS) -> jax.Array:
    """Sum an array of any shape over the workers, by a ring.

    Reduce-scatter, then all-gather: 2 (n - 1) steps, in each of which every worker sends one chunk
    of ceil(size / n) elements to the next worker. No all-reduce can send fewer (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
    """
    workers = jax.lax.axis_size(axis)
    if workers == 1 or x.size == 0:
        return x
    to_next = [(i, (i + 1) % workers) for i in range(workers)]
    order = (jax.lax.axis_index(axis) - jnp.arange(workers)) % workers
    chunks = jnp.pad(x.ravel(), (0, -x.size % workers)).reshape(workers, -1)
    chunks = chunks[order]  # row s of worker i: its chunk i - s

    # After step s worker i holds the sum of s + 1 workers' chunk i - s; in the end chunk i + 1.
    held = chunks[0]
    for step in range(1, workers):
        held = jax.lax.ppermute(held, axis, to_next) + chunks[step]
    # Whole chunks then go round and arrive in falling order: i + 1, i, i - 1, ...
    arrived = [held]
    for _ in range(1, workers):
        arrived.append(jax.lax.ppermute(arrived[-1], axis, to_next))
    return jnp.stack(arrived)[(order + 1) % workers].ravel()[: x.size].reshape(x.shape)


def ring_weighted_mean(
    tree: Tree, weight=None, axis: str = AXIS, all_reduce: Callable = ring_all_reduce
) -> Tree:
    """Return `weighted_mean` through `ring_all_reduce`: one flat buffer per dtype.

    The weights are added up apart, in float32: in the buffer's dtype their sum could be rounded.
    all_reduce: another sum of a buffer, (vector, axis) -> the sum.
    """
    leaves, structure = jax.tree.flatten(tree)
    means = list(leaves)
    floats = [jnp.result_type(leaf, float) for leaf in leaves]
    own, total = scaled_weights(weight, axis)
    for dtype in dict.fromkeys(floats):
        members = [i for i, other in enumerate(floats) if other == dtype]
        held = [term(leaves[i].astype(dtype), own, total) for i in members]
        sums = all_reduce(jnp.concatenate([x.ravel() for x in held]), axis)
        start = 0
        for i, x in zip(members, held, strict=True):
            means[i] = mean_of(sums[start : start + x.size].reshape(x.shape), total)
            start += x.size
    return jax.tree.unflatten(structure, means)


class Collective(NamedTuple):
    """A mean over the workers, and what it sends."""

    mean: Callable  # (tree, weight, axis) -> the mean
    payloads: Callable  # (bytes of a buffer, workers, bytes of an element) -> messages


class AllReduce(NamedTuple):
    """The sum of a flat vector over the workers, called with (vector, axis).

    Its two halves can run at different times, as in DeAR: L. Zhang et al., arXiv 2302.12445.
    """

    reduce: Callable  # (vector, axis) -> the sum, or a worker's part of it
    gather: Callable | None = None  # (part, axis) -> the sum, then zeros; None: `reduce` gives it

    def __call__(self, x, axis: str = AXIS) -> jax.Array:
        part = self.reduce(x, axis)
        return part if self.gather is None else self.gather(part, axis)


def reduce_scatter(x, axis: str = AXIS) -> jax.Array:
    """Return this worker's part [ceil(size / n)] of the sum of a flat vector, padded with zeros."""
    padded = jnp.pad(x, (0, -x.size % jax.lax.axis_size(axis)))
    return jax.lax.psum_scatter(padded, axis, tiled=True)


def gathered(part, axis: str = AXIS) -> jax.Array:
    """Return the parts of all workers, one after the other."""
    return jax.lax.all_gather(part, axis, tiled=True)


ALL_REDUCES = {
    "psum": AllReduce(jax.lax.psum),
    "ring": AllReduce(ring_all_reduce),
    "decoupled": AllReduce(reduce_scatter, gathered),
}


def weigh(x, weight) -> jax.Array:
    """Return weight * x in x's own float dtype, 0 where the weight is 0 even if x is not finite."""
    weighed = jnp.where(weight > 0, x * jnp.asarray(weight, jnp.float32), 0)
    return weighed.astype(jnp.result_type(x, float))


def divide(total, weight) -> jax.Array:
    """Return total / weight in total's dtype, 0 where the weight is 0."""
    mean = jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), 0)
    return mean.astype(total.dtype)
