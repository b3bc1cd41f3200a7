"""What asynchronous training in the simulator costs beyond its gradients.

    python -m benchmarks.async_replay [--output=FILE]

Time per update of k_batch_async, at 8 and 64 workers with 32 samples each, against three others in
the same process. The floor takes the same gradients, each at parameters of its own, on indices made
beforehand, and does nothing else. The program is the simulator's own, on rows of the schedule that
were planned and given to it before: what it takes less is planning and dispatching. The plain loop
trains as one would write it down: a heap of events, a compiled gradient for each and a compiled
step for each update; it gets its durations and indices for nothing, and ends at the same
parameters. The simulator's side contains everything: planning the schedule, choosing samples,
dispatching.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np
import optax
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from algorithms import all_reduce
from algorithms.base import scale_by_samples
from benchmarks import output
from benchmarks.floors import plain_loop, replay
from benchmarks.sides import MODELS, noise, sampler_of
from benchmarks.sides import STALE_BATCH as BATCH
from benchmarks.sides import STALE_LAW as LAW
from benchmarks.sides import STALE_RATE as RATE
from experiments import stopwatch
from runtimes import simulate
from stragglers.processes import from_law
from stragglers.rule import Setting
from stragglers.rules import RULES

_UPDATES = flags.DEFINE_integer("updates", 256, "Updates of a timed turn.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed turns of every candidate.")

SAMPLES = 8192
SIDES = ("floor", "program", "simulator", "plain loop")
TARGET = 1.25  # simulator over floor


def simulated(task, sampler, rule) -> tuple[Callable, optax.Params]:
    """A candidate: go on from where it stopped; and the parameters after the first turn."""
    method = all_reduce(scale_by_samples(RATE))
    runtime = simulate.Simulator(method, task.losses, task.train, sampler, rule, mini_batches=1)
    state = runtime.start(task.init(jax.random.key(0)))

    def run():
        nonlocal state
        state, _ = runtime.advance(state, np.inf, _UPDATES.value)
        return state.model

    run()
    return run, jax.tree.map(lambda a: np.asarray(a)[0], runtime.models(state))


def program(task, sampler, rule) -> Callable:
    """A candidate: the simulator's compiled program, on rows that were planned beforehand."""
    method = all_reduce(scale_by_samples(RATE))
    runtime = simulate.Simulator(method, task.losses, task.train, sampler, rule, mini_batches=1)
    run, calls = runtime._run, []

    def recorded(model, *given):
        calls.append(given)
        return run(model, *given)

    runtime._run = recorded
    begun = runtime.start(task.init(jax.random.key(0)))
    model = runtime.advance(begun, np.inf, _UPDATES.value)[0].model

    def again():
        nonlocal model
        for given in calls:
            model = run(model, *given)
        return model

    return again


def compare(make, workers: int, k: int) -> dict[str, float]:
    """Seconds per update of the simulator, its program, the floor and the plain loop."""
    task = noise(make, SAMPLES, (28, 28, 1))
    sampler = sampler_of(task, workers, BATCH)
    rule = RULES["k_batch_async"](Setting(LAW, workers, 1, 0), k=k)
    state, schedule = rule.extend(rule.init(), _UPDATES.value)
    ours, reached = simulated(task, sampler, rule)
    process, attempts = from_law(LAW).seeded(0), np.arange(int(state.attempts.max()) + 1)
    durations = process.duration(np.arange(workers)[:, None], 0.0, attempts)
    counters = np.arange(int(state.consumed.max()))
    indices = np.asarray(sampler.indices(np.arange(workers)[:, None], counters))
    plain = plain_loop(task, durations.tolist(), indices, k, _UPDATES.value, RATE)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), reached, plain()
    )
    used = sampler.indices(schedule.workers, schedule.first)
    sides = {
        "simulator": ours,
        "program": program(task, sampler, rule),
        "floor": replay(task, used, RATE),
        "plain loop": plain,
    }
    seconds = stopwatch.seconds(sides, _REPEATS.value)
    return {name: taken / _UPDATES.value for name, taken in seconds.items()}


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    table = Table(title=f"microseconds per update, {jax.default_backend()}, {BATCH} samples each")
    columns = ("workers", "k", *SIDES, "over floor", "its program", "loop over simulator")
    for column in ("model", *columns):
        table.add_column(column, justify="left" if column == "model" else "right")
    worst, points = 0.0, []
    for name, make in MODELS.items():
        for workers, k in ((8, 1), (8, 4), (64, 1), (64, 8), (64, 32)):
            taken = compare(make, workers, k)
            over = taken["simulator"] / taken["floor"]
            worst = max(worst, over)
            table.add_row(
                name,
                f"{workers}",
                f"{k}",
                *(f"{1e6 * taken[side]:.0f}" for side in SIDES),
                f"{over:.2f}",
                f"{taken['program'] / taken['floor']:.2f}",
                f"{taken['plain loop'] / taken['simulator']:.1f}x",
            )
            measured = {side.replace(" ", "_"): taken[side] for side in SIDES}
            points.append({"model": name, "workers": workers, "k": k, **measured})
    Console(width=110).print(table)
    met = "met" if worst <= TARGET else "missed"
    print(f"simulator over floor: at most {worst:.2f} (target <= {TARGET}: {met})")
    output.put("async_replay", ("model", "workers", "k"), points)


if __name__ == "__main__":
    app.run(main)
