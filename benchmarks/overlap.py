"""MG-WFBP as it runs on two hosts: seconds of a step with buckets beside the backward pass.

    python -m benchmarks.overlap                                                           # as root
    python -m benchmarks.overlap --model=gpt --rate=200mbit

Every host is a namespace with a core of its own, and its link has a rate. Per model and rate one
pair of processes measures the profile of `overlap=threads`, then trains under all schedules in
turns. A point has the median seconds of a step, the deviation over turns, what the profile predicts
and, of a step, the share of what `optimal` could hide by its plan that is hidden. The timelines of
the last steps go to `--timelines` as Chrome traces, which Perfetto opens.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks import namespaces
from benchmarks.harness import FOLDER, free_port, put

RECORD = FOLDER / "overlap.json"
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
    for name, (_, plan, all_reduce) in SCHEDULES.items():
        kind, _, size = plan.partition(":")
        own = {"bytes": float(size.removesuffix("MB")) * 1e6} if size else {}
        if all_reduce == "decoupled":
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
            "deviation": float(np.std(taken, ddof=1)), "predicted": planned[name] + update,
            "error": (planned[name] + update) / median - 1, "buckets": len(flat),
            "gain": serial / median, "hidden": (serial - median) / max(serial - best, 1e-9),
            "computing": forward + backward + update, "exchange": float(cost.seconds(sum(sizes))),
            "megabytes": sum(sizes) / 1e6,
        })  # fmt: skip
    return points, spans


def trace(spans: list, host: int) -> Iterator[dict]:
    """Yield the events of a Chrome trace; microseconds."""
    begin = min((span.start for span in spans), default=0.0)
    for span in spans:
        yield {
            "ph": "X", "pid": host, "tid": span.lane, "name": span.name,
            "ts": 1e6 * (span.start - begin), "dur": 1e6 * (span.end - span.start),
        }  # fmt: skip


def child(rank: int, coordinator: str, model: str, turns: int, steps: int, folder: str) -> None:
    """Measure as one of the hosts; the first one writes what was found."""
    import jax

    from experiments import distributed

    distributed.initialize(coordinator, HOSTS, rank)
    jax.devices()
    # Only after JAX has made its threads: with a pool of one, a collective that waits in it would
    # keep everything else from computing.
    for thread in pathlib.Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {rank % (os.cpu_count() or 1)})
    points, spans = measured(model, turns, steps)
    if rank == 0:
        lines = {name: list(trace(own, rank)) for name, own in spans.items()}
        found = json.dumps({"points": points, "spans": lines})
        pathlib.Path(folder, "found.json").write_text(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=",".join(MODELS), help="with commas")
    parser.add_argument("--rate", default="100mbit,200mbit,1gbit", help="of all links, with commas")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a turn")
    parser.add_argument("--output", type=pathlib.Path, default=RECORD, help="the record")
    parser.add_argument("--timelines", type=pathlib.Path, help="a folder")
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
            if options.timelines is not None:
                options.timelines.mkdir(parents=True, exist_ok=True)
                for name, events in found["spans"].items():
                    path = options.timelines / f"{model}-{rate}-{name.replace(' ', '_')}.json"
                    path.write_text(json.dumps({"traceEvents": events}))


if __name__ == "__main__":
    main()
