"""Rules of a server against plain event loops, and by hand: protocols, old gradients, graces."""

import networkx as nx
import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import as_process, persistent
from stragglers.rule import whole
from stragglers.rules.server import PROTOCOLS
from stragglers.schedule import Schedule
from tests import planned
from tests.refusals import refused
from tests.stragglers.contract_rows import COSTS, SHIFTED, P, assert_equal, in_segments
from tests.stragglers.contract_rows import DELAYS as SAME

DELAYS = SAME | {"one slow": persistent(SHIFTED, {0: 20.0})}
NEVER = 10**9
# idle after a push, the staleness that no longer counts, cut at that staleness
BEHAVIOUR = {
    "k_sync": (True, 1, True),
    "k_batch_sync": (False, 1, True),
    "k_async": (True, NEVER, False),
    "k_batch_async": (False, NEVER, False),
}


def rule(name, delay=SHIFTED, workers=6, seed=0, k=3, mini_batches=1, **options):
    return planned.rule(name, delay, workers, mini_batches, seed, k=k, **options)


def plain_loop(delay, k, behaviour, updates, communication):
    """Rows of (worker, start, push, version, counter), times of updates, versions held."""
    idle, limit, interrupt = behaviour
    draw = as_process(delay).seeded(4).duration
    version, counter, attempt, flying = [0] * P, [0] * P, [0] * P, {}

    def begin(i, at):
        flying[i] = (at + float(draw(i, at, attempt[i])), at)
        attempt[i] += 1

    for i in range(P):
        begin(i, 0.0)
    rows, times = [], []
    for t in range(updates):
        row = []
        while len(row) < k:
            push, i = min((end, i) for i, (end, _) in flying.items())
            _, start = flying.pop(i)
            if t - version[i] < limit:
                row.append((i, start, push, version[i], counter[i]))
                counter[i] += 1
            if idle or (interrupt and limit == 1 and len(row) == k):
                continue  # until the update
            if interrupt and limit == 1:
                begin(i, push)
            else:
                version[i] = t + (len(row) == k)
                begin(i, push + communication)
        if interrupt:
            restarting = [i for i in range(P) if t + 1 - version[i] >= limit]
        else:
            restarting = [i for i, *_ in row] if idle else []
        for i in restarting:
            version[i] = t + 1
            begin(i, push + communication)
        rows.append(row)
        times.append(push + communication)
    return np.array(rows), np.array(times), version


@pytest.mark.parametrize(
    ("name", "delay", "k", "communication", "own"),
    [
        *(
            (name, delay, k, cost, {})
            for name in PROTOCOLS
            for delay, k, cost in (("law", 1, 0.0), ("ties", 3, 0.25), ("time", 6, 0.0))
        ),
        *(
            ("ringmaster", delay, k, 0.25, {"limit": limit, "interrupt": interrupt})
            for delay, interrupt, k, limit in (
                ("law", True, 1, 2),
                ("law", True, 3, 4),
                ("one slow", False, 1, 4),
                ("one slow", False, 4, 1),
                ("time", True, 3, 2),
                ("time", True, 4, 1),
            )
        ),
    ],
)
def test_equals_a_plain_event_loop_exactly(name, delay, k, communication, own):
    behaviour = BEHAVIOUR.get(name) or (False, own["limit"], own["interrupt"])
    delay = DELAYS[delay]
    made = rule(name, delay, k=k, seed=4, communication=communication, **own)
    schedule = whole(made, 300)
    rows, times, held = plain_loop(delay, k, behaviour, 300, communication)
    columns = (schedule.workers, schedule.start, schedule.version, schedule.first)
    for column, expected in zip(columns, rows[..., [0, 1, 3, 4]].transpose(2, 0, 1), strict=True):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(schedule.time, times)
    np.testing.assert_array_equal(schedule.held, held)
    # A worker's last push lands with the update where it waits, and until then it goes on or idles.
    idle, cancels, push = behaviour[0], behaviour[1:] == (1, True), rows[..., 2]
    last = np.array([[i not in row[c + 1 :] for c, i in enumerate(row)] for row in rows[..., 0]])
    with_update = last & (idle or cancels)
    spent = np.where(last | ~np.bool_(idle or cancels), communication, 0.0)
    until = np.where(with_update & (not idle), times[:, None] - communication, push)
    finish = np.where(with_update, times[:, None], push + spent)
    for column, expected in (
        (schedule.communication, spent),
        (schedule.finish, finish),
        (schedule.busy, until - rows[..., 1]),
    ):
        np.testing.assert_allclose(column, expected, rtol=1e-12, atol=1e-12)
    assert (schedule.batches == 1).all() and schedule.staleness.max() < behaviour[1]
    assert made.asynchronous == (behaviour[1] > 1)
    schedule.validate()


def test_a_segment_longer_than_the_looked_up_durations_equals_short_ones():
    def long():
        return rule("k_batch_async", persistent(delays.exponential(1.0), [1.0, 50.0, 1.0]), 3, k=2)

    assert_equal(in_segments(long, [50] * 40), whole(long(), 2000))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_k_is_a_knob_of_a_segment(name):
    adaptive = rule(name)
    state, _ = adaptive.extend(adaptive.init(), 10)
    after, wide = adaptive.extend(state, 10, k=5)  # as AdaSync does
    assert wide.workers.shape == (10, 5) and after.update == 20
    with pytest.raises(ValueError, match="got k=0; set k in this range"):
        adaptive.extend(state, 5, k=0)
    assert_equal(adaptive.extend(state, 10)[1], whole(adaptive, 20).slice(10, 20))


def served(law, mini_batches, k, window, idle, updates):
    """Rows of (time, {worker: (start, busy, version, first)}), by looking at everybody each time.

    window: (seconds at the k-th push, when the first of the row has pushed, how long that took,
    its communication) -> seconds for which the update waits on.
    """
    draw = as_process(law).seeded(0).duration
    attempts, consumed, version = [0] * P, [0] * P, [0] * P
    begin, end = [0.0] * P, [0.0] * P

    def restart(i, at):
        begin[i] = end[i] = at
        for _ in range(mini_batches):
            end[i] += float(draw(i, end[i], attempts[i]))
            attempts[i] += 1

    for i in range(P):
        restart(i, 0.0)
    rows, opened = [], 0.0
    for t in range(updates):
        row, ends = {}, np.inf
        while len(row) < P:
            i = min((i for i in range(P) if i not in row), key=lambda i: (end[i], i))
            now = max(end[i], opened)
            if len(row) >= k and now > ends:
                now = ends
                break
            row[i] = begin[i], end[i] - begin[i], version[i], consumed[i]
            consumed[i] += mini_batches
            if len(row) == 1:
                first = now, row[i][1], 0.0 if idle else COSTS[i]
            if not idle:
                restart(i, now + COSTS[i])
                version[i] = t
            if len(row) == k:
                ends = now + window(now, *first)
            if len(row) >= k and not idle:
                ends = min(ends, *(max(now, end[j]) for j in row), np.inf)
        opened = now
        if idle:
            for i in row:
                restart(i, now + COSTS[i])
                version[i] = t + 1
        rows.append((now, row))
    return rows


def quorum_window(gamma, grace=np.inf):
    return lambda now, first, took, communication: min(
        grace, gamma * max(0.0, first + communication + took - now)
    )


GRACES = [
    ("k_async", {"k": 1, "grace": 0.5}, lambda *_: 0.5),
    ("k_async", {"k": 3, "grace": 2.0}, lambda *_: 2.0),
    ("quorum_async", {"k": 1, "gamma": 0.5}, quorum_window(0.5)),
    ("quorum_async", {"k": 3, "gamma": 1.0}, quorum_window(1.0)),
    ("quorum_async", {"k": 2, "gamma": 0.9, "grace": 0.3}, quorum_window(0.9, 0.3)),
    ("quorum_async", {"k": 6, "gamma": 0.0}, quorum_window(0.0)),
]


@pytest.mark.parametrize(("law", "mini_batches"), [("law", 3), ("ties", 1), ("time", 3)])
@pytest.mark.parametrize(("name", "own", "window"), GRACES)
def test_graces_are_those_of_a_plain_event_loop(name, own, window, law, mini_batches):
    options = {"communication": COSTS, **own}
    schedule = in_segments(
        lambda: planned.rule(name, DELAYS[law], P, mini_batches, **options), (1, 37, 2)
    )
    schedule.validate()
    expected = served(DELAYS[law], mini_batches, own["k"], window, name == "k_async", 40)
    for t, (time, row) in enumerate(expected):
        there = schedule.batches[t] > 0
        assert schedule.workers[t][there].tolist() == list(row), t
        assert set(schedule.workers[t][~there]) <= {P}
        columns = (getattr(schedule, c)[t][there] for c in ("start", "busy", "version", "first"))
        np.testing.assert_allclose(np.stack(list(columns), axis=1), list(row.values()), rtol=1e-9)
        if there.sum() < P:
            np.testing.assert_allclose(schedule.start[t][~there], time, rtol=1e-9)
    counts = (schedule.batches > 0).sum(axis=1)
    assert counts.min() >= own["k"] and (counts.max() > own["k"] or own["k"] == P)


def test_a_worker_that_is_cut_off_has_computed_on_every_clock():
    """Of 1, 2 and 5 s the update comes after 2 s: only the first worker waits, as on a mesh."""
    law, updates = persistent(delays.deterministic(1.0), [1.0, 2.0, 5.0]), 3
    made = planned.rule("k_sync", law, 3, k=2)
    rows = whole(made, updates)
    computed, nobody = np.float64([[1, 2, 2]] * updates), np.zeros((updates, 3), int)
    begin = 2.0 * np.arange(updates)[:, None] + nobody
    in_rounds = Schedule(
        rows.time, nobody + np.arange(3), begin, begin + 2, np.int32([[1, 1, 0]] * updates),
        nobody, nobody, computed, 0.0 * begin,
    )  # fmt: skip
    assert made.turnout.wastes and rows.idle_fraction > 0.2
    for part in (rows, rows.slice(1, 2), in_rounds):
        assert part.idle_share(made.turnout.wastes) == pytest.approx(1 / 6)
    assert not planned.rule("k_async", law, 3, k=2).turnout.wastes


def test_work_that_is_too_old_was_not_waiting():
    law = persistent(delays.deterministic(1.0), [1.0, 2.0, 5.0])
    for name, own in (("rennala", {"k": 2}), ("ringmaster", {"limit": 2})):
        made = planned.rule(name, law, 3, **own)
        assert whole(made, 20).idle_share(made.turnout.wastes) == 0
    # Worker 0 updates every second; worker 1 is two updates late at 2 s, 4 s, ..., worker 2 at 5 s.
    assert whole(made, 7).ignored.tolist() == [0, 0, 1, 0, 1, 1, 1]
    assert planned.plan("k_async", law, 3, 7, k=1).ignored is None


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("k_sync", {"k": 2}),
        ("k_batch_sync", {"k": 4}),
        ("rennala", {"k": 2}),
        ("ringmaster", {"limit": 2}),
        ("ringmaster", {"limit": 2, "interrupt": True}),
        ("k_async", {"k": 2}),
        ("barrier", {}),
    ],
)
def test_a_replay_knows_what_its_updates_have_wasted(name, own, tmp_path):
    """From the rows alone: idle shares, work that was lost and who was cut off are the rule's."""
    made = planned.rule(name, delays.exponential(1.0), 3, **own)
    rows = whole(made, 40)
    rows.save(tmp_path / "rows.npz")
    again = planned.rule("replay", delays.exponential(1.0), 3, path=str(tmp_path / "rows.npz"))
    wasted = rows.ignored is not None and (rows.ignored.any() or made.turnout.cancels)
    assert again.turnout.wastes == wasted
    assert (again.turnout.cancels, again.cuts_off) == (made.turnout.cancels, made.cuts_off)
    if wasted:
        assert whole(again, 40).idle_share(wasted) == rows.idle_share(made.turnout.wastes)


test_bad_values = refused(
    ("k_sync", {"k": 7}, "k_sync: needs 1 <= k <= 6 workers.*, got k=7"),
    ("k_async", {"k": 0}, "k_async: needs 1 <= k <= 6 workers.*, got k=0"),
    ("k_sync", {"workers": 0}, "workers >= 1, got workers=0"),
    ("k_async", {"mini_batches": [1.5] * 6}, "set whole numbers of at least 1"),
    ("k_sync", {"graph": nx.cycle_graph(6)}, "have no neighbours, but got a graph"),
    ("k_async", {"draw": "round"}, "got draw='round'; set draw='mini_batch'"),
    ("ringmaster", {"limit": 0}, "limit >= 1"),
    ("k_async", {"k": 2, "grace": -1.0}, "k_async: needs grace >= 0 in finite seconds, got -1"),
    ("quorum_async", {"k": 7}, "needs 1 <= k <= 6 workers"),
    ("quorum_async", {"k": 1, "gamma": 1.5}, "needs 0 <= gamma <= 1, got 1.5"),
    ("quorum_async", {"k": 1, "grace": 0.0}, "needs grace > 0 s, got 0"),
    by=lambda name, options: rule(name, **options),
)
