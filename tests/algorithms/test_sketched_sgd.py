"""Sketched SGD against NumPy, and what keeps its memory in sketch space from growing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import sketched_sgd
from algorithms.base import AXIS
from comms import hashing
from comms.messages import Payload, Row

FAST = {"xla_backend_optimization_level": 0}  # compiling is what takes the time
N, ROWS, COLUMNS, K, DECAY = 4, 3, 20, 6, 0.5
PARAMS = {"b": jnp.zeros(12), "w": jnp.zeros((8, 6))}  # 60 entries


def reference(gradients, seed):
    """Yield the updates [60] that follow from gradients [T, N, 60]."""
    entry, row = np.arange(60)[None], np.arange(ROWS)[:, None]
    seeds = hashing.mix(row, seed)
    bucket = np.asarray(hashing.bucket(entry, seeds, COLUMNS))
    sign = np.asarray(hashing.sign(entry, seeds))

    def encoded(x):
        table = np.zeros((ROWS, COLUMNS))
        np.add.at(table, (np.broadcast_to(row, bucket.shape), bucket), sign * x)
        return table

    u = e = np.zeros((ROWS, COLUMNS))
    for gradient in gradients:
        u = DECAY * u + encoded(gradient.mean(0))
        e = e + u
        estimates = np.median(sign * e[row, bucket], axis=0)
        # Entries whose estimates are one bucket are equal, and the first one is taken.
        taken = np.argsort(-np.abs(estimates).round(4), kind="stable")[:K]
        x = np.zeros(60)
        x[taken] = estimates[taken]
        touched = np.zeros((ROWS, COLUMNS), bool)
        touched[np.broadcast_to(row, (ROWS, K)), bucket[:, taken]] = True
        u, e = np.where(touched, 0, u), np.where(touched, 0, e)
        yield x


def test_by_hand():
    method = sketched_sgd(optax.identity(), ratio=1.0, k_ratio=0.1, momentum=DECAY, seed=5)
    gradients = np.random.default_rng(0).standard_normal((5, N, 60)).astype(np.float32)

    @functools.partial(jax.jit, compiler_options=FAST)
    def step(gradient, server):
        def one(gradient):
            tree = {"b": gradient[:12], "w": gradient[12:].reshape(8, 6)}
            return method.exchange.update(tree, optax.EmptyState(), PARAMS)[0]

        table = jax.vmap(one, axis_name=AXIS)(gradient)[0]
        return method.server.update(table, server, PARAMS, batches=N)

    server = method.server.init(PARAMS)
    for gradient, expected in zip(gradients, reference(gradients, 5), strict=True):
        found, server = step(gradient, server)
        flat = np.concatenate([found["b"], found["w"].ravel()])
        np.testing.assert_allclose(flat, expected, atol=1e-4)
    (sent,) = method.messages(PARAMS, N, Row(0))
    assert sent == Payload((4 * ROWS * COLUMNS,), encoded=True)
