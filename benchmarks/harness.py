"""Command lines, rows that are measured one after the other, records, and processes.

A row yields its lines as they are measured. If it runs out of memory or raises any other error, the
record has the error in place of further lines, and the next row runs. The record is replaced as a
whole after every line, so that a run which is cut off leaves all that it had found.
"""

import argparse
import contextlib
import datetime
import functools
import gc
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from experiments import files, records, stopwatch

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "results" / "benchmarks"
LIBRARIES = ("jax", "jaxlib", "numpy", "optax")
RAN, SKIPPED, MEMORY, FAILED = "ran", "skipped", "out of memory", "failed"

say = functools.partial(print, flush=True)


def options(page: str, **flags: tuple[Any, str]) -> argparse.Namespace:
    """Return the command line's options; page: the program's docstring; flags: (default, help).

    The default gives the type. False is that of a switch, a list is written with commas, and a
    tuple has the words one of which stands alone.
    """
    parser = argparse.ArgumentParser(description=page.partition("\n")[0])
    for name, (default, text) in flags.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=text)
        elif isinstance(default, tuple):
            parser.add_argument(name, choices=default, help=text)
        elif isinstance(default, list):
            parser.add_argument(
                f"--{name}", default=default, help=f"{text}; with commas",
                type=lambda words, default=default: [type(default[0])(w) for w in words.split(",")],
            )  # fmt: skip
        else:
            kind = str if default is None else type(default)
            parser.add_argument(f"--{name}", default=default, help=text, type=kind)
    return parser.parse_args()


# --- rows ---


class Line(NamedTuple):
    """One number of a row; goal: the most that it should be, None where there is no goal."""

    name: str
    value: float
    unit: str = "x"  # of a ratio of two times
    goal: float | None = None
    seconds: Mapping[str, float] = {}  # by candidate; of a ratio ours comes first, then the floor
    facts: Mapping[str, Any] = {}  # JSON values

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if self.value <= self.goal else f"missed by {self.value / self.goal:.3g}x"


class Row(NamedTuple):
    """Lines that are measured together.

    measure: seconds for its turns -> its lines; it may raise anything.
    """

    section: str
    name: str
    measure: Callable[[float], Iterable[Line]]


class Skip(Exception):
    """An exception of a row that makes no sense here; its text gives the reason."""


def compared(
    section: str, name: str, goal: float | None, candidates: Callable[[], Mapping[str, Callable]],
    facts: Callable[[Mapping[str, float]], Mapping[str, Any]] = lambda seconds: {},
    scale: float = 1.0,
) -> Row:  # fmt: skip
    """Return a row of one line: `scale` times the first candidate's time divided by the second's.

    facts: the candidates' seconds -> further facts of the line.
    """

    def measure(budget: float) -> Iterator[Line]:
        taken = stopwatch.seconds(candidates(), budget=budget)
        ours, floor, *_ = taken.values()
        yield Line(name, scale * ours / floor, "x", goal, taken, facts(taken))

    return Row(section, name, measure)


def run(
    rows: Iterable[Row], record: dict, path: pathlib.Path | None, seconds: float,
    share: float = 0.0, only: str = "", clock: Callable[[], float] = time.monotonic,
) -> bool:  # fmt: skip
    """Measure the rows in order within `seconds`; return whether none failed.

    record: what is known beforehand. A row that has run is added to its `rows`, in place of an
    earlier row of that name; at the end `complete` is true. path: the record's file, or None.
    share: the part of the remaining seconds that the turns of one row may take. A row is not
    interrupted, so that the last one may end later. only: words with commas; a row has one of them
    in its section or name. Raises SystemExit if there are no rows.
    """
    end = clock() + seconds
    done, own = record.setdefault("rows", []), []
    words, section = only.split(","), None

    def save() -> None:
        if path is not None:
            write(path, json.dumps(records.plain(record), indent=1) + "\n")

    for row in rows:
        if not any(word in f"{row.section}, {row.name}" for word in words):
            continue
        if row.section != section:
            section = row.section
            gc.collect()
            jax.clear_caches()  # programs of the last section are of no use to this one
            say(f"-- {section}")
        entry = {"section": row.section, "name": row.name, "state": "under way", "lines": []}
        done.append(entry)
        own.append(entry)
        save()
        began = clock()
        if began >= end:
            entry |= {"state": SKIPPED, "word": "no time is left; raise --minutes"}
        else:
            entry |= _measured(row, entry["lines"], share * (end - began), save)
        entry["seconds"] = clock() - began
        if entry["state"] == RAN:
            done[:] = [one for one in done if one is entry or one["name"] != row.name]
        else:
            say(f"{row.name}: {entry['state']}: {entry['word']}")
        save()
    if not own:
        raise SystemExit("--only names no row; leave it out to see all")
    record["complete"] = True
    save()
    ran = sum(entry["state"] == RAN for entry in own)
    goals = [line for entry in own for line in entry["lines"] if line["goal"] is not None]
    met = sum(line["value"] <= line["goal"] for line in goals)
    say(f"{ran} of {len(own)} rows ran, {met} of {len(goals)} goals are met")
    return all(entry["state"] != FAILED for entry in own)


def _measured(row: Row, lines: list, budget: float, save: Callable) -> dict:
    """Run one row, adding to `lines`; return its state and, unless it ran, the reason."""
    try:
        for line in row.measure(budget):
            lines.append(line._asdict() | {"verdict": line.verdict})
            say(_shown(line))
            save()
    except Skip as reason:
        return {"state": SKIPPED, "word": str(reason)}
    except Exception as error:  # of any kind: the next row runs
        word = f"{type(error).__name__}: {str(error).strip() or 'no more is known'}"[:600]
        full = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
        return {"state": MEMORY if full else FAILED, "word": word}
    return {"state": RAN}


def _shown(line: Line) -> str:
    """Return a line of the table on the terminal."""
    goal = "" if line.goal is None else f"<= {line.goal:g}"
    times = [f"{name} {1e3 * value:.4g} ms" for name, value in line.seconds.items()]
    facts = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
             for name, value in line.facts.items()]  # fmt: skip
    number, rest = f"{line.value:.4g} {line.unit}", ", ".join(times + facts)
    return f"{line.name:44} {number:>18} {goal:>8} {line.verdict:18} {rest}".rstrip()


def devices_of_cpu(count: int) -> None:
    """Divide the CPU into devices unless XLA_FLAGS has done so; call this before JAX starts."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)


# --- records ---


def typed(module: str) -> str:
    """Return the command that was typed, without the place of its record."""
    words = [word for word in sys.argv[1:] if not word.startswith(("--output", "--folder"))]
    return " ".join([f"python -m benchmarks.{module}", *words])


def head(command: str) -> dict:
    """Return the beginning of a record."""
    versions = {library: importlib.metadata.version(library) for library in LIBRARIES}
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | versions,
        "claims": [],
        "cores": os.cpu_count(),
    }


class Record(NamedTuple):
    """A file of points, which pages quote, see `experiments.publish`."""

    path: pathlib.Path
    command: str
    key: Sequence[str]  # names of the fields that say what was measured

    def points(self) -> list[dict]:
        """Return all points; [] if there is no record yet."""
        return records.read_json(self.path)["summary"]["points"] if self.path.exists() else []

    def put(self, points: Sequence[dict]) -> None:
        """Print points, and write them in place of earlier points with the same key.

        Numbers keep five digits. Points of an earlier day keep its date, and a remark stays if the
        command is the same.
        """
        for point in points:
            say(" ".join(f"{name}={value}" for name, value in point.items()))
        before = records.read_json(self.path) if self.path.exists() else {}
        now, day = head(self.command), before.get("date", "")[:10]
        kept = self.points()
        if not now["date"].startswith(day):
            kept = [{"date": day} | point for point in kept]
        if "remark" in before and before["command"] == self.command:
            now["remark"] = before["remark"]
        merged = {tuple(point[name] for name in self.key): point for point in (*kept, *points)}
        lines = ",\n".join(
            "  " + json.dumps({
                name: float(f"{value:.5g}") if isinstance(value, float) else value
                for name, value in merged[one].items()
            })
            for one in sorted(merged)
        )  # fmt: skip
        begin = json.dumps(now, indent=1)[:-2]
        write(self.path, f'{begin},\n "summary": {{"points": [\n{lines}\n ]}}\n}}\n')


def write(path: pathlib.Path, text: str) -> None:
    """Replace a file as a whole."""
    files.make(path.parent)
    files.write(path, text, durable=False)


# --- processes of this machine ---


def begun(
    command: Sequence[str], log: pathlib.Path, environment: Mapping[str, str],
    root: pathlib.Path = ROOT,
) -> subprocess.Popen:  # fmt: skip
    """Start a process in a checkout; what it prints is added to a file."""
    with log.open("a") as said:
        return subprocess.Popen(
            command, cwd=root, stdout=said, stderr=said, env=os.environ | environment
        )


def codes(running: Sequence[subprocess.Popen], seconds: float) -> list[int | None]:
    """Return the exit codes of processes, None of those that are killed after these seconds."""
    until, found = time.monotonic() + seconds, []
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        found.append(process.poll())
        process.kill()
        process.wait()
    return found


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, of their children, and so on."""
    found = []
    with contextlib.suppress(OSError):  # it has ended
        found = [*map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [*found, *(one for child in found for one in descendants(child))]


def commands(flags: Sequence[str], processes: int, address: str = "127.0.0.1") -> list[list[str]]:
    """Return the command of each process of a run of launch.py; address: of the first one."""
    command = [sys.executable, "launch.py", *flags]
    if processes == 1:
        return [command]
    joined = f"--coordinator_address={address}:{free_port()}", f"--num_processes={processes}"
    return [[*command, *joined, f"--process_id={rank}"] for rank in range(processes)]


def cpu(devices: int) -> dict[str, str]:
    """Return the environment of a process with this number of CPU devices."""
    flag = f"--xla_force_host_platform_device_count={devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag}


def free_port() -> int:
    """Return a port where nobody listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
