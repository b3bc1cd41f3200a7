"""DSGD-AC: gossip that mixes less as the rate falls, so that models stay apart until the end.

Z. Wang, M. Johansson, *Decentralized SGD with Controlled Disagreement Finds Flatter Minima*, arXiv
2602.02899, after the authors' code. An update is as in D-PSGD's order `combine_while_adapting`, but

    x_i   <- (1 - gamma) x_i + gamma sum_j W_ij x_j - lr g_i(x_i)
    gamma <- floor + (1 - floor) (lr / lr_max)^power

As the rate falls to 0, D-PSGD's models come together; here the mixing falls faster than the rate.
The rate has to follow a cosine over the `samples` of all workers, as in the authors' code: the
optimizer's own schedule is not read, and `lr / lr_max` is computed here from the samples alone.
"""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import Algorithm, freeze_when_idle
from algorithms.gossip import mixing_over, scale_by_finished


def mix_less(pull, gamma) -> optax.GradientTransformationExtraArgs:
    """Turn a local update u into gamma (W x - x) + u.

    pull: (params, active matchings or None) -> W params - params. gamma: samples seen -> gamma.
    """

    def update_fn(updates, state, params, *, active=None, samples=0, **extra):
        del extra
        share = gamma(samples)
        moved = jax.tree.map(
            lambda p, u: (share * p).astype(u.dtype) + u, pull(params, active), updates
        )
        return moved, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def dsgd_ac(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    samples: float,
    power: float = 3.0,
    floor: float = 0.0,
    mixing_matrix: str | np.ndarray | None = None,
) -> Algorithm:
    """Step locally with `optimizer`, and average over `graph` less and less.

    samples: number seen by all workers when the rate's cosine ends; power: exponent of
    `lr / lr_max` in gamma; floor: lowest gamma. Every update needs all workers, which share gamma.
    """
    if not (samples > 0 and power > 0 and 0 <= floor <= 1):
        raise ValueError(
            f"dsgd_ac: needs samples and power above 0, and 0 <= floor <= 1, got {samples}, "
            f"{power} and {floor}; samples is the end of the rate's schedule"
        )
    shape = optax.cosine_decay_schedule(1.0, float(samples))
    over = mixing_over(graph, mixing_matrix)
    exchange = optax.chain(
        freeze_when_idle(optimizer),
        scale_by_finished("equal"),
        mix_less(over.pull, lambda seen: floor + (1 - floor) * jnp.power(shape(seen), power)),
    )
    return over.method(exchange, "all workers mix by the same share", beside_gradient=True)
