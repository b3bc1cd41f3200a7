"""EF21 on uneven data: the optimum at a constant rate, however little is sent."""

import numpy as np
import optax
import pytest

from algorithms import ef21, ef21_sgdm
from algorithms.reducers import chain, quantise, random_k, sign, top_k
from stragglers import delays
from tests.algorithms import quadratics
from tests.algorithms.quadratics import D, N, distance, gradients, in_step

TOP_1 = top_k(1 / D)
UPDATES = 9
FINISHED = np.random.default_rng(4).integers(0, 2, (UPDATES, N)).astype(np.int32)
FINISHED[:2, 1] = 0  # one that begins late
RATE = 0.1


def reference(eta):
    """Return x after UPDATES in NumPy, the largest entry of every worker's change sent."""
    x, G = np.zeros((2, D))
    h, v = np.zeros((2, N, D))
    begun = np.zeros(N, bool)
    for finished in FINISHED:
        g = gradients(np.broadcast_to(x, (N, D)))
        for i in np.flatnonzero(finished):
            v[i] = (1 - eta) * v[i] + eta * g[i] if begun[i] else g[i]
            begun[i] = True
            largest = np.abs(v[i] - h[i]).argmax()
            c = np.where(np.arange(D) == largest, v[i] - h[i], 0)
            h[i] += c
            G += c / N
        x = x - RATE * G
        np.testing.assert_allclose(G, h.mean(0), atol=1e-12)
    return x


@pytest.mark.parametrize("eta", [1.0, 0.3])
def test_updates_of_workers_some_of_which_finished_nothing(eta):
    method = ef21_sgdm(optax.sgd(RATE), N, eta=eta, exchange=TOP_1)
    found = in_step(method, UPDATES, FINISHED)
    np.testing.assert_allclose(found, np.tile(reference(eta), (N, 1)), rtol=1e-5, atol=1e-6)
    if eta == 1:
        np.testing.assert_array_equal(
            in_step(ef21(optax.sgd(RATE), N, exchange=TOP_1), UPDATES, FINISHED), found
        )


@pytest.mark.slow
def test_so_it_does_where_two_of_eight_workers_deliver():
    method = ef21_sgdm(optax.sgd(0.04), N, exchange=TOP_1)
    law = delays.exponential(1.0)
    models, schedule = quadratics.simulated(method, "k_async", law, 3000, k=2)
    assert schedule.workers.shape == (3000, 2)
    assert distance(models) < 1e-6


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "exchange",
    [
        sign(),
        random_k(0.4),
        pytest.param(chain(top_k(0.4), quantise(bits=8)), id="chain"),
    ],
    ids=lambda reducer: reducer.name,
)
def test_any_reducer_goes_inside(exchange):
    """Two of its entries, signs, or bytes: estimates become exact, and so does the optimum."""
    assert distance(in_step(ef21(optax.sgd(0.05), N, exchange=exchange), 1500)) < 1e-5
