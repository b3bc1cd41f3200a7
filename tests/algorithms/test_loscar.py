"""LOSCAR-SGD by hand, with workers that make unequal numbers of local steps, or none."""

import jax
import numpy as np
import optax
import pytest

import algorithms as use
from algorithms.base import AXIS
from comms import cost, sparse
from comms.messages import exchange_transfers, sent_bytes
from runtimes.own_loop import as_optax
from stragglers import delays
from tests import planned
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N
from tests.marks import slow

RATE, H, K, SEED = 0.05, 2, 2, 7
LAW = delays.exponential(1.0)
PARAMS = {"w": np.zeros((100, 60), np.float32), "b": np.zeros(40, np.float32)}


def by_hand(batches, every, overlap, corrected=True):
    """Return the workers' models; S of a round as the seed draws it, all else in NumPy."""
    x, drawn = np.zeros((N, D)), np.asarray(_drawn(np.arange(len(batches))))
    for t in range(0, len(batches), every):
        cut = t + every - overlap
        y = _stepped(x, batches[t:cut])
        x = _stepped(y, batches[cut : t + every])
        if cut == 0 or len(batches) < t + every:
            continue  # nothing is sent before the first round, or has arrived yet
        S = drawn[cut - 1]
        assert len(set(S.tolist())) == K
        x[:, S] = y.mean(0)[S] + (x[:, S] - y[:, S] if corrected else 0)
    return x


@jax.jit
@jax.vmap
def _drawn(t):
    return sparse.random_indices(D, K, jax.random.fold_in(jax.random.key(SEED), t))


def _stepped(x, batches):
    kept = (1 - RATE * CURVATURE.astype(float)) ** batches.sum(0)[:, None]
    return CENTRE + kept * (x - CENTRE)


@pytest.mark.parametrize(("every", "overlap"), [(3, 1), slow(2, 2), slow(1, 0)])
def test_rounds_by_hand(every, overlap):
    method = use.loscar_sgd(
        optax.sgd(RATE), N, ratio=K / D, every=every, overlap=overlap, seed=SEED
    )
    options = {"mini_batches": H, "leftovers": "drop", "in_flight": "cut"}
    found, schedule = quadratics.simulated(method, "first_finisher", LAW, 23, **options)
    assert schedule.batches.min() == 0 < schedule.batches.max() == H
    expected = by_hand(schedule.batches, every, overlap)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    overwritten = by_hand(schedule.batches, every, overlap, corrected=False)
    assert (np.abs(overwritten - expected).max() > 0.01) == (overlap > 0)


def test_of_all_coordinates_without_overlap_it_is_local_sgd():
    whole = use.loscar_sgd(optax.sgd(RATE), N, ratio=1.0, every=1, overlap=0)
    found, _ = quadratics.simulated(whole, "barrier", LAW, 9, mini_batches=H)
    expected, _ = quadratics.simulated(
        use.local_sgd(optax.sgd(RATE)), "barrier", LAW, 9, mini_batches=H
    )
    np.testing.assert_allclose(found, np.tile(expected, (N, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_model_without_entries_sends_nothing(overlap):
    nothing = {"w": np.zeros((N, 0, 3), np.float32)}
    method = use.loscar_sgd(optax.sgd(RATE), N, every=1, overlap=overlap)
    tx = as_optax(method)
    state = jax.vmap(tx.init)(nothing)
    moved, _ = jax.vmap(tx.update, axis_name=AXIS)(nothing, state, nothing)
    assert moved["w"].shape == (N, 0, 3)
    schedule = planned.plan("barrier", delays.deterministic(1.0), N, 2, links=method.links)
    np.testing.assert_array_equal(sent_bytes(method, {"w": np.zeros((0, 3))}, schedule), 0)


@pytest.mark.parametrize("overlap", [0, 1])
def test_only_values_travel_once_in_every_rounds_and_hide_behind_steps(overlap):
    """Six rounds of a second, and two messages of a second that count where nothing overlaps."""
    method = use.loscar_sgd(optax.sgd(RATE), N, ratio=0.1, every=3, overlap=overlap)
    once = cost.ring_all_reduce_bytes(4 * 604, N, 4)
    network = cost.uniform_network(0.0, once, workers=N)
    transfers = exchange_transfers(method, PARAMS, N, network)
    own = {"communication": transfers, "links": method.links}
    schedule = planned.plan("barrier", delays.deterministic(1.0), N, 6, **own)
    expected = once * np.array([[0, 0, 1], [0, 1, 0]])[overlap]
    np.testing.assert_allclose(sent_bytes(method, PARAMS, schedule), [*expected, *expected])
    assert transfers(2 - overlap)[0].late == overlap
    assert schedule.time[-1] == pytest.approx((8, 6)[overlap], rel=0.01)  # chunks are whole


def test_workers_wait_for_each_other_only_where_something_is_sent():
    method = use.loscar_sgd(optax.sgd(RATE), N, every=5, overlap=0)
    own, all_of_them = (
        planned.plan(wait, LAW, N, 20, links=method.links).time[-1]
        for wait in ("neighbour_barrier", "barrier")
    )
    assert own < 0.8 * all_of_them
