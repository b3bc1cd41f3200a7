"""Hand-written steps that do the arithmetic alone, and our side beside them, as candidates.

Steps are (carry, rows, examples) -> carry: the carry is parameters and the optimizer's state, rows
are the indices of the samples of an update. A *candidate* is a call that goes on from where it
stopped and returns the arrays to wait for, see `experiments.stopwatch`. Our side contains
everything: planning the schedule, choosing samples, dispatching.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms import all_reduce, dpsgd
from algorithms.base import AXIS, scale_by_samples
from algorithms.powersgd import factored_all_reduce, first_factor, low_rank
from algorithms.row_sparse import compacted
from comms import bitmap, compact, lattice, quantise, sketch, sparse, topology
from experiments import tasks
from experiments.tasks import data, dense_tasks, sampling
from runtimes import mesh, simulate
from runtimes.base import NO_OVERLAP
from runtimes.rounds import Table
from stragglers import delays
from stragglers.rule import Rule, Setting
from stragglers.rules import RULES

RATE, DECAY = 0.05, 0.9
MINI_BATCHES, BATCH = 8, 16
STALE_RATE = 0.001  # stable with gradients that are 63 updates old
STALE_BATCH = 32
STALE_LAW = delays.shifted_exponential(1.0, 1.0)

# --- hand-written steps ---


def plain() -> optax.GradientTransformation:
    """Return our `optimizer` as optax has it."""
    return optax.sgd(RATE, momentum=DECAY)


def gradient_of(losses: Callable) -> Callable:
    """Return (parameters, indices [b], examples) -> gradient of the mean loss."""

    def gradient(params, rows, examples):
        batch = jax.tree.map(lambda a: a[rows], examples)
        return jax.grad(lambda p: losses(p, batch).mean())(params)

    return gradient


def union_step(losses: Callable) -> Callable:
    """Return one step of momentum SGD on the union batch; rows [b]."""
    gradient, optimizer = gradient_of(losses), plain()

    def step(carry, rows, examples):
        params, state = carry
        update, state = optimizer.update(gradient(params, rows, examples), state)
        return optax.apply_updates(params, update), state

    return step


def local_step(losses: Callable) -> Callable:
    """Return a step of every worker on its own model, without any exchange; rows [n, b]."""
    return jax.vmap(union_step(losses), in_axes=(0, 0, None))


def ring_step(losses: Callable) -> Callable:
    """Return a step of D-PSGD on a ring of three workers or more; rows [n, b].

    Every worker adds its own update to the mean of itself and both neighbours.
    """
    gradient, optimizer = gradient_of(losses), plain()

    def step(carry, rows, examples):
        params, state = carry
        gradients = jax.vmap(gradient, in_axes=(0, 0, None))(params, rows, examples)
        update, state = jax.vmap(optimizer.update)(gradients, state)
        mixed = jax.tree.map(lambda a: (a + jnp.roll(a, 1, 0) + jnp.roll(a, -1, 0)) / 3, params)
        return optax.apply_updates(mixed, update), state

    return step


def carry_of(params, workers: int | None = None) -> tuple[optax.Params, optax.OptState]:
    """Return parameters and the optimizer's state, with a copy for each of the workers, if any."""
    if workers is None:
        return params, plain().init(params)
    stacked = jax.tree.map(lambda a: jnp.stack([a] * workers), params)
    return stacked, jax.vmap(plain().init)(stacked)


def going_on(advance: Callable, carry) -> Callable:
    """Return a candidate that calls advance(carry) -> carry with the last turn's carry."""

    def turn():
        nonlocal carry
        carry = advance(carry)
        return carry

    return turn


def scanned(step: Callable, carry, rows, examples) -> Callable:
    """Return a candidate: one program with a step for each of the rows [T, ...]."""

    @functools.partial(jax.jit, donate_argnums=0)
    def run(carry, rows, examples):
        return jax.lax.scan(lambda c, r: (step(c, r, examples), None), carry, rows)[0]

    return going_on(lambda carry: run(carry, rows, examples), carry)


def one_by_one(step: Callable, carry, rows, examples) -> Callable:
    """Return a candidate: a call of the compiled step for each of the rows [T, ...]."""
    program, rows = jax.jit(step, donate_argnums=0), list(rows)

    def run(carry):
        for row in rows:
            carry = program(carry, row, examples)
        return carry

    return going_on(run, carry)


def replay(task, indices, rate: float) -> Callable:
    """Return a candidate: T steps of k gradients, each at its own parameters, and nothing else."""
    gradient = gradient_of(task.losses)
    examples = jax.tree.map(jnp.asarray, task.train)

    def step(points, rows, examples):
        moved = jax.vmap(gradient, in_axes=(0, 0, None))(points, rows, examples)
        return jax.tree.map(lambda p, g: p - rate * g, points, moved)

    params = task.init(jax.random.key(0))
    points = jax.tree.map(lambda a: jnp.stack([a] * indices.shape[1]), params)
    return scanned(step, points, jnp.asarray(indices), examples)


def stacked(workers: int) -> NamedSharding:
    """Return the sharding of arrays [workers, ...] over the first `workers` devices."""
    devices = jax.make_mesh(
        (workers,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:workers]
    )
    return NamedSharding(devices, P(AXIS))


def hand_written(losses, optimizer, workers: int, mini_batches: int) -> Callable:
    """Return hand-written rounds: (params, state, table, examples, count) -> (params, state).

    Params and optimizer state are stacked; table [workers, rounds * mini_batches, b] has sample
    indices; `count` rounds run in one dispatch.
    """

    gradient_at = gradient_of(losses)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    @functools.partial(
        jax.shard_map, mesh=stacked(workers).mesh, in_specs=(P(AXIS), P(AXIS), P(AXIS), P(), P()),
        out_specs=P(AXIS), check_vma=False,
    )  # fmt: skip
    def rounds(params, state, table, examples, count):
        params, state, table = jax.tree.map(lambda a: a[0], (params, state, table))

        def step(t, carry):
            params, state = carry
            rows = jax.lax.dynamic_slice_in_dim(table, t * mini_batches, mini_batches).ravel()
            gradient = jax.lax.pmean(gradient_at(params, rows, examples), AXIS)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        carry = jax.lax.fori_loop(0, count, step, (params, state))
        return jax.tree.map(lambda a: a[None], carry)

    return rounds


LOOPED = {"floor": scanned}

# --- tasks ---


def noise(model: str, samples: int, shape: tuple[int, ...], classes: int = 10) -> tasks.Task:
    """Return a task: noise of the shape of images, with a model of `experiments.tasks`."""
    rng = np.random.default_rng(0)
    train = data.Images(
        rng.random((samples, *shape), np.float32),
        rng.integers(0, classes, samples).astype(np.int32),
    )
    return dense_tasks.classification("noise", data.Dataset(train, train, classes), model)


def sampler_of(task: tasks.Task, workers: int, batch: int) -> sampling.Sampler:
    return sampling.Sampler(data.SPLITS["iid"](task.labels, workers, 0), batch, 0)


def task_and_sampler(workers: int) -> tuple[tasks.Task, sampling.Sampler]:
    """Return digits with an MLP; beyond 64 workers the images repeat, so that all have some."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp"}})
    repeats = max(1, workers * MINI_BATCHES * BATCH // len(task.labels) // 4)
    train, labels = jax.tree.map(
        lambda a: np.concatenate([a] * repeats), (task.train, task.labels)
    )
    task = task._replace(train=train, labels=labels)
    return task, sampler_of(task, workers, BATCH)


# --- our side ---


def optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.trace(DECAY), scale_by_samples(RATE))


def waiting(method, workers: int, mini_batches: int = MINI_BATCHES) -> Rule:
    """Return a barrier, or one of neighbours where the method has a graph."""
    rule = RULES["barrier" if method.graph is None else "neighbour_barrier"]
    law = delays.exponential(1.0)
    return rule(Setting(law, workers, mini_batches, 0, method.graph, method.links))


def simulated(method, task, sampler, rule, updates, mini_batches=MINI_BATCHES) -> Callable:
    """Return a candidate that advances a simulator by `updates` updates."""
    runtime = simulate.Simulator(
        method, task.losses, task.train, sampler, rule, mini_batches=mini_batches
    )
    return advancing(runtime, task, updates)


def advancing(runtime, task, updates: int) -> Callable:
    """Return a candidate that advances a runtime by `updates` updates and returns its model."""
    start = runtime.start(task.init(jax.random.key(0)))
    turn = going_on(lambda state: runtime.advance(state, np.inf, updates)[0], start)
    return lambda: turn().model


# --- both sides of a comparison ---


def sides(
    task, sampler, workers: int, updates: int, method=None, step: Callable = union_step,
    mini_batches: int = MINI_BATCHES, loops: Mapping[str, Callable] = LOOPED,
) -> dict[str, Callable]:  # fmt: skip
    """Return a method in the simulator, and a hand-written step in each of `loops`.

    method: None: all-reduce SGD, or D-PSGD on a ring unless the step is on the union batch. step:
    `union_step`; `local_step`, which sends nothing, or `ring_step`, which is D-PSGD on a ring.
    """
    is_union = step is union_step
    if method is None and is_union:
        method = all_reduce(optimizer())
    method = method or dpsgd(optimizer(), topology.ring(workers))
    rule = waiting(method, workers, mini_batches)
    ours = simulated(method, task, sampler, rule, updates, mini_batches)
    ids = np.broadcast_to(np.arange(workers)[:, None], (updates, workers, mini_batches))
    counters = np.arange(updates * mini_batches).reshape(updates, 1, mini_batches)
    rows = jnp.asarray(sampler.indices(ids, np.broadcast_to(counters, ids.shape)))
    rows = rows.reshape((updates, -1) if is_union else (updates, workers, -1))
    examples = jax.tree.map(jnp.asarray, task.train)
    found = {"ours": ours}
    for name, loop in loops.items():  # each has a carry of its own, which it donates
        carry = carry_of(task.init(jax.random.key(0)), None if is_union else workers)
        found[name] = loop(step(task.losses), carry, rows, examples)
    return found


def stale_sides(task, workers: int, updates: int, k: int) -> dict[str, Callable]:
    """Return K-batch-async against the same gradients, each at parameters of its own."""
    sampler = sampler_of(task, workers, STALE_BATCH)
    rule = RULES["k_batch_async"](Setting(STALE_LAW, workers, 1, 0), k=k)
    _, schedule = rule.extend(rule.init(), updates)
    method = all_reduce(scale_by_samples(STALE_RATE))
    ours = simulated(method, task, sampler, rule, updates, 1)
    used = sampler.indices(schedule.workers, schedule.first)
    return {"ours": ours, "floor": replay(task, used, STALE_RATE)}


def mesh_sides(
    task, sampler, workers: int, updates: int = 20, mini_batches: int = MINI_BATCHES
) -> dict[str, Callable]:
    """Return plain rounds of the mesh and hand-written ones, a dispatch each."""
    program, model, *rest = compiled_round(
        all_reduce(optimizer()), task, sampler, workers, mini_batches
    )
    table, examples, _, count = rest
    carry = carry_of(task.init(jax.random.key(0)), workers)
    carry = jax.device_put(carry, stacked(workers))
    arguments = table.indices, examples, count
    step = hand_written(task.losses, plain(), workers, mini_batches)
    step = step.lower(*carry, *arguments).compile()
    return {
        "ours": dispatched(program, model, *rest, rounds=updates),
        "by hand": dispatched(
            lambda carry, *rest: step(*carry, *rest), carry, *arguments, rounds=updates
        ),
    }


def compiled_round(
    method, task, sampler, workers: int, mini_batches: int = 1, overlap: str = NO_OVERLAP,
    options: Mapping | None = None,
) -> tuple:  # fmt: skip
    """Return the compiled program of a plain round on the mesh, and its arguments.

    The arguments are (model, table, examples, draws, rounds). options: of the compiler.
    """
    runtime = mesh.Mesh(
        method, task.losses, task.train, sampler, workers=workers, mini_batches=mini_batches,
        rounds_per_dispatch=1, overlap=overlap,
    )  # fmt: skip
    model = runtime.start(task.init(jax.random.key(0))).model
    counters = np.arange(mini_batches) + np.zeros((workers, 1), np.int64)
    indices = sampler.indices(np.arange(workers)[:, None], counters)
    where = stacked(workers)
    table = jax.device_put(Table(np.asarray(indices), np.zeros(workers, np.int32)), where)
    examples = jax.device_put(task.train, NamedSharding(where.mesh, P()))
    arguments = model, table, examples, None, np.int32(1)
    return runtime.dispatch.lower(*arguments).compile(compiler_options=options), *arguments


def dispatched(program: Callable, carry, *rest, rounds: int = 20) -> Callable:
    """Return a candidate: `rounds` rounds, each of which ends before the next one begins."""

    def run(carry):
        for _ in range(rounds):
            carry = jax.block_until_ready(program(carry, *rest))
        return carry

    return going_on(run, carry)


# --- calls that encode and decode a gradient once, as one worker would ---

# The network is left out: a message is decoded by the worker that encoded it, and the union is its
# own. Row-sparse gradients have rows of 500.

ROW, DENSITY, COPY = 500, 0.02, "copy"
SMALL = 10_000_000  # coordinates
LEAST = 20 * ROW  # of these, for which every codec saves bytes
# Two workers, as one does not round; with halves, as an output of two wholes would have new pages.
BOTH = ", 2 workers with a half each"
IN_TWO_PHASES = {
    "int8": quantise.int8_codec(), "int4": quantise.int4_codec(), "mxfp4": quantise.mxfp4_codec(),
    "fp8 e4m3": quantise.fp8_codec(), "fp8 e5m2": quantise.fp8_codec(quantise.E5M2),
}  # fmt: skip
CODEC_SEED = 7


def gradients(size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return three gradients of `size` entries: sparse in rows, in coordinates, and dense."""
    rng = np.random.default_rng(0)
    rows, coordinates = np.zeros((size // ROW, ROW), np.float32), np.zeros(size, np.float32)
    for array in (rows, coordinates):
        chosen = rng.choice(len(array), int(len(array) * DENSITY), replace=False)
        array[chosen] = rng.standard_normal((len(chosen), *array.shape[1:]), np.float32)
    dense = rng.standard_normal((size // ROW, ROW), np.float32)
    return tuple(jnp.asarray(x) for x in (rows, coordinates, dense))


def _s2(x, rows: int, columns: int, decode=sketch.decode_at) -> jax.Array:
    table = sketch.encode(x, rows, columns, CODEC_SEED)
    return decode(table, bitmap.pack(bitmap.occupied(x)), len(x), CODEC_SEED)


def _both(both, keys, codec) -> jax.Array:
    run = functools.partial(quantise.two_phase_all_reduce, codec=codec)
    return jax.vmap(lambda x, key: run(x, key=key).total, axis_name=AXIS)(both, keys)


def _on_a_lattice(rows, bits: int) -> jax.Array:
    """Encode, and decode relative to a vector nearby."""
    side = lattice.side_for(jnp.full(len(rows), 0.2), bits)
    message, _ = lattice.encode(rows, side, bits)
    return lattice.decode(message, rows + 0.05, bits)


def _on_the_wire(x, codec) -> tuple[jax.Array, jax.Array]:
    """Return the message and its decoding; without the message compilers drop conversions."""
    message = codec.encode(x.reshape(1, -1), None)
    return message, codec.decode(message, x.size)


def codecs(size: int) -> dict[str, tuple[Callable, int]]:
    """Return calls that encode and decode once, and the bytes of their messages."""
    rows, coordinates, dense = gradients(size)
    busy, k = max(1, int(len(rows) * DENSITY)), max(1, int(size * DENSITY))
    key = jax.random.key(CODEC_SEED)
    found: dict[str, tuple[Callable, int]] = {}

    def add(name: str, message: int, run: Callable, *args, **static) -> None:
        program = jax.jit(functools.partial(run, **static))
        found[name] = functools.partial(program, *args), message

    def alone(codec):
        """Return a collective as a single worker runs it, where sums are copies."""
        return lambda *args: jax.vmap(codec, axis_name=AXIS)(*(a[None] for a in args))

    add(COPY, 4 * size, jnp.copy, dense)
    kinds = {"rows": (rows, busy, (ROW,)), "coordinates": (coordinates, k, ())}
    for kind, (x, count, shape) in kinds.items():
        known = bitmap.payload_bytes(len(x))
        for r in (1, 5):
            add(f"S2, {kind}, r = {r}", known + sketch.payload_bytes(r, 3 * count, shape),
                _s2, x, rows=r, columns=3 * count)  # fmt: skip
        add(f"S2 peeled, {kind}, r = 3", known + sketch.payload_bytes(3, count, shape),
            _s2, x, rows=3, columns=count, decode=sketch.recover)  # fmt: skip
        add(f"bitmap, {kind}", known,
            lambda x: bitmap.unpack(bitmap.pack(bitmap.occupied(x)), len(x)), x)  # fmt: skip
    for name, codec in (("bf16", quantise.BFLOAT16), ("fp16", quantise.FLOAT16)):
        add(f"{name}, as integers", codec.payload_bytes(size), _on_the_wire, dense, codec=codec)
    both, keys = dense.reshape(2, -1), jax.random.split(key)
    for name, codec in IN_TWO_PHASES.items():
        sent = 2 * quantise.two_phase_bytes(size // 2, 2, codec)
        add(name + BOTH, sent, _both, both, keys, codec=codec)
    add("exact union, rows", compacted(lambda n: 2 * busy).payload(rows, 1, 0).size,
        alone(lambda x: compact.all_reduce(x, 2 * busy)[0]), rows)  # fmt: skip
    add("top-k", sparse.payload_bytes(k, dense.dtype),
        lambda x: sparse.decode(sparse.top_k(x, k, ordered=False), size), dense)  # fmt: skip
    add("random-k", k * dense.itemsize,
        lambda x: sparse.random_k_decode(sparse.random_k(x, k, key), size, key), dense)  # fmt: skip
    add("QSGD, 4 bits", quantise.qsgd_payload_bytes(size, 7),
        lambda x: quantise.qsgd_decode(quantise.qsgd(x, 7, key), size, 7), dense)  # fmt: skip
    add("natural", quantise.natural_payload_bytes(size),
        lambda x: quantise.natural_decode(quantise.natural(x, key)), dense)  # fmt: skip
    add("sign", quantise.sign_payload_bytes(size),
        lambda x: quantise.sign_decode(quantise.sign(x), size), dense)  # fmt: skip
    add("bf16", 2 * size, lambda x: (x.astype(jnp.bfloat16),
                                     x.astype(jnp.bfloat16).astype(x.dtype)), dense)  # fmt: skip
    add("lattice, 8 bits", lattice.payload_bytes(size, 8),
        _on_a_lattice, lattice.in_buckets(dense.ravel()), bits=8)  # fmt: skip
    add("PowerSGD, rank 4", low_rank(4, 0).payload(dense, 1, 0).size,
        alone(factored_all_reduce), dense, first_factor(dense.shape, 4, key))  # fmt: skip
    return found
