"""Asynchronous DiLoCo: local steps without waiting, and server momentum updated every N pushes.

B. Liu, R. Chhaparia, A. Douillard et al., *Asynchronous Local-SGD Training for Language Modeling*,
arXiv 2401.09135, Algorithm 3. A worker pushes its progress D, the model before minus the model
after its local steps, and goes on from the newest model. With P workers, Nesterov momentum at every
push would follow stale progress, and decay P times as fast as DiLoCo's; delayed Nesterov sums N
pushes in B before it updates the momentum m:

    B <- B + D
    theta <- theta - lr D / N                   at every push
    m <- beta m + B / N                         at every N-th push, and then also
    theta <- theta - lr beta m,  B <- 0

N pushes from the same model equal one step of DiLoCo along the mean of their progress. The method
takes asynchronous waiting rules; `k_async` has the paper's `grace` period, and applies its pushes
together. Workers of unequal speed can make local steps in proportion to their speed, so that all
push about as often: `stragglers.local_updates` computes the numbers of steps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import Algorithm, check_shares, map_columns, whole
from algorithms.local_sgd import local_sgd


class Delayed(NamedTuple):
    """State of the server."""

    pushes: jax.Array  # [] int32, pushes since the last move of the momentum
    gathered: Any  # B, like the parameters
    momentum: Any  # m, like the parameters


def delayed_nesterov(
    learning_rate: float, momentum: float, period: int
) -> optax.GradientTransformation:
    """Descend by 1 / `period` of every push, and by the momentum at every `period`-th push."""

    def init_fn(params):
        zeros = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return Delayed(jnp.int32(0), *zeros)

    def update_fn(updates, state, params=None):
        del params
        pushes = state.pushes + 1
        full = pushes == period

        def leaf(push, gathered, velocity):
            gathered = gathered + push
            velocity = jnp.where(full, momentum * velocity + gathered / period, velocity)
            step = push / period + jnp.where(full, momentum * velocity, 0)
            return -learning_rate * step, jnp.where(full, 0, gathered), velocity

        step, gathered, velocity = map_columns(leaf, updates, state.gathered, state.momentum)
        return step, Delayed(jnp.where(full, 0, pushes), gathered, velocity)

    return optax.GradientTransformation(init_fn, update_fn)


def async_diloco(
    optimizer: optax.GradientTransformation,
    workers: int,
    *,
    period: int | None = None,
    server_learning_rate: float = 0.7,
    server_momentum: float = 0.9,
    weighting: str = "equal",
) -> Algorithm:
    """Step locally with `optimizer`, and push the progress to delayed Nesterov momentum.

    period: N, updates of the server per update of its momentum; None: the number of workers, which
    suits rules that update at every push.
    """
    check_shares("async_diloco", server_momentum=server_momentum)
    period = workers if period is None else period
    whole("async_diloco", 1, workers=workers, period=period)
    server = delayed_nesterov(server_learning_rate, server_momentum, period)
    return local_sgd(optimizer, server=server, weighting=weighting)
