"""A tree of arrays as a flat dict of NumPy arrays, as checkpoints store it, and back."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from comms.trees import Tree, path_text


def pack(tree) -> dict[str, np.ndarray]:
    """Every leaf on the host by its path ("params/dense/kernel"), scalars as arrays [1].

    Empty arrays are left out: they hold nothing, and stores do not take them.
    """
    leaves = jax.device_get(jax.tree_util.tree_leaves_with_path(tree))
    return {path_text(path): np.atleast_1d(leaf) for path, leaf in leaves if np.size(leaf)}


def unpack(like: Tree, packed: Mapping[str, np.ndarray]) -> Tree:
    """The tree that `pack` has packed, with structure, types and devices of the arrays in `like`.

    NumPy arrays stay on the host.

    ValueError if it was packed from a tree of other names or shapes.
    """

    def leaf(path, old):
        name = path_text(path)
        if not np.size(old):
            return old
        if name not in packed or packed[name].shape != (np.shape(old) or (1,)):
            found = packed[name].shape if name in packed else "nothing"
            raise ValueError(
                f"unpack: {name} should have the shape {np.shape(old) or (1,)} but there is "
                f"{found}; resume with the program that began, or start over"
            )
        if isinstance(old, np.ndarray | np.generic):
            return packed[name].reshape(np.shape(old)).astype(old.dtype)
        # Copied, because the arrays of a run are given away when it goes on.
        value = jnp.array(packed[name].reshape(np.shape(old)), old.dtype)
        return jax.device_put(value, old.sharding)

    return jax.tree_util.tree_map_with_path(leaf, like)
