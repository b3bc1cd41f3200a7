"""Nodes that descend on the toy regression, as tests of gossip share them."""

import numpy as np
import optax

from algorithms.base import scale_by_samples
from stragglers import delays
from tests.runtimes.toy import DATA, SAMPLES

N, RATE, DECAY, STEPS = 8, 0.05, 0.7, 2
LAW = delays.shifted_exponential(0.5, 1.0)
MODELS = np.random.default_rng(0).normal(size=(N, 40)).astype(np.float32)


def optimizer(rate=RATE, decay=DECAY):
    return optax.chain(optax.trace(decay), scale_by_samples(rate))


def gradient(w, worker, counter):
    at = SAMPLES.indices(np.array([worker]), np.array([counter])).ravel()
    x, y = DATA["x"][at].astype(np.float64), DATA["y"][at].astype(np.float64)
    return x.T @ (x @ w - y) / len(at)
