"""Simulated workers: a leading array axis on one device, or sharded over several.

The clock is virtual: a waiting rule plans the participants and the time of every update. The
updates of a segment run as a compiled loop over one of the six bodies in `runtimes.bodies`.
`Batched` runs the arms of a sweep as one program if they differ only in seeds, rates or rules.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from runtimes import data_feed, packing, worker
from runtimes.base import refuse, remembers
from runtimes.bodies import Known, Model, Row, rows_of
from runtimes.data_feed import Feed, Input, Streamed
from runtimes.planning import INDICES_PER_DISPATCH, Addresses, Plan, Planner, stacked, whole_powers
from stragglers.rule import Rule
from stragglers.schedule import Schedule, concatenate

UPDATE = "clock/update"  # key of the number of updates beside the packed model
ANOTHER_CLOCK = (
    "resume: the clock makes other updates than it made before, as a file that the config reads, "
    "such as a trace or a profile, is another one now; bring the old one back, or start over"
)


class Simulation(NamedTuple):
    """A run between two dispatches, whose arrays `advance` donates."""

    model: Model
    plan: Plan

    update = property(lambda self: self.plan.update)
    samples = property(lambda self: self.plan.samples)
    seconds = property(lambda self: self.plan.seconds)
    exhausted = property(lambda self: self.plan.exhausted)


class Simulator:
    """The runtime of one method, one task and one waiting rule, see `runtimes.base.Runtime`."""

    clock, replays = "virtual", True

    def __init__(
        self,
        algorithm: Algorithm,
        losses: Callable[[Any, Any], jax.Array],
        examples: Any,
        sampler,
        rule: Rule,
        *,
        mini_batches: int,
        devices: int = 1,
        augment: worker.Augment | None = None,
    ):
        """Check the parts; the first update compiles.

        losses: (params, examples) -> [b] per-example losses. examples: the training set, a pytree
        with leading axis [samples], or `runtimes.data_feed.Streamed`. sampler: `indices(workers,
        counters)`, and `on_host` for a streamed set, `draws` for an augmented one. mini_batches: of
        a full round. devices: number of devices under the worker axis, a divisor of the workers.
        augment: augmentation of the training examples.
        """
        self.algorithm, self.losses, self.augment = algorithm, losses, augment
        self._workers, self._devices = rule.workers, devices
        refuse(algorithm, rule.workers, rule.turnout)
        self._turnout = rule.turnout
        if len(jax.devices()) < devices or rule.workers % devices:
            raise ValueError(
                f"simulate: cannot shard {rule.workers} workers over {devices} of "
                f"{len(jax.devices())} devices; set config.devices to a divisor of "
                f"{rule.workers} that is at most {len(jax.devices())}"
            )
        mesh = jax.make_mesh(
            (devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
        )
        self._everywhere = NamedSharding(mesh, P())
        self._by_worker = NamedSharding(mesh, P(AXIS))
        self._by_participant = NamedSharding(mesh, P(None, AXIS))
        self._local = algorithm.own_models
        # `stale` needs older versions of the server's model, `_recalls` of the workers' own models.
        self.stale = rule.asynchronous and algorithm.server is not None
        brings = StreamedInput if isinstance(examples, Streamed) else WholeInput
        self._sampler, self.input = sampler, brings(examples, sampler)
        self._recalls = rule.asynchronous and algorithm.server is None
        self.planner = Planner(
            rule, sampler.batch_size, mini_batches, self.stale, self.input.most, self._recalls
        )
        self._run = _program(algorithm, losses, augment, self.stale)

    def start(self, params) -> Simulation:
        """Return a run without updates that starts from a copy of `params`."""
        refuse(self.algorithm, self._workers, self._turnout, params)
        self.input.start(self._place)
        params = jax.tree.map(jnp.asarray, params)
        server, kept = _copied(worker.init_server(self.algorithm, params)), ()
        if self._local:
            held = self._per_worker(params)
            kept = self._per_worker(params) if self._recalls else ()
            if self.stale:
                server = server._replace(params=self._slots(server.params))
        else:
            held = self._slots(params) if self.stale else _copied(params)
            held = jax.device_put(held, self._everywhere)
        server = jax.device_put(server, self._everywhere)
        memory = self._per_worker(worker.init(self.algorithm, params))
        plan = self.planner.start(remembers(self.algorithm, params))
        return Simulation(Model(held, server, memory, kept), plan)

    def advance(
        self, simulation: Simulation, seconds: float, updates: float = np.inf
    ) -> tuple[Simulation, Schedule | None]:
        """Run all updates that land by `seconds`, but at most `updates` of them.

        Returns the new simulation, which takes over the old one's arrays, and the schedule of
        these updates, None if there were none.
        """
        done = []
        model, plan = simulation
        remaining = updates
        while remaining > 0:
            plan, turn = self.planner.take(plan, seconds, remaining)
            if turn is None:
                break
            count, width = turn.schedule.workers.shape
            updates = whole_powers(count)
            addresses = self.planner.addresses(turn, updates, width)
            examples, indices = self.input.take(addresses, after=model.params)
            draws = self.draws(addresses)
            rows = self._on_devices(self.planner.rows(turn, updates, width, indices, draws))
            model = self._run(model, rows, count, examples, turn.known)
            plan = self.planner.ahead(plan)
            done.append(turn.schedule)
            remaining -= count
        return Simulation(model, plan), concatenate(done) if done else None

    def observe(self, simulation: Simulation, seconds: float, loss: float) -> Simulation:
        """Pass a training loss to a rule that follows it, which may change the next updates."""
        return simulation._replace(plan=self.planner.observe(simulation.plan, seconds, loss))

    def models(self, simulation: Simulation) -> optax.Params:
        """Return the current model(s), with a leading axis: of workers, or of length 1."""
        params = simulation.model.params
        if self.algorithm.adopt is not None:
            params = simulation.model.server.params
        elif self._local and self.algorithm.public is not None:
            return jax.vmap(self.algorithm.public)(simulation.model.workers.exchange, params)
        elif self._local:
            return params
        if self.stale:
            params = _at(params, simulation.plan.newest)
        return _replica(params)

    def memory(self, simulation: Simulation) -> optax.OptState:
        """Return the exchange's state, with a leading axis of workers."""
        return simulation.model.workers.exchange

    def measured(self, simulation: Simulation) -> dict[str, float]:
        """Return the seconds of waiting for a streamed input; no other column is measured here."""
        del simulation
        return self.input.measured()

    def close(self) -> None:
        """End the readers of examples."""
        self.input.close()

    def pack(self, simulation: Simulation) -> dict[str, np.ndarray]:
        """Return the model and the number of updates as a flat dict; `resume` replays the clock."""
        return packing.pack(simulation.model) | {UPDATE: np.array([simulation.update])}

    def resume(
        self,
        simulation: Simulation,
        packed: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[Simulation, Schedule | None]:
        """Return the packed run, its clock replayed with all observed losses, and its schedule."""
        model = packing.unpack(simulation.model, packed)
        plan = self.planner.observe(simulation.plan, *observed[0])
        done = []
        for seconds, loss in observed[1:]:
            plan, schedule = self.planner.skip(plan, seconds)
            done += [] if schedule is None else [schedule]
            plan = self.planner.observe(plan, seconds, loss)
        # Updates since the last loss of a run that had come to its end.
        further = int(packed.get(UPDATE, [plan.update])[0]) - plan.update
        if further < 0:
            raise ValueError(ANOTHER_CLOCK)
        plan, schedule = self.planner.skip(plan, np.inf, further)
        done += [] if schedule is None else [schedule]
        return Simulation(model, plan), concatenate(done) if done else None

    def _place(self, examples):
        """Return host arrays on all devices."""
        return jax.device_put(examples, self._everywhere)

    def draws(self, addresses: Addresses) -> jax.Array | None:
        """Return the draws of augmentation for the samples of these mini-batches."""
        if self.augment is None:
            return None
        return self._sampler.draws(addresses.worker[..., None], addresses.counter)

    def _per_worker(self, tree):
        """Return a copy of every leaf for every worker, [workers, ...]."""
        stacked = jax.tree.map(lambda a: jnp.broadcast_to(a, (self._workers, *jnp.shape(a))), tree)
        return jax.device_put(stacked, self._by_worker)

    def _slots(self, params):
        """Return the initial parameters in every slot for a version, [slots, ...]."""
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (self._workers + 1, *a.shape)), params)

    def _on_devices(self, rows: Row) -> Row:
        """Return rows [T, k, ...], with positions sharded over the devices if these divide k."""
        if self._devices == 1:
            return rows
        spread = self._everywhere
        if rows.indices.shape[1] % self._devices == 0:  # maybe less than k, see `addresses`
            spread = self._by_participant
        common = Row(*[self._everywhere] * len(Row._fields))
        by_participant = (
            "indices", "draws", "batches", "worker", "version", "first", "staleness", "seen",
        )  # fmt: skip
        return jax.device_put(rows, common._replace(**dict.fromkeys(by_participant, spread)))


def _program(
    algorithm: Algorithm,
    losses: Callable,
    augment: worker.Augment | None,
    stale: bool,
    batched: bool = False,
) -> Callable:
    """Return the compiled function (model, rows, count, examples, known) -> model.

    batched: model, rows and count have a leading axis of runs.
    """
    after = rows_of(algorithm, losses, augment, stale)

    @functools.partial(jax.jit, static_argnames="known", donate_argnums=0)
    def run(model, rows, count, examples, known):
        def one(model, rows, count):
            return after(model, rows, count, examples, known)

        return (jax.vmap(one) if batched else one)(model, rows, count)

    return run


@jax.jit
def _replica(params):
    """Return replicated parameters, with a leading axis of length 1."""
    return jax.tree.map(lambda a: a[None], params)


def _copied(tree):
    """Return a copy of every leaf in an array of its own, because `advance` donates it."""
    return jax.tree.map(lambda a: jnp.array(a, copy=True), tree)


class Batch(NamedTuple):
    """Several runs between two dispatches, whose arrays `advance` donates."""

    model: Model  # with a leading axis of runs
    plans: list[Plan]


class Batched:
    """The runtime of several runs that differ only in data, each of which has a `Simulator`.

    `advance` works as in `runtimes.base.Runtime`, but with a sequence over the runs for seconds,
    updates and schedules. `one` takes a run out of the batch, for its own simulator.
    """

    def __init__(self, simulators: Sequence[Simulator]):
        """Take the simulators of the runs; a ValueError if one program cannot serve them all."""
        algorithm, losses, augment, stale = (
            getattr(simulators[0], name) for name in ("algorithm", "losses", "augment", "stale")
        )
        if any(simulator.stale != stale for simulator in simulators):
            raise ValueError(
                "batched: some runs have stale gradients and some have not; run them apart"
            )
        if not all(simulator.input.alike for simulator in simulators):
            raise ValueError("batched: every run would stream examples of its own; run them apart")
        self._planners = [simulator.planner for simulator in simulators]
        self._simulators = simulators
        self._run = _program(algorithm, losses, augment, stale, batched=True)

    def stack(self, runs: Sequence[Simulation]) -> Batch:
        """Return the batch of runs that have just been started or resumed, in order."""
        model = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.model for run in runs))
        return Batch(model, [run.plan for run in runs])

    def advance(
        self, batch: Batch, seconds: Sequence[float], updates: Sequence[float]
    ) -> tuple[Batch, list[Schedule | None]]:
        """Train every run r until `seconds[r]`, by at most `updates[r]` updates.

        Returns the new batch and, for each run, the schedule of its updates, or None without any.
        """
        model, plans = batch.model, list(batch.plans)
        remaining = list(updates)
        done = [[] for _ in plans]
        while True:
            turns = [None] * len(plans)
            for r, planner in enumerate(self._planners):
                if remaining[r] > 0:
                    plans[r], turns[r] = planner.take(plans[r], seconds[r], remaining[r])
            ready = [turn for turn in turns if turn is not None]
            if not ready:
                break
            length = whole_powers(max(turn.schedule.updates for turn in ready))
            width = max(turn.schedule.workers.shape[1] for turn in ready)
            counts = np.zeros(len(plans), np.int32)
            rows = []
            for r, turn in enumerate(turns):
                # A run without updates gets another run's rows, and a count of 0.
                own = ready[0] if turn is None else turn
                planner = self._planners[r]
                addresses = planner.addresses(own, length, width)
                examples, indices = self._simulators[r].input.take(addresses, after=())
                draws = self._simulators[r].draws(addresses)
                rows.append(planner.rows(own, length, width, indices, draws))
                if turn is not None:
                    counts[r] = turn.schedule.updates
                    done[r].append(turn.schedule)
                    remaining[r] -= turn.schedule.updates
            known = functools.reduce(Known.__and__, (turn.known for turn in ready))
            if any(turn.schedule.workers.shape[1] < width for turn in ready):
                known = known._replace(busy=False)  # padded positions finish no mini-batch
            model = self._run(model, stacked(rows), counts, examples, known)
            plans = [r.ahead(plan) for r, plan in zip(self._planners, plans, strict=True)]
        return Batch(model, plans), [concatenate(rows) if rows else None for rows in done]

    def observed(self, batch: Batch, runs: Sequence[Simulation]) -> Batch:
        """Return the batch with the plans of `runs`, after each one's `Simulator.observe`."""
        return batch._replace(plans=[run.plan for run in runs])

    def one(self, batch: Batch, r: int) -> Simulation:
        """Return run r in the form of its own simulator."""
        return Simulation(_at(batch.model, r), batch.plans[r])


_at = jax.jit(lambda tree, index: jax.tree.map(lambda a: a[index], tree))


class WholeInput(Input):
    """The whole training set on the devices."""

    alike = True  # the same examples in every dispatch, and for runs that differ in their seeds

    def __init__(self, examples: Any, sampler):
        """Take a pytree of arrays [samples, ...]; sampler: `indices(workers, counters)`."""
        self._examples, self._sampler, self._placed = examples, sampler, None

    def most(self, samples: int) -> int:
        """Return the most updates of a dispatch, given the samples of an update."""
        return max(1, INDICES_PER_DISPATCH // samples)

    def start(self, place: Callable[[Any], Any]) -> None:
        """Place the training set on the devices by `place`, unless it is there already."""
        if self._placed is None:
            self._placed = place(self._examples)

    def take(self, addresses: Addresses, after: Any) -> tuple[Any, jax.Array]:
        """Return (examples, indices among the examples of the samples at `addresses`)."""
        del after
        return self._placed, self._sampler.indices(addresses.worker[..., None], addresses.counter)


class StreamedInput(Input):
    """Examples of a dispatch, read while the devices work on the dispatch before."""

    alike = False

    def __init__(self, examples: Streamed, sampler):
        """Take a sampler with `on_host(workers, counters)`, see `runtimes.data_feed.Feed`."""
        self._streamed, self._batch_size = examples, sampler.batch_size
        self._feed = Feed(examples, sampler)

    def most(self, samples: int) -> int:
        """Return the most updates of a dispatch, given the samples of an update."""
        return data_feed.most_updates(self._streamed.sample_bytes, samples)

    def start(self, place: Callable[[Any], Any]) -> None:
        """Store `place`, which puts arrays on the devices."""
        self._place = place

    def take(self, addresses: Addresses, after: Any) -> tuple[Any, np.ndarray]:
        """Return as `WholeInput.take` does, once the table and the arrays of `after` are ready."""

        def computing() -> bool:
            return not all(leaf.is_ready() for leaf in jax.tree.leaves(after))

        done = addresses.schedule
        real = addresses.counter[: done.updates]
        workers = addresses.worker[: done.updates, :, None]
        taken, places = data_feed.unique_addresses(workers, real)
        self._feed.ask(taken)
        needed = np.zeros(addresses.workers + 1, np.int64)  # the last entry is for padding
        np.maximum.at(needed, done.workers, done.first + done.batches)
        self._feed.ask(data_feed.following(taken, needed))
        table = self._feed.table(taken, addresses.counter.size, computing)
        self._feed.drop(needed)
        with self._feed.waiting(computing):
            table = jax.block_until_ready(self._place(table))
        jax.block_until_ready(after)  # so that no more than two tables are on the devices
        slot = np.zeros(addresses.counter.shape, np.int32)
        slot[: done.updates] = places
        return table, slot[..., None] * self._batch_size + np.arange(self._batch_size, dtype="i4")
