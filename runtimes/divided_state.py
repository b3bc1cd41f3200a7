"""A run's arrays that are divided between devices, for checkpoints that no host has whole.

Over several processes, all of them call each of these functions, in the same order.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from comms.trees import Tree, path_text

Where = Callable[[tuple[int, ...]], NamedSharding]


def pack(once: Callable[[Tree], Tree], model: Tree, where: Where) -> dict[str, jax.Array]:
    """`once(model)` by path, every array divided as in `model`; empty ones are left out.

    model: arrays with a leading axis of workers, of this shape where `where` says.
    once: takes all rows of an array, or the first.
    The arrays stay on the devices, as they are until the run goes on.
    """
    named = jax.tree_util.tree_leaves_with_path(model)
    shapes = jax.tree.leaves(jax.eval_shape(once, model))
    packed = {}
    for (path, array), wanted in zip(named, shapes, strict=True):
        if array.size:
            sharding = where(array.shape)
            if wanted.shape != array.shape:  # a row that all workers have alike
                sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec[1:]))
            packed[path_text(path)] = _rows(array, wanted.shape[0], sharding)
    return packed


def unpack(
    once: Callable[[Tree], Tree], model: Tree, packed: Mapping[str, jax.Array], where: Where
) -> Tree:
    """The model that `pack` has packed, of the shapes of `model` but without its values.

    ValueError if it was packed from a tree of other names or shapes.
    """

    def leaf(path, old, wanted):
        name = path_text(path)
        if not old.size:
            return old
        found = packed[name].shape if name in packed else "nothing"
        if found != wanted.shape:
            raise ValueError(
                f"unpack: {name} should have the shape {wanted.shape} but there is {found}; "
                "resume with the program that began, or start over"
            )
        return _spread(packed[name], old.shape, where(old.shape))

    return jax.tree_util.tree_map_with_path(leaf, model, jax.eval_shape(once, model))


# Copies, as a dispatch gives the arrays of a run away while a host may still read the old ones.
@functools.partial(jax.jit, static_argnames=("count", "sharding"))
def _rows(array, count: int, sharding: NamedSharding):
    return jax.lax.with_sharding_constraint(jnp.copy(array[:count]), sharding)


@functools.partial(jax.jit, static_argnames=("shape", "sharding"))
def _spread(rows, shape: tuple[int, ...], sharding: NamedSharding):
    return jax.lax.with_sharding_constraint(jnp.copy(jnp.broadcast_to(rows, shape)), sharding)
