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

from benchmarks import harness
from benchmarks.every_method import METHODS
from benchmarks.harness import ROOT

AT_ONCE = 2  # experiments that run
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


class Run(NamedTuple):
    """An experiment in a checkout."""

    root: pathlib.Path
    place: pathlib.Path  # of its records
    flags: tuple[str, ...]

    def begin(self, *more: str) -> subprocess.Popen:
        """Start `launch.py`; what it prints goes beside the records."""
        command = [sys.executable, "launch.py", *self.flags, *more]
        log = self.place.with_suffix(".log")
        return harness.begun(command, log, {"JAX_PLATFORMS": "cpu"}, self.root)

    def finish(self, process: subprocess.Popen, code: int = 0) -> None:
        """Wait for a launch; RuntimeError unless it ends as it should."""
        if process.wait() != code:
            log = self.place.with_suffix(".log")
            raise RuntimeError(f"launch.py ended with {process.returncode}, see {log}")

    def launch(self, *more: str) -> None:
        """Run `launch.py` from its beginning to its end."""
        self.finish(self.begin(*more))


def whole(run: Run) -> None:
    """Run an experiment from its beginning to its end."""
    run.launch(f"--workdir={run.place}")


def interrupted(run: Run) -> None:
    """Run an experiment, end it by SIGTERM after three lines of metrics, and resume it."""
    more = f"--workdir={run.place}", "--checkpoint_seconds=0"
    process, metrics = run.begin(*more), run.place / "metrics.jsonl"
    while process.poll() is None and not (
        metrics.exists() and metrics.read_text().count("\n") >= 3
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    run.finish(process, 128 + signal.SIGTERM)
    run.launch(*more)


def replayed(run: Run) -> None:
    """Run some arms, and each of them again on its recorded schedule."""
    run.launch(f"--workdir={run.place / 'first'}")
    for arm in ASYNCHRONOUS:
        wait = f"--config.wait=replay(path='{run.place / 'first' / arm}/schedule.npz')"
        run._replace(flags=battery(arm)).launch(wait, f"--workdir={run.place / 'again' / arm}")


class Experiment(NamedTuple):
    """Flags of `launch.py`, and how it is run."""

    flags: tuple[str, ...]
    run: Callable[[Run], None] = whole
    excluded: tuple[str, ...] = WALL


class Side(NamedTuple):
    """A checkout and the records of its experiments."""

    root: pathlib.Path
    records: pathlib.Path

    def place(self, name: str) -> pathlib.Path:
        return self.records / f"{name}-{address(EXPERIMENTS[name])}"


# --- experiments ---

BATTERY = str(ROOT / "benchmarks/every_method.py")


def some(config: str, *names: str) -> tuple[str, ...]:
    """Return flags for some arms of a config's sweep, all if none is named."""
    return (f"--config={config}", "--sweep", *(f"--arm={name}" for name in names))


def battery(*names: str) -> tuple[str, ...]:
    """Return flags for some settings of the battery."""
    return some(BATTERY, *(name.replace(" ", "_") for name in names))


MESH = ("--config.runtime=mesh", "--config.wait=barrier", "--config.delay=none",
        "--config.communication=0.0")  # fmt: skip
ON_DEVICES = ("all_reduce/ring", "dpsgd/rounds", "easgd", "local_sgd/chain", "matcha", "powersgd",
              "sgp/overlap", "swarm/8 bits")  # fmt: skip
LINKS = ("vanilla/rate=0.4", "matcha/budget=0.1/rate=0.4", "periodic/budget=0.2/rate=0.4")
LOCAL_STEPS = ("dpsgd/ring/serial", "dpsgd/ring/H=2", "sgp/overlap", "ad_psgd", "swarm/H=2/8 bits")
SPARSE = ("s2/sketch", "s2/exact", "sparcml", "omnireduce", "parallax")
ASYNCHRONOUS = ("dc_asgd", "swarm/pairs")
FSDP = ("--config.workers=4", "--config.devices_per_worker=2", "--config.sharding=fsdp")
STREAMED = "--config.task=images(source=digits, model=mlp(hidden=(8,)), reading=stream)"
EXPERIMENTS = {
    # Of the battery, in two parts, as there are two processors.
    "methods": Experiment(battery(*list(METHODS)[1::2])),
    "other_methods": Experiment(battery(*list(METHODS)[::2])),
    "rules": Experiment(some(str(ROOT / "benchmarks/every_rule.py"))),
    "demo": Experiment(some("configs/demo.py")),
    "nonblocking": Experiment(
        (*some("configs/nonblocking.py:delay=pause"), "--config.seconds=15")
    ),
    "matcha": Experiment((*some("configs/matcha.py", *LINKS), "--config.updates=100")),
    "swarm": Experiment(
        (*some("configs/swarm.py:delay=slow4", *LOCAL_STEPS), "--config.updates=100")
    ),
    "slow_and_stale": Experiment(
        (*some("configs/slow_and_stale.py"), "--together", "--config.updates=300")
    ),
    "adasync": Experiment((*some("configs/adasync.py"), "--together", "--config.seconds=60")),
    "s2_reducer": Experiment(some("configs/s2_reducer.py:task=ncf,updates=5", *SPARSE)),
    "mesh": Experiment((*battery(*ON_DEVICES), *MESH), excluded=REAL_TIME),
    "fsdp": Experiment(
        (*battery("all_reduce/adam", "local_sgd"), *MESH, *FSDP), excluded=REAL_TIME
    ),
    "streaming": Experiment((*battery("all_reduce", "dpsgd"), STREAMED)),
    "resume": Experiment(
        (
            f"--config={BATTERY}", "--config.algorithm=async_diloco(period=3)",
            "--config.wait=k_async(k=1)", "--config.updates=600", "--config.evaluate_every=5",
        ),
        interrupted,
    ),
    "replay": Experiment(battery(*ASYNCHRONOUS), replayed),
}  # fmt: skip


def address(experiment: Experiment) -> str:
    """Return a digest of all that an experiment's records depend on but the code."""
    files = [pathlib.Path(flag.partition("=")[2]) for flag in experiment.flags]
    determining = [
        *(flag.replace(str(ROOT), "") for flag in experiment.flags),
        *(name + importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")),
        platform.python_version(), str(len(os.sched_getaffinity(0))),  # cores divide sums
        *(path.read_text() for path in files if path.is_absolute()),
    ]  # fmt: skip
    return hashlib.sha256("\n".join(determining).encode()).hexdigest()[:12]


def perform(side: Side, name: str) -> None:
    """Run an experiment unless it has been run.

    A failure is printed, and the records up to it are compared.
    """
    experiment, place = EXPERIMENTS[name], side.place(name)
    done = place.with_suffix(".done")
    if done.exists():
        return
    if experiment.run is not whole:  # which goes on with the arms that have not finished
        shutil.rmtree(place, ignore_errors=True)
    begun = time.monotonic()
    try:
        experiment.run(Run(side.root, place, experiment.flags))
    except RuntimeError as error:
        harness.say(f"{name}: {error}")
        return
    done.touch()
    harness.say(f"{name}: {time.monotonic() - begun:.0f} s in {side.root}")


# --- fields ---


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) of a JSON value's leaves; a list without objects is a single leaf."""
    if isinstance(value, list) and value and all(isinstance(child, dict) for child in value):
        value = dict(enumerate(value))
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
        a, b = (np.where(np.isnan(x), x.dtype.type("nan"), x) if x.dtype.kind == "f" else x
                for x in (a, b))  # fmt: skip
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
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True)
    found = git(["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"])
    if found.returncode:
        raise SystemExit(f"--against={commit} is no commit of this repository; name one")
    name = found.stdout.strip()
    root = KEPT / name[:12] / "checkout"
    if not (root / "launch.py").exists():
        shutil.rmtree(root, ignore_errors=True)
        git(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(root)], check=True)
        git(["git", "-C", str(root), "checkout", "--quiet", name], check=True)
    return Side(root, KEPT / name[:12] / "records")


def main() -> None:
    options = harness.options(
        __doc__, against=("HEAD", "the commit whose code runs on the other side"),
        only=([*EXPERIMENTS], "experiments"),
    )  # fmt: skip
    if unknown := [name for name in options.only if name not in EXPERIMENTS]:
        raise SystemExit(f"--only={unknown[0]} is unknown; known: {', '.join(EXPERIMENTS)}")
    sides = there, here = cloned(options.against), Side(ROOT, KEPT / "now")
    shutil.rmtree(here.records, ignore_errors=True)
    for side in sides:
        side.records.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(functools.partial(perform, side), options.only))
    # Longer ones first: records and clones lie below this checkout.
    hidden = {str(side.records): "RECORDS" for side in sides}
    hidden |= {str(there.root): "ROOT", str(here.root): "ROOT"}
    failed = False
    for name in options.only:
        places = [side.place(name) for side in sides]
        old, new = (fields(place, EXPERIMENTS[name].excluded, hidden) for place in places)
        sentences = compare(old, new)
        verdict = f"{len(sentences)} differ" if sentences else "equal bit for bit"
        harness.say(f"{name}: {len(old)} fields, {verdict}")
        arms: dict[str, list[str]] = {}
        for sentence in sentences:
            arms.setdefault(_ARM.split(sentence)[0], []).append(sentence)
        for first, *others in arms.values():
            print(f"  {first}" + (f"; so do {len(others)} others of it" if others else ""))
        failed |= bool(sentences) or not all(p.with_suffix(".done").exists() for p in places)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
