"""What the simulator costs beyond the arithmetic that any program would have to do.

    python -m benchmarks.simulate [--devices=8] [--output=FILE]

Two ratios at 8, 64 and 256 workers, each against a floor in the same process: hand-written
loops that do the gradients and the optimizer and nothing else, on indices made beforehand. A ratio
is of the faster halves of both sides' turns, and has the median, the least and the greatest of a
turn beside it. The simulator's side contains everything: planning the schedule, choosing samples,
dispatching. Then MATCHA, and local SGD with small products. Then a table of up to 65,536 workers:
memory and time against their number. Asynchronous training is in `benchmarks.async_replay`.
"""

import resource
import time

import jax
import numpy as np
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from algorithms import dpsgd, matcha
from benchmarks import output, ratios, sides
from benchmarks.sides import BATCH, MINI_BATCHES, barrier, optimizer
from comms import topology
from experiments import stopwatch, tasks
from experiments.tasks import data, sampling
from runtimes import simulate

_DEVICES = flags.DEFINE_integer("devices", 1, "Devices of the last table's workers.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed turns of every candidate.")
_SCALE = flags.DEFINE_list(
    "scale", ["256", "1024", "4096", "16384", "65536"], "Workers of the last table."
)

WORKERS = (8, 64, 256)
TARGETS = {"all-reduce": 1.05, "gossip": 1.08}


def ratio(candidates, repeats: int) -> dict[str, float]:
    """Our time over the floor's, as fields of a point."""
    times = stopwatch.taken(candidates, repeats)
    return ratios.over("floor", times["ours"], times["floor"])


def all_reduce_ratio(workers: int, repeats: int) -> dict[str, float]:
    task, sampler = sides.task_and_sampler(workers)
    updates = sides.updates_of(workers)
    return ratio(sides.all_reduce_sides(task, sampler, workers, updates), repeats)


def gossip_ratio(workers: int, repeats: int) -> dict[str, float]:
    task, sampler = sides.task_and_sampler(workers)
    updates = sides.updates_of(workers)
    return ratio(sides.gossip_sides(task, sampler, workers, updates), repeats)


def matcha_lines(repeats: int) -> tuple[list[str], list[dict]]:
    """64 workers of MATCHA on a random 8-regular graph, at two sizes of a round: lines, points."""
    lines, found = [], []
    workers, degree, budget = 64, 8, 0.5
    graph = topology.random_regular(workers, degree=degree, seed=0)
    task, sampler = sides.task_and_sampler(workers)
    for mini_batches, target in ((8, 1.25), (1, 1.25)):
        updates = sides.updates_of(workers) * MINI_BATCHES // mini_batches
        method, heard = matcha(optimizer(), graph, budget=budget), int(budget * degree)
        candidates = sides.matcha_sides(
            task, sampler, workers, updates, mini_batches, method, heard
        )
        times = stopwatch.taken(candidates, repeats)
        over_floor = ratios.over("floor", times["ours"], times["floor"])
        by_hand = ratios.over("floor", times["by hand"], times["floor"])
        lines.append(
            f"MATCHA, {workers} workers, {degree}-regular graph, budget {budget}, {mini_batches} x "
            f"{BATCH} samples per round: {ratios.as_text(over_floor)}, target <= {target}; "
            f"by hand, each hears {heard}: {ratios.as_text(by_hand)}"
        )
        hand = {f"by_hand_{name}": value for name, value in by_hand.items()}
        found.append(point("MATCHA", workers, mini_batches, **over_floor, **hand))
    return lines, found


def local_line(repeats: int, workers: int = 64, updates: int = 4) -> tuple[str, dict]:
    """Local SGD of a softmax, milliseconds of a worker's step, as a line and a point."""
    task = sides.noise(sides.MODELS["softmax 784x10"], 16384, (28, 28, 1))
    taken = stopwatch.seconds(sides.local_sides(task, workers, updates), repeats)
    steps = workers * sides.LOCAL_STEPS * updates
    each = {name: 1e3 * seconds / steps for name, seconds in taken.items()}
    line = (
        f"local SGD, softmax 784 x 10, {workers} workers x {sides.LOCAL_STEPS} steps of "
        f"{sides.LOCAL_BATCH}: {each['ours']:.4f} ms per local step, by hand "
        f"{each['by hand']:.4f}, by hand on transposed matrices {each['by hand, turned']:.4f}, "
        f"union batch {each['union']:.4f}"
    )
    keys = {name: name.replace(", ", "_").replace(" ", "_") for name in each}
    named = {f"seconds_{keys[name]}": ms / 1e3 for name, ms in each.items()}
    return line, point("local SGD", workers, sides.LOCAL_STEPS, **named)


def point(measure: str, workers: int, mini_batches: int, **found: float) -> dict:
    return {"measure": measure, "workers": workers, "mini_batches": mini_batches, **found}


def scale_table(devices: int) -> tuple[Table, list[dict]]:
    """Time and memory of D-PSGD with more and more workers of a small model: points.

    On the one-peer exponential graph, whose rounds are lists: mixing matrices of 65,536 workers
    would take 34 GB.
    """
    found = []
    table = Table(title=f"D-PSGD, logistic regression on digits, {devices} device(s)")
    for column in ("workers", "ms per update", "us per worker", "model state MiB", "peak MiB"):
        table.add_column(column, justify="right")
    for workers in map(int, _SCALE.value):
        task = tasks.build({"name": "digits", "model": {"name": "logistic"}})
        repeats = 1 + workers * BATCH // len(task.labels)
        task = task._replace(
            train=jax.tree.map(lambda a, n=repeats: np.concatenate([a] * n), task.train),
            labels=np.concatenate([task.labels] * repeats),
        )
        sampler = sampling.Sampler(data.SPLITS["iid"](task.labels, workers, 0), BATCH, 0)
        method = dpsgd(optimizer(), topology.one_peer_exponential(workers))
        runtime = simulate.Simulator(
            method,
            task.losses,
            task.train,
            sampler,
            barrier(workers, 1),
            mini_batches=1,
            devices=devices,
        )
        state = runtime.start(task.init(jax.random.key(0)))
        state, _ = runtime.advance(state, np.inf, 16)
        jax.block_until_ready(state.model)
        began = time.perf_counter()
        state, _ = runtime.advance(state, np.inf, 16)
        jax.block_until_ready(state.model)
        each = (time.perf_counter() - began) / 16
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(state.model)) / 2**20
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        table.add_row(
            str(workers),
            f"{1e3 * each:.2f}",
            f"{1e6 * each / workers:.2f}",
            f"{held:.1f}",
            f"{peak:.0f}",
        )
        cost = {"devices": devices, "seconds": each, "peak_bytes": peak * 2**20}
        measure = "scale" if devices == 1 else f"scale, {devices} devices"  # a record of its own
        found.append(point(measure, workers, 1, **cost))
    return table, found


def main(_) -> None:
    if _DEVICES.value > 1:
        jax.config.update("jax_num_cpu_devices", _DEVICES.value)
    logging.set_verbosity(logging.WARNING)
    console = Console()
    table = Table(title=f"simulator / floor, {jax.default_backend()}, {_REPEATS.value} turns")
    for column in ("family", "target", *(f"{n} workers" for n in WORKERS)):
        table.add_column(column, justify="right")
    measures = {"all-reduce": all_reduce_ratio, "gossip": gossip_ratio}
    found = []
    for family, measure in measures.items():
        of_family = []
        for workers in WORKERS:
            one = measure(workers, _REPEATS.value)
            of_family.append(one["over_floor"])
            found.append(point(family, workers, MINI_BATCHES, **one))
            console.print(f"{family}, {workers} workers: {ratios.as_text(one)}", highlight=False)
        table.add_row(family, f"<= {TARGETS[family]:.2f}", *(f"{r:.2f}" for r in of_family))
    console.print(table)
    lines, of_matcha = matcha_lines(_REPEATS.value)
    line, of_local = local_line(_REPEATS.value)
    for text in (*lines, line):
        console.print(text, highlight=False)
    table, of_scale = scale_table(_DEVICES.value)
    console.print(table)
    found += [*of_matcha, of_local, *of_scale]
    output.put("simulate", ("measure", "workers", "mini_batches"), found)


if __name__ == "__main__":
    app.run(main)
