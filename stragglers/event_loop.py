"""Events of `stragglers.event_clock`, pushes in the order of time, to be compiled."""

import functools
from collections.abc import Callable

import numpy as np

from stragglers import earliest, speed_paths, streams


def loop(place, times, size, update, ahead, protocol, cost, state, due, rows) -> None:
    """Fill rows from `place` on while all durations are known, and move `place` on.

    place: [3], position to go on from: a row; in it a contribution, or beyond its last one, an
        effect of the update; and a worker that the update may interrupt.
    times: [4] s of the last push or of the update, of the end of known speed paths that the next
        step needs, of the end of the row's grace, and of the row's opening.
    size: [T] contributions of every row, 0 of one that still waits.
    due: the tree of the least `end`, and its levels, as `stragglers.earliest` has them.
    This function is compiled, except where durations are drawn when they are looked up.
    """
    table, counter, columns, constant, path, slowest = ahead
    steps, k, idle, limit, interrupt, grace, share = protocol
    begin, end, version, attempts, consumed = state
    workers, start, finish, first, taken, busy, spent = rows
    updates, width = workers.shape
    late = grace > 0  # pushes within the grace count
    costs, own = cost.shape  # a row per update, or one for all; columns likewise for the workers
    cancel = interrupt and limit == 1  # an update restarts all workers
    in_time = path.shape[1] > 0
    held = np.zeros(end.size, np.bool_)  # workers that are in the row already, and have gone on
    tree, levels = due

    def enter(i):
        """Tell the tree the end of worker i."""
        earliest.set_time(tree, levels, i, np.inf if held[i] else end[i])

    def seconds(row, i):
        return cost[min(row, costs - 1), min(i, own - 1)]

    def restart(i, at):
        """Begin a contribution; False if too little is known of it, and nothing is done."""
        n = attempts[i] - counter[i]
        if n + steps[i] > columns:
            return False
        if in_time:
            latest = at
            for step in range(steps[i]):
                latest += max(constant[i], 1.0) * slowest * table[i, n + step]
            if latest >= path[i, -1, speed_paths.SWITCH]:
                times[1] = latest
                return False
        begin[i] = at
        end[i] = at
        for step in range(steps[i]):
            work = table[i, n + step]
            if in_time:
                work = speed_paths.duration(path, i, end[i], work) * constant[i]
            end[i] += work
            attempts[i] += 1
        return True

    row, c, after = place
    if late and not idle and row < updates and size[row] == 0:
        for j in range(c):
            held[workers[row, j]] = True
            enter(workers[row, j])
    while row < updates:
        while size[row] == 0:
            i = earliest.first(tree, levels)
            now = max(tree[i], times[3])  # a worker that is back early has waited
            if c == width or (c >= k and now > times[2]):
                if c < width:
                    times[0] = times[2]
                size[row] = c
                continue
            if update + row - version[i] >= limit:  # too large a staleness: ignored
                if not restart(i, now + seconds(row, i)):
                    place[0], place[1], place[2] = row, c, after
                    return
                version[i] = update + row
                enter(i)
                continue
            began, pushed, landed, took = begin[i], end[i], now, 0.0
            if not (idle or cancel):
                took = seconds(row, i)
                landed = now + took
            if idle:
                end[i] = np.inf
            elif (not cancel or c < k - 1) and not restart(i, landed):
                place[0], place[1], place[2] = row, c, after
                return
            held[i] = late and not idle
            enter(i)
            workers[row, c], start[row, c], finish[row, c] = i, began, landed
            first[row, c], taken[row, c] = consumed[i], version[i]
            busy[row, c], spent[row, c] = pushed - began, took
            consumed[i] += steps[i]
            if not (idle or cancel):
                version[i] = update + row + (c == k - 1 and not late)
            times[0] = now
            c += 1
            if late and c == k:
                times[2] = now + grace
                if not idle:
                    back = finish[row, 0] + busy[row, 0]  # expected next push of the first worker
                    times[2] = now + min(grace, share * max(0.0, back - now))
                    for j in range(c - 1):
                        times[2] = min(times[2], max(now, end[workers[row, j]]))
            if late and not idle and c >= k:
                times[2] = min(times[2], max(now, end[i]))
        now, n = times[0], size[row]
        while (idle or cancel) and c < 2 * n:
            i = workers[row, c - n]
            # Only a worker's last push waits for the update and lands with it.
            if first[row, c - n] + steps[i] == consumed[i]:
                took = seconds(row, i)
                if not cancel:
                    if not restart(i, now + took):
                        place[0], place[1], place[2] = row, c, after
                        return
                    version[i] = update + row + 1
                    enter(i)
                spent[row, c - n] = took
                finish[row, c - n] = now + took
                if not idle:
                    busy[row, c - n] = now - start[row, c - n]  # it went on until it was cut
            c += 1
        if interrupt:
            while after < end.size:
                if update + row + 1 - version[after] >= limit:
                    if not restart(after, now + seconds(row, after)):
                        place[0], place[1], place[2] = row, c, after
                        return
                    version[after] = update + row + 1
                    enter(after)
                after += 1
        if late:
            times[3] = now
            for j in range(n, width):  # no contribution
                workers[row, j], first[row, j], taken[row, j] = end.size, 0, update + row
                start[row, j] = finish[row, j] = now
                busy[row, j] = spent[row, j] = 0.0
            for j in range(n):
                held[workers[row, j]] = False
                enter(workers[row, j])
        row, c, after = row + 1, 0, 0
    place[0], place[1], place[2] = row, c, after


@functools.cache
def compiled() -> Callable[..., None]:
    """Return the loop as machine code."""
    numba = streams.compiler()

    earliest.register()
    speed_paths.register()
    return numba.njit(loop, cache=True)
