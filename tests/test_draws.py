"""Draws at many addresses: none is that of another address, and no sequence begins again.

Every source of random numbers gives rows, one per (seed, worker, count) or the like, each with more
bits than two rows share by chance.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, choco_sgd, matcha, noloco, periodic, qsgd, swarm
from algorithms.base import AXIS
from algorithms.reducers import quantise
from comms import topology
from experiments.tasks import data, sampling
from stragglers import delays
from tests import planned
from tests.marks import slow_but

SEEDS, N, ROUND = range(2), 8, 1024  # the longest stretch that anything is drawn in at once
SGD = optax.sgd(0.1)


def windows(sequence, width):
    """Return all stretches of a sequence, as rows."""
    return np.lib.stride_tricks.sliding_window_view(sequence, width, axis=0)


def orders():
    """Of samples: (seed, worker, epoch) -> [64], of workers that hold the same ones."""
    shards, epochs = [np.arange(64)] * N, np.append(np.arange(12), 2**20)
    for seed in SEEDS:
        sampler = sampling.Sampler(shards, 64, seed)
        yield np.asarray(sampler.indices(np.arange(N)[:, None], epochs)).reshape(-1, 64)


def pairs():
    """Of seeds and updates: who meets whom in 32 updates on end."""
    for seed in SEEDS:
        schedule = planned.random_pairs(
            delays.exponential(1.0), topology.complete(N), 2, 3 * ROUND, seed, mini_batches=8
        )
        yield windows(schedule.workers, 32).reshape(-1, 32 * schedule.workers.shape[1])


def activations(make):
    """Of seeds and updates: which matchings are active in 64 updates on end."""
    for seed in SEEDS:
        active = make(topology.complete(N), seed).links.active(0, 3 * ROUND)
        yield windows(active, 64).reshape(-1, 64 * active.shape[1])


def shards():
    """Of seeds and workers: who has which of 256 samples."""
    labels = np.arange(256) % 4
    for seed, split in itertools.product(SEEDS, ("iid", "dirichlet")):
        options = {"alpha": 1.0} if split == "dirichlet" else {}
        for shard in data.SPLITS[split](labels=labels, workers=N, seed=seed, **options):
            yield np.isin(np.arange(256), shard)[None]


def rounded(make):
    """Of seeds, workers and updates: what becomes of the vector of the one worker with a weight."""
    vector = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for seed in SEEDS:
        method = make(seed)

        def one(update, busy, method=method):
            weight = jnp.float32(jax.lax.axis_index(AXIS) == busy)
            given = {"weight": weight, "batches": jnp.int32(weight), "nominal": 1, "first": update}
            given |= {"version": update, "samples": 2.0 * update, "staleness": 0}
            given["worker"] = jax.lax.axis_index(AXIS)
            state = method.exchange.init(jnp.zeros(64))
            return method.exchange.update(jnp.asarray(vector), state, jnp.zeros(64), **given)[0]

        each = jax.vmap(one, in_axes=(None, None), axis_name=AXIS, axis_size=2)
        updates, busy = np.meshgrid(np.arange(16), np.arange(2))
        found = jax.jit(jax.vmap(each))(updates.ravel(), busy.ravel())
        yield np.asarray(found)[:, 0]


def known_models():
    """Of seeds, workers and updates: what CHOCO-SGD's neighbours know of one vector."""
    vector = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for seed in SEEDS:
        method = choco_sgd(SGD, topology.ring(N), exchange=quantise(bits=8), gamma=0.1, seed=seed)

        def one(update, method=method):
            state = method.exchange.init(jnp.zeros(64))
            given = {"version": update, "worker": jax.lax.axis_index(AXIS), "batches": 1}
            given |= {"samples": 0.0, "nominal": 1}
            _, new = method.exchange.update(jnp.asarray(vector), state, jnp.zeros(64), **given)
            return jax.tree.leaves(new.known)[0]

        each = jax.vmap(one, in_axes=None, axis_name=AXIS, axis_size=N)
        yield np.asarray(jax.jit(jax.vmap(each))(np.arange(16))).reshape(-1, 64)


def meetings():
    """Of seeds, workers and meetings: where two models that stay as they are would meet."""
    start = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    for seed in SEEDS:
        method = swarm(SGD, topology.ring(4), bits=6, rounding="unbiased", seed=seed)
        partner = np.array([1, 0, 3, 2])

        def one(x, partner, method=method):
            first = method.exchange.init(x)

            def again(state, _):
                given = {"batches": 1, "partner": partner, "active": None}
                given["worker"] = jax.lax.axis_index(AXIS)
                moved, new = method.exchange.update(jnp.zeros_like(x), state, x, **given)
                # All as it was, but for how often the two have met.
                codec = first.codec._replace(meetings=new.codec.meetings)
                return first._replace(codec=codec), moved

            return jax.lax.scan(again, first, length=16)[1]

        found = jax.jit(jax.vmap(one, axis_name=AXIS))(start, partner)
        yield np.asarray(found).reshape(-1, 64)


ONE = functools.partial
SOURCES = {
    "orders of samples": orders,
    "pairs": pairs,
    "matcha": ONE(activations, lambda graph, seed: matcha(SGD, graph, budget=0.5, seed=seed)),
    "periodic": ONE(activations, lambda graph, seed: periodic(SGD, graph, budget=0.5, seed=seed)),
    "noloco": ONE(activations, lambda graph, seed: noloco(SGD, graph, seed=seed)),
    "swarm": ONE(activations, lambda graph, seed: swarm(SGD, graph, lockstep=True, seed=seed)),
    "shards": shards,
    "qsgd": ONE(rounded, lambda seed: qsgd(SGD, seed=seed)),
    "quantise": ONE(rounded, lambda seed: all_reduce(SGD, exchange=quantise(bits=2, seed=seed))),
    "choco_sgd": known_models,
    "meetings": meetings,
}

# Programs of two seeds each; `quantise` stands for them in the quick suite.
COMPILED = {"qsgd", "choco_sgd", "meetings"}


@pytest.mark.parametrize("source", slow_but(SOURCES.keys() - COMPILED, SOURCES))
def test_no_two_addresses_draw_alike(source):
    rows = np.concatenate(list(SOURCES[source]())) + 0  # without a -0.0
    assert len({row.tobytes() for row in rows}) == len(rows) > 20
