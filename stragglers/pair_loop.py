"""Events of `stragglers.wavefront`, meetings in the order of time, to be compiled."""

import functools
from collections.abc import Callable

import numpy as np

from stragglers import earliest, speed_paths, streams


def wait(queues, end, i, j) -> None:
    """Let i wait for j; of nodes that wait since the same time, the lowest number comes first."""
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
    """Let i leave the node that it waits for, if it waits."""
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

    place: [W], places of the pending meetings, in their order; behind them, free places.
    until: [1] s, end that paths of speeds must reach, where they are too short.
    trees: times at which nodes land and at which they wake, and levels, see `stragglers.earliest`.
    This function is compiled, except where durations are drawn when they are looked up.
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
    touched = np.full(begin.size, -1, np.int32)  # the row at which a node was last seen
    # The node that has waited longest for each node, and the next one behind each in a queue.
    longest, behind = np.full(begin.size, -1, np.int32), np.full(begin.size, -1, np.int32)
    queues = waits, longest, behind

    def steps_of(i, column):
        """Return the local steps of a round."""
        of_all, always = drawn_steps.shape
        return drawn_steps[min(i, of_all - 1), min(column, always - 1)]

    def seconds_of(i, column):
        """Return the communication of a round."""
        of_all, always = cost.shape
        return cost[min(i, of_all - 1), min(column, always - 1)]

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
        return False

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
                lasting = speed_paths.duration(path, i, end[i], lasting) * constant[i]
            end[i] += lasting
        if blocking:
            earliest.set_time(waking, levels, i, end[i])
            earliest.set_time(landing, levels, i, np.inf)
        else:
            asked[i] = drawn_partner[i, column]
            longer = 0.0 if asked[i] == i else seconds_of(i, column)
            earliest.set_time(landing, levels, i, end[i] + longer)

    def meet(i, j):
        """Land with j, both idle, after the longer communication of the two."""
        longer = max(seconds_of(i, round_[i] - known[i]), seconds_of(j, round_[j] - known[j]))
        earliest.set_time(landing, levels, i, max(end[i], end[j]) + longer)
        asked[i] = j
        wait_no_more(queues, i)
        wait_no_more(queues, j)

    def look(i):
        """Serve the node that has waited longest for i; else meet the drawn partner, or wait."""
        earliest.set_time(waking, levels, i, np.inf)
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
        for at in range(2 * width):  # unused positions
            asking = at % width
            if asking >= taken or (at >= width and partner[row, asking] == asking):
                workers[row, at], partner[row, at] = begin.size, at
                start[row, at] = finish[row, at] = times[row]
                batches[row, at] = firsts[row, at] = 0
                busy[row, at] = communication[row, at] = 0.0
        row += 1
    return row


@functools.cache
def compiled() -> Callable[..., int]:
    """Return the loop as machine code."""
    numba = streams.compiler()
    from numba.extending import register_jitable

    for function in (wait, wait_no_more):
        register_jitable(function)
    earliest.register()
    speed_paths.register()
    return numba.njit(loop, cache=True)
