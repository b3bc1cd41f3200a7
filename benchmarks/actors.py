"""What a server of free workers gets through, against what their gradients would allow.

    python -m benchmarks.actors

Four workers push gradients of a model of 1 or 25 MB; a gradient takes as long as injected sleep,
so that the ideal is known: four over that time. What is missing is Ray's and the server's. The last
rows kill processes: how long the others stand still, and what a kill every few seconds costs.
"""

import functools
import os
import random
import signal
import time
from typing import NamedTuple

import jax
import numpy as np
import optax
from absl import app, flags
from rich.console import Console

from algorithms import all_reduce
from runtimes.asynchronous import pool
from runtimes.asynchronous.runtime import AsynchronousRuntime
from runtimes.asynchronous.worker import WorkerParts
from stragglers import delays
from stragglers.processes import as_process
from stragglers.rule import Setting
from stragglers.rules import RULES
from stragglers.schedule import Schedule, concatenate

WORKERS = 4
_SECONDS = flags.DEFINE_float("seconds", 15.0, "Of every measurement.", lower_bound=1)
_KILLS = flags.DEFINE_integer("kills", 20, "Processes that are killed at random moments.")


class Case(NamedTuple):
    """A measurement of throughput."""

    megabytes: int  # of the parameters
    sleep: float  # s, a gradient; 0: as fast as it is
    goal: float  # pushes/s over the ideal, or pushes/s where there is no ideal


CASES = (
    Case(1, 0.1, 0.90),
    Case(25, 1.0, 0.92),
    Case(25, 0.1, 0.60),
    Case(1, 0.0, 200.0),
)


class _Numbers:
    """Samples that nobody looks at."""

    batch_size = 1

    def indices(self, workers, counters) -> np.ndarray:
        return np.zeros((*np.shape(counters), 1), np.int32)


def losses(params, examples) -> jax.Array:
    """A gradient of the size of the parameters that takes next to no time."""
    return examples["x"] * params[0]


def parts(sleep: float) -> WorkerParts:
    """What a worker computes with."""
    delay = as_process(delays.deterministic(sleep)).seeded(0) if sleep else None
    examples = {"x": np.ones(1, np.float32)}
    return WorkerParts(all_reduce(optax.sgd(1e-3)), losses, examples, _Numbers(), 1, delay)


def server(sleep: float, k: int = 1) -> AsynchronousRuntime:
    """The runtime of K-async whose gradients take `sleep` seconds."""
    recipe = functools.partial(parts, sleep)
    setting = Setting(delays.deterministic(sleep or 1.0), WORKERS, 1, 0)
    return AsynchronousRuntime(recipe(), recipe, RULES["k_async"](setting, k=k))


def pushes_per_second(case: Case, seconds: float) -> tuple[float, Schedule]:
    """Measured after a second that is left out."""
    runtime = server(case.sleep)
    try:
        params = np.zeros(case.megabytes * 250_000, np.float32)
        run, _ = runtime.advance(runtime.start(params), 1.0 + 2 * case.sleep)
        before = run.update, run.seconds
        run, schedule = runtime.advance(run, run.seconds + seconds)
        return (run.update - before[0]) / (run.seconds - before[1]), schedule
    finally:
        runtime.close()


class Killed(NamedTuple):
    """What happened while processes were killed."""

    deaths: int
    gap: float  # s, the longest in which none of the others landed
    restored: float  # s from a death to the new process, in the median
    counters_once: bool  # every counter of mini-batches was used once, none was left out


def kill(kills: int) -> Killed:
    """Kill workers at random moments; every 1 to 4 s one that is there beside others."""
    draw, runtime = random.Random(0), server(0.1)
    pieces = []
    try:
        run, piece = runtime.advance(runtime.start(np.zeros(1000, np.float32)), 1.0)
        pieces.append(piece)
        for _ in range(kills):
            run, piece = runtime.advance(run, run.seconds + draw.uniform(1, 4))
            pieces.append(piece)
            while len(runtime.pids()) < 2:  # else nobody is left to go on
                run, piece = runtime.advance(run, run.seconds + 0.5)
                pieces.append(piece)
            os.kill(draw.choice(list(runtime.pids().values())), signal.SIGKILL)
        run, piece = runtime.advance(run, run.seconds + 20.0)
        pieces.append(piece)
    finally:
        runtime.close()
    schedule = concatenate([piece for piece in pieces if piece is not None])
    back = {}
    waits = []
    for event in schedule.events:
        if event.kind == "lost":
            back[event.worker] = event.time
        elif event.worker in back:
            waits.append(event.time - back.pop(event.worker))
    once = all(
        np.array_equal(np.sort(schedule.first[schedule.workers == w]), np.arange(n))
        for w, n in enumerate(np.bincount(schedule.workers.ravel(), minlength=WORKERS))
    )
    return Killed(run.deaths, float(np.diff(schedule.time).max()), float(np.median(waits)), once)


def main(_) -> None:
    console = Console()

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    say(f"{WORKERS} workers, K-async with K = 1, {_SECONDS.value:g} s each")
    for case in CASES:
        rate, schedule = pushes_per_second(case, _SECONDS.value)
        what = f"{case.megabytes} MB, gradient {1e3 * case.sleep:g} ms"
        mean = 1e3 * float(np.mean(schedule.communication))
        way = f"on the way {mean:.1f} ms, staleness {schedule.mean_staleness:.2f}"
        if case.sleep:
            ideal = WORKERS / case.sleep
            say(
                f"{what}: {rate:.1f} pushes/s of {ideal:g}: {rate / ideal:.2f} "
                f"(goal >= {case.goal:.2f}); {way}"
            )
        else:
            say(f"{what}: {rate:.0f} updates/s (goal >= {case.goal:g}); {way}")
    if _KILLS.value:
        began = time.monotonic()
        found = kill(_KILLS.value)
        say(
            f"{found.deaths} processes killed: longest gap between updates {found.gap:.2f} s (goal "
            f"< 0.5), back after {found.restored:.1f} s in the median; every mini-batch "
            f"{'used once' if found.counters_once else 'NOT used once'}; "
            f"{time.monotonic() - began:.0f} s"
        )
    pool.SESSION.close()


if __name__ == "__main__":
    app.run(main)
