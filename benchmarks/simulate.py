"""What the simulator costs beyond the arithmetic that any program would have to do.

    python -m benchmarks.simulate [--devices=8]

Two ratios at 8, 64 and 256 workers, each against a floor in the same process: hand-written
loops that do the gradients and the optimizer and nothing else, on indices made beforehand. The
simulator's side contains everything: planning the schedule, choosing samples, dispatching. Then a
table of 4,096 workers: memory and time against the number of workers. Asynchronous training is in
`benchmarks.async_replay`.
"""

import functools
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from algorithms import all_reduce, dpsgd, matcha
from algorithms.base import scale_by_samples
from benchmarks import timing
from comms import topology
from experiments import tasks
from experiments.tasks import data, sampling
from runtimes import simulate
from stragglers import delays
from stragglers.rule import Setting
from stragglers.rules import RULES

_DEVICES = flags.DEFINE_integer("devices", 1, "Devices that the 4,096 workers are sharded over.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed turns of every candidate.")

MINI_BATCHES, BATCH = 8, 16
UPDATES = {8: 64, 64: 16, 256: 4}
TARGETS = {"all-reduce": 1.15, "gossip": 1.25}


def optimizer():
    return optax.chain(optax.trace(0.9), scale_by_samples(0.05))


def task_and_sampler(workers: int):
    """Digits with an MLP; beyond 64 workers the images repeat, so that everybody has some."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp"}})
    repeats = max(1, workers * MINI_BATCHES * BATCH // len(task.labels) // 4)
    train = jax.tree.map(lambda a: np.concatenate([a] * repeats), task.train)
    labels = np.concatenate([task.labels] * repeats)
    sampler = sampling.Sampler(data.SPLITS["iid"](labels, workers, 0), BATCH, 0)
    return task._replace(train=train), sampler


def simulated(method, task, sampler, rule, updates, mini_batches=MINI_BATCHES):
    """A candidate: go on from where it stopped by `updates` updates."""
    runtime = simulate.Simulator(
        method, task.losses, task.train, sampler, rule, mini_batches=mini_batches
    )
    state = runtime.start(task.init(jax.random.key(0)))

    def run():
        nonlocal state
        state, _ = runtime.advance(state, np.inf, updates)
        return state.model

    return run


def barrier(workers, mini_batches=MINI_BATCHES):
    return RULES["barrier"](Setting(delays.exponential(1.0), workers, mini_batches, 0))


def fixed_indices(sampler, workers, updates, mini_batches=MINI_BATCHES):
    ids = np.broadcast_to(np.arange(workers)[:, None], (updates, workers, mini_batches))
    counters = np.broadcast_to(
        np.arange(updates * mini_batches).reshape(updates, 1, mini_batches), ids.shape
    )
    return jnp.asarray(sampler.indices(ids, counters))


def all_reduce_ratio(workers: int, repeats: int) -> float:
    """All-reduce SGD against plain momentum SGD on the union batch."""
    task, sampler = task_and_sampler(workers)
    updates = UPDATES[workers]
    train = jax.tree.map(jnp.asarray, task.train)
    indices = fixed_indices(sampler, workers, updates).reshape(updates, -1)
    plain = optax.sgd(0.05, momentum=0.9)

    @functools.partial(jax.jit, donate_argnums=0)
    def sgd(carry, indices):
        def step(carry, rows):
            params, state = carry
            batch = jax.tree.map(lambda a: a[rows], train)
            gradient = jax.grad(lambda p: task.losses(p, batch).mean())(params)
            update, state = plain.update(gradient, state)
            return (optax.apply_updates(params, update), state), None

        return jax.lax.scan(step, carry, indices)[0]

    params = task.init(jax.random.key(0))
    carry = (params, plain.init(params))

    def floor():
        nonlocal carry
        carry = sgd(carry, indices)
        return carry

    ours = simulated(all_reduce(optimizer()), task, sampler, barrier(workers), updates)
    taken = timing.seconds({"ours": ours, "floor": floor}, repeats)
    return taken["ours"] / taken["floor"]


def local_floor(task, sampler, workers: int, updates: int, mini_batches: int):
    """A candidate: local momentum steps of every worker, without any communication."""
    train = jax.tree.map(jnp.asarray, task.train)
    indices = fixed_indices(sampler, workers, updates, mini_batches)
    indices = indices.reshape(updates, workers, -1)
    plain = optax.sgd(0.05, momentum=0.9)

    @functools.partial(jax.jit, donate_argnums=0)
    def local(carry, indices):
        def one(params, state, rows):
            batch = jax.tree.map(lambda a: a[rows], train)
            gradient = jax.grad(lambda p: task.losses(p, batch).mean())(params)
            update, state = plain.update(gradient, state)
            return optax.apply_updates(params, update), state

        def step(carry, rows):
            return jax.vmap(one)(*carry, rows), None

        return jax.lax.scan(step, carry, indices)[0]

    params = task.init(jax.random.key(0))
    params = jax.tree.map(lambda a: jnp.stack([a] * workers), params)
    carry = (params, jax.vmap(plain.init)(params))

    def floor():
        nonlocal carry
        carry = local(carry, indices)
        return carry

    return floor


def gossip_ratio(
    workers: int, repeats: int, method=None, mini_batches: int = MINI_BATCHES
) -> float:
    """Gossip (D-PSGD on a ring) against the same local steps without any communication."""
    task, sampler = task_and_sampler(workers)
    updates = UPDATES[workers] * MINI_BATCHES // mini_batches
    method = method or dpsgd(optimizer(), topology.ring(workers))
    delay = delays.exponential(1.0)
    setting = Setting(delay, workers, mini_batches, 0, method.graph, method.links)
    rule = RULES["neighbour_barrier"](setting)
    ours = simulated(method, task, sampler, rule, updates, mini_batches)
    floor = local_floor(task, sampler, workers, updates, mini_batches)
    taken = timing.seconds({"ours": ours, "floor": floor}, repeats)
    return taken["ours"] / taken["floor"]


def matcha_lines(repeats: int):
    """64 workers of MATCHA on a random 8-regular graph, at two sizes of a round."""
    graph = topology.random_regular(64, degree=8, seed=0)
    for mini_batches, target in ((8, 1.3), (1, 1.7)):
        ratio = gossip_ratio(64, repeats, matcha(optimizer(), graph, budget=0.5), mini_batches)
        yield (
            f"MATCHA, 64 workers, 8-regular graph, budget 0.5, {mini_batches} x {BATCH} samples "
            f"per round: {ratio:.2f} (target <= {target})"
        )


def scale_table(devices: int) -> Table:
    """Time and memory of D-PSGD on a ring with more and more workers of a small model."""
    table = Table(title=f"D-PSGD, logistic regression on digits, {devices} device(s)")
    for column in ("workers", "ms per update", "us per worker", "model state MiB", "peak MiB"):
        table.add_column(column, justify="right")
    for workers in (256, 1024, 4096):
        task = tasks.build({"name": "digits", "model": {"name": "logistic"}})
        repeats = 1 + workers * BATCH // len(task.labels)
        task = task._replace(
            train=jax.tree.map(lambda a, n=repeats: np.concatenate([a] * n), task.train),
            labels=np.concatenate([task.labels] * repeats),
        )
        sampler = sampling.Sampler(data.SPLITS["iid"](task.labels, workers, 0), BATCH, 0)
        method = dpsgd(optimizer(), topology.ring(workers))
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
    return table


def main(_) -> None:
    if _DEVICES.value > 1:
        jax.config.update("jax_num_cpu_devices", _DEVICES.value)
    logging.set_verbosity(logging.WARNING)
    console = Console()
    table = Table(title=f"simulator / floor, {jax.default_backend()}, median of {_REPEATS.value}")
    for column in ("family", "target", *(f"{n} workers" for n in UPDATES)):
        table.add_column(column, justify="right")
    measures = {"all-reduce": all_reduce_ratio, "gossip": gossip_ratio}
    for family, measure in measures.items():
        ratios = []
        for workers in UPDATES:
            ratios.append(measure(workers, _REPEATS.value))
            console.print(f"{family}, {workers} workers: {ratios[-1]:.2f}", highlight=False)
        table.add_row(family, f"<= {TARGETS[family]:.2f}", *(f"{r:.2f}" for r in ratios))
    console.print(table)
    for line in matcha_lines(_REPEATS.value):
        console.print(line, highlight=False)
    console.print(scale_table(_DEVICES.value))


if __name__ == "__main__":
    app.run(main)
