"""What streaming costs: memory for data that do not fit, and time beside the same data in memory.

    python -m benchmarks.streaming [--output=docs/results/benchmarks/streaming.json]

Three measurements, on files that are made for them and removed:

    memory  the anonymous memory of a process that trains on 8 GB of images in a sparse file
    ratio   ResNet-18 steps on 32x32 images, streamed over in memory, in turns in one process
    ahead   the same ratio where a step takes about as long as its reading: logistic regression

What a step reads is counted to the step: between two turns nothing is read.
"""

import math
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import app, flags, logging

from algorithms import all_reduce
from benchmarks import output
from benchmarks.sides import barrier, optimizer
from experiments import stopwatch, tasks
from experiments.tasks import data, sampling
from runtimes import data_feed, simulate

_BYTES = flags.DEFINE_float("gigabytes", 8.0, "Of images in the sparse file.")
_TURNS = flags.DEFINE_integer("turns", 5, "Timed turns of every candidate.")
_UPDATES = flags.DEFINE_integer("updates", 400, "Updates while the memory is looked at.")
_WIDTH = flags.DEFINE_integer("width", 64, "Channels of ResNet-18's first stage.")
_BATCH = flags.DEFINE_integer("batch", 16, "Images of a mini-batch for ResNet-18.")

IMAGE = (32, 32, 3)  # uint8
WORKERS, CLASSES = 2, 10
TARGETS = {"anonymous_gb": 1.5, "resnet18_ratio": 1.03}


def write(folder: pathlib.Path, samples: int, sparse: bool) -> None:
    """Images and labels as memory maps; sparse: files of zeros that take no room."""
    rng = np.random.default_rng(0)
    for split, count in (("train", samples), ("test", 64)):
        for name, shape in (("image", (count, *IMAGE)), ("label", (count,))):
            path = folder / f"{split}_{name}.npy"
            mapped = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
            if not sparse:
                mapped[:] = rng.integers(0, CLASSES if name == "label" else 256, shape, np.uint8)
            mapped.flush()


def begun(
    folder: pathlib.Path, model: str, reading: str, batch: int
) -> tuple[simulate.Simulator, simulate.Simulation]:
    """Two workers of all-reduce on the images of a folder, and their run of no updates."""
    source = f"npy(folder='{folder}', classes={CLASSES})"
    task = tasks.build(f"images(source={source}, model={model}, reading={reading})")
    sampler = sampling.Sampler(data.iid(task.labels, WORKERS, 0), batch, 0)
    runtime = simulate.Simulator(
        all_reduce(optimizer()),
        task.losses,
        task.train,
        sampler,
        barrier(WORKERS, 1),
        mini_batches=1,
    )
    return runtime, runtime.start(task.init(jax.random.key(0)))


def anonymous() -> int:
    """Bytes of this process that are no file's."""
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory of a process is anonymous")


def memory(folder: pathlib.Path, gigabytes: float, updates: int) -> dict[str, float]:
    """The most anonymous memory of a run, and how fast it read."""
    samples, batch = int(gigabytes * 1e9 / math.prod(IMAGE)), 256
    write(folder, samples, sparse=True)
    before = peak = anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    runtime, run = begun(folder, "logistic", "stream", batch)
    run, _ = runtime.advance(run, np.inf, 64)
    began = time.perf_counter()
    run, _ = runtime.advance(run, np.inf, updates)
    jax.block_until_ready(run.model)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    runtime.close()
    return {
        "data_gb": samples * math.prod(IMAGE) / 1e9,
        "anonymous_gb": peak / 1e9,
        "anonymous_before_gb": before / 1e9,
        "read_mb_per_s": updates * WORKERS * batch * math.prod(IMAGE) / seconds / 1e6,
    }


def ratio(
    folder: pathlib.Path, model: str, batch: int, updates: int, turns: int
) -> tuple[float, float]:
    """(seconds streamed over seconds in memory, seconds of an update in memory)."""

    def side(reading: str) -> tuple[simulate.Simulator, Callable]:
        runtime, run = begun(folder, model, reading, batch)

        def advance():
            nonlocal run
            run, _ = runtime.advance(run, np.inf, updates)
            jax.block_until_ready(run.model)
            runtime.input.settle()
            return run.model.params

        return runtime, advance

    streamed, stream = side("stream")
    _, held = side("memory")
    taken = stopwatch.seconds({"memory": held, "stream": stream}, turns)
    streamed.close()
    return taken["stream"] / taken["memory"], taken["memory"] / updates


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    with tempfile.TemporaryDirectory() as place:
        found = memory(pathlib.Path(place), _BYTES.value, _UPDATES.value)
    print(
        f"{found['data_gb']:.1f} GB of images: at most {found['anonymous_gb']:.2f} GB of anonymous "
        f"memory (target <= {TARGETS['anonymous_gb']}), {found['anonymous_before_gb']:.2f} GB "
        f"before; {found['read_mb_per_s']:.0f} MB/s read",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as place:
        write(pathlib.Path(place), 50_000, sparse=False)
        rows = {
            "resnet18": (f"resnet18(width={_WIDTH.value})", _BATCH.value, 4),
            "logistic": ("logistic", 256, 64),
        }
        for name, row in rows.items():
            _, batch, updates = row
            # Two dispatches in a turn, so that one is read while the other runs.
            data_feed.TABLE_BYTES = updates // 2 * WORKERS * batch * (math.prod(IMAGE) + 1)
            times, seconds = ratio(pathlib.Path(place), *row, _TURNS.value)
            found |= {f"{name}_ratio": times, f"{name}_update_s": seconds}
            target = TARGETS.get(f"{name}_ratio")
            goal = "" if target is None else f" (target <= {target})"
            print(
                f"{name}, {1e3 * seconds:.3g} ms an update in memory: streamed takes {times:.3f} "
                f"times as long{goal}",
                flush=True,
            )
    setting = {"backend": jax.default_backend(), "width": _WIDTH.value, "batch": _BATCH.value}
    output.put("streaming", tuple(setting), [setting | found])


if __name__ == "__main__":
    app.run(main)
