"""EF21 on uneven data: the optimum at a constant rate, however little is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import ef21, ef21_sgdm
from algorithms.base import AXIS
from algorithms.reducers import chain, quantise, random_k, sign, top_k
from comms import cost
from comms.messages import Row, push_seconds, sent_bytes
from runtimes.own_loop import as_optax
from stragglers import delays
from tests import planned
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


def test_the_server_sums_for_short_floats_what_its_workers_sum():
    """Changes that were rounded to bfloat16 would add up to another mean of the workers' h."""
    tx = as_optax(ef21(optax.sgd(0.0), N, exchange=top_k(0.25)))

    def of_worker(draws):
        x = jnp.zeros(64, jnp.bfloat16)
        step = lambda state, gradient: (tx.update(gradient, state, x)[1], None)  # noqa: E731
        state = jax.lax.scan(step, tx.init(x), draws)[0]
        return jax.lax.pmean(state.exchange.reducers[0].known, AXIS), state.optimizer[0]

    draws = jax.random.normal(jax.random.key(0), (N, 50, 64), jnp.bfloat16)
    known, total = jax.jit(jax.vmap(of_worker, axis_name=AXIS))(draws)
    np.testing.assert_allclose(total, known, rtol=0, atol=1e-5)


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


def lmo(rate):
    """Return the exact step over a spectral ball, with -U V^T of the update."""

    def step(updates, params=None):
        del params
        u, _, v = jnp.linalg.svd(updates, full_matrices=False)
        return -rate * u @ v

    return optax.stateless(step)


WANTED = np.random.default_rng(1).standard_normal((3, 4, 3))  # of three workers
MATRIX_FINISHED = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 1]])


def on_matrices(method, finished):
    """Return W after updates of three workers, and the last state, from 0."""
    tx = as_optax(method)

    @jax.jit
    @jax.vmap
    def begun(_):
        return tx.init(jnp.zeros((4, 3)))

    def update(w, state, wanted, batches):
        moved, state = tx.update(w - wanted, state, w, batches=batches, nominal=1)
        return w + moved, state

    step = jax.jit(jax.vmap(update, axis_name="workers"))
    w, state = jnp.zeros((3, 4, 3)), begun(np.arange(3))
    for row in finished:
        w, state = step(w, state, jnp.float32(WANTED), jnp.int32(row))
    np.testing.assert_array_equal(w, jnp.broadcast_to(w[:1], w.shape))
    return np.asarray(w[0]), state


def largest(x, k):
    kept = np.zeros(x.size)
    places = np.argsort(-np.abs(x).ravel())[:k]
    kept[places] = x.ravel()[places]
    return kept.reshape(x.shape)


def test_ef21_muon_by_hand():
    """Five entries of twelve on the way up, three on the way back; one worker begins late."""
    rate, eta = 0.1, 0.3
    method = ef21_sgdm(lmo(rate), 3, eta=eta, exchange=top_k(5 / 12), broadcast=top_k(3 / 12))
    found, state = on_matrices(method, MATRIX_FINISHED)
    x, w, G = np.zeros((3, 4, 3))
    momentum, known = np.zeros((2, 3, 4, 3))
    begun = np.zeros(3, bool)
    for finished in MATRIX_FINISHED:
        for j in np.flatnonzero(finished):
            gradient = w - WANTED[j]
            momentum[j] = (1 - eta) * momentum[j] + eta * gradient if begun[j] else gradient
            begun[j] = True
            sent = largest(momentum[j] - known[j], 5)
            known[j] += sent
            G = G + sent / 3
        u, _, v = np.linalg.svd(G, full_matrices=False)
        x = x - rate * u @ v
        w = w + largest(x - w, 3)
    np.testing.assert_allclose(found, w, atol=1e-5)
    ahead = next(leaf for leaf in jax.tree.leaves(state.optimizer) if np.allclose(leaf[0], x))
    assert np.abs(ahead[0] - found).max() > 0.05


def test_without_compression_it_is_muon_on_the_mean_momentum():
    muon = optax.contrib.muon(0.1, beta=0, nesterov=False, ns_steps=1)
    whole = top_k(1.0)
    method = ef21_sgdm(muon, 3, eta=0.3, exchange=whole, broadcast=whole)
    found, _ = on_matrices(method, np.ones((6, 3), int))
    w, mean = jnp.zeros((2, 4, 3))
    state, step_of = muon.init(w), jax.jit(muon.update)
    for update in range(6):
        gradient = w - WANTED.mean(0)
        mean = 0.7 * mean + 0.3 * gradient if update else gradient
        step, state = step_of(mean, state, w)
        w = w + step
    np.testing.assert_allclose(found, w, atol=1e-4)
    assert np.abs(found).max() > 0.2


def test_a_broadcast_is_the_answer_to_a_push_and_nothing_where_workers_hear_each_other():
    params = np.zeros((10, 10), np.float32)
    network = cost.uniform_network(1.0, 1.0, workers=4)
    plain, both = (
        ef21(optax.sgd(RATE), 4, exchange=top_k(0.1), broadcast=broadcast)
        for broadcast in (None, top_k(0.05))
    )
    for method, answer in ((plain, 400), (both, 5 * 8)):
        seconds = push_seconds(method, params, 4, network)(0)
        np.testing.assert_allclose(seconds, 1 + 10 * 8 + 1 + answer)
    for wait, options in (("barrier", {}), ("k_sync", {"k": 4})):
        schedule = planned.plan(wait, delays.deterministic(1.0), 4, 3, **options)
        one, two = (sent_bytes(method, params, schedule) for method in (plain, both))
        np.testing.assert_array_equal(one, two)
    assert both.messages(params, 4, Row(0))[0].size == 10 * 8


def test_a_resumed_run_has_the_model_of_the_server():
    """Its own, which the workers' is behind of."""
    method = ef21(optax.sgd(RATE), N, exchange=TOP_1, broadcast=TOP_1)
    law = delays.deterministic(1.0)
    runtime, state, _ = quadratics.ran(method, "barrier", law, 7)
    packed = {name: np.array(value) for name, value in runtime.pack(state).items()}
    whole, _ = runtime.advance(state, np.inf, 5)
    begun = runtime.start(np.zeros(D, np.float32))
    resumed, _ = runtime.resume(begun, packed, [(0.0, 1.0)])
    resumed, _ = runtime.advance(resumed, np.inf, 5)
    np.testing.assert_array_equal(runtime.models(resumed), runtime.models(whole))
    found = [v for v in packed.values() if v.shape == (D,) and v.any()]
    assert len({v.tobytes() for v in found}) == 3  # W, X and G
