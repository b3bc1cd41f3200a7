"""MG-WFBP as it runs on two hosts: seconds of a step with buckets beside the backward pass.

    python -m benchmarks.overlap                                                           # as root
    python -m benchmarks.overlap --model=gpt --rate=200mbit

Every host is a namespace with a core of its own, and its link has a rate. Per model and rate one
pair of processes measures the profile of `overlap=threads`, then trains under all schedules in
turns. A point has the median seconds of a step, the seconds of all turns, what the profile foresees
and the share that is hidden of what the plan of `optimal` would hide. The last steps of one model
at one rate are a Chrome trace, which Perfetto opens, and a picture.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

from benchmarks import namespaces
from benchmarks.harness import FOLDER, ROOT, free_port, put, write

RECORD, TIMELINES = FOLDER / "overlap.json", FOLDER / "overlap_timelines.json"
PICTURE, SHOWN = ROOT / "docs" / "overlap.png", ("gpt", "200mbit")
HOSTS, TURNS, STEPS = 2, 5, 2
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


def measured(model: str, turns: int, steps: int) -> tuple[list[dict], dict[str, list]]:
    """Return (a point per schedule, spans of its last steps); all processes call this."""
    import jax
    import numpy as np
    import optax

    from algorithms.base import scale_by_samples
    from algorithms.mg_wfbp import mg_wfbp
    from comms import buckets, iteration
    from comms.trees import named_leaves
    from experiments import profiling, tasks
    from experiments.tasks import data, sampling
    from runtimes import mesh

    description, batch = MODELS[model]
    task, workers = tasks.build(description), jax.device_count()
    params = jax.jit(task.init)(jax.random.key(0))
    profile = profiling.measure(task, batch, overlap="threads")
    sampler = sampling.Sampler(data.iid(task.labels, workers, 0), batch, 0)
    cost, forward = profile.cost, profile.forward
    arms, seconds = {}, {name: [] for name in SCHEDULES}
    for name, (overlap, plan, all_reduce) in SCHEDULES.items():
        method = mg_wfbp(
            optax.chain(optax.trace(0.9), scale_by_samples(0.01)),
            buckets=plan, profile=profile, collective=all_reduce,
        )  # fmt: skip
        runtime = mesh.Mesh(
            method, task.losses, task.train, sampler, workers=workers, mini_batches=1,
            rounds_per_dispatch=steps, overlap=overlap,
        )  # fmt: skip
        run, _ = runtime.advance(runtime.start(params), np.inf, steps)
        arms[name] = [runtime, run, method]
    for turn in range(turns):
        for name in list(arms)[:: 1 if turn % 2 else -1]:
            runtime, run, _ = arms[name]
            arms[name][1], _ = runtime.advance(run, np.inf, steps)
            seconds[name].append((arms[name][1].seconds - run.seconds) / steps)
    spans = {}
    for name, (runtime, run, _) in arms.items():
        runtime.timeline = []
        if SCHEDULES[name][0] == "threads":
            runtime.advance(run, np.inf, min(steps, 3))
        spans[name] = runtime.timeline
        runtime.close()

    update = float(np.median([s.end - s.start for s in spans["single"] if s.name == "update"]))
    sizes = [
        sum(4 * np.size(leaf) for path, leaf in named_leaves(params) if path in layer)
        for layer in profile.layers
    ]
    backward = profile.ready[-1]
    planned = {}
    for name, (_, plan, _) in SCHEDULES.items():
        kind, _, size = plan.partition(":")
        own = {"bytes": float(size.removesuffix("MB")) * 1e6} if size else {}
        if arms[name][2].buckets.all_reduce.gather is not None:
            each = np.diff(profile.ready, prepend=0.0)[::-1]
            trace = iteration.LayerTrace(
                model, np.array(sizes[::-1], float), forward * each / each.sum(), each
            )
            planned[name] = iteration.dear(trace, cost, **own).seconds
        else:
            made = buckets.PLANNERS[kind](sizes, profile.ready, cost, **own)
            planned[name] = forward + made.finish
    planned["in one program"] = planned["single"]
    serial, best = float(np.median(seconds["single"])), planned["optimal"] + update
    points = []
    for name, taken in seconds.items():
        median = float(np.median(taken))
        flat = buckets.buffers(params, arms[name][2].buckets.leaves_of(params))
        points.append({
            "model": model, "schedule": name, "seconds": median,
            "deviation": float(np.std(taken, ddof=1)), "turns": [round(one, 5) for one in taken],
            "predicted": planned[name] + update, "error": (planned[name] + update) / median - 1,
            "buckets": len(flat),
            "gain": serial / median, "hidden": (serial - median) / max(serial - best, 1e-9),
            "computing": forward + backward + update, "exchange": float(cost.seconds(sum(sizes))),
            "megabytes": sum(sizes) / 1e6,
        })  # fmt: skip
    return points, spans


def trace(spans: dict[str, list]) -> dict:
    """Return a Chrome trace with a process per schedule, microseconds from its first span on."""
    events = []
    for number, (name, own) in enumerate(spans.items()):
        begin = min((span.start for span in own), default=0.0)
        named = [("process_name", 0, name), *(("thread_name", *lane) for lane in LANES)]
        events += [
            {"ph": "M", "name": kind, "pid": number, "tid": thread, "args": {"name": text}}
            for kind, thread, text in named
        ]
        events += [
            {"ph": "X", "name": span.name, "pid": number, "tid": THREADS[span.lane],
             "ts": round(1e6 * (span.start - begin)), "dur": round(1e6 * (span.end - span.start))}
            for span in own
        ]  # fmt: skip
    return {"traceEvents": events}


LANES = ((1, "compute"), (2, "exchange"))
THREADS = {name: thread for thread, name in LANES}


def draw(timelines: dict, path: pathlib.Path) -> None:
    """Draw the last step or two of every schedule in a trace: computing above, exchange below."""
    from matplotlib.figure import Figure

    from experiments import figures

    by: dict[int, list[dict]] = {}
    names = {}
    for event in timelines["traceEvents"]:
        if event["ph"] == "X":
            by.setdefault(event["pid"], []).append(event)
        elif event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
    canvas = Figure(figsize=(10, 0.9 * len(by)), dpi=150, layout="constrained")
    panels = canvas.subplots(len(by), 1, sharex=True, squeeze=False).ravel()
    for axes, (number, events) in zip(panels, by.items(), strict=True):
        begin = max(e["ts"] for e in events if e["name"] == "stage 0")
        shown = [e for e in events if e["ts"] >= begin]
        for thread, _ in LANES:
            bars = [(1e-3 * (e["ts"] - begin), 1e-3 * e["dur"]) for e in shown
                    if e["tid"] == thread]  # fmt: skip
            axes.broken_barh(bars, (-thread - 0.4, 0.8), facecolor=figures.COLOURS[thread - 1],
                             edgecolor="white", linewidth=0.5)  # fmt: skip
        axes.set_yticks([-thread for thread, _ in LANES], [name for _, name in LANES], fontsize=7)
        axes.set_title(names[number], fontsize=9, loc="left")
        figures.plain(axes)
    panels[-1].set_xlabel("milliseconds since the step began", fontsize=9)
    figures.save(canvas, path)


def child(rank: int, coordinator: str, model: str, turns: int, steps: int, folder: str) -> None:
    """Measure as one of the hosts; the first one writes what was found."""
    import jax

    from experiments import distributed

    distributed.initialize(coordinator, HOSTS, rank)
    jax.devices()
    # Only after JAX has made its threads: with a pool of one, a collective that waits in it would
    # keep everything else from computing.
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), {rank % (os.cpu_count() or 1)})
    points, spans = measured(model, turns, steps)
    if rank == 0:
        found = json.dumps({"points": points, "timelines": trace(spans)})
        pathlib.Path(folder, "found.json").write_text(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=",".join(MODELS), help="with commas")
    parser.add_argument("--rate", default="100mbit,200mbit,1gbit", help="of all links, with commas")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a turn")
    parser.add_argument("--output", type=pathlib.Path, default=RECORD, help="the record")
    parser.add_argument("--child", nargs=3, metavar=("RANK", "ADDRESS", "FOLDER"), help="a host")
    options = parser.parse_args()
    if options.child is not None:
        rank, address, folder = options.child
        child(int(rank), address, options.model, options.turns, options.steps, folder)
        return
    if (reason := namespaces.unmet()) is not None:
        print(f"skipped: {reason}")
        return
    for model in options.model.split(","):
        for rate in options.rate.split(","):
            with tempfile.TemporaryDirectory() as folder, namespaces.switch(HOSTS, rate) as hosts:
                address = f"{hosts[0].address}:{free_port()}"
                own = [f"--model={model}", f"--turns={options.turns}", f"--steps={options.steps}"]
                program = [sys.executable, "-m", "benchmarks.overlap", *own, "--child"]
                commands = [[*program, str(rank), address, folder] for rank in range(HOSTS)]
                with namespaces.started(hosts, commands) as running:
                    if running[0].wait():
                        raise SystemExit(running[0].returncode)
                found = json.loads(pathlib.Path(folder, "found.json").read_text())
            points = [{"rate": rate, "hosts": HOSTS, **point} for point in found["points"]]
            for point in points:
                print(" ".join(f"{name}={value}" for name, value in point.items()), flush=True)
            key = ("model", "rate", "schedule")
            put(options.output, "python -m benchmarks.overlap", key, points)
            if (model, rate) == SHOWN and options.output == RECORD:
                write(TIMELINES, json.dumps(found["timelines"]))
                draw(found["timelines"], PICTURE)


if __name__ == "__main__":
    main()
