"""Rules in rounds: by hand, against independent recursions, and in limiting cases."""

import networkx as nx
import numpy as np
import pytest

from algorithms.links import Links, in_turn
from stragglers import delays, round_clock
from stragglers.inject import Injector, Measured
from stragglers.processes import as_process, markov, persistent
from stragglers.rule import Setting, Transfer
from stragglers.rules.rounds import drop_compute_threshold, round_deadline
from stragglers.schedule import concatenate
from tests import planned
from tests.refusals import refused
from tests.stragglers.contract_rows import SHIFTED, assert_equal

FIVE_TIMES = delays.bernoulli_slowdown(1 / 8, 5.0, 0.1)


def rule(name, workers=8, **options):
    return planned.rule(name, SHIFTED, workers, 8, **options)


def plain_rounds(delay, rounds, stop, cut, carry, near, cost, by_round=False, everywhere=False):
    """Columns of every round, from what each worker does in it.

    stop: (begins, ends) -> signals; near: round -> [P, P] bool, of whom each waits for.
    """
    draw = as_process(delay).seeded(3).duration
    free, attempt, consumed, due, rows = np.zeros(P), np.zeros(P, int), np.zeros(P, int), {}, []
    for t in range(rounds):
        ends = np.zeros((P, M))
        for i, m in np.ndindex(P, M):
            now = ends[i, m - 1] if m else free[i]
            of = (free[i], t) if by_round else (now, attempt[i] + m)
            ends[i, m] = now + draw(i, *of)
        begins = np.column_stack([free, ends[:, :-1]])
        signal = np.broadcast_to(stop(free, ends), P)
        started = (begins < signal[:, None]).sum(axis=1)
        if cut:
            done = (ends <= signal[:, None]).sum(axis=1)
            ready = np.minimum(ends[:, -1], np.maximum(signal, free))
        else:
            done = started
            ready = np.array([ends[i, n - 1] if n else free[i] for i, n in enumerate(done)])
        waits, arrived, at = near(t), due.pop(t, np.full(P, -np.inf)), -np.inf
        landed = np.full(P, ready.max()) if everywhere else ready
        for part in cost:
            last = begins[np.arange(P), np.maximum(done - 1, 0)]
            sure = np.where(done == M, last, np.minimum(signal, ready))
            known = np.maximum(last + part.leaves * (ready - last), sure)
            known = {0: free, 1: ready}.get(part.leaves, known)
            at = np.maximum([known[waits[i]].max() for i in range(P)], at) + part.seconds
            if part.late:
                due[t + part.late] = np.maximum(due.get(t + part.late, -np.inf), at)
            else:
                arrived = np.maximum(arrived, at)
        finish = np.maximum(landed, arrived)
        rows.append((free, finish, done, consumed, ready - free))
        free, attempt = finish, attempt + started
        consumed = consumed + (done if carry else M)
    return [np.array(column) for column in zip(*rows, strict=True)]


P, M = 6, 3
SIX = nx.cycle_graph(P)
NEAR = nx.to_numpy_array(SIX, range(P)) + np.eye(P) > 0
ALL = np.ones((P, P), bool)
COST = 0.1 + 0.1 * np.arange(P)
PUSHES = Links((np.arange(P) - [[1], [2]]) % P, in_turn(2), directed=True)
PAIRS = np.array([[1, 0, 3, 2, 5, 4], [5, 2, 1, 4, 3, 0]])
COINS = np.random.default_rng(7).random((100, 2)) < 0.5
COMING = Links(PAIRS, lambda begin, count: COINS[begin : begin + count])


def linked(links):
    """Of whom each waits in a round: itself and its active partners."""

    def near(t):
        partners = links.partners[links.active(t, 1)[0]]
        return np.eye(P, dtype=bool) | (partners[..., None] == np.arange(P)).any(axis=0)

    return near


def never(begins, ends):
    return np.inf


def first(begins, ends):
    return ends[:, -1].min()


def full(k, gamma):
    def stop(begins, ends):
        reached = np.sort(ends[:, -1])[k - 1]
        return reached + gamma * np.maximum(reached - begins, 0)

    return stop


SLOW = markov(SHIFTED, 5.0, 9.0, 1.0)
BUCKETS = (Transfer(0.8, leaves=0.5), Transfer(COST))


@pytest.mark.parametrize(
    ("name", "own", "stop", "near", "cost", "delay", "setting"),
    [
        ("barrier", {}, never, ALL, (Transfer(COST),), SHIFTED, {}),
        ("barrier", {}, never, ALL, BUCKETS, SLOW, {}),
        ("barrier", {}, never, ALL, (Transfer(9.0, leaves=0),), SHIFTED, {}),
        ("neighbour_barrier", {}, never, NEAR, (Transfer(0.3),), SHIFTED, {}),
        ("neighbour_barrier", {}, never, PUSHES, (Transfer(0.7, late=1),), SHIFTED, {}),
        ("neighbour_barrier", {}, never, PUSHES, (Transfer(9.0, late=3),), SHIFTED, {}),
        ("neighbour_barrier", {}, never, COMING, (Transfer(0.3),), SLOW, {}),
        ("first_finisher", {}, first, NEAR, BUCKETS, SHIFTED, {}),
        ("first_finisher", {"in_flight": "cut"}, first, COMING, BUCKETS, SLOW, {}),
        ("first_finisher", {"in_flight": "cut", "leftovers": "drop"}, first, NEAR,
         (Transfer(0.7, leaves=0),), SHIFTED, {"draw": "round"}),
        ("first_finisher", {"landing": "all"}, first, NEAR, (Transfer(0.2),), SLOW, {}),
        ("deadline", {"seconds": 4.0, "in_flight": "cut"}, lambda b, e: b + 4.0, NEAR,
         (Transfer(0.1),), SHIFTED, {}),
        ("deadline", {"seconds": 2.5}, lambda b, e: b + 2.5, NEAR, BUCKETS, SHIFTED, {}),
        ("anytime", {"seconds": 5.0}, lambda b, e: b + 5.0, NEAR, (Transfer(0.1),), SHIFTED, {}),
        ("quorum", {"k": 7, "leftovers": "drop"}, lambda b, e: np.sort(e, None)[6], NEAR,
         (Transfer(COST),), SLOW, {}),
        ("quorum_grace", {"k": 2, "gamma": 0.5, "in_flight": "cut"}, full(2, 0.5), NEAR,
         (Transfer(COST),), SHIFTED, {}),
        ("quorum_grace", {"k": 6, "gamma": 0.0, "in_flight": "cut"}, never, ALL,
         (Transfer(COST),), SHIFTED, {}),
    ],
)  # fmt: skip
def test_rounds_are_those_of_a_plain_loop(name, own, stop, near, cost, delay, setting):
    among = {"links": near} if isinstance(near, Links) else {"graph": SIX} if near is NEAR else {}
    options = {"communication": lambda t: cost, **among, **setting}
    plan = planned.plan(name, delay, P, 40, M, 3, **options, **own)
    plan.validate()
    assert not plan.staleness.any()
    waits = linked(near) if isinstance(near, Links) else lambda t: near
    everywhere = name == "barrier" or own.get("landing") == "all" or not among
    drops = name == "anytime" or own.get("leftovers") == "drop"
    start, finish, batches, begun, busy = plain_rounds(
        delay, 40, stop, name == "anytime" or own.get("in_flight") == "cut", not drops,
        (lambda t: ALL) if everywhere else waits, cost, bool(setting), everywhere,
    )  # fmt: skip
    np.testing.assert_array_equal(plan.batches, batches)
    np.testing.assert_array_equal(plan.first, begun)
    for column, expected in ((plan.start, start), (plan.finish, finish), (plan.busy, busy)):
        np.testing.assert_allclose(column, expected, rtol=1e-11, atol=1e-11)
    hidden = any(part.leaves < 1 or part.late for part in cost)
    if not hidden:
        total = sum(part.seconds for part in cost)
        np.testing.assert_array_equal(plan.communication, np.broadcast_to(total, (40, P)))
    if isinstance(near, Links):
        np.testing.assert_array_equal(plan.matchings, near.active(0, 40))
    assert plan.time.tolist() == plan.finish.max(axis=1).tolist()


test_bad_values = refused(
    (lambda: rule("barrier", workers=0), "workers >= 1, got workers=0"),
    (lambda: rule("barrier", communication=lambda t: -1.0), "communication >= 0, got -1"),
    (lambda: rule("neighbour_barrier", graph=None), "pass the graph, or use barrier"),
    (lambda: rule("neighbour_barrier", graph=nx.star_graph(3)), "label the nodes 0..7"),
    (lambda: rule("deadline", seconds=0.0), "needs seconds > 0, got 0"),
    (
        lambda: rule("deadline", seconds=0.9, in_flight="cut"),
        "after 0.9 s cuts every mini-batch, the quickest takes 1 s",
    ),
    (lambda: round_clock.RoundClock(Setting(SHIFTED, 8, 8, 0), lambda begin, ends: np.nan, "all",
                                    "carry", "finish"), "the signal is after nan s; give seconds"),
    (lambda: rule("quorum", k=65), "1 <= k <= 64 .*, got k=65"),
    (lambda: rule("first_finisher", in_flight="drop"), "unknown in_flight='drop'; choose"),
    (lambda: rule("drop_compute", calibration=0), "needs calibration >= 1 rounds, got 0"),
    (lambda: rule("quorum_grace", k=9), "1 <= k <= 8 workers, got k=9"),
    (lambda: rule("quorum_grace", k=1, gamma=-1.0), "gamma >= 0, got -1"),
    (lambda: rule("adaptive_deadline", c=-1.0), "c >= 0, got -1"),
    (lambda: rule("adaptive_deadline", window=0), "window >= 1 rounds, got 0"),
    (lambda: drop_compute_threshold(np.ones((8, 8))), r"got shape \(8, 8\)"),
    (lambda: drop_compute_threshold(-np.ones((1, 8, 8))), "needs positive durations"),
    (lambda: drop_compute_threshold(np.ones((1, 8, 8)), -1.0), "got 200 and -1.0"),
)


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
    assert_equal(at_once, one_by_one)


# --- deadlines from measured durations ---


def test_threshold_worked_out():
    """Three workers end at 1 and 2 s, the fourth at 1 and 10 s, of which 1, 2 and 10 s are tried.

    Per second they keep 4 / (1 + D), 7 / (2 + D) and 8 / (10 + D): equal at D = 1/3 and D = 54.
    """
    durations = [[[1, 1], [1, 1], [1, 1], [1, 9]]]
    for communication, tau in ((0.0, 1), (0.3, 1), (0.4, 2), (53.0, 2), (55.0, 10)):
        assert drop_compute_threshold(durations, communication, candidates=10) == tau
    assert drop_compute_threshold(durations, candidates=1) == 10


def test_threshold_maximises_the_measured_throughput():
    rng = np.random.default_rng(0)
    durations = FIVE_TIMES.quantile(rng.random((50, 8, 1))) * np.ones(8)
    ends = durations.cumsum(axis=2)

    def rate(tau):
        seconds = [min(tau, round_.max()) for round_ in ends]
        return (ends <= tau).sum() / (np.sum(seconds) + 50 * 0.25)

    tau = drop_compute_threshold(durations, communication=0.25, candidates=2 * ends.size)
    assert rate(tau) == pytest.approx(max(rate(t) for t in np.unique(ends)))
    assert rate(drop_compute_threshold(durations, 0.25)) > 0.99 * rate(tau)
    assert rate(tau) > 1.5 * rate(ends.max())


def test_rule_worked_out():
    """One worker takes 9 s a mini-batch, three take 1 s: blocking 18 s, then a deadline of 2 s."""
    delay = persistent(delays.deterministic(1.0), {3: 9.0})
    options = {"calibration": 2, "in_flight": "cut", "communication": 1.0}
    schedule = planned.plan("drop_compute", delay, 4, 4, 2, 0, **options)
    np.testing.assert_array_equal(schedule.batches[:2], 2)
    np.testing.assert_array_equal(schedule.batches[2:], [[2, 2, 2, 0]] * 2)
    np.testing.assert_array_equal(schedule.first[:, 3], [0, 2, 4, 6])  # leftovers are dropped
    np.testing.assert_allclose(schedule.time, [19, 38, 41, 44])


def test_a_calibration_that_is_cut_off_goes_on_to_the_same_deadline():
    rng = np.random.default_rng(0)
    durations, exchanges = rng.exponential(size=(6, 3, 4)), rng.exponential(size=6)
    calibration = planned.rule("drop_compute", FIVE_TIMES, 3, 4, calibration=5).trigger.calibration
    whole = Measured(calibration, 3, 4)
    whole.add(durations, exchanges)
    begun, resumed = Measured(calibration, 3, 4), Measured(calibration, 3, 4)
    begun.add(durations[:3], exchanges[:3])
    assert begun.deadline == np.inf and begun.mini_batches == 4
    resumed.unpack(begun.pack())
    resumed.add(durations[3:], exchanges[3:])
    assert resumed.deadline == whole.deadline < np.inf and resumed.mini_batches == 0
    finished = Measured(calibration, 3, 4)
    finished.unpack(resumed.pack())
    assert finished.deadline == whole.deadline
    threshold = drop_compute_threshold(durations[:5], exchanges[:5])
    np.testing.assert_allclose(whole.deadline, threshold, rtol=1e-8)


def test_the_deadline_follows_from_the_first_rounds_alone():
    """A worker that is cut computes for as long as their threshold, which each round moves."""
    plan = planned.plan("drop_compute", SHIFTED, P, 30, M, 1, calibration=2, communication=0.4)
    steps = np.arange(3 * M).reshape(3, 1, M)
    durations = as_process(SHIFTED).seeded(1).duration(np.arange(P)[:, None], 0.0, steps)
    taus = [drop_compute_threshold(durations[:rounds], 0.4) for rounds in (1, 2, 3)]
    cut = plan.batches[2:] < M
    assert cut.any() and (plan.batches[:2] == M).all() and len(set(taus)) == 3
    np.testing.assert_allclose(plan.busy[2:][cut], taus[1], rtol=1e-6)


# --- patience that follows what was seen ---


@pytest.mark.parametrize("in_flight", ["finish", "cut"])
def test_the_deadlines_follow_from_the_schedule_alone(in_flight):
    """Of every round after the first, from `busy` and `batches` of the rounds before it."""
    c, window, mini_batches = 0.5, 3, 4
    own = {"c": c, "window": window, "in_flight": in_flight}
    plan = planned.plan("adaptive_deadline", SHIFTED, 6, 40, mini_batches, **own)
    stopped = 0
    for t in range(1, plan.updates):
        rows = slice(max(0, t - window), t)
        begun = plan.batches[rows] + (in_flight == "cut") * (plan.batches[rows] < mini_batches)
        seen = plan.busy[rows] / begun
        median = np.median(seen)
        deadline = mini_batches * (median + c * np.median(abs(seen - median)))
        short = plan.batches[t] < mini_batches
        stopped += short.sum()
        assert (plan.busy[t][short] >= deadline * (1 - 1e-6)).all()
        if in_flight == "cut":
            assert plan.busy[t].max() <= deadline * (1 + 1e-6)
    assert stopped > 20
    assert round_deadline(np.full((2, 3), np.nan), 3.0, 4) == np.inf  # nothing was seen


def test_an_injector_keeps_what_it_has_seen_in_its_checkpoint():
    """A mesh that goes on has the deadlines of one that was not cut off."""
    trigger = planned.rule("adaptive_deadline", SHIFTED, 2, 2, window=2).trigger
    injector = Injector(2, trigger, 0)
    injector.resume()
    for t in range(3):
        for worker in range(2):
            injector.begin(worker, t, 0)
        for worker in range(2):
            for done in (1, 2):
                injector.tick(worker, t, done, 0)
        for worker in range(2):
            injector.land(worker, t, 0)
    injector.pause()
    packed = injector.pack()
    assert packed["past"].shape == (2, 2)
    again = Injector(2, trigger, 0)
    again.unpack(packed)
    np.testing.assert_array_equal(again.pack()["past"], packed["past"])
