"""SparseLoCo and DeMo: what is sent and what is kept, their bytes, and where they come to rest."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, demo, local_sgd, sparse_loco
from comms import chunked
from comms.chunked import Cut
from comms.messages import sent_bytes
from stragglers import delays
from tests import planned
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N, gradients, in_step

RATE, H = 0.1, 3
LAW = delays.exponential(1.0)
EVEN = {"a": CURVATURE, "c": np.broadcast_to(CENTRE[0], (N, D))}


def run(method, updates, wait="barrier", data=quadratics.DATA, **options):
    models, schedule = quadratics.simulated(
        method, wait, LAW, updates, mini_batches=H, data=data, **options
    )
    return models[0], schedule


def test_sparse_loco_by_hand_whoever_takes_part():
    """Each worker's feedback decays when it contributes, and only then."""
    cut, bits, decay, alpha = Cut(D, 2), 2, 0.9, 0.8
    method = sparse_loco(
        optax.sgd(RATE), chunk=D, k=2, bits=bits, decay=decay, server_learning_rate=alpha
    )
    found, schedule = run(method, 9, "k_sync", k=5)
    theta, owed = np.zeros(D), np.zeros((N, D))
    for who, finished in zip(schedule.workers, schedule.batches, strict=True):
        sent = []
        for i, count in zip(who, finished, strict=True):
            kept = (1 - RATE * CURVATURE[i].astype(float)) ** count
            owed[i] = decay * owed[i] + (1 - kept) * (theta - CENTRE[i])
            message = chunked.encode(np.float32(owed[i]), cut, bits)
            sent.append(np.asarray(chunked.decode(message, D, cut, bits)))
            owed[i] -= sent[-1]
        theta = theta - alpha * np.mean(sent, axis=0)
    assert len(sent) == 5
    np.testing.assert_allclose(found, theta, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_sparse_loco_that_leaves_nothing_out_is_local_sgd():
    """All entries, in 8 bits with their feedback: to a part in 255."""
    method = sparse_loco(optax.sgd(RATE), chunk=D, k=D, bits=8)
    plain, _ = run(local_sgd(optax.sgd(RATE)), 60)
    np.testing.assert_allclose(run(method, 60)[0], plain, atol=5e-3)


@pytest.mark.slow
def test_sparse_loco_reaches_the_optimum_of_even_data():
    """With one entry of five in 2 bits: what is owed vanishes there."""
    method = sparse_loco(optax.sgd(RATE), chunk=D, k=1)
    np.testing.assert_allclose(run(method, 400, data=EVEN)[0], CENTRE[0], atol=1e-6)


LARGE = {"w": np.zeros((1024, 256), np.float32)}


def test_sparse_loco_sends_a_hundredth_of_an_all_reduce_in_every_step():
    """Indices and scales counted: 116 bytes of a chunk of 16384, once in H = 30 steps."""
    method, plain = sparse_loco(optax.sgd(RATE)), all_reduce(optax.sgd(RATE))
    rounds = planned.plan("barrier", delays.deterministic(1.0), N, 2, 30)
    steps = planned.plan("barrier", delays.deterministic(1.0), N, 60, 1)
    few, all_of_it = sent_bytes(method, LARGE, rounds).sum(), sent_bytes(plain, LARGE, steps).sum()
    assert few == 2 * (N - 1) * 116 * math.prod(LARGE["w"].shape) / 4096
    assert all_of_it > 1000 * few


def test_demo_by_hand():
    """The momentum of every worker less what it has sent; the model follows signs."""
    finished = np.random.default_rng(3).integers(0, 2, (12, N)).astype(np.int32)
    finished[:, 0] = 1
    transform = chunked.cosines(D).astype(float)
    theta, momentum = np.zeros(D), np.zeros((N, D))
    for batches in finished:
        g, total = gradients(np.broadcast_to(theta, (N, D))), 0
        for i in np.flatnonzero(batches):
            momentum[i] = 0.9 * momentum[i] + g[i]
            spectrum = transform @ momentum[i]
            spectrum[np.argsort(-np.abs(spectrum))[2:]] = 0
            sent = transform.T @ spectrum
            momentum[i] -= sent
            total = total + sent
        theta = theta - 0.02 * np.sign(total)
    found = in_step(demo(optax.sgd(0.02), chunk=D, k=2, decay=0.9), 12, finished)
    np.testing.assert_allclose(found, np.tile(theta, (N, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_demo_that_sends_all_frequencies_keeps_nothing_and_follows_signs():
    theta = np.zeros(D)
    for _ in range(40):
        theta = theta - 0.01 * np.sign(gradients(np.broadcast_to(theta, (N, D))).mean(0))
    found = in_step(demo(optax.sgd(0.01), chunk=D, k=D), 40)
    np.testing.assert_allclose(found[0], theta, atol=1e-5)


def test_what_has_no_code_is_refused():
    with pytest.raises(ValueError, match="chunked_top_k: needs 1 <= k <= chunk"):
        sparse_loco(optax.sgd(RATE), chunk=8, k=9)
    with pytest.raises(ValueError, match="sparse_loco: needs 0 <= decay <= 1, got 2"):
        sparse_loco(optax.sgd(RATE), decay=2)
    with pytest.raises(ValueError, match="demo: needs 1 <= k <= chunk <= 256, got 8 and 512"):
        demo(optax.sgd(RATE), chunk=512)
    with pytest.raises(ValueError, match=r"demo: needs 1 <= k <= chunk\^2 and chunk <= 256"):
        demo(optax.sgd(RATE), chunk=2, k=5, blocks=True)
    with pytest.raises(ValueError, match="demo: needs 0 <= decay < 1, got 1"):
        demo(optax.sgd(RATE), decay=1)


def test_demo_as_in_the_authors_code():
    """Blocks of a matrix in both directions, and a frequency's mean over those who have sent it."""
    rng, n, chunk, k = np.random.default_rng(4), 3, 4, 3
    method = demo(optax.sgd(0.1), chunk=chunk, k=k, decay=0.9, blocks=True, mean_of="senders")
    params = {"b": np.zeros(6, np.float32), "w": np.zeros((6, 8), np.float32)}
    states = jax.tree.map(lambda a: jnp.stack([a] * n), method.exchange.init(params))
    exchange = jax.jit(
        jax.vmap(
            lambda g, state, weight: method.exchange.update(g, state, weight=weight),
            axis_name="workers",
        )
    )
    momenta = {"b": np.zeros((n, 1, 6)), "w": np.zeros((n, 6, 8))}
    for _ in range(4):
        weights = np.float32([1, *rng.integers(0, 3, n - 1)])
        gradients = {name: rng.standard_normal((n, *a.shape)) for name, a in params.items()}
        found, states = exchange(jax.tree.map(np.float32, gradients), states, weights)
        for name, momentum in momenta.items():
            expected = _step_of_senders(
                momentum, gradients[name].reshape(momentum.shape), weights, chunk, k
            )
            np.testing.assert_allclose(found[name][0], expected.reshape(params[name].shape),
                                       rtol=1e-4, atol=1e-5)  # fmt: skip


def _step_of_senders(momentum, gradients, weights, chunk, k):
    """The mean [rows, columns] of what is sent; it leaves the momentum [n, rows, columns]."""
    rows, columns = momentum.shape[1:]
    height, width = min(chunk, rows), min(chunk, columns)
    down, across = (chunked.cosines(size).astype(float) for size in (height, width))
    mean = np.zeros((-(-rows // height) * height, -(-columns // width) * width))
    whole = np.zeros((len(momentum), *mean.shape))
    busy = weights > 0
    whole[:, :rows, :columns] = np.where(busy[:, None, None], 0.9 * momentum + gradients, momentum)
    for top, left in itertools.product(range(0, rows, height), range(0, columns, width)):
        place = slice(top, top + height), slice(left, left + width)
        sums, counts = np.zeros((height, width)), np.zeros((height, width))
        for i in np.flatnonzero(busy):
            spectrum = down @ whole[i][place] @ across.T
            sent = np.abs(spectrum) >= np.sort(np.abs(spectrum), axis=None)[-k]
            sums += weights[i] * np.where(sent, spectrum, 0)
            counts += weights[i] * sent
            whole[i][place] -= down.T @ np.where(sent, spectrum, 0) @ across
        mean[place] = down.T @ (sums / np.maximum(counts, 1)) @ across
    momentum[:] = whole[:, :rows, :columns]
    return mean[:rows, :columns]
