"""Pytrees: the type of a result with its argument's structure, and the names of leaves."""

from collections.abc import Iterator
from typing import Any, TypeVar

import jax

Tree = TypeVar("Tree")  # any pytree; a result of this type has the structure of the argument


def path_text(path: tuple) -> str:
    """Return a key path of `jax.tree_util` as text: `layer/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a pytree and their paths as text, in the order of `jax.tree.leaves`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield path_text(path), leaf
