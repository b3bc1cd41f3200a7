"""Methods on hosts whose links have a rate: measured, beside what the model of costs expects.

    python -m benchmarks.hosts --hosts=2,4 --rate=1gbit,100mbit                # as root
    python -m benchmarks.hosts --hosts=4 --rate=100mbit -- --config=configs/links.py --sweep

The first command times the exchange of every arm of `configs/s2_reducer.py` with real gradients,
see `benchmarks.hosts_exchange`, and puts it into docs/results/benchmarks/hosts.json, in which other
measurements stay; the second one runs `launch.py` with the flags after `--`, a process per host.
`--quota=0.25` lets the last host use a quarter of a core.
"""

import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence

from absl import app, flags

from benchmarks import namespaces
from benchmarks.hosts_exchange import COLUMNS
from benchmarks.processes import free_port

_HOSTS = flags.DEFINE_list("hosts", ["2", "4"], "How many, with a process and a link each.")
_RATES = flags.DEFINE_list("rate", ["1gbit", "100mbit"], "Of all links, one after the other.")
_TASKS = flags.DEFINE_list(
    "tasks", ["lstm", "transformer", "skip_gram", "ncf", "hashed_logistic"], "Of s2_reducer.py."
)
_METHODS = flags.DEFINE_list("methods", [], "Only these arms.")
_TURNS = flags.DEFINE_integer("turns", 9, "Runs of everything timed.", lower_bound=3)
_QUOTA = flags.DEFINE_float("quota", None, "Cores that the last host may use.", lower_bound=0.01)
_OUTPUT = flags.DEFINE_string("output", None, "The record, if it is to be another one.")

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "results" / "benchmarks" / "hosts.json"
KEY = ("task", "method", "hosts", "rate")  # of a point
LIBRARIES = ("jax", "jaxlib", "numpy", "optax")


@contextlib.contextmanager
def started(
    hosts: Sequence[namespaces.Host], commands: list[list[str]], **first: int
) -> Iterator[list[subprocess.Popen]]:
    """A process on every host, none of which outlives the block; first: the pipes of the first."""
    running = []
    try:
        for host, command in zip(hosts, commands, strict=True):
            quiet = {"stdout": subprocess.DEVNULL} if running else first
            words = [*host.prefix, *command]
            running.append(subprocess.Popen(words, cwd=ROOT, text=True, **quiet))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def exchanges(hosts: Sequence[namespaces.Host], orders: dict) -> Iterator[dict]:
    """Have every host exchange gradients; the points that the first one has measured."""
    orders = orders | {"coordinator": f"{hosts[0].address}:{free_port()}", "hosts": len(hosts)}
    commands = [
        [sys.executable, "-m", "benchmarks.hosts_exchange", json.dumps(orders | {"rank": rank})]
        for rank in range(len(hosts))
    ]
    with started(hosts, commands, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        first = running[0]
        for text in first.stdout:
            if not text.startswith("{"):
                continue  # gloo says that it is connected
            message = json.loads(text)
            if "rate" in message:
                for host in hosts:
                    host.set_rate(message["rate"])
            else:
                yield message["point"]
            print(file=first.stdin, flush=True)
        if first.wait():
            raise RuntimeError("the first host has failed, see above")


def launched(hosts: Sequence[namespaces.Host], arguments: Sequence[str]) -> int:
    """Run launch.py with these flags on all hosts; the exit code of the first."""
    where = [f"--coordinator_address={hosts[0].address}:{free_port()}"]
    where.append(f"--num_processes={len(hosts)}")
    commands = [
        [sys.executable, "launch.py", *arguments, *where, f"--process_id={rank}"]
        for rank in range(len(hosts))
    ]
    with started(hosts, commands) as running:
        return running[0].wait()


def written(path: pathlib.Path, points: Sequence[dict]) -> None:
    """Put points into the record at a path; those of other measurements stay in it."""
    known = json.loads(path.read_text())["summary"]["points"] if path.exists() else []
    merged = {tuple(point[name] for name in KEY): point for point in [*known, *points]}
    lines = ",\n".join(f"  {json.dumps(merged[key])}" for key in sorted(merged))
    versions = {library: importlib.metadata.version(library) for library in LIBRARIES}
    head = {
        "command": "python -m benchmarks.hosts",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | versions,
        "claims": [],
        "cores": os.cpu_count(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(
        f'{json.dumps(head, indent=1)[:-2]},\n "summary": {{"points": [\n{lines}\n ]}}\n}}\n'
    )
    os.replace(beside, path)


def shown(point: dict) -> str:
    """A point on a line: measured ms, and how far off what was expected is, for every column."""
    columns = (f"{1e3 * point[column]:8.2f} {point[f'{column}_error']:+5.0%}" for column in COLUMNS)
    name = f"{point['task']:16} {point['method']:18} {point['hosts']} {point['rate']:8}"
    return f"{name} {'   '.join(columns)}"


def main(arguments: Sequence[str]) -> int | None:
    reason = namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}")
        return None
    path = RECORD if _OUTPUT.value is None else pathlib.Path(_OUTPUT.value)
    orders = {
        "tasks": _TASKS.value,
        "methods": _METHODS.value,
        "rates": _RATES.value,
        "turns": _TURNS.value,
    }
    if arguments[1:]:
        (count,), (rate,) = _HOSTS.value, _RATES.value
        with namespaces.switch(int(count), rate, _QUOTA.value) as hosts:
            return launched(hosts, arguments[1:])
    print(f"ms: {', '.join(COLUMNS)}, each with the error of what was expected")
    for count in map(int, _HOSTS.value):
        with namespaces.switch(count, _RATES.value[0], _QUOTA.value) as hosts:
            for point in exchanges(hosts, orders):
                print(shown(point), flush=True)
                written(path, [point])
    return None


if __name__ == "__main__":
    app.run(main)
