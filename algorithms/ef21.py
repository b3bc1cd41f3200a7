"""EF21: workers send compressed changes of their gradients, not compressed gradients.

P. Richtarik, I. Sokolov, I. Fatkhullin, *EF21: A New, Simpler, Theoretically Better, and
Practically Faster Error Feedback*, arXiv 2106.05203, Algorithm 2; with momentum EF21-SGDM,
I. Fatkhullin, A. Tyurin, P. Richtarik, *Momentum Provably Improves Error Feedback!*, arXiv
2305.15155, Algorithm 1.

C is any reducer of `algorithms.reducers`:

    v_i <- (1 - eta) v_i + eta g_i          eta = 1: EF21
    c_i <- C(v_i - h_i)
    h_i <- h_i + c_i                        of the worker
    G   <- G + 1/P sum_i c_i                of the server, the mean of all h_i
    x   <- x - lr G

Classical error feedback accumulates unsent entries. In EF21 messages become small where the
gradients do not change, however large they are and however much they differ between workers. So a
compression as coarse as top-1 reaches the optimum at a constant rate. Where only K of P workers
deliver, the others' h_i stay in G. So does the old h_i of a worker that begins anew from h_i = 0
after the death of its process: from then on G is off by h_i / P, a lasting bias.

With `broadcast` the server's answer is compressed as well: the server steps on a model X of its
own, and the workers hold W, at which they take gradients. EF21-Muon is `ef21_sgdm` with a server
that moves along -U V^T of G = U S V^T, which is Muon without momentum (K. Gruntkowska, A. Gaponov,
Z. Tovmasyan, P. Richtarik, *Error Feedback for Muon and Friends*, arXiv 2510.00643; formulas read
in the transcription https://junaidaliop.github.io/zij/math/ef21muon/, whose beta is eta here):

    X <- X - lr U V^T                       of the server, or any optimizer's step along G
    S <- C'(X - W)
    W <- W + S                              of the server and of all workers

Here an update begins with the workers' part, from h_i = 0; in the paper it begins with the
server's. W is the evaluated model. Only a server to which workers push sends S, in place of its
whole model: workers that receive all c_i compute X and S themselves.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import compression, reducers
from algorithms.base import Algorithm, extended, whole
from algorithms.compression import Reducer
from algorithms.mean import compressed
from comms.collectives import HEADROOM


class Estimate(NamedTuple):
    """Memory of a reducer about one parameter of one worker."""

    known: jax.Array  # h_i, float32, shape of the parameter: the server's copy of v_i
    momentum: jax.Array  # v_i, float32, shape of the parameter
    begun: jax.Array  # [] bool, true once the worker has finished anything
    inner: Any


def with_estimates(inner: Reducer, eta: float, workers: int) -> Reducer:
    """Reduce changes of the workers' estimates; a mean divides by `workers`, absent ones too."""

    def init(leaf):
        known, momentum = (jnp.zeros(leaf.shape, jnp.float32) for _ in range(2))
        return Estimate(known, momentum, jnp.bool_(False), inner.init(leaf))

    def reduce(x, state, draw):
        gradient = x / draw.unit
        followed = state.momentum + eta * (gradient - state.momentum)
        newest = jnp.where(state.begun, followed, gradient)
        momentum = jnp.where(draw.busy, newest, state.momentum)
        change = HEADROOM * jnp.where(draw.busy, momentum - state.known, 0)
        total, sent, inner_state = inner.reduce(change, state.inner, draw)
        # An idle worker may have rounded a sum for others; the server's sum has this error, too.
        known = state.known + sent / HEADROOM
        # Callers divide by the weight of the workers present; the mean is over all workers.
        scale = draw.total / (HEADROOM * workers)
        begun = state.begun | draw.busy
        return scale * total, scale * sent, Estimate(known, momentum, begun, inner_state)

    return Reducer(init, reduce, inner.payload, instead=inner.instead, pushed=inner.pushed)


def in_float32(
    mean: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Return a mean that is not rounded to the type of short parameters, see `add_up`."""

    def update_fn(updates, state, params=None, **extra):
        return mean.update(optax.tree.cast(updates, jnp.float32), state, params, **extra)

    return optax.GradientTransformationExtraArgs(mean.init, update_fn)


def add_up() -> optax.GradientTransformation:
    """Turn changes into their running sum, from zero and in float32, as workers compute h_i."""

    def update_fn(updates, state, params):
        total = jax.tree.map(jnp.add, state, updates)
        return jax.tree.map(lambda known, p: known.astype(p.dtype), total, params), total

    def init_fn(params):
        return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), params)

    return optax.GradientTransformation(init_fn, update_fn)


class Behind(NamedTuple):
    """State of a server with a model X, which the workers' model W follows."""

    update: jax.Array  # [] int32, steps so far
    model: Any  # X, shapes of the parameters
    optimizer: Any


def step_ahead(
    optimizer: optax.GradientTransformation, broadcast: Reducer
) -> optax.GradientTransformationExtraArgs:
    """Step X with `optimizer`, and move the parameters, W, by the encoded difference X - W."""
    optimizer, codec = extended(optimizer), broadcast.encoder

    def init_fn(params):
        return Behind(jnp.int32(0), jax.tree.map(jnp.array, params), optimizer.init(params))

    def update_fn(updates, state, params, **extra):
        step, inner = optimizer.update(updates, state.optimizer, state.model, **extra)
        model = optax.apply_updates(state.model, step)

        def shift(x, w, key):
            message = codec.encode((x - w).astype(jnp.float32).ravel(), key)
            return codec.decode(message, w.size).reshape(w.shape).astype(w.dtype)

        key = jax.random.fold_in(jax.random.key(0), state.update)
        keys = optax.tree.split_key_like(key, params)
        shifts = jax.tree.map(shift, model, params, keys)
        return shifts, Behind(state.update + 1, model, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ef21(
    optimizer: optax.GradientTransformation,
    workers: int,
    *,
    exchange: Reducer | None = None,
    broadcast: Reducer | None = None,
) -> Algorithm:
    """Let `optimizer` take a step along the mean of all workers' estimates.

    exchange: reducer of the changes of every parameter, see `algorithms.reducers`; None:
    top_k(ratio=0.01). It must have no memory, unlike error_feedback(...). broadcast:
    codec of the server's answer, such as top_k(ratio=0.1); None: the whole model, uncompressed.
    """
    return _estimated("ef21", optimizer, workers, 1.0, exchange, broadcast)


def ef21_sgdm(
    optimizer: optax.GradientTransformation,
    workers: int,
    *,
    eta: float = 0.1,
    exchange: Reducer | None = None,
    broadcast: Reducer | None = None,
) -> Algorithm:
    """Apply EF21 to every worker's momentum instead of its gradient, as small batches need.

    With muon(beta=0, nesterov=false) as optimizer and a `broadcast` it is EF21-Muon.
    """
    if not 0 < eta <= 1:
        raise ValueError(f"ef21_sgdm: needs 0 < eta <= 1, got {eta}; 1 is EF21, 0.1 is usual")
    return _estimated("ef21_sgdm", optimizer, workers, eta, exchange, broadcast)


def _estimated(name, optimizer, workers, eta, exchange, broadcast) -> Algorithm:
    whole(name, 1, workers=workers)
    inner = reducers.top_k() if exchange is None else exchange
    compression.check_reducer(name, inner)
    if reducers.remembers(inner):
        raise ValueError(
            f"{name}: {inner.name} keeps a memory of what was not sent, in place of which this "
            "method keeps estimates; write what is inside of it"
        )
    reducers.refuse_amplified(name, inner)
    reducer = with_estimates(inner, eta, workers)
    if broadcast is not None:
        compression.check_reducer(name, broadcast, "broadcast")
        if broadcast.encoder is None:
            raise ValueError(
                f"{name}: broadcast={broadcast.name} writes no message of one sender; take top_k, "
                "sign or another codec without a memory"
            )
        reducers.refuse_amplified(name, broadcast)
        optimizer = step_ahead(optimizer, broadcast)
    summing = optax.chain(add_up(), optimizer)
    method = compressed(name, summing, lambda path, leaf: reducer, weighting="equal")

    def messages(params, workers, row):
        first, *others = method.messages(params, workers, row)
        sizes = [leaf.size for leaf in jax.tree.leaves(params)]
        if broadcast is not None:
            first = first._replace(answer=sum(map(broadcast.encoder.payload_bytes, sizes)))
        return (first, *others)

    needs = method.needs._replace(workers=workers)
    exchange = in_float32(method.exchange)
    return method._replace(exchange=exchange, needs=needs, messages=messages)
