"""QG-DSGDm: gossip with momentum along the whole moves of the models, by steps and by mixing.

T. Lin, S. P. Karimireddy, S. U. Stich, M. Jaggi, *Quasi-Global Momentum: Accelerating Decentralized
Deep Learning on Heterogeneous Data*, arXiv 2102.04761, Algorithm 1:

    y_i <- x_i - lr (momentum m_i + g_i)
    x_i <- sum_j W_ij y_j
    m_i <- momentum m_i + (1 - momentum) (old x_i - x_i) / lr

The state is lr m_i, in the units of the parameters, so that any optimizer without momentum can make
the step -lr g_i; with a constant rate this is the paper's step. Momentum of a worker's own
gradients grows along the differences between workers. Quasi-global momentum vanishes where models
rest: it neither adds to nor removes the bias of D-PSGD in the order `adapt_then_combine`.

Without gradients QG-DSGDm is stable on the graphs with rounds in `comms.topology`. It is unstable
for a W with an eigenvalue below -(1 + momentum) / (1 + 3 momentum - 2 momentum^2), as
`best_constant` has on a ring of 16 workers; `qg_dsgdm` raises ValueError for such a W.

A worker that finished nothing mixes; its momentum neither moves its model nor changes.
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


class QuasiGlobal(NamedTuple):
    """State of the exchange of one worker."""

    momentum: Any  # lr m_i, shapes of the parameters
    optimizer: Any


def quasi_global(
    optimizer: optax.GradientTransformation, mix, momentum: float
) -> optax.GradientTransformationExtraArgs:
    """Step with momentum and mix, then update the momentum by the whole move.

    mix: (tree, active matchings or None) -> W tree.
    """
    optimizer = freeze_when_idle(optimizer)

    def init_fn(params):
        return QuasiGlobal(jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    def update_fn(updates, state, params, *, batches=1, active=None, **extra):
        busy = batches > 0
        step, inner = optimizer.update(updates, state.optimizer, params, batches=batches, **extra)
        step = optax.tree.cast_like(step, params)
        stepped = jax.tree.map(
            lambda x, u, m: jnp.where(busy, x + (u - momentum * m), x), params, step, state.momentum
        )
        moved = jax.tree.map(jnp.subtract, mix(stepped, active), params)
        learned = jax.tree.map(
            lambda m, d: jnp.where(busy, momentum * m - (1 - momentum) * d, m),
            state.momentum,
            moved,
        )
        return moved, QuasiGlobal(learned, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def without_gradients(mix, x, learned, *, momentum) -> tuple:
    """Return x and learned after an update of gradient 0; see `algorithms.gossip.check_stable`."""
    new = mix(x - momentum * learned)
    return new, momentum * learned + (1 - momentum) * (x - new)


def qg_dsgdm(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    momentum: float = 0.9,
    mixing_matrix: str | np.ndarray | None = None,
    links: Links | None = None,
) -> Algorithm:
    """Step locally with `optimizer` and quasi-global momentum, over the neighbours of `graph`.

    momentum: the paper's beta and mu, in [0, 1). mixing_matrix, links: as in `algorithms.dpsgd`.
    Every update needs all workers: take a waiting rule in rounds.
    """
    check_shares("qg_dsgdm", momentum=momentum)
    over = mixing_over(graph, mixing_matrix, links)
    check_stable("qg_dsgdm", over, without_gradients, momentum=momentum)
    exchange = quasi_global(optimizer, over.mix, momentum)
    return over.method(exchange, "all workers mix their models")
