"""What a meeting of two worker processes costs, and what it costs others.

    python -m benchmarks.actors_meetings [--megabytes=1,25] [--bits=32,8] [--seconds=10]

Nodes of a complete graph take gradients of the squared distance to a point, each as long as
`--gradient` says, and meet after every one (SwarmSGD, arXiv 1910.12308). A table per model size:

    ms                  from when a node has begun to ask until the meeting has ended at its end,
                        median and 90th percentile; what was refused before does not count
    refused a meeting   how often a busy partner was asked in vain
    least / most met    over all pairs, of how often they met: 1 is even
    steps slower        of a node whose gradient was under way while it answered, over one that was
                        left alone, in the median; only where gradients last less than it takes
                        to compute them (--gradient=0)
    MB a meeting        that both have sent, what was sent again included
    CPUs                that are there, and the load of the machine at the end
"""

import functools
import os

import jax
import networkx as nx
import numpy as np
import optax
from absl import app, flags
from rich.console import Console
from rich.table import Table

from algorithms import swarm
from runtimes.asynchronous import pool
from runtimes.asynchronous.worker import WorkerParts
from runtimes.gossip.runtime import GossipRuntime
from runtimes.gossip.worker import GossipParts
from stragglers import delays
from stragglers.processes import as_process
from stragglers.rule import Setting
from stragglers.rules import RULES
from stragglers.schedule import Schedule

_MEGABYTES = flags.DEFINE_list("megabytes", ["1", "25"], "Sizes of the model, in 1e6 bytes.")
_BITS = flags.DEFINE_list("bits", ["32", "8"], "Of a coordinate in a message; 32: float32.")
_SECONDS = flags.DEFINE_float("seconds", 10.0, "Of every run.", lower_bound=1.0)
_GRADIENT = flags.DEFINE_float("gradient", 0.1, "Seconds of a gradient, 0: as it is.")
_WORKERS = flags.DEFINE_integer("workers", 4, "Processes.", lower_bound=2)


class OwnTarget:
    """A worker has one sample."""

    batch_size = 1

    def indices(self, workers, counters) -> np.ndarray:
        """Index of the sample, [..., 1]."""
        return np.broadcast_to(np.asarray(workers), np.shape(counters))[..., None].astype(np.int32)


def losses(params, targets) -> jax.Array:
    """[b] squared distances to a point whose coordinates are all the same."""
    return 0.5 * ((params[None] - targets[:, None]) ** 2).mean(1)


def parts(workers: int, bits: int, gradient: float) -> GossipParts:
    """The parts of a node."""
    delay = delays.deterministic(gradient or 1e-9)
    graph = nx.complete_graph(workers)
    method = swarm(optax.sgd(1.0), graph, bits=None if bits == 32 else bits)
    rule = RULES["random_pairs"](Setting(delay, workers, 1, 0, graph=graph))
    targets = np.linspace(-1, 1, workers, dtype=np.float32)
    process = as_process(delay).seeded(0) if gradient else None
    return GossipParts(WorkerParts(method, losses, targets, OwnTarget(), 1, process), rule, False)


def ran(size: int, bits: int) -> tuple[Schedule, dict[str, float]]:
    """What happened after the first second, and what was counted in all."""
    recipe = functools.partial(parts, _WORKERS.value, bits, _GRADIENT.value)
    runtime = GossipRuntime(recipe(), recipe)
    model = np.random.default_rng(0).normal(size=size).astype(np.float32)
    run, _ = runtime.advance(runtime.start(model), 1.0)
    before = run.update
    run, schedule = runtime.advance(run, 1.0 + _SECONDS.value)
    runtime.close()
    if schedule is None:
        raise ValueError(f"nobody has met in {_SECONDS.value} s; set more --seconds")
    sent = run.measured["sent_bytes_per_worker"] * _WORKERS.value
    return schedule, run.measured | {"bytes": sent / (before + schedule.updates)}


def evenness(schedule: Schedule) -> float:
    """Least over most meetings of a pair."""
    workers = schedule.all_workers
    met = np.zeros((workers, workers), int)
    np.add.at(met, tuple(np.sort(schedule.workers, 1).T), 1)
    pairs = met[np.triu_indices(workers, 1)]
    return pairs.min() / max(1, pairs.max())


def slowed(schedule: Schedule) -> float:
    """How much longer local steps lasted in which a node answered, in the median."""
    landed, answered = schedule.finish[:, 1], schedule.workers[:, 1]
    asker, start, busy = (c[:, 0] for c in (schedule.workers, schedule.start, schedule.busy))
    during = (answered[None] == asker[:, None]) & (landed[None] > start[:, None])
    during = (during & (landed[None] < (start + busy)[:, None])).any(1)
    if during.all() or not during.any():
        return np.nan
    return float(np.median(busy[during]) / np.median(busy[~during]) - 1)


def main(_) -> None:
    console = Console()
    table = Table(
        title=f"{_WORKERS.value} nodes, gradients of {_GRADIENT.value:g} s, {os.cpu_count()} CPUs"
    )
    names = ("MB", "bits", "ms", "90 %", "meetings/s", "refused a meeting", "least / most met",
             "steps slower", "MB a meeting")  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for megabytes in map(float, _MEGABYTES.value):
        for bits in map(int, _BITS.value):
            schedule, measured = ran(int(megabytes * 1e6 / 4), bits)
            took = 1e3 * np.percentile(schedule.communication[:, 0], [50, 90])
            table.add_row(
                f"{megabytes:g}",
                str(bits),
                f"{took[0]:.1f}",
                f"{took[1]:.1f}",
                f"{schedule.updates / _SECONDS.value:.1f}",
                f"{measured['refusals_per_meeting']:.2f}",
                f"{evenness(schedule):.2f}",
                f"{slowed(schedule):.1%}",
                f"{measured['bytes'] / 1e6:.2f}",
            )
    pool.SESSION.close()
    console.print(table)
    console.print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    app.run(main)
