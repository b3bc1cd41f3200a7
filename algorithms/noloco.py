"""NoLoCo: DiLoCo without an all-reduce; random pairs average, with momentum at every worker.

J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, *NoLoCo: No-all-reduce Low Communication
Training Method for Large Models*, arXiv 2506.10911. Worker i makes H local steps from phi_i; their
progress is D_i. Then all workers meet in random pairs (i, j), exchange both phi and D, and step
with momentum:

    v_i   <- alpha v_i + beta (D_i + D_j) / 2 - gamma (phi_i - phi_j) / 2
    phi_i <- phi_i + v_i

The mean model moves by DiLoCo's outer step on the mean progress, with plain momentum. The last term
vanishes in this mean, and only keeps models together. The difference of two workers that always
meet follows a linear recurrence, whose roots are inside the unit circle for 0 < gamma < 2 (1 +
alpha). In random pairs, momentum from one pair disturbs the next pair, so that gamma must be
smaller. The largest gamma that is stable in the mean square, for 8 workers:

    graph        alpha = .5    alpha = .9
    complete     1.61          .43
    hypercube    1.28          .29

`noloco` raises ValueError for a larger gamma, see `comms.stability`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, Needs, check_shares
from algorithms.gossip import check_growth, gossip_messages, random_pairs
from algorithms.links import given
from comms import gossip, stability


class Outer(NamedTuple):
    """State of the exchange of one worker."""

    velocity: Any  # v_i, like the parameters


def meet_with_momentum(
    partners: np.ndarray, alpha: float, beta: float, gamma: float
) -> optax.GradientTransformationExtraArgs:
    """Average progress and models with the partner of the active matching, then step.

    updates: negative progress of the local steps, -D_i. partners: [M, n] matchings.
    """

    def update_fn(updates, state, params, *, active=None, batches=1, **extra):
        del extra
        updates = jax.tree.map(lambda u: jnp.where(batches > 0, u, 0), updates)
        matching = jnp.argmax(given(active))
        theirs = gossip.exchange_matching((updates, params), matching, partners, AXIS)
        velocity = jax.tree.map(
            lambda v, mine, other, x, y: (
                alpha * v - beta * (mine / 2 + other / 2) - gamma * (x / 2 - y / 2)
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
    """Step locally with `optimizer`, then let random pairs meet with momentum.

    alpha: decay of the momentum; beta: rate of the progress; gamma: strength of the pull within a
    pair. The largest stable gamma depends on alpha and on the graph. seed: of the matchings, which
    are drawn from an edge colouring of `graph`. Every update needs all workers: take a waiting rule
    in rounds.
    """
    check_shares("noloco", alpha=alpha)
    if not gamma > 0:
        raise ValueError(f"noloco: needs gamma > 0, got {gamma}; 0.7 is the paper's code's")
    links = random_pairs("noloco", graph, seed)

    def growth(alpha: float, gamma: float) -> float:
        return stability.radius_of_pairs(graph, links.partners, alpha, gamma) ** 0.5

    check_growth("noloco", growth, {"alpha": alpha, "gamma": gamma}, "another graph")
    return Algorithm(
        work=optimizer,
        exchange=meet_with_momentum(links.partners, alpha, beta, gamma),
        messages=gossip_messages(links.partners, beside_gradient=False, arrays=2),
        graph=graph,
        links=links,
        needs=Needs("all workers meet in pairs"),
    )
