"""Ringleader ASGD: asynchronous SGD that weighs the data of fast and of slow workers alike.

A. Maranjyan, P. Richtarik, *Ringleader ASGD: The First Asynchronous SGD with Optimal Time
Complexity under Data Heterogeneity*, arXiv 2509.22860, Algorithm 1. Asynchronous SGD is biased
towards the data of fast workers. Here the server keeps a table: for each of n workers, the sum G_i
of its b_i gradients. The server goes through rounds of two phases:

    1  it adds every gradient to the table, and makes no step until all b_i >= 1
    2  it makes n steps, one at the first arrival from every worker, which is added to the table:
       x <- x - lr 1/n sum_i G_i / b_i          the last arrival of phase 1 makes the first step
       later gradients of a worker that has had its step enter the table of the next round

No worker waits, and no gradient is discarded. A gradient's staleness is at most 2n - 2 when it is
used. The waiting rule is Asynchronous SGD's, `k_async(k=1)`, as the table alone decides whether the
server steps. The contributions of an update enter one after the other, in the order of their row.

A worker is either owed a step or gathers gradients for the next round, so that the table needs one
average G_i / b_i per worker. The server also keeps their means for this round and for the next. So
it holds n + 2 arrays of the model's size beside the newest model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm, Needs, equal, extended, map_columns, whole
from comms import cost
from comms.messages import Payload


class Pushed(NamedTuple):
    """Contributions of an update, as the server gets them."""

    gradients: Any  # [k, ...] for every parameter
    workers: jax.Array  # [k] int32
    batches: jax.Array  # [k] int32, finished mini-batches; 0: nothing was pushed


class Table(NamedTuple):
    """State of the server."""

    averages: Any  # [n, ...] float32 for every parameter, G_i / b_i
    counts: jax.Array  # [n] int32, b_i
    owed: jax.Array  # [n] bool, workers whose step of phase 2 is still to come; none in phase 1
    mean: Any  # like the parameters, float32: direction of the steps of phase 2
    coming: Any  # like the parameters, float32: the same mean for the next round
    optimizer: Any


def gathered() -> optax.GradientTransformationExtraArgs:
    """Gather the contributions of all workers for the server, each in a row of its own."""

    def update_fn(updates, state, params=None, *, batches=1, worker=None, **extra):
        del params, extra
        worker = jax.lax.axis_index(AXIS) if worker is None else worker
        pushed = Pushed(updates, jnp.int32(worker), jnp.int32(batches))
        return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS), pushed), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def average_of_averages(
    optimizer: optax.GradientTransformation, workers: int
) -> optax.GradientTransformationExtraArgs:
    """Let `optimizer` step along the mean of every worker's average gradient (Algorithm 1)."""
    optimizer = extended(optimizer)

    def init_fn(params):
        def zeros(*axes):
            return jax.tree.map(lambda x: jnp.zeros((*axes, *jnp.shape(x)), jnp.float32), params)

        return Table(
            zeros(workers),
            jnp.zeros(workers, jnp.int32),
            jnp.zeros(workers, bool),
            zeros(),
            zeros(),
            optimizer.init(params),
        )

    def update_fn(pushed, table, params, *, batches=1, **extra):
        del batches  # of all contributions together

        def arrive(carry, contribution):
            moved, table = carry
            mean_moves, table = _entered(table, contribution, workers)

            def step(moved, state):
                mean = jax.tree.map(lambda m, p: m.astype(p.dtype), table.mean, params)
                at = optax.apply_updates(params, moved)
                given = extra | {"batches": contribution.batches}
                update, state = optimizer.update(mean, state, at, **given)
                return jax.tree.map(jnp.add, moved, optax.tree.cast_like(update, moved)), state

            moved, state = jax.lax.cond(
                mean_moves, step, lambda moved, state: (moved, state), moved, table.optimizer
            )
            return (moved, table._replace(optimizer=state)), None

        rest = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(arrive, (rest, table), pushed)[0]

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _entered(table: Table, contribution: Pushed, workers: int) -> tuple[jax.Array, Table]:
    """Return (True if the server steps now, the table with one more contribution)."""
    gradient, worker, batches = contribution
    counted, owed = batches > 0, table.owed[worker]
    known = table.counts[worker] + 1
    counts = table.counts.at[worker].set(jnp.where(counted, known, known - 1))
    complete = ~table.owed.any() & (counts >= 1).all()  # the end of phase 1
    moves = counted & (owed | complete)

    def leaf(new, averages, mean, coming):
        average = averages[worker]
        change = jnp.where(counted, (new.astype(jnp.float32) - average) / known, 0)
        coming = coming + jnp.where(owed, 0, change) / workers
        mean = jnp.where(complete, coming, mean + jnp.where(owed, change, 0) / workers)
        # A worker that has made the server step begins anew, in the table of the next round.
        averages = averages.at[worker].set(jnp.where(moves, 0, average + change))
        return averages, mean, jnp.where(complete, 0, coming)

    averages, mean, coming = map_columns(leaf, gradient, table.averages, table.mean, table.coming)
    return moves, table._replace(
        averages=averages,
        counts=counts.at[worker].set(jnp.where(moves, 0, counts[worker])),
        owed=(table.owed | complete).at[worker].set((owed | complete) & ~moves),
        mean=mean,
        coming=coming,
    )


def _messages(params, workers, row) -> tuple[Payload, ...]:
    """Return the payload: a gradient, its worker's number and its count of mini-batches."""
    del workers, row
    return (Payload(gathered=(cost.payload_bytes(params) + 8,)),)


def ringleader(optimizer: optax.GradientTransformation, workers: int) -> Algorithm:
    """Let `optimizer` step along the mean of every worker's mean gradient of a round.

    Take the waiting rule `k_async(k=1)`. Choose the learning rate as for SGD on all data: the n
    steps of a round have nearly the same direction.
    """
    whole("ringleader", 1, workers=workers)
    return Algorithm(
        exchange=gathered(),
        server=average_of_averages(optimizer, workers),
        messages=_messages,
        weight=equal,
        needs=Needs(workers=workers),
    )
