"""Seconds of an update that the clock predicts, against processes that sleep recorded durations.

    python -m benchmarks.validation_processes             # as root; again: the cells that are left
    python -m benchmarks.validation_processes --summary   # of the record

Every worker is a process on a host of its own, whose link has a rate, see `benchmarks.namespaces`.
Workers sleep for as long as a mini-batch of a public trace lasts, and exchange for real. The clock
knows the durations, and the seconds of all-reduces and of swaps of four sizes, measured on these
links before each cell. A cell of the table is a waiting rule, a method, a trace and a rate.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from benchmarks import every_rule, floors, harness, namespaces
from comms.collectives import AXIS
from experiments import distributed, prepare
from experiments.registry import part
from stragglers.rule import whole

KEY = ("rule", "method", "trace", "rate")  # of a cell
RECORD = harness.Record(harness.FOLDER / "validation_processes.json",
                        "python -m benchmarks.validation_processes", KEY)  # fmt: skip

# The table, which was fixed before it ran.
WORKERS, MINI_BATCHES, UPDATES, REPEATS = 4, 4, 5, 5
MEAN = 0.08  # s of a mini-batch
PAIRS = (  # waiting rule, method
    *(("barrier", method) for method in (
        "all_reduce", "all_reduce(exchange=bf16)", "all_reduce(collective=ring)", "local_sgd",
        "dpsgd",
    )),
    ("neighbour_barrier", "dpsgd"),
    ("first_finisher", "all_reduce"), ("first_finisher", "local_sgd"),
    ("first_finisher(in_flight=cut)", "all_reduce"),
    ("quorum(k=3)", "all_reduce"),
    ("deadline(seconds=0.2)", "all_reduce"), ("deadline(seconds=0.2)", "local_sgd"),
    ("anytime(seconds=0.3)", "all_reduce"),
)  # fmt: skip
TRACES = ("alibaba_job_4", "bytedance_se", "alibaba_job_1")
RATES = ("100mbit", "20mbit")
# In the order of their runs.
CELLS = [(*pair, trace, rate) for trace in TRACES for pair in PAIRS for rate in RATES]

SIZES = tuple(2**power for power in (10, 14, 16, 18))  # bytes of the measured all-reduces
# All-reduces of an update: of each array and of the weights. A ring joins the arrays, and gossip
# needs no weights.
ARRAYS, OTHERS = 5, {"all_reduce(collective=ring)": 2, "dpsgd": 4}
TASK = part("digits", model=part("mlp", hidden=[512]))  # 152 kB


# --- a process ---


def arm(
    rule: str, method: str, trace: str, communication: Any = 0.0, runtime: str = "mesh"
) -> ConfigDict:
    """Return the config of a cell, whatever its rate."""
    return ConfigDict(every_rule.get_config().to_dict() | {
        "task": TASK, "runtime": runtime, "workers": WORKERS, "batch_size": 4,
        "mini_batches": MINI_BATCHES, "algorithm": method, "graph": "ring",
        "optimizer": part("sgd", learning_rate=0.01), "wait": rule,
        "delay": part(trace, mean=MEAN), "communication": communication, "updates": UPDATES,
        "rounds_per_dispatch": UPDATES,
    })  # fmt: skip


def exchanges(repeats: int = 7) -> Callable[[], list[list[float]]]:
    """Return a function that measures messages of all processes for each of the sizes [s].

    The messages are an all-reduce, and a swap within each of two pairs.
    """
    where = floors.stacked(WORKERS)
    bodies = (
        lambda a: jax.lax.psum(a, AXIS),
        lambda a: jax.lax.ppermute(a, AXIS, [(i, i ^ 1) for i in range(WORKERS)]),
    )
    ones = jax.jit(jnp.ones, static_argnums=0, out_shardings=where)
    arrays = [ones((WORKERS, size // 4)) for size in SIZES]
    programs = [
        jax.jit(jax.shard_map(
            body, mesh=where.mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
        )) for body in bodies
    ]  # fmt: skip

    def seconds(program: Callable, array: Any) -> float:
        taken = []
        for _ in range(1 + repeats):
            began = time.monotonic()
            jax.block_until_ready(program(array))
            taken.append(time.monotonic() - began)
        return float(np.median(taken[1:]))

    return lambda: [[seconds(program, array) for array in arrays] for program in programs]


def work(hosts: Sequence[namespaces.Host], rank: int, address: str) -> None:
    """Run the cells that the record lacks, as one of the processes; process 0 writes."""
    distributed.initialize(address, WORKERS, rank)
    distributed.connect()
    known = {tuple(point[name] for name in KEY) for point in RECORD.points()}
    left = [cell for cell in CELLS if cell not in known]
    distributed.agreed(None)  # nobody writes before all have read
    measure = exchanges()
    task = prepare.build_task(arm(*left[0][:3])) if left else None
    for build, group in itertools.groupby(left, key=lambda cell: cell[:3]):
        runtime = prepare.prepare(arm(*build), task).runtime
        params = task.init(jax.random.key(0))
        runtime.advance(runtime.start(params), np.inf, 1)  # compiles
        for cell in group:
            for host in hosts if rank == 0 else ():
                host.set_rate(cell[-1])
            distributed.agreed(None)
            all_reduces, swaps = distributed.agreed(measure())
            measured, used, began = [], time.process_time(), time.monotonic()
            for _ in range(REPEATS):
                run, _ = runtime.advance(runtime.start(params), np.inf, UPDATES)
                measured.append(run.seconds / UPDATES)
            busy = (time.process_time() - used) / (time.monotonic() - began)
            if rank == 0:
                RECORD.put([dict(zip(KEY, cell, strict=True)) | {
                    "pair": ", ".join(build[:2]),
                    "predicted": None, "error": None, "measured": float(np.mean(measured)),
                    "deviation": float(np.std(measured, ddof=1)),
                    "runs": [float(f"{value:.5g}") for value in measured],
                    "processor": busy, "all_reduces": all_reduces, "swaps": swaps,
                }])  # fmt: skip
        runtime.close()


# --- all of them ---


def predict() -> None:
    """Add the clock's predictions from durations and all-reduces to cells without any.

    `arrays_` marks a clock that knows how many messages an update has, how long a swap takes and
    that programs on CPUs hide nothing.
    """
    task = None
    for row in RECORD.points():
        if row.get("arrays_predicted") is not None:
            continue
        arrays = OTHERS.get(row["method"], ARRAYS)
        own = {"swaps": row.get("swaps"), "arrays": arrays, "hides": False}
        for name, more in (("", {}), ("arrays_", own)):
            network = part("measured", sizes=list(SIZES), seconds=row["all_reduces"], **more)
            config = arm(row["rule"], row["method"], row["trace"], network, "simulate")
            task = task or prepare.build_task(config)
            rule = prepare.rule(config, prepare.prepare(config, task))
            seconds = float(whole(rule, UPDATES).time[-1]) / UPDATES
            row |= {f"{name}predicted": seconds, f"{name}error": seconds / row["measured"] - 1}
        RECORD.put([row])


def summary(rows: Sequence[dict], name: str = "") -> dict[str, Any]:
    """Return the errors of all cells, and the agreement of rankings within a trace and a rate.

    Two cells are ranked if their means differ by more than two standard errors. name: "", or
    "arrays_", see `predict`.
    """
    errors = np.abs([row[f"{name}error"] for row in rows])
    together = [
        (one, other) for one, other in itertools.combinations(rows, 2)
        if (one["trace"], one["rate"]) == (other["trace"], other["rate"])
    ]  # fmt: skip
    agreements = []
    for one, other in together:
        error = np.hypot(one["deviation"], other["deviation"]) / np.sqrt(REPEATS)
        apart = one["measured"] - other["measured"]
        if abs(apart) > 2 * error:
            expected = one[f"{name}predicted"] - other[f"{name}predicted"]
            agreements.append(np.sign(apart) * np.sign(expected))
    return {
        "cells": len(rows), "median_error": float(np.median(errors)),
        "within_5%": float(np.mean(errors <= 0.05)), "beyond_10%": int(np.sum(errors > 0.1)),
        "largest": float(errors.max()), "tau": float(sum(agreements) / max(len(agreements), 1)),
        "ranked": len(agreements), "pairs": len(together),
    }  # fmt: skip


def main() -> None:
    options = harness.options(
        __doc__, summary=(False, "of the record alone"),
        process=("", "of one process, which the program starts"),
    )  # fmt: skip
    if options.process:
        rank, address, hosts = json.loads(options.process)
        return work([namespaces.Host(*host) for host in hosts], rank, address)
    if not options.summary:
        with namespaces.switch(WORKERS, RATES[0]) as hosts:
            address = f"{hosts[0].address}:{harness.free_port()}"
            program = [sys.executable, "-m", "benchmarks.validation_processes"]
            namespaces.run(hosts, [
                [*program, f"--process={json.dumps([rank, address, hosts])}"]
                for rank in range(WORKERS)
            ])  # fmt: skip
    predict()
    for name in ("", "arrays_"):
        found = summary(RECORD.points(), name)
        print(name, " ".join(f"{key}={value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
