"""Whether a goal that is counted across processes does what it does in one.

    python -m benchmarks.goals_across_processes                      # 2 x 4 devices against 1 x 8
    python -m benchmarks.goals_across_processes --endurance=2000     # 2,000 rounds on 2 processes

The same workers with the same delays keep first_finisher, as one process and as several. Compared
are the mini-batches of a round, per worker, and the gain: mini-batches per second over the
barrier's. Differences of means are in standard errors, from the rounds of either.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import jax
import numpy as np
from absl import app, flags

from benchmarks.sides import BATCH, optimizer

_PROCESSES = flags.DEFINE_integer("processes", 2, "To compare with one.", lower_bound=2)
_WORKERS = flags.DEFINE_integer("workers", 8, "Devices, all together.")
_ROUNDS = flags.DEFINE_integer("rounds", 300, "Of first_finisher; of the barrier a third.")
_SECONDS = flags.DEFINE_float("seconds", 0.06, "Of a mini-batch on average.")
_ENDURANCE = flags.DEFINE_integer("endurance", 0, "Only this many quick rounds on all processes.")
_OUTPUT = flags.DEFINE_string("output", None, "A file for what was measured, as JSON.")

MINI_BATCHES = 4


def measure(output: str, workers: int, rounds: int, seconds: float, wait: str, *where: str) -> None:
    """Be a process of a run; where: its coordinator, the number of processes, its own number."""
    from algorithms import all_reduce
    from experiments import coordination, distributed, tasks
    from experiments.shared_tally import PLACE, SharedTally
    from experiments.tasks import data, sampling
    from runtimes import mesh, packing
    from stragglers import delays, inject, processes
    from stragglers.rule import Setting
    from stragglers.rules import RULES

    if where:
        coordinator, count, rank = where
        distributed.initialize(coordinator, int(count), int(rank))
    # Worker 0 is four times slower; the others are as unequal as exponential tails make them.
    law = delays.shifted_exponential(shift=seconds / 2, scale=seconds / 2)
    delay = processes.persistent(law, {0: 4.0})
    rule = RULES[wait](Setting(delay, workers, MINI_BATCHES, 0))
    task = tasks.build("digits(model=mlp)")
    sampler = sampling.Sampler(data.iid(task.labels, workers, 0), BATCH, 0)
    injector = inject.Injector(
        workers, rule.trigger, 0, delay=delay, tally=SharedTally() if where else None
    )
    runtime = mesh.Mesh(
        all_reduce(optimizer()),
        task.losses,
        task.train,
        sampler,
        workers=workers,
        mini_batches=MINI_BATCHES,
        injector=injector,
    )
    state, _ = runtime.advance(runtime.start(task.init(jax.random.key(0))), np.inf, 8)
    _, schedule = runtime.advance(state, np.inf, rounds)
    packing.of_all(np.zeros(1))  # all have closed their rounds
    left = len(coordination.keys(PLACE)) if where else 0
    if distributed.is_writer():
        lasted = np.diff(schedule.time, prepend=schedule.start[0].min())
        np.savez(output, batches=schedule.batches, lasted=lasted, keys=left)
    distributed.leave(0)


def measured(count: int, wait: str, rounds: int, seconds: float) -> dict[str, np.ndarray]:
    """The same on `count` processes of this machine."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as place:
        free.bind(("127.0.0.1", 0))
        output = pathlib.Path(place) / "out.npz"
        devices = _WORKERS.value // count
        flag = f"--xla_force_host_platform_device_count={devices}"
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag}
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        what = (str(output), str(_WORKERS.value), str(rounds), str(seconds), wait)
        running = []
        try:
            for rank in range(count):
                where = (address, str(count), str(rank)) if count > 1 else ()
                command = [sys.executable, "-m", "benchmarks.goals_across_processes", "measure"]
                running.append(subprocess.Popen([*command, *what, *where], env=environment))
            for process in running:
                if process.wait(3600):
                    raise SystemExit(f"a process has ended with {process.returncode}")
        finally:
            for process in running:
                process.kill()
                process.wait()
        with np.load(output) as file:
            return dict(file)


def compare() -> dict:
    """Several processes against one: gains, and differences in standard errors."""
    several, rounds, seconds = _PROCESSES.value, _ROUNDS.value, _SECONDS.value
    found, gains = {}, {}
    for count in (1, several):
        free = measured(count, "first_finisher", rounds, seconds)
        barrier = measured(count, "barrier", -(-rounds // 3), seconds)
        rate = {
            name: float(run["batches"].sum() / run["lasted"].sum())
            for name, run in (("first_finisher", free), ("barrier", barrier))
        }
        gains[count] = rate["first_finisher"] / rate["barrier"]
        found[count] = free["batches"]
        print(
            f"{count} processes: first_finisher {rate['first_finisher']:.1f} mini-batches/s, "
            f"barrier {rate['barrier']:.1f}, gain {gains[count]:.3f}; mean mini-batches "
            f"{np.round(free['batches'].mean(0), 3).tolist()}",
            flush=True,
        )
    one, other = found[1], found[several]
    error = np.sqrt((one.var(0, ddof=1) + other.var(0, ddof=1)) / rounds)
    apart = (other.mean(0) - one.mean(0)) / error
    print(
        f"difference in standard errors, per worker: {np.round(apart, 2).tolist()} (target within "
        f"3); gain {gains[several] / gains[1] - 1:+.1%} (target within 5 %)"
    )
    return {
        "processes": [1, several],
        "rounds": rounds,
        "mean_mini_batches": [one.mean(0).tolist(), other.mean(0).tolist()],
        "standard_errors_apart": apart.tolist(),
        "gain_over_barrier": [gains[1], gains[several]],
    }


def endure() -> dict:
    """Many quick rounds, and what they leave in the coordination service."""
    rounds, count = _ENDURANCE.value, _PROCESSES.value
    run = measured(count, "first_finisher", rounds, 0.004)
    lasted = run["lasted"]
    print(
        f"{rounds} rounds of first_finisher on {count} processes: median "
        f"{1e3 * np.median(lasted):.1f} ms, longest {1e3 * lasted.max():.0f} ms; keys left in the "
        f"service: {int(run['keys'])}"
    )
    return {
        "processes": count,
        "endurance_rounds": rounds,
        "median_seconds": float(np.median(lasted)),
        "longest_seconds": float(lasted.max()),
        "keys_left": int(run["keys"]),
    }


def main(_) -> None:
    outcome = endure() if _ENDURANCE.value else compare()
    if _OUTPUT.value:
        pathlib.Path(_OUTPUT.value).write_text(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        output, workers, rounds, seconds, *rest = sys.argv[2:]
        measure(output, int(workers), int(rounds), float(seconds), *rest)
    else:
        app.run(main)
