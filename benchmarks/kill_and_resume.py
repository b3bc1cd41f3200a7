"""Whether runs survive being killed at any moment.

    python -m benchmarks.kill_and_resume --kills=30

Every trial starts `launch.py` on one of three configs, kills it by SIGKILL at a random moment
between its first record and when it would have ended, and repeats the command until it is done.
What it leaves has to be bit for bit what an uninterrupted run leaves, but for what the wall clock
says.
"""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import numpy as np
from absl import app, flags

_KILLS = flags.DEFINE_integer("kills", 30, "Trials, each with one kill.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")

ROOT = pathlib.Path(__file__).parents[1]
BARRIER = ("wait=barrier", "algorithm=all_reduce", "seconds=200", "evaluate_every=5")
FIRST = ("wait=first_finisher", "algorithm=dpsgd", "seconds=60", "evaluate_every=1.5")
CONFIGS = {
    "sync": ("configs/nonblocking.py", *BARRIER),
    "async": ("configs/adasync.py", "seconds=200", "evaluate_every=5"),
    "gossip": ("configs/nonblocking.py", *FIRST),
}


class Left(NamedTuple):
    """What a finished run has left, without wall times; arrays as their bytes."""

    arrays: dict
    metrics: list[dict]
    summary: dict


def command(name: str, workdir: pathlib.Path) -> list[str]:
    """A run with a checkpoint at every evaluation."""
    config, *changes = CONFIGS[name]
    return [
        sys.executable,
        "launch.py",
        f"--config={config}",
        f"--workdir={workdir}",
        "--checkpoint_seconds=0",
        *(f"--config.{change}" for change in changes),
    ]


def started(name: str, workdir: pathlib.Path) -> subprocess.Popen:
    """The command as a process; its output goes to a file beside the workdir."""
    with workdir.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command(name, workdir), cwd=ROOT, stdout=log, stderr=log)


def training(name: str, workdir: pathlib.Path) -> subprocess.Popen:
    """The command as a process that has written its first record."""
    process = started(name, workdir)
    metrics = workdir / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    return process


def finish(process: subprocess.Popen, workdir: pathlib.Path) -> None:
    """Wait for the command to end well."""
    if process.wait():
        raise SystemExit(workdir.with_suffix(".log").read_text())


def kill(name: str, workdir: pathlib.Path, seconds: dict, moments: random.Random) -> float:
    """Kill the command while it trains: after how many seconds.

    A run that has ended before its moment is made again; the next moments come sooner.
    """
    while True:
        process, moment = training(name, workdir), moments.uniform(0, seconds[name])
        time.sleep(moment)
        process.kill()
        ended = process.wait()
        if ended > 0:
            raise SystemExit(workdir.with_suffix(".log").read_text())
        if ended == -signal.SIGKILL and not (workdir / "summary.json").exists():
            return moment
        seconds[name] = moment
        shutil.rmtree(workdir)


def left(workdir: pathlib.Path) -> Left:
    """Read what a finished run has left."""
    arrays = {}
    for name in ("schedule.npz", "parameters.npz"):
        with np.load(workdir / name) as file:
            arrays |= {(name, key): (a.dtype, a.shape, a.tobytes()) for key, a in file.items()}
    metrics = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((workdir / "summary.json").read_text())
    for record in (*metrics, summary):
        del record["wall_seconds"]
    return Left(arrays, metrics, summary)


def checkpoint(workdir: pathlib.Path) -> int:
    """The evaluation after which the newest checkpoint of a run was made; 0: it has none."""
    numbers = [int(path.name) for path in workdir.glob("checkpoint/*") if path.name.isdecimal()]
    return max(numbers, default=0)


def main(_) -> None:
    moments = random.Random(_SEED.value)
    equal = resumed = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        whole, seconds = {}, {}
        for name in CONFIGS:
            first = root / f"{name}_first"
            finish(started(name, first), first)  # compiles
            process, began = training(name, root / name), time.monotonic()
            finish(process, root / name)
            seconds[name] = time.monotonic() - began
            whole[name] = left(root / name)
        for trial in range(_KILLS.value):
            name = list(CONFIGS)[trial % len(CONFIGS)]
            workdir = root / f"{name}_{trial}"
            moment = kill(name, workdir, seconds, moments)
            reached = checkpoint(workdir)
            finish(started(name, workdir), workdir)
            same = left(workdir) == whole[name]
            equal, resumed = equal + same, resumed + (reached > 0)
            print(
                f"{trial:3} {name:6} killed {moment:4.1f} s after its first record, "
                f"checkpoint after evaluation {reached:3} of {len(whole[name].metrics) - 1}: "
                + ("equal" if same else "DIFFERENT"),
                flush=True,
            )
    print(f"{equal} of {_KILLS.value} equal; {resumed} of all had a checkpoint to go on from")
    if equal < _KILLS.value:
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
