"""What a node computes, compiled: its local steps, and its half of a meeting.

All programs compute what the simulator computes for a row of one meeting, bit for bit: local steps
under `jax.vmap` with an axis of one, a meeting as a body for an axis of two.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm
from comms import collectives, hashing
from runtimes import worker
from runtimes.conversation import Conversation

ASKS, ANSWERS = 0, 1  # positions in a meeting, as in a row of the schedule


class Programs(NamedTuple):
    """The compiled programs of a node.

    contribute: (params, work state, indices [mini_batches, batch_size], batches, words of the
        samples seen, worker) -> (contribution, work state).
    ask, answer: (contribution, exchange state, params, batches, worker) -> (params, exchange
        state). A partner that goes on answers with (exchange state, params, worker) alone, and
        keeps its params.
    alone: as `ask`, of a node that meets nobody.
    """

    contribute: Callable
    ask: Conversation
    answer: Conversation
    alone: Callable
    finite: Callable  # contribution -> whether all of it is
    mini_batches: int  # for which `contribute` is compiled, of which fewer may count
    goes_on: bool  # whether a partner goes on with its local steps while it answers


def build(
    algorithm: Algorithm,
    losses: Callable,
    params: Any,
    examples: Any,
    mini_batches: int,
    batch_size: int,
    goes_on: bool,
) -> Programs:
    """Compile the programs of a node for parameters and examples of these shapes.

    goes_on: whether a partner goes on with its local steps while it answers. Raises ValueError
    where the exchange cannot be cut into messages.
    """
    state = jax.eval_shape(lambda: worker.init(algorithm, params))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    taken = jax.ShapeDtypeStruct((mini_batches, batch_size), jnp.int32)
    seen = jax.ShapeDtypeStruct((2,), jnp.uint32)
    full = (params, state.exchange, params, number, number)

    def contribute(params, work, indices, batches, samples, me, examples):
        def body(params, work, indices, batches, samples, me):
            given = _given(mini_batches, me) | hashing.counted(samples)
            local = worker.WorkerState(work, ())
            mine = jax.tree.map(lambda a: a[indices], examples)
            contribution, local = worker.contribute(
                algorithm, losses, params, local, mine, batches, given
            )
            return contribution, local.work

        return _of_one(body)(params, work, indices, batches, samples, me)

    def half(position):
        def body(contribution, state, params, batches, me):
            given = {**_given(mini_batches, me), "partner": position}
            local = worker.WorkerState((), state)
            with collectives.on_one_device():
                updates, local = worker.exchange(
                    algorithm,
                    contribution,
                    params,
                    local,
                    batches,
                    given,
                    algorithm.weight(batches),
                )
            return optax.apply_updates(params, updates), local.exchange

        return body

    def passive(state, params, me):
        nothing = jax.tree.map(jnp.zeros_like, params)
        return half(ASKS)(nothing, state, params, jnp.int32(0), me)[1]

    held = jax.tree.map(jnp.asarray, examples)
    local_steps = (
        jax.jit(contribute).lower(params, state.work, taken, number, seen, number, held).compile()
    )
    return Programs(
        lambda *arguments: local_steps(*arguments, held),
        Conversation(half(ANSWERS), ASKS, *full),
        Conversation(passive, ANSWERS, state.exchange, params, number)
        if goes_on
        else Conversation(half(ASKS), ANSWERS, *full),
        jax.jit(_of_one(half(ASKS))).lower(*full).compile(),
        jax.jit(_finite).lower(params).compile(),
        mini_batches,
        goes_on,
    )


def _finite(tree) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def _given(mini_batches: int, me) -> dict:
    return {"nominal": mini_batches, "active": None, "worker": me, "staleness": jnp.int32(0)}


def _of_one(body: Callable) -> Callable:
    """The body under an axis of one, for arguments and results without it."""

    def run(*arguments):
        stacked = jax.tree.map(lambda a: jnp.asarray(a)[None], arguments)
        return jax.tree.map(lambda a: a[0], jax.vmap(body, axis_name=AXIS)(*stacked))

    return run
