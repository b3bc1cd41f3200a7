"""Pytrees: the type of a result with its argument's structure, and the names of leaves."""

from typing import Any, TypeVar

import jax

Tree = TypeVar("Tree")  # any pytree; a result of this type has the structure of the argument


def path_text(path: tuple) -> str:
    """Return a key path of `jax.tree_util` as text: `layer/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree by their paths as text, in the order of `jax.tree.leaves`."""
    return [(path_text(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
