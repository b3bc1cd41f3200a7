"""Schedules of very many workers without training: events per second, and memory per worker.

    python -m benchmarks.many_workers [--output=FILE]

An event is a push to the server, or a meeting of two nodes. Every row is measured in a process of
its own, which has compiled the loop before on few workers; it begins with nothing drawn. Memory is
the most that the process took at any time beyond what it had before, the schedule included.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable

import networkx as nx
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from benchmarks import output
from stragglers import delays, processes
from stragglers.rule import Rule, Setting
from stragglers.rules import RULES

_WORKERS = flags.DEFINE_list("workers", ["1000", "100000", "1000000"], "How many, 16 or more.")
_EVENTS = flags.DEFINE_integer("events", 4_000_000, "Events of a schedule, at least.", 1)

LAW = delays.shifted_exponential(1.0, 1.0)
SLOW_SPELLS = processes.markov(LAW, factor=4.0, mean_normal=90.0, mean_slow=10.0)
K = 64  # pushes of an update
GOALS = {"independent": 1e6, "markov": 2e6}  # events per second


def pushes(delay: delays.Law | processes.Process, workers: int) -> Rule:
    """A server that updates on every K-th push, while nobody waits."""
    return RULES["k_batch_async"](Setting(delay, workers, 1, 0), k=min(K, workers // 8))


def meetings(delay: delays.Law | processes.Process, workers: int) -> Rule:
    """Nodes on a ring that meet a neighbour after every mini-batch."""
    graph = nx.cycle_graph(workers)
    return RULES["random_pairs"](Setting(delay, workers, 1, 0, graph), width=min(K, workers // 8))


ROWS: dict[tuple[str, str], tuple[Callable, delays.Law | processes.Process, int]] = {
    ("k_batch_async", "independent"): (pushes, LAW, 1),
    ("random_pairs", "independent"): (meetings, LAW, 2),
    ("k_batch_async", "markov"): (pushes, SLOW_SPELLS, 1),
    ("random_pairs", "markov"): (meetings, SLOW_SPELLS, 2),
}  # the last number: places in a row of the schedule that an event takes


def measured(key: tuple[str, str], workers: int, events: int) -> dict[str, float]:
    """Million events per second, and bytes per worker, of a schedule from nothing."""
    make, delay, places = ROWS[key]
    compiling = make(delay, 16)
    compiling.extend(compiling.init(), 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    built = time.perf_counter()
    rule = make(delay, workers)
    began = time.perf_counter()
    updates = -(-events // K)
    _, schedule = rule.extend(rule.init(), updates)
    seconds = time.perf_counter() - began
    count = schedule.workers.shape[1] // places * updates
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "events": count,
        "setup_seconds": began - built,
        "million_events_per_second": count / seconds / 1e6,
        "bytes_per_worker": 1024.0 * peak / workers,
    }


def _apart(*arguments) -> dict[str, float]:
    """The same in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, arguments)


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    columns = ("schedule", "delays", "workers", "M events", "set up [s]", "M events/s", "B/worker")
    table, found = Table(title=f"schedules of many workers, {LAW}"), []
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right")
    for key in ROWS:
        for workers in map(int, _WORKERS.value):
            point = _apart(key, workers, max(_EVENTS.value, 4 * workers))
            found.append({"schedule": key[0], "delays": key[1], "workers": workers, **point})
            table.add_row(
                *key,
                f"{workers:,}",
                f"{point['events'] / 1e6:.1f}",
                f"{point['setup_seconds']:.1f}",
                f"{point['million_events_per_second']:.2f}",
                f"{point['bytes_per_worker']:,.0f}",
            )
    Console(width=100).print(table)
    for delay, goal in GOALS.items():
        rates = [p["million_events_per_second"] * 1e6 for p in found if p["delays"] == delay]
        if rates:
            met = "met" if min(rates) >= goal else "missed"
            print(f"{delay}: at least {min(rates):.2e} events per second (goal {goal:.0e}: {met})")
    output.put("many_workers", ("schedule", "delays", "workers"), found)


if __name__ == "__main__":
    app.run(main)
