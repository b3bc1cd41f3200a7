"""What the mesh runtime adds to a hand-written step, and whether real delays are kept.

    python -m benchmarks.mesh [--output=FILE]      # on a CPU: eight virtual devices

Three parts. Overhead: our plain round against a hand-written `shard_map` + `pmean` step, turn by
turn in one process, without callbacks. Delays: measured round times against the injected ones,
blocking and non-blocking. Endurance: 1,000 rounds with callbacks. Virtual CPU devices share the
cores, so their times say nothing about speed; only the ratios do.
"""

import jax
import numpy as np
from absl import app, flags, logging
from rich.console import Console

from algorithms import all_reduce
from benchmarks import output
from benchmarks.sides import BATCH, MINI_BATCHES, mesh_sides, optimizer
from experiments import stopwatch, tasks
from experiments.tasks import data, sampling
from runtimes import mesh
from stragglers import delays, inject, processes
from stragglers.rule import Setting, whole
from stragglers.rules import RULES
from stragglers.schedule import Schedule

_WORKERS = flags.DEFINE_integer("workers", 8, "Workers, one per device.")
_ROUNDS = flags.DEFINE_integer("rounds", 1000, "Rounds of the endurance run.")


def task_and_sampler(workers: int) -> tuple[tasks.Task, sampling.Sampler]:
    task = tasks.build("digits(model=mlp)")
    return task, sampling.Sampler(data.iid(task.labels, workers, 0), BATCH, 0)


def overhead(workers: int) -> float:
    """Median time of our plain rounds over that of the hand-written ones."""
    taken = stopwatch.seconds(mesh_sides(*task_and_sampler(workers), workers), 25)
    return taken["ours"] / taken["by hand"]


def delayed(workers: int, wait: str, delay, rounds: int) -> tuple[Schedule, Schedule]:
    """The schedule that really happened, and the one that the virtual clock plans."""
    task, sampler = task_and_sampler(workers)
    rule = RULES[wait](Setting(delay, workers, MINI_BATCHES, 0, communication=0.02))
    injector = inject.Injector(workers, rule.trigger, 0, delay=delay, communication=0.02)
    runtime = mesh.Mesh(
        all_reduce(optimizer()),
        task.losses,
        task.train,
        sampler,
        workers=workers,
        mini_batches=MINI_BATCHES,
        injector=injector,
    )
    _, real = runtime.advance(runtime.start(task.init(jax.random.key(0))), np.inf, rounds)
    return real, whole(rule, rounds)


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    workers = _WORKERS.value
    if jax.config.jax_platforms == "cpu" or not jax.config.jax_platforms:
        jax.config.update("jax_num_cpu_devices", workers)
    console = Console()

    def say(line):
        console.print(line, highlight=False)

    say(f"{workers} workers on {jax.default_backend()} devices")
    ratio = overhead(workers)
    say(f"plain round / hand-written step: {ratio:.3f} (target <= 1.05)")
    found = [{"measure": "plain round", "workers": workers, "over_hand_written": ratio}]
    jitter = processes.persistent(delays.jitter(0.02, 0.1), {0: 4.0})
    for wait in ("barrier", "first_finisher"):
        real, planned = delayed(workers, wait, jitter, 40)
        measured, wanted = (float(np.median(np.diff(each.time))) for each in (real, planned))
        times = {"median_seconds": measured, "injected_seconds": wanted}
        found.append({"measure": wait, "workers": workers, **times})
        say(
            f"{wait}: median round {1e3 * measured:.1f} ms, injected {1e3 * wanted:.1f} ms "
            f"({measured / wanted - 1:+.1%}, target within 10 %); mini-batches per round: "
            f"slow worker {real.batches[:, 0].mean():.2f}, others {real.batches[:, 1:].mean():.2f}"
        )
    quick = processes.persistent(delays.jitter(0.002, 0.1), {0: 4.0})
    real, _ = delayed(workers, "first_finisher", quick, _ROUNDS.value)
    say(f"endurance: {real.updates} rounds in {real.time[-1]:.0f} s, none stuck")
    output.put("mesh", ("measure", "workers"), found)


if __name__ == "__main__":
    app.run(main)
