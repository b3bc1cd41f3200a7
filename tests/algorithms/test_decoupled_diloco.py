"""Decoupled DiLoCo: its update by hand, its mean, and who is waited for."""

import jax
import numpy as np
import optax
import pytest

from algorithms import decoupled_diloco, streaming_diloco
from algorithms.base import AXIS
from algorithms.decoupled_diloco import changed, radial_directional
from algorithms.reducers import error_feedback, quantise, top_k
from comms.collectives import weighted_mean
from comms.messages import Row
from stragglers import delays, processes
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N
from tests.marks import slow

RATE, H = 0.05, 2
OUTER = optax.sgd(0.7, 0.9, nesterov=True)
UNEVEN = processes.persistent(delays.jitter(1.0, 0.2), {0: 4.0, 1: 2.0})


def phi(x):
    length = np.linalg.norm(x)
    return x / length if length else x


def by_hand(schedule, fragments, alpha, average):
    """The server's model; learners receive what the version that they have read has got."""
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
            kept = (1 - RATE * CURVATURE[i].astype(float)) ** schedule.batches[t, j]
            own[i] = CENTRE[i] + kept * (own[i] - CENTRE[i])
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


def run(method, wait, updates, law=UNEVEN, **options):
    models, schedule = quadratics.simulated(method, wait, law, updates, mini_batches=H, **options)
    return models[0], schedule


@pytest.mark.parametrize(
    ("fragments", "alpha", "average", "wait", "own"),
    [
        (3, 0.25, "radial_directional", "quorum_async", {"k": 2}),
        slow(1, 0.0, "mean", "quorum_async", {"k": 1, "gamma": 0.2}),
        slow(2, 0.5, "mean", "k_async", {"k": 3, "grace": 0.4}),
        slow(5, 0.0, "radial_directional", "k_batch_async", {"k": 1}),
    ],
)
def test_it_is_the_update_by_hand(fragments, alpha, average, wait, own):
    method = decoupled_diloco(
        optax.sgd(RATE), fragments=fragments, alpha=alpha, average=average, server=OUTER
    )
    found, schedule = run(method, wait, 30, **own)
    expected = by_hand(schedule, fragments, alpha, average)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.unique(schedule.workers[:, 0]).size > 2


@pytest.mark.slow
def test_with_all_at_equal_speed_it_is_streaming_diloco():
    options = {"fragments": 3, "alpha": 0.0, "server": OUTER}
    ours = decoupled_diloco(optax.sgd(RATE, 0.5), average="mean", **options)
    theirs = streaming_diloco(optax.sgd(RATE, 0.5), overlap=0, **options)
    law = delays.deterministic(1.0)
    found, expected = (run(method, "barrier", 40, law)[0] for method in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_its_mean_keeps_the_length_that_a_plain_one_loses():
    """Of two tensors, one of them 0 everywhere; a learner of weight 0 does not count."""
    rng = np.random.default_rng(0)
    off = rng.standard_normal((N, 1000)).astype(np.float32)
    off[:, 600:] = 0
    tensor, weight = np.repeat([0, 1], [600, 400]), np.float32([0, 3, 1, 2, 2, 1, 1, 4])
    off[0] = np.nan

    @jax.jit
    def merged(off, weight):
        def one(off, weight):
            return radial_directional(off, tensor, 2, lambda x: (weighted_mean(x, weight), ()))[0]

        return jax.vmap(one, axis_name=AXIS)(off, weight)[0]

    found = np.asarray(merged(off, weight))
    share, there = weight[1:] / weight.sum(), off[1:, :600].astype(float)
    length = share @ np.linalg.norm(there, axis=1)
    np.testing.assert_allclose(np.linalg.norm(found), length, rtol=1e-5)
    np.testing.assert_allclose(
        found[:600] / length, phi(share @ [phi(x) for x in there]), atol=1e-6
    )
    assert not found[600:].any()
    assert np.linalg.norm(share @ there) < length / 2


@pytest.mark.parametrize("fragments", [1, 3, 4])
def test_a_learner_receives_what_was_due_since_it_has_looked(fragments):
    for since in range(9):
        for version in range(since, 12):
            due = {update % fragments for update in range(since, version)}
            assert set(np.flatnonzero(changed(since, version, fragments))) == due


@pytest.mark.slow
def test_a_slow_learner_holds_nobody_up():
    """A quorum of half of them moves on while learner 0 sleeps, and it comes back in."""
    law = processes.persistent(delays.deterministic(1.0), {0: 20.0})
    found, schedule = run(
        decoupled_diloco(optax.sgd(RATE), fragments=2), "quorum_async", 60, law, k=4
    )
    assert schedule.time[-1] == pytest.approx(60 * H)
    assert (schedule.workers[schedule.batches > 0] == 0).sum() == 3
    assert np.isfinite(found).all()
    assert quadratics.distance(found) < quadratics.distance(np.zeros(D)) / 2


PARAMS = {"w": np.zeros((100, 60), np.float32), "b": np.zeros(40, np.float32)}


@pytest.mark.parametrize(("average", "entries"), [("mean", 1510), ("radial_directional", 1512)])
def test_a_fragment_is_sent_and_a_length_of_every_tensor(average, entries):
    method = decoupled_diloco(optax.sgd(RATE), fragments=4, average=average)
    (payload,) = method.messages(PARAMS, N, Row(0))
    assert payload.size == 4 * entries


@pytest.mark.slow
def test_directions_can_be_rounded_to_4_bits_and_lengths_are_not():
    """1,500 codes of half a byte in words, their scales beside, and 2 lengths of 4 bytes."""
    rounded = decoupled_diloco(optax.sgd(RATE), fragments=4, exchange=quantise(bits=4))
    codes, lengths = rounded.messages(PARAMS, 2, Row(0))
    assert 1510 / 2 < codes.size < 1510 * 0.6 and lengths.size == 8
    even = {"a": CURVATURE, "c": np.broadcast_to(CENTRE[0], (N, D))}  # nothing is left to round
    method = decoupled_diloco(optax.sgd(RATE), fragments=2, exchange=quantise(bits=4))
    found, _ = run(method, "quorum_async", 300, data=even, k=4)
    np.testing.assert_allclose(found, CENTRE[0], atol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="needs fragments >= 1, got 0"):
        decoupled_diloco(optax.sgd(RATE), fragments=0)
    with pytest.raises(ValueError, match="needs 0 <= alpha < 1, got 1"):
        decoupled_diloco(optax.sgd(RATE), alpha=1)
    with pytest.raises(ValueError, match=r"decoupled_diloco: .*keeps a memory of one fragment"):
        decoupled_diloco(optax.sgd(RATE), exchange=error_feedback(top_k(0.1)))
    with pytest.raises(ValueError, match="unknown choice 'median'; known choices: radial_direct"):
        decoupled_diloco(optax.sgd(RATE), average="median")
    with pytest.raises(ValueError, match="a worker may deliver twice in an update"):
        run(decoupled_diloco(optax.sgd(RATE)), "k_batch_async", 20, k=6)
