"""Rounds in which buckets of gradients travel while the backward pass goes on.

A round is cut into stages (`stages`): after each of them the gradients of a bucket are known. With
`threads` every stage is a program of its own, and a second thread of each process has the buckets
all-reduced, in their order, while the first one goes on. It is for CPU hosts, whose collectives
wait in the thread that starts them. With `program` all stages are one program with asynchronous
collectives in a fixed order, for accelerators and JAX 0.12 or later.

Where an all-reduce is decoupled (DeAR, arXiv 2302.12445), `threads` gathers a bucket while the
forward pass of the next round has not yet come to its layers.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from comms import buckets
from comms.collectives import ring_all_reduce, scaled_weights
from runtimes import rounds
from runtimes.base import NO_OVERLAP
from runtimes.stages import Stages

THREADS, PROGRAM = "threads", "program"
OVERLAPS = (NO_OVERLAP, THREADS, PROGRAM)


def check(overlap: str, algorithm: Algorithm, plain: bool) -> None:
    """Raise ValueError where rounds cannot overlap so; plain: see `rounds.plain`, on one device."""
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
    """Seconds of a stage or of a collective, by `time.monotonic`, for a timeline."""

    lane: str  # computing or communicating
    name: str
    start: float
    end: float


class Round:
    """A plain round as functions: up to the buffers of all buckets, and from their sums on."""

    def __init__(self, algorithm: Algorithm, losses: Callable, mini_batches: int, augment, team):
        self.algorithm, self.all_reduce = algorithm, algorithm.buckets.all_reduce
        self._losses, self._mini_batches = losses, mini_batches
        self._augment, self._team = augment, team

    def begin(self, arriving, model, offset, table, examples) -> tuple[list[jax.Array], tuple]:
        """Return (the buffers of all buckets, nothing)."""
        del arriving
        contribution, _ = rounds.contributed(
            self.algorithm, self._losses, self._mini_batches, self._augment, self._team,
            model, offset, table, examples, None,
        )  # fmt: skip
        plan, weights = self.algorithm.buckets.leaves_of(contribution), scaled_weights(None)
        made = buckets.buffers(contribution, plan)
        return [buckets.filled(buffer, contribution, weights) for buffer in made], ()

    def end(self, sums, model, offset, table) -> tuple[rounds.Model, jax.Array]:
        """Return (model, offset) after the round; sums: of all buffers."""
        plan = self.algorithm.buckets.leaves_of(model.params)
        mean = buckets.means(sums, model.params, plan, scaled_weights(None))
        return rounds.landed(
            self.algorithm, self._mini_batches, self._team, model, offset, table, mean
        )

    def following(self, sums, model, offset, table, examples) -> tuple[list[jax.Array], tuple]:
        """End a round and begin the next one: (its buffers, (model, offset)).

        sums: of all buffers, the last one first.
        """
        model, offset = self.end(sums[::-1], model, offset, table)
        return self.begin((), model, offset, table, examples)[0], (model, offset)


def in_program(parts: Round, carry, table, examples, active) -> tuple:
    """Return the carry after a round with asynchronous collectives, as `rounds.plain` does.

    A bucket's reduce-scatter starts with its gradients and ends as the next bucket's starts. The
    compiler schedules: `jax.experimental.overlap.program_order` of JAX 0.12.0.1, which would keep
    this order, ends the process on CPU devices.
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

    def leave(_, values) -> None:
        (flat,) = values
        end()
        padded = jnp.pad(flat, (0, -flat.size % workers))
        under_way.append(jax.lax.psum_scatter_start(padded, AXIS, tiled=True))

    stages.play([stages.traced(stage) for stage in stages.stages], given, leave=leave)
    end()
    return *parts.end(sums, model, offset, table), token


class Threads:
    """The rounds of a dispatch, called as (model, table, examples, active, count) -> model.

    timeline: a list that gets a `Span` of every stage and collective, which has the stages wait for
    each other; or None. exchanges: False keeps every worker's own buckets, for a timeline of
    computing alone.
    """

    def __init__(self, parts: Round, devices: jax.sharding.Mesh, spec: P, model, table, examples):
        """Compile everything; spec: of the examples; model, table, examples: as they are given."""
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
        whole = len(jax.tree.leaves(examples)) if shared else 0  # inputs that are not stacked
        self._first = _Programs(self, Stages(parts.begin, self._workers, (), *own), whole)
        flat = self._shapes(lambda *given: parts.begin((), *given)[0], *own)
        self._reduce, sums = self._collectives(parts.all_reduce.reduce, flat)
        self._gather = self._following = None
        if parts.all_reduce.gather is not None:
            self._gather, sums = self._collectives(parts.all_reduce.gather, sums)
            stages = Stages(parts.following, self._workers, sums[::-1], *own)
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
        offset, sums = self._offset, []
        for r in range(int(count)):
            reduced, gathered = [], []

            def leave(b, values, reduced=reduced):
                reduced.append(self._submit(f"reduce {b}", self._reduce[b], values[0]))

            def arrived(k, sums=sums):
                return sums[-1 - k].result()

            if r and self._following is not None:
                given = (model, offset, table, examples)
                model, offset = self._following.play(given, arrived, leave)
            else:
                if r:
                    model, offset = self._ended(sums, model, offset, table)
                self._first.play((model, offset, table, examples), leave=leave)
            sums = reduced
            if self._gather is not None:
                for b in reversed(range(len(reduced))):
                    job = self._submit(f"gather {b}", self._gather[b], reduced[b])
                    gathered.insert(0, job)
                sums = gathered
        return self._ended(sums, model, offset, table)[0]

    def close(self) -> None:
        """End the second thread, once it has nothing to do."""
        self._jobs.put(None)

    def _ended(self, sums, model, offset, table):
        values = jax.tree.leaves(([job.result() for job in sums], model, offset, table))
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
        """Have the second thread run a collective on an array, or on what another job finds."""
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
            except BaseException as error:  # the first thread raises it
                job.set_exception(error)

    def _collectives(self, function: Callable, shapes: Sequence) -> tuple[list, list]:
        """Return programs of a collective, and the shapes of what comes out of them."""

        def of_axis(x):
            return function(x, AXIS)

        programs = [self._compiled(of_axis, [x]) for x in shapes]
        return programs, [self._shapes(of_axis, x) for x in shapes]

    def _shapes(self, function: Callable, *given: Any) -> Any:
        axes = [(AXIS, self._workers)]
        return jax.make_jaxpr(function, axis_env=axes, return_shape=True)(*given)[1]

    def _compiled(self, function: Callable, shapes: Sequence, whole: Sequence = ()) -> Callable:
        """Compile a function of flat values of a worker, which are stacked outside of it.

        whole: places of the values that all workers have alike.
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
    """Stages as programs of their own."""

    def __init__(self, threads: Threads, stages: Stages, whole: int):
        """whole: inputs of the stages, the last ones, that all workers have alike."""
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
