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

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

from benchmarks import namespaces
from benchmarks.harness import FOLDER, ROOT, free_port, put, write

RECORD, TIMELINES = FOLDER / "overlap.json", FOLDER / "overlap_timelines.json"
PICTURE, SHOWN = ROOT / "docs" / "overlap.png", ("gpt", "200mbit")
GAINS = ROOT / "docs" / "overlap_gains.png"
HOSTS, TURNS, STEPS, TRACED = 2, 5, 8, 6
UNTIMED = 2  # first steps of a turn
LITTLE = 0.05
RATES = {"100mbit": "o", "200mbit": "s", "1gbit": "^"}  # of all links, and their markers
KEY = ("model", "rate", "hosts", "schedule")  # of a point
# A model and the images or texts of a mini-batch.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "resnet18": ({"name": "images", "source": {"name": "noise", "samples": 256, "size": 32},
                  "model": {"name": "resnet18", "width": 16}}, 8),
    "gpt": ({"name": "next_token", "model":
             {"name": "gpt", "layers": 4, "width": 128, "heads": 4}}, 2),
    "one_large_layer": ({"name": "images", "source": {"name": "noise", "samples": 256, "size": 32},
                         "model": "benchmarks.overlap:one_large_layer"}, 16),
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
    from flax import linen as nn

    from experiments.tasks import models

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
    import numpy as np

    from comms import buckets, iteration
    from runtimes.overlapped import Span

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
    import jax
    import numpy as np

    from experiments import distributed, profiling

    own = profiling.measure_backward(task, batch, 10) if distributed.is_writer() else None
    ready, forward = distributed.agreed(own and [own.ready.tolist(), own.forward])
    costs = profiling.measure_all_reduce(jax.devices(), profiling.sizes_of(task))
    layers = profiling.backward_order(task, batch)
    return profiling.Profile(layers, np.array(ready), *costs, forward=forward, contention=1.0)


def let_sleep(threads, profile, of_buckets: list[list[int]]) -> None:
    """Make stages of threaded rounds sleep as profiled, and return their first results again.

    of_buckets: layers of each bucket.
    """
    import time

    import jax
    import numpy as np

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
    import jax
    import numpy as np
    import optax

    from algorithms.base import scale_by_samples
    from algorithms.mg_wfbp import mg_wfbp, plan_with
    from comms.trees import named_leaves
    from experiments import profiling, tasks
    from experiments.tasks import data, sampling
    from runtimes import mesh

    description, batch = MODELS[model]
    task, workers = tasks.build(description), jax.device_count()
    params = jax.jit(task.init)(jax.random.key(0))
    profile = slept(task, batch) if sleeps else profiling.measure(task, batch, overlap="threads")
    layer_sizes = [
        sum(4 * np.size(leaf) for path, leaf in named_leaves(params) if path in layer)
        for layer in profile.layers
    ]
    sampler = sampling.Sampler(data.iid(task.labels, workers, 0), batch, 0)

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
    planned = {}
    for name, (*_, method) in arms.items():
        decoupled = method.buckets.all_reduce.gather is not None
        planned[name], spans[name]["planned"] = foreseen(
            profile, layer_sizes, plan_of(SCHEDULES[name][1]), decoupled
        )
    serial = float(np.median(seconds["single"]))
    hideable = serial - foreseen(profile, layer_sizes, plan_of("optimal"), False)[0] - update
    points = []
    for name, taken in seconds.items():
        median = float(np.median(taken))
        flat = arms[name][2].buckets.buffers_of(params)
        points.append({
            "model": model, "schedule": name, "seconds": median,
            "deviation": float(np.std(taken, ddof=1)), "turns": [round(one, 5) for one in taken],
            "steps": steps,
            "predicted": planned[name] + update, "error": (planned[name] + update) / median - 1,
            "buckets": len(flat),
            "gain": serial / median,
            "hidden": (serial - median) / hideable if hideable > LITTLE * serial else None,
            "computing": (profile.forward + profile.ready[-1]) / profile.contention + update,
            "contention": profile.contention,
            "exchange": float(profile.cost.seconds(sum(layer_sizes))),
            "megabytes": sum(layer_sizes) / 1e6,
        })  # fmt: skip
    return points, spans


def trace(spans: dict[str, dict]) -> dict:
    """Return a Chrome trace with a process per schedule, microseconds from its first span on."""
    events = []
    for number, (name, own) in enumerate(spans.items()):
        named = [("process_name", 0, name), *(("thread_name", *lane) for lane in LANES)]
        events += [
            {"ph": "M", "name": kind, "pid": number, "tid": thread, "args": {"name": text}}
            for kind, thread, text in named
        ]
        for kind, found in own.items():
            begin = min((span.start for span in found), default=0.0)
            events += [
                {
                    "ph": "X", "name": span.name, "pid": number, "tid": THREADS[kind, span.lane],
                    "ts": round(1e6 * (span.start - begin)),
                    "dur": round(1e6 * (span.end - span.start)),
                }
                for span in found
            ]  # fmt: skip
    return {"traceEvents": events}


THREADS = {("measured", "compute"): 1, ("measured", "exchange"): 2,
           ("planned", "compute"): 3, ("planned", "exchange"): 4}  # fmt: skip
LANES = [(thread, " ".join(names)) for names, thread in THREADS.items()]


def typical_step(events: list[dict]) -> list[dict]:
    """Return the measured events of the step of median length, in time since its start.

    A step begins with its forward pass, or with its first message if it ends in the next forward
    pass; in that case only the last step of a dispatch has an update of its own.
    """
    names = [event["name"] for event in events]
    marker = "reduce 0" if names.count("update") < names.count("reduce 0") else "stage 0"
    events = sorted((e for e in events if e["tid"] <= 2), key=lambda e: e["ts"])
    begins = [e["ts"] for e in events if e["name"] == marker]
    begins.append(max(e["ts"] + e["dur"] for e in events))
    lengths = sorted((end - begin, begin) for begin, end in itertools.pairwise(begins))
    length, begin = lengths[(len(lengths) - 1) // 2]
    return [{**e, "ts": e["ts"] - begin} for e in events if 0 <= e["ts"] - begin < length]


def draw(timelines: dict, path: pathlib.Path) -> None:
    """Draw a step of every schedule: computing above, exchange below, thin bars as planned."""
    from matplotlib.figure import Figure

    from experiments import figures

    by: dict[int, list[dict]] = {}
    names = {}
    for event in timelines["traceEvents"]:
        if event["ph"] == "X":
            by.setdefault(event["pid"], []).append(event)
        elif event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
    by = {number: events for number, events in by.items() if any(e["tid"] <= 2 for e in events)}
    canvas = Figure(figsize=(10, 0.9 * len(by)), dpi=150, layout="constrained")
    panels = canvas.subplots(len(by), 1, sharex=True, squeeze=False).ravel()
    for axes, (number, events) in zip(panels, by.items(), strict=True):
        shown = typical_step(events) + [e for e in events if e["tid"] > 2]
        for thread in range(1, 5):
            bars = [(1e-3 * e["ts"], 1e-3 * e["dur"]) for e in shown if e["tid"] == thread]
            lane = -1 - (thread - 1) % 2
            where = (lane - 0.2, 0.6) if thread <= 2 else (lane - 0.4, 0.15)
            colour = figures.COLOURS[thread - 1] if thread <= 2 else "0.55"
            axes.broken_barh(bars, where, facecolor=colour, edgecolor="white", linewidth=0.5)
        axes.set_yticks([-1, -2], ["compute", "exchange"], fontsize=7)
        axes.set_title(names[number], fontsize=9, loc="left")
        figures.plain(axes)
    panels[-1].set_xlabel("milliseconds since the step began; thin: as planned", fontsize=9)
    figures.save(canvas, path)


def draw_gains(points: list[dict], path: pathlib.Path) -> None:
    """Draw the measured and planned gains of `optimal` over two schedules, by model and rate."""
    from matplotlib.figure import Figure

    from experiments import figures

    cells: dict[tuple, dict[str, dict]] = {}
    for point in points:
        if point["hosts"] == HOSTS:
            cells.setdefault((point["model"], point["rate"]), {})[point["schedule"]] = point
    canvas = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    panels = canvas.subplots(1, 2)
    colours = dict(zip(MODELS, figures.COLOURS, strict=False))
    for axes, other in zip(panels, ("single", "wfbp"), strict=True):
        for (model, rate), own in cells.items():
            best, rival = own["optimal"], own[other]
            x, look = best["exchange"] / best["computing"], RATES.get(rate, "D") + "-"
            planned, found = (rival[key] / best[key] for key in ("predicted", "seconds"))
            axes.plot([x, x], [planned, found], color="0.8", linewidth=0.8, zorder=0)
            axes.plot(x, planned, look, color=colours[model], markerfacecolor="white")
            axes.plot(x, found, look, color=colours[model])
        axes.axhline(1, color="0.8", linewidth=0.8)
        axes.set_xlim(0, 1.25 * max(own["optimal"]["exchange"] / own["optimal"]["computing"]
                                    for own in cells.values()))  # fmt: skip
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


def child(rank: int, coordinator: str, folder: str, options: argparse.Namespace) -> None:
    """Measure as one of the hosts; the first one writes what was found."""
    import jax

    from experiments import distributed

    distributed.initialize(coordinator, options.hosts, rank)
    jax.devices()
    # Only after JAX has made its threads: with a pool of one, a collective that waits in it would
    # keep everything else from computing.
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), {rank % (os.cpu_count() or 1)})
    distributed.connect()
    given = options.model, options.turns, options.steps, options.hosts > HOSTS
    points, spans = measured(*given, options.schedules.split(","))
    if rank == 0:
        found = json.dumps({"points": points, "timelines": trace(spans)})
        pathlib.Path(folder, "found.json").write_text(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=",".join(MODELS), help="with commas")
    parser.add_argument("--rate", default=",".join(RATES), help="of all links, with commas")
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a turn")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="with commas; single too")
    parser.add_argument("--output", type=pathlib.Path, default=RECORD, help="the record")
    parser.add_argument("--child", nargs=3, metavar=("RANK", "ADDRESS", "FOLDER"), help="a host")
    options = parser.parse_args()
    chosen = options.schedules.split(",")
    if {"single"}.difference(chosen) or {*chosen}.difference(SCHEDULES):
        parser.error(f"--schedules={options.schedules}: write single, and others of {[*SCHEDULES]}")
    if options.child is not None:
        rank, address, folder = options.child
        child(int(rank), address, folder, options)
        return
    if (reason := namespaces.unmet()) is not None:
        print(f"skipped: {reason}")
        return
    count = options.hosts
    for model in options.model.split(","):
        for rate in options.rate.split(","):
            with tempfile.TemporaryDirectory() as folder, namespaces.switch(count, rate) as hosts:
                address = f"{hosts[0].address}:{free_port()}"
                own = [f"--model={model}", f"--hosts={count}", f"--turns={options.turns}",
                       f"--steps={options.steps}", f"--schedules={options.schedules}"]  # fmt: skip
                program = [sys.executable, "-m", "benchmarks.overlap", *own, "--child"]
                commands = [[*program, str(rank), address, folder] for rank in range(count)]
                with namespaces.started(hosts, commands) as running:
                    if running[0].wait():
                        raise SystemExit(running[0].returncode)
                found = json.loads(pathlib.Path(folder, "found.json").read_text())
            points = [{"rate": rate, "hosts": count, **point} for point in found["points"]]
            for point in points:
                print(" ".join(f"{name}={value}" for name, value in point.items()), flush=True)
            put(options.output, "python -m benchmarks.overlap", KEY, points)
            whole = options.output == RECORD and len(points) == len(SCHEDULES)
            if whole and (model, rate, count) == (*SHOWN, HOSTS):
                write(TIMELINES, json.dumps(found["timelines"]))
                draw(found["timelines"], PICTURE)
    if options.output == RECORD:
        draw_gains(json.loads(RECORD.read_text())["summary"]["points"], GAINS)


if __name__ == "__main__":
    main()
