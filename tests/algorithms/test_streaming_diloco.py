"""Streaming DiLoCo: DiLoCo where nothing is cut, its update by hand, its peak and its overlap."""

import numpy as np
import optax
import pytest

from algorithms import local_sgd, streaming_diloco
from algorithms.reducers import error_feedback, quantise, top_k
from comms import cost
from comms.messages import Row, exchange_transfers, sent_bytes
from runtimes import mesh
from stragglers import delays
from tests import planned
from tests.algorithms import quadratics
from tests.algorithms.quadratics import CENTRE, CURVATURE, D, N
from tests.marks import slow

RATE, H = 0.05, 2
LAW = delays.exponential(1.0)
OUTER = optax.sgd(0.7, 0.9, nesterov=True)


def run(method, updates, wait="barrier", mini_batches=H, **options):
    models, schedule = quadratics.simulated(
        method, wait, LAW, updates, mini_batches=mini_batches, **options
    )
    return models[0], schedule


def by_hand(schedule, fragments, overlap, alpha):
    """The server's model, fragments of which only some parameters are due at a time."""
    size = -(-D // fragments)
    served, velocity = np.zeros((2, D))
    own = np.zeros((N, D))
    under_way = []
    for t, batches in enumerate(schedule.batches):
        kept = (1 - RATE * CURVATURE.astype(float)) ** batches[:, None]
        own = CENTRE + kept * (own - CENTRE)
        busy = batches > 0
        off = (served - own)[busy].mean(0)
        under_way.append((t % fragments, off))
        if t < overlap:
            continue
        which, off = under_way.pop(0)
        due = slice(which * size, (which + 1) * size)
        velocity[due] = 0.9 * velocity[due] + off[due]
        served[due] -= 0.7 * (off[due] + 0.9 * velocity[due])
        own[:, due] = alpha * own[:, due] + (1 - alpha) * served[due]
    return served


@pytest.mark.parametrize(
    ("fragments", "overlap", "alpha"),
    [slow(1, 0, 0.0), slow(3, 0, 0.0), (3, 2, 0.5), slow(5, 1, 0.25)],
)
def test_it_is_the_update_by_hand(fragments, overlap, alpha):
    method = streaming_diloco(
        optax.sgd(RATE), fragments=fragments, overlap=overlap, alpha=alpha, server=OUTER
    )
    found, schedule = run(method, 23, "first_finisher", leftovers="drop", in_flight="cut")
    assert schedule.batches.min() == 0
    expected = by_hand(schedule, fragments, overlap, alpha)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_with_nothing_cut_and_nothing_late_it_is_diloco():
    method = streaming_diloco(optax.sgd(RATE, 0.5), fragments=1, overlap=0, alpha=0.0)
    diloco = local_sgd(optax.sgd(RATE, 0.5), server=OUTER)
    np.testing.assert_allclose(run(method, 40)[0], run(diloco, 40)[0], rtol=1e-4, atol=1e-5)


def rest(steps):
    """Return the point at which the mean progress of a stretch of local steps vanishes."""
    share = 1 - (1 - RATE * CURVATURE.astype(float)) ** steps
    return (share * CENTRE).sum(0) / share.sum(0)


@pytest.mark.slow
def test_cut_it_comes_to_where_diloco_comes():
    """What counts is a worker's steps between two syncs of an entry; mixing adds to them."""
    method = streaming_diloco(optax.sgd(RATE), fragments=2, overlap=0, alpha=0.0)
    found, _ = run(method, 300, mini_batches=1)
    np.testing.assert_allclose(found, rest(2), atol=1e-5)
    late, _ = run(streaming_diloco(optax.sgd(RATE), fragments=4, overlap=2), 300, mini_batches=1)
    off = [quadratics.distance(rest(steps)) for steps in (4, 12)]
    assert off[0] < quadratics.distance(late) < off[1]


@pytest.mark.slow
def test_four_bits_reach_the_optimum_of_even_data():
    """What is rounded vanishes there, and its rounding with it."""
    even = {"a": CURVATURE, "c": np.broadcast_to(CENTRE[0], (N, D))}
    method = streaming_diloco(optax.sgd(RATE), fragments=2, exchange=quantise(bits=4))
    models, _ = quadratics.simulated(method, "barrier", LAW, 300, mini_batches=H, data=even)
    np.testing.assert_allclose(models[0], CENTRE[0], atol=1e-6)


PARAMS = {"w": np.zeros((100, 60), np.float32), "b": np.zeros(40, np.float32)}


def test_a_fragment_is_all_that_is_sent_at_a_time():
    """1 / F of DiLoCo's peak, and a seventh of that in 4 bits gathered by two."""
    diloco = local_sgd(optax.sgd(RATE), server=OUTER)
    method = streaming_diloco(optax.sgd(RATE), fragments=4)
    few = streaming_diloco(optax.sgd(RATE), fragments=4, exchange=quantise(bits=4))
    schedule = planned.plan("barrier", LAW, N, 8, H)
    whole, fragment = (sent_bytes(m, PARAMS, schedule) for m in (diloco, method))
    np.testing.assert_allclose(fragment, whole / 4, rtol=2e-3)  # whole elements go round
    sizes = [m.messages(PARAMS, 2, Row(0))[0].size for m in (few, method)]
    assert sizes[1] == 4 * 1510 and sizes[0] < sizes[1] / 7


@pytest.mark.parametrize(("overlap", "seconds"), [(0, 30 + 15), (1, 30 + 0.5), (2, 30 + 1)])
def test_what_is_sent_hides_behind_the_rounds_that_go_on(overlap, seconds):
    """30 rounds of a second, whose fragment takes half a second more than nothing to arrive."""
    method = streaming_diloco(optax.sgd(RATE), fragments=3, overlap=overlap)
    network = cost.uniform_network(0.0, 1.0, workers=N)
    (whole,) = exchange_transfers(method, PARAMS, N, network)(0)
    network = cost.uniform_network(0.0, 2 * whole.seconds, workers=N)
    transfers = exchange_transfers(method, PARAMS, N, network)
    assert transfers(0)[0].seconds == pytest.approx(0.5) and transfers(0)[0].late == overlap
    schedule = planned.plan("barrier", delays.deterministic(1.0), N, 30, 1, communication=transfers)
    assert schedule.time[-1] <= seconds + 1e-6
    assert (schedule.time[-1] > 44) == (overlap == 0)


@pytest.mark.slow
def test_a_mesh_streams_as_the_simulator_does():
    method = streaming_diloco(optax.sgd(RATE, 0.5), fragments=3, overlap=2, exchange=None)
    data = {"a": CURVATURE, "c": CENTRE}
    runtime = mesh.Mesh(method, quadratics.losses, data, quadratics.OWN, workers=N, mini_batches=H)
    state, _ = runtime.advance(runtime.start(np.zeros(D, np.float32)), np.inf, 20)
    (found,) = np.asarray(runtime.models(state))
    np.testing.assert_allclose(found, run(method, 20)[0], rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="0 <= overlap < fragments, got 2 and 2"):
        streaming_diloco(optax.sgd(RATE), fragments=2, overlap=2)
    with pytest.raises(ValueError, match="needs 0 <= alpha < 1, got 1"):
        streaming_diloco(optax.sgd(RATE), alpha=1)
    with pytest.raises(ValueError, match="error_feedback keeps a memory of one fragment"):
        streaming_diloco(optax.sgd(RATE), exchange=error_feedback(top_k(0.1)))
    with pytest.raises(ValueError, match="all workers send the same fragment"):
        method = streaming_diloco(optax.sgd(RATE))
        quadratics.simulated(method, "k_async", LAW, 4, k=2)
