"""Losses that take less memory: computed in short floats, or a few examples at a time.

Neither changes what is learnt: parameters, gradients and optimizers stay in float32, and the parts
of a mini-batch add up to the gradient of the whole, to rounding.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

COMPUTE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def compute_type(name: str) -> jnp.dtype:
    """The floating-point type that a model computes in; ValueError for an unknown name."""
    if name not in COMPUTE:
        raise ValueError(f"compute: unknown type {name!r}; known types: {', '.join(COMPUTE)}")
    return jnp.dtype(COMPUTE[name])


def cast(tree: Any, dtype: jnp.dtype) -> Any:
    """The floating-point arrays of a tree in another type; the gradient comes back in their own.

    Of parameters in float32 this makes the working copy of mixed precision, whose masters they
    are (P. Micikevicius et al., arXiv 1710.03740 Sec. 3.1). bfloat16 has the range of float32 and
    needs no scaled loss.
    """

    def one(array):
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(one, tree)


def in_micro_batches(function: Callable, size: int | None) -> Callable[[Any, Any], jax.Array]:
    """The same (params, examples) -> [b], of at most `size` examples at a time; None: of all.

    Its gradient takes micro-batch after micro-batch too, and adds up: what a micro-batch needs to
    remember is computed again when its turn comes, and the first pass is dead code where only the
    gradient is asked for. So memory is that of a micro-batch, and nothing is computed twice.
    Raises ValueError for a size below 1.
    """
    if size is None:
        return function
    if size < 1:
        raise ValueError(f"micro_batch must be at least 1 example, got {size}; raise it")

    def piecewise(params, examples):
        count = jax.tree.leaves(examples)[0].shape[0]
        if count <= size:
            return function(params, examples)
        whole = count // size
        first = jax.tree.map(
            lambda a: a[: whole * size].reshape((whole, size, *a.shape[1:])), examples
        )
        # Inside a loop nothing can be merged with the pass before it: no barrier is needed.
        once = jax.checkpoint(function, prevent_cse=False)
        values = jax.lax.map(lambda part: once(params, part), first).reshape(-1)
        if whole * size == count:
            return values
        rest = jax.tree.map(lambda a: a[whole * size :], examples)
        return jnp.concatenate([values, jax.checkpoint(function)(params, rest)])

    return piecewise
