"""The runs that several processes and one must agree on; as a program, one of the processes.

python -m tests.runtimes.one_of_several OUTPUT COORDINATOR PROCESSES RANK PART [MORE ...]

PART: `rounds`, `overlapped`, `rules`, or a victim: this process of the two sends itself the signal
MORE after a few rounds.
"""

import os
import signal
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from algorithms import all_reduce, dpsgd, matcha, mg_wfbp, reducers, top_k
from algorithms.base import scale_by_samples
from comms import topology
from experiments import distributed
from experiments.profiling import Profile
from experiments.tasks import data, sampling
from runtimes import mesh, packing, slices
from runtimes.data_feed import Streamed
from stragglers import delays, inject, processes
from tests import planned
from tests.runtimes.toy import DATA, SAMPLES, X0, B, Counted, losses
from tests.two_processes import ranks

N, M = 8, 4
METHODS = {
    "all_reduce": lambda: all_reduce(optax.sgd(0.1, momentum=0.9)),
    "dpsgd": lambda: dpsgd(optax.sgd(0.05, momentum=0.9), topology.ring(N)),
    "top_k": lambda: top_k(optax.sgd(0.1), ratio=0.5),
}


def started(tmp_path, *arguments, count=2, devices=4):
    """Return the processes, and the files that they write."""
    return ranks("tests.runtimes.one_of_several", tmp_path, count, devices, *arguments)


def results(tmp_path, *part, **machine):
    """Return the arrays of all processes, which agree to the bit but for what each has read."""
    with started(tmp_path, *part, **machine) as (running, outputs):
        for rank, process in enumerate(running):
            assert process.wait(300) == 0, (tmp_path / f"{rank}.txt").read_text()[-2000:]
        first, *others = (dict(np.load(output)) for output in outputs)
    reads = [arrays.pop("read", None) for arrays in (first, *others)]
    for other in others:
        assert {n: a.tobytes() for n, a in other.items()} == {
            n: a.tobytes() for n, a in first.items()
        }
    return first, reads


def build(method, injector=None):
    return mesh.Mesh(
        METHODS[method](), losses, DATA, SAMPLES, workers=N, mini_batches=M, injector=injector,
        rounds_per_dispatch=4,
    )  # fmt: skip


def injector():
    """Worker 5 is the slowest; whoever is late at the deadline does less."""
    slow = processes.persistent(delays.jitter(0.004, 0.1), {5: 50.0})
    rule = planned.rule("deadline", slow, N, M, seconds=0.1)
    return inject.Injector(N, rule.trigger, 0, delay=slow)


def plain(method) -> dict[str, np.ndarray]:
    """Eight rounds, and again with a break after four, in which the run is packed."""
    runtime = build(method)
    begun, _ = runtime.advance(runtime.start(X0), np.inf, 4)
    packed = runtime.pack(begun)
    straight, _ = runtime.advance(begun, np.inf, 4)
    resumed, schedule = runtime.advance(runtime.resume(runtime.start(X0), packed, ())[0], np.inf, 4)
    return {
        "straight": np.asarray(runtime.models(straight)),
        "resumed": np.asarray(runtime.models(resumed)),
        "time": schedule.time,
        **{f"packed/{name}": value for name, value in packed.items()},
    }


def injected() -> dict[str, np.ndarray]:
    """Eight rounds with delays and a break; what happened in them, and where they led."""
    runtime = build("top_k", injector())
    begun, first = runtime.advance(runtime.start(X0), np.inf, 4)
    packed = runtime.pack(begun)
    run, second = runtime.advance(runtime.resume(runtime.start(X0), packed, ())[0], np.inf, 4)
    columns = ("time", "start", "finish", "busy", "batches", "first", "version")
    return {
        "models": np.asarray(runtime.models(run)),
        **{c: np.concatenate([getattr(first, c), getattr(second, c)]) for c in columns},
    }


def sampler(workers=N) -> sampling.Sampler:
    """Every worker has samples of its own."""
    return sampling.Sampler(data.iid(DATA["y"], workers, seed=0), B, 0)


def streamed(examples, workers=N) -> np.ndarray:
    """Return the models of workers on all eight devices after eight rounds."""
    method = dpsgd(optax.sgd(0.05, momentum=0.9), topology.ring(workers))
    runtime = mesh.Mesh(
        method, losses, examples, sampler(workers), workers=workers, mini_batches=2,
        devices_per_worker=N // workers,
    )  # fmt: skip
    run, _ = runtime.advance(runtime.start(X0), np.inf, 8)
    runtime.close()
    return np.asarray(runtime.models(run))


CODED = slices.fsdp(reducers.int8(), reducers.int8())


def across(sharding, injector=None) -> dict[str, np.ndarray]:
    """Run a worker whose eight devices belong to all processes."""
    drawn = sampling.Sampler(data.iid(DATA["y"], 1, seed=0), 8, 0)
    method = all_reduce(optax.sgd(0.1, momentum=0.9))
    runtime = mesh.Mesh(
        method, losses, Streamed(Counted()), drawn, workers=1, mini_batches=2,
        rounds_per_dispatch=4, devices_per_worker=8, sharding=sharding, injector=injector,
    )  # fmt: skip
    run, schedule = runtime.advance(runtime.start(X0), np.inf, 8)
    runtime.close()
    return {"models": np.asarray(runtime.models(run)), "batches": schedule.batches}


def sliced() -> dict[str, np.ndarray]:
    """Run a slice that lies across processes: divided, coded, and whole with delays of the host."""
    rule = planned.rule("barrier", delays.deterministic(0.002), 1, 2)
    delayed = inject.Injector(1, rule.trigger, 0, delay=delays.deterministic(0.002))
    return flat({"fsdp": across(slices.fsdp()), "coded": across(CODED),
                 "delayed": across(slices.REPLICATED, delayed)})  # fmt: skip


# The first vector is known first; the second one goes before all parts of it but one.
PROFILE = Profile([["first"], ["second"]], np.array([1.0, 1.5]), np.array([0.0, 9]), np.arange(2.0))


def with_late_stages(collective, buckets, workers) -> np.ndarray:
    """Return the parameters of many rounds; every stage of a process begins late at random."""
    late = np.random.default_rng(jax.process_index() + 1)
    method = mg_wfbp(optax.sgd(1e-3), buckets=buckets, profile=PROFILE, collective=collective)
    runtime = mesh.Mesh(
        method, of_two, DATA, SAMPLES, workers=workers, mini_batches=1, rounds_per_dispatch=500,
        overlap="threads",
    )  # fmt: skip
    run, _ = runtime.advance(runtime.start({"first": X0, "second": X0[:1]}), np.inf, 1)
    for staged in (runtime._program._first, runtime._program._following):
        if staged is not None:
            staged._programs = [
                lambda *values, each=each: time.sleep(late.exponential(2e-4)) or each(*values)
                for each in staged._programs
            ]
    run, _ = runtime.advance(run, np.inf, 1000 // workers)
    models = jax.device_get(runtime.models(run))
    runtime.close()
    return np.concatenate([models["first"][0], models["second"][0]])


def of_two(params, examples):
    return losses(params["first"], examples) + 0.5 * (params["second"][0] - examples["y"]) ** 2


def overlapped() -> dict[str, np.ndarray]:
    rows = {name: (name, "wfbp") for name in ("psum", "decoupled")}
    rows["parts"] = "psum", "byte_scheduler:0.01kB"
    return {name: with_late_stages(*row, jax.process_count()) for name, row in rows.items()}


def not_overlapped(workers) -> np.ndarray:
    """Return the parameters that as many plain rounds lead to."""
    method = all_reduce(optax.sgd(1e-3))
    runtime = mesh.Mesh(method, of_two, DATA, SAMPLES, workers=workers, mini_batches=1)
    begun = runtime.start({"first": X0, "second": X0[:1]})
    run, _ = runtime.advance(begun, np.inf, 1 + 1000 // workers)
    models = jax.device_get(runtime.models(run))
    return np.concatenate([models["first"][0], models["second"][0]])


def flat(parts, by="/") -> dict[str, np.ndarray]:
    return {
        f"{name}{by}{key}": array for name, part in parts.items() for key, array in part.items()
    }


def undelayed() -> dict[str, np.ndarray]:
    return flat({name: plain(name) for name in ("all_reduce", "dpsgd")})


def rounds() -> dict[str, np.ndarray]:
    """Run a device per worker, with the samples read for one run; slices; rounds under delays."""
    source = Counted()
    return {
        **undelayed(),
        "streamed": streamed(Streamed(source)),
        "read": np.concatenate(source.reads),
        "sliced": streamed(Streamed(Counted()), 4),
        **flat({"injected": injected(), "across": sliced()}),
    }


# --- waiting rules, whose rounds are counted across processes

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
    "first_finisher/matcha": Row("first_finisher", {}, method="matcha", rounds=4),
    "quorum": Row("quorum", {"k": 4}),
    "k_sync": Row("k_sync", {"k": 1}, 3),
    "k_batch_sync": Row("k_batch_sync", {"k": 3}, 1),
    "deadline": Row("deadline", {"seconds": 1.05}),
    "drop_compute": Row("drop_compute", {"calibration": 2}, 3, pace=0.25, rounds=6),
}


def method_of(row):
    if row.method == "matcha":
        return matcha(scale_by_samples(0.05), topology.ring(len(APART)))
    return all_reduce(scale_by_samples(0.05))


def rule_of(row):
    delay = processes.persistent(delays.deterministic(1.0), [row.pace * s for s in APART])
    return planned.rule(row.wait, delay, len(APART), row.mini_batches, **row.own), delay


def most(row):
    """Mini-batches of a worker's round at most."""
    return int(np.max(rule_of(row)[0].trigger.mini_batches))


def under(row) -> dict[str, np.ndarray]:
    """Return the events in the rounds of a row, and their results."""
    rule, delay = rule_of(row)
    tally = distributed.SharedTally()
    runtime = mesh.Mesh(
        method_of(row), losses, DATA, SAMPLES, workers=len(APART), mini_batches=most(row),
        injector=inject.Injector(len(APART), rule.trigger, 0, delay=delay, tally=tally),
        rounds_per_dispatch=2,
    )  # fmt: skip
    state, schedule = runtime.advance(runtime.start(X0), np.inf, row.rounds)
    arrays = {name: getattr(schedule, name) for name in COLUMNS}
    if schedule.matchings is not None:
        arrays["matchings"] = schedule.matchings
    return arrays | {"models": np.asarray(runtime.models(state))}


def rules() -> dict[str, np.ndarray]:
    """Return the results of `ROWS`, and the keys of rounds that are left in the service."""
    found = flat({name: under(row) for name, row in ROWS.items()}, ":")
    packing.of_all(np.zeros(1))  # all have closed their rounds
    return found | {"keys": np.array(list(distributed.texts(distributed.ROUNDS)), "U64")}


PARTS = {"rounds": rounds, "rules": rules, "overlapped": overlapped}


def main(output, coordinator, count, rank, part, *more) -> None:
    distributed.HEARTBEAT = 10
    distributed.initialize(coordinator, int(count), int(rank))
    assert distributed.agreed({"sent by": int(rank)}) == {"sent by": 0}
    if part in PARTS:
        np.savez(output, **PARTS[part]())
        return
    runtime = build("all_reduce")
    run, _ = runtime.advance(runtime.start(X0), np.inf, 4)
    if rank == part:
        os.kill(os.getpid(), signal.Signals[more[0]])
    runtime.advance(run, 600.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
