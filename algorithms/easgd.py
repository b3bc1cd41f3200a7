"""Elastic averaging SGD: every worker keeps a model of its own, tied to the server's by a spring.

S. Zhang, A. Choromanska, Y. LeCun, *Deep learning with Elastic Averaging SGD*, arXiv 1412.6651,
Eq. 5 and 6. Each of P workers holds x_i, the server holds the centre c; with alpha = beta / P,

    x_i <- x_i - lr g_i(x_i) - alpha (x_i - c)
    c   <- c + alpha sum_i (x_i - c)

Both take the old x_i and c, so that the messages are known before the gradient. The pull leaves
workers room to explore: at rest x_i differs from c by lr g_i / alpha, towards the optimum of its
own data. In an update only its contributors pull and are pulled (asynchronous Algorithm 1).

With several mini-batches per round, a worker's local steps start at the old x_i, and the pull at
the old x_i is added at the end of the round.

`momentum` is delta of EAMSGD (its Algorithm 2): the gradient is taken at the look-ahead point,
and the pull at the parameters,

    v_i <- delta v_i - lr g_i(x_i + delta v_i)
    x_i <- x_i + v_i - alpha (x_i - c)

The pull takes the old x_i. A worker's own model is its look-ahead point. A round is then one step
on the mean gradient of its mini-batches. An `optimizer` with Nesterov momentum makes local steps
with momentum instead, but then the pull is taken at the look-ahead point, which leads to other
models.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import (
    AXIS,
    Algorithm,
    Needs,
    Parted,
    check_shares,
    equal,
    freeze_when_idle,
    servers_own,
    whole,
)
from algorithms.mean import mean_messages, mean_over_workers


def pull_both_ways(alpha: float) -> optax.GradientTransformationExtraArgs:
    """Turn a worker's progress into the pull on the centre, and the change of its own model."""
    mean = mean_over_workers()

    def update_fn(updates, state, params, *, current=None, weight=None, **extra):
        servers_own("easgd", current)
        weight = jnp.float32(1) if weight is None else weight
        off = jax.tree.map(lambda x, c: alpha * (x - c), params, current)
        moved, _ = mean.update(off, state, params, weight=weight, **extra)
        own = jax.tree.map(lambda g, pull: -jnp.where(weight > 0, g + pull, 0), updates, off)
        # The server adds the sum of the pulls, but descends what it is given: hence the minus.
        count = jax.lax.psum(weight, AXIS)
        return Parted(jax.tree.map(lambda m: -count * m, moved), own), state

    return optax.GradientTransformationExtraArgs(mean.init, update_fn)


class Momentum(NamedTuple):
    """State of the exchange of one worker, with momentum."""

    velocity: Any  # v_i, shapes of the parameters
    optimizer: Any


def pull_behind_look_ahead(
    optimizer: optax.GradientTransformation, alpha: float, momentum: float
) -> optax.GradientTransformationExtraArgs:
    """Step from look-ahead points, the workers' own models, and pull at the parameters."""
    optimizer, pull = freeze_when_idle(optimizer), pull_both_ways(alpha)

    def init_fn(params):
        return Momentum(jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    def update_fn(updates, state, params, *, batches=1, **extra):
        extra["batches"] = batches
        step, inner = optimizer.update(updates, state.optimizer, params, **extra)
        step = optax.tree.cast_like(step, params)
        velocity = jax.tree.map(
            lambda v, u: jnp.where(batches > 0, momentum * v + u, v), state.velocity, step
        )
        behind = jax.tree.map(lambda z, v: z - momentum * v, params, state.velocity)
        progress = jax.tree.map(
            lambda old, new: momentum * old - (1 + momentum) * new, state.velocity, velocity
        )
        parted, _ = pull.update(progress, pull.init(behind), behind, **extra)
        return parted, Momentum(velocity, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def easgd(
    optimizer: optax.GradientTransformation,
    workers: int,
    *,
    beta: float = 0.9,
    momentum: float = 0.0,
) -> Algorithm:
    """Step locally with `optimizer`, with a pull between workers and a centre.

    beta: part of the way that the centre moves to the workers' mean in an update of all workers, in
    (0, 1]; the paper takes 0.9. The centre is evaluated. momentum: delta of EAMSGD, in [0, 1); the
    paper takes 0.99. Above 0 a round is one step, and `optimizer` needs no momentum of its own.
    """
    whole("easgd", 1, workers=workers)
    if not 0 < beta <= 1:
        raise ValueError(f"easgd: needs 0 < beta <= 1, got {beta}; the paper takes 0.9")
    check_shares("easgd", momentum=momentum)
    alpha = beta / workers
    behind = pull_behind_look_ahead(optimizer, alpha, momentum)

    def messages(params, workers, row):
        return tuple(
            payload._replace(beside_gradient=True)
            for payload in mean_messages(params, workers, row)
        )

    return Algorithm(
        work=None if momentum else optimizer,
        exchange=behind if momentum else pull_both_ways(alpha),
        messages=messages,
        server=freeze_when_idle(optax.sgd(1.0)),
        adopt=lambda own, centre, state, version: own,
        weight=equal,
        needs=Needs(workers=workers),
    )
