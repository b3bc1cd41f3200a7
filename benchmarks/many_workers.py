"""Schedules of very many workers without training: events per second, and memory per worker.

    python -m benchmarks.many_workers [--output=FILE]

An event is a push to the server, a meeting of two nodes, or a round of one worker. Every row is
measured in a process of its own, which has compiled the loop before on few workers, and in several
turns, each of which begins with nothing drawn: the rate is the median. Memory is the most that the
process took at any time of the first turn beyond what it had before, the schedule included.
"""

import functools
import itertools
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import networkx as nx
import numpy as np
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from algorithms.links import of_rounds
from benchmarks import output, ratios
from comms import rounds
from stragglers import delays, processes
from stragglers.rule import Rule, Setting
from stragglers.rules import RULES

_WORKERS = flags.DEFINE_list("workers", ["1000", "100000", "1000000"], "How many, 16 or more.")
_EVENTS = flags.DEFINE_integer("events", 4_000_000, "Events of a schedule, at least.", 1)
_SCHEDULES = flags.DEFINE_integer("schedules", 3, "Of every row, one after the other.", 1)

LAW = delays.shifted_exponential(1.0, 1.0)
SLOW_SPELLS = processes.markov(LAW, factor=4.0, mean_normal=90.0, mean_slow=10.0)
RECORDS = processes.replayed("trace", list(LAW.sample(np.random.default_rng(0), (64, 1000))))
K = 64  # pushes of an update
GOALS = {"independent": 1e6, "markov": 2e6}  # events per second


def pushes(rule: str, delay: delays.Law | processes.Process, workers: int) -> Rule:
    """A server that updates on K pushes, while nobody else waits."""
    return RULES[rule](Setting(delay, workers, 1, 0), k=min(K, workers // 8))


def meetings(blocking: bool, delay: delays.Law | processes.Process, workers: int) -> Rule:
    """Nodes on a ring that meet a neighbour after every mini-batch; blocking: wait for it, too."""
    setting = Setting(delay, workers, 1, 0, nx.cycle_graph(workers))
    return RULES["random_pairs"](setting, width=min(K, workers // 8), blocking=blocking)


def peers(delay: delays.Law | processes.Process, workers: int) -> Rule:
    """Rounds in which every worker waits for the one peer that it hears from, another each time."""
    links = of_rounds(rounds.one_peer_exponential(workers))
    return RULES["neighbour_barrier"](Setting(delay, workers, 1, 0, links=links))


class Kind(NamedTuple):
    """What an update of a schedule consists of."""

    make: Callable[[delays.Law | processes.Process, int], Rule]
    places: int  # of a row of the schedule that an event takes
    everyone: bool  # an update has an event of every worker, else of K pushes or meetings


SCHEDULES = {
    "k_batch_async": Kind(functools.partial(pushes, "k_batch_async"), 1, everyone=False),
    "k_async": Kind(functools.partial(pushes, "k_async"), 1, everyone=False),
    "random_pairs": Kind(functools.partial(meetings, False), 2, everyone=False),
    "random_pairs_blocking": Kind(functools.partial(meetings, True), 2, everyone=False),
    "one_peer_exponential": Kind(peers, 1, everyone=True),
}
DELAYS = {"independent": LAW, "markov": SLOW_SPELLS, "trace": RECORDS}


def measured(schedule: str, delay: str, workers: int, events: int, turns: int) -> dict[str, float]:
    """Million events per second, and bytes per worker, of schedules from nothing."""
    kind = SCHEDULES[schedule]
    compiling = kind.make(DELAYS[delay], 16)
    compiling.extend(compiling.init(), 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    updates = -(-events // (workers if kind.everyone else K))
    found, rates = {}, []
    for _ in range(turns):
        built = time.perf_counter()
        rule = kind.make(DELAYS[delay], workers)
        began = time.perf_counter()
        _, planned = rule.extend(rule.init(), updates)
        seconds = time.perf_counter() - began
        count = planned.workers.shape[1] // kind.places * updates
        rates.append(count / seconds / 1e6)
        if not found:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            found = {
                "events": count,
                "setup_seconds": began - built,
                "bytes_per_worker": 1024.0 * peak / workers,
            }
    rate = "million_events_per_second"
    return found | {rate: float(np.median(rates))} | ratios.spread(rate, rates)


def _apart(*arguments) -> dict[str, float]:
    """The same in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, arguments)


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    columns = (
        "schedule", "delays", "workers", "M events", "set up [s]", "M events/s", "least - greatest",
        "B/worker",
    )  # fmt: skip
    table, found = Table(title=f"schedules of many workers, {LAW}"), []
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right")
    for key in itertools.product(SCHEDULES, DELAYS):
        for workers in map(int, _WORKERS.value):
            point = _apart(*key, workers, max(_EVENTS.value, 4 * workers), _SCHEDULES.value)
            found.append({"schedule": key[0], "delays": key[1], "workers": workers, **point})
            table.add_row(
                *key,
                f"{workers:,}",
                f"{point['events'] / 1e6:.1f}",
                f"{point['setup_seconds']:.1f}",
                f"{point['million_events_per_second']:.2f}",
                f"{point['million_events_per_second_least']:.2f} - "
                f"{point['million_events_per_second_greatest']:.2f}",
                f"{point['bytes_per_worker']:,.0f}",
            )
    Console(width=120).print(table)
    for delay, goal in GOALS.items():
        rates = [p["million_events_per_second"] * 1e6 for p in found if p["delays"] == delay]
        if rates:
            met = "met" if min(rates) >= goal else "missed"
            print(f"{delay}: at least {min(rates):.2e} events per second (goal {goal:.0e}: {met})")
    output.put("many_workers", ("schedule", "delays", "workers"), found)


if __name__ == "__main__":
    app.run(main)
