"""Methods on hosts whose links have a rate: measured, beside what the model of costs expects.

    python -m benchmarks.hosts --hosts=2,4 --rate=1gbit,100mbit                # as root
    python -m benchmarks.hosts --hosts=4 --rate=100mbit --launch='--config=configs/links.py'

The first command times the exchange of every arm of `configs/s2_reducer.py` with real gradients,
see `benchmarks.hosts_exchange`, and puts it into docs/results/benchmarks/hosts.json, in which other
measurements stay; the second one runs `launch.py` with these flags, a process per host.
`--quota=0.25` lets the last host use a quarter of a core.
"""

import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from absl import app, flags

from benchmarks import host_runs, namespaces, points
from benchmarks.hosts_exchange import COLUMNS
from benchmarks.processes import free_port

_TASKS = flags.DEFINE_list(
    "tasks", ["lstm", "transformer", "skip_gram", "ncf", "hashed_logistic"], "Of s2_reducer.py."
)
_METHODS = flags.DEFINE_list("methods", [], "Only these arms.")
_RUNS = flags.DEFINE_integer("runs", 9, "Runs of everything timed.", lower_bound=3)
_QUOTA = flags.DEFINE_float("quota", None, "Cores that the last host may use.", lower_bound=0.01)
_LAUNCH = flags.DEFINE_string("launch", None, "Only run launch.py with these flags.")

RECORD = points.FOLDER / "hosts.json"
KEY = ("task", "method", "hosts", "rate")  # of a point


@contextlib.contextmanager
def compilation_cache() -> Iterator[dict[str, str]]:
    """Variables of a cache of compiled programs that all hosts share, gone afterwards.

    One that the environment names already is used, and stays.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        yield {name: os.environ.get(name, value) for name, value in variables.items()}


def exchanges(hosts: Sequence[namespaces.Host], orders: dict) -> Iterator[dict]:
    """Have every host exchange gradients; the points that the first one has measured."""
    orders = orders | {"coordinator": f"{hosts[0].address}:{free_port()}", "hosts": len(hosts)}
    commands = [
        [sys.executable, "-m", "benchmarks.hosts_exchange", json.dumps(orders | {"rank": rank})]
        for rank in range(len(hosts))
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        compilation_cache() as cache,
        namespaces.started(hosts, commands, cache, **pipes) as running,
    ):
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


def shown(point: dict) -> str:
    """A point on a line: measured ms, and how far off what was expected is, for every column."""
    columns = (f"{1e3 * point[column]:8.2f} {point[f'{column}_error']:+5.0%}" for column in COLUMNS)
    name = f"{point['task']:16} {point['method']:18} {point['hosts']} {point['rate']:8}"
    return f"{name} {'   '.join(columns)}"


def main(_) -> int | None:
    reason = namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}")
        return None
    path = RECORD if host_runs.OUTPUT.value is None else pathlib.Path(host_runs.OUTPUT.value)
    orders = {
        "tasks": _TASKS.value,
        "methods": _METHODS.value,
        "rates": host_runs.RATES.value,
        "turns": _RUNS.value,
    }
    if _LAUNCH.value is not None:
        if len(host_runs.HOSTS.value) > 1 or len(host_runs.RATES.value) > 1:
            raise app.UsageError("--launch runs once; give one number of --hosts and one --rate")
        with namespaces.switch(
            int(host_runs.HOSTS.value[0]), host_runs.RATES.value[0], _QUOTA.value
        ) as hosts:
            return host_runs.launched(hosts, shlex.split(_LAUNCH.value))
    print(f"ms: {', '.join(COLUMNS)}, each with the error of what was expected")
    for count in map(int, host_runs.HOSTS.value):
        with namespaces.switch(count, host_runs.RATES.value[0], _QUOTA.value) as hosts:
            for point in exchanges(hosts, orders):
                print(shown(point), flush=True)
                points.put(path, "python -m benchmarks.hosts", KEY, [point])
    return None


if __name__ == "__main__":
    app.run(main)
