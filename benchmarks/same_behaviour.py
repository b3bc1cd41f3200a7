"""A comparison of all that experiments compute, before a change of the code and after it.

    python -m benchmarks.same_behaviour --against=main
    python -m benchmarks.same_behaviour --against=main --only=methods,slurm

Either side, the commit and this checkout, runs the same command lines with its own code and its own
configs. Parameters, schedules, metrics, summaries, configs, the numbers of reports and the scripts
of jobs have to be equal bit for bit. Records of the commit are kept below `runs/same_behaviour`,
under everything that they follow from, so that a second comparison runs this checkout alone.

What a change renames, drops or adds on purpose stands in RENAMED and ADDED; any other difference
fails with a sentence. What follows the clock on the wall is in WALL and REAL_TIME.
"""

import concurrent.futures
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
_JOBS = flags.DEFINE_integer("at_once", 2, "How many experiments run.", lower_bound=1)

ROOT = pathlib.Path(__file__).parents[1]
KEPT = ROOT / "runs" / "same_behaviour"

# Fields that are meant to differ. "old": "new", where part of a name stands for all that is
# below it, and None for a field that is gone; ADDED has those that only this checkout has. As in
# {"summary.json/idle_fraction": "summary.json/idle"}.
RENAMED: Mapping[str, str | None] = {}
ADDED: tuple[str, ...] = ()
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
_ARM = re.compile(r"(?:^|/)[^/]+\.(?:jsonl?|npz|html|sh|txt)\b")


class Experiment(NamedTuple):
    """Flags of `launch.py`; {known} stands for the commit's records of the experiment `after`."""

    flags: tuple[str, ...]
    run: Callable[["Side", str, list[str]], None] | None = None  # None: launch it
    excluded: tuple[str, ...] = WALL
    after: str | None = None  # the experiment whose records of the commit it reads


class Side(NamedTuple):
    """A checkout and what its experiments have left."""

    root: pathlib.Path
    records: pathlib.Path

    def place(self, name: str) -> pathlib.Path:
        return self.records / f"{name}-{address(EXPERIMENTS[name])}"


# --- experiments ---


def launch(side: Side, name: str, arguments: list[str], **options) -> subprocess.Popen:
    """Start `launch.py` of a side; what it prints goes beside its records."""
    place = side.place(name)
    with place.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "launch.py", *arguments], cwd=side.root,
            stdout=options.pop("stdout", log), stderr=subprocess.STDOUT,
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | options,
        )  # fmt: skip


def finish(process: subprocess.Popen, side: Side, name: str, code: int = 0) -> None:
    """Wait for a launch; RuntimeError unless it ends as it should."""
    if process.wait() != code:
        log = side.place(name).with_suffix(".log")
        raise RuntimeError(f"{name}: launch.py ended with {process.returncode}, see {log}")


def whole(side: Side, name: str, arguments: list[str]) -> None:
    """Run an experiment from its beginning to its end."""
    finish(launch(side, name, [*arguments, f"--workdir={side.place(name)}"]), side, name)


def interrupted(side: Side, name: str, arguments: list[str]) -> None:
    """Run an experiment, ask it to end when it has two records, and let it go on."""
    place = side.place(name)
    arguments = [*arguments, f"--workdir={place}", "--checkpoint_seconds=0"]
    process = launch(side, name, arguments)
    while process.poll() is None and len(lines(place / "metrics.jsonl")) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    finish(process, side, name, 128 + signal.SIGTERM)
    finish(launch(side, name, arguments), side, name)


SBATCH = """#!/bin/sh
for script; do :; done
sed -n p "$script" > "$SUBMITTED"
echo "this is no cluster" >&2
exit 1
"""


def submitted(side: Side, name: str, arguments: list[str]) -> None:
    """Keep the script of an array of jobs, which a cluster that takes none has seen, and commands.

    The second launch only prints the commands, for other schedulers.
    """
    place = side.place(name)
    programs = place / "bin"
    programs.mkdir(parents=True)
    for program in ("sbatch", "srun"):  # the second one only has to be there
        (programs / program).write_text(SBATCH)
        (programs / program).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    arguments = [*arguments, f"--workdir={place / 'runs'}"]
    slurm = ["--executor=slurm", "--slurm=partition=gpu,timeout_min=60,gpus_per_node=1"]
    process = launch(
        side, name, [*arguments, *slurm, "--jobs=2"], PATH=path, SUBMITTED=str(place / "job.sh")
    )
    finish(process, side, name, 2)
    with (place / "commands.txt").open("w") as output:
        finish(launch(side, name, [*arguments, "--print_commands"], stdout=output), side, name)


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
REPLAY = "--config.wait=replay(path='{known}/%s/schedule.npz')"
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
    "asynchronous": Experiment(battery("dc_asgd", "swarm/pairs")),
    "replay_server": Experiment((*battery("dc_asgd"), REPLAY % "dc_asgd"), after="asynchronous"),
    "replay_pairs": Experiment(
        (*battery("swarm/pairs"), REPLAY % "swarm/pairs"), after="asynchronous"
    ),
    "slurm": Experiment(("--config=configs/demo.py", "--sweep"), run=submitted),
}


def address(experiment: Experiment) -> str:
    """Return a digest of everything but the code that the records of an experiment follow from."""
    determining = [str(flag).replace(str(ROOT), "") for flag in experiment.flags]
    determining += [name + importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")]
    determining += [platform.python_version(), str(experiment.after)]
    for flag in experiment.flags:
        path = pathlib.Path(flag.partition("=")[2])
        if path.is_absolute():
            determining.append(path.read_text())
    return hashlib.sha256("\n".join(determining).encode()).hexdigest()[:12]


def run(side: Side, name: str, known: Side) -> None:
    """Run an experiment unless it has been run; known: the commit's side.

    One that fails says so, and leaves what it has to the comparison.
    """
    experiment, place = EXPERIMENTS[name], side.place(name)
    done = place.with_suffix(".done")
    if done.exists():
        return
    if experiment.run is not None:  # else it goes on with the arms that have not finished
        shutil.rmtree(place, ignore_errors=True)
    read = "" if experiment.after is None else str(known.place(experiment.after))
    begun = time.monotonic()
    arguments = [flag.replace("{known}", read) for flag in experiment.flags]
    try:
        (experiment.run or whole)(side, name, arguments)
    except RuntimeError as error:
        print(error, flush=True)
        return
    done.touch()
    print(f"{name}: {time.monotonic() - begun:.0f} s in {side.root}", flush=True)


# --- fields ---


def lines(path: pathlib.Path) -> list[str]:
    """Return the lines of a file, none where there is none."""
    return path.read_text().splitlines() if path.exists() else []


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values within a JSON value that hold no others; a list of values is one."""
    if isinstance(value, list) and value and all(isinstance(child, dict) for child in value):
        value = {str(place): child for place, child in enumerate(value)}
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves(child, f"{name}/{key}")
    else:
        yield name, value


def fields(place: pathlib.Path, excluded: tuple[str, ...], hidden: Mapping[str, str]) -> dict:
    """Everything below a directory that has to stay as it is, by name.

    excluded: ends of names of fields to leave out. hidden: texts, such as directories,
    and what stands for them.
    """
    found: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.suffix == ".npz":
            with np.load(path) as file:
                found |= {f"{name}/{key}": value for key, value in file.items()}
        elif path.name in ("config.json", "summary.json"):
            found |= dict(leaves(json.loads(path.read_text()), name))
        elif path.name == "metrics.jsonl":
            rows = [dict(leaves(json.loads(line), name)) for line in lines(path)]
            columns = dict.fromkeys(key for row in rows for key in row)
            found |= {key: [row.get(key, "none") for row in rows] for key in columns}
        elif path.name == "report.json":
            note = json.loads(path.read_text())
            found |= {f"{name}/{key}": note.get(key) for key in ("claims", "numbers")}
        elif path.name in ("job.sh", "commands.txt"):
            found[name] = lines(path)
    ends = tuple(f"/{end}" for end in excluded)
    kept = (item for item in found.items() if not f"/{item[0]}".endswith(ends))
    return {name: _without(value, hidden) for name, value in kept}


def _without(value: Any, hidden: Mapping[str, str]) -> Any:
    """Return a value in whose texts others stand for what is hidden."""
    if isinstance(value, list):
        return [_without(child, hidden) for child in value]
    if isinstance(value, str):
        for text, instead in hidden.items():
            value = value.replace(text, instead)
    return value


# --- the comparison ---


def same(a: Any, b: Any) -> bool:
    """Return whether two fields are equal bit for bit, any NaN being equal to any other."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a.dtype.kind != "f":
            return a.tobytes() == b.tobytes()
        unknown = np.isnan(a)
        return bool((unknown == np.isnan(b)).all()) and (
            np.where(unknown, 0, a).tobytes() == np.where(unknown, 0, b).tobytes()
        )
    return type(a) is type(b) and json.dumps(a) == json.dumps(b)


def renamed(name: str, table: Mapping[str, str | None]) -> str | None:
    """Return the new name of a field, by the table's longest entry that fits; None: it is gone.

    An entry stands for the end of a name, from a whole part on, and for all that is below it.
    """
    parts = name.split("/")
    spans = [(i, j) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]
    for i, j in sorted(spans, key=lambda span: span[0] - span[1]):
        old = "/".join(parts[i:j])
        if old in table:
            new = table[old]
            return None if new is None else "/".join([*parts[:i], new, *parts[j:]])
    return name


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], table: Mapping[str, str | None] = RENAMED,
    added: tuple[str, ...] = ADDED,
) -> list[str]:  # fmt: skip
    """Return a sentence for every field that differs, or that one side alone has."""
    sentences, left = [], dict(new)
    for name, value in old.items():
        now = renamed(name, table)
        if now is None:
            continue
        if now not in left:
            called = "" if now == name else f", now {now},"
            sentences.append(f"{name}{called} is missing; name it in RENAMED if that is meant")
        elif not same(value, left.pop(now)):
            sentences.append(f"{name} differs: {_brief(value)} became {_brief(new[now])}")
    for name in left:
        if renamed(name, dict.fromkeys(added)) is not None:
            sentences.append(f"{name} is new; name it in ADDED if that is meant")
    return sentences


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


def everything(side: Side, names: list[str], known: Side) -> None:
    """Run experiments, some at once; those that read records of others after all others."""
    side.records.mkdir(parents=True, exist_ok=True)
    for after in (False, True):
        stage = [name for name in names if (EXPERIMENTS[name].after is not None) == after]
        with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
            list(pool.map(lambda name: run(side, name, known), stage))


def main(_) -> None:
    names = _ONLY.value or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise app.UsageError(f"--only={unknown[0]} is unknown; known: {', '.join(EXPERIMENTS)}")
    there, here = cloned(_AGAINST.value), Side(ROOT, KEPT / "now")
    shutil.rmtree(here.records, ignore_errors=True)
    needed = {EXPERIMENTS[name].after for name in names} - {None}
    everything(there, list(dict.fromkeys([*needed, *names])), there)
    everything(here, names, there)
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
