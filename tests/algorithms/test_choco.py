"""Compressed gossip: exact means whatever is lost on the way, and D-PSGD where nothing is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import choco_sgd
from algorithms.choco import growth
from algorithms.reducers import chain, fp8, quantise, top_k
from comms import mixing, topology
from tests.algorithms.quadratics import D, N, gradients, in_step

RATE = 0.05
RING = topology.ring(N)
TOP_1 = top_k(1 / D)
UPDATES = 9
FINISHED = np.random.default_rng(3).integers(0, 2, (UPDATES, N)).astype(np.int32)


def test_updates_of_workers_some_of_which_finished_nothing():
    """The largest entry of what the neighbours do not know yet is all that is sent."""
    graph = topology.star(N)  # whose weights differ between workers
    W, gamma = mixing.metropolis(graph), 0.3
    x, known = np.zeros((2, N, D))
    for finished in FINISHED:
        x = x - RATE * np.where(finished[:, None] > 0, gradients(x), 0)
        off = x - known
        known = known + np.where(np.abs(off) == np.abs(off).max(1, keepdims=True), off, 0)
        x = x + gamma * (W @ known - known)
    method = choco_sgd(optax.sgd(RATE), graph, exchange=TOP_1, gamma=gamma)
    np.testing.assert_allclose(in_step(method, UPDATES, FINISHED), x, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exchange", "gamma"), [(TOP_1, 0.15), (quantise(bits=3), 0.2)], ids=["top_k", "quantise"]
)
def test_workers_without_gradients_find_their_exact_mean(exchange, gamma):
    """After one step apart from each other nobody steps again; Theorem 2 of the paper.

    Float32 rounds in each of the 1,200 updates, to 7e-6 where products and sums are merged.
    """

    def once(count):
        return jnp.where(count < 1, 0.5, 0.0)

    method = choco_sgd(optax.sgd(once), RING, exchange=exchange, gamma=gamma)
    apart = -0.5 * gradients(np.zeros((N, D)))
    found = in_step(method, 1200)
    assert np.ptp(apart, axis=0).max() > 1
    np.testing.assert_allclose(found, np.tile(apart.mean(0), (N, 1)), atol=1e-5)


def test_messages_too_coarse_for_gamma_are_refused_when_the_parameters_are_known():
    """Without gradients differences grow by 4 % an update; one entry of few is not too coarse."""
    method = choco_sgd(optax.sgd(RATE), RING, exchange=top_k(0.05), gamma=1.0)
    with pytest.raises(ValueError, match=r"gamma=1 models do .* gamma to 0\..*er .* than top_k"):
        jax.eval_shape(method.exchange.init, jnp.zeros(128))
    jax.eval_shape(method.exchange.init, jnp.zeros(1))


def test_the_growth_of_a_codec_is_looked_up_by_what_it_does():
    """Also where two codecs have one name and send as many bytes."""
    W = mixing.metropolis(RING)

    def of(exchange):
        return growth(exchange, W, 64)

    assert of(fp8()) is of(fp8()) and of(fp8()) is not of(fp8(format="e5m2"))
    assert of(chain(TOP_1, fp8())) is not of(chain(TOP_1, fp8(format="e5m2")))
