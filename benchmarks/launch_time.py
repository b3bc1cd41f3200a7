"""Seconds from a launch to its first update, and of the whole demo, with programs compiled before.

    python -m benchmarks.launch_time [--output=FILE]

A launch is `launch.py` in a fresh interpreter. The first update is there when the first record of
metrics after the start's is in the file, which is looked at every 5 ms. The first turn compiles
and is not counted. CPU seconds are of the process and its children, to the end: on a machine that
has other work to do they tell more than the clock.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from benchmarks import output

_TURNS = flags.DEFINE_integer("turns", 5, "Counted turns of every launch.", lower_bound=1)

ROOT = pathlib.Path(__file__).resolve().parents[1]
ARM = ("--config=configs/demo.py", "--sweep", "--arm=all_reduce/blocking", "--config.updates=20")
LOGISTIC = "--config.task=synthetic_logistic(samples=512, dimension=16)"
LAUNCHES = {
    "logistic, to the first update": ((*ARM, LOGISTIC), "all_reduce/blocking", 2.5),
    "digits, to the first update": (ARM, "all_reduce/blocking", 2.5),
    "demo, to its end": (("--config=configs/demo.py", "--sweep"), None, 8.0),
}  # flags, the arm whose first update counts, the goal in seconds


def launched(arguments: tuple[str, ...], arm: str | None) -> tuple[float, float]:
    """Seconds to the first update of the arm, or to the end, and CPU seconds to the end."""
    with tempfile.TemporaryDirectory() as folder:
        used, began = os.times(), time.perf_counter()
        command = [sys.executable, "launch.py", *arguments, f"--workdir={folder}"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            metrics = pathlib.Path(folder, arm or ".", "metrics.jsonl")
            while arm is not None and process.poll() is None:
                if metrics.exists() and metrics.read_bytes().count(b"\n") > 1:
                    break
                time.sleep(0.005)
            reached = time.perf_counter() - began
            code = process.wait()
        if code:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {code}; run it by hand")
        whole, after = time.perf_counter() - began, os.times()
        cpu = after.children_user + after.children_system
        cpu -= used.children_user + used.children_system
        return (whole if arm is None else reached), cpu


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    taken = {name: [] for name in LAUNCHES}
    for turn in range(_TURNS.value + 1):
        for name, (arguments, arm, _) in LAUNCHES.items():
            seconds = launched(arguments, arm)
            if turn > 0:
                taken[name].append(seconds)
    table, found = Table(title=f"launches with compiled programs, {_TURNS.value} turns"), []
    columns = ("launch", "median [s]", "fastest", "slowest", "CPU [s]", "goal")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for name, pairs in taken.items():
        wall, cpu = ([pair[place] for pair in pairs] for place in (0, 1))
        point = {
            "launch": name,
            "seconds": statistics.median(wall),
            "fastest": min(wall),
            "slowest": max(wall),
            "cpu_seconds": statistics.median(cpu),
        }
        found.append(point)
        numbers = [f"{value:.2f}" for value in list(point.values())[1:]]
        table.add_row(name, *numbers, f"<= {LAUNCHES[name][2]}")
    Console(width=100).print(table)
    output.put("launch_time", ("launch",), found)


if __name__ == "__main__":
    app.run(main)
