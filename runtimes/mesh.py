"""Workers on the devices of a mesh: real collectives, real delays, wall-clock time.

A worker is a device, or a slice of several, see `slices`.

With delays (or a trigger to watch) every round is a real `while_loop` of each worker that takes
mini-batches until a host callback says stop, see `stragglers.inject`. Without either, a round is
the plain step that one would write by hand: one gradient, one collective, one update.

Replicated values stay stacked, a copy per device, because the result of a ring or of an
all-gather cannot be declared replicated. On CPU devices a `ppermute` waits for all devices, so
neighbour waiting is real only where links are.

The devices may belong to several processes. All of them then run the same host code: seconds, which
each of them measures for itself, are agreed on after every dispatch, so that they all stop alike.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from comms import hashing
from runtimes import divided_state, mesh_inputs, packing, phases, placement, rounds, slices, worker
from runtimes.base import REPLICATED, refuse
from runtimes.feeding import Streamed
from runtimes.rounds import Model, Table
from stragglers.inject import Injector
from stragglers.rule import Turnout
from stragglers.schedule import Schedule, concatenate

INJECTOR = "injector/"  # prefix of what it has packed


class MeshRun(NamedTuple):
    """A run between two dispatches. Advancing it gives its arrays away."""

    model: Model
    consumed: np.ndarray  # [workers] counter of each worker's next mini-batch
    seconds: float  # on the wall, without compiling and evaluating
    update: int
    samples: int

    @property
    def exhausted(self) -> bool:
        """Rounds never come to an end."""
        return False


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
        sharding: str = REPLICATED,
    ):
        """Take the first devices; nothing is compiled before the first round.

        losses, examples, sampler, mini_batches, augment: as in `runtimes.simulate.Simulator`.
        injector: delays and trigger; None: every round takes `mini_batches` at the devices' own
        speed. rounds_per_dispatch: rounds between two looks of the host at the clock.
        sharding: how a slice keeps its model, a key of `slices.SHARDINGS`.
        """
        refuse(algorithm, workers, Turnout())
        slices.check_devices(workers, devices_per_worker)
        slices.check_batch(devices_per_worker, sampler.batch_size)
        team = slices.of(devices_per_worker, sharding, isinstance(examples, Streamed))
        if injector is not None and not team.watched:
            raise ValueError(
                f"mesh: sharding={sharding!r} leaves the devices of a worker to the compiler, and "
                "none of them can ask the host about delays or a trigger; set delay='none', "
                "communication=0.0 and wait='barrier', or sharding='replicated'"
            )
        devices = team.grid(workers)
        self._algorithm, self._sampler = algorithm, sampler
        self._workers, self._mini_batches = workers, mini_batches
        self._injector = injector
        self._input = mesh_inputs.of(
            examples, sampler, devices, team, rounds_per_dispatch, mini_batches, augment is not None
        )
        self._rounds = self._input.rounds
        self._devices, self._team = devices, team
        self._everywhere = NamedSharding(devices, P())
        me = jax.process_index()
        asking = devices.devices.reshape(workers, -1)[:, 0]  # who speaks with the host
        self._here = [i for i, device in enumerate(asking) if device.process_index == me]
        one_round = (
            functools.partial(rounds.plain, algorithm, losses, mini_batches, augment, team)
            if injector is None
            else rounds.Watched(algorithm, losses, mini_batches, injector, augment, team)
        )
        # The rounds of a dispatch as a program, which may be lowered and read before a run.
        self.dispatch = _dispatch(devices, team, one_round, self._input.spec)
        self._program = None  # compiled, from the first dispatch on
        self._gathered = placement.whole(self._current, self._everywhere)
        self._stored = placement.whole(self._once, self._everywhere)
        self._remembered = placement.whole(_exchange_state, self._everywhere)

    def start(self, params) -> MeshRun:
        """A run of no updates from `params`, which are copied; delays and log begin anew."""
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
        """Run rounds until the clock has reached `seconds`, at most `updates` of them."""
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
        """The same run: no trigger follows the training."""
        del seconds, loss
        return run

    def models(self, run: MeshRun) -> optax.Params:
        """The current model(s) with a leading axis: one per worker, or one if replicated."""
        return self._gathered(run.model)

    def memory(self, run: MeshRun) -> optax.OptState:
        """The exchange's state, with a leading axis of workers."""
        return self._remembered(run.model)

    def measured(self, run: MeshRun) -> dict[str, float]:
        """How long the input was waited for, where it is streamed; all else is worked out."""
        del run
        return self._input.measured()

    def close(self) -> None:
        """End what reads examples."""
        self._input.close()

    def pack(self, run: MeshRun) -> dict[str, np.ndarray | jax.Array]:
        """All of a run as a flat dict, the same on every process; a divided model stays divided."""
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
            return divided_state.pack(self._once, run.model, self._where) | counted
        return packing.pack(self._stored(run.model)) | counted

    def resume(
        self,
        run: MeshRun,
        packed: Mapping[str, np.ndarray | jax.Array],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[MeshRun, None]:
        """The packed run; what has happened until then is not known here."""
        del observed
        if any(isinstance(value, jax.Array) for value in packed.values()):
            model = divided_state.unpack(self._once, run.model, packed, self._where)
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
        """Make `count` rounds and measure them."""
        active = None
        if self._algorithm.links is not None:
            active = self._algorithm.links.active(run.update, self._rounds)
        used = count * self._mini_batches if self._injector is None else None
        examples, table = self._input.take(run.consumed, used)
        arguments = (run.model, table, examples, active, np.int32(count))
        if self._program is None:  # before the clock starts: compiling is no part of a round
            with phases.within(phases.COMPILING):
                self._program = self.dispatch.lower(*arguments).compile()
        # Nor is waiting for a process that evaluates more slowly; waiting for the input is.
        waited = placement.of_all(np.array([self._input.waited])).max()
        began = time.monotonic() - waited
        if self._injector is not None:
            self._injector.resume(waited)
        model = self._program(*arguments)
        self._input.stage(after=model)
        # Queued collective programs can wait for each other for ever on CPU: one at a time.
        model = jax.block_until_ready(model)
        if self._injector is None:
            seconds = placement.of_all(np.array([time.monotonic() - began])).max()
            schedule = _plain_schedule(run, self._mini_batches, count, seconds, waited)
            consumed = run.consumed + count * self._mini_batches
        else:
            self._injector.pause()
            schedule = self._injector.schedule(run.update, count, placement.of_all)
            consumed = self._injector.consumed()
        if active is not None:
            schedule = schedule.using(active[:count])
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
        """The model of a run that was packed whole, on its devices."""
        shapes = jax.eval_shape(self._once, like)
        rows = packing.unpack(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes), packed)
        return self._on_devices(
            jax.tree.map(lambda row, old: np.broadcast_to(np.asarray(row), old.shape), rows, like)
        )

    def _placed(self, model: Model) -> Model:
        """A copy of every leaf for every worker, on its devices."""
        stacked = jax.tree.map(lambda a: np.broadcast_to(a, (self._workers, *np.shape(a))), model)
        return self._on_devices(stacked)

    def _on_devices(self, model: Model) -> Model:
        """Arrays with a leading axis of workers, where their workers are."""

        return jax.tree.map(lambda a: placement.place(a, self._where(np.shape(a))), model)

    def _where(self, shape: tuple[int, ...]) -> NamedSharding:
        """How an array of this shape lies on the devices, its leading axis that of the workers."""
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
        """The model with a single row of what all workers have alike."""
        if self._algorithm.server is None:
            return model
        server = jax.tree.map(lambda a: a[:1], model.server)
        if self._algorithm.own_models:
            return model._replace(server=server)
        return model._replace(params=jax.tree.map(lambda a: a[:1], model.params), server=server)


def _dispatch(
    devices: jax.sharding.Mesh, team: slices.Alone, one_round: Callable, spec: P
) -> Callable:
    """Rounds as one program: (model, table, examples, active, count) -> model, all stacked.

    active: [rounds, matchings] bool of links, or None. spec: of the examples, the same on all
    devices, or stacked.
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

        own = 0 if spec != P() else None  # examples of a worker are stacked, too
        if team.divides and devices.shape[AXIS] == 1:  # XLA divides no sum over an axis of one
            return jax.vmap(of_worker, in_axes=(0, 0, own), axis_name=AXIS)(model, table, examples)
        model, table = jax.tree.map(lambda a: a[0], (model, table))
        if own is not None:
            examples = jax.tree.map(lambda a: a[0], examples)
        return jax.tree.map(lambda a: a[None], of_worker(model, table, examples))

    return dispatch


def _exchange_state(model: Model):
    return model.worker.exchange


def _plain_schedule(run: MeshRun, mini_batches, count, seconds, waited) -> Schedule:
    """The schedule of rounds whose inner times nobody watched: evenly spread over the dispatch.

    seconds: of the dispatch, for `waited` of which the devices had no input.
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
