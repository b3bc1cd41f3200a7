"""Event loop of nodes that work and meet in pairs, batched into wavefronts of disjoint pairs.

A node computes some mini-batches and then meets a partner. Meetings are ordered by their landing,
ties by the node that asked. A row of the schedule takes up to `width` meetings. The loop simulates
until a window of meetings is pending, and goes through the window in order. A row takes every
meeting that shares no node with an earlier meeting of the window, taken or left. Each node thus
keeps its own sequence. Meetings of different nodes commute, so that the rows give the result of the
order by time, bit for bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers import lookahead, speed_paths
from stragglers.lookahead import Seconds, tree_of
from stragglers.schedule import Schedule

# Pending meetings per meeting of a row; with more, rows are hardly fuller, but less in order.
WINDOW_PER_WIDTH = 4


class Nodes(NamedTuple):
    """State of every node: its local steps, its wait for a partner, or its landing."""

    begin: np.ndarray  # [P] s, begin of its local steps
    end: np.ndarray  # [P] s, end of its local steps
    steps: np.ndarray  # [P] int64, number of its local steps
    first: np.ndarray  # [P] int64, counter of the first local step
    round: np.ndarray  # [P] int64, finished rounds of local steps
    asked: np.ndarray  # [P] int64, its drawn or met partner
    waits: np.ndarray  # [P] int64, the working node that it waits for, or -1
    wake: np.ndarray  # [P] s, its next look for a partner; inf if it has a partner or waits
    land: np.ndarray  # [P] s, landing of the meeting that it asked for, inf if there is none


class Pending(NamedTuple):
    """Simulated meetings that are in no row yet, in order; the first node of a pair asked.

    A node that met itself is twice in its pair.
    """

    count: np.ndarray  # [1] int64, number of the W places in use
    pair: np.ndarray  # [W, 2] int64
    steps: np.ndarray  # [W, 2] int64, local steps that each node contributes
    first: np.ndarray  # [W, 2] int64, counter of the first local step
    begin: np.ndarray  # [W, 2] s, begin of the local steps
    end: np.ndarray  # [W, 2] s, end of the local steps
    spent: np.ndarray  # [W, 2] s of communication
    land: np.ndarray  # [W] s


class Lookahead(NamedTuple):
    """Future of every node: durations of mini-batches and the draws of its rounds."""

    seconds: Seconds  # by the counter of a mini-batch
    partner: np.ndarray  # [P, R] int32, drawn partners
    steps: np.ndarray  # [P, R] int64; an axis has one entry if all nodes or rounds agree
    cost: np.ndarray  # [P, R] s of meetings with another node; axes as in `steps`
    links: tuple[np.ndarray, np.ndarray, float]  # see `stragglers.lookahead.links_of`
    round: np.ndarray  # [P] int64, round of the first column of the draws


# Columns [T, 2 width] that the event loop fills after the column of the rows' times; times in s.
_COLUMNS = {
    "workers": "int32",
    "partner": "int32",
    "start": "float64",
    "finish": "float64",
    "batches": "int32",
    "first": "int64",
    "busy": "float64",
    "communication": "float64",
}


class Meetings(NamedTuple):
    """Meetings of a schedule, I of them, in their order by time."""

    pairs: np.ndarray  # [I, 2] int, workers: the asking node and its partner, or itself
    time: np.ndarray  # [I] s, of the landing
    row: np.ndarray  # [I] int, of the schedule
    position: np.ndarray  # [I, 2] int, of both workers in that row


def empty_window(width: int) -> Pending:
    """Return a window without pending meetings, for rows of `width` meetings."""
    size = WINDOW_PER_WIDTH * width
    whole, real = (np.zeros((size, 2), kind) for kind in (np.int64, np.float64))
    return Pending(np.zeros(1, np.int64), whole, whole, whole, real, real, real, np.zeros(size))


def filled(
    nodes: Nodes, pending: Pending, time: float, blocking: bool, ahead: Callable, updates: int
) -> dict[str, np.ndarray]:
    """Return the next rows as columns, and advance `nodes` and `pending`.

    time: s, landing of the row before. ahead: (nodes, [2] s until which paths of speeds and of
    links must be known) -> Lookahead that lets every node go on.
    """
    shape = updates, 2 * (pending.land.size // WINDOW_PER_WIDTH)
    columns = {name: np.empty(shape, kind) for name, kind in _COLUMNS.items()}
    rows = {"time": np.empty(updates), **columns}
    row, until, place = 0, np.zeros(2), np.arange(pending.land.size)
    landing, levels = tree_of(nodes.land)
    waking, _ = tree_of(nodes.wake)
    fixed = place, nodes[:-2], (landing, waking, levels), tuple(pending), tuple(rows.values())
    while row < updates:
        known = ahead(nodes, until)
        run = loop
        if isinstance(known.seconds.table, np.ndarray):
            run = lookahead.compiled(loop, wait, wait_no_more)
        draws = (tuple(known.seconds), *known[1:])
        row = run(row, time, until, blocking, draws, *fixed)
    nodes.wake[:], nodes.land[:] = waking[: nodes.wake.size], landing[: nodes.land.size]
    for array in pending[1:]:
        array[:] = array[place]
    return rows


def wait(queues, end, i, j) -> None:
    """Put i into the queue of j, in the order in which waits began, ties by number."""
    waits, longest, behind = queues
    waits[i] = j
    before, other = -1, longest[j]
    while other >= 0 and (end[other] < end[i] or (end[other] == end[i] and other < i)):
        before, other = other, behind[other]
    behind[i] = other
    if before < 0:
        longest[j] = i
    else:
        behind[before] = i


def wait_no_more(queues, i) -> None:
    """Remove i from the queue of the node that it waits for, if it waits."""
    waits, longest, behind = queues
    j = waits[i]
    if j < 0:
        return
    before, other = -1, longest[j]
    while other != i:
        before, other = other, behind[other]
    if before < 0:
        longest[j] = behind[i]
    else:
        behind[before] = behind[i]
    waits[i] = -1


def loop(row, time, until, blocking, ahead, place, nodes, trees, pending, rows) -> int:
    """Fill rows from `row` on while everything is in the lookahead; return the next row.

    place: [W], places of the pending meetings, in their order, and then the free places.
    until: [2] s that paths of speeds and of links must reach for the next call; the loop sets them.
    trees: times at which nodes land and at which they wake, and levels, see `stragglers.lookahead`.
    The loop is compiled, unless durations are drawn when they are looked up.
    """
    seconds, drawn_partner, drawn_steps, cost, links, known = ahead
    slow_paths, of_link, until_known = links
    table, counter, columns, constant, path, slowest = seconds
    begin, end, steps, first, round_, asked, waits = nodes
    landing, waking, levels = trees
    count, pair, brought, counters, begun, ended, spent, landed = pending
    times, workers, partner, start, finish, batches, firsts, busy, communication = rows
    size, width = landed.size, workers.shape[1] // 2
    in_time = path.shape[1] > 0
    freed = np.empty(width, np.int64)
    touched = np.full(begin.size, -1, np.int32)  # the row at which a node was last seen
    # The node that has waited longest for each node, and the next one behind each in a queue.
    longest, behind = np.full(begin.size, -1, np.int32), np.full(begin.size, -1, np.int32)
    queues = waits, longest, behind

    def steps_of(i, column):
        """Return the local steps of a round."""
        of_all, always = drawn_steps.shape
        return drawn_steps[min(i, of_all - 1), min(column, always - 1)]

    def seconds_of(i, j, column, at):
        """Return the seconds of i's communication if it meets j at `at` s; column: i's round."""
        of_all, always = cost.shape
        usual = cost[min(i, of_all - 1), min(column, always - 1)]
        if slow_paths.shape[1] == 0:
            return usual
        return usual * lookahead.slowness(slow_paths, of_link, i, j, at)

    def end_of(i, at, n, number):
        """Return the end [s] of `number` local steps of i from the n-th on, begun at `at` s."""
        before, end[i] = end[i], at
        for step in range(number):
            lasting = table[i, n + step]
            if in_time:
                lasting = speed_paths.duration(path, i, end[i], lasting) * constant[i]
            end[i] += lasting
        done, end[i] = end[i], before
        return done

    def exhausted(i, at):
        """Return True if the round after this one, begun at `at`, is not known to its end."""
        column, n = round_[i] + 1 - known[i], first[i] + steps[i] - counter[i]
        if column >= drawn_partner.shape[1] or n + steps_of(i, column) > columns:
            return True
        if in_time:
            latest = at
            for step in range(steps_of(i, column)):
                latest += max(constant[i], 1.0) * slowest * table[i, n + step]
            if latest >= path[i, -1, speed_paths.SWITCH]:
                until[0] = latest
                return True
        if slow_paths.shape[1] > 0 and not blocking:
            until[1] = end_of(i, at, n, steps_of(i, column))
            return until[1] >= until_known
        return False

    def work(i, at):
        """Begin the next round of local steps."""
        first[i] += steps[i]
        round_[i] += 1
        column = round_[i] - known[i]
        steps[i] = steps_of(i, column)
        begin[i] = at
        end[i] = end_of(i, at, first[i] - counter[i], steps[i])
        if blocking:
            lookahead.set_time(waking, levels, i, end[i])
            lookahead.set_time(landing, levels, i, np.inf)
        else:
            asked[i] = drawn_partner[i, column]
            longer = 0.0 if asked[i] == i else seconds_of(i, asked[i], column, end[i])
            lookahead.set_time(landing, levels, i, end[i] + longer)

    def meet(i, j):
        """Let i and j, both idle, land after the longer communication of the two."""
        ready = max(end[i], end[j])
        longer = seconds_of(i, j, round_[i] - known[i], ready)
        longer = max(longer, seconds_of(j, i, round_[j] - known[j], ready))
        lookahead.set_time(landing, levels, i, ready + longer)
        asked[i] = j
        wait_no_more(queues, i)
        wait_no_more(queues, j)

    def look(i):
        """Serve the node that has waited longest for i; else meet the drawn partner, or wait."""
        lookahead.set_time(waking, levels, i, np.inf)
        waiting = longest[i]
        j = drawn_partner[i, round_[i] - known[i]]
        if waiting >= 0:
            meet(waiting, i)
        elif waits[j] >= 0:
            meet(i, j)
        else:
            wait(queues, end, i, j)

    if blocking:
        for i in range(waits.size):
            if waits[i] >= 0:
                wait(queues, end, i, waits[i])
    while row < times.size:
        while count[0] < size:
            i = lookahead.earliest(landing, levels)
            if blocking:
                idle = lookahead.earliest(waking, levels)
                if waking[idle] <= landing[i]:
                    if waking[idle] >= until_known:
                        until[1] = waking[idle]
                        return row
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
        for at in range(2 * width):  # unused positions
            asking = at % width
            if asking >= taken or (at >= width and partner[row, asking] == asking):
                workers[row, at], partner[row, at] = begin.size, at
                start[row, at] = finish[row, at] = times[row]
                batches[row, at] = firsts[row, at] = 0
                busy[row, at] = communication[row, at] = 0.0
        row += 1
    return row


def interactions(schedule: Schedule) -> Meetings:
    """Return the meetings of a schedule of pairs by landing, ties by the worker that asked."""
    width = schedule.workers.shape[1] // 2
    # An unused position brings no mini-batches along; a node that asks brings some.
    row, asked = np.nonzero(schedule.batches[:, :width])
    worker, time = schedule.workers[row, asked], schedule.finish[row, asked]
    order = np.lexsort((worker, time))
    row = row[order]
    position = np.stack([asked[order], schedule.partner[row, asked[order]]], axis=1)
    return Meetings(schedule.workers[row[:, None], position], time[order], row, position)
