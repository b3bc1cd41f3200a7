"""Transfers beside the work of a round, and changing links, against recursions and by hand."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from algorithms.base import scale_by_samples
from algorithms.dpsgd import dpsgd
from algorithms.links import Links
from comms import topology
from comms.messages import lasting
from stragglers import delays, inject
from stragglers.processes import as_process, markov, persistent
from stragglers.rule import Exchange, Transfer, whole
from tests import planned
from tests.refusals import refused

N, M, D = 8, 3, 0.7
LAW = delays.shifted_exponential(1.0, 1.0)
RING = topology.ring(N)
NEAR = [[(i - 1) % N, i, (i + 1) % N] for i in range(N)]
PARAMS = np.zeros(5, np.float32)


def slow_after_7_s(begin):
    return 1.5 if begin > 7 else 0.5


def drawn(rounds, seed):
    """Draw seconds of mini-batches [rounds, N, M], if every worker takes all of its own."""
    process = as_process(LAW).seeded(seed)
    each = process.duration(np.arange(N)[:, None], 0.0, np.arange(rounds * M))
    return each.reshape(N, rounds, M).swapaxes(0, 1)


@pytest.mark.parametrize("order", ["combine_while_adapting", "adapt_then_combine"])
def test_the_order_of_dpsgd_decides_what_a_neighbour_waits_for(order):
    """t_i <- max(t_i + X_i, max_j t_j + D), or max_j (t_j + X_j) + D."""
    exchange = lasting(dpsgd(scale_by_samples(0.1), RING, order=order), PARAMS, N, D)
    schedule = planned.plan(
        "neighbour_barrier", LAW, N, 50, M, 2, graph=RING, communication=exchange
    )
    schedule.validate()
    t = np.zeros(N)
    for row, seconds in enumerate(drawn(50, 2).sum(2)):
        if order == "adapt_then_combine":
            t = (t + seconds)[NEAR].max(1) + D
        else:
            t = np.maximum(t + seconds, t[NEAR].max(1) + D)
        np.testing.assert_allclose(schedule.finish[row], t, rtol=1e-12)


def test_transfers_that_make_no_sense_are_refused():
    for wrong in (Transfer(1.0, leaves=-0.1), Transfer(1.0, leaves=1.5), Transfer(1.0, late=-1)):
        with pytest.raises(ValueError, match="share from 0 to 1, and rounds >= 0"):
            planned.rule("barrier", LAW, N, M, communication=(wrong,))


@pytest.mark.parametrize("other", [Transfer(0.0, late=1), Transfer(0.0)])
def test_who_waits_for_a_message_of_an_earlier_round_communicates(other):
    """Every other round of 1 s sends a message of 6 s, for which the next one waits."""
    delay, sent = delays.deterministic(1.0), (Transfer(6.0, late=1), other)
    rows = planned.plan("barrier", delay, 2, 4, communication=lambda t: (sent[t % 2],))
    assert rows.time.tolist() == [1, 7, 8, 14]
    assert rows.communication.tolist() == [[0, 0], [5, 5]] * 2 and rows.idle_fraction == 0


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


@pytest.fixture
def clock(monkeypatch):
    """Return a clock of devices that only sleeping moves, and a test that sets it."""
    now = [0.0]

    def sleep(seconds):
        now[0] += max(0.0, seconds)

    monkeypatch.setattr(inject, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    return now


def devices(workers, trigger, **own):
    """Return an injector whose clock runs."""
    device = inject.Injector(workers, trigger, **{"seed": 0} | own)
    device.resume()
    return device


def ticks(device, round_index, *whose):
    """Make a round of all workers, with a mini-batch for each of `whose`; return the answers."""
    for worker in range(device.workers):
        device.begin(worker, round_index, None)
    made = [whose[: n + 1].count(worker) for n, worker in enumerate(whose)]
    said = [int(device.tick(w, round_index, n, None)) for w, n in zip(whose, made, strict=True)]
    for worker in range(device.workers):
        device.land(worker, round_index, None)
    return said


@pytest.mark.parametrize(
    ("cost", "slept"),
    [
        (0.5, 0.5),
        ((Transfer(0.5, late=2),), 0.5),
        ((Transfer(0.5, leaves=0.0),), 0.0),
        ((Transfer(7.0, leaves=0.0),), 7.0 - 6.0),
        ((Transfer(2.5, leaves=0.5), Transfer(1.0)), 2.5 - 1.5 + 1.0),
        ((Transfer(0.5, leaves=0.5), Transfer(1.0)), 1.0),
        (Exchange(lambda t: 0.5, lambda t: (Transfer(slow_after_7_s),), None), [[0.5], [1.5]]),
    ],
)
def test_a_device_sleeps_for_what_its_work_has_not_hidden(cost, slept, clock):
    """Two mini-batches of 3 s on a clock that only sleeping moves."""
    trigger = planned.rule("barrier", LAW, 1, 2).trigger
    device = devices(1, trigger, delay=delays.deterministic(3.0), communication=cost)
    for round_index in range(2):
        ticks(device, round_index, 0, 0)
    schedule = device.schedule(0, 2)
    schedule.validate()
    slept = np.broadcast_to(slept, (2, 1))
    np.testing.assert_allclose(schedule.communication, slept)
    np.testing.assert_allclose(schedule.finish, np.cumsum(6 + slept, axis=0))


def test_what_the_others_send_hides_in_the_wait_for_the_last(clock):
    """Two are ready after 3 s; the last one, after 9 s, waits for what is left of 8 s."""
    cost = (Transfer(8.0, others=True), Transfer(1.0))
    device = devices(3, planned.rule("barrier", LAW, 3, 1).trigger, communication=cost)
    for worker in range(3):
        device.begin(worker, 0, None)
    for worker, clock[0] in enumerate((2.0, 3.0, 9.0)):
        device.tick(worker, 0, 1, None)
    for worker in range(3):
        clock[0] = 9.0  # all sleep at the same time
        device.land(worker, 0, None)
    np.testing.assert_allclose(device.schedule(0, 1).communication, 8 - 6 + 1)


def test_a_draw_of_a_round_is_that_of_its_begin(clock):
    """On devices as in the plan: a speed that changes within a round is that of the next one."""
    slow = markov(delays.deterministic(1.0), 4.0, 3.0, 3.0)
    trigger = planned.rule("barrier", LAW, 1, 4).trigger
    device = devices(1, trigger, seed=3, delay=slow, draw="round")
    for round_index in range(20):
        ticks(device, round_index, *[0] * 4)
    plan = planned.plan("barrier", slow, 1, 20, 4, seed=3, draw="round")
    assert np.ptp(np.diff(plan.time)) > 1
    np.testing.assert_allclose(device.schedule(0, 20).time, plan.time)


def test_a_contribution_that_is_cut_takes_its_durations_along(clock):
    """Samples have costs; worker 0 is cut in the first of its two mini-batches."""
    delay = as_process(LAW).costing(lambda worker, counter: np.ones(np.shape(worker)), 1.0)
    device = devices(2, planned.rule("k_sync", delay, 2, [2, 1], k=1).trigger, delay=delay)
    assert ticks(device, 0, 1, 0) == [inject.STOP, inject.CUT]
    packed = device.pack()
    assert packed["attempts"].tolist() == packed["consumed"].tolist() == [2, 1]


def test_a_grace_follows_the_begin_of_its_round(clock):
    """Worker 0 is full after 1 s, and half a second later worker 1 is cut, in every round."""
    delay = persistent(delays.deterministic(1.0), {1: 10.0})
    own = {"k": 1, "gamma": 0.5, "in_flight": "cut"}
    device = devices(2, planned.rule("quorum_grace", delay, 2, **own).trigger, delay=delay)
    for round_index in range(2):
        assert ticks(device, round_index, 0, 1) == [inject.GO, inject.CUT]
    np.testing.assert_allclose(device.schedule(0, 2).busy, [[1, 1.5]] * 2, atol=2 * inject.LOOK)


# --- links that come and go ---


COINS = np.random.default_rng(7).random((100, 2)) < 0.5


def ring(workers, active=lambda first, count: COINS[first : first + count]):
    """Return the ring's two matchings: 0-1, 2-3, ... and 1-2, 3-4, ..., workers - 1 with 0."""
    everybody = np.arange(workers)
    return Links(np.stack([everybody ^ 1, ((everybody - 1) ^ 1) + 1]) % workers, active)


def always(first, count):
    return np.ones((count, 2), bool)


def rule(name, links, **options):
    own = {"deadline": {"seconds": 12.0}, "quorum": {"k": 20}}.get(name, {})
    return planned.rule(name, LAW, N, 4, 3, links=links, **own, **options)


test_bad_links = refused(
    (ring(6), None, "shape \\(2, 6\\), the rule 8 workers"),
    (Links(np.full((1, 8), 8), always), None, "partners 0..7"),
    (Links(np.roll(np.arange(8), 1)[None], always), None, "row 0 is no matching"),
    (ring(N), nx.path_graph(8), "row 1 pairs the workers \\(0, 7\\), who share no edge"),
    (ring(N, lambda *_: np.ones((5, 2), bool)), None, "expected bool \\(20, 2\\)"),
    by=lambda links, graph: whole(rule("first_finisher", links, graph=graph), 20),
)
