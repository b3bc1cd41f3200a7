"""What the server of free workers computes in an update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import Algorithm
from comms import hashing
from runtimes import bodies, worker
from runtimes.uplink import Uplink


class State(NamedTuple):
    """What training changes, on the device of the server."""

    params: Any
    server: Any  # optimizer state
    memory: Any  # exchange state, [P, ...]; () where workers encode what they send
    own: Any = ()  # the models of the workers' own beside the server's, [P, ...]; () without


def program(algorithm: Algorithm, mini_batches: int, uplink: Uplink | None) -> Callable[..., State]:
    """Compiled for every number of contributions: (state, contributions, points, ...) -> state."""

    @jax.jit
    def apply(state, contributions, points, batches, fresh, own, samples):
        seen = hashing.counted(samples)
        common = seen | {"nominal": mini_batches, "active": None, "current": state.params}
        contribution, points = (
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
            for trees in (contributions, points)
        )
        if uplink is not None:
            reduced = uplink.reduce(contribution, own["staleness"], current=state.params, **seen)
            params, server = worker.serve(
                algorithm, reduced, state.params, state.server, batches.sum(), common
            )
            return State(params, server, ())
        first = algorithm.exchange.init(state.params)
        held = jax.tree.map(
            lambda a, new: jnp.where(
                jnp.expand_dims(fresh, range(1, a.ndim)), new, a[own["worker"]]
            ),
            state.memory,
            first,
        )
        updates, after = bodies.exchanged(
            algorithm, contribution, points, 0, worker.WorkerState((), held), batches, common, own
        )

        def put(tree, values):
            return jax.tree.map(lambda a, new: a.at[own["worker"]].set(new), tree, values)

        memory, models = put(state.memory, after.exchange), ()
        if algorithm.adopt is not None:
            models = put(state.own, optax.apply_updates(points, updates.own))
            updates = updates.served
        params, server = bodies.served(
            algorithm, updates, state.params, state.server, batches, common
        )
        return State(params, server, memory, models)

    return apply
