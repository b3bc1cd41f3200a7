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

from stragglers.processes import Process, as_process
from stragglers.rule import Setting, checked_cost, mini_batches_each, per_round
from stragglers.schedule import Schedule

WINDOW = 256  # durations per worker that are looked up at once
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


class Live(NamedTuple):
    """A table of durations that are drawn when they are looked up, as they depend on the start."""

    process: Process
    begin: np.ndarray  # [P] s, kept up to date by the loop

    def __getitem__(self, at: tuple[int, int]) -> float:
        worker, count = at
        return float(self.process.duration(worker, self.begin[worker], count))


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
        self._process = as_process(setting.delay).seeded(setting.seed)
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
        """Seconds of communication, [T, 1] or [T, P]."""
        if not callable(self._communication):
            return np.tile(np.ravel(self._seconds(0)).astype(np.float64), (updates, 1))
        rows = [np.ravel(self._seconds(t)) for t in range(update, update + updates)]
        width = max((row.size for row in rows), default=1)
        return np.array([np.broadcast_to(row, width) for row in rows], np.float64).reshape(
            -1, width
        )

    def _fill(self, state: EventState, cost: np.ndarray, rows: _Rows) -> None:
        """Fill `rows` and move the arrays of `state` on."""
        updates, k = rows.workers.shape
        arrays = (state.begin, state.end, state.version, state.attempts, state.consumed)
        fixed = (self.mini_batches, *self.protocol)
        if self._process.uses_time:
            base = np.zeros_like(state.attempts)
            known = Live(self._process, state.end), base, base + np.iinfo(base.dtype).max
            _loop(0, state.update, known, fixed, cost, arrays, rows)
            return
        worker = np.arange(self.workers)[:, None]
        most = int(self.mini_batches.max()) * (k + 2)  # a worker begins at most k + 2 in a row
        counts = np.arange(max(WINDOW, 2 * most))
        row = 0
        while row < updates:
            base = state.attempts.copy()
            table = self._process.duration(worker, 0.0, base[:, None] + counts)
            known = np.ascontiguousarray(table, np.float64), base, base + counts.size - most
            row = _compiled()(row, state.update, known, fixed, cost, arrays, tuple(rows))


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


def _loop(row, update, known, protocol, cost, state, rows):
    """Fill rows from `row` on while all durations are known; return the next row.

    known: table[worker, count - base[worker]] in seconds, for a row that begins with counts up to
    room[worker]. These lines are compiled, except where a table is `Live`.
    """
    table, base, room = known
    steps, idle, limit, interrupt = protocol
    begin, end, version, attempts, consumed = state
    workers, start, finish, first, taken, busy, spent = rows
    updates, k = workers.shape
    width = cost.shape[1]  # a column per worker, or one for all
    cancel = interrupt and limit == 1  # an update restarts everybody

    def seconds(row, i):
        return cost[row, min(i, width - 1)]

    def restart(i, at):
        begin[i] = at
        end[i] = at
        for _ in range(steps[i]):
            end[i] += table[i, attempts[i] - base[i]]
            attempts[i] += 1

    while row < updates:
        if (attempts > room).any():
            return row
        now = 0.0
        c = 0
        while c < k:
            i = np.argmin(end)  # the first of equal ones: ties by worker
            now = end[i]
            if update + row - version[i] >= limit:  # too old: ignored
                version[i] = update + row
                restart(i, now + seconds(row, i))
                continue
            workers[row, c], start[row, c], finish[row, c] = i, begin[i], now
            first[row, c], taken[row, c] = consumed[i], version[i]
            busy[row, c], spent[row, c] = now - begin[i], 0.0
            consumed[i] += steps[i]
            if idle:
                end[i] = np.inf
            elif not cancel:
                spent[row, c] = seconds(row, i)
                finish[row, c] = now + seconds(row, i)
                version[i] = update + row + (c == k - 1)
                restart(i, finish[row, c])
            elif c < k - 1:
                restart(i, now)  # at the same version
            c += 1
        if idle or cancel:
            for c in range(k):
                i = workers[row, c]
                if first[row, c] + steps[i] < consumed[i]:
                    continue  # only a worker's last push waits for the update and lands with it
                spent[row, c] = seconds(row, i)
                finish[row, c] = now + seconds(row, i)
                if not idle:
                    busy[row, c] = now - start[row, c]  # it went on until it was cut
                if not cancel:
                    version[i] = update + row + 1
                    restart(i, finish[row, c])
        if interrupt:
            for i in range(end.size):
                if update + row + 1 - version[i] >= limit:
                    version[i] = update + row + 1
                    restart(i, now + seconds(row, i))
        row += 1
    return row


@functools.cache
def _compiled() -> Callable[..., int]:
    import numba  # here, because importing it takes a second that other rules need not wait

    return numba.njit(_loop, cache=True)
