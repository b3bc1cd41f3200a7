"""StragglAR: its schedule step by step on sets of addends, its sum, its bytes and its seconds.

And all-reduces by halving and doubling, for powers of two as well.
"""

import numpy as np
import optax
import pytest

from algorithms import all_reduce
from comms import cost, halving, straggl_ar
from comms.messages import collective_bytes, exchange_transfers, seconds
from stragglers import delays
from stragglers.processes import persistent
from tests import planned
from tests.refusals import refused

SIZES = [2, 8, 64]


@pytest.mark.parametrize("workers", SIZES)
def test_the_schedule_adds_everybody_once_in_the_papers_rounds(workers):
    """Chunks are multisets of the workers whose addends they hold."""
    late = workers - 1
    held = np.zeros((workers, late, workers), int)  # worker, chunk, addend
    held[np.arange(late), np.arange(late), :late] = 1  # after the reduce-scatter
    held[late, :, late] = 1
    steps = straggl_ar.rounds(workers)
    assert len(steps) == workers - 2 + np.log2(workers)
    for step in steps:
        assert sorted(step.senders) == list(range(workers))  # everybody sends once
        before = held.copy()
        for me, (sender, chunk, adds) in enumerate(
            zip(step.senders, step.heard, step.adds, strict=True)
        ):
            if chunk >= 0:
                assert step.sent[sender] == chunk
                held[me, chunk] = before[sender, chunk] + adds * before[me, chunk]
    np.testing.assert_array_equal(held, 1)
    scatter = straggl_ar.scatter_rounds(workers)
    assert len(scatter) == workers - 2 and (scatter[:, late] == late).all()


@pytest.mark.few(5)  # of each collective one of several workers
@pytest.mark.parametrize("collective", [straggl_ar, halving])
@pytest.mark.parametrize(("workers", "size"), [(1, 4), (8, 23)])
def test_the_sum_is_that_of_numpy_with_the_same_bits_everywhere(spmd, workers, size, collective):
    x = np.random.default_rng(0).normal(size=(workers, size)).astype(np.float32)
    found = np.asarray(spmd(lambda x: collective.all_reduce(x, "workers"), x))
    np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
    np.testing.assert_allclose(found[0], x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)


test_other_numbers_of_workers_are_refused = refused(
    (lambda: straggl_ar.rounds(6), "6 workers are no power of two; use 2, 4, 8"),
    (lambda: halving.payloads(4000, 6), "halving_doubling: 6 workers are no power of two"),
)


@pytest.mark.parametrize("workers", SIZES)
def test_halving_and_doubling_take_the_seconds_of_their_cost(workers):
    links = cost.uniform_network(3.0, 0.5, workers=workers)
    sent = halving.payloads(6400, workers)
    found = sum(seconds(payload, workers, links) for payload in sent)
    expected = cost.halving_doubling(workers, 3.0, 2.0).seconds(6400)
    assert found == pytest.approx(expected) and len(sent) == 2 * np.log2(workers)
    total = sum(collective_bytes(payload, workers) for payload in sent)
    assert total == cost.ring_all_reduce_bytes(6400, workers)


@pytest.mark.parametrize("workers", SIZES[1:])
def test_seconds_are_the_papers_closed_form_once_the_others_have_waited(workers):
    """(n - 2 + log2 n) (alpha + beta size / (n - 1)), after n - 2 such steps of the others."""
    alpha, beta, size = 3.0, 2.0, 20 * (workers - 1)
    links = cost.uniform_network(alpha, 1 / beta, workers=workers)
    step = alpha + beta * size / (workers - 1)
    before, after = straggl_ar.payloads(size, workers)
    assert seconds(before, workers, links) == pytest.approx((workers - 2) * step)
    assert seconds(after, workers, links) == pytest.approx((workers - 2 + np.log2(workers)) * step)
    sent = [collective_bytes(p, workers) for p in straggl_ar.payloads(4000, workers)]
    chunk = 4 * -(-1000 // (workers - 1))
    mean = (workers - 1) / workers * (workers - 2), workers - 2 + np.log2(workers)
    np.testing.assert_allclose(sent, np.multiply(mean, chunk))


def test_in_the_clock_the_others_reduce_while_they_wait():
    """With a ring a round ends 2 (n - 1) / n s after the last worker's begin, here sooner."""
    slow = persistent(delays.deterministic(1.0), [1.0] * 7 + [1.5])
    links = cost.uniform_network(0.0, 1.0, workers=8)
    rounds = {}
    for collective in ("ring", "straggl_ar"):
        method = all_reduce(optax.sgd(0.1), collective=collective)
        each = exchange_transfers(method, np.zeros(4200, np.float32), 8, links)
        each = tuple(one._replace(seconds=one.seconds / 16800) for one in each(0))
        plan = planned.plan("barrier", slow, 8, 10, communication=each)
        rounds[collective] = plan.time[-1] / 10
    assert rounds["ring"] == pytest.approx(1.5 + 14 / 8)
    assert rounds["straggl_ar"] == pytest.approx(1.5 + 9 / 7 + 6 / 7 - 0.5)
