"""Simulated workers: a leading array axis on one device, or sharded over several.

The clock is virtual: a waiting rule plans who takes part in which update and when, and the
updates of a segment run as one compiled loop of one of the four bodies in `runtimes.bodies`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from runtimes import packing, planning, worker
from runtimes.bodies import Model, Row, body_of
from runtimes.planning import Plan, Planner, whole_powers
from stragglers.rule import Rule
from stragglers.schedule import Schedule, concatenate


class Simulation(NamedTuple):
    """A run between two dispatches. Advancing it gives its arrays away."""

    model: Model
    plan: Plan

    @property
    def update(self) -> int:
        """How many updates have been made."""
        return self.plan.update

    @property
    def samples(self) -> int:
        """How many samples have been used."""
        return self.plan.samples

    @property
    def exhausted(self) -> bool:
        """Whether the clock has nothing planned, as at the end of a recorded schedule."""
        return self.plan.planned is None


class Parts(NamedTuple):
    """What a simulator is made of, for those that run several as one."""

    algorithm: Algorithm
    losses: Callable[[Any, Any], jax.Array]
    examples: Any
    planner: Planner
    stale: bool


class Simulator(NamedTuple):
    """A runtime: `start(params)`, `advance(simulation, seconds, updates)`, `models(simulation)`.

    memory(simulation): the exchange's state of every worker.
    observe(simulation, seconds, loss): tell the waiting rule how the training goes.
    skip(simulation, seconds, updates): what `advance` does to the clock, without training.
    pack(simulation): the model as a flat dict of NumPy arrays; unpack(simulation, packed): put it
    back. The clock is no part of it: `skip` and `observe` take a fresh one to the same place.
    """

    start: Callable[[Any], Simulation]
    advance: Callable[..., tuple[Simulation, Schedule]]
    models: Callable[[Simulation], Any]
    memory: Callable[[Simulation], Any]
    observe: Callable[[Simulation, float, float], Simulation]
    skip: Callable[..., tuple[Simulation, Schedule | None]]
    pack: Callable[[Simulation], dict[str, np.ndarray]]
    unpack: Callable[[Simulation, Mapping[str, np.ndarray]], Simulation]
    parts: Parts
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
    planner = planning.planner(rule, sampler, mini_batches, stale)

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
        memory = per_worker(worker.init(algorithm, params))
        remembers = local or bool(jax.tree.leaves(memory))
        return Simulation(Model(held, server, memory), planner.start(remembers))

    def on_devices(rows: Row) -> Row:
        if devices == 1:
            return rows
        spread = by_participant if rows.worker.shape[1] % devices == 0 else everywhere
        common = Row(*[everywhere] * len(Row._fields))
        return jax.device_put(
            rows, common._replace(indices=spread, batches=spread, worker=spread, staleness=spread)
        )

    def advance(simulation: Simulation, seconds: float, updates: int | None = None):
        """Run all updates that land by `seconds`, at most `updates` of them.

        Returns the new simulation (the old one's arrays are given away) and the schedule that
        was run, None if nothing landed.
        """
        done = []
        model, plan = simulation
        remaining = np.inf if updates is None else updates
        while remaining > 0:
            plan, turn = planner.take(plan, seconds, remaining)
            if turn is None:
                break
            count, width = turn.schedule.workers.shape
            rows = on_devices(planner.rows(turn, whole_powers(count), width))
            model = run(model, rows, count, on_device, turn.everyone)
            done.append(turn.schedule)
            remaining -= count
        return Simulation(model, plan), concatenate(done) if done else None

    def observe(simulation: Simulation, seconds: float, loss: float) -> Simulation:
        return simulation._replace(plan=planner.observe(simulation.plan, seconds, loss))

    def models(simulation: Simulation):
        """The current model(s), with a leading axis: one per worker, or one if replicated."""
        params = simulation.model.params
        if local and algorithm.public is not None:
            return jax.vmap(algorithm.public)(simulation.model.workers.exchange, params)
        if local:
            return params
        if stale:
            return jax.tree.map(lambda a: a[simulation.plan.newest][None], params)
        return jax.tree.map(lambda a: a[None], params)

    def memory(simulation: Simulation):
        """The exchange's state, with a leading axis of workers."""
        return simulation.model.workers.exchange

    def skip(simulation: Simulation, seconds: float, updates: int | None = None):
        most = np.inf if updates is None else updates
        plan, schedule = planner.skip(simulation.plan, seconds, most)
        return simulation._replace(plan=plan), schedule

    def pack(simulation: Simulation) -> dict[str, np.ndarray]:
        return packing.pack(simulation.model)

    def unpack(simulation: Simulation, packed: Mapping[str, np.ndarray]) -> Simulation:
        return simulation._replace(model=packing.unpack(simulation.model, packed))

    parts = Parts(algorithm, losses, examples, planner, stale)
    return Simulator(start, advance, models, memory, observe, skip, pack, unpack, parts)
