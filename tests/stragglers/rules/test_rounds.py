import inspect
from dataclasses import fields

import networkx as nx
import numpy as np
import pytest

from stragglers import delays, round_clock
from stragglers.processes import as_process, markov, persistent
from stragglers.round_clock import until_deadline
from stragglers.rule import Transfer
from stragglers.rules import RULES
from stragglers.schedule import Schedule, concatenate
from tests import planned

EXPONENTIAL = delays.shifted_exponential(1.0, 1.0)
RING = nx.cycle_graph(8)
FIVE_TIMES = delays.bernoulli_slowdown(1 / 8, 5.0, 0.1)  # a nominal round takes 1 s
OWN = {
    "deadline": {"seconds": 12.0},
    "quorum": {"k": 20},
    "anytime": {"seconds": 12.0},
    "drop_compute": {"calibration": 6},
}
ROUNDS = {"barrier", "neighbour_barrier", "first_finisher", "deadline", "quorum"} | {
    "anytime",
    "drop_compute",
}
CARRYING = [
    name for name in sorted(ROUNDS) if "leftovers" in inspect.signature(RULES[name]).parameters
]


def rule(name, delay=EXPONENTIAL, workers=8, mini_batches=8, seed=0, **options):
    if name == "neighbour_barrier":
        options = {"graph": RING} | options
    return planned.rule(name, delay, workers, mini_batches, seed, **OWN.get(name, {}) | options)


def whole(rule, updates):
    return rule.extend(rule.init(), updates)[1]


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def throughput(schedule):
    return schedule.batches.sum() / schedule.time[-1]


def test_round_worked_out_finish():
    """Worker 0 needs 1 s a mini-batch, worker 1 needs 2.5 s: at 4 s it is in its second."""
    delay = persistent(delays.deterministic(1.0), [1.0, 2.5])
    schedule = planned.plan("first_finisher", delay, 2, 2, 4, 0, communication=0.5)
    np.testing.assert_array_equal(schedule.batches, [[4, 2], [4, 2]])
    np.testing.assert_array_equal(schedule.first, [[0, 0], [4, 2]])
    np.testing.assert_array_equal(schedule.busy, [[4.0, 5.0], [4.0, 5.0]])
    np.testing.assert_array_equal(schedule.start, [[0.0, 0.0], [5.5, 5.5]])
    np.testing.assert_array_equal(schedule.finish, [[5.5, 5.5], [11.0, 11.0]])
    np.testing.assert_array_equal(schedule.time, [5.5, 11.0])
    np.testing.assert_array_equal(schedule.version, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(schedule.idle, [[1.0, 0.0], [1.0, 0.0]])
    assert schedule.mean_staleness == 0


def test_round_worked_out_cut():
    delay = persistent(delays.deterministic(1.0), [1.0, 2.5])
    schedule = planned.plan("first_finisher", delay, 2, 2, 4, 0, in_flight="cut", leftovers="drop")
    np.testing.assert_array_equal(schedule.batches, [[4, 1], [4, 1]])
    np.testing.assert_array_equal(schedule.first, [[0, 0], [4, 4]])
    np.testing.assert_array_equal(schedule.busy, 4.0)
    np.testing.assert_array_equal(schedule.time, [4.0, 8.0])
    assert schedule.idle_fraction == 0


def test_deadline_and_quorum_worked_out():
    delay = persistent(delays.deterministic(1.0), [1.0, 2.5])
    deadline = planned.plan("deadline", delay, 2, 1, 4, 0, seconds=3.0)
    np.testing.assert_array_equal(deadline.batches, [[3, 2]])
    np.testing.assert_array_equal(deadline.time, [5.0])
    quorum = planned.plan("quorum", delay, 2, 1, 4, 0, k=3)  # ends at 1, 2, 2.5: the third at 2.5
    np.testing.assert_array_equal(quorum.batches, [[3, 1]])
    np.testing.assert_array_equal(quorum.time, [3.0])


def test_cut_mini_batch_is_redone_in_another_time():
    delay = EXPONENTIAL
    schedule = planned.plan("first_finisher", delay, 2, 40, 2, 3, in_flight="cut")
    durations = as_process(delay).seeded(3).duration(np.arange(2)[:, None], 0.0, np.arange(200))
    attempt = np.zeros(2, int)
    for row in range(40):
        ends = np.array([durations[i, attempt[i] : attempt[i] + 2].cumsum() for i in range(2)])
        signal = ends[:, -1].min()
        batches = (ends <= signal).sum(axis=1)
        np.testing.assert_array_equal(schedule.batches[row], batches)
        attempt += np.minimum(batches + 1, 2)  # a finisher has nothing in flight


@pytest.mark.parametrize("name", ["first_finisher", "deadline", "quorum"])
@pytest.mark.parametrize("graph", [None, RING], ids=["global", "ring"])
@pytest.mark.parametrize("in_flight", ["finish", "cut"])
def test_equal_speeds_equal_blocking_exactly(name, graph, in_flight):
    delay = delays.deterministic(0.1)
    options = {"communication": 0.3, "in_flight": in_flight, "graph": graph}
    options |= {"deadline": {"seconds": 0.9}, "quorum": {"k": 64}}.get(name, {})
    blocking = "barrier" if graph is None else "neighbour_barrier"
    expected = whole(rule(blocking, delay, communication=0.3, graph=graph), 50)
    actual = whole(planned.rule(name, delay, 8, 8, 0, **options), 50)
    assert (actual.batches == 8).all()
    assert_equal(actual, expected)


@pytest.mark.parametrize("name", CARRYING)
@pytest.mark.parametrize("in_flight", ["finish", "cut"])
def test_carry_loses_no_mini_batch_and_uses_none_twice(name, in_flight):
    schedule = whole(rule(name, in_flight=in_flight), 60)
    for i in range(8):
        used = [
            counter
            for first, batches in zip(schedule.first[:, i], schedule.batches[:, i], strict=True)
            for counter in range(first, first + batches)
        ]
        assert used == list(range(len(used)))


@pytest.mark.parametrize("draw", ["mini_batch", "round"])
@pytest.mark.parametrize("name", ["barrier", "first_finisher", "drop_compute"])
def test_segments_equal_the_whole(name, draw):
    """With communication that changes and mini-batches that are cut."""
    options = {"draw": draw, "communication": lambda t: 0.1 * t, "in_flight": "cut"}
    one = whole(rule(name, **options), 30)
    two = rule(name, **options)
    state, first = two.extend(two.init(), 11)
    state, second = rule(name, **options).extend(state, 19)  # a fresh rule, as after a restart
    assert state.update == 30
    assert_equal(concatenate([first, second]), one)
    one.validate()


@pytest.mark.parametrize("name", sorted(ROUNDS))
def test_drop_uses_none_twice(name):
    schedule = whole(rule(name, **({"leftovers": "drop"} if name in CARRYING else {})), 60)
    assert (schedule.batches <= 8).all()
    np.testing.assert_array_equal(schedule.first, np.tile(8 * np.arange(60)[:, None], 8))


def test_neighbour_barrier_is_the_max_plus_recursion():
    graph = nx.path_graph(5)
    schedule = planned.plan(
        "neighbour_barrier", EXPONENTIAL, len(graph), 40, 2, 1, graph=graph, communication=0.25
    )
    durations = as_process(EXPONENTIAL).seeded(1).duration(np.arange(5)[:, None], 0.0, range(80))
    now = [0.0] * 5
    for k in range(40):
        ready = [now[i] + durations[i, 2 * k] + durations[i, 2 * k + 1] for i in range(5)]
        now = [max(ready[j] for j in [i, *graph[i]]) + 0.25 for i in range(5)]
        np.testing.assert_allclose(schedule.finish[k], now, rtol=1e-12)
    np.testing.assert_array_equal(schedule.time, schedule.finish.max(axis=1))


def test_complete_graph_lands_as_everybody():
    complete = planned.plan("first_finisher", EXPONENTIAL, 8, 50, 8, 0, graph=nx.complete_graph(8))
    assert_equal(complete, planned.plan("first_finisher", EXPONENTIAL, 8, 50, 8, 0))


def test_deadline_runs_from_each_workers_own_begin():
    schedule = planned.plan("deadline", EXPONENTIAL, 8, 50, 8, 0, seconds=5.0, graph=RING)
    assert np.ptp(schedule.start, axis=1).max() > 0.5
    assert (schedule.busy >= 5.0 - 1e-9).all()  # the eighth mini-batch ends after 8 s or more


def test_communication_may_differ_by_round_and_worker():
    cost = np.array([0.1, 0.7])
    schedule = planned.plan(
        "barrier", delays.deterministic(1.0), 2, 3, 1, 0, communication=lambda t: cost
    )
    np.testing.assert_allclose(schedule.finish[0], [1.1, 1.7])
    np.testing.assert_allclose(schedule.time, [1.7, 3.4, 5.1])
    np.testing.assert_array_equal(schedule.communication, np.tile(cost, (3, 1)))


def test_the_signal_is_a_knob_of_a_segment():
    adaptive = rule("deadline")
    state, first = adaptive.extend(adaptive.init(), 20)
    state, second = adaptive.extend(state, 20, signal=until_deadline(6.0))
    assert second.batches.mean() < first.batches.mean()
    concatenate([first, second]).validate()


def test_one_worker():
    blocking = planned.plan("barrier", EXPONENTIAL, 1, 20, 4, 0)
    assert_equal(planned.plan("first_finisher", EXPONENTIAL, 1, 20, 4, 0), blocking)
    assert blocking.idle_fraction == pytest.approx(0, abs=1e-12)


def test_rules_meet_the_same_draws():
    """One duration per round is addressed by the round, so blocking rounds contain the others."""
    options = {"draw": "round", "in_flight": "cut"}
    slow, fast = (whole(rule(name, **options), 200) for name in ("barrier", "first_finisher"))
    assert (np.diff(fast.time) <= np.diff(slow.time) + 1e-9).all()


def test_time_dependent_delays_meet_every_mini_batch_at_its_start():
    delay = markov(EXPONENTIAL, 5.0, 9.0, 1.0)
    schedule = planned.plan("first_finisher", delay, 3, 20, 2, 5)
    process, attempt = delay.seeded(5), np.zeros(3, int)
    for row in range(20):
        for i in range(3):
            now = schedule.start[row, i]
            for _ in range(schedule.batches[row, i]):
                now = now + process.duration(i, now, attempt[i])
                attempt[i] += 1
            assert now - schedule.start[row, i] == pytest.approx(schedule.busy[row, i])
    schedule.validate()


@pytest.mark.slow
def test_throughput_gains_when_the_mini_batch_in_flight_finishes():
    nonblocking = planned.plan("first_finisher", FIVE_TIMES, 8, 12000, 8, 0, draw="round")
    blocking = planned.plan("barrier", FIVE_TIMES, 8, 12000, 8, 0, draw="round")
    ring = planned.plan(
        "neighbour_barrier", FIVE_TIMES, len(RING), 12000, 8, 0, graph=RING, draw="round"
    )
    assert throughput(nonblocking) / throughput(blocking) == pytest.approx(2.67, rel=0.02)
    assert throughput(nonblocking) / throughput(ring) == pytest.approx(2.18, rel=0.02)
    # Landing at neighbours as well, instead of at everybody, gains somewhat more.
    local = planned.plan("first_finisher", FIVE_TIMES, 8, 12000, 8, 0, draw="round", graph=RING)
    assert throughput(local) / throughput(ring) == pytest.approx(2.29, rel=0.02)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rule("barrier", workers=0), "workers >= 1, got workers=0"),
        (lambda: rule("barrier", communication=lambda t: -1.0), "communication >= 0, got -1"),
        (lambda: rule("neighbour_barrier", graph=None), "pass the graph, or use barrier"),
        (lambda: rule("neighbour_barrier", graph=nx.star_graph(3)), "label the nodes 0..7"),
        (lambda: rule("deadline", seconds=0.0), "needs seconds > 0, got 0"),
        (
            lambda: rule("deadline", seconds=0.9, in_flight="cut"),
            "after 0.9 s cuts every mini-batch, the quickest takes 1 s",
        ),
        (lambda: rule("quorum", k=65), "1 <= k <= 64 .*, got k=65"),
        (lambda: rule("quorum", k=0), "got k=0"),
        (lambda: rule("first_finisher", in_flight="drop"), "unknown in_flight='drop'; choose"),
        (lambda: rule("first_finisher", leftovers="keep"), "choose one of carry, drop"),
        (lambda: rule("first_finisher", landing="here"), "choose one of neighbours, all"),
        (lambda: rule("drop_compute", calibration=0), "needs calibration >= 1 rounds, got 0"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_short_deadline_is_allowed_where_nothing_is_cut():
    schedule = planned.plan("deadline", EXPONENTIAL, 8, 10, 8, 0, seconds=0.5)
    assert (schedule.batches == 1).all()


@pytest.mark.parametrize("name", ["barrier", "neighbour_barrier"])
def test_rounds_that_are_drawn_at_once_are_those_that_are_drawn_one_by_one(name, monkeypatch):
    """To the bit, over segments, with an exchange that begins before the work has ended."""
    exchange = (Transfer(0.3, leaves=0.5), Transfer(0.2))

    def rows():
        options = {"communication": lambda t: exchange, "graph": nx.cycle_graph(5)}
        rule = planned.rule(name, delays.exponential(1.0), 5, 3, **options)
        state, first = rule.extend(rule.init(), 7)
        return concatenate([first, rule.extend(state, 9)[1]])

    at_once = rows()
    monkeypatch.setattr(round_clock, "DRAWN_AT_ONCE", 0)
    one_by_one = rows()
    for column in ("time", "start", "finish", "busy", "communication", "first", "batches"):
        np.testing.assert_array_equal(getattr(at_once, column), getattr(one_by_one, column))
