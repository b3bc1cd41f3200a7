"""Benchmarks of this library on the device at hand, most valuable rows first.

    python -m benchmarks.accelerator [--minutes=8] [--tiny] [--folder=FOLDER]
    python -m benchmarks.accelerator --only=codecs,gpt  # rows whose section or name holds a word

It prints a table line by line, and replaces `FOLDER/accelerator_DEVICE.json` as a whole after every
line, so that a run that is cut off leaves what it has found. With `--only` other rows of an earlier
record stay. Every ratio is between the seconds, as `experiments.stopwatch` takes them, of two sides
that are compiled beforehand in one process. A row that runs out of memory or fails says so, and the
others go on. The exit code is 1 if a row has failed.

On a CPU, or with `--tiny`, it takes the smallest sizes; a CPU has 2 to 8 virtual devices, by its
cores. Such a run only shows that the command works.
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from algorithms import reducers
from algorithms.base import AXIS
from algorithms.mg_wfbp import mg_wfbp, plan_with
from benchmarks import every_method, floors, harness
from benchmarks.floors import carry_of, one_by_one, ring_step, scanned, union_step
from benchmarks.harness import FOLDER, Line, Row, Skip, compared, run, say
from benchmarks.suite import callback_row, codec_rows, ratio_rows, round_row
from comms import dma_ring, quantise
from experiments import profiling, program_costs, stopwatch, tasks
from runtimes.base import NO_OVERLAP
from runtimes.overlapped import PROGRAM

WORKERS = 8  # of the rows of steps
STEP, ROUND = 1.03, 1.03  # goals, as ratios
RATIOS = {"all-reduce": 1.15, "gossip": 1.25, "asynchronous": 1.5}
# Loops of the hand-written step: called from Python, or in one program, as in the simulator.
LOOPS = {"floor": one_by_one, "looped": scanned}
KEPT = re.compile(r"XLA_|MALLOC_|CUDA_VISIBLE_DEVICES|LIBTPU_INIT_ARGS")
PLANS = ("wfbp", "single", "optimal")
BATCH = 64  # of the model whose gradients travel in buckets
# A data dependence keeps buckets apart, and so does the threshold. Only the scheduler that hides
# latency runs an all-reduce beside the backward pass.
OPTIONS = {
    "gpu": {
        "xla_gpu_all_reduce_combine_threshold_bytes": 1,
        "xla_gpu_enable_latency_hiding_scheduler": True,
    }
}


class Sizes(NamedTuple):
    """Sizes of all rows."""

    models: Mapping[str, tuple[str, int]]  # tasks, and samples of a worker's mini-batch
    updates: int  # of a timed turn
    workers: tuple[int, ...]  # of the simulator's ratios
    methods: int  # settings of the method battery whose numbers are compared
    hidden: tuple[int, ...]  # layers of the model whose gradients travel in buckets
    coordinates: int  # of the codecs' gradients, a multiple of 500
    codecs: tuple[str, ...] | None  # names; None: all
    share: float  # of the seconds that are left, for the turns of one comparison


FORMULA = (
    "utilisation = FLOPs of the hand-written step / (its device's peak FLOP/s x seconds of our "
    "step); FLOPs of products and convolutions, 2 for a multiply-add; the peak is that of dense "
    "products of float32 arrays at JAX's default precision"
)

ACCELERATOR = Sizes(
    models={
        "gpt": ("next_token(model=gpt(layers=12, width=512, heads=8), length=512)", 4),
        "transformer": (
            "language_model(model=transformer(width=512, layers=8, heads=8), candidates=0, "
            "window=128)", 16,
        ),
        "resnet50": ("images(source=noise(samples=512, size=224), model=resnet50)", 16),
        "resnet18": ("images(source=noise(samples=2048, size=32), model=resnet18)", 64),
    },
    updates=8, workers=(8, 64, 1024), methods=24, hidden=(384,) * 6,
    coordinates=floors.SMALL, codecs=None, share=0.03,
)  # fmt: skip
TINY = Sizes(
    models={"mlp": ("digits(model=mlp(hidden=[16]))", 1)},
    updates=1, workers=(8,), methods=2, hidden=(32,) * 2,
    coordinates=20_000, codecs=("S2, rows, r = 1", "top-k", "bf16"), share=0.0,
)  # fmt: skip


# --- steps ---


def step_rows(sizes: Sizes, devices: int, peak) -> Iterator[Row]:
    """Yield rows of text and image models, simulated and, with several devices, on the mesh."""
    simulated = functools.partial(floors.sides, loops=LOOPS)
    gossip = functools.partial(simulated, step=ring_step)
    for name, (task, batch) in sizes.models.items():
        # Our runtime beside loops of hand-written steps; workers; step, and shape of its indices.
        places = {
            "all-reduce": (simulated, WORKERS, union_step, (WORKERS * batch,)),
            "D-PSGD": (gossip, WORKERS, ring_step, (WORKERS, batch)),
        }
        if devices > 1:
            places["mesh"] = (floors.mesh_sides, devices, union_step, (batch,))
        for place, (sides, workers, step, rows) in places.items():
            yield compared(
                "steps", f"{name}, {place}", STEP,
                functools.partial(_both, sides, task, workers, batch, sizes.updates),
                functools.partial(_used, task, step, rows, sizes.updates, peak),
            )  # fmt: skip


built = functools.lru_cache(maxsize=1)(tasks.build)


def _both(sides: Callable, task: str, workers: int, batch: int, updates: int) -> dict:
    sampler = floors.sampler_of(built(task), workers, batch)
    return sides(built(task), sampler, workers, updates, mini_batches=1)


def _used(task: str, step, rows, updates: int, peak, taken: Mapping[str, float]) -> dict:
    """Return the time of our step and its utilisation of a device; rows: shape of its indices."""
    subject, copies = built(task), rows[0] if len(rows) > 1 else None
    carry = jax.eval_shape(lambda: carry_of(subject.init(jax.random.key(0)), copies))
    indices = jax.ShapeDtypeStruct(rows, np.int32)
    program = jax.make_jaxpr(step(subject.losses))(carry, indices, subject.train)
    flops = program_costs.of_jaxpr(program.jaxpr).flops.total()
    speed = flops * updates / taken["ours"]
    known = {"ms per step": 1e3 * taken["ours"] / updates, "GFLOPs per step": 1e-9 * flops}
    if "looped" in taken:
        known["over looped"] = taken["ours"] / taken["looped"]
    return known | {
        "TFLOP/s": 1e-12 * speed, "utilisation": peak and speed / peak.default,
        "peak": f"{1e-12 * peak.default:.4g} {peak.precision}" if peak else "unknown",
    }  # fmt: skip


# --- the same numbers ---


def number_lines(count: int, budget: float) -> Iterator[Line]:
    """Yield the largest distance of `count` methods' parameters from a CPU's, after some updates.

    Products have full precision. A method that rounds may round one value the other way.
    """
    del budget
    names = [name.replace(" ", "_") for name in every_method.METHODS]
    names = names[:: -(-len(names) // count)]
    precise = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory() as folder:
        sides = {"here": precise, "cpu": {"JAX_PLATFORMS": "cpu"}}
        parts = min(count, max(1, (os.cpu_count() or 1) // 4))  # processes of a side
        started = [
            subprocess.Popen(
                [sys.executable, "launch.py", f"--config={every_method.__file__}", "--sweep",
                 f"--workdir={folder}/{side}", *(f"--arm={name}" for name in names[part::parts])],
                cwd=harness.ROOT, env=os.environ | own, stdout=subprocess.DEVNULL,
            )
            for side, own in sides.items() for part in range(parts)
        ]  # fmt: skip
        if any([process.wait() for process in started]):
            raise RuntimeError("a launch of the method battery failed; see what it printed")
        apart = {name: _apart(*(pathlib.Path(folder, side, name) for side in sides))
                 for name in names}  # fmt: skip
    worst = max(apart, key=lambda name: apart[name])
    close = sum(value < 1e-6 for value in apart.values())
    facts = {"worst": worst, "methods": len(names), "closer than 1e-6": close}
    yield Line("parameters against a CPU's, furthest", apart[worst], unit="", facts=facts)


def _apart(*folders: pathlib.Path) -> float:
    """Return the distance of two runs' parameters, relative to the second's."""
    ours, theirs = (np.load(folder / "parameters.npz") for folder in folders)
    floats = [name for name in theirs if np.issubdtype(theirs[name].dtype, np.floating)]
    ours, theirs = (np.concatenate([side[name].ravel() for name in floats], dtype=np.float64)
                    for side in (ours, theirs))  # fmt: skip
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


# --- several devices ---


def device_rows(sizes: Sizes, devices: int) -> Iterator[Row]:
    """Yield the rows that need several devices; none if there is only one."""
    section = "several devices"
    if devices == 1:
        return
    yield round_row(section, devices, ROUND)
    for name, lines in {"buckets": bucket_lines, "overlap": overlap_lines}.items():
        yield Row(section, name, functools.partial(lines, devices, sizes.hidden))
    yield Row(section, "ring of int8", functools.partial(ring_lines, devices, sizes.coordinates))


def bucket_lines(devices: int, hidden: tuple[int, ...], budget: float) -> Iterator[Line]:
    """Yield the factor by which the compiled program's number of all-reduces is off the plan's."""
    for plan, planned, compiled in _plans(devices, hidden, budget):
        program, *_ = compiled()
        found = len(re.findall(r" all-reduce(?:-start)?\(", program.as_text()))
        facts = {"planned": planned, "compiled": found, "options": _options()}
        off = max(found / planned, planned / found) if found else np.inf  # merged, or split
        yield Line(f"buckets {plan}, compiled against planned", off, "x", 1.0, {}, facts)


def overlap_lines(devices: int, hidden: tuple[int, ...], budget: float) -> Iterator[Line]:
    """Yield the time of rounds that overlap with the backward pass, divided by plain rounds'."""
    if not hasattr(jax.lax, "psum_scatter_start"):
        raise Skip(f"asynchronous collectives came with JAX 0.12, and here is {jax.__version__}")
    for plan, _, compiled in _plans(devices, hidden, budget):
        sides = {overlap: floors.dispatched(*compiled(overlap=overlap))
                 for overlap in (PROGRAM, NO_OVERLAP)}  # fmt: skip
        taken = stopwatch.seconds(sides, budget=budget / len(PLANS))
        value, name = taken[PROGRAM] / taken[NO_OVERLAP], f"buckets {plan}, overlap={PROGRAM}"
        yield Line(name, value, seconds=taken, facts={"options": _options()})


def ring_lines(devices: int, coordinates: int, budget: float) -> Iterator[Line]:
    """Yield int8 rings' time, by `ppermute` or a TPU kernel, divided by a bfloat16 all-reduce's."""
    where = floors.stacked(devices)
    x = np.random.default_rng(0).standard_normal((devices, coordinates), np.float32)
    coder = reducers.int8(seed=None).encoder
    sums = {
        "bf16": lambda x: jax.lax.psum(x.astype(jnp.bfloat16), AXIS),
        "ppermute": lambda x: quantise.ring_all_reduce(x, coder.encode, coder.decode)[0],
    }
    if jax.default_backend() == "tpu":
        sums["kernel"] = lambda x: dma_ring.all_reduce(x)[0]

    def program(total: Callable) -> Callable:
        run = jax.shard_map(
            lambda x: total(x[0])[None], mesh=where.mesh, in_specs=where.spec,
            out_specs=where.spec, check_vma=False,
        )  # fmt: skip
        return functools.partial(jax.jit(run), jax.device_put(x, where))

    taken = stopwatch.seconds({n: program(s) for n, s in sums.items()}, budget=budget)
    floor = taken.pop("bf16")
    for name, value in taken.items():
        yield Line(f"ring of int8, {name}", value / floor, seconds={name: value, "bf16": floor})


def _plans(
    devices: int, hidden: tuple[int, ...], budget: float
) -> Iterator[tuple[str, int, Callable]]:
    """Yield (plan, its number of buckets by a measured profile, function that compiles a round)."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp", "hidden": hidden}})
    steps = int(np.clip(10 * budget, 3, 40))
    profile = profiling.measure(task, BATCH, jax.devices()[:devices], steps)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    sampler = floors.sampler_of(task, devices, BATCH)
    for plan in PLANS:
        method = mg_wfbp(floors.optimizer(), buckets=plan, profile=profile)
        yield plan, len(plan_with(plan, profile)(shapes)[0].buckets), functools.partial(
            floors.compiled_round, method, task, sampler, devices, options=_options()
        )  # fmt: skip


def _options() -> dict:
    return OPTIONS.get(jax.default_backend(), {})


# --- the whole ---


def rows(sizes: Sizes, devices: int, peak) -> Iterator[Row]:
    """Yield all rows, most valuable first."""
    yield from codec_rows(sizes.codecs, sizes.coordinates)
    yield from ratio_rows(sizes.workers, RATIOS)
    yield callback_row(devices)
    yield from device_rows(sizes, devices)
    yield from step_rows(sizes, devices, peak)
    yield Row("numbers", "methods", functools.partial(number_lines, sizes.methods))


def main() -> None:
    options = harness.options(
        __doc__, minutes=(8.0, "after which no row begins"), tiny=(False, "the smallest sizes"),
        only=("", "words of sections or rows, with commas"),
        folder=("", "of the record; docs/results/benchmarks, tiny: runs"),
    )  # fmt: skip
    logging.set_verbosity(logging.WARNING)
    harness.devices_of_cpu(min(8, max(2, os.cpu_count() or 1)))
    first, on_cpu = jax.devices()[0], jax.default_backend() == "cpu"
    peak = program_costs.peak_of(first.device_kind)
    found = {
        "backend": jax.default_backend(), "kind": first.device_kind, "count": jax.device_count(),
        "peak": peak and peak._asdict(), "cores": os.cpu_count(), "load": os.getloadavg()[0],
    }  # fmt: skip
    sizes = TINY if options.tiny or on_cpu else ACCELERATOR
    kind = re.sub(r"\W+", "_", "cpu" if on_cpu else found["kind"].lower()).strip("_")
    folder = pathlib.Path(options.folder or ("runs" if sizes is TINY else FOLDER))
    path = folder / f"accelerator_{kind}.json"
    record = harness.head(harness.typed("accelerator")) | {
        "device": found,
        "flags": {name: text for name, text in os.environ.items() if KEPT.match(name)},
        "sizes": sizes._asdict(), "formula": FORMULA, "complete": False,
        "rows": json.loads(path.read_text())["rows"] if options.only and path.exists() else [],
    }  # fmt: skip
    say(f"{found['count']} x {found['kind']}, {found['backend']}; load {found['load']:.1f} on "
        f"{found['cores']} cores; peak {found['peak'] or 'unknown'}")  # fmt: skip
    if on_cpu:
        say("there is no accelerator: the smallest sizes, and ratios that say nothing of one")
    wanted = rows(sizes, found["count"], peak)
    good = run(wanted, record, path, 60 * options.minutes, sizes.share, options.only)
    say(f"{FORMULA}\n{path}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
