"""DiLoCo's relatives by hand: asynchronous, decoupled, streaming, sparse, in pairs; and DeMo."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms as use
from algorithms import reducers as by
from algorithms.base import AXIS
from algorithms.decoupled_diloco import radial_directional
from algorithms.noloco import meet_with_momentum
from comms import chunked, cost, topology
from comms.collectives import weighted_mean
from comms.messages import Row, exchange_transfers
from stragglers import delays, local_updates, processes
from tests import planned
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N, gradients, in_step
from tests.marks import slow

RATE, H = 0.05, 2
LAW = delays.exponential(1.0)
UNEVEN = processes.persistent(delays.jitter(1.0, 0.2), {0: 4.0, 1: 2.0})
OUTER = optax.sgd(0.7, 0.9, nesterov=True)
ALPHA, BETA, GAMMA = 0.4, 0.6, 1.2  # of NoLoCo
PARAMS = {"w": np.zeros((100, 60), np.float32), "b": np.zeros(40, np.float32)}


def run(method, wait, updates, law=LAW, **options):
    models, schedule = quadratics.simulated(method, wait, law, updates, mini_batches=H, **options)
    return models[0], schedule


def kept(steps, who=slice(None)):
    """Return the share of the distance to its centre that a worker keeps after local steps."""
    return (1 - RATE * CURVATURE[who].astype(float)) ** steps


def test_every_push_of_async_diloco_by_hand():
    """The model that a worker went on from, its local steps, and the server's two kinds of step."""
    found, schedule = run(use.async_diloco(optax.sgd(RATE), N), "k_async", 45, k=1)
    versions, gathered, momentum = [np.zeros(D)], np.zeros(D), np.zeros(D)
    for t in range(schedule.updates):
        (i,), (read,) = schedule.workers[t], schedule.version[t]
        push = (1 - kept(H, i)) * (versions[read] - CENTRE[i])
        gathered, step = gathered + push, push / N
        if (t + 1) % N == 0:
            momentum = 0.9 * momentum + gathered / N
            gathered, step = np.zeros(D), step + 0.9 * momentum
        versions.append(versions[-1] - 0.7 * step)
    assert schedule.staleness.max() > N
    np.testing.assert_allclose(found, versions[-1], rtol=1e-3, atol=1e-4)


def test_local_steps_by_speed_let_all_push_equally_often():
    """DyLU from the speeds of a first schedule: the slow worker makes a quarter of the steps."""
    law = processes.persistent(delays.jitter(mean=1.0, sigma=0.05), factors={0: 4.0})
    graced = planned.plan("k_async", law, N, 120, 4, k=1, grace=0.5)
    assert (graced.workers == N).any()  # nobody's, beside fewer contributions than workers
    speeds = local_updates.measured_speeds(graced, N)
    np.testing.assert_allclose(speeds[1:] / speeds[0], 4, rtol=0.05)
    steps = local_updates.dynamic([0.25, *[1.0] * (N - 1)], 4)
    assert steps == (1, *[4] * (N - 1))
    schedule = planned.plan("k_async", law, N, 400, steps, k=1)
    pushes = np.bincount(schedule.workers.ravel(), minlength=N)
    assert pushes[0] == pytest.approx(pushes[1:].mean(), rel=0.1)


def phi(x):
    length = np.linalg.norm(x)
    return x / length if length else x


def decoupled_by_hand(schedule, fragments, alpha, average):
    """Return the server's model; learners receive fragments of the version that they have read."""
    size = -(-D // fragments)
    served, velocity = np.zeros((2, D))
    own, versions = np.zeros((N, D)), [served.copy()]
    known, steps = np.zeros(N, int), np.zeros((N, fragments))
    for t in range(schedule.updates):
        due = slice(t % fragments * size, (t % fragments + 1) * size)
        off, weight = [], []
        for j, i in enumerate(schedule.workers[t]):
            if not schedule.batches[t, j]:
                continue
            for u in range(known[i], schedule.version[t, j]):
                p = slice(u % fragments * size, (u % fragments + 1) * size)
                steps[i, u % fragments] = 0
                newest = versions[schedule.version[t, j]][p]
                if u >= schedule.version[t, j] - fragments:  # each of them once
                    own[i, p] = alpha * own[i, p] + (1 - alpha) * newest
            known[i] = schedule.version[t, j]
            own[i] = CENTRE[i] + kept(schedule.batches[t, j], i) * (own[i] - CENTRE[i])
            steps[i] += schedule.batches[t, j]
            off.append((served - own[i])[due])
            weight.append(steps[i, t % fragments])
        share = np.array(weight) / np.sum(weight)
        merged = share @ np.array(off)
        if average == "radial_directional":
            merged = share @ np.linalg.norm(off, axis=1) * phi(share @ [phi(x) for x in off])
        velocity[due] = 0.9 * velocity[due] + merged
        served = served.copy()
        served[due] -= 0.7 * (merged + 0.9 * velocity[due])
        versions.append(served)
    return served


@pytest.mark.parametrize(
    ("fragments", "alpha", "average", "wait", "own"),
    [
        (3, 0.25, "radial_directional", "quorum_async", {"k": 2}),
        slow(2, 0.5, "mean", "k_async", {"k": 3, "grace": 0.4}),
        slow(5, 0.0, "radial_directional", "k_batch_async", {"k": 1}),
    ],
)
def test_decoupled_diloco_by_hand(fragments, alpha, average, wait, own):
    method = use.decoupled_diloco(
        optax.sgd(RATE), fragments=fragments, alpha=alpha, average=average, server=OUTER
    )
    found, schedule = run(method, wait, 30, UNEVEN, **own)
    expected = decoupled_by_hand(schedule, fragments, alpha, average)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.unique(schedule.workers[:, 0]).size > 2


def test_its_mean_keeps_the_length_that_a_plain_one_loses():
    """Of two tensors, one of them 0 everywhere; a learner of weight 0 does not count."""
    off = np.random.default_rng(0).standard_normal((N, 1000)).astype(np.float32)
    off[:, 600:] = 0
    tensor, weight = np.repeat([0, 1], [600, 400]), np.float32([0, 3, 1, 2, 2, 1, 1, 4])
    off[0] = np.nan

    def one(off, weight):
        return radial_directional(off, tensor, 2, lambda x: (weighted_mean(x, weight), ()))[0]

    found = np.asarray(jax.jit(jax.vmap(one, axis_name=AXIS))(off, weight)[0])
    share, there = weight[1:] / weight.sum(), off[1:, :600].astype(float)
    length = share @ np.linalg.norm(there, axis=1)
    expected = length * phi(share @ [phi(x) for x in there])
    np.testing.assert_allclose(found[:600], expected, atol=1e-6 * length)
    assert not found[600:].any()
    assert np.linalg.norm(share @ there) < length / 2


def test_a_fragment_is_all_that_is_sent_at_a_time():
    """1 / F of DiLoCo's peak, with a length of every tensor; rounded to 4 bits a seventh of it.

    Codes are half a byte in words, their scales beside; lengths are not rounded.
    """
    streaming = use.streaming_diloco(optax.sgd(RATE), fragments=4)
    decoupled = use.decoupled_diloco(optax.sgd(RATE), fragments=4)
    mean = use.decoupled_diloco(optax.sgd(RATE), fragments=4, average="mean")
    for method, entries in ((streaming, 1510), (mean, 1510), (decoupled, 1512)):
        (payload,) = method.messages(PARAMS, N, Row(0))
        assert payload.size == 4 * entries
    bits = {"fragments": 4, "exchange": by.quantise(bits=4)}
    (codes,) = use.streaming_diloco(optax.sgd(RATE), **bits).messages(PARAMS, 2, Row(0))
    assert 1510 / 2 < codes.size < 1510 * 4 / 7
    codes, lengths = use.decoupled_diloco(optax.sgd(RATE), **bits).messages(PARAMS, 2, Row(0))
    assert 1510 / 2 < codes.size < 1510 * 4 / 7 and lengths.size == 8


def streaming_by_hand(schedule, fragments, overlap, alpha):
    """Return the server's model, of which only one fragment is due at a time."""
    size = -(-D // fragments)
    served, velocity = np.zeros((2, D))
    own, under_way = np.zeros((N, D)), []
    for t, batches in enumerate(schedule.batches):
        own = CENTRE + kept(batches[:, None]) * (own - CENTRE)
        under_way.append((t % fragments, (served - own).mean(0)))  # idle ones have earlier steps
        if t < overlap:
            continue
        which, off = under_way.pop(0)
        due = slice(which * size, (which + 1) * size)
        velocity[due] = 0.9 * velocity[due] + off[due]
        served[due] -= 0.7 * (off[due] + 0.9 * velocity[due])
        own[:, due] = alpha * own[:, due] + (1 - alpha) * served[due]
    return served


@pytest.mark.parametrize(
    ("fragments", "overlap", "alpha"), [(3, 2, 0.5), slow(1, 0, 0.0)]
)
def test_streaming_diloco_by_hand(fragments, overlap, alpha):
    method = use.streaming_diloco(
        optax.sgd(RATE), fragments=fragments, overlap=overlap, alpha=alpha, server=OUTER
    )
    found, schedule = run(method, "first_finisher", 23, leftovers="drop", in_flight="cut")
    assert schedule.batches.min() == 0
    expected = streaming_by_hand(schedule, fragments, overlap, alpha)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_rounds_of_the_server_choose_the_fragment():
    """Of a worker that has read version 1, in the update after two more: fragment 0 of three."""
    method = use.streaming_diloco(optax.sgd(RATE), fragments=3, overlap=0, alpha=0.0)
    model, progress = np.zeros(6, np.float32), np.arange(1.0, 7).astype(np.float32)

    def update(progress):
        state = method.exchange.init(model)
        known = {"current": model, "version": 1, "staleness": 2, "weight": 1.0, "batches": 1}
        return method.exchange.update(progress, state, model, **known)[0].served

    found = jax.vmap(update, axis_name=AXIS)(progress[None])
    np.testing.assert_array_equal(found[0], [1, 2])


@pytest.mark.parametrize(("overlap", "seconds"), [(0, 30 + 15), (2, 30 + 1)])
def test_what_is_sent_hides_behind_the_rounds_that_go_on(overlap, seconds):
    """30 rounds of a second, whose fragment takes half a second more than nothing to arrive."""
    method = use.streaming_diloco(optax.sgd(RATE), fragments=3, overlap=overlap)
    network = cost.uniform_network(0.0, 1.0, workers=N)
    (whole,) = exchange_transfers(method, PARAMS, N, network)(0)
    network = cost.uniform_network(0.0, 2 * whole.seconds, workers=N)
    transfers = exchange_transfers(method, PARAMS, N, network)
    assert transfers(0)[0].seconds == pytest.approx(0.5) and transfers(0)[0].late == overlap
    schedule = planned.plan("barrier", delays.deterministic(1.0), N, 30, 1, communication=transfers)
    assert schedule.time[-1] <= seconds + 1e-6
    assert (schedule.time[-1] > 44) == (overlap == 0)


def test_sparse_loco_by_hand_whoever_takes_part():
    """Each worker's feedback decays when it contributes, and only then."""
    cut, bits, decay, alpha = chunked.Cut(D, 2), 2, 0.9, 0.8
    method = use.sparse_loco(
        optax.sgd(RATE), chunk=D, k=2, bits=bits, decay=decay, server_learning_rate=alpha
    )
    found, schedule = run(method, "k_sync", 9, k=5)

    @jax.jit
    def message(owed):
        return chunked.decode(chunked.encode(owed, cut, bits), D, cut, bits)

    theta, owed = np.zeros(D), np.zeros((N, D))
    for who, finished in zip(schedule.workers, schedule.batches, strict=True):
        sent = []
        for i, count in zip(who, finished, strict=True):
            owed[i] = decay * owed[i] + (1 - kept(count, i)) * (theta - CENTRE[i])
            sent.append(np.asarray(message(np.float32(owed[i]))))
            owed[i] -= sent[-1]
        theta = theta - alpha * np.mean(sent, axis=0)
    assert len(sent) == 5
    np.testing.assert_allclose(found, theta, rtol=1e-3, atol=1e-4)


def test_noloco_by_hand_and_its_mean_is_dilocos():
    options = {"alpha": ALPHA, "beta": BETA, "gamma": GAMMA, "seed": 5}
    method = use.noloco(optax.sgd(RATE), topology.hypercube(N), **options)
    models, schedule = quadratics.simulated(method, "first_finisher", LAW, 21, mini_batches=H)
    assert (schedule.batches == 0).any()
    slow_weights, velocity = np.zeros((2, N, D))
    mean, momentum = np.zeros((2, D))
    for used, batches in zip(schedule.matchings, schedule.batches, strict=True):
        partner = method.links.partners[np.flatnonzero(used)[0]]
        progress = (1 - kept(batches[:, None])) * (CENTRE - slow_weights)
        momentum = ALPHA * momentum + BETA * progress.mean(0)
        mean = mean + momentum
        pairs = (progress + progress[partner]) / 2
        apart = (slow_weights - slow_weights[partner]) / 2
        velocity = ALPHA * velocity + BETA * pairs - GAMMA * apart
        slow_weights = slow_weights + velocity
        np.testing.assert_allclose(slow_weights.mean(0), mean, atol=1e-12)
    np.testing.assert_allclose(models, slow_weights, rtol=1e-4, atol=1e-5)


def test_progress_of_who_finished_nothing_is_never_looked_at():
    """As an all-reduce leaves out whoever has the weight 0, NaN or not."""
    exchange = meet_with_momentum(np.array([[1, 0]]), ALPHA, BETA, GAMMA)
    params, updates = jnp.float32([[1, 2], [3, 5]]), jnp.float32([[0.5, 1], [jnp.nan, jnp.inf]])

    def update(progress, params, batches):
        state = exchange.init(params)
        return exchange.update(progress, state, params, active=np.ones(1, bool), batches=batches)[0]

    found = jax.vmap(update, axis_name=AXIS)(updates, params, jnp.array([2, 0]))
    expected = -BETA * np.array([[0.25, 0.5]] * 2) - GAMMA * np.array([[-1, -1.5], [1, 1.5]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
    found = in_step(use.demo(optax.sgd(0.02), chunk=D, k=2, decay=0.9), 12, finished)
    np.testing.assert_allclose(found, np.tile(theta, (N, 1)), rtol=1e-4, atol=1e-5)


def test_demo_as_in_the_authors_code():
    """Blocks of a matrix in both directions, and a frequency's mean over those who have sent it."""
    rng, n, chunk, k = np.random.default_rng(4), 3, 4, 3
    method = use.demo(optax.sgd(0.1), chunk=chunk, k=k, decay=0.9, blocks=True, mean_of="senders")
    params = {"b": np.zeros(6, np.float32), "w": np.zeros((6, 8), np.float32)}
    (message,) = method.messages(params, n, Row(0))
    assert message.size == 2 * k * 5 + 4 * k * 5  # of blocks; the weight is one scalar
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
        drawn = {name: rng.standard_normal((n, *a.shape)) for name, a in params.items()}
        found, states = exchange(jax.tree.map(np.float32, drawn), states, weights)
        for name, momentum in momenta.items():
            expected = _step_of_senders(
                momentum, drawn[name].reshape(momentum.shape), weights, chunk, k
            )
            np.testing.assert_allclose(found[name][0], expected.reshape(params[name].shape),
                                       rtol=1e-4, atol=1e-5)  # fmt: skip


def _step_of_senders(momentum, gradients, weights, chunk, k):
    """Return the mean [rows, columns] of what is sent, and take it from the momentum [n, ...]."""
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
