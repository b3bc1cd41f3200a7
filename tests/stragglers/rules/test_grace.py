"""An update that waits on after its quorum, against a plain event loop and by hand."""

import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import as_process, markov, persistent
from stragglers.schedule import concatenate
from tests import planned

P = 6
LAWS = {
    "law": delays.shifted_exponential(1.0, 1.0),
    "ties": persistent(delays.deterministic(1.0), [1.0, 2.0, 1.0, 0.5, 2.0, 1.0]),
    "markov": markov(delays.shifted_exponential(1.0, 1.0), 5.0, 9.0, 3.0),
}
COSTS = 0.05 + 0.1 * np.arange(P)  # s


def served(law, mini_batches, k, window, idle, updates, seed=0):
    """Rows of (time, {worker: (start, busy, version, first)}), by looking at everybody each time.

    window: (seconds at the k-th push, when the first of the row has pushed, how long that took,
    its communication) -> seconds for which the update waits on.
    """
    draw = as_process(law).seeded(seed).duration
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


def k_async(k, grace):
    return {"k": k, "grace": grace}, lambda *_: grace, True


def quorum_async(k, gamma, grace=np.inf):
    def window(now, first, took, communication):
        return min(grace, gamma * max(0.0, first + communication + took - now))

    return {"k": k, "gamma": gamma, "grace": grace}, window, False


CASES = {
    "k_async": [k_async(1, 0.5), k_async(3, 2.0)],
    "quorum_async": [
        quorum_async(1, 0.5),
        quorum_async(3, 1.0),
        quorum_async(2, 0.9, 0.3),
        quorum_async(6, 0.0),
    ],
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in range(len(cases))]
)
@pytest.mark.parametrize("mini_batches", [1, 3])
def test_rows_are_those_of_a_plain_event_loop(name, case, law, mini_batches):
    own, window, idle = CASES[name][case]
    rule = planned.rule(name, LAWS[law], P, mini_batches, communication=COSTS, **own)
    state, pieces = rule.init(), []
    for updates in (1, 37, 2):
        state, piece = rule.extend(state, updates)
        pieces.append(piece)
    schedule = concatenate(pieces)
    schedule.validate()
    for t, (time, row) in enumerate(served(LAWS[law], mini_batches, own["k"], window, idle, 40)):
        there = schedule.batches[t] > 0
        assert schedule.workers[t][there].tolist() == list(row), t
        assert set(schedule.workers[t][~there]) <= {P}
        columns = (getattr(schedule, c)[t][there] for c in ("start", "busy", "version", "first"))
        np.testing.assert_allclose(np.stack(list(columns), axis=1), list(row.values()), rtol=1e-9)
        if there.sum() < P:
            np.testing.assert_allclose(schedule.start[t][~there], time, rtol=1e-9)
    counts = (schedule.batches > 0).sum(axis=1)
    assert counts.min() >= own["k"] and (counts.max() > own["k"] or own["k"] == P)


def test_the_grace_takes_along_who_is_nearly_there_and_nobody_waits():
    """Seconds of a contribution: 10, 12, 14, 40. Half of 10 s is left, so that three come along."""
    law = persistent(delays.deterministic(1.0), [10.0, 12.0, 14.0, 40.0])
    schedule = planned.plan("quorum_async", law, 4, 4, k=1, gamma=0.5)
    np.testing.assert_allclose(schedule.time, [15.0, 25.0, 35.0, 42.0])
    assert [row[row < 4].tolist() for row in schedule.workers] == [
        [0, 1, 2], [0, 1], [2, 0], [1, 0, 3, 2],
    ]  # fmt: skip
    assert schedule.idle.sum() == 0
    assert schedule.version[1].tolist()[:2] == [0, 0]  # begun before the first update was made
    assert schedule.version[2].tolist()[:2] == [0, 1]


def test_who_is_back_before_its_update_waits_for_it():
    law = persistent(delays.deterministic(1.0), [1.0, 5.0])
    schedule = planned.plan("quorum_async", law, 2, 3, k=2, gamma=1.0)
    np.testing.assert_allclose(schedule.time, [5.0, 10.0, 15.0])
    np.testing.assert_allclose(schedule.idle[1:].sum(), 3.0 + 4.0)
    np.testing.assert_allclose(schedule.busy, [[1, 5]] * 3)


@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        ("k_async", {"k": 2, "grace": -1.0}, "k_async: needs grace >= 0 in finite seconds, got -1"),
        ("k_async", {"k": 7, "grace": 1.0}, "needs 1 <= k <= 6 workers"),
        ("quorum_async", {"k": 7}, "needs 1 <= k <= 6 workers"),
        ("quorum_async", {"k": 1, "gamma": 1.5}, "needs 0 <= gamma <= 1, got 1.5"),
        ("quorum_async", {"k": 1, "grace": 0.0}, "needs grace > 0 s, got 0"),
    ],
)
def test_bad_values(name, own, words):
    with pytest.raises(ValueError, match=words):
        planned.rule(name, LAWS["law"], P, **own)
