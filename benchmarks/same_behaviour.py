"""A comparison of all that experiments compute, before a change of the code and after it.

    python -m benchmarks.same_behaviour --against=main
    python -m benchmarks.same_behaviour --against=main --only=methods,mesh

Both sides, the commit and this checkout, run the same command lines, each with its own code and
configs. Parameters, schedules, metrics, summaries, configs and the numbers of reports have to be
equal bit for bit. Records of the commit are kept below `runs/same_behaviour`, under a digest of all
that they depend on, so that a second comparison runs only this checkout.

Every difference fails with a sentence, even an intended one. Fields that depend on the wall clock,
WALL and REAL_TIME, are left out.
"""

import concurrent.futures
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from benchmarks.every_method import METHODS

_AGAINST = flags.DEFINE_string("against", "HEAD", "Commit whose code runs on the other side.")
_ONLY = flags.DEFINE_list("only", [], "Experiments; default: all.")

AT_ONCE = 2  # experiments that run
ROOT = pathlib.Path(__file__).parents[1]
KEPT = ROOT / "runs" / "same_behaviour"

# Ends of names of fields that follow the clock on the wall, and of the digest of a file with them.
WALL = ("wall_seconds", "wall_seconds_std", "input_wait_seconds", "state.npz/metrics")
# The same where the run's own clock is on the wall.
REAL_TIME = (
    *WALL,
    *(f"{file}/{name}" for file in ("summary.json", "metrics.jsonl")
      for name in ("seconds", "communication_seconds", "idle_fraction")),
    "clock/seconds",
    "state.npz/schedule",
    *(f"schedule.npz/{name}" for name in ("time", "start", "finish", "busy", "communication")),
)  # fmt: skip
# What follows the name of an arm in the name of a field.
_ARM = re.compile(r"(?:^|/)[^/]+\.(?:jsonl?|npz)\b")


class Experiment(NamedTuple):
    """Flags of `launch.py`, and how it is run."""

    flags: tuple[str, ...]
    run: Callable[["Side", str], None] | None = None  # None: from its beginning to its end
    excluded: tuple[str, ...] = WALL


class Side(NamedTuple):
    """A checkout and the records of its experiments."""

    root: pathlib.Path
    records: pathlib.Path

    def place(self, name: str) -> pathlib.Path:
        return self.records / f"{name}-{address(EXPERIMENTS[name])}"


# --- experiments ---


def launch(side: Side, name: str, *more: str, flags: tuple[str, ...] = ()) -> subprocess.Popen:
    """Start `launch.py` of a side; what it prints goes beside its records.

    flags: in place of the experiment's.
    """
    with side.place(name).with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "launch.py", *(flags or EXPERIMENTS[name].flags), *more],
            cwd=side.root, stdout=log, stderr=subprocess.STDOUT,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )  # fmt: skip


def finish(process: subprocess.Popen, side: Side, name: str, code: int = 0) -> None:
    """Wait for a launch; RuntimeError unless it ends as it should."""
    if process.wait() != code:
        log = side.place(name).with_suffix(".log")
        raise RuntimeError(f"{name}: launch.py ended with {process.returncode}, see {log}")


def whole(side: Side, name: str) -> None:
    """Run an experiment from its beginning to its end."""
    finish(launch(side, name, f"--workdir={side.place(name)}"), side, name)


def interrupted(side: Side, name: str) -> None:
    """Run an experiment, end it by SIGTERM after three lines of metrics, and resume it."""
    place = side.place(name)
    more = f"--workdir={place}", "--checkpoint_seconds=0"
    process, metrics = launch(side, name, *more), place / "metrics.jsonl"
    while process.poll() is None and not (
        metrics.exists() and metrics.read_text().count("\n") >= 3
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    finish(process, side, name, 128 + signal.SIGTERM)
    finish(launch(side, name, *more), side, name)


def replayed(side: Side, name: str) -> None:
    """Run some arms, and each of them again on its recorded schedule."""
    place = side.place(name)
    finish(launch(side, name, f"--workdir={place / 'first'}"), side, name)
    for arm in ASYNCHRONOUS:
        wait = f"--config.wait=replay(path='{place / 'first' / arm}/schedule.npz')"
        more = wait, f"--workdir={place / 'again' / arm}"
        finish(launch(side, name, *more, flags=battery(arm)), side, name)


BATTERY = str(ROOT / "benchmarks/every_method.py")


def some(config: str, *names: str) -> tuple[str, ...]:
    """Return flags for some arms of a config's sweep."""
    return (f"--config={config}", "--sweep", *(f"--arm={name}" for name in names))


def battery(*names: str) -> tuple[str, ...]:
    """Return flags for some settings of the battery."""
    return some(BATTERY, *(name.replace(" ", "_") for name in names))


MESH = ("--config.runtime=mesh", "--config.wait=barrier", "--config.delay=none")
MESH = (*MESH, "--config.communication=0.0")
ON_DEVICES = ("all_reduce/ring", "dpsgd/rounds", "easgd", "local_sgd/chain", "matcha", "powersgd")
ON_DEVICES = (*ON_DEVICES, "sgp/overlap", "swarm/8 bits")
LINKS = ("vanilla/rate=0.4", "matcha/budget=0.1/rate=0.4", "periodic/budget=0.2/rate=0.4")
LOCAL_STEPS = ("dpsgd/ring/serial", "dpsgd/ring/H=2", "sgp/overlap", "ad_psgd", "swarm/H=2/8 bits")
SPARSE = ("s2/sketch", "s2/exact", "sparcml", "omnireduce", "parallax")
ASYNCHRONOUS = ("dc_asgd", "swarm/pairs")
EXPERIMENTS = {
    # Of the battery, in two parts, as there are two processors.
    "methods": Experiment(battery(*list(METHODS)[1::2])),
    "other_methods": Experiment(battery(*list(METHODS)[::2])),
    "rules": Experiment((f"--config={ROOT / 'benchmarks/every_rule.py'}", "--sweep")),
    "demo": Experiment(("--config=configs/demo.py", "--sweep")),
    "nonblocking": Experiment(
        ("--config=configs/nonblocking.py:delay=pause", "--sweep", "--config.seconds=15")
    ),
    "matcha": Experiment((*some("configs/matcha.py", *LINKS), "--config.updates=100")),
    "swarm": Experiment(
        (*some("configs/swarm.py:delay=slow4", *LOCAL_STEPS), "--config.updates=100")
    ),
    "slow_and_stale": Experiment(
        ("--config=configs/slow_and_stale.py", "--sweep", "--together", "--config.updates=300")
    ),
    "adasync": Experiment(
        ("--config=configs/adasync.py", "--sweep", "--together", "--config.seconds=60")
    ),
    "s2_reducer": Experiment(some("configs/s2_reducer.py:task=ncf,updates=5", *SPARSE)),
    "mesh": Experiment((*battery(*ON_DEVICES), *MESH), excluded=REAL_TIME),
    "fsdp": Experiment(
        (
            *battery("all_reduce/adam", "local_sgd"),
            *MESH,
            "--config.workers=4",
            "--config.devices_per_worker=2",
            "--config.sharding=fsdp",
        ),
        excluded=REAL_TIME,
    ),
    "streaming": Experiment(
        (
            *battery("all_reduce", "dpsgd"),
            "--config.task=images(source=digits, model=mlp(hidden=(8,)), reading=stream)",
        )
    ),
    "resume": Experiment(
        (
            f"--config={BATTERY}",
            "--config.algorithm=async_diloco(period=3)",
            "--config.wait=k_async(k=1)",
            "--config.updates=600",
            "--config.evaluate_every=5",
        ),
        run=interrupted,
    ),
    "replay": Experiment(battery(*ASYNCHRONOUS), run=replayed),
}


def address(experiment: Experiment) -> str:
    """Return a digest of all that an experiment's records depend on but the code."""
    determining = [str(flag).replace(str(ROOT), "") for flag in experiment.flags]
    determining += [name + importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")]
    determining.append(platform.python_version())
    for flag in experiment.flags:
        path = pathlib.Path(flag.partition("=")[2])
        if path.is_absolute():
            determining.append(path.read_text())
    return hashlib.sha256("\n".join(determining).encode()).hexdigest()[:12]


def run(side: Side, name: str) -> None:
    """Run an experiment unless it has been run.

    A failure is printed, and the records up to it are compared.
    """
    experiment, place = EXPERIMENTS[name], side.place(name)
    done = place.with_suffix(".done")
    if done.exists():
        return
    if experiment.run is not None:  # else it goes on with the arms that have not finished
        shutil.rmtree(place, ignore_errors=True)
    begun = time.monotonic()
    try:
        (experiment.run or whole)(side, name)
    except RuntimeError as error:
        print(error, flush=True)
        return
    done.touch()
    print(f"{name}: {time.monotonic() - begun:.0f} s in {side.root}", flush=True)


# --- fields ---


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) of a JSON value's leaves; a list without objects is a single leaf."""
    if isinstance(value, list) and value and all(isinstance(child, dict) for child in value):
        value = {str(place): child for place, child in enumerate(value)}
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves(child, f"{name}/{key}")
    else:
        yield name, value


def fields(place: pathlib.Path, excluded: tuple[str, ...], hidden: Mapping[str, str]) -> dict:
    """Return all fields below a directory that have to stay equal, by name.

    excluded: ends of names of fields to leave out. hidden: text, such as a directory -> the text
    that replaces it.
    """

    def text(path: pathlib.Path) -> str:
        return functools.reduce(lambda x, pair: x.replace(*pair), hidden.items(), path.read_text())

    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.suffix == ".npz":
            with np.load(path) as file:
                found |= {f"{name}/{key}": value for key, value in file.items()}
        elif path.name in ("config.json", "summary.json"):
            found |= dict(leaves(json.loads(text(path)), name))
        elif path.name == "metrics.jsonl":
            rows = [dict(leaves(json.loads(line), name)) for line in text(path).splitlines()]
            columns = dict.fromkeys(key for row in rows for key in row)
            found |= {key: [row.get(key, "none") for row in rows] for key in columns}
        elif path.name == "report.json":
            note = json.loads(text(path))
            found |= {f"{name}/{key}": note.get(key) for key in ("claims", "numbers")}
    ends = tuple(f"/{end}" for end in excluded)
    return {name: value for name, value in found.items() if not f"/{name}".endswith(ends)}


# --- the comparison ---


def same(a: Any, b: Any) -> bool:
    """Return whether two fields are equal bit for bit, any NaN being equal to any other."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        a, b = (
            np.where(np.isnan(x), x.dtype.type("nan"), x) if x.dtype.kind == "f" else x
            for x in (a, b)
        )
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return type(a) is type(b) and json.dumps(a) == json.dumps(b)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every field that differs, or that only one side has."""
    sentences = [f"{name} is missing" for name in old if name not in new]
    sentences += [f"{name} differs: {_brief(old[name])} became {_brief(new[name])}"
                  for name in old if name in new and not same(old[name], new[name])]  # fmt: skip
    return sentences + [f"{name} is new" for name in new if name not in old]


def _brief(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the command ---


def cloned(commit: str) -> Side:
    """Return a clone of this repository at a commit, made if it is not there."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        capture_output=True, text=True,
    )  # fmt: skip
    if found.returncode:
        raise app.UsageError(f"--against={commit} is no commit of this repository; name one")
    name = found.stdout.strip()
    root = KEPT / name[:12] / "checkout"
    if not (root / "launch.py").exists():
        shutil.rmtree(root, ignore_errors=True)
        clone = ["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(root)]
        subprocess.run(clone, check=True)
        subprocess.run(["git", "-C", str(root), "checkout", "--quiet", name], check=True)
    return Side(root, KEPT / name[:12] / "records")


def main(_) -> None:
    names = _ONLY.value or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise app.UsageError(f"--only={unknown[0]} is unknown; known: {', '.join(EXPERIMENTS)}")
    there, here = cloned(_AGAINST.value), Side(ROOT, KEPT / "now")
    shutil.rmtree(here.records, ignore_errors=True)
    for side in (there, here):
        side.records.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(functools.partial(run, side), names))
    # Longer ones first: records and clones lie below this checkout.
    hidden = {str(side.records): "RECORDS" for side in (there, here)}
    hidden |= {str(side.root): "ROOT" for side in (there, here)}
    failed = False
    for name in names:
        places = [side.place(name) for side in (there, here)]
        old, new = (fields(place, EXPERIMENTS[name].excluded, hidden) for place in places)
        sentences = compare(old, new)
        verdict = f"{len(sentences)} differ" if sentences else "equal bit for bit"
        print(f"{name}: {len(old)} fields, {verdict}", flush=True)
        arms: dict[str, list[str]] = {}
        for sentence in sentences:
            arms.setdefault(_ARM.split(sentence)[0], []).append(sentence)
        for first, *others in arms.values():
            print(f"  {first}" + (f"; so do {len(others)} others of it" if others else ""))
        failed |= bool(sentences) or not all(p.with_suffix(".done").exists() for p in places)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    app.run(main)
