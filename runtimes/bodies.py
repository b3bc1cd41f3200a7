"""One update of simulated workers, in six forms.

Properties of the method and of the schedule determine the form; a method's name does not:

    union       the exchange is only a mean: one gradient on all finished samples together
    replicated  one model, one contribution per worker, exchange under `vmap`
    stale       as replicated, but contributions are taken at older versions of the model
    local       a model per worker
    adopting    a model per worker beside the server's newest one, combined by `Algorithm.adopt`
    reading     as adopting, but with the older version of the server's model that the worker read
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm
from comms import hashing
from runtimes import worker


class Model(NamedTuple):
    """All training state on the device(s)."""

    params: Any  # [...] replicated; [slots, ...] stale; [workers, ...] where workers have their own
    server: Any  # optimizer state of a replicated method; () of a local one; `worker.Shared` if
    # adopting or reading, with parameters [slots, ...] if reading
    workers: worker.WorkerState  # [workers, ...]
    kept: Any = ()  # local `params` before the last row with `keep`; (): the rule needs none


class Row(NamedTuple):
    """One update of the schedule as the device sees it; a dispatch stacks many."""

    indices: jax.Array  # [k, mini_batches, batch_size] int32, samples in the training set; fewer
    # than k positions if the last ones never have finished mini-batches
    draws: jax.Array | None  # uint32, shape of `indices`: draws of the augmentation; None: no draws
    batches: jax.Array  # [k] int32, finished mini-batches
    worker: jax.Array  # [k] int32
    version: jax.Array  # [k] int32, version of the parameters behind each contribution
    first: jax.Array  # [k] int32, counter of each contribution's first mini-batch
    staleness: jax.Array  # [k] int32
    samples: jax.Array  # [2] uint32, both words of the number of samples seen before the update
    seen: jax.Array | None  # [k, 2] uint32, `samples` at a contribution's start; None: as `samples`
    read: jax.Array  # [k] int32, slot of the parameters behind each contribution
    write: jax.Array  # [] int32, slot of the new parameters
    current: jax.Array  # [] int32, slot of the newest parameters before the update
    active: jax.Array | None  # [matchings] bool, matchings in use in this update; None: all
    partner: jax.Array | None  # [k] int32, position of each one's partner; None: no pairs
    restored: jax.Array | None  # [k] int32, worker whose model replaced a lost one; -1: no loss
    keep: jax.Array | None  # [] bool, a later row restarts a worker from its own model as it was
    # before this update; None: no row ever does so


class Versions(NamedTuple):
    """Versions of one model while rows run: all in slots, and a second copy of the newest one.

    A read of the newest version from its slot would copy it in every update. The update and the
    write to a slot would then be one loop on one thread. All threads update the second copy.
    """

    slots: Any  # [slots, ...]
    newest: Any  # [...], equal to one of the slots


class Known(NamedTuple):
    """Facts about all rows of a dispatch, as Python bools, so that its program needs no checks."""

    everyone: bool  # all workers take part, in their order: no gather, no scatter
    busy: bool  # every participant has finished a mini-batch: no worker's state has to stay as is
    served: bool  # every row has a finished mini-batch: the server always has an update

    def __and__(self, other: "Known") -> "Known":
        return Known(*(a and b for a, b in zip(self, other, strict=True)))


def body_of(algorithm: Algorithm, stale: bool) -> Callable[..., Model]:
    """Return the body of one update: (algorithm, losses, model, row, take, known) -> model.

    take: (indices of samples, their draws), of any shape -> examples. stale: contributions of the
    schedule may be taken at older versions. known: see `Known`.
    """
    if algorithm.server is None:
        return _local
    if algorithm.adopt is not None:
        return _reading if stale else _adopting
    if stale:
        return _stale
    plain = algorithm.work is None and algorithm.grad_params is None
    return _union if algorithm.mean_only and plain else _replicated


def _given(row: Row, known: Known) -> tuple[dict, dict]:
    """Return the schedule's extra arguments: (equal on all workers, one per participant)."""
    own = {name: getattr(row, name) for name in ("worker", "version", "first", "staleness")}
    if row.partner is not None:
        own["partner"] = row.partner
    common = {"nominal": row.indices.shape[1], "active": row.active, "busy": known.busy}
    return common | hashing.counted(row.samples), own


def _take(tree, index, everyone: bool):
    return tree if everyone else jax.tree.map(lambda a: a[index], tree)


def _put(tree, index, values, everyone: bool):
    if everyone:
        return values
    return jax.tree.map(lambda a, v: a.at[index].set(v), tree, values)


def _where(chosen, new, old):
    """Return leaves [k, ...] of `new` where `chosen` [k] holds, and of `old` elsewhere."""

    def leaf(a, b):
        return jnp.where(chosen.reshape((-1, *[1] * (b.ndim - 1))), a, b)

    return jax.tree.map(leaf, new, old)


def rows_of(algorithm, losses, augment, stale: bool) -> Callable[..., Model]:
    """Return the function (model, rows, count, examples, known) -> model after `count` rows.

    rows: of the schedule, stacked on a leading axis. augment: see `runtimes.worker.taken`. stale:
    see `body_of`.
    """
    body = body_of(algorithm, stale)

    @functools.partial(jax.jit, static_argnames="known", inline=True)
    def update(model, row, examples, known):  # traced once for stacks of all lengths
        def take(places):
            return worker.taken(examples, *places, augment)

        return body(algorithm, losses, model, row, take, known)

    def run(model: Model, rows: Row, count, examples, known: Known) -> Model:
        def step(t, model):
            return update(model, jax.tree.map(lambda a: a[t], rows), examples, known)

        if body is _stale:
            model = model._replace(params=_versions(model.params, rows))
            model = jax.lax.fori_loop(0, count, step, model)
            return model._replace(params=model.params.slots)
        if body is _reading:
            server = model.server
            begun = server._replace(params=_versions(server.params, rows))
            model = jax.lax.fori_loop(0, count, step, model._replace(server=begun))
            return model._replace(server=model.server._replace(params=model.server.params.slots))
        return jax.lax.fori_loop(0, count, step, model)

    return run


def _versions(slots, rows: Row) -> Versions:
    return Versions(slots, jax.tree.map(lambda a: a[rows.current[0]], slots))


def _union(algorithm, losses, model: Model, row: Row, take, known) -> Model:
    seen_apart = row.seen is not None and worker.draws(losses)
    if seen_apart or worker.draws_alone(losses):
        return _replicated(algorithm, losses, model, row, take, known)
    _, mini_batches, batch_size = row.indices.shape
    weight = algorithm.weight(row.batches)
    share = weight / jnp.maximum(weight.sum(), jnp.finfo(jnp.float32).tiny)
    own = jax.vmap(lambda m: worker.sample_weights(m, mini_batches, batch_size))(row.batches)
    places = _of_finished((row.indices, row.draws), row.batches, known)
    taken = worker.flatten(worker.flatten(take(places)))
    weights = (share[:, None] * own).reshape(-1)
    common, _ = _given(row, known)
    gradient = worker.gradient(worker.drawn(losses, common), model.params, taken, weights)
    finished = row.batches.sum()
    lone = jax.tree.map(lambda a: a[:1], model.workers.exchange)

    def exchange(gradient, state):
        return algorithm.exchange.update(
            gradient, state, model.params, weight=None, batches=finished, **common
        )

    reduced, _ = jax.vmap(exchange, axis_name=AXIS)(jax.tree.map(lambda g: g[None], gradient), lone)
    reduced = jax.tree.map(lambda g: g[0], reduced)
    common |= {"busy": known.served}
    params, server = worker.serve(algorithm, reduced, model.params, model.server, finished, common)
    return model._replace(params=params, server=server)


def _of_finished(places, batches, known: Known):
    """Return places [k, mini_batches, ...] in which finished samples replace unfinished ones."""
    if not known.busy:
        busy = jnp.argmax(batches > 0)
        of_idle = jax.tree.map(lambda a: a[busy], places)
        places = _where(batches > 0, places, jax.tree.map(lambda a: a[None], of_idle))
        batches = jnp.where(batches > 0, batches, batches[busy])
    return jax.vmap(worker.of_finished)(places, batches)


def _contributions(algorithm, losses, points, axis, model: Model, row: Row, take, known, **given):
    """Return (exchange results, all workers' states); `axis` of `points`: 0, or None if shared."""
    common, own = _given(row, known)
    common |= given
    state = _take(model.workers, row.worker, known.everyone)
    if row.restored is not None:
        fresh = jax.vmap(
            lambda params: worker.init(algorithm, params), in_axes=axis, axis_size=len(row.worker)
        )(points)
        state = _where(row.restored >= 0, fresh, state)
    working = len(row.indices)
    taken_at = own if row.seen is None else own | hashing.counted(row.seen)

    def contribute(params, state, places, batches, own):
        return worker.contribute(
            algorithm, losses, params, state, places, batches, {**common, **own}, take
        )

    def first(tree):
        return jax.tree.map(lambda a: a[:working], tree)

    contribution, worked = jax.vmap(contribute, in_axes=(axis, 0, 0, 0, 0))(
        points if axis is None else first(points),
        first(state),
        (row.indices, row.draws),
        row.batches[:working],
        first(taken_at),
    )
    if working < len(row.worker):
        rest = len(row.worker) - working
        contribution = jax.tree.map(
            lambda c: jnp.concatenate([c, jnp.zeros((rest, *c.shape[1:]), c.dtype)]), contribution
        )
        worked = jax.tree.map(lambda a, b: jnp.concatenate([a, b[working:]]), worked, state)
    updates, state = worker.exchanged(
        algorithm, contribution, points, axis, worked, row.batches, common, own
    )
    return updates, _put(model.workers, row.worker, state, known.everyone)


def _reduced(algorithm, losses, points, axis, current, model, row, take, known):
    """Return (new parameters, model) after an update of `current` by contributions at `points`."""
    updates, workers = _contributions(
        algorithm, losses, points, axis, model, row, take, known, current=current
    )
    common = _given(row, known)[0] | {"busy": known.served}
    params, server = worker.served(algorithm, updates, current, model.server, row.batches, common)
    return params, model._replace(server=server, workers=workers)


def _replicated(algorithm, losses, model: Model, row: Row, take, known) -> Model:
    params, model = _reduced(
        algorithm, losses, model.params, None, model.params, model, row, take, known
    )
    return model._replace(params=params)


def _stale(algorithm, losses, model: Model, row: Row, take, known) -> Model:
    slots, newest = model.params
    points = _read(slots, row)
    newest, model = _reduced(algorithm, losses, points, 0, newest, model, row, take, known)
    return model._replace(params=Versions(_written(slots, row, newest), newest))


def _read(slots, row: Row):
    """Return the parameters [k, ...] at which the contributions were taken."""

    def taken_at(a):
        if len(row.read) == 1:  # a slice, which a CPU copies faster than it gathers
            return jax.lax.dynamic_index_in_dim(a, row.read[0])
        return a[row.read]

    return jax.tree.map(taken_at, slots)


def _written(slots, row: Row, params):
    """Return the slots with the new version in its slot."""
    return jax.tree.map(
        lambda a, p: jax.lax.dynamic_update_index_in_dim(a, p, row.write, 0), slots, params
    )


def _local(algorithm, losses, model: Model, row: Row, take, known) -> Model:
    params = _take(model.params, row.worker, known.everyone)
    if row.restored is not None:
        own = params
        if row.keep is not None:
            older = _take(model.kept, row.worker, known.everyone)
            own = _where(row.staleness > 0, older, own)
            kept = jax.lax.cond(row.keep, lambda: model.params, lambda: model.kept)
            model = model._replace(kept=kept)
        source = jnp.maximum(row.restored, 0)
        theirs = _take(model.params, source, everyone=False)
        if algorithm.public is not None:
            state = _take(model.workers.exchange, source, everyone=False)
            theirs = jax.vmap(algorithm.public)(state, theirs)
        first = _where(row.restored == row.worker, own, theirs)
        params = _where(row.restored >= 0, first, params)
    updates, workers = _contributions(algorithm, losses, params, 0, model, row, take, known)
    params = _put(model.params, row.worker, optax.apply_updates(params, updates), known.everyone)
    return model._replace(params=params, workers=workers)


def _beside(
    algorithm, losses, read, current, model: Model, row: Row, take, known
) -> tuple[Any, Model]:
    """Return (the server's new parameters, the model with all other new state).

    read: the server's parameters as each participant has read them, [k, ...]. current: the newest.
    """
    own = _take(model.params, row.worker, known.everyone)
    if row.restored is not None:
        own = _where(row.restored >= 0, read, own)
    state = _take(model.workers.exchange, row.worker, known.everyone)
    own = jax.vmap(algorithm.adopt)(own, read, state, row.version)
    parted, workers = _contributions(
        algorithm, losses, own, 0, model, row, take, known, current=current
    )
    common = _given(row, known)[0] | {"busy": known.served}
    optimizer = model.server.optimizer
    shared = worker.Shared(
        *worker.served(algorithm, parted.served, current, optimizer, row.batches, common)
    )
    own = _put(model.params, row.worker, optax.apply_updates(own, parted.own), known.everyone)
    return shared.params, model._replace(params=own, server=shared, workers=workers)


def _adopting(algorithm, losses, model: Model, row: Row, take, known) -> Model:
    current = model.server.params
    read = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(row.worker), *a.shape)), current)
    return _beside(algorithm, losses, read, current, model, row, take, known)[1]


def _reading(algorithm, losses, model: Model, row: Row, take, known) -> Model:
    slots, newest = model.server.params
    read = _read(slots, row)
    newest, model = _beside(algorithm, losses, read, newest, model, row, take, known)
    versions = Versions(_written(slots, row, newest), newest)
    return model._replace(server=model.server._replace(params=versions))
