"""One round on a device of a mesh: a plain step, or a step that the host watches.

Both take and return a carry: (model, offset of the next mini-batch in the table, token). The token
makes host callbacks wait for the operations before them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS
from comms import hashing
from runtimes import slices, worker
from stragglers import inject

_ANSWER = jax.ShapeDtypeStruct((), jnp.int32)  # GO, STOP or CUT, see `stragglers.inject`


class Model(NamedTuple):
    """All training state; between dispatches every leaf has a leading axis of workers."""

    params: Any
    server: Any
    worker: worker.WorkerState
    round: Any  # int32, index of the next round
    samples: Any  # [2] uint32, both words of the number of samples seen by all workers


class Table(NamedTuple):
    """The mini-batches of a dispatch; between dispatches with a leading axis of workers."""

    indices: Any  # [mini-batches, batch_size] int32, samples in the training set
    first: Any  # [] int32, counter of the worker's first mini-batch
    draws: Any = None  # uint32, shape of `indices`: draws of the augmentation


def _finish_round(algorithm, model: Model, contribution, state, batches, total, given, weight):
    """Return the model after the exchange and the step, which both kinds of rounds share."""
    if algorithm.adopt is not None:
        given = given | {"current": model.server.params}
    updates, state = worker.exchange(
        algorithm, contribution, model.params, state, batches, given, weight
    )
    return _applied(algorithm, model, updates, state, total, given)


def _applied(algorithm, model: Model, updates, state, total, given) -> Model:
    """Return the model after the step with the result of the exchange."""
    if algorithm.server is None:
        params = optax.apply_updates(model.params, updates)
        return model._replace(params=params, worker=state)
    if algorithm.adopt is not None:
        shared = worker.Shared(
            *worker.serve(algorithm, updates.served, *model.server, total, given)
        )
        own = optax.apply_updates(model.params, updates.own)
        own = algorithm.adopt(own, shared.params, state.exchange, given["version"] + 1)
        return model._replace(params=own, server=shared, worker=state)
    params, server = worker.serve(algorithm, updates, model.params, model.server, total, given)
    return model._replace(params=params, server=server, worker=state)


def _advanced(model: Model, samples) -> Model:
    return model._replace(round=model.round + 1, samples=hashing.plus(model.samples, samples))


def _given(model: Model, mini_batches: int, first, active) -> dict:
    return {
        "active": active,
        **hashing.counted(model.samples),
        "nominal": mini_batches,
        "worker": jax.lax.axis_index(AXIS),
        "version": model.round,
        "first": first,
        "staleness": jnp.int32(0),
    }


def plain(
    algorithm, losses, mini_batches, augment, team, carry, table: Table, examples, active
) -> tuple[Model, jax.Array, jax.Array]:
    """Return the carry after a round of `mini_batches` on every worker; team: see `slices`."""
    model, offset, token = carry
    contribution, state = contributed(
        algorithm, losses, mini_batches, augment, team, model, offset, table, examples, active
    )
    given = _given(model, mini_batches, table.first + offset, active)
    total = jax.lax.axis_size(AXIS) * mini_batches
    model = _finish_round(
        algorithm, model, contribution, state, jnp.int32(mini_batches), total, given, None
    )
    return *_moved(model, offset, mini_batches, team, table), token


def contributed(
    algorithm, losses, mini_batches, augment, team, model, offset, table: Table, examples, active
) -> tuple[Any, worker.WorkerState]:
    """Return a worker's contribution to the exchange of a plain round, and its new state."""
    given = _given(model, mini_batches, table.first + offset, active)
    indices, draws = jax.tree.map(
        lambda a: jax.lax.dynamic_slice_in_dim(a, offset, mini_batches),
        (table.indices, table.draws),
    )
    batch = team.taken(examples, indices, draws, augment)
    return worker.contribute(
        algorithm, team.shared(losses), model.params, model.worker, batch, mini_batches, given
    )


def landed(
    algorithm, mini_batches, team, model: Model, offset, table: Table, mean
) -> tuple[Model, jax.Array]:
    """Return (model, offset) after a plain round whose stateless exchange returned `mean`."""
    given = _given(model, mini_batches, table.first + offset, None)
    total = jax.lax.axis_size(AXIS) * mini_batches
    model = _applied(algorithm, model, mean, model.worker, total, given)
    return _moved(model, offset, mini_batches, team, table)


def _moved(model: Model, offset, mini_batches, team, table) -> tuple[Model, jax.Array]:
    samples = jax.lax.axis_size(AXIS) * mini_batches * table.indices.shape[1] * team.parts
    return _advanced(model, samples), offset + mini_batches


def _touch(tree):
    """Return a scalar that depends on every leaf, so that it is known after all of them."""
    return sum(
        jnp.ravel(leaf)[0].astype(jnp.float32) for leaf in jax.tree.leaves(tree) if leaf.size
    )


def _where(condition, chosen, other):
    """Return the tree `chosen` if the scalar condition holds, else the tree `other`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)


class Watched:
    """Round whose mini-batches the host limits, called with (carry, table, examples, active).

    Each worker takes mini-batches until a callback of the injector answers stop. The worker then
    exchanges, steps and reports the landing in another callback.
    """

    def __init__(
        self,
        algorithm,
        losses,
        mini_batches: int,
        injector: inject.Injector,
        augment: worker.Augment | None,
        team: slices.Alone,
    ):
        self._algorithm, self._augment = algorithm, augment
        self._losses, self._team = team.shared(losses), team
        self._mini_batches, self._injector = mini_batches, injector

    def __call__(self, carry, table: Table, examples, active):
        algorithm, trigger = self._algorithm, self._injector.trigger
        model, offset, token = carry
        me = jax.lax.axis_index(AXIS)
        given = _given(model, self._mini_batches, table.first + offset, active)
        begun = self._team.ask(self._injector.begin, _ANSWER, me, model.round, token)
        most = self._mini_batches
        if np.ndim(trigger.mini_batches):
            most = jnp.asarray(trigger.mini_batches, jnp.int32)[me]

        def batch(taken):
            indices, draws = jax.tree.map(lambda a: a[offset + taken], (table.indices, table.draws))
            return worker.taken(examples, indices, draws, self._augment)

        stopped = self._until_stopped(model, begun, most, batch, given)
        batches, started, contribution, state = stopped
        # A sum over the workers waits for all of them, so that it is taken only if it has to be.
        if trigger.stops or trigger.everywhere:
            total = jax.lax.psum(batches, AXIS)
        else:
            each = np.broadcast_to(trigger.mini_batches, jax.lax.axis_size(AXIS))
            total = jnp.int32(each.sum())
        weight = algorithm.weight(batches)
        landed = _finish_round(algorithm, model, contribution, state, batches, total, given, weight)
        answer = jax.ShapeDtypeStruct((), jnp.float32)
        touched = _touch((landed.params, total) if trigger.everywhere else landed.params)
        token = self._team.ask(self._injector.land, answer, me, model.round, touched)
        used = batches if trigger.carries else most
        if trigger.renews:
            whole = jnp.asarray(trigger.whole, jnp.int32)[me]
            used = -(-started // whole) * whole
        batch_size = table.indices.shape[1] * self._team.parts
        return _advanced(landed, total * batch_size), offset + used, token

    def _until_stopped(self, model: Model, begun, most, batch, given):
        """Return (counted mini-batches, begun mini-batches, contribution, new state)."""
        algorithm, injector = self._algorithm, self._injector
        trigger, me = injector.trigger, given["worker"]
        whole = None if trigger.whole is None else jnp.asarray(trigger.whole, jnp.int32)[me]
        point, gathered = worker.begin(algorithm, model.params, model.worker)

        def going(loop):
            taken, verdict, *_ = loop
            return (taken < most) & (verdict == inject.GO)

        def take(loop):
            taken, _, done, kept = loop
            new = worker.one_more(algorithm, self._losses, point, *done, batch(taken), given, taken)
            ticked = (me, model.round, taken + 1, _touch(new[0]))
            verdict = self._team.ask(injector.tick, _ANSWER, *ticked)
            counts = verdict != inject.CUT if trigger.cuts else True
            if trigger.cuts:
                new = _where(counts, new, done)
            taken = taken + counts
            if whole is not None:
                kept = _where(taken % whole == 0, new, kept)
            return taken, verdict, new, kept

        begin = gathered, model.worker.work
        batches, verdict, done, kept = jax.lax.while_loop(
            going, take, (jnp.int32(0), begun, begin, () if whole is None else begin)
        )
        started = batches + (verdict == inject.CUT)
        if whole is not None:  # mini-batches of an incomplete contribution do not count
            batches, done = batches // whole * whole, kept
        gathered, work_state = done
        contribution = worker.contribution_of(algorithm, point, gathered, batches)
        return batches, started, contribution, model.worker._replace(work=work_state)
