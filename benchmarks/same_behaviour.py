"""Whether a change of the code leaves everything that experiments compute as it was.

    git worktree add /tmp/before main
    python -m benchmarks.same_behaviour --root=/tmp/before --records=/tmp/records/before
    python -m benchmarks.same_behaviour --records=/tmp/records/after --against=/tmp/records/before

The first command runs a list of experiments with the code below `--root` (default: this checkout);
the second does so with this one and compares: schedules, metrics, summaries and trained
parameters have to be equal bit for bit, but for what the wall clock says. Fields that only one side
has are listed. Finished experiments are not run again.
"""

import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
from absl import app, flags

_RECORDS = flags.DEFINE_string("records", None, "Directory of the records.", required=True)
_ROOT = flags.DEFINE_string("root", None, "Checkout whose code runs; default: this one.")
_AGAINST = flags.DEFINE_string("against", None, "Records to compare with.")
_ONLY = flags.DEFINE_list("only", [], "Experiments; default: all.")

HERE = pathlib.Path(__file__).parents[1]
EXPERIMENTS = {
    "rules": (str(HERE / "benchmarks/every_rule.py"), "--sweep"),
    "demo": ("configs/demo.py", "--sweep"),
    "nonblocking": ("configs/nonblocking.py:delay=pause", "--sweep", "--config.seconds=15"),
    "matcha": ("configs/matcha.py", "--sweep", "--config.updates=200"),
    "swarm": ("configs/swarm.py:delay=slow4", "--sweep", "--config.updates=300"),
    "slow_and_stale": (
        "configs/slow_and_stale.py",
        "--sweep",
        "--together",
        "--config.updates=300",
    ),
    "adasync": ("configs/adasync.py", "--sweep", "--together", "--config.seconds=60"),
    "s2_reducer": ("configs/s2_reducer.py:task=ncf,updates=60", "--sweep"),
}
WALL = ("wall_seconds", "wall_seconds_std")


def run(experiment: str, root: pathlib.Path, records: pathlib.Path) -> None:
    """Run one experiment with the code in `root`."""
    config, *options = EXPERIMENTS[experiment]
    workdir = records / experiment
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir.parent / f"{experiment}.log").open("w") as log:
        subprocess.run(
            [sys.executable, "launch.py", f"--config={config}", f"--workdir={workdir}", *options],
            cwd=root,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )


def without_wall(value) -> Any:
    """A JSON value less the fields that follow the wall clock."""
    if isinstance(value, dict):
        return {key: without_wall(child) for key, child in value.items() if key not in WALL}
    return [without_wall(child) for child in value] if isinstance(value, list) else value


def fields(workdir: pathlib.Path) -> dict[str, object]:
    """What one arm has left, by name."""
    left = {}
    for name in ("schedule.npz", "parameters.npz"):
        if (workdir / name).exists():
            with np.load(workdir / name) as file:
                left |= {f"{name}:{key}": value for key, value in file.items()}
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    left["metrics.jsonl"] = [without_wall(json.loads(line)) for line in lines]
    summary = without_wall(json.loads((workdir / "summary.json").read_text()))
    return left | {f"summary:{key}": value for key, value in summary.items()}


def compare(here: pathlib.Path, there: pathlib.Path) -> tuple[list[str], list[str], int]:
    """(fields of arms that differ, names of fields that only one side has, arms)."""
    arms = {p.parent.relative_to(there) for p in there.rglob("metrics.jsonl")}
    mine = {p.parent.relative_to(here) for p in here.rglob("metrics.jsonl")}
    different = [f"{arm}: only on one side" for arm in sorted(arms ^ mine)]
    single: set[str] = set()
    for arm in sorted(arms & mine):
        ours, theirs = fields(here / arm), fields(there / arm)
        single |= ours.keys() ^ theirs.keys()
        for name in sorted(ours.keys() & theirs.keys()):
            if isinstance(ours[name], np.ndarray):
                a, b = ours[name], theirs[name]
                same = (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
            else:
                same = ours[name] == theirs[name]
            if not same:
                different.append(f"{arm}: {name}")
    return different, sorted(single), len(arms & mine)


def main(_) -> None:
    records = pathlib.Path(_RECORDS.value).absolute()
    root = HERE if _ROOT.value is None else pathlib.Path(_ROOT.value)
    failed = False
    for experiment in _ONLY.value or EXPERIMENTS:
        run(experiment, root, records)
        if _AGAINST.value is None:
            print(f"{experiment}: recorded", flush=True)
            continue
        different, single, arms = compare(
            records / experiment, pathlib.Path(_AGAINST.value) / experiment
        )
        verdict = f"{len(different)} fields differ" if different else "equal bit for bit"
        print(f"{experiment}: {arms} arms, {verdict}", flush=True)
        for line in different[:20]:
            print(f"  {line}")
        if single:
            print(f"  only on one side: {', '.join(single)}")
        failed |= bool(different)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    app.run(main)
