"""Transfers beside the work of a round: independent recursions in NumPy and by hand."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from algorithms.base import scale_by_samples
from algorithms.dpsgd import dpsgd
from comms import topology
from comms.messages import lasting
from stragglers import delays, inject
from stragglers.processes import as_process, persistent
from stragglers.rule import Transfer
from tests import planned

N, M, D = 8, 3, 0.7
LAW = delays.shifted_exponential(1.0, 1.0)
RING = topology.ring(N)
NEAR = [[(i - 1) % N, i, (i + 1) % N] for i in range(N)]
BESIDE = (Transfer(D, leaves=0.0),)
PARAMS = np.zeros(5, np.float32)


def drawn(rounds, seed):
    """[rounds, N, M] seconds of mini-batches, if every worker takes all of its own."""
    process = as_process(LAW).seeded(seed)
    each = process.duration(np.arange(N)[:, None], 0.0, np.arange(rounds * M))
    return each.reshape(N, rounds, M).swapaxes(0, 1)


def of_dpsgd(order):
    return lasting(dpsgd(scale_by_samples(0.1), RING, order=order), PARAMS, N, D)


@pytest.mark.parametrize("order", ["combine_while_adapting", "adapt_then_combine"])
def test_the_order_of_dpsgd_decides_what_a_neighbour_waits_for(order):
    """t_i <- max(t_i + X_i, max_j t_j + D), or max_j (t_j + X_j) + D."""
    for seed in range(3):
        schedule = planned.plan(
            "neighbour_barrier", LAW, N, 50, M, seed, graph=RING, communication=of_dpsgd(order)
        )
        schedule.validate()
        t = np.zeros(N)
        for row, seconds in enumerate(drawn(50, seed).sum(2)):
            if order == "adapt_then_combine":
                t = (t + seconds)[NEAR].max(1) + D
            else:
                t = np.maximum(t + seconds, t[NEAR].max(1) + D)
            np.testing.assert_allclose(schedule.finish[row], t, rtol=1e-12)


def test_the_work_of_a_round_ends_at_its_trigger():
    """The first to finish all M mini-batches stops the others, who then wait for messages."""
    options = {"graph": RING, "communication": BESIDE, "in_flight": "cut", "leftovers": "drop"}
    schedule = planned.plan("first_finisher", LAW, N, 40, M, 3, draw="round", **options)
    process = as_process(LAW).seeded(3)
    t = np.zeros(N)
    for row in range(40):
        each = process.duration(np.arange(N), 0.0, row)
        signal = (t + M * each).min()
        ready = np.minimum(t + M * each, np.maximum(signal, t))
        done = np.floor((np.maximum(signal - t, 0)) / each + 1e-9)
        np.testing.assert_array_equal(schedule.batches[row], np.minimum(done, M))
        t = np.maximum(ready, t[NEAR].max(1) + D)
        np.testing.assert_allclose(schedule.finish[row], t, rtol=1e-12)
    schedule.validate()


def test_a_barrier_waits_for_all_work_and_hides_what_fits_beside_it():
    for seconds, exposed in ((0.5, 0.0), (100.0, None)):
        cost = (Transfer(seconds, leaves=0.0),)
        schedule = planned.plan("barrier", LAW, N, 30, M, 1, communication=cost)
        t = np.zeros(N)
        for row, work in enumerate(drawn(30, 1).sum(2)):
            t = np.full(N, max((t + work).max(), t.max() + seconds))
            np.testing.assert_allclose(schedule.finish[row], t, rtol=1e-12)
        if exposed is None:  # all but what the worker's own work hides
            np.testing.assert_allclose(schedule.communication, seconds - schedule.busy, rtol=1e-9)
        else:
            np.testing.assert_array_equal(schedule.communication, exposed)


def test_no_message_is_too_short_to_be_waited_for_and_none_hides_more_than_itself():
    """Between the work alone and the work followed by the exchange, whoever waits for whom."""
    for name, options in (
        ("neighbour_barrier", {}),
        ("first_finisher", {"landing": "all"}),
        ("deadline", {"seconds": 3.0}),
    ):
        times = {}
        for leaves in (0.0, 0.5, 1.0):
            cost = (Transfer(D, leaves=leaves),)
            schedule = planned.plan(
                name, LAW, N, 60, M, 2, graph=RING, communication=cost, draw="round", **options
            )
            schedule.validate()
            assert (schedule.communication <= D).all()
            times[leaves] = schedule.time[-1]
        assert times[0.0] <= times[0.5] < times[1.0], name


def test_a_bucket_leaves_within_the_last_mini_batch_by_hand():
    """Workers of 1 s and 2 s a mini-batch, two each; buckets of 3 s and 1 s leave at .5 and 1."""
    delay = persistent(delays.deterministic(1.0), [1.0, 2.0])
    cost = (Transfer(3.0, leaves=0.5), Transfer(1.0))
    schedule = planned.plan("barrier", delay, 2, 2, 2, communication=cost)
    # The slower one's first bucket is known at 3 s and there at 6, the second one at 7.
    np.testing.assert_array_equal(schedule.time, [7.0, 14.0])
    np.testing.assert_array_equal(schedule.communication, [[4.0, 3.0], [4.0, 3.0]])
    # Stopped at 2 s in a mini-batch of 4 s, the slower one knows then that it is the last.
    late = persistent(delays.deterministic(1.0), [1.0, 4.0])
    stopped = planned.plan("first_finisher", late, 2, 1, 2, communication=cost)
    np.testing.assert_array_equal(stopped.batches, [[2, 1]])
    np.testing.assert_array_equal(stopped.time, [6.0])  # known at 2, there at 5 and, after 4, at 6
    # Cut there, nothing was known before.
    cut = planned.plan("first_finisher", late, 2, 1, 2, communication=cost, in_flight="cut")
    np.testing.assert_array_equal(cut.time, [6.0])


def test_transfers_that_make_no_sense_are_refused():
    for wrong in (Transfer(1.0, leaves=-0.1), Transfer(1.0, leaves=1.5), Transfer(1.0, late=-1)):
        with pytest.raises(ValueError, match="share from 0 to 1, and rounds >= 0"):
            planned.rule("barrier", LAW, N, M, communication=(wrong,))


def test_rules_that_hide_nothing_charge_all_transfers():
    """A server's workers and pairs of nodes wait for the sum."""
    parts, whole = (Transfer(0.25, leaves=0.0), Transfer(0.5)), 0.75
    pairs = nx.complete_graph(N)
    for name, options in (("k_async", {"k": 2}), ("random_pairs", {"graph": pairs})):
        for cost in (whole, lambda t: whole):
            split = parts if cost is whole else lambda t: parts
            one = planned.plan(name, LAW, N, 40, 1, 0, communication=cost, **options)
            two = planned.plan(name, LAW, N, 40, 1, 0, communication=split, **options)
            np.testing.assert_array_equal(one.finish, two.finish)


@pytest.mark.parametrize(
    ("cost", "slept"),
    [
        (0.5, 0.5),
        ((Transfer(0.5, late=2),), 0.5),
        ((Transfer(0.5, leaves=0.0),), 0.0),
        ((Transfer(7.0, leaves=0.0),), 7.0 - 6.0),
        ((Transfer(2.5, leaves=0.5), Transfer(1.0)), 2.5 - 1.5 + 1.0),
        ((Transfer(0.5, leaves=0.5), Transfer(1.0)), 1.0),
    ],
)
def test_a_device_sleeps_for_what_its_work_has_not_hidden(cost, slept, monkeypatch):
    """Two mini-batches of 3 s on a clock that only sleeping moves."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(inject, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    trigger = planned.rule("barrier", LAW, 1, 2).trigger
    device = inject.Injector(1, trigger, 0, delay=delays.deterministic(3.0), communication=cost)
    device.resume()
    for round_index in range(2):
        device.begin(0, round_index, None)
        device.tick(0, round_index, 1, None)
        device.tick(0, round_index, 2, None)
        device.land(0, round_index, None)
    schedule = device.schedule(0, 2)
    schedule.validate()
    np.testing.assert_allclose(schedule.communication, [[slept], [slept]])
    np.testing.assert_allclose(schedule.finish, [[6 + slept], [2 * (6 + slept)]])
