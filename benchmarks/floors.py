"""Hand-written steps that do the arithmetic and nothing else: what ours are measured against.

Steps are (carry, rows, examples) -> carry: the carry is parameters and the optimizer's state, rows
are the indices of the samples of an update. A *candidate* is a call that goes on from where it
stopped and returns the arrays to wait for, see `experiments.stopwatch`.
"""

import functools
import heapq
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS

RATE, DECAY = 0.05, 0.9


def plain() -> optax.GradientTransformation:
    """The same optimizer as a library has it."""
    return optax.sgd(RATE, momentum=DECAY)


def gradient_of(losses: Callable) -> Callable:
    """(parameters, indices [b], examples) -> gradient of the mean loss."""

    def gradient(params, rows, examples):
        batch = jax.tree.map(lambda a: a[rows], examples)
        return jax.grad(lambda p: losses(p, batch).mean())(params)

    return gradient


def union_step(losses: Callable) -> Callable:
    """One step of momentum SGD on the union batch; rows [b]."""
    gradient, optimizer = gradient_of(losses), plain()

    def step(carry, rows, examples):
        params, state = carry
        update, state = optimizer.update(gradient(params, rows, examples), state)
        return optax.apply_updates(params, update), state

    return step


def local_step(losses: Callable) -> Callable:
    """A step of every worker on its own model, nothing is sent; rows [n, b], stacked carry."""
    return jax.vmap(union_step(losses), in_axes=(0, 0, None))


def lone_step(losses: Callable, rate: float) -> Callable:
    """A step of plain SGD; the carry is the parameters, rows [b]."""
    gradient = gradient_of(losses)

    def step(params, rows, examples):
        moved = gradient(params, rows, examples)
        return jax.tree.map(lambda p, g: p - rate * g, params, moved)

    return step


def averaged_steps(losses: Callable, rate: float) -> Callable:
    """Steps of plain SGD of every worker from one model, then their mean; rows [n, steps, b]."""
    one = lone_step(losses, rate)

    def step(params, rows, examples):
        def worker(rows):
            return jax.lax.scan(lambda p, r: (one(p, r, examples), None), params, rows)[0]

        return jax.tree.map(lambda a: a.mean(0), jax.vmap(worker)(rows))

    return step


def turned(params: optax.Params) -> optax.Params:
    """Matrices transposed."""
    return jax.tree.map(lambda a: a.T if a.ndim == 2 else a, params)


def of_turned(losses: Callable) -> Callable:
    """The same losses, of parameters that are held as `turned` makes them."""
    return lambda params, batch: losses(turned(params), batch)


def ring_step(losses: Callable) -> Callable:
    """A step of D-PSGD on a ring of three workers or more; as `local_step`.

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


def hearing_step(losses: Callable, alpha: float) -> Callable:
    """As `local_step`, and each hears others; rows ([n, b], partners [m, n]), stacked carry."""
    gradient, optimizer = gradient_of(losses), plain()

    def step(carry, rows, examples):
        (params, state), (rows, partners) = carry, rows
        gradients = jax.vmap(gradient, in_axes=(0, 0, None))(params, rows, examples)
        update, state = jax.vmap(optimizer.update)(gradients, state)

        def leaf(a, moved):
            heard = sum(a[partners[m]] for m in range(len(partners)))
            return a + alpha * (heard - len(partners) * a) + moved

        return jax.tree.map(leaf, params, update), state

    return step


def carry_of(params, workers: int | None = None) -> tuple[optax.Params, optax.OptState]:
    """Parameters, a copy for each of the workers, and the optimizer's state."""
    if workers is None:
        return params, plain().init(params)
    stacked = jax.tree.map(lambda a: jnp.stack([a] * workers), params)
    return stacked, jax.vmap(plain().init)(stacked)


def plain_loop(
    task, durations: list[list[float]], indices, k: int, updates: int, rate: float
) -> Callable:
    """A candidate: train from the start, an event at a time; the last parameters.

    indices: [P, counters, batch].
    """
    examples = jax.tree.map(jnp.asarray, task.train)
    gradient = jax.jit(gradient_of(task.losses))
    add = jax.jit(functools.partial(jax.tree.map, jnp.add))
    step = jax.jit(lambda w, total: jax.tree.map(lambda a, g: a - rate / k * g, w, total))
    start = task.init(jax.random.key(0))

    def run():
        w, draws = start, [iter(row) for row in durations]
        read, counters = [w] * len(draws), [0] * len(draws)
        flying = [(next(draw), i) for i, draw in enumerate(draws)]
        heapq.heapify(flying)
        for _ in range(updates):
            total = None
            for c in range(k):
                now, i = heapq.heappop(flying)
                g = gradient(read[i], indices[i, counters[i]], examples)
                total = g if total is None else add(total, g)
                counters[i] += 1
                if c == k - 1:
                    w = step(w, total)
                read[i] = w
                heapq.heappush(flying, (now + next(draws[i]), i))
        return w

    return run


def scanned(step: Callable, carry, rows, examples) -> Callable:
    """A candidate: a step for each of rows [T, ...], in one program."""

    @functools.partial(jax.jit, donate_argnums=0)
    def run(carry, rows, examples):
        return jax.lax.scan(lambda c, r: (step(c, r, examples), None), carry, rows)[0]

    def turn():
        nonlocal carry
        carry = run(carry, rows, examples)
        return carry

    return turn


def one_by_one(step: Callable, carry, rows, examples) -> Callable:
    """A candidate: a call of the compiled step for each of rows [T, ...], as loops are written."""
    program = jax.jit(step, donate_argnums=0)
    rows = list(rows)

    def turn():
        nonlocal carry
        for row in rows:
            carry = program(carry, row, examples)
        return carry

    return turn


def replay(task, indices, rate: float) -> Callable:
    """A candidate: gradients [T, k], each at parameters of its own, and nothing else."""
    gradient = gradient_of(task.losses)
    examples = jax.tree.map(jnp.asarray, task.train)

    def step(points, rows, examples):
        moved = jax.vmap(gradient, in_axes=(0, 0, None))(points, rows, examples)
        return jax.tree.map(lambda p, g: p - rate * g, points, moved)

    params = task.init(jax.random.key(0))
    points = jax.tree.map(lambda a: jnp.stack([a] * indices.shape[1]), params)
    return scanned(step, points, jnp.asarray(indices), examples)


def hand_written(losses, optimizer, workers: int, mini_batches: int) -> Callable:
    """The step that one would write by hand: (params, state, table, examples, count) -> same.

    Stacked params and optimizer state; table [workers, rounds * mini_batches, b] of sample
    indices; `count` rounds in one dispatch.
    """
    devices = jax.make_mesh(
        (workers,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:workers]
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    @functools.partial(
        jax.shard_map,
        mesh=devices,
        in_specs=(P(AXIS), P(AXIS), P(AXIS), P(), P()),
        out_specs=P(AXIS),
        check_vma=False,
    )
    def rounds(params, state, table, examples, count):
        params, state, table = jax.tree.map(lambda a: a[0], (params, state, table))

        def step(t, carry):
            params, state = carry
            rows = jax.lax.dynamic_slice_in_dim(table, t * mini_batches, mini_batches).ravel()
            batch = jax.tree.map(lambda a: a[rows], examples)
            gradient = jax.grad(lambda p: losses(p, batch).mean())(params)
            gradient = jax.lax.pmean(gradient, AXIS)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        carry = jax.lax.fori_loop(0, count, step, (params, state))
        return jax.tree.map(lambda a: a[None], carry)

    return rounds
