"""CHOCO-SGD: gossip of compressed changes, with any compression.

A. Koloskova, S. U. Stich, M. Jaggi, *Decentralized Stochastic Optimization and Gossip Algorithms
with Compressed Communication*, arXiv 1902.00340, Algorithm 2. Beside its model x_i a worker keeps
y_i, the copy of x_i that all its neighbours have, and the y_j of its neighbours:

    x_i <- x_i - lr g_i(x_i)
    q_i <- Q(x_i - y_i)                      sent to the neighbours
    y_j <- y_j + q_j                         of itself and of its neighbours
    x_i <- x_i + gamma sum_j W_ij (y_j - y_i)

W is doubly stochastic, so that the mean of the models only moves by gradients, whatever Q loses. As
the models come to rest the differences x_i - y_i vanish, and with them the error of Q: workers
without gradients reach their exact mean even if one entry of each model is sent at a time. With a
lossless Q and gamma = 1 this is D-PSGD in the order `adapt_then_combine`.

If Q is too coarse for gamma, the differences grow instead; the method simulates workers without
gradients, and raises ValueError where it finds such growth.

The paper starts with y_i = 0; here y_i starts at x_i, which is the same on all workers. A running
sum of the W_ij y_j in place of each y_j would save memory, but accumulate rounding errors, which
shift the mean for good.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms import compression, reducers
from algorithms.base import AXIS, Algorithm, Needs, freeze_when_idle, map_columns
from algorithms.compression import Reducer
from algorithms.gossip import check_growth, graph_matchings, matrix_of
from comms import gossip, stability
from comms.messages import over_links

ENTRIES, UPDATES = 2**14, 512  # simulated entries of all workers; simulated updates
_GROWTH: dict[tuple, Callable] = {}  # (encoding, W) -> compiled gamma -> growth


class Choco(NamedTuple):
    """Exchange state of one worker; its first two fields in float32."""

    known: Any  # y_i, like the parameters
    heard: Any  # y_j, of the partner j in each of the M matchings: [M, ...]
    optimizer: Any
    update: jax.Array  # [] int32, updates done


def growth(chosen: Reducer, W: np.ndarray, size: int) -> Callable[[float], float]:
    """Return a function: gamma -> factor by which models' differences grow without gradients.

    size: entries of a parameter. The simulation starts from random models with at most ENTRIES
    entries together. The factor of an update is a lower bound, which misses growth below 1 %.
    """
    encoder, size = chosen.encoder, min(size, max(16, ENTRIES // len(W)))
    given = jax.ShapeDtypeStruct((size,), jnp.float32), jax.eval_shape(jax.random.key, 0)
    sent = jax.make_jaxpr(lambda x, draw: encoder.decode(encoder.encode(x, draw), size))(*given)
    key = str(sent), W.tobytes()  # everything on which the simulation depends
    pull = np.float32(W - np.eye(len(W)))

    @jax.jit
    def logs(gamma):
        def step(state, key):
            x, known = state
            message = jax.vmap(encoder.encode)(x - known, jax.random.split(key, len(W)))
            known += jax.vmap(lambda one: encoder.decode(one, size))(message)
            x += gamma * jnp.matmul(pull, known, precision=jax.lax.Precision.HIGHEST)
            norm = jnp.maximum(jnp.sqrt(jnp.sum(x**2) + jnp.sum(known**2)), 1e-30)
            return (x / norm, known / norm), jnp.log(norm)

        keys = jax.random.split(jax.random.key(0), UPDATES + 1)
        x = jax.random.normal(keys[0], (len(W), size), jnp.float32)
        return jax.lax.scan(step, (x - x.mean(0)[None], jnp.zeros_like(x)), keys[1:])[1]

    def factor(gamma: float) -> float:
        with jax.ensure_compile_time_eval():
            late = np.asarray(logs(jnp.float32(gamma)), np.float64)[UPDATES // 2 :]
        return float(np.exp((late.sum() - np.log(stability.TRANSIENT)) / len(late)))

    return _GROWTH.setdefault(key, functools.cache(factor))


def compressed_gossip(
    optimizer: optax.GradientTransformation,
    chosen: Reducer,
    W: np.ndarray,
    partners: np.ndarray,
    gamma: float,
    seed: int,
) -> optax.GradientTransformationExtraArgs:
    """Step, send the encoded change since the last message, go a part of the way to the neighbours.

    W: mixing matrix [n, n]; partners: [M, n], each worker's partner in every matching.
    """
    optimizer, encoder = freeze_when_idle(optimizer), chosen.encoder
    everyone = np.arange(len(W))
    weights = np.where(partners == everyone, 0, W[everyone, partners])  # [M, n]

    def init_fn(params):
        factor = growth(chosen, W, max(np.size(x) for x in jax.tree.leaves(params)))
        finer = f"a finer exchange than {chosen.name}"
        check_growth("choco_sgd", factor, {"gamma": gamma}, finer)
        known = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)
        heard = jax.tree.map(lambda y: jnp.broadcast_to(y, (len(partners), *y.shape)).copy(), known)
        return Choco(known, heard, optimizer.init(params), jnp.int32(0))

    def update_fn(updates, state, params, *, version=None, worker=None, **extra):
        version = state.update if version is None else version
        me = jax.lax.axis_index(AXIS)
        worker = me if worker is None else worker
        moved, inner = optimizer.update(
            updates, state.optimizer, params, version=version, worker=worker, **extra
        )
        key = jax.random.fold_in(jax.random.key(seed), worker)
        key = jax.random.fold_in(key, version)

        def leaf(x, u, known, heard, index):
            stepped = (x.astype(jnp.float32) + u).astype(jnp.float32)
            message = encoder.encode(stepped - known, jax.random.fold_in(key, index))

            def read(message):
                return encoder.decode(message, x.size).reshape(x.shape)

            known, pull, new = known + read(message), jnp.zeros_like(known), []
            for weight, partner, y in zip(weights, partners, heard, strict=True):
                new.append(y + read(gossip.hear(message, partner, AXIS)))
                pull = pull + jnp.asarray(weight, jnp.float32)[me] * (new[-1] - known)
            return (u + gamma * pull).astype(x.dtype), known, jnp.stack(new)

        numbers = list(range(len(jax.tree.leaves(params))))
        change, known, heard = map_columns(leaf, params, moved, state.known, state.heard, numbers)
        return change, Choco(known, heard, inner, state.update + 1)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def choco_sgd(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    exchange: Reducer | None = None,
    gamma: float = 0.1,
    mixing_matrix: str | np.ndarray | None = None,
    seed: int = 0,
) -> Algorithm:
    """Step locally with `optimizer`, and gossip compressed changes over the neighbours of `graph`.

    exchange: encoding of changes, see `algorithms.reducers`; None: top_k(ratio=0.1). random_k is
        refused, and so are reducers with a memory, as the copies y_i already serve as a memory.
    gamma: part of the way that a worker goes to its copies of the neighbours' models, in (0, 1]. A
        coarser encoding needs a smaller gamma. `exchange.init` raises ValueError if models
        diverge.
    mixing_matrix: as in `algorithms.dpsgd`.
    seed: for reducers that round at random.

    Every update needs all workers and all links: take a waiting rule in rounds and a fixed graph.
    """
    if not 0 < gamma <= 1:
        raise ValueError(f"choco_sgd: needs 0 < gamma <= 1, got {gamma}; 1 is for exact messages")
    _, partners = graph_matchings(graph)
    if "rounds" in graph.graph:
        raise ValueError(
            "choco_sgd: its links change from update to update, but a worker keeps the mixture of "
            "the same neighbours; use a graph that stays, as ring or hypercube"
        )
    chosen = reducers.top_k(0.1) if exchange is None else exchange
    compression.check_reducer("choco_sgd", chosen)
    encoder = chosen.encoder
    if encoder is None:
        raise ValueError(
            f"choco_sgd: {chosen.name} writes no message that a neighbour could read alone; use "
            "top_k, quantise, natural, sign, int8, bf16, fp16, or a chain that begins with top_k"
        )
    if len(graph) < 2:
        raise ValueError("choco_sgd: a single worker has no neighbours; set workers to 2 or more")
    W = matrix_of(graph, mixing_matrix)

    def messages(params, workers, row):
        del workers
        sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params)]
        size = sum(encoder.payload_bytes(entries) for entries in sizes)
        return (over_links(size, partners, row, encoded=True),)

    return Algorithm(
        exchange=compressed_gossip(optimizer, chosen, W, partners, gamma, seed),
        messages=messages,
        graph=graph,
        needs=Needs("all workers know their neighbours' models"),
    )
