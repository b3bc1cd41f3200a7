"""A server that updates on every k-th contribution, in virtual time: the event loop.

What a worker does after a push and what an update does to the others are the parameters, see
`stragglers.rules.k_protocols`. A row of the schedule lists the k contributions in the order of
their pushes, ties by worker. Times belong to a worker: `start` of the contribution, and `finish`
when the worker is free to begin another, which is the update's landing where it waits for that.
Cancelled and ignored contributions have no row: they count as idle, except that whoever contributed
to a row and began another is busy until it is cut. Their samples are drawn again, in another time.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers.lookahead import Ahead, columns_of
from stragglers.processes import as_process
from stragglers.rule import Setting, checked_cost, mini_batches_each, per_round
from stragglers.schedule import Schedule

ANY_AGE = 2**62  # updates: no gradient is too old


class EventState(NamedTuple):
    """Where the loop stands between two updates: every worker has a contribution in flight."""

    update: int  # of the next row
    time: float  # s, of the last row
    begin: np.ndarray  # [P] s, when the contribution in flight began
    end: np.ndarray  # [P] s, when it will be pushed
    version: np.ndarray  # [P] int64, at which it is taken
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, the counter of its first mini-batch


class Protocol(NamedTuple):
    """What a worker does after its push, and which gradients are too old."""

    idle: bool  # a worker waits for the update after its push
    limit: int = ANY_AGE  # a gradient that is this number of updates old does not count
    interrupt: bool = False  # its worker begins anew at that age, not after its push

    @property
    def cancels(self) -> bool:
        """Whether an update restarts everybody."""
        return self.interrupt and self.limit == 1


class _Rows(NamedTuple):
    """The columns that the event loop fills, [T, k] each."""

    workers: np.ndarray  # int32
    start: np.ndarray  # s
    finish: np.ndarray  # s
    first: np.ndarray  # int64
    version: np.ndarray  # int32
    busy: np.ndarray  # s
    communication: np.ndarray  # s


class EventClock:
    """The plan of a protocol: `init()` and `extend(state, updates, k=...)` as in a `Rule`.

    name: of the rule, for errors; k: contributions of an update. A contribution is
    `setting.mini_batches` mini-batches and lasts for the sum of their durations. Bad values raise
    ValueError.
    """

    def __init__(self, name: str, setting: Setting, k: int, protocol: Protocol):
        self.name, self.k, self.protocol = name, k, protocol
        self.mini_batches = mini_batches_each(name, setting)
        _check_server(name, setting)
        self.check_k(k)
        process = as_process(setting.delay)
        self._process = process.seeded(setting.seed)
        self._ahead = Ahead(process, setting.seed)
        self._communication = setting.communication
        self._seconds = checked_cost(name, setting.communication, self.workers)

    @property
    def workers(self) -> int:
        """How many there are, P."""
        return self.mini_batches.size

    @property
    def asynchronous(self) -> bool:
        """Whether contributions may be taken at older versions."""
        return self.protocol.limit > 1

    def check_k(self, k: int) -> None:
        """Raise ValueError for a k that the server cannot wait for."""
        if not 1 <= k <= (self.workers if self.protocol.idle else np.inf):
            most = f" <= {self.workers} workers, as they are distinct" if self.protocol.idle else ""
            raise ValueError(f"{self.name}: needs 1 <= k{most}, got k={k}; set k in this range")

    def init(self) -> EventState:
        """Everybody begins a contribution at 0 s."""
        zeros, end = np.zeros(self.workers, np.int64), np.zeros(self.workers)
        for step in range(self.mini_batches.max()):
            at = np.flatnonzero(step < self.mini_batches)
            end[at] += self._process.duration(at, end[at], step)
        return EventState(
            0, 0.0, np.zeros(self.workers), end, zeros, self.mini_batches.copy(), zeros
        )

    def extend(
        self, state: EventState, updates: int, *, k: int | None = None
    ) -> tuple[EventState, Schedule]:
        """The next `updates` rows; k: another one for this segment alone."""
        k = self.k if k is None else k
        self.check_k(k)
        after = EventState(*state[:2], *(array.copy() for array in state[2:]))
        cost = self._costs(state.update, updates)
        kinds = (np.int32, float, float, np.int64, np.int32, float, float)
        rows = _Rows(*(np.empty((updates, k), kind) for kind in kinds))
        self._fill(after, cost, rows)
        landed = np.concatenate([[state.time], rows.finish.max(axis=1)])
        time = np.maximum.accumulate(landed)  # an update with cheaper links may overtake
        after = after._replace(update=state.update + updates, time=float(time[-1]))
        return after, Schedule(
            time=time[1:],
            batches=self.mini_batches[rows.workers].astype(np.int32),
            held=after.version.astype(np.int32),
            offset=state.update,
            population=self.workers,
            **rows._asdict(),
        )

    def _costs(self, update: int, updates: int) -> np.ndarray:
        """Seconds of communication, [T, 1] or [T, P]; a single row for all if they are constant."""
        if not callable(self._communication):
            return np.ravel(self._seconds(0)).astype(np.float64)[None]
        rows = [np.ravel(self._seconds(t)) for t in range(update, update + updates)]
        width = max((row.size for row in rows), default=1)
        return np.array([np.broadcast_to(row, width) for row in rows], np.float64).reshape(
            -1, width
        )

    def _fill(self, state: EventState, cost: np.ndarray, rows: _Rows) -> None:
        """Fill `rows` and move the arrays of `state` on."""
        arrays = (state.begin, state.end, state.version, state.attempts, state.consumed)
        fixed = (self.mini_batches, *self.protocol)
        place, times = np.zeros(3, np.int64), np.zeros(2)
        columns = columns_of(self.workers, int(self.mini_batches.max()))
        while place[0] < rows.workers.shape[0]:
            seconds = self._ahead.of(state.attempts, columns, state.end, times[1])
            run = _compiled() if isinstance(seconds.table, np.ndarray) else _loop
            run(place, times, state.update, tuple(seconds), fixed, cost, arrays, tuple(rows))


def _check_server(name: str, setting: Setting) -> None:
    if setting.graph is not None or setting.links is not None:
        raise ValueError(
            f"{name}: workers push to a server and have no neighbours, but got a graph or links; "
            "take the algorithm all_reduce, or a rule in rounds as neighbour_barrier"
        )
    check_draw(name, setting, "")


def check_draw(name: str, setting: Setting, instead: str) -> None:
    """Raise ValueError unless every mini-batch has its own duration; instead: a way out more."""
    if per_round(name, setting.draw):
        raise ValueError(
            f"{name}: every mini-batch has its own duration, got draw={setting.draw!r}; set "
            f"draw='mini_batch'{instead}"
        )


def _loop(place, times, update, ahead, protocol, cost, state, rows):
    """Fill rows from `place` on while all durations are known, and move `place` on.

    place: [3], where to go on: a row; in it a contribution, or k more for what the update does to
        it; and a worker that the update may interrupt.
    times: [2] s of the last push, and until when paths of speeds have to be known to go on.
    These lines are compiled, except where durations are drawn when they are looked up.
    """
    table, counter, room, constant, switch, done, speed, slowest = ahead
    steps, idle, limit, interrupt = protocol
    begin, end, version, attempts, consumed = state
    workers, start, finish, first, taken, busy, spent = rows
    updates, k = workers.shape
    costs, width = cost.shape  # a row per update, or one for all; so for the workers
    cancel = interrupt and limit == 1  # an update restarts everybody
    in_time = switch.shape[1] > 0
    leaves = 1
    while leaves < end.size:
        leaves *= 2
    # A tournament for the least `end`: worker i is leaf `leaves + i`, a node has who wins below it.
    winner = np.arange(-leaves, leaves)

    def play(node):
        i, j = winner[2 * node], winner[2 * node + 1]
        winner[node] = j if j < end.size and end[j] < end[i] else i  # ties by worker

    def enter(i):
        """Play all matches of worker i again."""
        node = (leaves + i) // 2
        while node > 0:
            play(node)
            node //= 2

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

    def seconds(row, i):
        return cost[min(row, costs - 1), min(i, width - 1)]

    def restart(i, at):
        """Begin a contribution; False if too little is known of it, and nothing is done."""
        n = attempts[i] - counter[i]
        if attempts[i] + steps[i] > room[i]:
            return False
        if in_time:
            latest = at
            for step in range(steps[i]):
                latest += max(constant[i], 1.0) * slowest * table[i, n + step]
            if latest >= switch[i, -1]:
                times[1] = latest
                return False
        begin[i] = at
        end[i] = at
        for step in range(steps[i]):
            work = table[i, n + step]
            if in_time:
                x = sojourn(switch, i, end[i])
                total = done[i, x] + speed[i, x] * (end[i] - switch[i, x]) + work
                y = sojourn(done, i, total)
                work = switch[i, y] + (total - done[i, y]) / speed[i, y] - end[i]
                work *= constant[i]
            end[i] += work
            attempts[i] += 1
        return True

    for node in range(leaves - 1, 0, -1):
        play(node)
    row, c, after = place
    while row < updates:
        while c < k:
            i = winner[1]
            now = end[i]
            if update + row - version[i] >= limit:  # too old: ignored
                if not restart(i, now + seconds(row, i)):
                    place[0], place[1], place[2] = row, c, after
                    return
                version[i] = update + row
                enter(i)
                continue
            began, landed, took = begin[i], now, 0.0
            if not (idle or cancel):
                took = seconds(row, i)
                landed = now + took
            if idle:
                end[i] = np.inf
            elif (not cancel or c < k - 1) and not restart(i, landed):
                place[0], place[1], place[2] = row, c, after
                return
            enter(i)
            workers[row, c], start[row, c], finish[row, c] = i, began, landed
            first[row, c], taken[row, c] = consumed[i], version[i]
            busy[row, c], spent[row, c] = now - began, took
            consumed[i] += steps[i]
            if not (idle or cancel):
                version[i] = update + row + (c == k - 1)
            times[0] = now
            c += 1
        now = times[0]
        while (idle or cancel) and c < 2 * k:
            i = workers[row, c - k]
            # Only a worker's last push waits for the update and lands with it.
            if first[row, c - k] + steps[i] == consumed[i]:
                took = seconds(row, i)
                if not cancel:
                    if not restart(i, now + took):
                        place[0], place[1], place[2] = row, c, after
                        return
                    version[i] = update + row + 1
                    enter(i)
                spent[row, c - k] = took
                finish[row, c - k] = now + took
                if not idle:
                    busy[row, c - k] = now - start[row, c - k]  # it went on until it was cut
            c += 1
        if interrupt:
            interrupted = False
            while after < end.size:
                if update + row + 1 - version[after] >= limit:
                    if not restart(after, now + seconds(row, after)):
                        place[0], place[1], place[2] = row, c, after
                        return
                    version[after] = update + row + 1
                    interrupted = True
                after += 1
            if interrupted:
                for node in range(leaves - 1, 0, -1):
                    play(node)
        row, c, after = row + 1, 0, 0
    place[0], place[1], place[2] = row, c, after


@functools.cache
def _compiled() -> Callable[..., None]:
    import numba  # here, because importing it takes a second that other rules need not wait

    return numba.njit(_loop, cache=True)
