"""Reactions of rules to arrivals: the updates and the meetings that they plan, bit for bit."""

import heapq

import numpy as np
import pytest

from stragglers.processes import as_process
from stragglers.rule import whole
from stragglers.wavefront import interactions
from tests.stragglers.contract_rows import (
    COSTS,
    DELAYS,
    MEETINGS,
    SERVERS,
    SPELLS,
    P,
    arrays,
    made,
    row_marks,
)  # fmt: skip

UNEQUAL = [1, 2, 3, 1, 2, 3]  # mini-batches of each worker's contribution


# With ties; and with contributions of several mini-batches whose durations depend on the time, over
# links that are slow at times.
BOTH = pytest.mark.parametrize(
    ("delay", "each", "slow_links"),
    [("ties", 1, False), ("time", UNEQUAL, False), ("time", UNEQUAL, True)],
    ids=str,
)


def over(slow_links, i, j, now):
    """Return the factor of a message between two workers that begins now."""
    return float(SPELLS.slowness(i, j, now)) if slow_links else 1.0


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

    @property
    def due(self):
        return np.inf if self.arrivals.due is None else self.arrivals.due(self.state)

    def react(self, *arrival):
        """To an arrival, or where it is a time alone to that; the old state is untouched."""
        before = arrays(self.state)
        face = self.arrivals.on_arrival if len(arrival) > 1 else self.arrivals.on_due
        reaction = face(self.state, *arrival)
        np.testing.assert_equal(arrays(self.state), before)
        self.state = reaction.state
        return reaction


def served(rule, delay, updates, each, ways, slow_links, losses=()):
    """Rows of (worker, start, finish, version, first), when every arrival is reported.

    A contribution whose worker was restarted in the meantime arrives all the same. losses:
    (seconds, loss) that the rule sees.
    """
    free, rows, row, newest = Free(rule, delay), [], [], 0
    last = {}  # worker -> its last contribution, until it begins one at a newer version
    losses = list(losses)
    while len(rows) < updates:
        while losses and losses[0][0] < free.events[0][0]:
            free.state = rule.arrivals.observe(free.state, *losses.pop(0))
        if not free.events or free.due < free.events[0][0]:
            now = free.due
            reaction = free.react(now)
        else:
            now, _, i, start, version = heapq.heappop(free.events)
            reaction = free.react(i, version, now)
        if reaction.counts:
            row.append([i, start, None, version, free.consumed[i]])
            last[i] = row[-1]
            free.consumed[i] += each[i]
        update = newest
        if reaction.update:
            taken = []
            for i in reaction.update:
                taken.append(row.pop([contribution[0] for contribution in row].index(i)))
            rows.append(taken)
            newest += 1
            assert not row or rule.arrivals.due is not None
        for j in reaction.proceed:
            last[j][2] = now
            free.begin(j, now, version)
        for j in reaction.restart:
            usual = ways(update)[j] if callable(ways) else ways
            at = now + usual * over(slow_links, j, j, now)
            if j in last:
                last.pop(j)[2] = at
            free.begin(j, at, newest)
    return rows


def _between(rule, state, pieces):
    """Return a time between the last update that was planned and the next one, in seconds."""
    before = pieces[-1].time[-1] if pieces else -1.0
    after = rule.extend(state, 1)[1].time[0]
    return float(before + (after - before) / 3) if pieces else 0.0


@row_marks(SERVERS)
@BOTH
def test_arrivals_make_the_updates_of_the_plan(name, each, delay, slow_links):
    """Workers, times, versions and counters bit for bit, ties included."""
    # A grace goes by what a contribution has lasted, of which the plan knows the next one's way.
    ways = 0.0 if name.startswith("quorum_async") else lambda t: COSTS * (1 + t % 2)
    rule = made(name, delay, slow_links, mini_batches=each, communication=ways)
    state, losses, pieces = rule.init(), [], []
    for loss in (2.0, 0.5, 200.0) if rule.observe is not None else (None,) * 3:
        if loss is not None:  # between two updates
            losses.append((_between(rule, state, pieces), loss))
            state = rule.observe(state, *losses[-1])
        state, piece = rule.extend(state, 20)
        pieces.append(piece)
    if losses:
        width = [(piece.batches > 0).sum(axis=1) for piece in pieces]
        assert width[0].max() < width[1].max() > width[2][-1]  # K has grown, then fallen
    rows = served(rule, delay, 61, np.broadcast_to(each, P), ways, slow_links, losses)
    for piece in pieces:
        for t in range(piece.updates):
            there = piece.batches[t] > 0
            columns = zip(*rows[piece.offset + t], strict=True)
            names = ("workers", "start", "finish", "version", "first")
            for column, values in zip(names, columns, strict=True):
                planned = getattr(piece, column)[t][there]
                np.testing.assert_array_equal(planned, values, err_msg=f"{column} of row {t}")


def met(rule, delay, count, blocking, slow_links):
    """Return meetings (landing, asked, partner, start, first, local steps) by time."""
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
            lands = now + seconds * over(slow_links, i, j, now) * (i != j)
            meetings.append((lands, i, j, *begun[i], steps[i]))
            heapq.heappush(free.events, (lands, 1, i, 0.0, reaction.restart))
    return sorted(meetings)


@row_marks(MEETINGS)
@pytest.mark.parametrize(
    ("delay", "slow_links"), [("ties", False), ("time", False), ("time", True)]
)
def test_arrivals_make_the_meetings_of_the_plan(name, delay, slow_links):
    """Of a schedule's wavefronts, which leave some meetings for later, the first half."""
    rule = made(name, delay, slow_links, communication=COSTS)
    schedule = whole(rule, 200)
    happened = interactions(schedule)
    count = happened.time.size // 2
    asked = happened.row, happened.position[:, 0]
    columns = (schedule.start, schedule.first, schedule.batches)
    expected = np.column_stack(
        [happened.time, happened.pairs, *(column[asked] for column in columns)]
    )
    ours = met(rule, delay, happened.time.size, "blocking" in name, slow_links)
    np.testing.assert_array_equal(np.array(ours)[:count], expected[:count])
