"""Common parts of gossip methods: step weightings, and the two orders of stepping and mixing.

    combine while adapting  x_i <- sum_j W_ij x_j - lr g_i(x_i)
    adapt then combine      x_i <- sum_j W_ij (x_j - lr g_j(x_j))

The first lets the exchange overlap with the gradient (X. Lian et al., arXiv 1705.09056); the second
exchanges the freshest models. On uneven data both have a bias of order lr, the second a smaller
one.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, Needs, choose
from algorithms.links import Links, given, of_rounds, one_at_a_time
from comms import cost, edge_colouring, gossip, mixing, stability, topology
from comms.messages import Messages, over_links


def alike(batches, nominal) -> jax.Array:
    """Let every worker take its full step."""
    del nominal
    return jnp.ones_like(batches, jnp.float32)


def confidence(batches, nominal) -> jax.Array:
    """Return n m_i / sum_j m_j for n workers of m_i finished mini-batches: a scalar all-reduce."""
    del nominal
    batches = jnp.asarray(batches, jnp.float32)
    return batches / jnp.maximum(jax.lax.pmean(batches, AXIS), 1e-9)


def local_sum(batches, nominal) -> jax.Array:
    """Return m_i / M for m_i finished of M nominal mini-batches; it needs no message."""
    return jnp.asarray(batches, jnp.float32) / nominal


STEP_WEIGHTINGS = {"equal": alike, "confidence": confidence, "local_sum": local_sum}


def scale_by_finished(weighting: str = "equal") -> optax.GradientTransformationExtraArgs:
    """Scale a worker's *update* by its finished mini-batches: Adam would undo a scaled gradient.

    Non-blocking SGD over gossip, arXiv 2211.00889.
    """
    factor = choose("weighting", STEP_WEIGHTINGS, weighting)

    def update_fn(updates, state, params=None, *, batches=None, nominal=None, **extra):
        del params, extra
        if batches is None:
            batches, nominal = 1, 1
        elif nominal is None:
            raise ValueError(
                "weighting: `batches` is given without `nominal`, the mini-batches of a full "
                "round; give both, or neither for a full round"
            )
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
    """Order of stepping and mixing: mix -> transform, and whether messages precede the gradient."""

    combine: Callable[[Callable], optax.GradientTransformationExtraArgs]
    beside_gradient: bool


ORDERS = {
    "combine_while_adapting": Order(combine_while_adapting, beside_gradient=True),
    "adapt_then_combine": Order(adapt_then_combine, beside_gradient=False),
}


def graph_matchings(graph: nx.Graph) -> tuple[list, np.ndarray]:
    """Return (matchings, partners [M, n]): the graph's own matchings, or an edge colouring.

    Raises ValueError for a graph that `comms.topology.check` refuses.
    """
    topology.check(graph)
    workers = graph.number_of_nodes()
    matchings = graph.graph.get("matchings") or edge_colouring.decompose(graph)
    edge_colouring.validate(graph, matchings)
    partners = np.array([edge_colouring.partners(edges, workers) for edges in matchings], np.int32)
    return matchings, partners.reshape(-1, workers)


def random_pairs(name: str, graph: nx.Graph, seed: int) -> Links:
    """Return links of one matching at a time, drawn from an edge colouring; name: for errors."""
    _, partners = graph_matchings(graph)
    if not len(partners):
        raise ValueError(f"{name}: a single worker has nobody to meet; set workers to 2 or more")
    return Links(partners, one_at_a_time(len(partners), seed))


def gossip_messages(partners: np.ndarray, beside_gradient: bool, arrays: int = 1) -> Messages:
    """Return `Algorithm.messages` for parameters sent over the active ones of matchings [M, n].

    beside_gradient: messages are known before the gradient. arrays: number of arrays of the
    parameters' size that are sent at once.
    """

    def messages(params, workers, row):
        del workers
        size = arrays * cost.payload_bytes(params)
        return (over_links(size, partners, row, beside_gradient=beside_gradient),)

    return messages


class Mixing(NamedTuple):
    """Parts of an exchange over a graph."""

    mix: Callable  # (tree, active matchings or None) -> W tree
    pull: Callable  # the same -> W tree - tree, summed from differences, which round less
    partners: np.ndarray  # [M, n] sender that every worker hears in each matching, or itself
    heard: np.ndarray  # [M, n] weight of that sender
    links: Links | None  # matchings that an update uses; None: all, always
    graph: nx.Graph

    def method(
        self,
        exchange: optax.GradientTransformationExtraArgs,
        everybody: str = "",
        beside_gradient: bool = False,
        arrays: int = 1,
    ) -> Algorithm:
        """Return the method of one model per worker that mixes by `exchange`.

        everybody: why an update needs all workers, as in `Needs`; "": it does not. beside_gradient,
        arrays: as in `gossip_messages`.
        """
        return Algorithm(
            exchange=exchange,
            messages=gossip_messages(self.partners, beside_gradient, arrays),
            graph=self.graph,
            links=self.links,
            needs=Needs(everybody),
        )


def matrix_of(graph: nx.Graph, mixing_matrix: str | np.ndarray | None) -> np.ndarray:
    """Return W [n, n] named in `comms.mixing.MIXINGS`, or given and checked; None: metropolis."""
    if mixing_matrix is None:
        return mixing.metropolis(graph)
    if isinstance(mixing_matrix, str):
        return choose("mixing_matrix", mixing.MIXINGS, mixing_matrix)(graph)
    return mixing.own(graph, mixing_matrix)


def mixing_over(
    graph: nx.Graph, mixing_matrix: str | np.ndarray | None = None, links: Links | None = None
) -> Mixing:
    """Return the `Mixing` that sums over neighbours, sum_j W_ij x_j, under the axis `AXIS`.

    mixing_matrix: a name in `comms.mixing.MIXINGS`, or an array [n, n] that `comms.mixing.own`
    accepts; None: the links' own weights, or else metropolis. links: links that an update
    uses, and their weights; None: the graph's rounds in turn if it has any (see `comms.topology`),
    else all links in every update. Raises ValueError for links of another graph, for a matrix
    beside links that have weights, and for links over which models do not reach consensus.
    """
    topology.check(graph)
    brought = links is not None
    if links is None and "rounds" in graph.graph:
        links = of_rounds(graph.graph["rounds"])
    if links is None:
        weights = matrix_of(graph, mixing_matrix)
        _, partners = graph_matchings(graph)
        heard = weights[np.arange(len(weights)), partners]
        return Mixing(
            lambda tree, active: gossip.mix(tree, weights, partners, AXIS),
            lambda tree, active: gossip.pull(tree, heard, partners, None, AXIS),
            partners,
            heard,
            None,
            graph,
        )
    partners, heard = links.partners, _weights(links, graph, mixing_matrix)
    over = Mixing(
        lambda tree, active: gossip.mix_active(tree, heard, partners, given(active), AXIS),
        lambda tree, active: gossip.pull(tree, heard, partners, given(active), AXIS),
        partners,
        heard,
        links,
        graph,
    )
    if brought:
        check_stable("links", over, lambda mix, x: (mix(x),), 1)
    return over


def check_stable(
    name: str, over: Mixing, step: stability.Step, arrays: int = 2, **chosen: float
) -> None:
    """Raise ValueError if workers without gradients do not reach consensus in the long run.

    step: (mix, *arrays) -> arrays after an update of all workers without gradients, see
    `comms.stability.radius`. chosen: keywords of step, such as `momentum`, that may be lowered.
    """
    links = over.links
    if links is None:
        active, repeats = np.ones((1, len(over.partners)), bool), True
    else:
        repeats = links.period is not None and links.period <= stability.UPDATES
        active = links.active(0, links.period if repeats else stability.UPDATES)
    mixed = stability.matrices(over.partners, over.heard, active)

    def radius(**values: float) -> float:
        return stability.radius(functools.partial(step, **values), arrays, mixed, repeats)

    another = "mixing_matrix='metropolis'" if links is None else "a graph that stays, as ring"
    check_growth(name, radius, chosen, another)


def check_growth(
    name: str, radius: Callable[..., float], chosen: dict[str, float], another: str
) -> None:
    """Raise ValueError, with remedies, if differences of models do not vanish.

    radius: values of `chosen`, by keyword -> factor by which an update without gradients multiplies
    differences. another: remedy besides lower values, in words.
    """

    def dies(**values: float) -> bool:
        return radius(**(chosen | values)) < 1 - 1e-9

    if dies():
        return
    at = " and with " * bool(chosen) + " and ".join(f"{key}={v:g}" for key, v in chosen.items())
    lower = ""
    for key, value in chosen.items():
        most = stability.largest(lambda v, key=key: dies(**{key: v}), 1, value)
        lower += "" if most is None else f"set {key} to {most:g} or less, or "
    raise ValueError(
        f"{name}: on this graph{at} models do not come together, as an update without gradients "
        f"multiplies their differences by {radius(**chosen):.4g}; {lower}use {another}"
    )


def _weights(links: Links, graph: nx.Graph, mixing_matrix: str | np.ndarray | None) -> np.ndarray:
    """Return the weights [M, n] of the senders, from the links or else from the matrix."""
    workers = len(graph)
    shape = (len(links.partners), workers)
    heard = links.weights
    if heard is not None and mixing_matrix is not None:
        named = mixing_matrix if isinstance(mixing_matrix, str) else "this W"
        raise ValueError(
            f"mixing_matrix: links that change have weights of their own here, and {named} would "
            "not be used; leave it out, or take a graph that stays"
        )
    if heard is None and links.partners.shape == shape:
        heard = matrix_of(graph, mixing_matrix)[np.arange(workers), links.partners]
    if links.partners.shape != shape or np.shape(heard) != shape:
        raise ValueError(
            f"links: the graph has {workers} workers, but partners of the links are "
            f"{links.partners.shape} and their weights {np.shape(heard)}; give both as [M, "
            f"{workers}]"
        )
    return heard
