"""Workers on the devices of a mesh: real collectives, real delays, wall-clock time.

A worker is a device, or a slice of several devices, see `slices`.

With an injector (delays, or a trigger) each worker runs a real `while_loop` in every round. It
takes mini-batches until a host callback answers stop, see `stragglers.inject`. Without an injector,
a round is a plain hand-written step: one gradient, one collective, one update. A plain round waits
for nothing but its collective.

Replicated values stay stacked, a copy per device, because the result of a ring or of an
all-gather cannot be declared replicated. With links, and a rule that stops nobody, a worker waits
for its neighbours alone. All other rounds count the samples of all workers, and on CPU devices a
`ppermute` itself waits for all workers.

The devices may belong to several processes, which then all run the same host code. Each process
measures its own seconds; after every dispatch all agree on common seconds, and all stop alike.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from comms import hashing
from runtimes import data_feed, overlapped, packing, phases, rounds, slices, worker
from runtimes.base import NO_OVERLAP, refuse
from runtimes.data_feed import Feed, Input, Streamed
from runtimes.rounds import Model, Table
from stragglers.inject import Injector
from stragglers.rule import Turnout
from stragglers.schedule import Schedule, concatenate

INJECTOR = "injector/"  # prefix of the injector's packed values


class MeshRun(NamedTuple):
    """A run between two dispatches, whose arrays `advance` donates."""

    model: Model
    consumed: np.ndarray  # [workers] counter of each worker's next mini-batch
    seconds: float  # on the wall clock, without compiling and evaluating
    update: int
    samples: int
    exhausted = False  # rounds never end


class Mesh:
    """The runtime of one method and one task on devices, see `runtimes.base.Runtime`."""

    clock, replays = "wall", False

    def __init__(
        self,
        algorithm: Algorithm,
        losses: Callable[[Any, Any], jax.Array],
        examples: Any,
        sampler,
        *,
        workers: int,
        mini_batches: int,
        injector: Injector | None = None,
        rounds_per_dispatch: int = 8,
        augment: worker.Augment | None = None,
        devices_per_worker: int = 1,
        sharding: slices.Sharding = slices.REPLICATED,
        overlap: str = NO_OVERLAP,
    ):
        """Check the parts and take the first devices; the first round compiles.

        losses, examples, sampler, mini_batches, augment: as in `runtimes.simulate.Simulator`.
        injector: delays and trigger; None: every round takes `mini_batches` at the devices' own
        speed. rounds_per_dispatch: rounds between two readings of the clock. devices_per_worker:
        size of a slice. sharding: placement of a model on a slice, `slices.replicated()` or `fsdp`.
        overlap: exchange of gradients during the backward pass, one of `overlapped.OVERLAPS`.
        """
        refuse(algorithm, workers, Turnout())
        slices.check_devices(workers, devices_per_worker)
        slices.check_batch(devices_per_worker, sampler.batch_size)
        team = sharding(devices_per_worker, isinstance(examples, Streamed))
        if injector is not None and not team.watched:
            raise ValueError(
                "mesh: sharding='fsdp' leaves the devices of a worker to the compiler, and "
                "none of them can ask the host about delays or a trigger; set delay='none', "
                "communication=0.0 and wait='barrier', or sharding='replicated'"
            )
        plain = injector is None and mini_batches == 1 and algorithm.work is None
        overlapped.check(overlap, algorithm, plain and team.axes == (AXIS,))
        devices = team.grid(workers)
        self._algorithm, self._sampler = algorithm, sampler
        self._workers, self._mini_batches = workers, mini_batches
        self._injector = injector
        brings = StreamedInput if isinstance(examples, Streamed) else WholeInput
        self._input = brings(
            examples, sampler, devices, team, rounds_per_dispatch, mini_batches, augment is not None
        )
        self._rounds = self._input.rounds
        self._devices, self._team = devices, team
        self._everywhere = NamedSharding(devices, P())
        me = jax.process_index()
        asking = devices.devices.reshape(workers, -1)[:, 0]  # devices that call the host
        self._here = [i for i, device in enumerate(asking) if device.process_index == me]
        self.timeline: list[overlapped.Span] | None = None
        self.exchanges = True  # False: overlapped rounds only compute, so that this can be timed
        self._overlapped = None
        if injector is not None:
            one_round = rounds.Watched(algorithm, losses, mini_batches, injector, augment, team)
        else:
            given = (algorithm, losses, mini_batches, augment, team)
            one_round = functools.partial(rounds.plain, *given)
            if overlap == overlapped.PROGRAM:
                one_round = functools.partial(overlapped.in_program, overlapped.Round(*given))
            elif overlap == overlapped.THREADS:
                self._overlapped = overlapped.Round(*given)
        # The rounds of a dispatch as a program, which can be lowered and read before a run.
        self.dispatch = _dispatch(devices, team, one_round, self._input.spec)
        self._program = None  # compiled, from the first dispatch on
        self._gathered = packing.whole(self._current, self._everywhere)
        self._stored = packing.whole(self._once, self._everywhere)
        self._remembered = packing.whole(lambda model: model.worker.exchange, self._everywhere)

    def start(self, params) -> MeshRun:
        """Return a run without updates from a copy of `params`; delays and their log start anew."""
        short = any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(params))
        if short and self._team.divides and self._workers > 1 and jax.default_backend() == "cpu":
            raise ValueError(  # all-reduces of divided bfloat16 end the process there
                "mesh: XLA for CPU cannot divide a model of bfloat16 between several workers' "
                "devices; keep it in float32 and cast inside of losses, or set "
                "config.sharding='replicated'"
            )
        self._input.start()
        if self._injector is not None:
            self._injector.reset(self._here)
        algorithm = self._algorithm
        server = worker.init_server(algorithm, params)
        memory = worker.init(algorithm, params)
        model = Model(params, server, memory, np.int32(0), hashing.words(0))
        zeros = np.zeros(self._workers, np.int64)
        return MeshRun(self._placed(model), zeros, 0.0, 0, 0)

    def advance(
        self, run: MeshRun, seconds: float, updates: float = np.inf
    ) -> tuple[MeshRun, Schedule | None]:
        """Run rounds until the clock has reached `seconds`, but at most `updates` rounds."""
        done = []
        remaining = updates
        while remaining > 0 and run.seconds < seconds:
            due = list if self._injector is None else self._injector.due
            with phases.dispatch(run.update, due):
                run, schedule = self._one_dispatch(run, int(min(remaining, self._rounds)))
            done.append(schedule)
            remaining -= schedule.updates
        return run, concatenate(done) if done else None

    def observe(self, run: MeshRun, seconds: float, loss: float) -> MeshRun:
        """Return the run unchanged, as no trigger follows the training loss."""
        del seconds, loss
        return run

    def models(self, run: MeshRun) -> optax.Params:
        """Return the current model(s) with a leading axis: one per worker, or one if replicated."""
        return self._gathered(run.model)

    def memory(self, run: MeshRun) -> optax.OptState:
        """Return the exchange's state, with a leading axis of workers."""
        return self._remembered(run.model)

    def measured(self, run: MeshRun) -> dict[str, float]:
        """Return the seconds of waiting for a streamed input; no other column is measured here."""
        del run
        return self._input.measured()

    def close(self) -> None:
        """End the readers of examples, and the thread that exchanges gradients."""
        self._input.close()
        if self._overlapped is not None and self._program is not None:
            self._program.close()
            self._program = None

    def pack(self, run: MeshRun) -> dict[str, np.ndarray | jax.Array]:
        """Return a run as a flat dict, equal on every process; a divided model stays divided."""
        counted = {
            "clock/consumed": run.consumed,
            "clock/seconds": np.array([run.seconds]),
            "clock/update": np.array([run.update]),
            "clock/samples": np.array([run.samples]),
        }
        if self._injector is not None:
            logged = self._injector.pack().items()
            counted |= {INJECTOR + name: value for name, value in logged}
        if self._team.divides:
            return packing.pack_divided(self._once, run.model, self._where) | counted
        return packing.pack(self._stored(run.model)) | counted

    def resume(
        self,
        run: MeshRun,
        packed: Mapping[str, np.ndarray | jax.Array],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[MeshRun, None]:
        """Return the packed run, and None in place of the past schedule, which is not packed."""
        del observed
        if any(isinstance(value, jax.Array) for value in packed.values()):
            model = packing.unpack_divided(self._once, run.model, packed, self._where)
        else:
            model = self._unpacked(run.model, packed)
        if self._injector is not None:
            logged = {n: value for n, value in packed.items() if n.startswith(INJECTOR)}
            self._injector.unpack({n.removeprefix(INJECTOR): v for n, v in logged.items()})
        return MeshRun(
            model,
            packed["clock/consumed"].copy(),
            float(packed["clock/seconds"][0]),
            int(packed["clock/update"][0]),
            int(packed["clock/samples"][0]),
        ), None

    def _one_dispatch(self, run: MeshRun, count: int) -> tuple[MeshRun, Schedule]:
        """Run `count` rounds; return the run and their measured schedule."""
        active = None
        if self._algorithm.links is not None:
            active = self._algorithm.links.active(run.update, self._rounds)
        used = count * self._mini_batches if self._injector is None else None
        examples, table = self._input.take(run.consumed, used)
        arguments = (run.model, table, examples, active, np.int32(count))
        if self._program is None:  # before the clock starts, as compiling is no part of a round
            with phases.within(phases.COMPILING):
                if self._overlapped is None:
                    self._program = self.dispatch.lower(*arguments).compile()
                else:
                    self._program = overlapped.Threads(
                        self._overlapped, self._devices, self._input.spec, *arguments[:3]
                    )
        # A round includes waiting for its input, but not for a process that evaluates slowly.
        waited = packing.of_all(np.array([self._input.waited])).max()
        began = time.monotonic() - waited
        if self._injector is not None:
            self._injector.resume(waited)
        if self._overlapped is not None:
            self._program.timeline, self._program.exchanges = self.timeline, self.exchanges
        model = self._program(*arguments)
        self._input.stage(after=model)
        # Programs run one at a time: on CPU, queued collectives can wait for each other for ever.
        model = jax.block_until_ready(model)
        # XLA returns empty arrays as copies on all devices, which the program does not accept.
        model = jax.tree.map(
            lambda new, old: new if new.size else jax.device_put(new, old.sharding),
            model,
            run.model,
        )
        if self._injector is None:
            here = np.array([time.monotonic() - began, self._input.waited])
            seconds, waited = packing.of_all(here).max(axis=0)
            schedule = _plain_schedule(run, self._mini_batches, count, seconds, waited)
            consumed = run.consumed + count * self._mini_batches
        else:
            self._injector.pause()
            schedule = self._injector.schedule(run.update, count, packing.of_all)
            consumed = self._injector.consumed()
        if active is not None:
            schedule = replace(schedule, matchings=active[:count])
        return (
            MeshRun(
                model,
                consumed,
                float(schedule.time[-1]),
                run.update + count,
                run.samples + int(schedule.batches.sum()) * self._sampler.batch_size,
            ),
            schedule,
        )

    def _unpacked(self, like: Model, packed: Mapping[str, np.ndarray]) -> Model:
        """Return the model of a run that was packed whole, placed on its devices."""
        shapes = jax.eval_shape(self._once, like)
        rows = packing.unpack(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes), packed)
        return self._on_devices(
            jax.tree.map(lambda row, old: np.broadcast_to(np.asarray(row), old.shape), rows, like)
        )

    def _placed(self, model: Model) -> Model:
        """Return a copy of every leaf for each worker, on the devices of the worker."""
        stacked = jax.tree.map(lambda a: np.broadcast_to(a, (self._workers, *np.shape(a))), model)
        return self._on_devices(stacked)

    def _on_devices(self, model: Model) -> Model:
        """Return arrays with a leading axis of workers, each row on its worker's devices."""

        return jax.tree.map(lambda a: packing.place(a, self._where(np.shape(a))), model)

    def _where(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of an array of this shape with a leading axis of workers."""
        return NamedSharding(self._devices, P(AXIS, *self._team.split(shape[1:])))

    def _current(self, model: Model):
        if self._algorithm.adopt is not None:
            return jax.tree.map(lambda a: a[:1], model.server.params)
        if self._algorithm.server is not None:
            return jax.tree.map(lambda a: a[:1], model.params)
        if self._algorithm.public is not None:
            return jax.vmap(self._algorithm.public)(model.worker.exchange, model.params)
        return model.params

    def _once(self, model: Model) -> Model:
        """Return the model with a single row of each array that is equal on all workers."""
        if self._algorithm.server is None:
            return model
        server = jax.tree.map(lambda a: a[:1], model.server)
        if self._algorithm.own_models:
            return model._replace(server=server)
        return model._replace(params=jax.tree.map(lambda a: a[:1], model.params), server=server)


def _dispatch(
    devices: jax.sharding.Mesh, team: slices.Alone, one_round: Callable, spec: P
) -> Callable:
    """Return rounds as one program: (model, table, examples, active, count) -> model.

    Model and table are stacked by worker. active: [rounds, matchings] bool, matchings in use, or
    None. spec: placement of the examples, P() if all devices have the same, else stacked.
    """
    batches = Table(team.seen_batches, P(AXIS), team.seen_batches)

    @functools.partial(jax.jit, donate_argnums=0)
    @functools.partial(
        jax.shard_map,
        mesh=devices,
        in_specs=(P(AXIS), batches, spec, P(), P()),
        out_specs=P(AXIS),
        axis_names=team.manual,
        check_vma=False,  # replicated values are kept stacked on purpose
    )
    def dispatch(model, table, examples, active, count):
        def of_worker(model, table, examples):
            def step(r, carry):
                used = None if active is None else active[r]
                return one_round((team.kept(carry[0]), *carry[1:]), table, examples, used)

            carry = (model, jnp.int32(0), jnp.float32(0))
            model, *_ = jax.lax.fori_loop(0, count, step, carry)
            return team.kept(model)

        own = 0 if spec != P() else None  # streamed examples are stacked by worker, too
        if team.divides and devices.shape[AXIS] == 1:  # XLA divides no sum over an axis of one
            return jax.vmap(of_worker, in_axes=(0, 0, own), axis_name=AXIS)(model, table, examples)
        model, table = jax.tree.map(lambda a: a[0], (model, table))
        if own is not None:
            examples = jax.tree.map(lambda a: a[0], examples)
        return jax.tree.map(lambda a: a[None], of_worker(model, table, examples))

    return dispatch


def _plain_schedule(run: MeshRun, mini_batches, count, seconds, waited) -> Schedule:
    """Return the schedule of rounds without an injector, spread evenly over the dispatch.

    seconds: duration of the dispatch. waited: seconds of it in which the devices had no input.
    """
    edges = run.seconds + seconds * np.arange(count + 1) / count
    workers = len(run.consumed)
    shape = (count, workers)

    def tile(column):
        return np.broadcast_to(column[:, None], shape).copy()

    return Schedule(
        time=edges[1:],
        workers=np.broadcast_to(np.arange(workers, dtype=np.int32), shape).copy(),
        start=tile(edges[:-1]),
        finish=tile(edges[1:]),
        batches=np.full(shape, mini_batches, np.int32),
        first=run.consumed + mini_batches * np.arange(count)[:, None],
        version=tile(np.arange(run.update, run.update + count, dtype=np.int32)),
        busy=np.full(shape, (seconds - waited) / count),
        communication=np.zeros(shape),
        offset=run.update,
    )


class MeshInput(Input):
    """Common part of `WholeInput` and `StreamedInput`."""

    def __init__(
        self,
        examples: Any,
        sampler,
        devices: jax.sharding.Mesh,
        team: slices.Alone,
        rounds: int,
        most: int,
        draws: bool = False,
    ):
        """Take a sampler with `indices(workers, counters)`, and `draws` for augmentation.

        devices: of all workers. team: slice of a worker. rounds: of a dispatch. most: mini-batches
        of a round. draws: whether examples are augmented.
        """
        self._examples, self._sampler, self._draws = examples, sampler, draws
        self._workers, self.rounds, self._most = devices.shape[AXIS], rounds, most
        self._devices, self._team = devices, team
        self.waited = 0.0  # s that the devices have waited for input since the last `take` began

    def _table(self, consumed: np.ndarray, places: Callable[..., Any]) -> Table:
        """Return a dispatch's table on the devices; places: (workers, counters) -> indices."""
        counters = consumed[:, None] + np.arange(self.rounds * self._most)
        ids = np.broadcast_to(np.arange(self._workers)[:, None], counters.shape)
        draws = self._sampler.draws(ids, counters) if self._draws else None
        table = Table(places(ids, counters), consumed.astype(np.int32), draws)
        specs = Table(self._team.batches, P(AXIS), self._team.batches)
        return Table(*map(self._place, table, specs))

    def _place(self, tree: Any, spec: P) -> Any:
        return packing.place(tree, NamedSharding(self._devices, spec))


class WholeInput(MeshInput):
    """The whole training set on every device, a pytree of arrays [samples, ...]."""

    spec = P()  # of the examples in a program
    _placed = None

    def start(self) -> None:
        """Bring the training set to the devices, unless it is there already."""
        if self._placed is None:
            examples = jax.tree.map(np.asarray, self._examples)
            self._placed = self._place(examples, P())

    def take(self, consumed: np.ndarray, used: int | None) -> tuple[Any, Table]:
        """Return (the examples, a table of all workers' next mini-batches) for a dispatch.

        consumed: [workers], the counter of each worker's next mini-batch. used: the number of
        mini-batches that each worker will take, None if it is not known in advance.
        """
        del used
        return self._placed, self._table(consumed, self._sampler.indices)

    def stage(self, after: Any) -> None:
        """Do nothing, as all examples are on the devices."""
        del after


class StreamedInput(MeshInput):
    """Each device's examples of a dispatch, read while the dispatch before is under way.

    The sampler also has `on_host(workers, counters)`, see `runtimes.data_feed.Feed`.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.spec = self._team.seen_examples
        self._size = self._sampler.batch_size
        samples = self._most * self._size
        bounded = data_feed.most_updates(self._examples.sample_bytes, samples)
        self.rounds = min(self.rounds, bounded)
        self._slots = self.rounds * self._most  # mini-batches of a worker in a dispatch
        me = jax.process_index()
        of_worker = self._devices.devices.reshape(self._workers, -1)
        owners = np.vectorize(lambda device: device.process_index)(of_worker)
        self._here = np.flatnonzero((owners == me).any(1))
        self._feed = Feed(self._examples, self._sampler)
        self._next: np.ndarray | None = None  # `consumed` at the next dispatch, if known
        self._staged: tuple[np.ndarray, Any] | None = None

    def start(self) -> None:
        """Forget examples that an earlier run has staged."""
        self._next = self._staged = None

    def take(self, consumed: np.ndarray, used: int | None) -> tuple[Any, Table]:
        """Return as `WholeInput.take` does, but only this dispatch's examples, staged or new."""
        before = self._feed.waited
        self._next = None if used is None else consumed + used
        self._feed.ask(self._addresses(consumed))
        self._feed.ask(self._addresses(consumed + self._slots if used is None else self._next))
        if self._staged is None or not np.array_equal(self._staged[0], consumed):
            self._staged = consumed, self._on_devices(consumed)
        (_, examples), self._staged = self._staged, None
        self._feed.drop(consumed if used is None else self._next)
        self.waited = self._feed.waited - before
        return examples, self._table(consumed, self._places)

    def stage(self, after: Any) -> None:
        """Bring the examples of the next dispatch to the devices, if its mini-batches are known.

        after: arrays that become ready when the dispatch under way ends.
        """
        if self._next is not None:
            before = self._feed.waited
            self._staged = (
                self._next,
                self._on_devices(
                    self._next, lambda: not all(leaf.is_ready() for leaf in jax.tree.leaves(after))
                ),
            )
            self.waited += self._feed.waited - before

    def _places(self, workers: np.ndarray, counters: np.ndarray) -> np.ndarray:
        """Return the indices of samples among a device's streamed examples, in their order."""
        del counters
        part = self._size // self._team.size
        places = np.arange(self._slots * part, dtype=np.int32).reshape(-1, part)
        places = np.tile(places, self._team.size)  # each device counts its own
        return np.broadcast_to(places, (*workers.shape, self._size))

    def _addresses(self, consumed: np.ndarray) -> np.ndarray:
        """Return the addresses of a dispatch's mini-batches for workers of this process, [n, 2]."""
        counters = consumed[self._here][:, None] + np.arange(self._slots)
        ids = np.broadcast_to(self._here[:, None], counters.shape)
        return np.stack([ids, counters], axis=-1).reshape(-1, 2)

    def _on_devices(
        self, consumed: np.ndarray, computing: Callable[[], bool] = lambda: False
    ) -> Any:
        addresses = self._addresses(consumed)
        table = self._feed.table(addresses, len(addresses), computing)
        workers, devices, slots = len(self._here), self._team.size, self._slots
        sharding = NamedSharding(self._devices, self._team.examples)

        def place(array: np.ndarray) -> jax.Array:
            one = array.shape[1:]
            parts = array.reshape(workers, slots, devices, -1, *one).swapaxes(1, 2)
            own = parts.reshape(workers, slots * self._size, *one)

            def of_device(part: tuple[slice, ...]) -> np.ndarray:
                row = np.searchsorted(self._here, part[0].start or 0)
                return own[row : row + 1, *part[1:]]

            whole = (self._workers, *own.shape[1:])
            return jax.make_array_from_callback(whole, sharding, of_device)

        with self._feed.waiting(computing):
            return jax.block_until_ready(jax.tree.map(place, table))
