"""Mean of a pytree over the workers, one all-reduce per planned bucket.

Shi, Chu, Li, "MG-WFBP", arXiv 1811.11141: a bucket's all-reduce needs the gradients of that bucket
alone, so it may run inside the backward pass. A compiler's all-reduce combiner would merge all of
them into one at the end. It never merges all-reduces that depend on one another, so every flat
buffer ends with a token, an extra element from the all-reduce before. So the buckets travel one
after the other, in order, as on the channel of the paper's model.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from comms.collectives import AXIS, mean_of, scaled_weights, term
from comms.trees import Tree


def bucketed_weighted_mean(
    tree: Tree,
    buckets: Sequence[Sequence[int]],
    weight=None,
    axis: str = AXIS,
    reduce: Callable = jax.lax.psum,
) -> Tree:
    """Return the `comms.collectives.weighted_mean`, all-reduced in buckets, in their order.

    buckets: indices of the leaves (`jax.tree.leaves`) of each, every leaf once.
    reduce: (flat vector, axis) -> its sum over the workers, exact or not, of the same shape.

    A bucket is one flat buffer per dtype in it, so that only integers change their dtype to travel,
    to floats. With `psum` every mean is that of `jax.lax.pmean`, bit for bit. Runs under a named
    axis; raises ValueError for buckets that are not the tree's leaves.
    """
    leaves, structure = jax.tree.flatten(tree)
    if sorted(i for bucket in buckets for i in bucket) != list(range(len(leaves))):
        raise ValueError(
            f"buckets {[list(bucket) for bucket in buckets]} do not hold each of {len(leaves)} "
            f"leaves once; give every index from 0 to {len(leaves) - 1} to one bucket"
        )
    # The weights are summed apart, in float32: in a buffer's dtype their sum could be rounded.
    own, total = scaled_weights(weight, axis)
    floats = [jnp.result_type(leaf, float) for leaf in leaves]
    means, token = list(leaves), jnp.float32(0)
    for bucket in buckets:
        for dtype, members in flat_buffers(bucket, floats).items():
            parts = [term(jnp.asarray(leaves[i], dtype), own, total) for i in members]
            sums = reduce(_flat(parts, token), axis)
            # The token of an inexact sum may be any number; compilers keep a float times 0.
            token = 0 * sums[-1]
            start = 0
            for i, x in zip(members, parts, strict=True):
                of_leaf = sums[start : start + x.size].reshape(x.shape)
                means[i] = _mean(of_leaf, total)
                start += x.size
    return jax.tree.unflatten(structure, means)


def flat_buffers(bucket: Sequence[int], dtypes: Sequence) -> dict:
    """Return the leaves of a bucket by dtype, {dtype: indices}: one all-reduce each."""
    buffers: dict = {}
    for i in bucket:
        buffers.setdefault(dtypes[i], []).append(i)
    return buffers


def _flat(parts, token):
    return jnp.concatenate([*(x.ravel() for x in parts), token.astype(parts[0].dtype)[None]])


def _mean(sums, total):
    # Divide as if they had been all-reduced alone: else operations fused with their removal from
    # the buffer, such as momentum, would be rounded differently than after a plain `pmean`.
    return mean_of(jax.lax.optimization_barrier(sums), total)
