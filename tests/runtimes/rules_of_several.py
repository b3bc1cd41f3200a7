"""Waiting rules whose workers live in several processes; as a program, one of the processes.

python -m tests.runtimes.rules_of_several OUTPUT COORDINATOR PROCESSES RANK ROW ...
"""

import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms import all_reduce, dpsgd, matcha
from algorithms.base import scale_by_samples
from comms import topology
from experiments import distributed
from runtimes import mesh, packing
from stragglers import delays, inject, processes
from tests import planned
from tests.runtimes.toy import DATA, SAMPLES, X0, losses
from tests.two_processes import ranks

# Seconds of a mini-batch, of whose first ends no two are within 150 ms.
APART = (0.3, 0.75, 1.2, 1.6)
COLUMNS = (
    "time", "workers", "start", "finish", "batches", "first", "version", "busy", "communication",
)  # fmt: skip


class Row(NamedTuple):
    """A rule, and what is run under it."""

    wait: str
    own: dict[str, Any]  # its parameters
    mini_batches: int = 3
    method: str = "all_reduce"
    pace: float = 1.0  # of the delays
    rounds: int = 2


ROWS = {
    "first_finisher": Row("first_finisher", {}),
    "first_finisher/cut": Row("first_finisher", {"in_flight": "cut"}),
    "first_finisher/drop": Row("first_finisher", {"leftovers": "drop"}, pace=0.5),
    "first_finisher/dpsgd": Row("first_finisher", {}, method="dpsgd", rounds=4),
    "first_finisher/matcha": Row("first_finisher", {}, method="matcha", rounds=4),
    "quorum": Row("quorum", {"k": 4}),
    "quorum/dpsgd": Row("quorum", {"k": 4}, method="dpsgd", rounds=4),
    "k_sync": Row("k_sync", {"k": 2}, 1),
    "k_sync/several": Row("k_sync", {"k": 1}, 3),
    "k_batch_sync": Row("k_batch_sync", {"k": 3}, 1),
    "deadline": Row("deadline", {"seconds": 1.05}),
    "anytime": Row("anytime", {"seconds": 1.05}),
    "drop_compute": Row("drop_compute", {"calibration": 2}, 3, pace=0.25, rounds=6),
}
METHODS = {
    "all_reduce": lambda workers: all_reduce(scale_by_samples(0.05)),
    "dpsgd": lambda workers: dpsgd(scale_by_samples(0.05), topology.ring(workers)),
    "matcha": lambda workers: matcha(scale_by_samples(0.05), topology.ring(workers)),
}


def delay(row, workers):
    """Of the first four workers as above; of others five times as long as the first."""
    factors = [row.pace * (APART + 4 * (1.5,))[i] for i in range(workers)]
    return processes.persistent(delays.deterministic(1.0), factors)


def rule(row, workers):
    return planned.rule(row.wait, delay(row, workers), workers, row.mini_batches, **row.own)


def most(row, workers):
    """Mini-batches of a worker's round at most."""
    return int(np.max(rule(row, workers).trigger.mini_batches))


def run(row, workers) -> dict[str, np.ndarray]:
    """Return the events in the rounds of a row, and their results."""
    trigger = rule(row, workers).trigger
    tally = distributed.SharedTally()
    watch = inject.Injector(workers, trigger, 0, delay=delay(row, workers), tally=tally)
    runtime = mesh.Mesh(
        METHODS[row.method](workers),
        losses,
        DATA,
        SAMPLES,
        workers=workers,
        mini_batches=most(row, workers),
        injector=watch,
        rounds_per_dispatch=2,
    )
    state, schedule = runtime.advance(runtime.start(X0), np.inf, row.rounds)
    arrays = {name: getattr(schedule, name) for name in COLUMNS}
    if schedule.matchings is not None:
        arrays["matchings"] = schedule.matchings
    return arrays | {"models": np.asarray(runtime.models(state))}


def started(tmp_path, count, devices, *rows):
    """The processes of these rows, and the files that they write."""
    return ranks("tests.runtimes.rules_of_several", tmp_path, count, devices, *rows)


def main(output, coordinator, count, rank, *rows) -> None:
    distributed.initialize(coordinator, int(count), int(rank))
    happened = {
        f"{name}:{key}": array
        for name in rows
        for key, array in run(ROWS[name], jax.device_count()).items()
    }
    packing.of_all(np.zeros(1))  # all have closed their rounds
    np.savez(output, keys=list(distributed.texts(distributed.ROUNDS)), **happened)


if __name__ == "__main__":
    main(*sys.argv[1:])
