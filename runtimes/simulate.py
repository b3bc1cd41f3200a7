"""Simulated workers: a leading array axis on one device, or sharded over several.

The clock is virtual: a waiting rule plans who takes part in which update and when, and the
updates of a segment run as one compiled loop of one of the four bodies in `runtimes.bodies`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from runtimes import slots, worker
from runtimes.bodies import Model, Row, body_of
from stragglers.rule import Rule
from stragglers.schedule import Schedule, concatenate

PLANNED_UPDATES = 64  # how far the clock runs ahead of the training
INDICES_PER_DISPATCH = 1 << 22  # bounds the sample indices of one dispatch to 16 MiB


class Simulation(NamedTuple):
    """A run between two dispatches. Advancing it gives its arrays away."""

    model: Model
    clock: Any  # state of the waiting rule, after `planned`
    planned: Schedule | None  # made by the clock, not yet run
    begun: tuple[Any, slots.Slots] | None  # clock and slots from which `planned` was made
    rows: tuple[np.ndarray, np.ndarray, np.ndarray] | None  # read, write, current of `planned`
    slots: slots.Slots
    newest: int  # slot of the newest parameters
    update: int
    samples: int


class Simulator(NamedTuple):
    """A runtime: `start(params)`, `advance(simulation, seconds, updates)`, `models(simulation)`.

    memory(simulation): the exchange's state of every worker.
    observe(simulation, seconds, loss): tell the waiting rule how the training goes.
    """

    start: Callable[[Any], Simulation]
    advance: Callable[..., tuple[Simulation, Schedule]]
    models: Callable[[Simulation], Any]
    memory: Callable[[Simulation], Any]
    observe: Callable[[Simulation, float, float], Simulation]
    clock: str = "virtual"


def simulator(
    algorithm: Algorithm,
    losses: Callable[[Any, Any], jax.Array],
    examples: Any,
    sampler,
    rule: Rule,
    *,
    mini_batches: int,
    devices: int = 1,
) -> Simulator:
    """Build the runtime of one method, one task and one waiting rule.

    losses: (params, examples) -> [b] per-example losses; examples: the training set, a pytree
    with leading axis [samples]; sampler: `indices(workers, counters)`; mini_batches: of a full
    round; devices: how many the worker axis is sharded over (must divide the workers).
    """
    workers = rule.workers
    if algorithm.check is not None:
        algorithm.check(workers, rule.extend(rule.init(), 1)[1])
    if len(jax.devices()) < devices or workers % devices:
        raise ValueError(
            f"simulate: cannot shard {workers} workers over {devices} of {len(jax.devices())} "
            "devices; choose devices that divides the workers and exists"
        )
    mesh = jax.make_mesh(
        (devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    everywhere = NamedSharding(mesh, P())
    by_worker = NamedSharding(mesh, P(AXIS))
    by_participant = NamedSharding(mesh, P(None, AXIS))
    local = algorithm.server is None
    stale = rule.asynchronous and not local
    body = body_of(algorithm, stale)

    @functools.partial(jax.jit, static_argnames="everyone", donate_argnums=0)
    def run(model, rows, count, examples, everyone):
        def step(t, model):
            row = jax.tree.map(lambda a: a[t], rows)
            return body(algorithm, losses, model, row, examples, everyone)

        return jax.lax.fori_loop(0, count, step, model)

    def per_worker(tree):
        stacked = jax.tree.map(lambda a: jnp.broadcast_to(a, (workers, *jnp.shape(a))), tree)
        return jax.device_put(stacked, by_worker)

    on_device = None

    def start(params) -> Simulation:
        nonlocal on_device
        if on_device is None:
            on_device = jax.device_put(jax.tree.map(jnp.asarray, examples), everywhere)
        params = jax.tree.map(jnp.asarray, params)
        if local:
            held = per_worker(params)
        elif stale:
            held = jax.tree.map(lambda a: jnp.broadcast_to(a, (workers + 1, *a.shape)), params)
        else:
            held = jax.tree.map(lambda a: jnp.array(a, copy=True), params)
        server = () if local else algorithm.server.init(params)
        if not local:
            held, server = jax.device_put((held, server), everywhere)
        model = Model(held, server, per_worker(worker.init(algorithm, params)))
        return Simulation(
            model,
            rule.init(),
            None,
            None,
            None,
            slots.init(workers + 1),
            newest=0,
            update=0,
            samples=0,
        )

    def plan(simulation: Simulation) -> Simulation:
        clock, planned = rule.extend(simulation.clock, PLANNED_UPDATES)
        if planned.updates == 0:
            return simulation._replace(clock=clock)
        _refuse_lost_memory(planned, workers, simulation.model.workers, local)
        rows = (np.zeros_like(planned.version), *np.zeros((2, planned.updates), np.int32))
        held = simulation.slots
        if stale:
            held, *rows = slots.allocate(held, planned)
        begun = (simulation.clock, simulation.slots)
        return simulation._replace(
            clock=clock, planned=planned, begun=begun, rows=tuple(rows), slots=held
        )

    def rows_on_device(simulation: Simulation, done: Schedule, samples: np.ndarray) -> Row:
        """Rows for the updates of `done`, padded to a power of two: few shapes to compile."""
        padding = (1 << (done.updates - 1).bit_length()) - done.updates

        def pad(values, dtype):
            filler = np.zeros((padding, *values.shape[1:]), dtype)
            return np.concatenate([values.astype(dtype), filler])

        ids = pad(done.workers, np.int32)
        counters = pad(done.first, np.int64)[..., None] + np.arange(mini_batches)
        read, write, current = (pad(a[: done.updates], np.int32) for a in simulation.rows)
        working = ids.shape[1]
        if done.partner is not None and not done.batches[:, working // 2 :].any():
            working //= 2  # partners never stop: they bring nothing along
        rows = Row(
            indices=sampler.indices(
                np.minimum(ids, workers - 1)[:, :working, None], counters[:, :working]
            ),
            batches=pad(done.batches, np.int32),
            worker=ids,
            staleness=pad(done.staleness, np.int32),
            samples=pad(samples, np.float32),
            read=read,
            write=write,
            current=current,
            active=None if done.matchings is None else pad(done.matchings, bool),
            partner=None if done.partner is None else pad(done.partner, np.int32),
        )
        if devices == 1:
            return rows
        spread = by_participant if ids.shape[1] % devices == 0 else everywhere
        common = Row(*[everywhere] * len(Row._fields))
        return jax.device_put(
            rows, common._replace(indices=spread, batches=spread, worker=spread, staleness=spread)
        )

    def dispatch(simulation: Simulation, count: int) -> Simulation:
        done = simulation.planned.slice(0, count)
        everyone = done.workers.shape[1] == workers and np.array_equal(
            done.workers, np.broadcast_to(np.arange(workers), done.workers.shape)
        )
        seen = simulation.samples + np.concatenate([[0], done.samples(sampler.batch_size)])
        rows = rows_on_device(simulation, done, seen[:-1])
        model = run(simulation.model, rows, count, on_device, everyone)
        left = simulation.planned.updates - count
        return simulation._replace(
            model=model,
            planned=simulation.planned.slice(count, count + left) if left else None,
            rows=tuple(a[count:] for a in simulation.rows) if left else None,
            newest=int(simulation.rows[1][count - 1]),
            update=simulation.update + count,
            samples=int(seen[-1]),
        )

    def advance(simulation: Simulation, seconds: float, updates: int | None = None):
        """Run all updates that land by `seconds`, at most `updates` of them.

        Returns the new simulation (the old one's arrays are given away) and the schedule that
        was run, which is empty if nothing landed.
        """
        done = []
        remaining = np.inf if updates is None else updates
        while remaining > 0:
            if simulation.planned is None:
                simulation = plan(simulation)
                if simulation.planned is None:
                    break  # a recorded schedule has come to its end
            planned = simulation.planned
            count = int(np.searchsorted(planned.time, seconds, side="right"))
            count = int(min(count, remaining))
            if count == 0:
                break
            per_update = planned.workers.shape[1] * mini_batches * sampler.batch_size
            count = min(count, max(1, INDICES_PER_DISPATCH // per_update))
            done.append(planned.slice(0, count))
            simulation = dispatch(simulation, count)
            remaining -= count
        return simulation, concatenate(done) if done else None

    def unplanned(simulation: Simulation) -> Simulation:
        """As if the clock had not run ahead of the training."""
        if simulation.planned is None:
            return simulation
        clock, held = simulation.begun
        clock, done = rule.extend(clock, simulation.update - clock.update)
        if stale and done.updates:
            held, *_ = slots.allocate(held, done)
        return simulation._replace(clock=clock, slots=held, planned=None, rows=None)

    def observe(simulation: Simulation, seconds: float, loss: float) -> Simulation:
        if rule.observe is None:
            return simulation
        simulation = unplanned(simulation)
        return simulation._replace(clock=rule.observe(simulation.clock, seconds, loss))

    def models(simulation: Simulation):
        """The current model(s), with a leading axis: one per worker, or one if replicated."""
        params = simulation.model.params
        if local and algorithm.public is not None:
            return jax.vmap(algorithm.public)(simulation.model.workers.exchange, params)
        if local:
            return params
        if stale:
            return jax.tree.map(lambda a: a[simulation.newest][None], params)
        return jax.tree.map(lambda a: a[None], params)

    def memory(simulation: Simulation):
        """The exchange's state, with a leading axis of workers."""
        return simulation.model.workers.exchange

    return Simulator(start, advance, models, memory, observe)


def _refuse_lost_memory(schedule: Schedule, workers: int, memory, local: bool) -> None:
    """A worker that delivers twice in one update would keep only one of its two new states."""
    if not jax.tree.leaves(memory) and not local:
        return
    rows = [row[row < workers] for row in schedule.workers]
    repeated = [t for t, row in enumerate(rows) if len(set(row.tolist())) < len(row)]
    if repeated:
        raise ValueError(
            f"simulate: a worker delivers twice in update {repeated[0]}, but the method keeps "
            "memory per worker; use a method without per-worker memory or a waiting rule with "
            "distinct workers"
        )
