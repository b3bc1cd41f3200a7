"""Costs of an arm, worked out from its program: nothing is compiled, trained or written.

A device's program for one update is traced with shapes alone, see `experiments.program_costs`, so
that a model of any size can be looked at. With workers as processes (runtime=actors) it is the
program of one contribution. Traced on a CPU, gradients of convolutions have copies that an
accelerator does without, see `runtimes.equations.channels_last`.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from comms import hashing, messages
from comms.cost import payload_bytes
from experiments import prepare, program_costs, runtime_builders, tasks
from experiments.tables import print_table
from runtimes import bodies, data_feed, rounds, slices, worker
from stragglers.rule import most_mini_batches

PLANNED = 64  # updates over which the sent bytes are averaged
# Devices whose times are shown if the device at hand has no known peak.
ELSEWHERE = ("A100-SXM4-80GB", "H100", "TPU v5e", "TPU v6e")


class Traced(NamedTuple):
    """A device's program, and the shapes of its arguments."""

    program: Callable  # function of the arguments that `jax.make_jaxpr` can trace
    arguments: tuple[Any, ...]  # the first is donated
    shared: tuple[Any, ...]  # the arguments that every device has whole
    axes: tuple[tuple[str, int], ...] = ()
    devices: int = 1  # that divide the other arguments and the work


class Forecast(NamedTuple):
    """Costs of an arm: a device's memory at its largest, and its work in an update."""

    parameters: int
    sent: float  # mean bytes that a worker sends in an update
    sent_in_slice: float  # bytes that a device sends to its worker's other devices in an update
    memory: float  # bytes
    flops: Mapping[str, float]  # by the type that products take
    moved: float  # bytes


def forecast(config: ConfigDict) -> Forecast:
    """Return the costs of an arm; raise ValueError as `prepare.prepare` does."""
    made = prepare.prepare(config)
    costs = costs_of(_PROGRAMS[config.runtime](made))
    _, schedule = made.rule.extend(made.rule.init(), PLANNED)
    settled = dataclasses.replace(schedule, offset=made.algorithm.settled)
    sent = messages.sent_bytes(made.algorithm, made.shapes, settled).mean()
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(made.shapes))
    in_slice = 0.0
    if runtime_builders.RUNTIMES[config.runtime].on_mesh:
        gradients = schedule.batches.sum() / (PLANNED * config.workers)
        in_slice = gradients * _slice_of(config).sent_bytes(made.shapes)
    return Forecast(parameters, float(sent), float(in_slice), *costs)


def costs_of(traced: Traced) -> tuple[float, Mapping[str, float], float]:
    """Return (bytes of a device's memory, its FLOPs, bytes that it moves) for one update."""
    made = jax.make_jaxpr(traced.program, axis_env=list(traced.axes))(*traced.arguments)
    costs = program_costs.of_jaxpr(made.jaxpr, range(len(jax.tree.leaves(traced.arguments[0]))))
    whole, shared = payload_bytes(traced.arguments), payload_bytes(traced.shared)
    memory = shared + (whole - shared + costs.memory) / traced.devices
    flops = Counter({name: value / traced.devices for name, value in costs.flops.items()})
    return memory, flops, costs.moved / traced.devices


def simulated(made: prepare.Prepared) -> Traced:
    """Return all workers' update, as `runtimes.simulate` dispatches it."""
    algorithm, task, planner = made.algorithm, made.task, made.runtime.planner
    _, turn = planner.take(planner.start(remembers=False), np.inf, 1)
    width = turn.schedule.workers.shape[1]
    taken = (*planner.addresses(turn, 1, width).counter.shape, made.config.batch_size)
    indices, draws = _addressed(task, taken)
    rows = _shapes(planner.rows(turn, 1, width, indices, draws))
    after = bodies.rows_of(algorithm, task.losses, task.augment, made.runtime.stale)

    def run(model, rows, count, examples):
        return after(model, rows, count, examples, turn.known)

    model = jax.eval_shape(lambda params: made.runtime.start(params).model, made.shapes)
    examples = _examples(task, math.prod(taken))
    one_model = [] if algorithm.own_models else [model.params]
    shared = [examples, *one_model, model.server]
    arguments = (model, rows, jax.ShapeDtypeStruct((), jnp.int32), examples)
    return Traced(run, arguments, tuple(shared), devices=made.config.devices)


def on_mesh(made: prepare.Prepared) -> Traced:
    """Return a worker's round as a device of `runtimes.mesh` runs it, see `runtimes.rounds.plain`.

    If a worker's devices divide its model, the exchange is taken to work on parts of it.
    """
    algorithm, config = made.algorithm, made.config
    mini_batches, most = most_mini_batches(config.mini_batches), config.rounds_per_dispatch
    kept = _slice_of(config)
    size, team = kept.size, slices.replicated()(kept.size, False)
    splits = jax.tree.map(lambda leaf: kept.split(leaf.shape), made.shapes)
    own = jax.tree.map(functools.partial(_part, size), made.shapes, splits)

    @functools.wraps(made.task.losses)
    def losses(params, examples, *seen, **own):
        return made.task.losses(jax.tree.map(kept.gathered, params, splits), examples, *seen, **own)

    def begun(params):
        server = worker.init_server(algorithm, params)
        state = worker.init(algorithm, params)
        return rounds.Model(params, server, state, jnp.int32(0), hashing.words(0))

    def run(model, table, count, examples):
        def step(place, carry):
            used = None
            if algorithm.links is not None:
                used = jnp.asarray(algorithm.links.active(0, most))[place]
            return rounds.plain(
                algorithm, losses, mini_batches, made.task.augment, team, carry, table, examples,
                used,
            )  # fmt: skip

        carry = (model, jnp.int32(0), jnp.float32(0))
        return jax.lax.fori_loop(0, count, step, carry)[0]

    taken = (most * mini_batches, config.batch_size // size)
    model, examples = jax.eval_shape(begun, own), _examples(made.task, math.prod(taken))
    indices, draws = _addressed(made.task, taken)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    arguments = (model, rounds.Table(indices, count, draws), count, examples)
    return Traced(run, arguments, (), tuple(zip(team.axes, (config.workers, size), strict=False)))


def _slice_of(config: ConfigDict) -> slices.Alone:
    """Return the devices of a worker of a mesh."""
    size = runtime_builders.slice_of(config).devices_per_worker
    return runtime_builders.sharding_of(config)(size, tasks.streams(config.task))


def of_process(made: prepare.Prepared) -> Traced:
    """Return a worker's contribution, as a worker in its own process computes it."""
    algorithm, mini_batches = made.algorithm, most_mini_batches(made.config.mini_batches)
    state = jax.eval_shape(lambda params: worker.init(algorithm, params), made.shapes)

    def run(state, params, batches, examples, indices):
        given = {**hashing.counted(hashing.words(0)), "nominal": mini_batches,
                 "worker": jnp.int32(0),
                 "version": jnp.int32(0), "first": jnp.int32(0), "staleness": jnp.int32(0),
                 "active": None}  # fmt: skip
        taken = jax.tree.map(lambda a: a[indices], examples)
        losses = made.task.losses
        return worker.contribute(algorithm, losses, params, state, taken, batches, given)

    indices = jax.ShapeDtypeStruct((mini_batches, made.config.batch_size), jnp.int32)
    batches = jax.ShapeDtypeStruct((), jnp.int32)
    return Traced(run, (state, made.shapes, batches, _shapes(made.task.train), indices), ())


def _addressed(task: tasks.Task, taken: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the shapes of sample indices, and of the augmentation's draws, or None without one."""
    draws = None if task.augment is None else jax.ShapeDtypeStruct(taken, jnp.uint32)
    return jax.ShapeDtypeStruct(taken, jnp.int32), draws


def _examples(task: tasks.Task, taken: int) -> Any:
    """Return the shapes of a device's training samples; taken: samples of a dispatch.

    For a streamed set these are a table in use and another one that arrives.
    """
    if not isinstance(task.train, data_feed.Streamed):
        return _shapes(task.train)
    most = max(1, data_feed.TABLE_BYTES // task.train.sample_bytes)
    rows = 2 * min(taken, most)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype),
        task.train.source.example,
    )


_PROGRAMS = {"simulate": simulated, "mesh": on_mesh, "actors": of_process}


def show(named: Iterable[tuple[str, ConfigDict]]) -> None:
    """Print a row of costs for every (name, config) of an arm; times are rooflines."""
    kind = jax.devices()[0].device_kind
    kinds = [kind] if program_costs.peak_of(kind) else list(ELSEWHERE)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("arm", overflow="fold")
    headings = ("parameters", "sent\nper update", "memory\nof a device", "GFLOPs\nper update")
    for heading in (*headings, *(f"{kind}\n[ms]" for kind in kinds)):
        shown.add_column(heading, justify="right")
    for name, config in named:
        found = forecast(config)
        within = f" + {prepare.size(found.sent_in_slice)}" if found.sent_in_slice else ""
        sent = prepare.size(found.sent) + within
        cells = [f"{found.parameters:,}", sent, prepare.size(found.memory)]
        cells.append(_number(1e-9 * sum(found.flops.values())))
        for kind in kinds:
            peak = program_costs.peak_of(kind)
            least = program_costs.roofline(found.flops, found.moved, peak)
            cells.append(f"{_number(1e3 * least)}{'*' if found.memory > peak.memory else ''}")
        shown.add_row(name, *cells)
    shown.caption = (
        "memory: what is kept and the examples, which are exact, and an estimate of what an update "
        "needs at its largest; sent: by a worker, + by each of its devices to the others; ms: "
        "an estimate, of computing or moving bytes at the device's best, whichever takes longer; "
        "*: it does not fit into the device's memory"
    )
    print_table(Console(), shown)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _part(size: int, leaf: Any, split: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of a device's part of an array that `split` divides by `size` devices."""
    shape = list(leaf.shape)
    if slices.SLICE in split:
        shape[split.index(slices.SLICE)] //= size
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)
