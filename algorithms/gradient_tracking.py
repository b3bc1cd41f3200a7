"""Gradient tracking (DSGT): gossip in which each worker steps along the tracked mean gradient.

S. Pu, A. Nedic, *Distributed Stochastic Gradient Tracking Methods*, arXiv 1805.09708, Eq. 5. A
worker holds a model x_i and a tracker y_i, which starts at its first gradient:

    x_i <- sum_j W_ij (x_j - lr y_j)
    y_i <- sum_j W_ij y_j + g_i(new x_i) - g_i(old x_i)

W is doubly stochastic, so that the sum of the trackers is always the sum of the workers' newest
gradients. Near the optimum every tracker vanishes although the workers' own gradients do not:
uneven data leave no bias, where D-PSGD has one. Both x and y are sent, twice the bytes of D-PSGD.

A worker that finished nothing keeps its last gradient: its tracker only mixes, and the worker still
steps along it, because the others' gradients are in it. So slow workers leave no bias either.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import Algorithm, extended
from algorithms.gossip import mixing_over
from algorithms.links import Links


class Tracking(NamedTuple):
    """State of the exchange of one worker; all but the last in the shapes of the parameters."""

    mixed: Any  # sum_j W_ij y_j of the update before
    gradient: Any  # the newest contribution of the worker
    optimizer: Any


def follow_the_mean(
    optimizer: optax.GradientTransformation, mix
) -> optax.GradientTransformationExtraArgs:
    """Step along the tracker in place of the worker's gradient, then mix model and tracker.

    mix: (tree, active matchings or None) -> W tree.
    """
    optimizer = extended(optimizer)

    def init_fn(params):
        mixed, gradient = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return Tracking(mixed, gradient, optimizer.init(params))

    def update_fn(updates, state, params, *, batches=1, active=None, **extra):
        newest = jax.tree.map(
            lambda g, old: jnp.where(batches > 0, g, old), updates, state.gradient
        )
        tracker = jax.tree.map(lambda y, g, old: y + (g - old), state.mixed, newest, state.gradient)
        # An idle worker still steps along its tracker; a rate times 0 batches would be 0.
        extra["batches"] = jnp.maximum(batches, 1)
        step, inner = optimizer.update(tracker, state.optimizer, params, **extra)
        x, y = mix((optax.apply_updates(params, step), tracker), active)
        return jax.tree.map(jnp.subtract, x, params), Tracking(y, newest, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def gradient_tracking(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    mixing_matrix: str | np.ndarray | None = None,
    links: Links | None = None,
) -> Algorithm:
    """Step with `optimizer` along tracked mean gradients, and mix over the neighbours of `graph`.

    mixing_matrix, links: as in `algorithms.dpsgd`; graphs may change with time. Every update needs
    all workers: take a waiting rule in rounds.
    """
    over = mixing_over(graph, mixing_matrix, links)
    exchange = follow_the_mean(optimizer, over.mix)
    return over.method(exchange, "all workers mix their trackers", arrays=2)
