"""DecentLaM: gossip with momentum that does not amplify the bias of uneven data.

K. Yuan, Y. Chen, X. Huang, Y. Zhang, P. Pan, Y. Xu, W. Yin, *DecentLaM: Decentralized Momentum SGD
for Large-batch Deep Training*, arXiv 2104.11981, Algorithm 2:

    d_i <- (x_i - sum_j W_ij (x_j - lr g_j)) / lr
    m_i <- momentum m_i + d_i
    x_i <- x_i - lr m_i

A whole step of D-PSGD serves as the gradient d_i, and momentum accelerates it. So the fixed points
equal D-PSGD's without momentum, in the order `adapt_then_combine`; momentum of each worker's own
gradients would make the bias 1 / (1 - momentum) times as large. The state holds lr m_i, in the
units of the parameters, so that any optimizer without momentum can make the step -lr g_i.

Under a constant W any momentum of the mixing is stable. On graphs whose links change in rounds the
largest stable momentum depends on the graph: between .5 and .75 on the one-peer exponential, Base-2
and EquiTopo graphs of 8 and 16 workers. Above it models diverge at any learning rate;
`comms.stability` finds this, and `decentlam` raises ValueError.

A worker that finished nothing only mixes; its momentum neither moves it nor changes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import Algorithm, check_shares, freeze_when_idle
from algorithms.gossip import check_stable, mixing_over
from algorithms.links import Links


class Accelerated(NamedTuple):
    """State of the exchange of one worker."""

    momentum: Any  # lr m_i, shapes of the parameters
    optimizer: Any


def accelerated_mixing(
    optimizer: optax.GradientTransformation, mix, momentum: float
) -> optax.GradientTransformationExtraArgs:
    """Apply momentum to the step and the mixing together.

    mix: (tree, active matchings or None) -> W tree.
    """
    optimizer = freeze_when_idle(optimizer)

    def init_fn(params):
        return Accelerated(jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    def update_fn(updates, state, params, *, batches=1, active=None, **extra):
        busy = batches > 0
        step, inner = optimizer.update(updates, state.optimizer, params, batches=batches, **extra)
        mixed = mix(optax.apply_updates(params, step), active)
        descent = jax.tree.map(jnp.subtract, params, mixed)  # lr d_i
        velocity = jax.tree.map(lambda m, d: momentum * m + d, state.momentum, descent)
        moved = jax.tree.map(lambda v, d: -jnp.where(busy, v, d), velocity, descent)
        kept = jax.tree.map(lambda v, m: jnp.where(busy, v, m), velocity, state.momentum)
        return moved, Accelerated(kept, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def without_gradients(mix, x, velocity, *, momentum) -> tuple:
    """Return x and velocity after an update of gradient 0; see `algorithms.gossip.check_stable`."""
    velocity = momentum * velocity + x - mix(x)
    return x - velocity, velocity


def decentlam(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    momentum: float = 0.9,
    mixing_matrix: str | np.ndarray | None = None,
    links: Links | None = None,
) -> Algorithm:
    """Step locally with `optimizer` and mix over `graph`, with momentum of both together.

    momentum: in [0, 1), and low enough if the graph's links change. mixing_matrix, links: as in
    `algorithms.dpsgd`. Every update needs all workers: take a waiting rule in rounds. Raises
    ValueError if models diverge.
    """
    check_shares("decentlam", momentum=momentum)
    over = mixing_over(graph, mixing_matrix, links)
    check_stable("decentlam", over, without_gradients, momentum=momentum)
    exchange = accelerated_mixing(optimizer, over.mix, momentum)
    return over.method(exchange, "all workers mix their models")
