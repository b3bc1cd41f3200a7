"""Computations of one worker in one update, on any kind of axis.

The same functions run under `jax.vmap(axis_name=AXIS)`, `jax.pmap` and `jax.shard_map`.
`losses(params, examples) -> [b]` returns per-example losses; the functions take examples as pytrees
with leading axes [mini_batches, batch_size]. Losses that draw at random take a third argument,
uint32: the number of samples that all workers had seen before the update, plus the local steps
since. All workers then have the same draws, and new draws in every step. An argument named `worker`
gets the worker's number, for draws of its own.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm
from comms.collectives import HEADROOM, on_one_device
from comms.trees import Tree
from runtimes.equations import channels_last

NARROW = 16  # most columns of a matrix that is transposed for a faster gradient


class WorkerState(NamedTuple):
    """State of a worker between updates, besides its parameters."""

    work: Any  # state of `Algorithm.work`; () if there is none
    exchange: Any  # state of `Algorithm.exchange`


class Shared(NamedTuple):
    """State of a server beside workers with models of their own."""

    params: Any
    optimizer: Any  # state of `Algorithm.server`


def init_server(algorithm: Algorithm, params) -> Any:
    """Return a server's optimizer state, or `Shared` for workers' own models; () for no server."""
    if algorithm.server is None:
        return ()
    optimizer = algorithm.server.init(params)
    return optimizer if algorithm.adopt is None else Shared(params, optimizer)


def init(algorithm: Algorithm, params) -> WorkerState:
    work = () if algorithm.work is None else algorithm.work.init(params)
    return WorkerState(work, algorithm.exchange.init(params))


def sample_weights(batches, mini_batches: int, batch_size: int) -> jax.Array:
    """Return weights [mini_batches * batch_size] of samples in the mean over the finished ones."""
    weight = jnp.where(
        jnp.arange(mini_batches) < batches, 1.0 / (jnp.maximum(batches, 1) * batch_size), 0.0
    )
    return jnp.repeat(weight, batch_size)


def of_finished(examples: Tree, batches) -> Tree:
    """Return examples [mini_batches, ...] with the first mini-batch in place of unfinished ones.

    A weight of 0 would not exclude a gradient that is NaN, as 0 times NaN is NaN.
    """

    def leaf(a):
        finished = jnp.arange(len(a)) < batches
        return jnp.where(finished.reshape(-1, *[1] * (a.ndim - 1)), a, a[:1])

    return jax.tree.map(leaf, examples)


def flatten(examples: Tree) -> Tree:
    """Reshape [mini_batches, batch_size, ...] to [mini_batches * batch_size, ...]."""
    return jax.tree.map(lambda a: a.reshape((-1, *a.shape[2:])), examples)


Augment = Callable[[Tree, jax.Array], Tree]  # (examples [b], draws [b] uint32) -> examples


def taken(examples: Tree, indices, draws=None, augment: Augment | None = None) -> Tree:
    """Return the examples at `indices`, of any shape, each augmented with its uint32 draw."""
    batch = jax.tree.map(lambda a: a[indices], examples)
    if augment is None:
        return batch
    axes = indices.ndim
    flat = jax.tree.map(lambda a: a.reshape((-1, *a.shape[axes:])), batch)
    changed = augment(flat, draws.reshape(-1))
    return jax.tree.map(lambda a: a.reshape((*indices.shape, *a.shape[1:])), changed)


def draws(losses) -> bool:
    """Return whether losses draw at random: they take more than two arguments."""
    return len(inspect.signature(losses).parameters) > 2


def draws_alone(losses) -> bool:
    """Return whether every worker draws by itself: losses take an argument `worker`."""
    return "worker" in inspect.signature(losses).parameters


def drawn(losses, given, step=0) -> Callable[[Any, Any], jax.Array]:
    """Return the losses in a local step of an update as a function of (params, examples) alone.

    given: the update's extra arguments; losses may take `count` and `worker` from them. step: index
    of the local step since the last exchange, from 0.
    """
    asked = list(inspect.signature(losses).parameters)[2:]
    if not asked:
        return losses
    own = {"worker": given["worker"]} if "worker" in asked else {}
    shared = (
        () if asked[0] == "worker" else (given["count"] + jnp.asarray(step).astype(jnp.uint32),)
    )
    return lambda params, examples: losses(params, examples, *shared, **own)


def gradient(losses, params, examples, weights) -> optax.Updates:
    """Return the gradient of the weighted sum of per-example losses; examples, weights are flat.

    losses: function of (params, examples) alone, see `drawn`.

    On a CPU a narrow matrix is transposed before its gradient is computed. XLA is slower in
    the product of samples [784, 20] with slopes [20, 10] than in the transposed product. For
    convolutions see `equations.channels_last`.
    """

    def loss(transposed):
        held = jax.tree.map(lambda a, like: a.T if _is_narrow(like) else a, transposed, params)
        return jnp.vdot(weights, losses(held, examples))

    found = channels_last(jax.grad(loss))(
        jax.tree.map(lambda a: a.T if _is_narrow(a) else a, params)
    )
    # Without the barrier XLA would merge transpose and product into the slow product again.
    return jax.tree.map(
        lambda g, like: jax.lax.optimization_barrier(g).T if _is_narrow(like) else g, found, params
    )


def _is_narrow(param) -> bool:
    """Return whether a parameter is a matrix of few columns, on a CPU."""
    few = param.ndim == 2 and param.shape[1] <= NARROW < param.shape[0]
    return few and jax.default_backend() == "cpu"


def contribute(
    algorithm: Algorithm,
    losses,
    params,
    state: WorkerState,
    examples,
    batches,
    given,
    take: Callable[[Tree], Tree] = lambda examples: examples,
) -> tuple[optax.Updates, WorkerState]:
    """Return the contribution of the worker to the exchange, and the worker's new state.

    Only the first `batches` mini-batches count; without any the contribution is 0. take: turns the
    leaves of `examples`, such as indices, into examples with the same leading axes. Every local
    step takes only its own mini-batch, which is then still in the cache when it is used.
    """
    point = params
    if algorithm.grad_params is not None:
        point = algorithm.grad_params(state.exchange, params)
    mini_batches, batch_size = jax.tree.leaves(examples)[0].shape[:2]
    if algorithm.work is None:
        weights = sample_weights(batches, mini_batches, batch_size)
        all_finished = isinstance(batches, int) and batches == mini_batches
        known = examples if all_finished else of_finished(examples, batches)
        found = gradient(drawn(losses, given), point, flatten(take(known)), weights)
        if not (all_finished or given.get("busy")):  # even the first mini-batch may be unfinished
            found = jax.tree.map(lambda g: jnp.where(batches > 0, g, 0), found)
        return found, state

    def step(carry, mini_batch):
        index, mini_batch = mini_batch
        new = local_step(algorithm, losses, *carry, take(mini_batch), given, index)
        keep = index < batches
        return jax.tree.map(lambda a, b: jnp.where(keep, a, b), new, carry), None

    carry, _ = jax.lax.scan(step, (point, state.work), (jnp.arange(mini_batches), examples))
    return optax.tree.sub(point, carry[0]), state._replace(work=carry[1])


def begin(algorithm: Algorithm, params, state: WorkerState) -> tuple[optax.Params, Any]:
    """Return (point, accumulator) before a loop over single mini-batches, see `one_more`.

    The accumulator is the sum of the gradients at the point, times `HEADROOM`. With local steps it
    is instead the parameters after these steps.
    """
    point = params
    if algorithm.grad_params is not None:
        point = algorithm.grad_params(state.exchange, params)
    if algorithm.work is not None:
        return point, point
    return point, jax.tree.map(lambda x: jnp.zeros(x.shape, _sum_type(x)), point)


def _sum_type(x) -> jnp.dtype:
    """Return the type of sums of gradients: float32 for shorter floats, which overflow."""
    return jnp.promote_types(x.dtype, jnp.float32) if x.dtype.itemsize < 4 else x.dtype


def one_more(
    algorithm: Algorithm, losses, point, gathered, work_state, mini_batch, given, index
) -> tuple[Any, optax.OptState]:
    """Return (accumulator, work state) after one more gradient at `point` or local step.

    gathered: the accumulator before. index: of the mini-batch in the contribution.
    """
    if algorithm.work is not None:
        return local_step(algorithm, losses, gathered, work_state, mini_batch, given, index)
    size = jax.tree.leaves(mini_batch)[0].shape[0]
    weights = jnp.full(size, 1.0 / size)
    new = gradient(drawn(losses, given), point, mini_batch, weights)
    return jax.tree.map(
        lambda g, one: g + HEADROOM * one.astype(g.dtype), gathered, new
    ), work_state


def contribution_of(algorithm: Algorithm, point, gathered, batches) -> optax.Updates:
    """Return the contribution to the exchange from the accumulator of `batches` mini-batches."""
    if algorithm.work is not None:
        return optax.tree.sub(point, gathered)
    count = HEADROOM * jnp.maximum(batches, 1)
    return jax.tree.map(lambda g, x: (g / count).astype(x.dtype), gathered, point)


def local_step(
    algorithm: Algorithm, losses, live, work_state, mini_batch, given, index
) -> tuple[optax.Params, optax.OptState]:
    """Return (parameters, work state) after a step on mini-batch `index` of the contribution."""
    batch_size = jax.tree.leaves(mini_batch)[0].shape[0]
    weights = jnp.full(batch_size, 1.0 / batch_size)
    work = optax.with_extra_args_support(algorithm.work)
    found = gradient(drawn(losses, given, index), live, mini_batch, weights)
    updates, work_state = work.update(found, work_state, live, **given)
    return optax.apply_updates(live, updates), work_state


def exchange(
    algorithm: Algorithm, contribution, params, state: WorkerState, batches, given, weight
) -> tuple[optax.Updates, WorkerState]:
    """Run the exchange; return (its result, the worker's new state)."""
    updates, exchange_state = algorithm.exchange.update(
        contribution, state.exchange, params, weight=weight, batches=batches, **given
    )
    return updates, state._replace(exchange=exchange_state)


def serve(
    algorithm: Algorithm, reduced, params, server_state, batches, given
) -> tuple[optax.Params, optax.OptState]:
    """Return (params, server state) after the server's step with the result of an exchange.

    batches: finished mini-batches of all workers together.
    """
    server = optax.with_extra_args_support(algorithm.server)
    updates, server_state = server.update(reduced, server_state, params, batches=batches, **given)
    return optax.apply_updates(params, updates), server_state


def exchanged(
    algorithm: Algorithm, contribution, points, axis, state, batches, common: dict, own: dict
) -> tuple[Any, WorkerState]:
    """Run the exchange of all participants, [k, ...]; return (result of each, their states).

    points: parameters at which contributions were taken; axis: 0, or None if shared. common: extra
    arguments from the schedule, equal on all workers; own: extra arguments with a leading axis.
    """

    def of_one(contribution, params, state, batches, own):
        weight = algorithm.weight(batches)
        given = {**common, **own}
        return exchange(algorithm, contribution, params, state, batches, given, weight)

    with on_one_device():
        return jax.vmap(of_one, in_axes=(0, axis, 0, 0, 0), axis_name=AXIS)(
            contribution, points, state, batches, own
        )


def served(algorithm: Algorithm, updates, current, server, batches, common) -> tuple[Any, Any]:
    """Return `serve` for the result [k, ...] of an exchange, of which all k rows are equal.

    batches: [k] finished mini-batches of the participants.
    """
    reduced = jax.tree.map(lambda u: u[0], updates)
    return serve(algorithm, reduced, current, server, batches.sum(), common)
