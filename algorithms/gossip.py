"""What methods that gossip share: step weightings, and the two orders of stepping and mixing.

    combine while adapting  x_i <- sum_j W_ij x_j - lr g_i(x_i)
    adapt then combine      x_i <- sum_j W_ij (x_j - lr g_j(x_j))

The first lets the exchange overlap with the gradient (X. Lian et al., arXiv 1705.09056), the second
exchanges the freshest models; same fixed points, other transients.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, choose
from comms import cost, matching
from comms.messages import Messages, over_links


def alike(batches, nominal) -> jax.Array:
    """Every worker takes its full step."""
    del nominal
    return jnp.ones_like(batches, jnp.float32)


def confidence(batches, nominal) -> jax.Array:
    """n m_i / sum_j m_j: steps in proportion to the samples behind them (one scalar all-reduce)."""
    del nominal
    batches = jnp.asarray(batches, jnp.float32)
    return batches / jnp.maximum(jax.lax.pmean(batches, AXIS), 1e-9)


def local_sum(batches, nominal) -> jax.Array:
    """m_i / M: a straggler takes a shorter step, without any message."""
    return jnp.asarray(batches, jnp.float32) / nominal


STEP_WEIGHTINGS = {"equal": alike, "confidence": confidence, "local_sum": local_sum}


def scale_by_finished(weighting: str = "equal") -> optax.GradientTransformationExtraArgs:
    """Scale a worker's *update* by what it finished; after the optimizer, or Adam would cancel it.

    Non-blocking SGD over gossip, arXiv 2211.00889.
    """
    factor = choose("weighting", STEP_WEIGHTINGS, weighting)

    def update_fn(updates, state, params=None, *, batches, nominal, **extra):
        del params, extra
        scale = factor(batches, nominal)
        return jax.tree.map(lambda u: (scale * u).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def combine_while_adapting(mix: Callable) -> optax.GradientTransformationExtraArgs:
    """Turn a local update u into W x - x + u: the exchange overlaps with the gradient.

    mix: (params, active matchings or None) -> W params.
    """

    def update_fn(updates, state, params, *, active=None, **extra):
        del extra
        mixed = mix(params, active)
        return jax.tree.map(lambda m, x, u: (m - x) + u, mixed, params, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def adapt_then_combine(mix: Callable) -> optax.GradientTransformationExtraArgs:
    """Turn a local update u into W (x + u) - x: the freshest model is exchanged.

    mix: (params, active matchings or None) -> W params.
    """

    def update_fn(updates, state, params, *, active=None, **extra):
        del extra
        mixed = mix(optax.apply_updates(params, updates), active)
        return jax.tree.map(lambda m, x: m - x, mixed, params), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


class Order(NamedTuple):
    """When models are mixed: mix -> transform, and whether they are known before the gradient."""

    combine: Callable[[Callable], optax.GradientTransformationExtraArgs]
    beside_gradient: bool


ORDERS = {
    "combine_while_adapting": Order(combine_while_adapting, beside_gradient=True),
    "adapt_then_combine": Order(adapt_then_combine, beside_gradient=False),
}


def graph_matchings(graph: nx.Graph) -> tuple[list, np.ndarray]:
    """(matchings, partners [M, n]): those that the graph comes with, or an edge colouring."""
    workers = graph.number_of_nodes()
    matchings = graph.graph.get("matchings") or matching.decompose(graph)
    matching.validate(graph, matchings)
    partners = np.array([matching.partners(edges, workers) for edges in matchings], np.int32)
    return matchings, partners.reshape(-1, workers)


def gossip_messages(partners: np.ndarray, order: Order) -> Messages:
    """The parameters once over every active one of the matchings `partners` [M, n]."""

    def messages(params, workers, row):
        del workers
        size = cost.payload_bytes(params)
        return (over_links(size, partners, row, beside_gradient=order.beside_gradient),)

    return messages
