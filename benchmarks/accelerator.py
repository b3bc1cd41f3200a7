"""The worth of all of this on the device at hand, most valuable rows first.

    python -m benchmarks.accelerator [--minutes=8] [--tiny] [--folder=FOLDER]
    python -m benchmarks.accelerator --only=codecs,gpt  # rows whose section or name holds a word

A table, line by line as measured, and `FOLDER/accelerator_DEVICE.json`, which is replaced as a
whole after every line: a run that is cut off leaves what it has found. With `--only` other rows of
an earlier record stay. Every ratio is of seconds as
`experiments.stopwatch` takes them, of two sides in one process, compiled before. A row that would
not fit into the minutes is skipped with a word, and one that runs out of memory, or fails, says so
while the others go on. The exit code is 1 where a row has failed.

On a CPU, or with `--tiny`, it takes the smallest sizes and as many virtual devices as there are
cores; then nothing is learnt of accelerators but that the command works.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from algorithms.gossip import graph_matchings
from algorithms.mg_wfbp import mg_wfbp, plan_with
from benchmarks import every_method, floors, harness
from benchmarks.floors import carry_of, one_by_one, ring_step, scanned, union_step
from benchmarks.harness import FOLDER, RAN, Line, Row, Skip, compared, head, run
from benchmarks.suite import CODECS, callback_row, codec_rows, ratio_rows
from comms import collectives, gossip, mixing, topology
from experiments import profiling, program_costs, stopwatch, tasks
from experiments.tasks import models
from runtimes import mesh
from runtimes.base import NO_OVERLAP
from runtimes.overlapped import PROGRAM
from runtimes.rounds import Table

WORKERS = 8  # of the steps
STEP, ROUND = 1.03, 1.03  # goals, as ratios
RATIOS = {"all-reduce": 1.15, "gossip": 1.25, "asynchronous": 1.5}
# Of the hand-written step: called from Python, or in one program, as the simulator has it.
LOOPS = {"floor": one_by_one, "looped": scanned}
PALLAS = 2.0  # a codec that misses its goal by as much is a candidate for a kernel
KEPT = re.compile(r"XLA_|MALLOC_|CUDA_VISIBLE_DEVICES|LIBTPU_INIT_ARGS")
PLANS = ("wfbp", "single", "optimal")
BATCH = 64  # of the model whose gradients travel in buckets
ELEMENTS = (1 << 10, 1 << 20)  # float32, of an all-reduce or of what neighbours exchange
# A data dependence keeps buckets apart; the threshold says so twice. Only the scheduler that hides
# latency runs an all-reduce beside the backward pass.
OPTIONS = {
    "gpu": {
        "xla_gpu_all_reduce_combine_threshold_bytes": 1,
        "xla_gpu_enable_latency_hiding_scheduler": True,
    }
}


class Sizes(NamedTuple):
    """Sizes of all rows, and guesses of the least seconds that a row takes."""

    text: Mapping[str, tuple[str, int]]  # tasks, and sequences of a worker's mini-batch
    images: Mapping[str, tuple[str, dict, int, int]]  # model, parameters, pixels, mini-batch
    updates: int  # of a timed turn
    workers: tuple[int, ...]  # of the simulator's ratios
    methods: int  # settings of the method battery whose numbers are compared
    hidden: tuple[int, ...]  # layers of the model whose gradients travel in buckets
    coordinates: tuple[int, ...]  # of the codecs' gradients, multiples of 500
    codecs: tuple[str, ...] | None  # names; None: all
    share: float  # of the seconds that are left, for the turns of one comparison
    step: float  # s
    ratio: float  # s, and as much again for every 1,000 workers
    codec: float  # s, for 1e7 coordinates
    method: float  # s
    devices: float  # s, of a row on several devices


FORMULA = (
    "utilisation = FLOPs of the hand-written step / (its device's peak FLOP/s x seconds of our "
    "step); FLOPs of products and convolutions, 2 for a multiply-add; the peak is that of dense "
    "products of float32 arrays at JAX's default precision"
)

ACCELERATOR = Sizes(
    text={
        "gpt": ("next_token(model=gpt(layers=12, width=512, heads=8), length=512)", 4),
        "transformer": (
            "language_model(model=transformer(width=512, layers=8, heads=8), candidates=0, "
            "window=128)", 16,
        ),
    },
    images={"resnet50": ("resnet50", {}, 224, 16), "resnet18": ("resnet18", {"width": 64}, 32, 64)},
    updates=8, workers=(8, 64, 1024), methods=24, hidden=(384,) * 6,
    coordinates=(floors.SMALL,), codecs=None,
    share=0.03, step=150, ratio=5, codec=2, method=8, devices=15,
)  # fmt: skip
TINY = Sizes(
    text={
        "gpt": (
            "next_token(model=gpt(layers=1, width=16, heads=2), corpus='python(files=40)', "
            "vocabulary=500, length=8)", 1,
        ),
    },
    images={},
    updates=1, workers=(8,), methods=2, hidden=(32,) * 2,
    coordinates=(20_000,), codecs=("S2, rows, r = 1", "top-k", "bf16"),
    share=0, step=0, ratio=0, codec=0, method=0, devices=0,
)  # fmt: skip


# --- steps ---


def step_rows(sizes: Sizes, devices: int, peak) -> Iterator[Row]:
    """Yield models of text and images, in the simulator and, on several devices, on the mesh."""
    subjects = {name: (functools.partial(text, task), batch)
                for name, (task, batch) in sizes.text.items()}  # fmt: skip
    subjects |= {name: (functools.partial(images, *model), model[-1])
                 for name, model in sizes.images.items()}  # fmt: skip
    for name, (task, batch) in subjects.items():
        places = {
            "all-reduce": (_simulated, WORKERS, union_step, (WORKERS * batch,)),
            "D-PSGD": (_on_a_ring, WORKERS, ring_step, (WORKERS, batch)),
        }
        if devices > 1:
            places["mesh"] = (_on_mesh, devices, union_step, (batch,))
        for place, (sides, workers, step, rows) in places.items():
            yield compared(
                "steps", f"{name}, {place}", STEP,
                functools.partial(_built, sides, task, workers, batch, sizes.updates), sizes.step,
                functools.partial(_used, task, step, rows, sizes.updates, peak),
            )  # fmt: skip


def images(name: str, parameters: dict, size: int, batch: int) -> tasks.Task:
    """Return noise of the shape of images [size, size, 3], some batches for every worker."""
    make = functools.partial(models.MODELS[name], **parameters)
    return floors.noise(make, 4 * WORKERS * batch, (size, size, 3))


@functools.lru_cache(maxsize=1)
def text(spec: str) -> tasks.Task:
    """Return a language model on the text of Python's library, with a full softmax."""
    return tasks.build(spec)


def _built(sides: Callable, task: Callable, workers: int, batch: int, updates: int):
    """Return ours and a loop of hand-written steps that do the same."""
    built = task()
    return sides(built, floors.sampler_of(built, workers, batch), workers, updates)


def _simulated(task, sampler, workers: int, updates: int):
    return floors.all_reduce_sides(task, sampler, workers, updates, 1, loops=LOOPS)


def _on_a_ring(task, sampler, workers: int, updates: int):
    return floors.gossip_sides(task, sampler, workers, updates, 1, step=ring_step, loops=LOOPS)


def _on_mesh(task, sampler, workers: int, updates: int):
    return floors.mesh_sides(task, sampler, workers, 1, updates)


def _used(task, step, rows, updates: int, peak, taken: Mapping[str, float]) -> dict:
    """Return the time per step and how well it uses a device; rows: the shape of its indices."""
    built = task()
    copies = rows[0] if len(rows) > 1 else None
    carry = jax.eval_shape(lambda: carry_of(built.init(jax.random.key(0)), copies))
    indices = jax.ShapeDtypeStruct(rows, np.int32)
    program = jax.make_jaxpr(step(built.losses))(carry, indices, built.train)
    counted = program_costs.of_jaxpr(program.jaxpr).flops.total()
    seconds = taken["ours"] / updates
    known = {"ms per step": 1e3 * seconds, "GFLOPs per step": 1e-9 * counted}
    if "looped" in taken:
        known["over looped"] = taken["ours"] / taken["looped"]
    known |= {"TFLOP/s": 1e-12 * counted / seconds, "utilisation": None, "peak": "unknown"}
    if peak is None:
        return known
    share = counted / (seconds * peak.default)
    return known | {"utilisation": share, "peak": f"{1e-12 * peak.default:.4g} {peak.precision}"}


# --- the same numbers ---


def number_lines(count: int, budget: float) -> Iterator[Line]:
    """Yield how far parameters are from a CPU's after some updates of `count` methods.

    In products of full precision. A method that rounds may round one value the other way.
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
    yield Line("parameters against a CPU's, furthest", apart[worst], "", None, {}, facts)


def _apart(*folders: pathlib.Path) -> float:
    """Return the distance of two runs' parameters, relative to the second's."""
    ours, theirs = (np.load(folder / "parameters.npz") for folder in folders)
    floats = [name for name in theirs if np.issubdtype(theirs[name].dtype, np.floating)]
    ours, theirs = (np.concatenate([side[name].ravel() for name in floats], dtype=np.float64)
                    for side in (ours, theirs))  # fmt: skip
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


# --- several devices ---


def device_rows(sizes: Sizes, devices: int) -> Iterator[Row]:
    """Yield rows for several devices."""
    section, least = "several devices", sizes.devices
    if devices > 1:
        yield compared(
            section, f"plain round, {devices} devices", ROUND,
            lambda: floors.mesh_sides(*floors.task_and_sampler(devices), devices), least,
        )  # fmt: skip
        for name, lines in {"buckets": bucket_lines, "overlap": overlap_lines}.items():
            yield Row(section, name, functools.partial(lines, devices, sizes.hidden), least)
        for size in ELEMENTS:
            for name, candidates in {"ring": ring_sides, "gossip": gossip_sides}.items():
                yield compared(
                    section, f"{name} over the library's, {4 * size >> 10:,} KiB", None,
                    functools.partial(candidates, devices, size), least / 4,
                )  # fmt: skip
    else:
        yield Row(section, "rounds, buckets, rings and gossip", alone)


def alone(budget: float) -> Iterator[Line]:
    del budget
    raise Skip("there is one device")


def bucket_lines(devices: int, hidden: tuple[int, ...], budget: float) -> Iterator[Line]:
    """Yield all-reduces in the compiled program over the plan's."""
    task, profile = _layers(devices, hidden, budget)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    for plan in PLANS:
        planned = len(plan_with(plan, profile)(shapes)[0].buckets)
        method = mg_wfbp(floors.optimizer(), buckets=plan, profile=profile)
        program, *_ = _compiled(task, method, devices)
        found = len(re.findall(r" all-reduce(?:-start)?\(", program.as_text()))
        facts = {"planned": planned, "compiled": found, "options": _options()}
        off = max(found / planned, planned / found) if found else np.inf  # merged, or split
        yield Line(f"buckets {plan}, compiled against planned", off, "x", 1.0, {}, facts)


def overlap_lines(devices: int, hidden: tuple[int, ...], budget: float) -> Iterator[Line]:
    """Yield rounds whose buckets travel beside the backward pass over rounds without overlap."""
    if not hasattr(jax.lax, "psum_scatter_start"):
        raise Skip(f"asynchronous collectives came with JAX 0.12, and here is {jax.__version__}")
    task, profile = _layers(devices, hidden, budget)
    for plan in PLANS:
        method = mg_wfbp(floors.optimizer(), buckets=plan, profile=profile)
        taken = stopwatch.seconds(
            {
                overlap: _rounds(*_compiled(task, method, devices, overlap))
                for overlap in (PROGRAM, NO_OVERLAP)
            },
            budget=budget / len(PLANS),
        )
        value, facts = taken[PROGRAM] / taken[NO_OVERLAP], {"options": _options()}
        yield Line(f"buckets {plan}, overlap={PROGRAM}", value, "x", None, taken, facts)


def _layers(devices: int, hidden: tuple[int, ...], budget: float) -> tuple:
    """Return the task whose gradients travel in buckets, and its measured profile."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp", "hidden": hidden}})
    steps = int(np.clip(10 * budget, 3, 40))
    return task, profiling.measure(task, BATCH, jax.devices()[:devices], steps)


def _options() -> dict:
    return OPTIONS.get(jax.default_backend(), {})


def _compiled(task, method, devices: int, overlap: str = NO_OVERLAP) -> tuple:
    """Return the compiled program of one round, and its arguments."""
    sampler = floors.sampler_of(task, devices, BATCH)
    runtime = mesh.Mesh(
        method, task.losses, task.train, sampler, workers=devices, mini_batches=1,
        rounds_per_dispatch=1, overlap=overlap,
    )  # fmt: skip
    model = runtime.start(task.init(jax.random.key(0))).model
    indices = sampler.indices(np.arange(devices)[:, None], np.zeros((devices, 1), np.int64))
    mesh_of_all, stacked = _stacked(devices)
    table = jax.device_put(Table(indices, np.zeros(devices, np.int32)), stacked)
    examples = jax.device_put(task.train, NamedSharding(mesh_of_all, P()))
    given = model, table, examples, None, np.int32(1)
    return runtime.dispatch.lower(*given).compile(compiler_options=_options()), *given


def _rounds(program: Callable, model, *given, rounds: int = 20) -> Callable:
    """Return a candidate: some rounds, one after the other."""

    def turn():
        nonlocal model
        for _ in range(rounds):
            model = jax.block_until_ready(program(model, *given))
        return model

    return turn


def _stacked(devices: int):
    mesh_of_all = jax.make_mesh(
        (devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    return mesh_of_all, NamedSharding(mesh_of_all, P(AXIS))


def _collective(body: Callable, devices: int, size: int) -> Callable:
    """Return a candidate: `body` of an array of float32 on every device."""
    mesh_of_all, sharding = _stacked(devices)
    values = jax.device_put(np.ones((devices, size), np.float32), sharding)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh_of_all, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    def program(x):
        return body(x[0])[None]

    return lambda: program(values)


def ring_sides(devices: int, size: int) -> dict[str, Callable]:
    """Return our ring all-reduce against `psum`."""
    bodies = {"ring": collectives.ring_all_reduce, "psum": jax.lax.psum}
    return {
        name: _collective(lambda x, f=f: f(x, AXIS), devices, size) for name, f in bodies.items()
    }


def gossip_sides(devices: int, size: int) -> dict[str, Callable]:
    """Return our mixing on a ring, or a pair, and the library's permutations."""
    graph = topology.ring(devices)
    weights = mixing.MIXINGS["metropolis"](graph)
    _, partners = graph_matchings(graph)
    shifts = sorted({1 % devices, -1 % devices})
    share = 1 / (1 + len(shifts))

    def by_hand(x):
        received = [
            jax.lax.ppermute(x, AXIS, [(i, (i + shift) % devices) for i in range(devices)])
            for shift in shifts
        ]
        return share * (x + sum(received))

    ours = _collective(lambda x: gossip.mix(x, weights, partners, AXIS), devices, size)
    return {"gossip": ours, "ppermute": _collective(by_hand, devices, size)}


def profiled(known: list[Row], measured: list[dict], folder: pathlib.Path) -> Iterator[Line]:
    """Trace two turns of the row that is furthest above its goal."""
    again = {row.name: row.again for row in known if row.again is not None}
    lines = [line for entry in measured for line in entry["lines"] if entry["name"] in again]
    lines = [Line(**{k: v for k, v in line.items() if k != "verdict"}) for line in lines]
    if not any(line.goal for line in lines):
        raise Skip("no row with a goal has been measured")
    slowest = max(lines, key=lambda line: line.excess)
    candidates = again[slowest.name]()
    for call in candidates.values():
        jax.block_until_ready(call())
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # what the host's Python does fills megabytes
    with jax.profiler.trace(str(folder), profiler_options=options):
        for name, call in candidates.items():
            with jax.profiler.TraceAnnotation(name):
                jax.block_until_ready(call())
    facts = {"folder": folder.name, "row": slowest.name}
    yield Line("slowest row, over its goal", slowest.excess, "x", None, {}, facts)


# --- the whole ---


def rows(sizes: Sizes, found: dict, path, measured: list) -> Iterator[Row]:
    """Yield all rows, most valuable first; the last one looks at what was measured."""
    count, known = found["count"], []
    groups = (
        codec_rows(sizes.codecs, sizes.coordinates, sizes.codec),
        ratio_rows(sizes.workers, RATIOS, sizes.ratio),
        [callback_row(count, sizes.devices)],
        device_rows(sizes, count),
        step_rows(sizes, count, program_costs.peak_of(found["kind"])),
        [Row("numbers", "methods", functools.partial(number_lines, sizes.methods),
             sizes.method * sizes.methods)],
    )
    for group in groups:
        for row in group:
            known.append(row)
            yield row
    folder = path.with_name(f"{path.stem}_profile")
    yield Row("profile", "profile", lambda _: profiled(known, measured, folder), always=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no row is begun")
    parser.add_argument("--only", default="", help="words of sections or rows, with commas")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    parser.add_argument("--folder", help="of the record; docs/results/benchmarks, tiny: runs")
    options = parser.parse_args()
    logging.set_verbosity(logging.WARNING)
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", min(8, max(2, os.cpu_count() or 1)))
    first, on_cpu = jax.devices()[0], jax.default_backend() == "cpu"
    peak = program_costs.peak_of(first.device_kind)
    found = {
        "backend": jax.default_backend(), "kind": first.device_kind, "count": jax.device_count(),
        "peak": None if peak is None else peak._asdict(), "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }  # fmt: skip
    sizes = TINY if options.tiny or on_cpu else ACCELERATOR
    kind = re.sub(r"\W+", "_", "cpu" if on_cpu else found["kind"].lower()).strip("_")
    folder = pathlib.Path(options.folder or ("runs" if sizes is TINY else FOLDER))
    path = folder / f"accelerator_{kind}.json"
    given = [word for word in sys.argv[1:] if not word.startswith("--folder")]
    record = head(" ".join(["python -m benchmarks.accelerator", *given])) | {
        "device": found,
        "flags": {name: text for name, text in os.environ.items() if KEPT.match(name)},
        "sizes": sizes._asdict(), "formula": FORMULA, "complete": False, "rows": [],
    }  # fmt: skip
    say = functools.partial(print, flush=True)
    say(f"{found['count']} x {found['kind']}, {found['backend']}; load {found['load']:.1f} on "
        f"{found['cores']} cores; peak {found['peak'] or 'unknown'}")  # fmt: skip
    if on_cpu:
        say("there is no accelerator: the smallest sizes, and ratios that say nothing of one")
    wanted = harness.chosen(rows(sizes, found, path, record["rows"]), options.only)
    known = json.loads(path.read_text())["rows"] if options.only and path.exists() else []
    good = run(wanted, record, path, 60 * options.minutes, say, sizes.share)
    if not record["rows"]:
        parser.error(f"--only={options.only} names no row; leave it out to see all")
    ran = [row["name"] for row in record["rows"] if row["state"] == RAN]
    kept = [row for row in known if row["name"] not in ran]
    whole = harness.finite(record | {"rows": [*kept, *record["rows"]]})
    harness.write(path, json.dumps(whole, indent=1) + "\n")
    lines = [(row, line) for row in record["rows"] for line in row["lines"] if line["goal"]]
    missed = [(row, line) for row, line in lines if line["value"] > line["goal"]]
    say(f"{len(lines) - len(missed)} of {len(lines)} goals are met")
    far = [line["name"] for row, line in missed
           if row["section"] == CODECS and line["value"] >= PALLAS * line["goal"]]  # fmt: skip
    if far:
        say(f"candidates for a Pallas kernel, twice their goal or more: {'; '.join(far)}")
    say(FORMULA)
    say(f"{len(ran)} of {len(record['rows'])} rows ran; {path}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
