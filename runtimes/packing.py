"""State of a run as flat dicts of arrays, and transfers of arrays between host and devices.

If there are several processes, all call the functions that involve devices, in the same order.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from comms.trees import Tree, path_text
from runtimes import phases


def pack(tree) -> dict[str, np.ndarray]:
    """Return each leaf on the host by its path ("params/dense/kernel"), scalars as arrays [1].

    Empty arrays are left out, because stores do not accept them.
    """
    leaves = jax.device_get(jax.tree_util.tree_leaves_with_path(tree))
    return {path_text(path): np.atleast_1d(leaf) for path, leaf in leaves if np.size(leaf)}


def unpack(like: Tree, packed: Mapping[str, np.ndarray]) -> Tree:
    """Return the tree that `pack` has packed, with structure, types and devices of `like`.

    Leaves that are NumPy arrays in `like` stay on the host.

    Raises ValueError if `packed` is from a tree with other names or shapes.
    """

    def leaf(path, old):
        name = path_text(path)
        if not np.size(old):
            return old
        _check(name, packed, np.shape(old) or (1,))
        if isinstance(old, np.ndarray | np.generic):
            return packed[name].reshape(np.shape(old)).astype(old.dtype)
        # Copied, because `advance` donates the arrays of a run.
        value = jnp.array(packed[name].reshape(np.shape(old)), old.dtype)
        return jax.device_put(value, old.sharding)

    return jax.tree_util.tree_map_with_path(leaf, like)


def place(tree: Tree, sharding: NamedSharding) -> Tree:
    """Return a tree with its arrays, equal on every process, placed by `sharding`."""

    def leaf(array):
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        # `device_put` would first compare the values of all processes.
        return jax.make_array_from_callback(np.shape(array), sharding, lambda part: array[part])

    return jax.tree.map(leaf, tree)


def whole(function: Callable, replicated: NamedSharding) -> Callable:
    """Return `function` with results that every process can read in full."""
    if replicated.is_fully_addressable:
        return function
    gather = jax.jit(function, out_shardings=replicated)

    def gathered(*arrays):
        with phases.within(phases.OTHERS):
            return jax.tree.map(lambda a: np.array(a.addressable_data(0)), gather(*arrays))

    return gathered


def of_all(values: np.ndarray) -> np.ndarray:
    """Return all processes' values bit for bit, [processes, *shape] float64; act as a barrier."""
    if jax.process_count() == 1:
        return values[None]
    bits = np.ascontiguousarray(values, np.float64).view(np.uint32)  # JAX would round to float32
    with phases.within(phases.OTHERS):
        return np.asarray(multihost_utils.process_allgather(bits)).view(np.float64)


Where = Callable[[tuple[int, ...]], NamedSharding]


def pack_divided(once: Callable[[Tree], Tree], model: Tree, where: Where) -> dict[str, jax.Array]:
    """Return `once(model)` by path, each array divided as in `model`; empty ones are left out.

    model: arrays with a leading axis of workers. where: shape -> sharding of an array of `model`.
    once: keeps all rows of an array, or only the first one.
    The results are copies on the devices, which stay valid when the run goes on.
    """
    named = jax.tree_util.tree_leaves_with_path(model)
    shapes = jax.tree.leaves(jax.eval_shape(once, model))
    packed = {}
    for (path, array), wanted in zip(named, shapes, strict=True):
        if array.size:
            sharding = where(array.shape)
            if wanted.shape != array.shape:  # a row that is equal on all workers
                sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec[1:]))
            packed[path_text(path)] = _rows(array, wanted.shape[0], sharding)
    return packed


def unpack_divided(
    once: Callable[[Tree], Tree], model: Tree, packed: Mapping[str, jax.Array], where: Where
) -> Tree:
    """Return the model that `pack_divided` has packed, with the shapes of `model`.

    Raises ValueError if `packed` is from a tree with other names or shapes.
    """

    def leaf(path, old, wanted):
        name = path_text(path)
        if not old.size:
            return old
        _check(name, packed, wanted.shape)
        return _spread(packed[name], old.shape, where(old.shape))

    return jax.tree_util.tree_map_with_path(leaf, model, jax.eval_shape(once, model))


def _check(name: str, packed: Mapping, wanted: tuple[int, ...]) -> None:
    found = packed[name].shape if name in packed else "nothing"
    if found != wanted:
        raise ValueError(
            f"unpack: {name} should have the shape {wanted} but there is {found}; resume with the "
            "program that began, or start over"
        )


# Copies, because a dispatch donates a run's arrays while a host may still read the old ones.
@functools.partial(jax.jit, static_argnames=("count", "sharding"))
def _rows(array, count: int, sharding: NamedSharding):
    return jax.lax.with_sharding_constraint(jnp.copy(array[:count]), sharding)


@functools.partial(jax.jit, static_argnames=("shape", "sharding"))
def _spread(rows, shape: tuple[int, ...], sharding: NamedSharding):
    return jax.lax.with_sharding_constraint(jnp.copy(jnp.broadcast_to(rows, shape)), sharding)
