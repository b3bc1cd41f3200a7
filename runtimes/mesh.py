"""One worker per device of a mesh: real collectives, real delays, wall-clock time.

With delays (or a trigger to watch) every round is a real `while_loop` on each device that takes
mini-batches until a host callback says stop, see `stragglers.inject`. Without either, a round is
the plain step that one would write by hand: one gradient, one collective, one update.

Replicated values stay stacked, a copy per device, because the result of a ring or of an
all-gather cannot be declared replicated. On CPU devices a `ppermute` waits for all devices, so
neighbour waiting is real only where links are.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from runtimes import worker
from stragglers import inject
from stragglers.inject import Injector
from stragglers.schedule import Schedule, concatenate


class Model(NamedTuple):
    """Everything that training changes; every leaf has a leading axis of workers."""

    params: Any
    server: Any
    worker: worker.WorkerState
    round: Any  # int32, index of the next round
    samples: Any  # float32, seen by all workers so far


class MeshRun(NamedTuple):
    """A run between two dispatches."""

    model: Model
    consumed: np.ndarray  # [workers] counter of each worker's next mini-batch
    seconds: float
    update: int
    samples: int


class Mesh(NamedTuple):
    """A runtime: `start(params)`, `advance(run, seconds, updates)`, `models(run)`."""

    start: Callable[[Any], MeshRun]
    advance: Callable[..., tuple[MeshRun, Schedule]]
    models: Callable[[MeshRun], Any]
    memory: Callable[[MeshRun], Any]
    dispatch: Callable[..., Any]  # the compiled rounds, for those who want to read them
    observe: Callable[[MeshRun, float, float], MeshRun] = lambda run, seconds, loss: run
    clock: str = "wall"


def check_devices(workers: int) -> None:
    """Refuse a mesh with fewer devices than workers."""
    devices = len(jax.devices())
    if devices < workers:
        raise ValueError(
            f"mesh: there are {devices} devices but config.workers={workers}; set "
            f"config.workers={devices} or, on CPU, XLA_FLAGS="
            f"--xla_force_host_platform_device_count={workers}"
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
    one_round = (
        functools.partial(_plain_round, algorithm, losses, mini_batches)
        if injector is None
        else functools.partial(_watched_round, algorithm, losses, mini_batches, injector)
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
            on_devices = jax.device_put(jax.tree.map(np.asarray, examples), everywhere)
        if injector is not None:
            injector.reset()
        server = () if algorithm.server is None else algorithm.server.init(params)
        memory = worker.init(algorithm, params)
        model = Model(params, server, memory, np.int32(0), np.float32(0))
        model = jax.tree.map(
            lambda a: jax.device_put(np.broadcast_to(a, (workers, *np.shape(a))), stacked), model
        )
        return MeshRun(model, np.zeros(workers, np.int64), 0.0, 0, 0)

    def rounds(run: MeshRun, count: int) -> tuple[MeshRun, Schedule]:
        nonlocal program
        counters = run.consumed[:, None] + np.arange(rounds_per_dispatch * mini_batches)
        ids = np.broadcast_to(np.arange(workers)[:, None], counters.shape)
        table = jax.device_put(sampler.indices(ids, counters), stacked)
        active = None
        if algorithm.links is not None:
            active = algorithm.links.active(run.update, rounds_per_dispatch)
        arguments = (run.model, table, on_devices, active, np.int32(count))
        if program is None:  # before the clock starts: compiling is no part of a round
            program = dispatch.lower(*arguments).compile()
        began = time.monotonic()
        if injector is not None:
            injector.resume()
        # Queued collective programs can wait for each other for ever on CPU: one at a time.
        model = jax.block_until_ready(program(*arguments))
        if injector is None:
            schedule = _plain_schedule(run, workers, mini_batches, count, time.monotonic() - began)
            consumed = run.consumed + count * mini_batches
        else:
            injector.pause()
            schedule = injector.schedule(run.update, count)
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
            run, schedule = rounds(run, int(min(remaining, rounds_per_dispatch)))
            done.append(schedule)
            remaining -= schedule.updates
        return run, concatenate(done) if done else None

    def models(run: MeshRun):
        """The current model(s) with a leading axis: one per worker, or one if replicated."""
        params = run.model.params
        if algorithm.server is not None:
            return jax.tree.map(lambda a: a[:1], params)
        if algorithm.public is not None:
            return jax.vmap(algorithm.public)(run.model.worker.exchange, params)
        return params

    def memory(run: MeshRun):
        """The exchange's state, with a leading axis of workers."""
        return run.model.worker.exchange

    return Mesh(start, advance, models, memory, dispatch)


def _finish_round(algorithm, model: Model, contribution, state, batches, total, given, weight):
    """Exchange and step, the same for every kind of round."""
    updates, state = worker.exchange(
        algorithm, contribution, model.params, state, batches, given, weight
    )
    if algorithm.server is None:
        params = optax.apply_updates(model.params, updates)
        return model._replace(params=params, worker=state)
    params, server = worker.serve(algorithm, updates, model.params, model.server, total, given)
    return model._replace(params=params, server=server, worker=state)


def _advanced(model: Model, samples) -> Model:
    return model._replace(round=model.round + 1, samples=model.samples + samples)


def _given(samples, mini_batches: int, active) -> dict:
    return {
        "active": active,
        "samples": samples,
        "nominal": mini_batches,
        "worker": jax.lax.axis_index(AXIS),
        "staleness": jnp.int32(0),
    }


def _plain_round(algorithm, losses, mini_batches, carry, table, examples, active):
    """Everybody takes `mini_batches`; nothing is counted at run time."""
    model, offset, token = carry
    given = _given(model.samples, mini_batches, active)
    taken = jax.lax.dynamic_slice_in_dim(table, offset, mini_batches)
    batch = jax.tree.map(lambda a: a[taken], examples)
    contribution, state = worker.contribute(
        algorithm, losses, model.params, model.worker, batch, mini_batches, given
    )
    total = jax.lax.axis_size(AXIS) * mini_batches
    model = _finish_round(
        algorithm, model, contribution, state, jnp.int32(mini_batches), total, given, None
    )
    return _advanced(model, total * table.shape[1]), offset + mini_batches, token


def _touch(tree):
    """A scalar that cannot be known before every leaf is."""
    return sum(jnp.ravel(leaf)[0].astype(jnp.float32) for leaf in jax.tree.leaves(tree))


def _watched_round(algorithm, losses, mini_batches, injector, carry, table, examples, active):
    """Take mini-batches until the host says stop, exchange, and report the landing."""
    model, offset, token = carry
    round_index = model.round
    me = jax.lax.axis_index(AXIS)
    given = _given(model.samples, mini_batches, active)
    answer = jax.ShapeDtypeStruct((), jnp.int32)
    begun = io_callback(injector.begin, answer, me, round_index, token)
    point = model.params
    if algorithm.grad_params is not None:
        point = algorithm.grad_params(model.worker.exchange, model.params)

    def going(loop):
        taken, verdict, *_ = loop
        return (taken < mini_batches) & (verdict == inject.GO)

    def take(loop):
        taken, _, gathered, work_state = loop
        batch = jax.tree.map(lambda a: a[table[offset + taken]], examples)
        if algorithm.work is None:
            weights = jnp.full(table.shape[1], 1.0 / table.shape[1])
            gradient = worker.gradient(losses, point, batch, weights, model.samples)
            new = jax.tree.map(jnp.add, gathered, gradient), work_state
        else:
            new = worker.local_step(algorithm, losses, gathered, work_state, batch, given)
        verdict = io_callback(injector.tick, answer, me, round_index, taken + 1, _touch(new[0]))
        if injector.cuts:
            counts = verdict != inject.CUT
            new = jax.tree.map(lambda a, b: jnp.where(counts, a, b), new, (gathered, work_state))
            return taken + counts, verdict, *new
        return taken + 1, verdict, *new

    gathered = jax.tree.map(jnp.zeros_like, point) if algorithm.work is None else point
    batches, _, gathered, work_state = jax.lax.while_loop(
        going, take, (jnp.int32(0), begun, gathered, model.worker.work)
    )
    if algorithm.work is None:
        contribution = jax.tree.map(lambda g: g / jnp.maximum(batches, 1), gathered)
    else:
        contribution = worker.progress(point, gathered)
    total = jax.lax.psum(batches, AXIS)
    model = _finish_round(
        algorithm,
        model,
        contribution,
        model.worker._replace(work=work_state),
        batches,
        total,
        given,
        algorithm.weight(batches),
    )
    token = io_callback(
        injector.land,
        jax.ShapeDtypeStruct((), jnp.float32),
        me,
        round_index,
        _touch(model.params),
    )
    used = batches if injector.carries else mini_batches
    return _advanced(model, total * table.shape[1]), offset + used, token


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
