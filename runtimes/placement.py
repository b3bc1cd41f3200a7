"""Values between the host and the devices of one process or of several.

Over several processes, all of them call each of these functions, in the same order.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from comms.trees import Tree
from runtimes import phases


def place(tree: Tree, sharding: NamedSharding) -> Tree:
    """The arrays of a tree, the same on every process, where `sharding` wants them."""

    def leaf(array):
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        # device_put would first compare the values of all processes.
        return jax.make_array_from_callback(np.shape(array), sharding, lambda part: array[part])

    return jax.tree.map(leaf, tree)


def whole(function: Callable, replicated: NamedSharding) -> Callable:
    """`function` of arrays on devices, such that every process can read all of what it returns."""
    if replicated.is_fully_addressable:
        return function
    gather = jax.jit(function, out_shardings=replicated)

    def gathered(*arrays):
        with phases.within(phases.OTHERS):
            return jax.tree.map(lambda a: np.array(a.addressable_data(0)), gather(*arrays))

    return gathered


def of_all(values: np.ndarray) -> np.ndarray:
    """What every process has passed, [processes, *shape] float64, bit for bit; it also waits."""
    if jax.process_count() == 1:
        return values[None]
    bits = np.ascontiguousarray(values, np.float64).view(np.uint32)  # JAX would round to float32
    with phases.within(phases.OTHERS):
        return np.asarray(multihost_utils.process_allgather(bits)).view(np.float64)
