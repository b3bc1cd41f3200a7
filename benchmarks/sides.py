"""Our side and the floor of a comparison, as candidates that take turns; see `benchmarks.floors`.

Our side contains everything: planning the schedule, choosing samples, dispatching.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms import all_reduce, dpsgd, local_sgd
from algorithms.base import AXIS, scale_by_samples
from benchmarks.floors import (
    DECAY,
    RATE,
    averaged_steps,
    carry_of,
    hand_written,
    hearing_step,
    local_step,
    lone_step,
    of_turned,
    replay,
    scanned,
    turned,
    union_step,
)
from comms import topology
from experiments import tasks
from experiments.tasks import data, dense_tasks, models, sampling
from runtimes import mesh, packing, simulate
from runtimes.rounds import Table
from stragglers import delays
from stragglers.rule import Rule, Setting
from stragglers.rules import RULES

MINI_BATCHES, BATCH = 8, 16
STALE_RATE = 0.001  # stable with gradients that are 63 updates old
STALE_BATCH = 32
STALE_LAW = delays.shifted_exponential(1.0, 1.0)
LOCAL_RATE, LOCAL_STEPS, LOCAL_BATCH = 0.05, 10, 20
LOOPED = {"floor": scanned}
MODELS = {"softmax 784x10": models.logistic, "MLP 784x128x10": models.mlp}

# --- tasks ---


def noise(make: Callable, samples: int, shape: tuple[int, ...], classes: int = 10) -> tasks.Task:
    """Classify noise of the shape of images, by a model of `experiments.models`."""
    rng = np.random.default_rng(0)
    train = data.Images(
        rng.random((samples, *shape), np.float32),
        rng.integers(0, classes, samples).astype(np.int32),
    )
    return dense_tasks.classification("noise", data.Dataset(train, train), make(classes=classes))


def sampler_of(task: tasks.Task, workers: int, batch: int) -> sampling.Sampler:
    return sampling.Sampler(data.SPLITS["iid"](task.labels, workers, 0), batch, 0)


def task_and_sampler(workers: int) -> tuple[tasks.Task, sampling.Sampler]:
    """Digits with an MLP; beyond 64 workers the images repeat, so that everybody has some."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp"}})
    repeats = max(1, workers * MINI_BATCHES * BATCH // len(task.labels) // 4)
    train = jax.tree.map(lambda a: np.concatenate([a] * repeats), task.train)
    labels = np.concatenate([task.labels] * repeats)
    sampler = sampling.Sampler(data.SPLITS["iid"](labels, workers, 0), BATCH, 0)
    return task._replace(train=train), sampler


def fixed_indices(sampler, workers, updates, mini_batches=MINI_BATCHES) -> jax.Array:
    ids = np.broadcast_to(np.arange(workers)[:, None], (updates, workers, mini_batches))
    counters = np.broadcast_to(
        np.arange(updates * mini_batches).reshape(updates, 1, mini_batches), ids.shape
    )
    return jnp.asarray(sampler.indices(ids, counters))


# --- our side ---


def optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.trace(DECAY), scale_by_samples(RATE))


def simulated(method, task, sampler, rule, updates, mini_batches=MINI_BATCHES) -> Callable:
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


def barrier(workers, mini_batches=MINI_BATCHES) -> Rule:
    return RULES["barrier"](Setting(delays.exponential(1.0), workers, mini_batches, 0))


def neighbours(method, workers: int, mini_batches: int = MINI_BATCHES) -> Rule:
    """Every worker waits for its neighbours on the method's graph."""
    setting = Setting(delays.exponential(1.0), workers, mini_batches, 0, method.graph, method.links)
    return RULES["neighbour_barrier"](setting)


# --- both sides of a comparison ---


def updates_of(workers: int) -> int:
    """How many updates a timed turn has."""
    return {8: 64, 64: 16, 256: 4}.get(workers, 1)


def all_reduce_sides(
    task, sampler, workers: int, updates: int, mini_batches: int = MINI_BATCHES, loops=LOOPED
) -> dict[str, Callable]:
    """All-reduce SGD against plain momentum SGD on the union batch; loops: by name, of `floors`."""
    rule = barrier(workers, mini_batches)
    ours = simulated(all_reduce(optimizer()), task, sampler, rule, updates, mini_batches)
    rows = fixed_indices(sampler, workers, updates, mini_batches).reshape(updates, -1)
    examples = jax.tree.map(jnp.asarray, task.train)

    def floor(loop):
        carry = carry_of(task.init(jax.random.key(0)))  # which is given away
        return loop(union_step(task.losses), carry, rows, examples)

    return {"ours": ours} | {name: floor(loop) for name, loop in loops.items()}


def gossip_sides(
    task,
    sampler,
    workers: int,
    updates: int,
    mini_batches: int = MINI_BATCHES,
    method=None,
    step=local_step,
    loops=LOOPED,
) -> dict[str, Callable]:
    """Gossip against a stacked step of `floors`; loops: by name, of `floors`.

    method: None: D-PSGD on a ring. step: `local_step` sends nothing, `ring_step` does the same.
    """
    method = method or dpsgd(optimizer(), topology.ring(workers))
    rule = neighbours(method, workers, mini_batches)
    ours = simulated(method, task, sampler, rule, updates, mini_batches)
    rows = fixed_indices(sampler, workers, updates, mini_batches).reshape(updates, workers, -1)
    examples = jax.tree.map(jnp.asarray, task.train)

    def floor(loop):
        carry = carry_of(task.init(jax.random.key(0)), workers)
        return loop(step(task.losses), carry, rows, examples)

    return {"ours": ours} | {name: floor(loop) for name, loop in loops.items()}


def matcha_sides(
    task, sampler, workers: int, updates: int, mini_batches: int, method, heard: int
) -> dict[str, Callable]:
    """MATCHA against steps that send nothing, and by hand with `heard` others in every round.

    By hand everybody hears as many in every round, so that what is heard and the step are one pass.
    """
    both = gossip_sides(task, sampler, workers, updates, mini_batches, method)
    rows = fixed_indices(sampler, workers, updates, mini_batches).reshape(updates, workers, -1)
    rng = np.random.default_rng(0)
    partners = [[rng.permutation(workers) for _ in range(heard)] for _ in range(updates)]
    rows = rows, jnp.asarray(np.array(partners))
    examples = jax.tree.map(jnp.asarray, task.train)
    carry = carry_of(task.init(jax.random.key(0)), workers)
    step = hearing_step(task.losses, alpha=0.5 / heard)
    return both | {"by hand": scanned(step, carry, rows, examples)}


def local_sides(task, workers: int, updates: int) -> dict[str, Callable]:
    """Local SGD, three floors: steps and their mean as one would write them, and the union batch.

    The second holds matrices as [classes, inputs], from which products of each worker's own are
    faster. The union batch is a step of one model on as many samples as all workers take at a time.
    """
    sampler = sampler_of(task, workers, LOCAL_BATCH)
    rule = barrier(workers, LOCAL_STEPS)
    method = local_sgd(optax.sgd(LOCAL_RATE))
    ours = simulated(method, task, sampler, rule, updates, LOCAL_STEPS)
    rows = fixed_indices(sampler, workers, updates, LOCAL_STEPS)
    examples = jax.tree.map(jnp.asarray, task.train)
    at_once = rows.swapaxes(1, 2).reshape(updates * LOCAL_STEPS, -1)
    params = task.init(jax.random.key(0))

    def carry():  # which is given away
        return jax.tree.map(jnp.copy, params)

    by_hand = averaged_steps(task.losses, LOCAL_RATE)
    by_hand_turned = averaged_steps(of_turned(task.losses), LOCAL_RATE)
    return {
        "ours": ours,
        "by hand": scanned(by_hand, carry(), rows, examples),
        "by hand, turned": scanned(by_hand_turned, turned(carry()), rows, examples),
        "union": scanned(lone_step(task.losses, LOCAL_RATE), carry(), at_once, examples),
    }


def stale_sides(task, workers: int, updates: int, k: int) -> dict[str, Callable]:
    """K-batch-async against the same gradients, each at parameters of its own."""
    sampler = sampler_of(task, workers, STALE_BATCH)
    rule = RULES["k_batch_async"](Setting(STALE_LAW, workers, 1, 0), k=k)
    _, schedule = rule.extend(rule.init(), updates)
    method = all_reduce(scale_by_samples(STALE_RATE))
    ours = simulated(method, task, sampler, rule, updates, 1)
    used = sampler.indices(schedule.workers, schedule.first)
    return {"ours": ours, "floor": replay(task, used, STALE_RATE)}


def mesh_sides(
    task, sampler, workers: int, mini_batches: int = MINI_BATCHES, rounds: int = 20
) -> dict[str, Callable]:
    """Plain rounds of the mesh against `hand_written` ones, a dispatch each; on all processes."""
    devices = jax.make_mesh(
        (workers,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:workers]
    )
    stacked, everywhere = NamedSharding(devices, P(AXIS)), NamedSharding(devices, P())
    runtime = mesh.Mesh(
        all_reduce(optimizer()),
        task.losses,
        task.train,
        sampler,
        workers=workers,
        mini_batches=mini_batches,
        rounds_per_dispatch=1,
    )
    params = jax.tree.map(np.asarray, task.init(jax.random.key(0)))
    model = runtime.start(params).model
    counters = np.arange(mini_batches) + np.zeros((workers, 1), np.int64)
    indices = np.asarray(sampler.indices(np.arange(workers)[:, None], counters))
    table = packing.place(Table(indices, np.zeros(workers, np.int32)), stacked)
    examples = packing.place(jax.tree.map(np.asarray, task.train), everywhere)
    count = np.int32(1)
    ours = runtime.dispatch.lower(model, table, examples, None, count).compile()

    plain = optimizer()
    carry = params, jax.tree.map(np.asarray, plain.init(params))
    carry = jax.tree.map(lambda a: np.broadcast_to(a, (workers, *np.shape(a))), carry)
    carry = packing.place(carry, stacked)
    step = hand_written(task.losses, plain, workers, mini_batches)
    by_hand = step.lower(*carry, table.indices, examples, count).compile()

    def our_turn():
        nonlocal model
        for _ in range(rounds):
            model = jax.block_until_ready(ours(model, table, examples, None, count))
        return model

    def hand_turn():
        nonlocal carry
        for _ in range(rounds):
            carry = jax.block_until_ready(by_hand(*carry, table.indices, examples, count))
        return carry

    return {"ours": our_turn, "by hand": hand_turn}
