"""One worker per device of a mesh: real collectives, real delays, wall-clock time.

With delays (or a trigger to watch) every round is a real `while_loop` on each device that takes
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
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from runtimes import packing, placement, rounds, worker
from runtimes.rounds import Model
from stragglers.inject import Injector
from stragglers.schedule import Schedule, concatenate


class MeshRun(NamedTuple):
    """A run between two dispatches."""

    model: Model
    consumed: np.ndarray  # [workers] counter of each worker's next mini-batch
    seconds: float
    update: int
    samples: int


class Mesh(NamedTuple):
    """A runtime: `start(params)`, `advance(run, seconds, updates)`, `models(run)`.

    pack(run): all of a run as a flat dict of NumPy arrays, the same on every process;
    unpack(run, packed): a run that has been started goes on from there.
    """

    start: Callable[[Any], MeshRun]
    advance: Callable[..., tuple[MeshRun, Schedule]]
    models: Callable[[MeshRun], Any]
    memory: Callable[[MeshRun], Any]
    pack: Callable[[MeshRun], dict[str, np.ndarray]]
    unpack: Callable[[MeshRun, Mapping[str, np.ndarray]], MeshRun]
    dispatch: Callable[..., Any]  # the compiled rounds, for those who want to read them
    observe: Callable[[MeshRun, float, float], MeshRun] = lambda run, seconds, loss: run
    clock: str = "wall"


def check_devices(workers: int) -> None:
    """Refuse a mesh with fewer devices than workers, or with a process that has no worker."""
    devices, processes = jax.devices(), jax.process_count()
    if len(devices) < workers:
        raise ValueError(
            f"mesh: there are {len(devices)} devices but config.workers={workers}; set "
            f"config.workers={len(devices)} or, on CPU, XLA_FLAGS="
            f"--xla_force_host_platform_device_count={-(-workers // processes)}"
        )
    used = len({device.process_index for device in devices[:workers]})
    if used < processes:
        raise ValueError(
            f"mesh: config.workers={workers} leaves {processes - used} of {processes} processes "
            f"without a worker; set config.workers={len(devices)} or start {used} processes"
        )


def mesh(
    algorithm: Algorithm,
    losses: Callable[[Any, Any], jax.Array],
    examples: Any,
    sampler,
    *,
    workers: int,
    mini_batches: int,
    injector: Injector | None = None,
    rounds_per_dispatch: int = 8,
) -> Mesh:
    """Build the runtime of one method and one task on the first `workers` devices.

    losses, examples, sampler, mini_batches: as in `runtimes.simulate.simulator`.
    injector: delays and trigger; None: every round takes `mini_batches` at the devices' own speed.
    rounds_per_dispatch: rounds between two looks of the host at the clock.
    """
    check_devices(workers)
    devices = jax.make_mesh(
        (workers,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:workers]
    )
    stacked, everywhere = NamedSharding(devices, P(AXIS)), NamedSharding(devices, P())
    here = [i for i, d in enumerate(devices.devices.flat) if d.process_index == jax.process_index()]
    one_round = (
        functools.partial(rounds.plain, algorithm, losses, mini_batches)
        if injector is None
        else functools.partial(rounds.watched, algorithm, losses, mini_batches, injector)
    )

    @functools.partial(jax.jit, donate_argnums=0)
    @functools.partial(
        jax.shard_map,
        mesh=devices,
        in_specs=(P(AXIS), P(AXIS), P(), P(), P()),
        out_specs=P(AXIS),
        check_vma=False,  # replicated values are kept stacked on purpose
    )
    def dispatch(model, table, examples, active, count):
        model, table = jax.tree.map(lambda a: a[0], (model, table))

        def step(r, carry):
            used = None if active is None else active[r]
            return one_round(carry, table, examples, used)

        carry = (model, jnp.int32(0), jnp.float32(0))
        model, *_ = jax.lax.fori_loop(0, count, step, carry)
        return jax.tree.map(lambda a: a[None], model)

    on_devices, program = None, None

    def start(params) -> MeshRun:
        nonlocal on_devices
        if on_devices is None:
            on_devices = placement.place(jax.tree.map(np.asarray, examples), everywhere)
        if injector is not None:
            injector.reset(here)
        server = () if algorithm.server is None else algorithm.server.init(params)
        memory = worker.init(algorithm, params)
        model = Model(params, server, memory, np.int32(0), np.float32(0))
        model = jax.tree.map(lambda a: np.broadcast_to(a, (workers, *np.shape(a))), model)
        return MeshRun(placement.place(model, stacked), np.zeros(workers, np.int64), 0.0, 0, 0)

    def one_dispatch(run: MeshRun, count: int) -> tuple[MeshRun, Schedule]:
        nonlocal program
        counters = run.consumed[:, None] + np.arange(rounds_per_dispatch * mini_batches)
        ids = np.broadcast_to(np.arange(workers)[:, None], counters.shape)
        table = placement.place(sampler.indices(ids, counters), stacked)
        active = None
        if algorithm.links is not None:
            active = algorithm.links.active(run.update, rounds_per_dispatch)
        arguments = (run.model, table, on_devices, active, np.int32(count))
        if program is None:  # before the clock starts: compiling is no part of a round
            program = dispatch.lower(*arguments).compile()
        placement.of_all(np.zeros(1))  # nor is waiting for a process that evaluates more slowly
        began = time.monotonic()
        if injector is not None:
            injector.resume()
        # Queued collective programs can wait for each other for ever on CPU: one at a time.
        model = jax.block_until_ready(program(*arguments))
        if injector is None:
            seconds = placement.of_all(np.array([time.monotonic() - began])).max()
            schedule = _plain_schedule(run, workers, mini_batches, count, seconds)
            consumed = run.consumed + count * mini_batches
        else:
            injector.pause()
            schedule = injector.schedule(run.update, count, placement.of_all)
            consumed = injector.consumed()
        if active is not None:
            schedule = schedule.using(active[:count])
        return (
            MeshRun(
                model,
                consumed,
                float(schedule.time[-1]),
                run.update + count,
                run.samples + int(schedule.batches.sum()) * sampler.batch_size,
            ),
            schedule,
        )

    def advance(run: MeshRun, seconds: float, updates: int | None = None):
        """Run rounds until the clock has reached `seconds`, at most `updates` of them."""
        done = []
        remaining = np.inf if updates is None else updates
        while remaining > 0 and run.seconds < seconds:
            run, schedule = one_dispatch(run, int(min(remaining, rounds_per_dispatch)))
            done.append(schedule)
            remaining -= schedule.updates
        return run, concatenate(done) if done else None

    def current(model: Model):
        if algorithm.server is not None:
            return jax.tree.map(lambda a: a[:1], model.params)
        if algorithm.public is not None:
            return jax.vmap(algorithm.public)(model.worker.exchange, model.params)
        return model.params

    def once(model: Model) -> Model:
        """The model with a single row of what all workers have alike."""
        if algorithm.server is None:
            return model
        return model._replace(
            params=jax.tree.map(lambda a: a[:1], model.params),
            server=jax.tree.map(lambda a: a[:1], model.server),
        )

    gathered, stored = placement.whole(current, everywhere), placement.whole(once, everywhere)
    remembered = placement.whole(lambda model: model.worker.exchange, everywhere)

    def models(run: MeshRun):
        """The current model(s) with a leading axis: one per worker, or one if replicated."""
        return gathered(run.model)

    def memory(run: MeshRun):
        """The exchange's state, with a leading axis of workers."""
        return remembered(run.model)

    def pack(run: MeshRun) -> dict[str, np.ndarray]:
        counted = {
            "clock/consumed": run.consumed,
            "clock/seconds": np.array([run.seconds]),
            "clock/update": np.array([run.update]),
            "clock/samples": np.array([run.samples]),
        }
        if injector is not None:
            counted |= {f"injector/{name}": value for name, value in injector.pack().items()}
        return packing.pack(stored(run.model)) | counted

    def unpack(run: MeshRun, packed: Mapping[str, np.ndarray]) -> MeshRun:
        shapes = jax.eval_shape(once, run.model)
        rows = packing.unpack(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes), packed)
        model = jax.tree.map(
            lambda row, old: np.broadcast_to(np.asarray(row), old.shape), rows, run.model
        )
        if injector is not None:
            injector.unpack(
                {
                    name.removeprefix("injector/"): value
                    for name, value in packed.items()
                    if name.startswith("injector/")
                }
            )
        return MeshRun(
            placement.place(model, stacked),
            packed["clock/consumed"].copy(),
            float(packed["clock/seconds"][0]),
            int(packed["clock/update"][0]),
            int(packed["clock/samples"][0]),
        )

    return Mesh(start, advance, models, memory, pack, unpack, dispatch)


def _plain_schedule(run: MeshRun, workers, mini_batches, count, seconds) -> Schedule:
    """The schedule of rounds whose inner times nobody watched: evenly spread over the dispatch."""
    edges = run.seconds + seconds * np.arange(count + 1) / count
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
        busy=np.full(shape, seconds / count),
        communication=np.zeros(shape),
        offset=run.update,
    )
