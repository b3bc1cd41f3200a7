"""D-PSGD: every worker steps on its own model and averages with its neighbours on a graph.

X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu, *Can Decentralized Algorithms Outperform
Centralized Algorithms?*, arXiv 1705.09056. With the waiting rule `first_finisher` it is
Non-blocking SGD over D-PSGD (H. He, P. Dube, arXiv 2211.00889).

    combine while adapting  x_i <- sum_j W_ij x_j - lr g_i(x_i)
    adapt then combine      x_i <- sum_j W_ij (x_j - lr g_j(x_j))
"""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, choose, freeze_when_idle
from comms import cost, gossip, matching, mixing


def alike(batches, nominal):
    """Every worker takes its full step."""
    del nominal
    return jnp.ones_like(batches, jnp.float32)


def confidence(batches, nominal):
    """n m_i / sum_j m_j: steps in proportion to the samples behind them (one scalar all-reduce)."""
    del nominal
    batches = jnp.asarray(batches, jnp.float32)
    return batches / jnp.maximum(jax.lax.pmean(batches, AXIS), 1e-9)


def local_sum(batches, nominal):
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

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def combine_while_adapting(mix) -> optax.GradientTransformationExtraArgs:
    """Turn a local update u into W x - x + u: the exchange overlaps with the gradient."""

    def update_fn(updates, state, params, **extra):
        del extra
        mixed = mix(params)
        return jax.tree.map(lambda m, x, u: (m - x) + u, mixed, params, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def adapt_then_combine(mix) -> optax.GradientTransformationExtraArgs:
    """Turn a local update u into W (x + u) - x: the freshest model is exchanged."""

    def update_fn(updates, state, params, **extra):
        del extra
        mixed = mix(optax.apply_updates(params, updates))
        return jax.tree.map(lambda m, x: m - x, mixed, params), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


ORDERS = {
    "combine_while_adapting": combine_while_adapting,
    "adapt_then_combine": adapt_then_combine,
}


def dpsgd(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    mixing_matrix: str = "metropolis",
    order: str = "combine_while_adapting",
    weighting: str = "equal",
) -> Algorithm:
    """Local steps of `optimizer`, models averaged over the neighbours of `graph`.

    mixing_matrix: a name in `comms.mixing.MIXINGS`.
    order: when the neighbours' models are read, see the module's two formulas.
    weighting: "equal", "confidence" or "local_sum", how far a worker steps that finished only
        some of its mini-batches.
    """
    combine = choose("order", ORDERS, order)
    weights = choose("mixing_matrix", mixing.MIXINGS, mixing_matrix)(graph)
    workers = graph.number_of_nodes()
    partners = np.array(
        [matching.partners(edges, workers) for edges in matching.decompose(graph)], np.int32
    ).reshape(-1, workers)
    degree = 2 * graph.number_of_edges() / workers

    def mix(tree):
        return gossip.mix(tree, weights, partners, AXIS)

    def wire_bytes(params, schedule):
        return np.full(schedule.updates, degree * cost.payload_bytes(params))

    return Algorithm(
        exchange=optax.chain(
            freeze_when_idle(optimizer), scale_by_finished(weighting), combine(mix)
        ),
        wire_bytes=wire_bytes,
        graph=graph,
    )
