"""The suite: rows of our time divided by a floor's, in one process, or of a number with a goal.

    make benchmark                                   # the whole, at most 15 minutes on two cores
    python -m benchmarks.suite --only=codecs,gossip  # rows whose section or name holds a word
    python -m benchmarks.suite --tiny                # the smallest sizes: only that all runs

A ratio compares the faster halves of both sides' turns. A whole run replaces the record
`docs/results/benchmarks/suite.json` and the table in `docs/reproducing.md`.

Fresh pages make a copy of 40 MB several times slower on Linux, so that codecs look better than they
are. `make benchmark` lets the allocator keep its memory, as a long training run would.
"""

import functools
import heapq
import importlib
import itertools
import math
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from absl import logging

from algorithms import all_reduce, matcha
from algorithms.links import of_rounds
from benchmarks import floors, harness
from benchmarks.harness import FOLDER, ROOT, Line, Row, compared, run
from comms import rounds, topology
from experiments import stopwatch, sweep, tasks, train
from experiments.config_files import override, swept_arms
from runtimes import data_feed, mesh, simulate, worker
from stragglers import delays, inject, processes
from stragglers.processes import from_law
from stragglers.rule import Rule, Setting
from stragglers.rules import RULES

PAGE = ROOT / "docs" / "reproducing.md"
MARKS = "<!-- suite -->\n", "<!-- end of the suite -->"
DEVICES = 8  # virtual ones of a CPU
SHARE = 0.02  # of the seconds that are left, for the turns of one comparison
LAW = delays.shifted_exponential(1.0, 1.0)


class Sizes(NamedTuple):
    """Sizes of all rows."""

    workers: tuple[int, ...] = (8, 64, 256)
    coordinates: int = floors.SMALL
    codecs: tuple[str, ...] | None = None  # names; None: all
    events: int = 200_000
    many: int = 100_000  # workers of a schedule without training
    arms: int = 32
    models: int = 2  # that read images
    images: int = 20_000


TINY = Sizes(
    workers=(8,), coordinates=20_000, codecs=("S2, rows, r = 1", "top-k", "bf16"),
    events=2000, many=512, arms=2, models=1, images=1200,
)  # fmt: skip


# --- the simulator ---

GOALS = {"all-reduce": 1.05, "gossip": 1.08, "asynchronous": 1.25}


def ratio_rows(workers, goals: Mapping[str, float]) -> Iterator[Row]:
    """Yield rows of all-reduce, gossip and asynchronous training, few workers first."""
    families = {"all-reduce": _in_step, "asynchronous": _asynchronous,
                "gossip": functools.partial(_in_step, step=floors.local_step)}  # fmt: skip
    for count, (family, goal) in itertools.product(workers, goals.items()):
        candidates = functools.partial(families[family], count)
        yield compared("simulator over floor", f"{family}, {count} workers", goal, candidates)


def _in_step(workers: int, **more) -> dict[str, Callable]:
    updates = {8: 64, 64: 16, 256: 4}.get(workers, 1)  # of a turn
    return floors.sides(*floors.task_and_sampler(workers), workers, updates, **more)


def _asynchronous(workers: int) -> dict[str, Callable]:
    """Return both sides of training where every update takes an eighth of the workers."""
    task = floors.noise("logistic", max(8192, workers), (28, 28, 1))
    return floors.stale_sides(task, workers, max(4, 2048 // workers), max(1, workers // 8))


def simulator_rows(sizes: Sizes) -> Iterator[Row]:
    """Yield rows of what the simulator costs beyond the arithmetic of any program."""
    yield from ratio_rows(sizes.workers, GOALS)
    section = "simulator over floor"

    def sparse() -> dict[str, Callable]:
        graph = topology.random_regular(64, degree=8, seed=0)
        method = matcha(floors.optimizer(), graph, budget=0.5)
        return _in_step(64, method=method, step=floors.local_step)

    yield compared(section, "MATCHA, 64 workers", 1.25, sparse)
    if sizes.models > 1:
        yield compared(section, "convolutions in a loop", 1.5, _in_a_loop)


def _in_a_loop() -> dict[str, Callable]:
    """Return gradients of ResNet-18 in a loop, as runs compute them, and in no loop."""
    task = floors.noise("resnet18(width=16)", 8, (32, 32, 3))
    params, weights = jax.jit(task.init)(jax.random.key(0)), jnp.full(8, 1 / 8)

    def step(params, gradient):
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)

    @jax.jit
    def loop(params, count):
        return jax.lax.fori_loop(0, count, lambda _, p: step(
            p, worker.gradient(task.losses, p, task.train, weights)), params)  # fmt: skip

    @jax.jit
    def alone(params):
        return step(params, jax.grad(lambda p: task.losses(p, task.train).mean())(params))

    return {"loop": lambda: loop(params, 1), "alone": lambda: alone(params)}


# --- the mesh ---


def round_row(section: str, devices: int, goal: float) -> Row:
    """Return a row that compares plain rounds with hand-written ones.

    Virtual devices share the cores, so that only the ratio says anything.
    """
    return compared(
        section, f"plain round, {devices} devices", goal,
        lambda: floors.mesh_sides(*floors.task_and_sampler(devices), devices),
    )  # fmt: skip


def callback_row(devices: int) -> Row:
    """Return a row of what ticks, delays and triggers add to a mini-batch on the mesh."""
    count = 8  # rounds of a dispatch
    law = delays.exponential(1e-9)

    def injecting(wait: str, delay=None, **parameters) -> inject.Injector:
        rule = RULES[wait](Setting(law, devices, floors.MINI_BATCHES, 0), **parameters)
        return inject.Injector(devices, rule.trigger, 0, delay=delay)

    def candidates() -> dict[str, Callable]:
        injectors = {
            "without": None, "tick": injecting("barrier"),
            "tick, delay": injecting("barrier", law),
            "tick, delay, trigger": injecting("deadline", law, seconds=1e9),
        }  # fmt: skip
        task, sampler = floors.task_and_sampler(devices)
        runtimes = {
            name: mesh.Mesh(
                all_reduce(floors.optimizer()), task.losses, task.train, sampler, workers=devices,
                mini_batches=floors.MINI_BATCHES, injector=injector, rounds_per_dispatch=count,
            )
            for name, injector in injectors.items()
        }  # fmt: skip
        return {name: floors.advancing(one, task, count) for name, one in runtimes.items()}

    def measure(budget: float) -> Iterator[Line]:
        taken = stopwatch.seconds(candidates(), budget=budget)
        without = taken.pop("without")
        for name, value in taken.items():
            added = 1e6 * (value - without) / (count * floors.MINI_BATCHES)
            facts = {"us more per mini-batch": added}
            pair = {name: value, "without": without}
            yield Line(f"{name}, {devices} devices", value / without, "x", None, pair, facts)

    return Row("host callbacks", "host callbacks", measure)


# --- schedules ---


def schedule_rows(sizes: Sizes) -> Iterator[Row]:
    """Yield event loops against a plain Python loop, and schedules of very many workers."""
    for workers, k in ((8, 1), (64, 8)):
        yield compared(
            "schedules", f"k_batch_async over a plain loop, {workers} workers", 1.0,
            functools.partial(_planned, workers, k, sizes.events // k),
        )  # fmt: skip
    for kind, (delay, goal) in itertools.product(KINDS, (("independent", 1.0), ("markov", 0.5))):
        measure = functools.partial(_many, kind, delay, goal, sizes.many, 5 * sizes.events)
        yield Row("schedules", f"{kind}, {delay}", measure)


def _planned(workers: int, k: int, updates: int):
    """Return the rule, which draws its durations, and a heap of ends with precomputed ones."""

    def rule():
        made = RULES["k_batch_async"](Setting(LAW, workers, 1, 0), k=k)
        return made.extend(made.init(), updates)

    state, schedule = rule()
    drawn = np.arange(int(state.attempts.max()))
    durations = from_law(LAW).seeded(0).duration(np.arange(workers)[:, None], 0.0, drawn).tolist()

    def plain():
        draws, version = [iter(row) for row in durations], [0] * workers
        flying = [(next(draw), i) for i, draw in enumerate(draws)]
        heapq.heapify(flying)
        times, who, read = [], [], []
        for t in range(updates):
            for c in range(k):
                now, i = heapq.heappop(flying)
                who.append(i)
                read.append(version[i])
                version[i] = t if c < k - 1 else t + 1
                heapq.heappush(flying, (now + next(draws[i]), i))
            times.append(now)
        return np.array(times), np.array(who), np.array(read)

    times, who, read = plain()
    np.testing.assert_array_equal(schedule.time, times)
    np.testing.assert_array_equal(schedule.workers.ravel(), who)
    np.testing.assert_array_equal(schedule.version.ravel(), read)
    return {"ours": lambda: rule()[1].time, "plain loop": lambda: plain()[0]}


def _pushes(rule: str, delay, workers: int) -> Rule:
    """Return the rule of a server that updates on at most 64 pushes, while other workers go on."""
    return RULES[rule](Setting(delay, workers, 1, 0), k=min(64, workers // 8))


def _pairs(blocking: bool, delay, workers: int) -> Rule:
    """Return the rule of nodes on a ring that meet a neighbour after every mini-batch."""
    setting = Setting(delay, workers, 1, 0, nx.cycle_graph(workers))
    return RULES["random_pairs"](setting, width=min(64, workers // 8), blocking=blocking)


def _one_peer(delay, workers: int) -> Rule:
    """Return the rule of rounds in which a worker waits only for the peer that it hears from."""
    links = of_rounds(rounds.one_peer_exponential(workers))
    return RULES["neighbour_barrier"](Setting(delay, workers, 1, 0, links=links))


# Maker of a rule; True if every worker has an event per update; workers in an event.
KINDS = {
    "k_batch_async": (functools.partial(_pushes, "k_batch_async"), False, 1),
    "k_async": (functools.partial(_pushes, "k_async"), False, 1),
    "random_pairs": (functools.partial(_pairs, False), False, 2),
    "random_pairs, blocking": (functools.partial(_pairs, True), False, 2),
    "one_peer_exponential": (_one_peer, True, 1),
}
DELAYS = {
    "independent": LAW,
    "markov": processes.markov(LAW, factor=4.0, mean_normal=90.0, mean_slow=10.0),
}


def _many(
    kind: str, delay: str, goal: float, workers: int, events: int, budget: float
) -> Iterator[Line]:
    """Yield the microseconds per event of planning a schedule from its start."""
    del budget
    make, everyone, places = KINDS[kind]
    compiling = make(DELAYS[delay], 16)
    compiling.extend(compiling.init(), 8)
    updates = -(-max(events, 4 * workers) // (workers if everyone else 64))
    taken = []
    for _ in range(3):
        rule = make(DELAYS[delay], workers)
        began = time.perf_counter()
        _, planned = rule.extend(rule.init(), updates)
        count = planned.workers.shape[1] // places * updates
        taken.append(1e6 * (time.perf_counter() - began) / count)
    name = f"{kind}, {delay} delays, {workers:,} workers"
    yield Line(name, statistics.median(taken), "us an event", goal)


# --- codecs ---

# By the beginning of a codec's name: at most this many times as long as a copy.
CODEC_GOALS = {
    "S2, rows": 3, "S2 peeled, rows": 3, "bitmap": 3, "bf16": 3, "lattice": 15, "int8": 4,
    "int4": 4, "mxfp4": 4, "fp8 ": 4,
    "S2, coordinates": 10, "S2 peeled, coordinates": 10, "top-k": 10,
}  # fmt: skip


def codec_rows(names, size: int) -> Iterator[Row]:
    """Yield rows that compare coding once, both ways, with a copy; codecs with a goal first."""
    names = names or [name for name in floors.codecs(floors.LEAST) if name != floors.COPY]
    goals = {n: g for n in names for start, g in CODEC_GOALS.items() if n.startswith(start)}
    calls = functools.lru_cache(maxsize=1)(floors.codecs)

    def candidates(name: str) -> dict[str, Callable]:
        return {"codec": calls(size)[name][0], "copy": calls(size)[floors.COPY][0]}

    def facts(name: str, seconds: Mapping[str, float]) -> dict[str, float]:
        return {"MB": 1e-6 * calls(size)[name][1], "GB/s": 4e-9 * size / seconds["codec"]}

    for name in sorted(names, key=lambda name: name not in goals):
        yield compared(
            "codecs over copy", f"{name}, {size:.0e}".replace("e+0", "e"), goals.get(name),
            functools.partial(candidates, name), functools.partial(facts, name),
        )  # fmt: skip
    calls.cache_clear()  # the gradients


# --- arms and input ---

CASES = {  # config and its argument, arm, changes
    "asynchronous, logistic regression": (
        ("slow_and_stale", "seconds=150"), "k_async/K=1/rate=0.16", {}
    ),
    "all-reduce, MLP": (
        ("nonblocking", None), "all_reduce/nonblocking", {"stop_at_target": False, "seconds": 10.0}
    ),
    "D-PSGD on a ring, MLP": (("heterogeneous", None), "dpsgd/ring/rate=0.2", {}),
}  # fmt: skip


def _together(case: str, count: int) -> dict[str, Callable]:
    """Return `count` seeds of an arm as one program, and one alone, from prepare to write."""
    sweep.keep_programs()
    (name, argument), arm, changes = CASES[case]
    module = importlib.import_module(f"configs.{name}")
    config = module.get_config(argument)
    config = override(config, dict(swept_arms(module, config))[arm] | {"name": arm} | changes)
    arms = [override(config, {"seed": seed}) for seed in range(count)]

    def run_some(arms: list) -> None:
        with tempfile.TemporaryDirectory() as folder:
            train.run_together(arms, [pathlib.Path(folder, str(n)) for n in range(len(arms))])

    def alone() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train.run(arms[0], pathlib.Path(folder, "run"))

    return {"together": lambda: run_some(arms), "alone": alone}


IMAGE = (32, 32, 3)  # uint8


def streaming_lines(
    model: str, batch: int, updates: int, goal: float | None, images: int, budget: float
) -> Iterator[Line]:
    """Yield the time of two workers' updates on streamed images, divided by the time in memory."""
    rng, folder = np.random.default_rng(0), tempfile.mkdtemp()
    for split, count in (("train", images), ("test", 64)):
        np.save(f"{folder}/{split}_image", rng.integers(0, 256, (count, *IMAGE), np.uint8))
        np.save(f"{folder}/{split}_label", rng.integers(0, 10, count, np.uint8))
    method = all_reduce(floors.optimizer())
    # Two dispatches in a turn, so that one is read while the other runs.
    data_feed.TABLE_BYTES = updates * batch * (math.prod(IMAGE) + 1)
    runtimes = []

    def reading(how: str) -> Callable:
        source = f"npy(folder='{folder}', classes=10)"
        task = tasks.build(f"images(source={source}, model={model}, reading={how})")
        runtime = simulate.Simulator(
            method, task.losses, task.train,
            floors.sampler_of(task, 2, batch), floors.waiting(method, 2, 1), mini_batches=1,
        )  # fmt: skip
        runtimes.append(runtime)
        turn = floors.advancing(runtime, task, updates)

        def advance():
            model = jax.block_until_ready(turn())
            runtime.input.settle()  # what a step reads is counted to the step
            return model.params

        return advance

    try:
        sides = {"streamed": reading("stream"), "memory": reading("memory")}
        taken = stopwatch.seconds(sides, 5, budget=budget)
    finally:
        for runtime in runtimes:
            runtime.close()
        shutil.rmtree(folder)
    ratio = taken["streamed"] / taken["memory"]
    yield Line(f"streamed over in memory, {model}", ratio, "x", goal, taken)


# --- the whole ---


def rows(sizes: Sizes, devices: int) -> Iterator[Row]:
    """Yield all rows."""
    yield from simulator_rows(sizes)
    yield round_row("mesh", devices, 1.05)
    yield callback_row(devices)
    yield from schedule_rows(sizes)
    yield from codec_rows(sizes.codecs, sizes.coordinates)
    for case in CASES:
        yield compared(
            "arms together over alone", f"{case}, {sizes.arms} arms", 0.3,
            functools.partial(_together, case, sizes.arms), scale=1 / sizes.arms,
        )  # fmt: skip
    kinds = (("logistic", 256, 64, None), ("resnet18(width=16)", 8, 4, 1.03))
    for model, batch, updates, goal in kinds[: sizes.models]:
        measure = functools.partial(streaming_lines, model, batch, updates, goal, sizes.images)
        yield Row("input", f"streamed, {model}", measure)


def table(record: dict) -> str:
    """Return the lines of a record for a page: row, ratio of times or number with a unit, goal."""
    found = ["| row | ratio | at most |", "| --- | --- | --- |"]
    for row in record["rows"]:
        for line in row["lines"]:
            unit = "" if line["unit"] == "x" else f" {line['unit']}"
            goal = "" if line["goal"] is None else f" {line['goal']:g}"
            found.append(f"| {line['name']} | {line['value']:.3g}{unit} |{goal} |")
        if row["state"] != harness.RAN:
            found.append(f"| {row['name']} | {row['state']} | |")
    return "\n".join(found) + "\n"


def publish(record: dict, page: pathlib.Path) -> None:
    """Put the table between the marks of a page."""
    before, begin, rest = page.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (begin and end):
        raise ValueError(f"{page} has no marks {MARKS[0].strip()} and {MARKS[1]}; add both")
    said = f"{record['date'][:10]}, {record['cores']} cores, {record['backend']}"
    harness.write(page, f"{before}{begin}{said}:\n\n{table(record)}{end}{after}")


def main() -> None:
    options = harness.options(
        __doc__, only=("", "words of sections or rows, with commas"),
        tiny=(False, "the smallest sizes"), minutes=(15.0, "after which no row begins"),
        output=("", "the record; docs/results for a whole"),
    )  # fmt: skip
    logging.set_verbosity(logging.WARNING)
    harness.devices_of_cpu(DEVICES)
    is_whole = not (options.only or options.tiny)
    output = pathlib.Path(options.output) if options.output else FOLDER / "suite.json"
    record = harness.head(harness.typed("suite")) | {
        "backend": jax.default_backend(), "load": os.getloadavg()[0], "complete": False
    }  # fmt: skip
    wanted = rows(TINY if options.tiny else Sizes(), jax.device_count())
    output = output if is_whole or options.output else None
    good = run(wanted, record, output, 60 * options.minutes, SHARE, options.only)
    if is_whole:
        publish(record, PAGE)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
