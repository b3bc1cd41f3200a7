"""Compressed all-reduce: the parts that methods with compressed gradients share.

A `Reducer` sums one array over the workers, usually only approximately; wrappers give it a memory
of omitted values, or a dense start. `algorithms.mean` turns reducers into methods.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.base import AXIS
from comms.collectives import divide
from comms.messages import Payload


class Draw(NamedTuple):
    """Keys, weights and counter that a reducer gets besides its array."""

    shared: jax.Array  # key, equal on all workers
    own: jax.Array  # key, different on every worker
    weight: jax.Array  # [] float32, factor of the array; 0: the worker finished nothing
    full: jax.Array  # [] float32, weight of a worker that has finished a full round
    total: jax.Array  # [] float32, sum of all workers' weights, by which the sum is divided later
    update: jax.Array  # [] int32, updates done before

    @property
    def busy(self) -> jax.Array:
        """[] bool, true if the worker has finished something; otherwise its array is 0."""
        return self.weight > 0

    @property
    def unit(self) -> jax.Array:
        """[] float32, factor for values of the worker's unweighted memory; if idle: `full`."""
        return jnp.where(self.busy, self.weight, self.full)


class Encoder(NamedTuple):
    """Encoding of one array as a message, where every worker gathers all messages."""

    encode: Callable[[jax.Array, Any], Any]  # (x, key of this worker or None) -> message
    decode: Callable[[Any, int], jax.Array]  # (message, entries) -> float32 [entries]
    payload_bytes: Callable[[int], int]  # entries -> bytes
    picks: bool = False  # True: messages leave entries out


class Reducer(NamedTuple):
    """Sum of one array over the workers.

    init: array or its shape -> state of a worker.
    reduce: (x, state, draw) -> (sum over the workers, this worker's part of it, state);
        the parts of all workers add up to the sum. x is already weighted, in float32.
    payload: (array or its shape, workers, update) -> Payload, or a tuple of payloads that follow
        one another.
    name: for errors.
    encoder: encoding of a worker's array, if all workers gather all messages.
    within: another reducer -> a reducer that picks like this one and sums by the other one.
    instead: (array or its shape, workers) -> the payloads of every alternative that is sent where
        the data do not fit the plan; the reducer's state then holds `Fallbacks`. None: messages do
        not depend on the data.
    pushed: array or its shape -> Payload where workers push to a server; None: as `payload`.
    amplifies: why errors may be as large as the array, so that they would grow in a memory, and a
        remedy; None: errors are smaller.
    """

    init: Callable[[Any], Any]
    reduce: Callable[[jax.Array, Any, Draw], tuple[jax.Array, jax.Array, Any]]
    payload: Callable[[Any, int, int], Payload | tuple[Payload, ...]]
    name: str = "reducer"
    encoder: Encoder | None = None
    within: Callable[["Reducer"], "Reducer"] | None = None
    instead: Callable[[Any, int], tuple[tuple[Payload, ...], ...]] | None = None
    pushed: Callable[[Any], Payload] | None = None
    amplifies: str | None = None


class Fallbacks(NamedTuple):
    """State of a reducer that sends an alternative where its plan does not fit the data."""

    taken: jax.Array  # [alternatives] int32, updates in which each was sent
    unresolved: jax.Array  # [] float32, rows beyond the plan's room, summed over updates


class Memory(NamedTuple):
    """Values that a worker has not sent yet, in units of its unweighted contributions."""

    residual: jax.Array  # shape of the parameter, float32
    inner: Any


class Velocity(NamedTuple):
    """Memory with momentum: u and v of DGC, arXiv 1712.01887 Sec. 3.2."""

    velocity: jax.Array  # shape of the parameter, float32
    residual: jax.Array  # as in `Memory`
    inner: Any


def check_reducer(name: str, given: Any, what: str = "exchange") -> None:
    """Raise ValueError if `given` is no reducer; name: of the method, what: of its parameter."""
    if not isinstance(given, Reducer):
        raise ValueError(f"{name}: {what}={given} is no reducer; write reducers.bf16()")


def dense() -> Reducer:
    """All-reduce everything."""

    def reduce(x, state, draw):
        del draw
        return jax.lax.psum(x, AXIS), x, state

    return Reducer(lambda leaf: (), reduce, lambda leaf, *_: Payload((4 * math.prod(leaf.shape),)))


def with_seed(inner: Reducer, seed: int | None) -> Reducer:
    """Return `inner` with random draws that also depend on `seed`; None: `inner` unchanged."""
    if seed is None:
        return inner

    def reduce(x, state, draw):
        shared, own = (jax.random.fold_in(key, seed) for key in (draw.shared, draw.own))
        return inner.reduce(x, state, draw._replace(shared=shared, own=own))

    def encode(x, key):
        return inner.encoder.encode(x, None if key is None else jax.random.fold_in(key, seed))

    def within(other):
        return with_seed(inner.within(other), seed)

    return inner._replace(
        reduce=reduce,
        encoder=inner.encoder and inner.encoder._replace(encode=encode),
        within=inner.within and within,
    )


def with_error_feedback(inner: Reducer, decay: float = 1.0) -> Reducer:
    """Add unsent values to the next message: sum(sent) + residual = sum(contribution).

    decay: share of the residual that stays from one contribution to the next; below 1 the equation
    does not hold.

    The equation holds for every worker by itself, whatever its weights are: the residual is kept
    unweighted, and gets the weight of the contribution that it is added to. So a worker needs to
    know nothing of the others. An idle worker may sum a chunk for all workers. Only rounding errors
    of this chunk, with the weight of a full round, change its residual. Karimireddy et al., arXiv
    1901.09847.
    """

    def reduce(x, state, draw):
        before = state.residual if decay == 1 else decay * state.residual
        owed = jnp.where(draw.busy, x + draw.weight * before, 0)
        total, sent, inner_state = inner.reduce(owed, state.inner, draw)
        kept = jnp.where(draw.busy, 0, state.residual)
        left = kept + (owed - sent) / draw.unit
        return total, sent, Memory(left, inner_state)

    return Reducer(
        lambda leaf: Memory(_zeros(leaf), inner.init(leaf)),
        reduce,
        inner.payload,
        instead=inner.instead,
        pushed=inner.pushed,
    )


def with_momentum_correction(inner: Reducer, decay: float) -> Reducer:
    """Apply error feedback to velocities instead of gradients: momentum precedes the compression.

    The velocity of sent entries is cleared as well (momentum factor masking). Lin et al., "Deep
    gradient compression", arXiv 1712.01887 Sec. 3.2; the optimizer needs no momentum of its own.
    """

    def reduce(x, state, draw):
        velocity = decay * state.velocity + x / draw.unit
        residual = state.residual + velocity
        owed = jnp.where(draw.busy, draw.weight * residual, 0)
        total, sent, inner_state = inner.reduce(owed, state.inner, draw)
        new = jnp.where(sent != 0, 0, velocity), (owed - sent) / draw.unit
        kept = (jnp.where(draw.busy, a, b) for a, b in zip(new, state[:2], strict=True))
        return total, sent, Velocity(*kept, inner_state)

    return Reducer(
        lambda leaf: Velocity(_zeros(leaf), _zeros(leaf), inner.init(leaf)),
        reduce,
        inner.payload,
        instead=inner.instead,
        pushed=inner.pushed,
    )


def with_dense_warmup(inner: Reducer, updates: int) -> Reducer:
    """Send everything in the first `updates` updates."""
    if updates == 0:
        return inner
    plain = dense()

    def reduce(x, state, draw):
        branches = plain.reduce, inner.reduce
        return jax.lax.cond(draw.update < updates, *branches, x, state, draw)

    def payload(leaf, workers, update):
        return (plain if update < updates else inner).payload(leaf, workers, update)

    return Reducer(inner.init, reduce, payload, instead=inner.instead)


def reshaped(inner: Reducer, shape_of: Callable[[int], tuple[int, ...]]) -> Reducer:
    """Let a reducer see arrays in another shape, padded with zeros.

    shape_of: number of entries of an array -> the shape, with no fewer entries.
    """

    def seen(leaf):
        return jax.ShapeDtypeStruct(shape_of(math.prod(leaf.shape)), leaf.dtype)

    def reduce(x, state, draw):
        shape = shape_of(x.size)
        filled = jnp.pad(x.ravel(), (0, math.prod(shape) - x.size)).reshape(shape)
        total, sent, state = inner.reduce(filled, state, draw)
        total, sent = (a.ravel()[: x.size].reshape(x.shape) for a in (total, sent))
        return total, sent, state

    return inner._replace(
        init=lambda leaf: inner.init(seen(leaf)),
        reduce=reduce,
        payload=lambda leaf, workers, update: inner.payload(seen(leaf), workers, update),
        instead=inner.instead and (lambda leaf, workers: inner.instead(seen(leaf), workers)),
        pushed=inner.pushed and (lambda leaf: inner.pushed(seen(leaf))),
    )


def share(total, draw: Draw) -> jax.Array:
    """Return a worker's part of a sum whose true parts are unknown: its share by weight."""
    return total * divide(draw.weight, draw.total)


def no_fallbacks(alternatives: int) -> Fallbacks:
    """Return zero counters for this number of alternatives."""
    return Fallbacks(jnp.zeros(alternatives, jnp.int32), jnp.float32(0))


def count_fallback(state: Fallbacks, chosen, unresolved) -> Fallbacks:
    """Count an update by its choice: 0, the plan, or i, alternative i; unresolved: rows left."""
    numbers = 1 + jnp.arange(len(state.taken))
    return Fallbacks(
        state.taken + (numbers == chosen), state.unresolved + unresolved.astype(jnp.float32)
    )


def counters(states) -> list[Fallbacks]:
    """Return all counters in the state of a reducer, or of several, in order."""
    nodes = jax.tree.leaves(states, is_leaf=lambda node: isinstance(node, Fallbacks))
    return [node for node in nodes if isinstance(node, Fallbacks)]


def times_fallen(states) -> jax.Array:
    """Return the number of fallbacks so far, [] int32, from the states of one worker's reducers."""
    return sum((state.taken.sum() for state in counters(states)), jnp.int32(0))


def _zeros(leaf):
    return jnp.zeros(np.shape(leaf), jnp.float32)
