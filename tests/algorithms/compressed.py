"""Compressing methods on a small tree of parameters, as several test files ask for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import (
    all_reduce,
    ef_sign,
    int8_all_reduce,
    natural_compression,
    powersgd,
    qsgd,
    random_k,
    s2_reducer,
    sketched_sgd,
    sparse_all_gather,
    top_k,
)
from algorithms.base import AXIS

N, ROWS, WIDTH = 4, 64, 3
SGD = optax.sgd(0.1)
PARAMS = {
    "matrix": jnp.zeros((8, 8)),
    "table": {"embedding": jnp.zeros((ROWS, WIDTH))},
}
PATHS = ("table/embedding",)


def gradients(seed=0, occupied=4):
    """[N, ...] contributions, the table's with `occupied` rows on every worker, whole numbers."""
    rng = np.random.default_rng(seed)
    made = jax.tree.map(lambda p: rng.integers(-9, 10, (N, *p.shape)).astype(np.float32), PARAMS)
    table = made["table"]["embedding"]
    for worker in range(N):
        kept = rng.choice(ROWS, occupied, replace=False)
        table[worker, np.setdiff1d(np.arange(ROWS), kept)] = 0
    return made


@functools.partial(jax.jit, static_argnums=0)
def exchange(update, states, updates, weights, samples):
    """One exchange of all workers, at version `samples`: (what each gets, states), stacked."""

    def one(updates, state, weight, worker):
        given = {"samples": samples, "version": samples.astype(jnp.int32), "worker": worker}
        return update(updates, state, PARAMS, weight=weight, **given)

    return jax.vmap(one, axis_name=AXIS)(updates, states, weights, jnp.arange(N))


def start(method):
    state = method.exchange.init(PARAMS)
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (N, *jnp.shape(a))), state)


DENSE = all_reduce(SGD).exchange.update


def run(method, updates=1, weights=None, occupied=4):
    """(sum of the dense means, sum of what came out, last states)."""
    weights = np.ones((updates, N), np.float32) if weights is None else weights
    states, wanted, got = start(method), None, None
    for t in range(updates):
        given = gradients(t, occupied), jnp.asarray(weights[t]), jnp.float32(8 * t)
        out, states = exchange(method.exchange.update, states, *given)
        dense, _ = exchange(DENSE, optax.EmptyState(), *given)
        first = functools.partial(jax.tree.map, lambda a: np.asarray(a[0], np.float64))
        add = functools.partial(jax.tree.map, np.add)
        wanted = first(dense) if wanted is None else add(wanted, first(dense))
        got = first(out) if got is None else add(got, first(out))
    return wanted, got, states


REMEMBERING = {
    "s2_reducer": lambda: s2_reducer(
        SGD, rows=3, budget=16, peel=False, error_feedback=True, warmup_updates=2
    ),
    "top_k": lambda: top_k(SGD, ratio=0.1, warmup_updates=3),
    "random_k": lambda: random_k(SGD, ratio=0.1),
    "powersgd": lambda: powersgd(SGD, rank=1),
    "ef_sign": lambda: ef_sign(SGD),
}
UNBIASED = {
    "s2_reducer/unbiased": lambda: s2_reducer(SGD, rows=1, ratio=0.6, seed=3),
    "random_k/unbiased": lambda: random_k(SGD, ratio=0.3, error_feedback=False, seed=3),
    "qsgd": lambda: qsgd(SGD, levels=2, seed=3),
    "natural_compression": lambda: natural_compression(SGD, seed=3),
    "int8_all_reduce": lambda: int8_all_reduce(SGD, seed=3),
}
ALL = (
    REMEMBERING
    | UNBIASED
    | {
        "s2_reducer/exact": lambda: s2_reducer(SGD, exact=True, budget=16, sparse=PATHS),
        "sparse_all_gather": lambda: sparse_all_gather(SGD, budget=4),
        "top_k/momentum": lambda: top_k(SGD, momentum=0.9),
        "sketched_sgd": lambda: sketched_sgd(SGD),
    }
)


@functools.cache
def built(name):
    """The method of that name, one object, so that tests share its compiled exchange."""
    return ALL[name]()
