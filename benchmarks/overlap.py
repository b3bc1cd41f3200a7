"""MG-WFBP as it runs on two hosts: seconds of a step with buckets beside the backward pass.

    python -m benchmarks.overlap                                                           # as root
    python -m benchmarks.overlap --model=gpt --rate=200mbit

Every host is a namespace with a core of its own, and its link has a rate. Per model and rate one
pair of processes measures the profile of `overlap=threads`, then trains under all schedules in
turns, whose first steps are not timed, as the previous schedule still affects them. Exchanges of
`dear` and `byte_scheduler` end in the next forward pass, except in the last step of a turn. With
`--hosts=4`, more than there are cores, layers sleep the seconds that one of the hosts has measured
alone, and only exchanges are real. A point has the median seconds of a step, the seconds of all
turns, and the profile's prediction. If the plan of `optimal` hides more than LITTLE of a step, a
point also has the hidden share of these seconds. Further steps of one model at one rate go to a
Chrome trace for Perfetto, with the plans beside them; a picture shows each schedule's step of
median length. A second picture has the gains of all models and rates in the record, over the ratio
of communication to computing.
"""

import contextlib
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from matplotlib.figure import Figure

from algorithms.base import scale_by_samples
from algorithms.mg_wfbp import mg_wfbp, plan_with
from benchmarks import floors, harness, namespaces
from benchmarks.harness import FOLDER, ROOT
from comms import buckets, iteration
from comms.trees import named_leaves
from experiments import distributed, figures, profiling, tasks
from experiments.tasks import models
from runtimes import mesh
from runtimes.overlapped import Span

RECORD = harness.Record(FOLDER / "overlap.json", "python -m benchmarks.overlap",
                        ("model", "rate", "hosts", "schedule"))  # fmt: skip
TIMELINES = FOLDER / "overlap_timelines.json"
PICTURE, SHOWN = ROOT / "docs" / "overlap.png", ("gpt", "200mbit")
GAINS = ROOT / "docs" / "overlap_gains.png"
HOSTS, TURNS, STEPS, TRACED = 2, 5, 8, 6
UNTIMED = 2  # first steps of a turn
LITTLE = 0.05
RATES = {"100mbit": "o", "200mbit": "s", "1gbit": "^"}  # of all links, and their markers
# A model and the images or texts of a mini-batch.
MODELS = {
    "resnet18": ("images(source=noise(samples=256, size=32), model=resnet18(width=16))", 8),
    "gpt": ("next_token(model=gpt(layers=4, width=128, heads=4))", 2),
    "one_large_layer": ("images(source=noise(samples=256, size=32), "
                        "model=benchmarks.overlap:one_large_layer)", 16),
}  # fmt: skip
# Schedule -> (overlap, buckets, all-reduce).
SCHEDULES = {
    "in one program": ("none", "single", "psum"),
    "single": ("threads", "single", "psum"),
    "wfbp": ("threads", "wfbp", "psum"),
    "fixed": ("threads", "fixed:1MB", "psum"),
    "greedy": ("threads", "greedy", "psum"),
    "optimal": ("threads", "optimal", "psum"),
    "dear": ("threads", "fixed:1MB", "decoupled"),
    "byte_scheduler": ("threads", "byte_scheduler", "psum"),
}


def one_large_layer(classes: int) -> Any:
    """Return convolutions before a dense layer with most of the parameters, as in VGG."""
    layers: list[Any] = [models.scaled]
    for width in (32, 64, 128):
        layers += [models.conv(width), models.conv(width), nn.relu, models._halve]
    layers += [models._flatten, nn.Dense(384), nn.relu, nn.Dense(classes)]
    return nn.Sequential(layers)


def foreseen(profile, sizes: list[int], made, decoupled: bool) -> tuple[float, list]:
    """Return the predicted seconds of a step without its update, and the spans of its plan.

    Spans begin with the forward pass, or with the first message if the next forward pass waits for
    layers one by one. Messages sent after the backward pass do not slow it down.
    """
    forward, cost, ready = profile.forward, profile.cost, profile.ready
    if made.order is None and not decoupled:
        if len(made.buckets) == 1:
            ready = np.full(len(sizes), (forward + ready[-1]) / profile.contention - forward)
            made = buckets.single(sizes, ready, cost)
        begins, ends = forward + made.start, forward + made.end
        computed = forward + ready[-1]
        seconds = forward + made.finish
    else:
        order, begins, ends = made.order, made.start, made.end
        if decoupled:
            half = buckets.evaluate(made.buckets, sizes, ready, lambda n: cost.seconds(n) / 2)
            gathered = half.finish + np.cumsum((half.end - half.start)[::-1])
            begins = np.concatenate([half.start, [half.finish], gathered[:-1]])
            ends = np.concatenate([half.end, gathered])
            order = [*range(len(half.end)), *reversed(range(len(half.end)))]
        arrived = np.zeros(len(sizes))
        for bucket, end in zip(order, ends, strict=True):  # with its last message
            arrived[made.buckets[bucket]] = end
        trace = iteration.traced(sizes, ready, forward)
        seconds = iteration.next_forward(trace, arrived, len(ends)).seconds
        computed = ready[-1] - begins[0]
        begins, ends = begins - begins[0], ends - begins[0]
    names = map("planned {}".format, range(len(begins)))
    sent = map(Span, ["exchange"] * len(begins), names, begins, ends)
    return seconds, [Span("compute", "planned", 0.0, computed), *sent]


def slept(task: Any, batch: int) -> Any:
    """Return a profile whose computing times process 0 has measured, while all others waited."""
    own = profiling.measure_backward(task, batch, 10) if distributed.is_writer() else None
    ready, forward = distributed.agreed(own and [own.ready.tolist(), own.forward])
    costs = profiling.measure_all_reduce(jax.devices(), profiling.sizes_of(task))
    layers = profiling.backward_order(task, batch)
    return profiling.Profile(layers, np.array(ready), *costs, forward=forward, contention=1.0)


def let_sleep(threads, profile, of_buckets: list[list[int]]) -> None:
    """Make stages of threaded rounds sleep as profiled, and return their first results again.

    of_buckets: layers of each bucket.
    """
    def sleeping(program, seconds):
        known = []

        def run(*values):
            if not known:
                known.append(jax.block_until_ready(program(*values)))
            time.sleep(seconds)
            return known[0]

        return run

    known = profile.forward + np.array([profile.ready[max(bucket)] for bucket in of_buckets])
    each = [*np.diff(known, prepend=0.0), 0.0]  # the last stage is the rest
    programs = threads._first._programs
    threads._first._programs = [*map(sleeping, programs, each[: len(programs)])]
    threads._end = sleeping(threads._end, 0.0)


def measured(
    model: str, turns: int, steps: int, sleeps: bool = False, schedules: Iterable[str] = SCHEDULES
) -> tuple[list[dict], dict[str, dict]]:
    """Return (a point per schedule, spans of some steps and of the plan); on all processes.

    sleeps: layers sleep, and only threaded schedules are measured whose next forward pass begins
    after all exchanges. schedules: of `SCHEDULES`, with "single" among them.
    """
    description, batch = MODELS[model]
    task, workers = tasks.build(description), jax.device_count()
    params = jax.jit(task.init)(jax.random.key(0))
    profile = slept(task, batch) if sleeps else profiling.measure(task, batch, overlap="threads")
    layer_sizes = [
        sum(4 * np.size(leaf) for path, leaf in named_leaves(params) if path in layer)
        for layer in profile.layers
    ]
    sampler = floors.sampler_of(task, workers, batch)

    def plan_of(plan: str):
        return plan_with(plan, profile)(params)[0]

    arms: dict[str, list] = {}
    for name in schedules:
        overlap, plan, all_reduce = SCHEDULES[name]
        method = mg_wfbp(
            optax.chain(optax.trace(0.9), scale_by_samples(0.01)),
            buckets=plan, profile=profile, collective=all_reduce,
        )  # fmt: skip
        if sleeps and (overlap != "threads" or method.buckets.eager):
            continue
        runtime = mesh.Mesh(
            method, task.losses, task.train, sampler, workers=workers, mini_batches=1,
            rounds_per_dispatch=steps, overlap=overlap,
        )  # fmt: skip
        run, _ = runtime.advance(runtime.start(params), np.inf, steps)
        if sleeps:
            let_sleep(runtime._program, profile, plan_of(plan).buckets)
            run, _ = runtime.advance(run, np.inf, steps)
        arms[name] = [runtime, run, method]
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(turns):
        for name in list(arms)[:: 1 if turn % 2 else -1]:
            runtime, run, _ = arms[name]
            run, _ = runtime.advance(run, np.inf, UNTIMED)
            arms[name][1], _ = runtime.advance(run, np.inf, steps)
            seconds[name].append((arms[name][1].seconds - run.seconds) / steps)
    spans = {}
    for name, (runtime, run, _) in arms.items():
        runtime.timeline = []
        if SCHEDULES[name][0] == "threads":
            runtime.advance(run, np.inf, TRACED)
        spans[name] = {"measured": runtime.timeline}
        runtime.close()

    ends = [span for span in spans["single"]["measured"] if span.name == "update"]
    update = float(np.median([span.end - span.start for span in ends]))
    serial = float(np.median(seconds["single"]))
    hideable = serial - foreseen(profile, layer_sizes, plan_of("optimal"), False)[0] - update
    points = []
    for name, (*_, method) in arms.items():
        decoupled = method.buckets.all_reduce.gather is not None
        plan = plan_of(SCHEDULES[name][1])
        planned, spans[name]["planned"] = foreseen(profile, layer_sizes, plan, decoupled)
        predicted, median = planned + update, float(np.median(seconds[name]))
        points.append({
            "model": model, "schedule": name, "seconds": median,
            "deviation": float(np.std(seconds[name], ddof=1)),
            "turns": [round(one, 5) for one in seconds[name]], "steps": steps,
            "predicted": predicted, "error": predicted / median - 1,
            "buckets": len(method.buckets.buffers_of(params)), "gain": serial / median,
            "hidden": (serial - median) / hideable if hideable > LITTLE * serial else None,
            "computing": (profile.forward + profile.ready[-1]) / profile.contention + update,
            "contention": profile.contention,
            "exchange": float(profile.cost.seconds(sum(layer_sizes))),
            "megabytes": sum(layer_sizes) / 1e6,
        })  # fmt: skip
    return points, spans


# Lanes of a schedule, which are threads of a trace.
LANES = [(kind, lane) for kind in ("measured", "planned") for lane in ("compute", "exchange")]


def trace(spans: Mapping[str, Mapping[str, list[Span]]]) -> dict:
    """Return a Chrome trace with a process per schedule, microseconds from its first span on."""
    events = []

    def add(phase: str, name: str, process: int, thread: int, **more) -> None:
        events.append({"ph": phase, "name": name, "pid": process, "tid": thread, **more})

    for process, (schedule, own) in enumerate(spans.items()):
        add("M", "process_name", process, 0, args={"name": schedule})
        for thread, lane in enumerate(LANES, 1):
            add("M", "thread_name", process, thread, args={"name": " ".join(lane)})
        for kind, found in own.items():
            begin = min((span.start for span in found), default=0.0)
            for span in found:
                start, lasts = (round(1e6 * s) for s in (span.start - begin, span.end - span.start))
                thread = 1 + LANES.index((kind, span.lane))
                add("X", span.name, process, thread, ts=start, dur=lasts)
    return {"traceEvents": events}


def typical_step(spans: list[Span]) -> list[Span]:
    """Return the measured spans of the step of median length, in time since its start.

    A step begins with its forward pass, or with its first message if it ends in the next forward
    pass; in that case only the last step of a dispatch has an update of its own.
    """
    names = [span.name for span in spans]
    marker = "reduce 0" if names.count("update") < names.count("reduce 0") else "stage 0"
    begins = sorted(span.start for span in spans if span.name == marker)
    edges = [*begins, max(span.end for span in spans)]
    lengths = sorted((end - begin, begin) for begin, end in itertools.pairwise(edges))
    length, begin = lengths[(len(lengths) - 1) // 2]
    moved = [span._replace(start=span.start - begin, end=span.end - begin) for span in spans]
    return [span for span in moved if 0 <= span.start < length]


def draw(spans: Mapping[str, Mapping[str, list[Span]]], path: pathlib.Path) -> None:
    """Draw a step of every schedule: computing above, exchange below, thin bars as planned."""
    spans = {name: own for name, own in spans.items() if own["measured"]}
    canvas = Figure(figsize=(10, 0.9 * len(spans)), dpi=150, layout="constrained")
    panels = canvas.subplots(len(spans), 1, sharex=True, squeeze=False).ravel()
    for axes, (name, own) in zip(panels, spans.items(), strict=True):
        shown = {"measured": typical_step(own["measured"]), "planned": own["planned"]}
        looks = [(-0.2, 0.6, colour) for colour in figures.COLOURS[:2]] + 2 * [(-0.4, 0.15, "0.55")]
        for number, ((kind, lane), (low, height, colour)) in enumerate(
            zip(LANES, looks, strict=True)
        ):
            bars = [(1e3 * span.start, 1e3 * (span.end - span.start))
                    for span in shown[kind] if span.lane == lane]  # fmt: skip
            axes.broken_barh(bars, (low - 1 - number % 2, height), facecolor=colour,
                             edgecolor="white", linewidth=0.5)  # fmt: skip
        axes.set_yticks([-1, -2], ["compute", "exchange"], fontsize=7)
        axes.set_title(name, fontsize=9, loc="left")
        figures.plain(axes)
    panels[-1].set_xlabel("milliseconds since the step began; thin: as planned", fontsize=9)
    figures.save(canvas, path)


def draw_gains(points: list[dict], path: pathlib.Path) -> None:
    """Draw the measured and planned gains of `optimal` over two schedules, by model and rate."""
    cells: dict[tuple, dict[str, dict]] = {}
    for point in points:
        if point["hosts"] == HOSTS:
            cells.setdefault((point["model"], point["rate"]), {})[point["schedule"]] = point
    canvas = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    panels = canvas.subplots(1, 2)
    colours = dict(zip(MODELS, figures.COLOURS, strict=False))
    right = 0.0
    for axes, other in zip(panels, ("single", "wfbp"), strict=True):
        for (model, rate), own in cells.items():
            best, rival = own["optimal"], own[other]
            x, look = best["exchange"] / best["computing"], RATES.get(rate, "D") + "-"
            planned, found = (rival[key] / best[key] for key in ("predicted", "seconds"))
            axes.plot([x, x], [planned, found], color="0.8", linewidth=0.8, zorder=0)
            axes.plot(x, planned, look, color=colours[model], markerfacecolor="white")
            axes.plot(x, found, look, color=colours[model])
            right = max(right, x)
        axes.axhline(1, color="0.8", linewidth=0.8)
        axes.set_xlim(0, 1.25 * right)
        axes.set_title(f"over {other}", fontsize=10)
        axes.set_xlabel("seconds of one all-reduce / seconds of computing", fontsize=9)
        figures.plain(axes)
    panels[0].set_ylabel("times as fast; hollow: as planned", fontsize=9)
    for model, colour in colours.items():
        panels[1].plot([], [], "-", color=colour, label=figures.literal(model))
    for rate, marker in RATES.items():
        panels[1].plot([], [], marker, color="0.4", label=f"{rate}/s")
    panels[1].legend(fontsize=8, frameon=False)
    figures.save(canvas, path)


def child(rank: int, address: str, folder: str, options: Any) -> None:
    """Measure as one of the hosts; the first one writes what was found."""
    distributed.initialize(address, options.hosts, rank)
    jax.devices()
    # Only after JAX has made its threads: with a pool of one, a collective that waits in it would
    # keep everything else from computing.
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), {rank % (os.cpu_count() or 1)})
    distributed.connect()
    sleeps = options.hosts > HOSTS
    found = measured(options.model[0], TURNS, options.steps, sleeps, options.schedules)
    if rank == 0:
        pathlib.Path(folder, "found.json").write_text(json.dumps(found))


def main() -> None:
    options = harness.options(
        __doc__, model=([*MODELS], "names"), rate=([*RATES], "of all links"),
        hosts=(HOSTS, "how many"), steps=(STEPS, "of a turn"),
        schedules=([*SCHEDULES], "single among them"),
        child=("", "RANK,ADDRESS,FOLDER of a host, which the program starts"),
    )  # fmt: skip
    chosen, count = options.schedules, options.hosts
    if {"single"}.difference(chosen) or {*chosen}.difference(SCHEDULES):
        raise SystemExit(f"--schedules={','.join(chosen)}: write single, and others of "
                         f"{', '.join(SCHEDULES)}")  # fmt: skip
    if options.child:
        rank, address, folder = options.child.split(",")
        return child(int(rank), address, folder, options)
    for model, rate in itertools.product(options.model, options.rate):
        with tempfile.TemporaryDirectory() as folder, namespaces.switch(count, rate) as hosts:
            program = [sys.executable, "-m", "benchmarks.overlap", *sys.argv[1:]]
            where = f"{hosts[0].address}:{harness.free_port()},{folder}"
            namespaces.run(hosts, [
                [*program, f"--model={model}", f"--child={rank},{where}"] for rank in range(count)
            ])  # fmt: skip
            points, spans = json.loads(pathlib.Path(folder, "found.json").read_text())
        RECORD.put([{"rate": rate, "hosts": count, **point} for point in points])
        if (model, rate, count, len(points)) == (*SHOWN, HOSTS, len(SCHEDULES)):
            spans = {name: {kind: [Span(*span) for span in found] for kind, found in each.items()}
                     for name, each in spans.items()}  # fmt: skip
            harness.write(TIMELINES, json.dumps(trace(spans)))
            draw(spans, PICTURE)
    draw_gains(RECORD.points(), GAINS)


if __name__ == "__main__":
    main()
