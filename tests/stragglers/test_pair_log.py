"""Meetings in any order become rows that keep every node's own order."""

import random

import numpy as np
import pytest

from stragglers.pair_log import Entry, Meeting, PairLog
from stragglers.schedule import Event, concatenate

N = 5


def meetings(count, seed=0):
    """Meetings of random pairs, some of a node alone, on clocks that are a second apart."""
    rng = np.random.default_rng(seed)
    counts, counters, happened = np.zeros(N, int), np.zeros(N, int), []
    for t in range(count):
        pair = rng.permutation(N)[: rng.integers(1, 3)]
        ends = tuple(
            Entry(int(i), int(counts[i]), steps, int(counters[i]), 7, t + i - 0.5, 0.15 * steps)
            for i, steps in zip(pair, (2, 0), strict=False)
        )
        happened.append(Meeting(ends, t + pair[0], t + pair[0] + 0.2))
        counts[pair] += 1
        counters[pair[0]] += 2
    return happened


@pytest.mark.parametrize("seed", range(3))
def test_any_order_gives_rows_in_which_each_node_keeps_its_own(seed):
    happened = meetings(60)
    shuffled = random.Random(seed).sample(happened, len(happened))
    log, taken = PairLog(N), []
    for meeting in [*shuffled, *shuffled[:10]]:  # some are reported twice
        log.add(meeting)
        taken += [log.take()]
    schedule = concatenate([part for part in taken if part is not None])
    schedule.validate()
    assert schedule.updates == log.updates == 60
    for node in range(N):
        mine = (schedule.workers == node) & (schedule.batches > 0)
        assert (np.diff(schedule.first[mine]) == 2).all()
        theirs = [m for m in happened if node in [end.worker for end in m.ends]]
        rows = schedule.workers[(schedule.workers == node).any(1)]
        assert rows.tolist() == [([*(e.worker for e in m.ends), N])[:2] for m in theirs]
    alone = schedule.workers[:, 1] == N
    assert (schedule.partner == np.where(alone[:, None], [0, 1], [1, 0])).all()


def test_a_row_waits_for_those_before_it():
    first, second = (
        Meeting((Entry(a, 0, 1, 0, 0, 0.0, 0.1), Entry(1, c, 0, 0, 0, 0.0, 0.0)), 0.2, 0.3)
        for a, c in [(0, 0), (2, 1)]
    )
    log = PairLog(3)
    log.add(second)
    assert log.take() is None
    log.happened(Event(0.1, 2, "joined"))
    log.add(first)
    rows = log.take()
    assert rows.workers.tolist() == [[0, 1], [2, 1]] and rows.events == (Event(0.1, 2, "joined"),)
    rows.validate()
    assert log.counts().tolist() == [1, 2, 1]


def test_a_log_goes_on_from_what_the_nodes_have_counted():
    happened = meetings(20)
    whole, log = PairLog(N), PairLog(N)
    for meeting in happened:
        whole.add(meeting)
    for meeting in happened[:9]:
        log.add(meeting)
    first, nodes = log.take(), [log.known(node) for node in range(N)]
    counted = ([node[name] for node in nodes] for name in ("meetings", "counter"))
    later = PairLog(N, first.updates, first.time[-1], *counted)
    for meeting in happened[9:15]:
        later.add(meeting)
    lines = later.lines
    for meeting in happened[15:]:
        later.add(meeting)
    rows = [first, later.take(lines), later.take()]  # lines that came later are not taken
    assert rows[1].updates == 6
    joined, expected = concatenate(rows), whole.take()
    for name in ("workers", "time", "first", "finish", "samples"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(expected, name))


def test_a_node_that_begins_anew_has_a_row_of_its_own_between_the_others():
    log, happened = PairLog(N), meetings(8)
    for meeting in happened:
        log.add(meeting)
    before = log.known(2)
    log.restored(2, 4, 1.0)
    rows = log.take()
    rows.validate()
    assert rows.workers[-1].tolist() == [2, N] and rows.restored[-1].tolist() == [4, -1]
    assert rows.batches[-1].tolist() == [0, 0] and (rows.restored[:-1] == -1).all()
    assert log.known(2) == before | {"meetings": before["meetings"] + 1}
    (event,) = rows.events
    assert (event.worker, event.kind, event.source) == (2, "restored", 4)
    assert rows.time[-2] < event.time <= rows.time[-1]
