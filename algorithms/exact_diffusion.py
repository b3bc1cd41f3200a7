"""Exact diffusion, also known as D2: gossip corrected by the sum of past exchanges.

K. Yuan, B. Ying, X. Zhao, A. H. Sayed, *Exact Diffusion for Distributed Optimization and Learning*,
arXiv 1702.05122, Algorithm 1; with stochastic gradients D2, H. Tang, X. Lian, M. Yan, C. Zhang,
J. Liu, arXiv 1803.07068. A worker adapts, corrects and combines:

    psi_i <- x_i - lr g_i(x_i)
    phi_i <- psi_i + x_i - (psi_i of the update before)
    x_i   <- sum_j ((I + W) / 2)_ij phi_j

At rest every x_i is the optimum, whatever data the workers hold: there the correction cancels each
worker's own step. One model is sent, as many bytes as D-PSGD's; the mean of W with the identity
keeps the iteration stable where W has eigenvalues below -1/3. Every W has the same fixed point, so
that links may change with time. The papers do not prove convergence then, and on many graphs whose
links change in rounds, such as Base-2 of 5 or of 64 workers, models diverge even without gradients.
`comms.stability` finds this, and `exact_diffusion` raises ValueError; a constant symmetric W is
always stable.

The correction x_i - psi_i is kept as a running sum of what each exchange has added, sum_j W_ij
(phi_j - phi_i) / 2. Computed as a difference of models, or of phi and its mixture, it would
accumulate their rounding errors, which act like an error of all gradients.

A worker that finished nothing repeats its last step: otherwise the others' steps would not cancel
at the optimum, and slow workers would bias the models.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import Algorithm, freeze_when_idle
from algorithms.gossip import check_stable, mixing_over
from algorithms.links import Links


class Diffusion(NamedTuple):
    """State of the exchange of one worker; all but the last in the shapes of the parameters."""

    correction: Any  # x_i - psi_i of the update before
    step: Any  # psi_i - x_i of the last update in which the worker finished something
    optimizer: Any


def adapt_correct_combine(
    optimizer: optax.GradientTransformation, pull
) -> optax.GradientTransformationExtraArgs:
    """Step, add the sum of past exchanges, mix by (I + W) / 2.

    pull: (tree, active matchings or None) -> W tree - tree.
    """
    optimizer = freeze_when_idle(optimizer)

    def init_fn(params):
        correction, step = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return Diffusion(correction, step, optimizer.init(params))

    def update_fn(updates, state, params, *, batches=1, active=None, **extra):
        new, inner = optimizer.update(updates, state.optimizer, params, batches=batches, **extra)
        new = optax.tree.cast_like(new, params)
        step = jax.tree.map(lambda u, old: jnp.where(batches > 0, u, old), new, state.step)
        phi = jax.tree.map(lambda x, u, c: x + (u + c), params, step, state.correction)
        correction = jax.tree.map(lambda c, p: c + p / 2, state.correction, pull(phi, active))
        moved = jax.tree.map(jnp.add, step, correction)
        return moved, Diffusion(correction, step, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def without_gradients(mix, x, correction) -> tuple:
    """Return both arrays after an update of gradient 0; see `algorithms.gossip.check_stable`."""
    phi = x + correction
    correction = correction + (mix(phi) - phi) / 2
    return x + correction, correction


def exact_diffusion(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    mixing_matrix: str | np.ndarray | None = None,
    links: Links | None = None,
) -> Algorithm:
    """Step locally with `optimizer`, correct, and average models over the neighbours of `graph`.

    mixing_matrix, links: as in `algorithms.dpsgd`. Every update needs all workers: take a waiting
    rule in rounds. Raises ValueError for links that change in such a way that models diverge.
    """
    over = mixing_over(graph, mixing_matrix, links)
    check_stable("exact_diffusion", over, without_gradients)
    exchange = adapt_correct_combine(optimizer, over.pull)
    return over.method(exchange, "all workers mix their corrected models")
