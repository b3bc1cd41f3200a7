"""What wavefronts of disjoint meetings save, and how fast schedules of pairs are made.

    python -m benchmarks.wavefronts

First the same meetings of SwarmSGD in the simulator, with an eighth of the nodes' meetings in a row
and with one: everything counts, planning included. Then the rule alone, in meetings per second.
"""

import time

import jax
import numpy as np
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from algorithms import swarm
from benchmarks import simulate
from comms import topology
from experiments import stopwatch, tasks
from experiments.tasks import data, sampling
from stragglers import delays
from stragglers.rule import Setting
from stragglers.rules import RULES

_MEETINGS = flags.DEFINE_integer("meetings", 100_000, "Meetings of a schedule.")

NODES, STEPS, BATCH = 256, 2, 4
WIDTH = NODES // 8
ROWS = 16  # of a turn with wavefronts; one meeting a row takes WIDTH times as many
TARGET = 4.0
LAW = delays.jitter(1.0, 0.1)
KINDS = {
    "random": ("random_pairs", {}),
    "blocking": ("random_pairs", {"blocking": True}),
    "geometric": ("random_pairs", {"steps": "geometric", "local_steps": STEPS}),
    "bipartite": ("bipartite_pairs", {}),
}


def replay_seconds(model: str, repeats: int) -> dict[str, float]:
    """Median seconds of ROWS x WIDTH meetings of 256 nodes on a complete graph, by their width."""
    task = tasks.build({"name": "digits", "model": {"name": model}})
    sampler = sampling.Sampler(data.SPLITS["iid"](task.labels, NODES, 0), BATCH, 0)
    graph = topology.complete(NODES)

    def candidate(width):
        rule = RULES["random_pairs"](Setting(LAW, NODES, STEPS, 0, graph), width=width)
        updates = ROWS * WIDTH // width
        return simulate.simulated(
            swarm(simulate.optimizer(), graph), task, sampler, rule, updates, STEPS
        )

    return stopwatch.seconds({"wavefronts": candidate(WIDTH), "one": candidate(1)}, repeats)


def meetings_per_second(kind: str, workers: int, meetings: int) -> float:
    """Of a rule that starts from nothing, with drawing durations and partners."""
    name, options = KINDS[kind]
    graph = topology.hypercube(workers)
    rule = RULES[name](Setting(LAW, workers, 2 * STEPS, 0, graph), **options)
    rule.extend(rule.init(), 1)  # compiles
    updates = meetings * 8 // workers
    began = time.perf_counter()
    _, schedule = rule.extend(rule.init(), updates)
    seconds = time.perf_counter() - began
    width = schedule.workers.shape[1] // 2
    return np.count_nonzero(schedule.batches[:, :width]) / seconds


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    console = Console(width=100)
    for model in ("logistic", "mlp"):
        taken = replay_seconds(model, flags.FLAGS["repeats"].value)
        ratio = taken["one"] / taken["wavefronts"]
        each = {name: 1e6 * seconds / (ROWS * WIDTH) for name, seconds in taken.items()}
        console.print(
            f"{NODES} nodes, {model}, {jax.default_backend()}: {ratio:.1f}x faster than one meeting"
            f" a row (target >= {TARGET:g}: {'met' if ratio >= TARGET else 'missed'}); "
            f"{each['wavefronts']:.0f} against {each['one']:.0f} us a meeting",
            highlight=False,
        )
    table = Table(title=f"thousand meetings per second, {LAW}, hypercube")
    table.add_column("pairs")
    sizes = (16, 64, NODES)
    for workers in sizes:
        table.add_column(f"{workers} nodes", justify="right")
    for kind in KINDS:
        rates = (meetings_per_second(kind, n, _MEETINGS.value) for n in sizes)
        table.add_row(kind, *(f"{rate / 1e3:,.0f}" for rate in rates))
    console.print(table)


if __name__ == "__main__":
    app.run(main)
