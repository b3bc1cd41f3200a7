"""The battery that every waiting rule must pass. A new rule adds one row to `ROWS`."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest

from algorithms import all_reduce, dpsgd
from algorithms.base import scale_by_samples
from algorithms.links import Links, in_turn
from runtimes import mesh
from stragglers import delays, rules
from stragglers.inject import Injector
from stragglers.processes import as_process, from_law, markov, persistent
from stragglers.rule import Sight, Transfer, whole
from stragglers.rules import RULES
from stragglers.schedule import Schedule, concatenate
from stragglers.wavefront import interactions
from tests import planned
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, losses

P = 6
RING = nx.cycle_graph(P)
COMPLETE = nx.complete_graph(P)
COSTS = 0.05 + 0.1 * np.arange(P)  # s, so that a worker may be restarted before an update lands
SHIFTED = delays.shifted_exponential(1.0, 1.0)
DELAYS = {
    "law": SHIFTED,
    "ties": persistent(delays.deterministic(1.0), [1.0, 2.0, 1.0, 0.5, 2.0, 1.0]),
    "time": markov(SHIFTED, 5.0, 9.0, 3.0),
}
UNEQUAL = [1, 2, 3, 1, 2, 3]  # mini-batches of each worker's contribution


class Row(NamedTuple):
    """A rule in a setting that suits it."""

    own: Mapping[str, Any]  # its parameters
    setting: Mapping[str, Any] = MappingProxyType({"mini_batches": 3})
    exchange: Callable[[Any], Any] = lambda seconds: seconds  # seconds -> communication


# Pushes to the next worker and to the one after it, in turn.
AHEAD = (np.arange(P) - [[1], [2]]) % P
PUSHES = {"mini_batches": 3, "links": Links(AHEAD, in_turn(2), directed=True)}


def a_round_later(seconds):
    """All is needed a round later."""
    return (Transfer(seconds, late=1),)


def with_the_round(seconds):
    """All leaves as a round begins."""
    return (Transfer(seconds, leaves=0.0),)


def in_buckets(seconds):
    """One part leaves in the middle of the last mini-batch, the other after it."""
    return (Transfer(seconds, leaves=0.5), Transfer(seconds))


SERVER = {"mini_batches": 1}
PAIRS = {"mini_batches": 3, "graph": COMPLETE}
ROWS = {
    "barrier": Row({}),
    "neighbour_barrier": Row({}, {"mini_batches": 3, "graph": RING}),
    "neighbour_barrier/overlap": Row({}, PUSHES, a_round_later),
    "neighbour_barrier/beside": Row({}, {"mini_batches": 3, "graph": RING}, with_the_round),
    "barrier/buckets": Row({}, exchange=in_buckets),
    "first_finisher": Row({}),
    "first_finisher/beside": Row({"in_flight": "cut"}, PUSHES, with_the_round),
    "first_finisher/buckets": Row({}, exchange=in_buckets),
    "first_finisher/cut": Row({"in_flight": "cut", "leftovers": "drop"}),
    "deadline": Row({"seconds": 4.0}),
    "quorum": Row({"k": 7}),
    "quorum_grace": Row({"k": 4, "gamma": 0.3}),
    "quorum_grace/cut": Row({"k": 2, "gamma": 0.5, "in_flight": "cut", "leftovers": "drop"}),
    "quorum_grace/ring": Row({"k": 3}, {"mini_batches": 3, "graph": RING}),
    "adaptive_deadline": Row({"c": 0.5, "window": 3}),
    "adaptive_deadline/cut": Row({"c": 1.0, "in_flight": "cut"}),
    "anytime": Row({"seconds": 5.0}),
    "drop_compute": Row({"calibration": 5}),
    "k_sync": Row({"k": 3}, SERVER),
    "k_batch_sync": Row({"k": 5}, SERVER),
    "k_async": Row({"k": 3}, SERVER),
    "k_batch_async": Row({"k": 4}, SERVER),
    "rennala": Row({"k": 3}, SERVER),
    "rennala/interrupt": Row({"k": 3, "interrupt": True}, SERVER),
    "ringmaster": Row({"limit": 2}, SERVER),
    "ringmaster/interrupt": Row({"limit": 2, "interrupt": True, "k": 2}, SERVER),
    "adasync": Row({"protocol": "k_async", "interval": 9.0, "k": 2}, SERVER),
    "adasync/sync": Row({"protocol": "k_batch_sync", "interval": 9.0}, SERVER),
    "random_pairs": Row({}, PAIRS),
    "random_pairs/geometric": Row({"steps": "geometric", "local_steps": 2, "width": 2}, PAIRS),
    "random_pairs/blocking": Row({"blocking": True}, PAIRS),
    "bipartite_pairs": Row({}, PAIRS | {"graph": RING}),
}


def made(name, delay="law", **options):
    row = ROWS[name]
    delay = DELAYS.get(delay, delay) if isinstance(delay, str) else delay
    cost = options.get("communication", 0.0)
    within = row.exchange
    options["communication"] = (lambda t: within(cost(t))) if callable(cost) else within(cost)
    return planned.rule(name.split("/")[0], delay, P, **dict(row.setting) | dict(row.own) | options)


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def arrays(state):
    """All that a state holds, copied."""
    if isinstance(state, tuple):
        return tuple(arrays(part) for part in state)
    return np.array(state, copy=True)


def row_marks(names):
    return pytest.mark.parametrize("name", names)


ALL = row_marks(ROWS)
WITH_ARRIVALS = [name for name in ROWS if made(name).arrivals is not None]
SERVERS = [name for name in WITH_ARRIVALS if "graph" not in ROWS[name].setting]
MEETINGS = sorted(set(WITH_ARRIVALS) - set(SERVERS))
WITH_TRIGGER = [name for name in ROWS if made(name).trigger is not None]


def test_every_rule_has_a_row():
    assert {name.split("/")[0] for name in ROWS} | {"replay"} == set(RULES)  # replay needs a file


@ALL
@pytest.mark.parametrize("delay", DELAYS)
def test_segments_equal_the_whole(name, delay):
    once = whole(made(name, delay, communication=COSTS), 40)
    once.validate()
    rule, pieces = made(name, delay, communication=COSTS), []
    state = rule.init()
    for updates in (1, 16, 0, 23):
        state, piece = rule.extend(state, updates)
        pieces.append(piece)
    assert state.update == 40
    assert_equal(concatenate(pieces), once)


@ALL
def test_an_old_state_is_untouched(name):
    rule = made(name)
    state, _ = rule.extend(rule.init(), 10)
    before = arrays(state)
    _, once = rule.extend(state, 20)
    _, again = rule.extend(state, 20)
    np.testing.assert_equal(arrays(state), before)
    assert_equal(once, again)


@ALL
def test_a_law_and_the_same_law_as_a_process_agree(name):
    assert_equal(whole(made(name), 30), whole(made(name, from_law(SHIFTED)), 30))


@ALL
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mini_batches": 0}, "mini_batches >= 1, got mini_batches=0"),
        ({"mini_batches": [1, 2]}, f"mini_batches lists 2 numbers for {P} workers"),
        ({"communication": -1.0}, "needs communication >= 0, got -1"),
        ({"communication": np.inf}, "needs communication >= 0, got inf"),
        ({"communication": np.ones(4)}, f"communication gave 4 numbers for {P} workers"),
        ({"draw": "epoch"}, "unknown draw='epoch'; choose one of mini_batch, round"),
    ],
)
def test_a_bad_setting_is_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        made(name, **options)


def several(names):
    """Rows whose contributions may be of several mini-batches, with how many."""
    return pytest.mark.parametrize(
        ("name", "each"),
        [(name, each) for name in names for each in (1, UNEQUAL)],
        ids=lambda value: "unequal" if value == UNEQUAL else str(value),
    )


@several(SERVERS)
@pytest.mark.parametrize("delay", DELAYS)
def test_a_contribution_lasts_for_the_sum_of_its_mini_batches(name, each, delay):
    """Worker i's attempts c, c + 1, ..., each begun when the one before has ended."""
    rule = made(name, delay, mini_batches=each)
    schedule = whole(rule, 60)
    each = np.broadcast_to(each, P)
    np.testing.assert_array_equal(schedule.batches, each[schedule.workers])
    draw = as_process(DELAYS[delay]).seeded(0).duration
    for i in np.unique(schedule.workers):
        first = schedule.first[schedule.workers == i]  # no counter is skipped or used twice
        np.testing.assert_array_equal(np.sort(first), each[i] * np.arange(first.size))
        assert first[0] == 0
        end = 0.0
        for attempt in range(each[i]):
            end += float(draw(i, end, attempt))
        once = (schedule.workers == i) & (schedule.start == 0)
        lasted = schedule.busy[once].tolist()  # of whom the first update has not cancelled
        if rule.trigger is None:  # nobody begins another within an update, and is then cut
            assert lasted in ([], [end])
        else:
            assert all(seconds >= end for seconds in lasted)


class Free:
    """Workers that nobody marches in step: what they draw, and what is on its way."""

    def __init__(self, rule, delay, seed=0):
        self.arrivals, self.state = rule.arrivals, rule.arrivals.init()
        self._draw = as_process(DELAYS[delay]).seeded(seed).duration
        self._attempts, self.consumed, self.events = [0] * P, [0] * P, []
        for i in range(P):
            self.begin(i, 0.0, 0)

    def begin(self, i, at, version):
        end = at
        for _ in range(self.arrivals.mini_batches(self.state, i)):
            end += float(self._draw(i, end, self._attempts[i]))
            self._attempts[i] += 1
        heapq.heappush(self.events, (end, 0, i, at, version))

    def react(self, i, version, now):
        before = arrays(self.state)
        reaction = self.arrivals.on_arrival(self.state, i, version, now)
        np.testing.assert_equal(arrays(self.state), before)  # the old state is untouched
        self.state = reaction.state
        return reaction


def served(rule, delay, updates, each, observe=()):
    """Rows of (worker, start, finish, version, first), when every arrival is reported.

    A contribution whose worker was restarted in the meantime arrives all the same.
    """
    free, rows, row, newest = Free(rule, delay), [], [], 0
    last = {}  # worker -> its last contribution, until it begins one at a newer version
    while len(rows) < updates:
        now, _, i, start, version = heapq.heappop(free.events)
        reaction = free.react(i, version, now)
        if reaction.counts:
            row.append([i, start, None, version, free.consumed[i]])
            last[i] = row[-1]
            free.consumed[i] += each[i]
        update = newest
        if reaction.update:
            assert reaction.update == tuple(contribution[0] for contribution in row)
            rows.append(row)
            row, newest = [], newest + 1
            if newest in observe:
                free.state = rule.arrivals.observe(free.state, *observe[newest])
        for j in reaction.proceed:
            last[j][2] = now
            free.begin(j, now, version)
        for j in reaction.restart:
            at = now + COSTS[j] * (1 + update % 2)
            if j in last:
                last.pop(j)[2] = at
            free.begin(j, at, newest)
    return rows


@several(SERVERS)
@pytest.mark.parametrize("delay", DELAYS)
def test_arrivals_make_the_updates_of_the_plan(name, each, delay):
    """Workers, times, versions and counters bit for bit, ties included."""
    rule = made(name, delay, mini_batches=each, communication=lambda t: COSTS * (1 + t % 2))
    observe = {0: (0.0, 2.0), 20: (30.0, 0.5)} if rule.observe is not None else {}
    state, pieces = rule.init(), []
    for begin, end in ((0, 20), (20, 60)):
        if begin in observe:
            state = rule.observe(state, *observe[begin])
        state, piece = rule.extend(state, end - begin)
        pieces.append(piece)
    if observe:
        face = rule.arrivals
        begun = face.observe(face.init(), *observe.pop(0))
        rule = rule._replace(arrivals=face._replace(init=lambda: begun))
        assert pieces[1].workers.shape[1] > pieces[0].workers.shape[1]  # K has grown
    rows = served(rule, delay, 61, np.broadcast_to(each, P), observe)
    for piece in pieces:
        at = slice(piece.offset, piece.offset + piece.updates)
        workers, start, finish, version, first = np.moveaxis(np.array(rows[at], float), 2, 0)
        for column, values in (
            ("workers", workers),
            ("start", start),
            ("finish", finish),
            ("version", version),
            ("first", first),
        ):
            np.testing.assert_array_equal(getattr(piece, column), values, err_msg=column)


def met(rule, delay, count, blocking):
    """The meetings (landing, asked, partner, start, first, local steps) in their order by time."""
    free, meetings, begun = Free(rule, delay), [], dict.fromkeys(range(P), (0.0, 0))
    steps = [rule.arrivals.mini_batches(free.state, i) for i in range(P)]
    while len(meetings) < count:
        now, landing, i, start, version = heapq.heappop(free.events)
        if landing:
            for j in version:  # those who stopped begin their next local steps
                free.consumed[j] += steps[j]
                steps[j] = free.arrivals.mini_batches(free.state, j)
                free.begin(j, now, 0)
            continue
        begun[i] = (start, free.consumed[i])
        reaction = free.react(i, version, now)
        if reaction.update:
            i, j = reaction.update[0], reaction.update[-1]
            seconds = max(COSTS[i], COSTS[j]) if blocking else COSTS[i]
            lands = now + seconds * (i != j)
            meetings.append((lands, i, j, *begun[i], steps[i]))
            heapq.heappush(free.events, (lands, 1, i, 0.0, reaction.restart))
    return sorted(meetings)


@row_marks(MEETINGS)
@pytest.mark.parametrize("delay", DELAYS)
def test_arrivals_make_the_meetings_of_the_plan(name, delay):
    """Of a schedule's wavefronts, which leave some meetings for later, the first half."""
    rule = made(name, delay, communication=COSTS)
    schedule = whole(rule, 200)
    happened = interactions(schedule)
    count = happened.time.size // 2
    asked = happened.row, happened.position[:, 0]
    columns = (schedule.start, schedule.first, schedule.batches)
    expected = np.column_stack(
        [happened.time, happened.pairs, *(column[asked] for column in columns)]
    )
    ours = met(rule, delay, happened.time.size, "blocking" in name)
    np.testing.assert_array_equal(np.array(ours)[:count], expected[:count])


# Seconds of a mini-batch of three workers, of whose first three ends no two are within 100 ms.
APART = (0.1, 0.4, 0.5)


def counted(schedule, workers):
    """[updates, workers] mini-batches in every update."""
    rows = np.arange(schedule.updates)[:, None]
    batches = np.zeros((schedule.updates, workers + 1), int)
    np.add.at(batches, (rows, schedule.workers), schedule.batches)
    return batches[:, :workers]


@pytest.mark.parametrize(
    ("name", "own", "each"),
    [
        ("barrier", {}, 3),
        slow("neighbour_barrier", {}, 2),
        ("first_finisher", {}, 3),
        slow("first_finisher", {"in_flight": "cut"}, 3),
        ("deadline", {"seconds": 0.45}, 3),
        slow("quorum", {"k": 4}, 3),
        slow("anytime", {"seconds": 0.45}, 3),
        slow("quorum_grace", {"k": 1, "gamma": 0.5}, 3),
        slow("quorum_grace", {"k": 1, "gamma": 0.5, "in_flight": "cut"}, 3),
        slow("adaptive_deadline", {"c": 0.5, "in_flight": "cut"}, 3),
        slow("k_sync", {"k": 2}, 1),
        slow("k_sync", {"k": 2}, 3),
        ("k_sync", {"k": 2}, [3, 1, 1]),
        slow("k_batch_sync", {"k": 3}, 1),
        ("k_batch_sync", {"k": 2}, 3),
        slow("rennala", {"k": 3, "interrupt": True}, 1),
    ],
    ids=str,
)
def test_devices_make_the_updates_of_the_clock(name, own, each):
    """With ends that are far apart a mesh counts the mini-batches that the plan counts."""
    delay = persistent(delays.deterministic(1.0), APART)
    links = {"graph": nx.path_graph(3)} if name == "neighbour_barrier" else {}
    rule = planned.rule(name, delay, 3, each, **links, **own)
    plan = whole(rule, 2)
    optimizer = scale_by_samples(0.05)
    method = dpsgd(optimizer, links["graph"]) if links else all_reduce(optimizer)
    runtime = mesh.Mesh(
        method,
        losses,
        DATA,
        SAMPLES,
        workers=3,
        mini_batches=int(np.max(rule.trigger.mini_batches)),
        injector=Injector(3, rule.trigger, 0, delay=delay),
    )
    state, real = runtime.advance(runtime.start(X0), np.inf, 2)
    np.testing.assert_array_equal(counted(real, 3), counted(plan, 3))
    assert state.samples == plan.batches.sum() * SAMPLES.batch_size
    lasted = real.finish.max(1) - real.start.min(1)
    np.testing.assert_allclose(lasted, np.diff(plan.time, prepend=0), atol=0.2)
    took = [real.first[t][real.batches[t] > 0].tolist() for t in range(2)]
    want = [
        [int(plan.first[t][plan.workers[t] == i].min()) for i in range(3) if i in plan.workers[t]]
        if rule.arrivals is not None
        else plan.first[t][plan.batches[t] > 0].tolist()
        for t in range(2)
    ]
    assert took == want


def late_adopter(setting, *, k: "int"):
    """A user's rule, in a module whose annotations are texts."""
    return RULES["k_sync"](setting, k=k)


def test_refusals_list_the_rules_that_would_work(monkeypatch):
    monkeypatch.setitem(RULES, "late_adopter", late_adopter)
    with_trigger = rules.showing(lambda rule: rule.trigger is not None)
    own = {name.split("/")[0] for name in WITH_TRIGGER}
    assert set(with_trigger) == (own - {"rennala", "ringmaster"}) | {"late_adopter"}
    assert "replay" not in rules.showing(lambda rule: True)  # it needs a file


def test_an_overlapped_message_is_there_a_round_later():
    """Two workers, 1 and 3 s a round, 5 s a message: max(ready, what was sent the round before)."""
    delay = persistent(delays.deterministic(1.0), [1.0, 3.0])
    pair = nx.complete_graph(2)
    late = a_round_later(5.0)
    rule = planned.rule("neighbour_barrier", delay, 2, graph=pair, communication=late)
    finish = whole(rule, 3).finish
    # Ready at 1 and 3, nothing was sent before; then at 2 and 6, sent at 3 for 8; then at 9 and 11.
    np.testing.assert_array_equal(finish, [[1, 3], [8, 8], [11, 11]])


@row_marks(WITH_TRIGGER)
def test_who_stops_by_what_others_do_says_so(name):
    """On several processes nobody sees them; else the stop is the same whatever they have done."""
    trigger = made(name).trigger
    if trigger.stop is None or trigger.sees_all:
        return
    for elapsed in (0.0, 1.0, 4.5, 100.0):
        whole_round = np.full(P, np.max(trigger.mini_batches))
        sights = [
            Sight(finished, elapsed, finished * seconds, np.full((n, P), seconds))
            for finished in (np.zeros(P, int), whole_round)
            for n, seconds in ((0, 0.1), (3, 0.1), (3, 9.0))
        ]
        assert len({bool(trigger.stop(sight)) for sight in sights}) == 1


def test_rules_that_look_at_single_workers_are_known():
    """Of the others every one runs on several processes."""
    alone = {n.split("/")[0] for n in WITH_TRIGGER if looks_around(made(n).trigger)}
    assert alone == {"quorum_grace", "adaptive_deadline"}


def looks_around(trigger):
    return trigger.stop is not None and trigger.sees_all
