"""The event loop of nodes that work and meet in pairs, batched into wavefronts of disjoint pairs.

A node works for some mini-batches and then meets a partner. Meetings are ordered by the time at
which they land, ties by the node that asked for them. A row of the schedule takes `width` of
them: the loop simulates until a window of meetings is pending, goes through it in order, and takes
every meeting that shares no node with an earlier one of the window, taken or left. Each node thus
keeps its own sequence, and as meetings of different nodes commute, the rows give what the order
gives, to the last bit.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers import earliest
from stragglers.interleaved import interleaved
from stragglers.lookahead import Seconds
from stragglers.schedule import Schedule

# Pending meetings per place of a row: with more, rows are hardly fuller but less in order.
WINDOW_PER_WIDTH = 4


class Nodes(NamedTuple):
    """What every node is doing: its local steps, waiting for a partner, or landing."""

    begin: np.ndarray  # [P] s, when its local steps began
    end: np.ndarray  # [P] s, when they end
    steps: np.ndarray  # [P] int64, how many they are
    first: np.ndarray  # [P] int64, the counter of the first
    round: np.ndarray  # [P] int64, how often it has done them before
    wake: np.ndarray  # [P] s, when it will look for a partner, inf if it has one or waits
    waits: np.ndarray  # [P] int64, the working node that it waits for, -1 if for none
    asked: np.ndarray  # [P] int64, the partner that it drew or met
    land: np.ndarray  # [P] s, when the meeting that it asked for lands, inf if there is none


class Pending(NamedTuple):
    """Meetings that were simulated, in their order, but are in no row yet; first of a pair asked.

    A node that met itself is twice in its pair.
    """

    count: np.ndarray  # [1] int64, how many of the W places are in use
    pair: np.ndarray  # [W, 2] int64
    steps: np.ndarray  # [W, 2] int64, local steps that each brings along
    first: np.ndarray  # [W, 2] int64, the counter of the first
    begin: np.ndarray  # [W, 2] s, when these began
    end: np.ndarray  # [W, 2] s, when these ended
    spent: np.ndarray  # [W, 2] s of communication
    land: np.ndarray  # [W] s


class Lookahead(NamedTuple):
    """What comes for every node: durations of mini-batches and the draws of its rounds."""

    seconds: Seconds  # by the counter of a mini-batch
    steps: np.ndarray  # [P, R] int64
    partner: np.ndarray  # [P, R] int64
    cost: np.ndarray  # [P, R] s
    round: np.ndarray  # [P] int64, of the first column of the draws


class Rows(NamedTuple):
    """The columns that the event loop fills, [T, 2 width] each, and the times of the rows."""

    time: np.ndarray  # [T] s
    workers: np.ndarray  # int32
    partner: np.ndarray  # int32
    start: np.ndarray  # s
    finish: np.ndarray  # s
    batches: np.ndarray  # int32
    first: np.ndarray  # int64
    busy: np.ndarray  # s
    communication: np.ndarray  # s


class Meetings(NamedTuple):
    """The I meetings of a schedule, in their order by time."""

    pairs: np.ndarray  # [I, 2] int, workers: who asked and its partner, itself if it met nobody
    time: np.ndarray  # [I] s, when it landed
    row: np.ndarray  # [I] int, of the schedule
    position: np.ndarray  # [I, 2] int, of the two in that row


def empty_window(width: int) -> Pending:
    """No meetings pending yet, in a window for rows of `width` meetings."""
    size = WINDOW_PER_WIDTH * width
    whole, real = (np.zeros((size, 2), kind) for kind in (np.int64, np.float64))
    return Pending(np.zeros(1, np.int64), whole, whole, whole, real, real, real, np.zeros(size))


def padded_rows(updates: int, width: int, workers: int) -> Rows:
    """Rows without meetings: every position stands for nobody, the worker one past the last."""
    shape = (updates, 2 * width)
    whole = functools.partial(np.zeros, shape)
    partner = np.tile(np.arange(2 * width, dtype=np.int32), (updates, 1))
    nobody = np.full(shape, workers, np.int32)
    spans = (np.full(shape, np.nan) for _ in range(2))  # known once the row's time is
    counts = (whole(np.int32), whole(np.int64))
    return Rows(np.zeros(updates), nobody, partner, *spans, *counts, whole(float), whole(float))


def fill(
    nodes: Nodes, pending: Pending, time: float, blocking: bool, ahead: Callable, rows: Rows
) -> None:
    """Fill all `rows` after a row that landed at `time`, and move `nodes` and `pending` on.

    ahead: (nodes, s until when paths of speeds have to be known) -> Lookahead that lets every
        node go on.
    """
    row, until, unknown = 0, np.zeros(1), np.zeros_like(nodes.round)
    *theirs, counter, room, begun = interleaved([*nodes, unknown, unknown, unknown])
    moving, place = Nodes(*theirs), np.arange(pending.land.size)
    while row < rows.time.size:
        known = ahead(moving, until[0])
        begun[:] = known.round
        run = _compiled() if isinstance(known.seconds.table, np.ndarray) else _loop
        draws = (tuple(known.seconds.written_to(counter, room)), *known[1:-1], begun)
        row = run(row, time, until, blocking, draws, place, *map(tuple, (moving, pending, rows)))
    for array, moved in zip(nodes, moving, strict=True):
        array[:] = moved
    for array in pending[1:]:
        array[:] = array[place]
    for spans in (rows.start, rows.finish):
        np.copyto(spans, rows.time[:, None], where=np.isnan(spans))


def interactions(schedule: Schedule) -> Meetings:
    """The meetings of a schedule of pairs, ordered by landing, ties by the worker that asked."""
    width = schedule.workers.shape[1] // 2
    # A position that stands for nobody brings no mini-batches along; a node that asks brings some.
    row, asked = np.nonzero(schedule.batches[:, :width])
    worker, time = schedule.workers[row, asked], schedule.finish[row, asked]
    order = np.lexsort((worker, time))
    row = row[order]
    position = np.stack([asked[order], schedule.partner[row, asked[order]]], axis=1)
    return Meetings(schedule.workers[row[:, None], position], time[order], row, position)


def meetings(schedule: Schedule, workers: int) -> np.ndarray:
    """How often each two workers met, symmetric [P, P]; on the diagonal, each one itself."""
    pairs = interactions(schedule).pairs
    counts = np.zeros((workers, workers), np.int64)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    return counts + counts.T - np.diag(counts.diagonal())


def copy_staleness(schedule: Schedule) -> np.ndarray:
    """Seconds [I], for every interaction, since the partner's copy last included its own work.

    0 where the partner brings its work along. Before its first delivery a worker's copy dates
    from the first start of the schedule. The public copy of 1910.12308 (non-blocking) lacks the
    local steps that are not finished.
    """
    met = interactions(schedule)
    stride = max(met.time.size, 1)
    # A worker and a place in the order as one number: the last delivery before is one search.
    place = met.pairs.astype(np.int64) * stride + np.arange(met.time.size)[:, None]
    brings = schedule.batches[met.row[:, None], met.position] > 0
    delivered = np.sort(place[brings])
    at = delivered.searchsorted(place[:, 1], side="right") - 1
    last = delivered[at]
    known = (at >= 0) & (last // stride == met.pairs[:, 1])
    beginning = schedule.start.min(initial=np.inf)
    return met.time - np.where(known, met.time[last % stride], beginning)


def _loop(row, time, until, blocking, ahead, place, nodes, pending, rows):
    """Fill rows from `row` on while everything is in the lookahead; return the next row.

    place: [W], where the pending meetings are, in their order; behind them, places that are free.
    until: [1] s, where paths of speeds end too early, beyond which they have to go.
    These lines are compiled, except where durations are drawn when they are looked up.
    """
    seconds, drawn_steps, drawn_partner, cost, known = ahead
    table, counter, room, constant, switch, done, speed, slowest = seconds
    begin, end, steps, first, round_, wake, waits, asked, land = nodes
    count, pair, brought, counters, begun, ended, spent, landed = pending
    times, workers, partner, start, finish, batches, firsts, busy, communication = rows
    size, width = landed.size, workers.shape[1] // 2
    horizon = drawn_steps.shape[1]
    in_time = switch.shape[1] > 0
    freed = np.empty(width, np.int64)
    touched = np.full(begin.size, -1)  # the row at whose making a node was last seen
    levels = earliest.levels_of(begin.size)
    landing, waking = np.empty(levels[-1]), np.empty(levels[-1])  # trees of `land` and `wake`
    earliest.fill(landing, levels, land)
    earliest.fill(waking, levels, wake)

    def exhausted(i, at):
        """Whether the round after this one, begun at `at`, is not known to its end."""
        column, n = round_[i] + 1 - known[i], first[i] + steps[i]
        if column >= horizon or n + drawn_steps[i, column] > room[i]:
            return True
        if in_time:
            latest = at
            for step in range(drawn_steps[i, column]):
                latest += max(constant[i], 1.0) * slowest * table[i, n + step - counter[i]]
            if latest >= switch[i, -1]:
                until[0] = latest
                return True
        return False

    def sojourn(bounds, i, value):
        """The last n with bounds[i, n] <= value."""
        low, high = 0, bounds.shape[1]
        while high - low > 1:
            middle = (low + high) // 2
            if bounds[i, middle] <= value:
                low = middle
            else:
                high = middle
        return low

    def work(i, at):
        """Begin the next round of local steps."""
        first[i] += steps[i]
        round_[i] += 1
        column = round_[i] - known[i]
        steps[i] = drawn_steps[i, column]
        begin[i] = at
        end[i] = at
        for step in range(steps[i]):
            lasting = table[i, first[i] + step - counter[i]]
            if in_time:
                x = sojourn(switch, i, end[i])
                total = done[i, x] + speed[i, x] * (end[i] - switch[i, x]) + lasting
                y = sojourn(done, i, total)
                lasting = switch[i, y] + (total - done[i, y]) / speed[i, y] - end[i]
                lasting *= constant[i]
            end[i] += lasting
        if blocking:
            wake[i] = end[i]
            land[i] = np.inf
            earliest.set_time(waking, levels, i, wake[i])
        else:
            asked[i] = drawn_partner[i, column]
            land[i] = end[i] + cost[i, column]
        earliest.set_time(landing, levels, i, land[i])

    def meet(i, j):
        """Land with j, both idle, for whichever of them communicates for longer."""
        longer = max(cost[i, round_[i] - known[i]], cost[j, round_[j] - known[j]])
        land[i] = max(end[i], end[j]) + longer
        earliest.set_time(landing, levels, i, land[i])
        asked[i] = j
        waits[i] = -1
        waits[j] = -1

    def look(i):
        """Serve whoever has waited longest for i; else meet the drawn partner or wait for it."""
        wake[i] = np.inf
        earliest.set_time(waking, levels, i, wake[i])
        waiting = -1
        for q in range(waits.size):
            if waits[q] == i and (waiting < 0 or end[q] < end[waiting]):
                waiting = q
        j = drawn_partner[i, round_[i] - known[i]]
        if waiting >= 0:
            meet(waiting, i)
        elif waits[j] >= 0:
            meet(i, j)
        else:
            waits[i] = j

    while row < times.size:
        while count[0] < size:
            i = earliest.first(landing, levels)
            if blocking:
                idle = earliest.first(waking, levels)
                if wake[idle] <= land[i]:
                    look(idle)
                    continue
            j, now = asked[i], land[i]
            if exhausted(i, now) or (blocking and exhausted(j, now)):
                return row
            p = place[count[0]]
            ready = max(end[i], end[j]) if blocking else end[i]
            landed[p] = now
            for side, node in ((0, i), (1, j)):
                alone = side == 1 and not blocking
                pair[p, side], counters[p, side] = node, first[node]
                brought[p, side] = 0 if alone else steps[node]
                begun[p, side] = now if alone else begin[node]
                ended[p, side] = now if alone else end[node]
                spent[p, side] = 0.0 if alone else now - ready
            count[0] += 1
            work(i, now)
            if blocking:
                work(j, now)

        taken, kept = 0, 0
        times[row] = times[row - 1] if row > 0 else time
        for n in range(size):
            p = place[n]
            i, j = pair[p]
            free = taken < width and touched[i] < row and touched[j] < row
            touched[i] = row
            touched[j] = row
            if not free:
                place[kept] = p
                kept += 1
                continue
            for side in range(1 if i == j else 2):
                at = taken + side * width
                workers[row, at], firsts[row, at] = pair[p, side], counters[p, side]
                partner[row, at] = at if i == j else taken + (1 - side) * width
                start[row, at], finish[row, at] = begun[p, side], landed[p]
                batches[row, at] = brought[p, side]
                busy[row, at] = ended[p, side] - begun[p, side]
                communication[row, at] = spent[p, side]
            times[row] = max(times[row], landed[p])
            freed[taken] = p
            taken += 1
        place[kept:] = freed[:taken]
        count[0] = kept
        row += 1
    return row


@functools.cache
def _compiled() -> Callable[..., int]:
    import numba  # here, because importing it takes a second that other rules need not wait

    earliest.register()
    return numba.njit(_loop, cache=True)
