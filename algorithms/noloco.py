"""NoLoCo: DiLoCo without an all-reduce; random pairs average, with momentum at every worker.

J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, *NoLoCo: No-all-reduce Low Communication
Training Method for Large Models*, arXiv 2506.10911. From phi_i a worker makes H local steps, by
D_i. Then all workers meet in random pairs (i, j), send each other both, and step with momentum:

    v_i   <- alpha v_i + beta (D_i + D_j) / 2 - gamma (phi_i - phi_j) / 2
    phi_i <- phi_i + v_i

The last term vanishes in the mean over the workers, which moves as if all of them took DiLoCo's
outer step with the mean progress and plain momentum; it only keeps models together. Of two that
always meet, the difference follows a linear recurrence whose roots are inside of the unit circle
for 0 < gamma < 2 (1 + alpha).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm
from algorithms.gossip import check_momentum, gossip_messages, graph_matchings, needs_everybody
from algorithms.links import Links, given, one_at_a_time
from comms import gossip


class Outer(NamedTuple):
    """The exchange's state of one worker."""

    velocity: Any  # v_i, like the parameters


def meet_with_momentum(
    partners: np.ndarray, alpha: float, beta: float, gamma: float
) -> optax.GradientTransformationExtraArgs:
    """Average progress and models with the partner of the active matching, then step.

    updates: what local steps have gone back, -D_i. partners: [M, n] matchings.
    """

    def update_fn(updates, state, params, *, active=None, **extra):
        del extra
        matching = jnp.argmax(given(active))
        theirs = gossip.exchange_matching((updates, params), matching, partners, AXIS)
        velocity = jax.tree.map(
            lambda v, mine, other, x, y: (
                alpha * v - beta * (mine + other) / 2 - gamma * (x - y) / 2
            ),
            state.velocity,
            updates,
            theirs[0],
            params,
            theirs[1],
        )
        return velocity, Outer(velocity)

    return optax.GradientTransformationExtraArgs(
        lambda params: Outer(jax.tree.map(jnp.zeros_like, params)), update_fn
    )


def noloco(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    alpha: float = 0.5,
    beta: float = 0.7,
    gamma: float = 0.7,
    seed: int = 0,
) -> Algorithm:
    """Local steps of `optimizer`, then a meeting of random pairs with momentum.

    alpha: decay of the momentum; beta: rate of the progress; gamma: how strongly a pair is drawn
    together, in (0, 2 (1 + alpha)). seed: of the matchings, which are drawn from an edge colouring
    of `graph`. Every update needs all workers: a rule in rounds.
    """
    check_momentum("noloco", alpha)
    if not 0 < gamma < 2 * (1 + alpha):
        raise ValueError(
            f"noloco: needs 0 < gamma < 2 (1 + alpha) = {2 * (1 + alpha):g}, got {gamma}; beyond "
            "that a pair's models go apart"
        )
    _, partners = graph_matchings(graph)
    if not len(partners):
        raise ValueError("noloco: a single worker has nobody to meet; set workers to 2 or more")
    return Algorithm(
        work=optimizer,
        exchange=meet_with_momentum(partners, alpha, beta, gamma),
        messages=gossip_messages(partners, beside_gradient=False, arrays=2),
        graph=graph,
        links=Links(partners, one_at_a_time(len(partners), seed)),
        check=needs_everybody("noloco", "meet in pairs"),
    )
