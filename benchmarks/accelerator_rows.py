"""What is measured on one device: steps, the simulator's ratios, codecs and host callbacks."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from algorithms import all_reduce
from benchmarks import codec_calls, sides
from benchmarks.accelerator_record import Line, Row, compared
from benchmarks.floors import carry_of, one_by_one, ring_step, scanned, union_step
from experiments import stopwatch, tasks
from experiments.peaks import Peak, flops, utilisation
from experiments.tasks import models
from runtimes import mesh
from stragglers import delays, inject
from stragglers.rule import Setting
from stragglers.rules import RULES

WORKERS = 8  # of the steps
STEP, ALL_REDUCE, GOSSIP, ASYNCHRONOUS = 1.03, 1.15, 1.25, 1.5  # goals, as ratios
# Of the hand-written step: called from Python, or in one program, as the simulator has it.
LOOPS = {"floor": one_by_one, "looped": scanned}
DENSITY, COPY = 0.02, "copy"
CODECS = "codecs over copy"
SMALL = 10_000_000  # coordinates; `Sizes.codec_seconds` holds for this number
# By the beginning of a codec's name: at most this many times as long as a copy.
CODEC_GOALS = {
    "S2, rows": 3, "S2 peeled, rows": 3, "bitmap": 3, "bf16": 3, "int8": 3,
    "S2, coordinates": 10, "S2 peeled, coordinates": 10, "top-k": 10,
}  # fmt: skip


class Sizes(NamedTuple):
    """How large everything is, and how many seconds a row takes at least (guesses)."""

    gpt: str  # task of next-token prediction
    sequences: int  # of text, of a worker's mini-batch
    residual: tuple[str, dict, int]  # of `experiments.tasks.models.MODELS`, parameters, image size
    large_images: int  # of a worker's mini-batch
    convolutional: tuple[str, dict, int]  # as `residual`
    images: int  # of a worker's mini-batch
    language: str  # task of the language model
    windows: int  # of text, of a worker's mini-batch
    updates: int  # of a timed turn
    workers: tuple[int, ...]  # of the simulator's ratios
    coordinates: tuple[int, ...]  # of the codecs' gradients, multiples of 500
    codecs: tuple[str, ...] | None  # names; None: all
    share: float  # of the seconds that are left, for the turns of one comparison
    step_seconds: float
    ratio_seconds: float  # and as much again for every 1,000 workers
    codec_seconds: float  # for 1e7 coordinates
    devices_seconds: float  # of a row on several devices


MANY = (8, 64, 256, 1024, 4096)
ACCELERATOR = Sizes(
    gpt="next_token(model=gpt(layers=12, width=512, heads=8), length=512)",
    sequences=4,
    residual=("resnet50", {}, 224),
    large_images=16,
    convolutional=("resnet18", {"width": 64}, 32),
    images=64,
    language="language_model(model=transformer(width=512, layers=8, heads=8), candidates=0, "
    "window=128)",
    windows=16,
    updates=8,
    workers=MANY,
    coordinates=(SMALL, 10 * SMALL),
    codecs=None,
    share=0.03,
    step_seconds=25,
    ratio_seconds=8,
    codec_seconds=1,
    devices_seconds=15,
)
# A core computes a thousandth of what an accelerator does.
CPU = ACCELERATOR._replace(
    gpt="next_token(model=gpt(layers=2, width=64), vocabulary=2048, length=64)",
    sequences=1,
    residual=("resnet50", {"width": 16}, 32),
    large_images=1,
    convolutional=("resnet18", {"width": 16}, 32),
    images=1,
    language="language_model(model=transformer, candidates=0)",
    windows=2,
    updates=1,
    codec_seconds=1.5,
    devices_seconds=20,
)
TINY = Sizes(
    gpt="next_token(model=gpt(layers=1, width=16, heads=2), corpus='python(files=40)', "
    "vocabulary=500, length=8)",
    sequences=1,
    residual=("resnet50", {"width": 16, "blocks": (1,)}, 16),
    large_images=1,
    convolutional=("cnn", {"channels": (16,)}, 32),
    images=1,
    language="language_model(model=transformer(width=16, layers=1), corpus='python(files=40)', "
    "vocabulary=500, window=8, candidates=0)",
    windows=1,
    updates=1,
    workers=(8,),
    coordinates=(20_000,),
    codecs=("S2, rows, r = 1", "top-k", "bf16"),
    share=0,
    step_seconds=0,
    ratio_seconds=0,
    codec_seconds=0,
    devices_seconds=0,
)


# --- steps ---


def step_rows(sizes: Sizes, devices: int, peak: Peak | None) -> Iterator[Row]:
    """Models of text and of images, in the simulator and, on several devices, on the mesh."""
    subjects = {
        "gpt": (text, (sizes.gpt,), sizes.sequences),
        sizes.residual[0]: (images, (*sizes.residual, sizes.large_images), sizes.large_images),
        sizes.convolutional[0]: (images, (*sizes.convolutional, sizes.images), sizes.images),
        "transformer": (text, (sizes.language,), sizes.windows),
    }
    for name, (task_of, arguments, batch) in subjects.items():
        task = functools.partial(task_of, *arguments)
        places = {
            "all-reduce": (simulated_sides, WORKERS, union_step, (WORKERS * batch,)),
            "D-PSGD": (ring_sides, WORKERS, ring_step, (WORKERS, batch)),
        }
        if devices > 1:
            places["mesh"] = (on_mesh, devices, union_step, (batch,))
        for place, (candidates, workers, step, rows) in places.items():
            yield compared(
                "steps",
                f"{name}, {place}",
                STEP,
                functools.partial(candidates, task, workers, batch, sizes.updates),
                sizes.step_seconds,
                functools.partial(_used, task, step, rows, sizes.updates, peak),
            )


def images(name: str, parameters: dict, size: int, batch: int) -> tasks.Task:
    """Noise of the shape of images of [size, size, 3], a few mini-batches for every worker."""
    make = functools.partial(models.MODELS[name], **parameters)
    return sides.noise(make, 4 * WORKERS * batch, (size, size, 3))


@functools.lru_cache(maxsize=1)
def text(spec: str) -> tasks.Task:
    """A language model on the text of Python's library; its softmax is full, as its count says."""
    return tasks.build(spec)


def simulated_sides(task: Callable, workers: int, batch: int, updates: int) -> dict[str, Callable]:
    """The union batch in the simulator against a loop of hand-written steps."""
    built = task()
    sampler = sides.sampler_of(built, workers, batch)
    return sides.all_reduce_sides(built, sampler, workers, updates, 1, loops=LOOPS)


def ring_sides(task: Callable, workers: int, batch: int, updates: int) -> dict[str, Callable]:
    """D-PSGD on a ring in the simulator against a loop of hand-written steps that mix as well."""
    built = task()
    sampler = sides.sampler_of(built, workers, batch)
    return sides.gossip_sides(built, sampler, workers, updates, 1, step=ring_step, loops=LOOPS)


def on_mesh(task: Callable, workers: int, batch: int, updates: int) -> dict[str, Callable]:
    """Plain rounds of the mesh against hand-written ones."""
    built = task()
    return sides.mesh_sides(built, sides.sampler_of(built, workers, batch), workers, 1, updates)


def _used(task, step, rows, updates: int, peak, taken: Mapping[str, float]) -> dict:
    """The time per step and how well it uses a device; rows: the shape of its indices."""
    built = task()
    copies = rows[0] if len(rows) > 1 else None
    carry = jax.eval_shape(lambda: carry_of(built.init(jax.random.key(0)), copies))
    indices = jax.ShapeDtypeStruct(rows, np.int32)
    counted = flops(step(built.losses), carry, indices, built.train)
    seconds = taken["ours"] / updates
    known = {"ms per step": 1e3 * seconds, "GFLOPs per step": 1e-9 * counted}
    if "looped" in taken:
        known["over looped"] = taken["ours"] / taken["looped"]
    return known | utilisation(counted, seconds, peak)


# --- the simulator's three ratios ---


def ratio_rows(sizes: Sizes) -> Iterator[Row]:
    """All-reduce, gossip and asynchronous training over their floors, few workers first."""
    families = {
        "all-reduce": (ALL_REDUCE, _all_reduce),
        "gossip": (GOSSIP, _gossip),
        "asynchronous": (ASYNCHRONOUS, _asynchronous),
    }
    for workers in sizes.workers:
        for family, (goal, candidates) in families.items():
            yield compared(
                "simulator over floor",
                f"{family}, {workers} workers",
                goal,
                functools.partial(candidates, workers),
                sizes.ratio_seconds * (1 + workers / 1000),
            )


def _all_reduce(workers: int):
    task, sampler = sides.task_and_sampler(workers)
    return sides.all_reduce_sides(task, sampler, workers, sides.updates_of(workers))


def _gossip(workers: int):
    task, sampler = sides.task_and_sampler(workers)
    return sides.gossip_sides(task, sampler, workers, sides.updates_of(workers))


def _asynchronous(workers: int):
    """An eighth of the workers lands in every update."""
    make = sides.MODELS["softmax 784x10"]
    task = sides.noise(make, max(8192, workers), (28, 28, 1))
    return sides.stale_sides(task, workers, max(4, 2048 // workers), max(1, workers // 8))


# --- codecs ---


def codec_rows(sizes: Sizes) -> Iterator[Row]:
    """Encoding and decoding once, over a copy in the device's memory; codecs with a goal first."""
    names = sizes.codecs or [n for n in codec_calls.candidates(500, DENSITY) if n != COPY]
    goals = {n: g for n in names for start, g in CODEC_GOALS.items() if n.startswith(start)}
    for size in sizes.coordinates:
        for name in sorted(names, key=lambda name: name not in goals):
            yield compared(
                CODECS,
                f"{name}, {size:.0e}".replace("e+0", "e"),
                goals.get(name),
                functools.partial(_codec_and_copy, name, size),
                sizes.codec_seconds * size / SMALL,
                scale=1 / codec_calls.WORKERS.get(name, 1),
            )
        _calls.cache_clear()  # the gradients


@functools.lru_cache(maxsize=1)
def _calls(size: int):
    return codec_calls.candidates(size, DENSITY)


def _codec_and_copy(name: str, size: int):
    calls = _calls(size)
    return {"codec": calls[name][0], "copy": calls[COPY][0]}


# --- host callbacks ---


def callback_row(sizes: Sizes, devices: int) -> Row:
    """What ticks, delays and triggers add to a mini-batch of a round on the mesh."""
    rounds, mini_batches = 8, sides.MINI_BATCHES

    def candidates():
        law = delays.exponential(1e-9)
        blocking = _trigger("barrier", devices)
        patient = _trigger("deadline", devices, seconds=1e9)
        injectors = {
            "without": None,
            "tick": inject.Injector(devices, blocking, 0),
            "tick, delay": inject.Injector(devices, blocking, 0, delay=law),
            "tick, delay, trigger": inject.Injector(devices, patient, 0, delay=law),
        }
        return {name: _rounds(devices, one, rounds) for name, one in injectors.items()}

    def measure(budget: float) -> Iterator[Line]:
        taken = stopwatch.seconds(candidates(), budget=budget)
        without = taken["without"]
        for name, value in list(taken.items())[1:]:
            added = 1e6 * (value - without) / (rounds * mini_batches)
            pair = {name: value, "without": without}
            facts = {"us more per mini-batch": added}
            yield Line(f"{name}, {devices} devices", value / without, "x", None, pair, facts)

    return Row("host callbacks", "host callbacks", measure, sizes.devices_seconds, candidates)


def _trigger(wait: str, workers: int, **parameters):
    setting = Setting(delays.exponential(1e-9), workers, sides.MINI_BATCHES, 0)
    return RULES[wait](setting, **parameters).trigger


def _rounds(workers: int, injector, rounds: int) -> Callable:
    """A candidate: rounds of the mesh in one dispatch, its planning included."""
    task, sampler = sides.task_and_sampler(workers)
    runtime = mesh.Mesh(
        all_reduce(sides.optimizer()),
        task.losses,
        task.train,
        sampler,
        workers=workers,
        mini_batches=sides.MINI_BATCHES,
        injector=injector,
        rounds_per_dispatch=rounds,
    )
    run = runtime.start(task.init(jax.random.key(0)))

    def turn():
        nonlocal run
        run, _ = runtime.advance(run, np.inf, rounds)
        return run.model

    return turn
