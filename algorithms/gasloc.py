"""GASLoC: DiLoCo's outer optimizer over gossip, whose momentum also speeds up consensus.

P. Cagnasso, E. Belilovsky, E. Oyallon, *Unifying Local Communications and Local Updates for LLM
Pretraining*, arXiv 2606.11081. The formula was read in a transcription, not in the paper:
https://junaidaliop.github.io/zij/math/gasloc/. It has all that the abstract names: gossip with an
outer optimizer and acceleration, local steps of any optimizer, sparse random pairs. From theta_i a
worker makes H local steps, whose progress is g_i. Then it sends u_i to its neighbours:

    u_i     <- theta_i + eta g_i
    theta_i <- u_i - alpha sum_j Lambda_ij u_j + gamma (u_i - the last u_i)

where the last u_i is theta_i at first, and Lambda = I - W for a mixing matrix W. Special cases, all
tested:

    mean      The mean model moves as in DiLoCo: Nesterov momentum gamma, rate eta, mean progress
    g = 0     Polyak's heavy ball on gossip. With alpha = 1 and a W whose second eigenvalue is
              1 - 1/chi, chi > 3, an update multiplies differences by 1 - 1/sqrt(chi) at gamma =
              (1 - 1/sqrt(chi))^2, but by 1 - 1/chi at gamma = 0, and never by < sqrt(gamma)
    gamma = 0, eta = 1    local SGD with gossip, D-PSGD's order `adapt_then_combine`

On a fixed graph any gamma below 1 is stable, and alpha up to 2 (1 + gamma) / (1 - the least
eigenvalue of W). Without progress, random pairs move as NoLoCo's do, with the same limits
(`algorithms.noloco`), but send one array less. An unstable choice raises ValueError.

A worker that finished nothing takes part with g_i = 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import Algorithm, check_shares
from algorithms.gossip import check_growth, check_stable, mixing_over, random_pairs
from comms import stability


class Carried(NamedTuple):
    """State of the exchange of one worker."""

    moved: Any  # theta - u of the last exchange, like the parameters


def accelerated_gossip(
    pull, eta: float, alpha: float, gamma: float
) -> optax.GradientTransformationExtraArgs:
    """Step by the progress and mix, with momentum of both together.

    updates: negative progress of the local steps, -g. pull: (tree, active matchings or None) ->
    W tree - tree.
    """

    def update_fn(updates, state, params, *, active=None, batches=1, **extra):
        del extra
        step = jax.tree.map(lambda u: jnp.where(batches > 0, -eta * u, 0), updates)
        pulled = pull(optax.apply_updates(params, step), active)
        moved = jax.tree.map(
            lambda p, s, last: alpha * p + gamma * (s + last), pulled, step, state.moved
        )
        return jax.tree.map(jnp.add, step, moved), Carried(moved)

    return optax.GradientTransformationExtraArgs(
        lambda params: Carried(jax.tree.map(jnp.zeros_like, params)), update_fn
    )


def without_progress(mix, x, moved, *, alpha, gamma) -> tuple:
    """Return x and moved after an update of progress 0; see `algorithms.gossip.check_stable`."""
    moved = alpha * (mix(x) - x) + gamma * moved
    return x + moved, moved


def gasloc(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    eta: float = 0.7,
    alpha: float = 1.0,
    gamma: float = 0.9,
    pairs: bool = False,
    mixing_matrix: str | np.ndarray | None = None,
    seed: int = 0,
) -> Algorithm:
    """Step locally with `optimizer`, then mix over `graph` with momentum.

    eta: rate of the progress; alpha: strength of the mixing; gamma: momentum.
    pairs: true: in an update only the pairs of one matching average their models, drawn from an
    edge colouring of `graph`; false: all neighbours mix. seed: of the matchings.
    mixing_matrix: as in `algorithms.dpsgd`, without pairs.
    Every update needs all workers: take a waiting rule in rounds. Raises ValueError for a choice
    under which models diverge.
    """
    check_shares("gasloc", gamma=gamma)
    if not (eta > 0 and alpha > 0):
        raise ValueError(
            f"gasloc: needs eta > 0 and alpha > 0, got {eta} and {alpha}; 0.7 is DiLoCo's eta, and "
            "alpha=1 mixes by W"
        )
    links, chosen = None, {"alpha": alpha, "gamma": gamma}
    if pairs:
        links = random_pairs("gasloc", graph, seed)
        links = links._replace(weights=np.full(links.partners.shape, 0.5))
    over = mixing_over(graph, mixing_matrix, links)
    if links is None:
        check_stable("gasloc", over, without_progress, **chosen)
    else:

        def growth(alpha: float, gamma: float) -> float:
            return stability.radius_of_pairs(graph, links.partners, gamma, alpha) ** 0.5

        check_growth("gasloc", growth, chosen, "pairs=false")
    exchange = accelerated_gossip(over.pull, eta, alpha, gamma)
    return over.method(exchange, "all workers mix their models")._replace(work=optimizer)
