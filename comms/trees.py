"""Pytrees: the type of a result with its argument's structure, and the names of leaves."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")  # any pytree; a result of this type has the structure of the argument


def path_text(path: tuple) -> str:
    """Return a key path of `jax.tree_util` as text: `layer/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree by their paths as text, in the order of `jax.tree.leaves`."""
    return [(path_text(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def check_floats(params: Any) -> None:
    """Raise ValueError for a parameter that is no real float of 16 bits or more."""
    for name, leaf in named_leaves(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize < 2:
            raise ValueError(
                f"parameter{name and f' {name!r}'} is {leaf.dtype}, and parameters are real floats "
                "of 16 bits or more; keep what is no weight out of them, as a constant of losses"
            )
