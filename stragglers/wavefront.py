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
from stragglers.speed_paths import DONE, SPEED, SWITCH

# Pending meetings per place of a row: with more, rows are hardly fuller but less in order.
WINDOW_PER_WIDTH = 4


class Nodes(NamedTuple):
    """What every node is doing: its local steps, waiting for a partner, or landing."""

    begin: np.ndarray  # [P] s, when its local steps began
    end: np.ndarray  # [P] s, when they end
    steps: np.ndarray  # [P] int64, how many they are
    first: np.ndarray  # [P] int64, the counter of the first
    round: np.ndarray  # [P] int64, how often it has done them before
    asked: np.ndarray  # [P] int64, the partner that it drew or met
    waits: np.ndarray  # [P] int64, the working node that it waits for, -1 if for none
    wake: np.ndarray  # [P] s, when it will look for a partner, inf if it has one or waits
    land: np.ndarray  # [P] s, when the meeting that it asked for lands, inf if there is none


_OFTEN = 6  # the first arrays of `Nodes`, which a meeting looks at, go together in a cache line


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
    partner: np.ndarray  # [P, R] int32
    steps: np.ndarray  # [P, R] int64; axes of one entry if all nodes or rounds have the same
    cost: np.ndarray  # [P, R] s, likewise; of a node that meets another one than itself
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


def empty_rows(updates: int, width: int) -> Rows:
    """Rows that are yet to be filled."""
    kinds = (np.int32, np.int32, float, float, np.int32, np.int64, float, float)
    return Rows(np.empty(updates), *(np.empty((updates, 2 * width), kind) for kind in kinds))


def fill(
    nodes: Nodes, pending: Pending, time: float, blocking: bool, ahead: Callable, rows: Rows
) -> None:
    """Fill all `rows` after a row that landed at `time`, and move `nodes` and `pending` on.

    ahead: (nodes, s until when paths of speeds have to be known) -> Lookahead that lets every
        node go on.
    """
    row, until, unknown = 0, np.zeros(1), np.zeros_like(nodes.round)
    *often, counter, begun = interleaved([*nodes[:_OFTEN], unknown, unknown])
    moving, place = Nodes(*often, *nodes[_OFTEN:]), np.arange(pending.land.size)
    landing, levels = earliest.tree_of(nodes.land)
    waking, _ = earliest.tree_of(nodes.wake)
    fixed = place, moving[:-2], (landing, waking, levels), tuple(pending), tuple(rows)
    while row < rows.time.size:
        known = ahead(moving, until[0])
        counter[:], begun[:] = known.seconds.counter, known.round
        run = _compiled() if isinstance(known.seconds.table, np.ndarray) else _loop
        draws = (tuple(known.seconds._replace(counter=counter)), *known[1:-1], begun)
        row = run(row, time, until, blocking, draws, *fixed)
    moved = (*moving[:-2], *(tree[: nodes.land.size] for tree in (waking, landing)))
    for array, new in zip(nodes, moved, strict=True):
        array[:] = new
    for array in pending[1:]:
        array[:] = array[place]


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


def _loop(row, time, until, blocking, ahead, place, nodes, trees, pending, rows):
    """Fill rows from `row` on while everything is in the lookahead; return the next row.

    place: [W], where the pending meetings are, in their order; behind them, places that are free.
    until: [1] s, where paths of speeds end too early, beyond which they have to go.
    trees: of when nodes land and of when they wake, and their levels, see `stragglers.earliest`.
    These lines are compiled, except where durations are drawn when they are looked up.
    """
    seconds, drawn_partner, drawn_steps, cost, known = ahead
    table, counter, columns, constant, path, slowest = seconds
    begin, end, steps, first, round_, asked, waits = nodes
    landing, waking, levels = trees
    count, pair, brought, counters, begun, ended, spent, landed = pending
    times, workers, partner, start, finish, batches, firsts, busy, communication = rows
    size, width = landed.size, workers.shape[1] // 2
    in_time = path.shape[1] > 0
    freed = np.empty(width, np.int64)
    touched = np.full(begin.size, -1, np.int32)  # the row at whose making a node was last seen

    def steps_of(i, column):
        """Local steps of a round."""
        of_all, always = drawn_steps.shape
        return drawn_steps[min(i, of_all - 1), min(column, always - 1)]

    def seconds_of(i, column):
        """Communication of a round."""
        of_all, always = cost.shape
        return cost[min(i, of_all - 1), min(column, always - 1)]

    def exhausted(i, at):
        """Whether the round after this one, begun at `at`, is not known to its end."""
        column, n = round_[i] + 1 - known[i], first[i] + steps[i] - counter[i]
        if column >= drawn_partner.shape[1] or n + steps_of(i, column) > columns:
            return True
        if in_time:
            latest = at
            for step in range(steps_of(i, column)):
                latest += max(constant[i], 1.0) * slowest * table[i, n + step]
            if latest >= path[i, -1, SWITCH]:
                until[0] = latest
                return True
        return False

    def sojourn(i, kind, value):
        """The last n with path[i, n, kind] <= value."""
        low, high = 0, path.shape[1]
        while high - low > 1:
            middle = (low + high) // 2
            if path[i, middle, kind] <= value:
                low = middle
            else:
                high = middle
        return low

    def work(i, at):
        """Begin the next round of local steps."""
        first[i] += steps[i]
        round_[i] += 1
        column = round_[i] - known[i]
        steps[i] = steps_of(i, column)
        begin[i] = at
        end[i] = at
        for step in range(steps[i]):
            lasting = table[i, first[i] + step - counter[i]]
            if in_time:
                x = sojourn(i, SWITCH, end[i])
                total = path[i, x, DONE] + path[i, x, SPEED] * (end[i] - path[i, x, SWITCH])
                total += lasting
                y = sojourn(i, DONE, total)
                lasting = path[i, y, SWITCH] + (total - path[i, y, DONE]) / path[i, y, SPEED]
                lasting = (lasting - end[i]) * constant[i]
            end[i] += lasting
        if blocking:
            earliest.set_time(waking, levels, i, end[i])
            earliest.set_time(landing, levels, i, np.inf)
        else:
            asked[i] = drawn_partner[i, column]
            longer = 0.0 if asked[i] == i else seconds_of(i, column)
            earliest.set_time(landing, levels, i, end[i] + longer)

    def meet(i, j):
        """Land with j, both idle, for whichever of them communicates for longer."""
        longer = max(seconds_of(i, round_[i] - known[i]), seconds_of(j, round_[j] - known[j]))
        earliest.set_time(landing, levels, i, max(end[i], end[j]) + longer)
        asked[i] = j
        waits[i] = -1
        waits[j] = -1

    def look(i):
        """Serve whoever has waited longest for i; else meet the drawn partner or wait for it."""
        earliest.set_time(waking, levels, i, np.inf)
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
                if waking[idle] <= landing[i]:
                    look(idle)
                    continue
            j, now = asked[i], landing[i]
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

        taken, kept, n = 0, 0, 0
        times[row] = times[row - 1] if row > 0 else time
        while taken < width and n < size:
            p = place[n]
            i, j = pair[p]
            free = touched[i] < row and touched[j] < row
            touched[i] = row
            touched[j] = row
            n += 1
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
        for left in range(n, size):
            place[kept] = place[left]
            kept += 1
        place[kept:] = freed[:taken]
        count[0] = kept
        for at in range(2 * width):  # where nobody is
            asking = at % width
            if asking >= taken or (at >= width and partner[row, asking] == asking):
                workers[row, at], partner[row, at] = begin.size, at
                start[row, at] = finish[row, at] = times[row]
                batches[row, at] = firsts[row, at] = 0
                busy[row, at] = communication[row, at] = 0.0
        row += 1
    return row


@functools.cache
def _compiled() -> Callable[..., int]:
    import numba  # here, because importing it takes a second that other rules need not wait

    earliest.register()
    return numba.njit(_loop, cache=True)
