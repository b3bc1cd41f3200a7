"""Rounds that exchange buckets of gradients during the backward pass.

A round is cut into stages, and after each stage the gradients of a bucket are known. With `threads`
every stage is a program of its own. Meanwhile a second thread of each process all-reduces the
buckets in order. `threads` suits CPU hosts, whose collectives block the thread that starts them.
With `program` all stages are one program with asynchronous collectives in a fixed order, for
accelerators and JAX 0.12 or later.

With `threads` the next forward pass may begin before all buckets have arrived. This holds for a
decoupled all-reduce (DeAR, arXiv 2302.12445) and for parts of layers sent by priority
(ByteScheduler, SOSP 2019). The pass waits for the values of a layer when it reaches the layer.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from comms import buckets
from comms.collectives import ring_all_reduce, scaled_weights
from runtimes import rounds
from runtimes.base import NO_OVERLAP
from runtimes.equations import PART, evaluated, inputs, needed, variables

THREADS, PROGRAM = "threads", "program"
OVERLAPS = (NO_OVERLAP, THREADS, PROGRAM)


def check(overlap: str, algorithm: Algorithm, plain: bool) -> None:
    """Raise ValueError if rounds cannot overlap; plain: True for `rounds.plain` without slices."""
    if overlap not in OVERLAPS:
        raise ValueError(
            f"mesh: overlap={overlap!r} is unknown; choose one of {', '.join(OVERLAPS)}"
        )
    if overlap == NO_OVERLAP:
        return
    wrong = None
    if algorithm.buckets is None:
        wrong = "the method does not send its gradients in buckets; take mg_wfbp"
    elif not plain:
        wrong = (
            "delays, a waiting rule, several mini-batches in a round or slices let all gradients "
            "be known at once; set delay='none', wait='barrier', communication=0.0, mini_batches=1 "
            "and devices_per_worker=1"
        )
    elif overlap == THREADS and jax.default_backend() != "cpu":
        wrong = f"it is for hosts without accelerators, and here is a {jax.default_backend()}"
        wrong += "; take overlap='program'"
    elif overlap == PROGRAM and not hasattr(jax.lax, "psum_scatter_start"):
        wrong = f"its collectives came with JAX 0.12, and here is {jax.__version__}; install that"
    elif overlap == PROGRAM and algorithm.buckets.all_reduce.reduce is ring_all_reduce:
        wrong = "it has reduce-scatters of the compiler; take collective=psum or decoupled"
    if wrong is not None:
        raise ValueError(f"mesh: overlap={overlap!r}: {wrong}, or leave overlap out")


class Span(NamedTuple):
    """Interval of a stage or of a collective, in s of `time.monotonic`, for a timeline."""

    lane: str  # "compute" or "exchange"
    name: str
    start: float
    end: float


# --- a function in stages, between which parts of its result leave and parts of its input arrive


class Stage(NamedTuple):
    """Equations that are computed in a row, from known values to values that are read later."""

    awaits: int | None  # group of inputs that must have arrived before the stage
    leaves: int | None  # group of outputs that is known after the stage; the last one is the rest
    program: Jaxpr  # its inputs and outputs are variables of the whole function
    frees: list  # variables whose values no later stage reads


class Stages:
    """Stages of a function (arriving groups, *given) -> (leaving groups, rest).

    Each stage computes values that the next leaving group needs, as far as the groups that have
    arrived allow. Groups arrive and leave in their order. Cuts lie between equations, so that a
    loop, such as a scan over layers, is one piece. The stages compute the values of the whole
    function, up to roundings that compilers choose.
    """

    def __init__(self, function: Callable, workers: int, arriving: Sequence, *given: Any):
        """Trace and cut a function, which may use its index on the axis of workers.

        arriving, given: arrays or their shapes, as one worker has them.
        """
        nested, (leaving, rest) = jax.make_jaxpr(
            function, axis_env=[(AXIS, workers)], return_shape=True
        )(list(arriving), *given)
        flat = jax.make_jaxpr(lambda *values: evaluated(nested, values), axis_env=[(AXIS, workers)])
        whole = flat(*nested.in_avals)
        self.consts, self._rest = whole.consts, jax.tree.structure(rest)
        *self._arriving, self.given = _groups(whole.jaxpr.invars, arriving)
        *self._leaving, kept = _groups(whole.jaxpr.outvars, leaving)
        self.stages = self._cut(whole.jaxpr, kept)

    def _cut(self, program: Jaxpr, kept: list) -> list[Stage]:
        level = {var: k for k, group in enumerate(self._arriving) for var in group}
        for e in program.eqns:  # level: the group after which an equation can be computed
            latest = max((level[var] for var in inputs(e) if var in level), default=-1)
            level |= dict.fromkeys(e.outvars, latest)
        left, known = list(program.eqns), {*self.given, *program.constvars}
        pieces: list[tuple[int | None, int | None, list[JaxprEqn]]] = []

        def take(awaits, leaves, found):
            nonlocal left
            pieces.append((awaits, leaves, found))
            known.update(var for e in found for var in e.outvars)
            taken = set(map(id, found))
            left = [e for e in left if id(e) not in taken]

        wanted = variables(self._leaving[0])
        if self._arriving:
            early = [e for e in needed(wanted, known, left) if level[e.outvars[0]] < 0]
            take(None, None, early)
        for k, group in enumerate(self._arriving):
            known.update(group)
            path = needed(wanted, known, left)
            take(k, None, [e for e in path if level[e.outvars[0]] <= k])
        for b, group in enumerate([*self._leaving, kept]):
            take(None, b, needed(variables(group), known, left))

        stages: list[Stage] = []
        later: set = set()  # variables that later stages read or that the result has
        for awaits, leaves, equations in reversed(pieces):
            rest = leaves == len(self._leaving)
            outside = [] if leaves is None else kept if rest else self._leaving[leaves]
            computed = dict.fromkeys(var for e in equations for var in e.outvars)
            read = [var for e in equations for var in inputs(e)]
            if rest:
                read += variables(outside)
            reads = [v for v in dict.fromkeys(read) if v not in {*computed, *program.constvars}]
            frees = [var for var in reads if var not in later.union(variables(outside))]
            later.update(variables(outside))
            outputs = outside if rest else [var for var in computed if var in later]
            body = Jaxpr(program.constvars, reads, outputs, equations, program.effects, PART)
            if outputs or awaits is not None or not (leaves is None or rest):
                stages.append(Stage(awaits, leaves, body, frees))
            later.update(reads)
        return stages[::-1]

    def play(
        self,
        compute: Sequence[Callable],
        given: Any,
        arrived: Callable[[int], Any] = lambda group: (),
        leave: Callable[[int, list], None] = lambda group, values: None,
    ) -> Any:
        """Compute all stages and return the rest.

        compute: inputs -> outputs of each stage. given: a tuple of the other arguments. arrived:
        group -> its values, called when a stage needs them. leave: called with every leaving group
        and its values, as soon as a stage has computed them.
        """
        values = dict(zip(self.given, jax.tree.leaves(given), strict=True))
        rest: Sequence[Any] = ()
        for stage, run in zip(self.stages, compute, strict=True):
            if stage.awaits is not None:
                group = jax.tree.leaves(arrived(stage.awaits))
                values.update(zip(self._arriving[stage.awaits], group, strict=True))
            found = run(*[values[var] for var in stage.program.invars])
            for var in stage.frees:
                del values[var]
            if stage.leaves == len(self._leaving):
                rest = found
                continue
            values.update(zip(stage.program.outvars, found, strict=True))
            if stage.leaves is not None:
                leave(stage.leaves, [values[var] for var in self._leaving[stage.leaves]])
        return jax.tree.unflatten(self._rest, rest)

    def traced(self, stage: Stage) -> Callable:
        """Return a stage as a function that can be traced into another program."""
        return lambda *values: jax.core.eval_jaxpr(stage.program, self.consts, *values)


def _groups(flat: Sequence, groups: Sequence) -> list[list]:
    """Return flat variables by group, in the order of `groups`; all others come last."""
    ends = np.cumsum([len(jax.tree.leaves(group)) for group in groups], dtype=int).tolist()
    return [list(flat[i:j]) for i, j in zip([0, *ends], [*ends, len(flat)], strict=True)]


# --- rounds in stages


class Round:
    """A plain round in two parts: `begin` fills the buffers of all buckets, `end` uses their sums.

    Buffers that hold the same leaves form a group, see `comms.buckets.groups`.
    """

    def __init__(self, algorithm: Algorithm, losses: Callable, mini_batches: int, augment, team):
        self.algorithm, self.all_reduce = algorithm, algorithm.buckets.all_reduce
        self.buffers_of = algorithm.buckets.buffers_of
        self._losses, self._mini_batches = losses, mini_batches
        self._augment, self._team = augment, team

    def begin(self, arriving, model, offset, table, examples) -> tuple[list[list], tuple]:
        """Return (the filled buffers of each group, an empty rest)."""
        del arriving
        contribution, _ = rounds.contributed(
            self.algorithm, self._losses, self._mini_batches, self._augment, self._team,
            model, offset, table, examples, None,
        )  # fmt: skip
        made, weights = self.buffers_of(contribution), scaled_weights(None)
        flat = [buckets.filled(buffer, contribution, weights) for buffer in made]
        return [[flat[i] for i in group] for group in buckets.groups(made)], ()

    def end(self, sums, model, offset, table) -> tuple[rounds.Model, jax.Array]:
        """Return (model, offset) after the round; sums: of all buffers, in sending order."""
        made = self.buffers_of(model.params)
        mean = buckets.means(sums, model.params, made, scaled_weights(None))
        return rounds.landed(
            self.algorithm, self._mini_batches, self._team, model, offset, table, mean
        )

    def following(self, sums, model, offset, table, examples) -> tuple[list[list], tuple]:
        """End a round and begin the next; return (the next round's groups, (model, offset)).

        sums: of the buffers by group, the last group first.
        """
        groups = buckets.groups(self.buffers_of(model.params))[::-1]
        by_place = dict(zip(itertools.chain(*groups), itertools.chain(*sums), strict=True))
        model, offset = self.end([by_place[i] for i in sorted(by_place)], model, offset, table)
        return self.begin((), model, offset, table, examples)[0], (model, offset)


def in_order(groups: Sequence[Sequence[int]], send: Callable[[int, Any], None]) -> Callable:
    """Return a function (group, its buffers) that sends all buffers in their order.

    A buffer is sent as soon as this buffer and all buffers before it are known. The order is equal
    on all processes, because their collectives would otherwise wait for each other for ever.
    """
    known: dict[int, Any] = {}
    awaited = 0

    def leave(group: int, values: Sequence) -> None:
        nonlocal awaited
        known.update(zip(groups[group], values, strict=True))
        while awaited in known:
            send(awaited, known.pop(awaited))
            awaited += 1

    return leave


def in_program(parts: Round, carry, table, examples, active) -> tuple:
    """Return the carry of `rounds.plain` after a round with asynchronous collectives.

    A buffer's reduce-scatter starts once its gradients are known, and ends before the next one
    starts. The compiler may change this. `jax.experimental.overlap.program_order` of JAX 0.12.0.1
    would keep this order, but ends the process on CPU devices.
    """
    del active
    model, offset, token = carry
    workers = jax.lax.axis_size(AXIS)
    given = (model, offset, table, examples)
    stages = Stages(parts.begin, workers, (), *given)
    under_way, sums = [], []

    def end() -> None:
        sums.extend(jax.lax.all_gather(each.done(), AXIS, tiled=True) for each in under_way)
        under_way.clear()

    def send(_, flat) -> None:
        end()
        padded = jnp.pad(flat, (0, -flat.size % workers))
        under_way.append(jax.lax.psum_scatter_start(padded, AXIS, tiled=True))

    leave = in_order(buckets.groups(parts.buffers_of(model.params)), send)
    stages.play([stages.traced(stage) for stage in stages.stages], given, leave=leave)
    end()
    return *parts.end(sums, model, offset, table), token


class Threads:
    """Rounds in two threads, called as (model, table, examples, active, count) -> model.

    timeline: None, or a list that gets a `Span` of every stage and collective; stages then block
    until their values are ready. exchanges: if False, every worker keeps its own buckets, for a
    timeline of computing alone.
    """

    def __init__(self, parts: Round, devices: jax.sharding.Mesh, spec: P, model, table, examples):
        """Compile all programs, for arguments as in a call; spec: placement of the examples."""
        self.timeline: list[Span] | None = None
        self.exchanges = True
        self._devices, self._workers = devices, devices.shape[AXIS]
        zeros = np.zeros(self._workers, np.int32)
        self._offset = jax.make_array_from_callback(
            zeros.shape, NamedSharding(devices, P(AXIS)), lambda part: zeros[part]
        )
        given = (model, self._offset, table)
        own = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), given)
        shared = spec == P()
        own += jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape[0 if shared else 1 :], a.dtype), (examples,)
        )
        whole = len(jax.tree.leaves(examples)) if shared else 0  # number of unstacked inputs
        self._first = _Programs(self, Stages(parts.begin, self._workers, (), *own), whole)
        made = parts.buffers_of(own[0].params)
        self._groups = buckets.groups(made)
        flat = [jax.ShapeDtypeStruct((buffer.elements + 1,), buffer.dtype) for buffer in made]
        self._reduce, sums = self._collectives(parts.all_reduce.reduce, flat)
        self._gather = self._following = None
        if parts.all_reduce.gather is not None:
            self._gather, sums = self._collectives(parts.all_reduce.gather, sums)
        if parts.algorithm.buckets.eager:
            arriving = [[sums[i] for i in group] for group in reversed(self._groups)]
            stages = Stages(parts.following, self._workers, arriving, *own)
            self._following = _Programs(self, stages, whole)
        structure = jax.tree.structure((sums, *own[:3]))
        self._end = self._compiled(
            lambda *flat: parts.end(*jax.tree.unflatten(structure, flat)),
            jax.tree.leaves((sums, *own[:3])),
        )
        self._rest = jax.tree.structure(own[:2])
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._communicate, daemon=True).start()

    def __call__(self, model, table, examples, active, count):
        del active
        offset = self._offset
        sums: dict[int, Future] = {}
        for r in range(int(count)):
            reduced: dict[int, Future] = {}

            def send(i, value, reduced=reduced):
                reduced[i] = self._submit(f"reduce {i}", self._reduce[i], value)

            def arrived(k, sums=sums):
                return [sums[i].result() for i in self._groups[-1 - k]]

            leave = in_order(self._groups, send)
            if r and self._following is not None:
                given = (model, offset, table, examples)
                model, offset = self._following.play(given, arrived, leave)
            else:
                if r:
                    model, offset = self._ended(sums, model, offset, table)
                self._first.play((model, offset, table, examples), leave=leave)
            sums = reduced
            if self._gather is not None:
                sums = {
                    i: self._submit(f"gather {i}", self._gather[i], reduced[i])
                    for group in reversed(self._groups)
                    for i in group
                }
        return self._ended(sums, model, offset, table)[0]

    def close(self) -> None:
        """End the second thread, once its queue is empty."""
        self._jobs.put(None)

    def _ended(self, sums, model, offset, table):
        found = [sums[i].result() for i in range(len(sums))]
        values = jax.tree.leaves((found, model, offset, table))
        end = self._end if self.timeline is None else self._timed("update", self._end)
        return jax.tree.unflatten(self._rest, end(*values))

    def _timed(self, name: str, program: Callable) -> Callable:
        def timed(*values):
            jax.block_until_ready(values)
            began = time.monotonic()
            found = jax.block_until_ready(program(*values))
            self.timeline.append(Span("compute", name, began, time.monotonic()))
            return found

        return timed

    def _submit(self, name: str, program: Callable, value: Any) -> Future:
        """Queue a collective for the second thread, on an array or on another job's result."""
        job: Future = Future()
        self._jobs.put((job, name, program, value))
        return job

    def _communicate(self) -> None:
        while (task := self._jobs.get()) is not None:
            job, name, program, value = task
            try:
                value = value.result() if isinstance(value, Future) else value
                jax.block_until_ready(value)
                began = time.monotonic()
                found = value
                if self.exchanges:
                    (found,) = jax.block_until_ready(program(value))
                if self.timeline is not None:
                    self.timeline.append(Span("exchange", name, began, time.monotonic()))
                job.set_result(found)
            except BaseException as error:  # the first thread raises it from the future
                job.set_exception(error)

    def _collectives(self, function: Callable, shapes: Sequence) -> tuple[list, list]:
        """Return the programs of a collective, one per shape, and the shapes of their results."""

        def of_axis(x):
            return function(x, AXIS)

        programs = {x: self._compiled(of_axis, [x]) for x in dict.fromkeys(shapes)}
        return [programs[x] for x in shapes], [self._shapes(of_axis, x) for x in shapes]

    def _shapes(self, function: Callable, *given: Any) -> Any:
        axes = [(AXIS, self._workers)]
        return jax.make_jaxpr(function, axis_env=axes, return_shape=True)(*given)[1]

    def _compiled(self, function: Callable, shapes: Sequence, whole: Sequence = ()) -> Callable:
        """Compile a function of one worker's flat values, for values that are stacked by worker.

        whole: positions of values that are equal on all workers, and not stacked.
        """
        specs = tuple(P() if i in whole else P(AXIS) for i in range(len(shapes)))

        def stacked(*values):
            own = [a if spec == P() else a[0] for a, spec in zip(values, specs, strict=True)]
            return [jnp.asarray(a)[None] for a in jax.tree.leaves(function(*own))]

        mapped = jax.shard_map(
            stacked, mesh=self._devices, in_specs=specs, out_specs=P(AXIS), check_vma=False
        )
        return jax.jit(mapped).lower(*[
            jax.ShapeDtypeStruct(
                (*([] if spec == P() else [self._workers]), *shape.shape),
                shape.dtype,
                sharding=NamedSharding(self._devices, spec),
            )
            for shape, spec in zip(shapes, specs, strict=True)
        ]).compile()  # fmt: skip


class _Programs:
    """Compiled programs of the stages of a function."""

    def __init__(self, threads: Threads, stages: Stages, whole: int):
        """Compile all stages; whole: number of last inputs that are equal on all workers."""
        self._threads, self._stages = threads, stages
        shared = {*stages.given[len(stages.given) - whole :]}
        self._programs = [
            threads._compiled(
                stages.traced(stage),
                [var.aval for var in stage.program.invars],
                [i for i, var in enumerate(stage.program.invars) if var in shared],
            )
            if stage.program.outvars
            else lambda *values: []
            for stage in stages.stages
        ]

    def play(self, given: Any, *exchange: Callable, **leave: Callable) -> Any:
        programs = self._programs
        if self._threads.timeline is not None:
            time_of = self._threads._timed
            programs = [time_of(f"stage {i}", each) for i, each in enumerate(programs)]
        return self._stages.play(programs, given, *exchange, **leave)
