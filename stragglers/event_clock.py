"""Server that updates on every k-th contribution, in virtual time: the event loop.

The parameters are the behaviour of a worker after its push and of an update towards the others, see
`stragglers.rules.k_protocols`. A row of the schedule lists the k contributions in the order of
their pushes, ties by worker. Times belong to a worker: `start` of the contribution, and `finish`,
from which on the worker is free to begin another: the update's landing if it waits for that.
Cancelled and ignored contributions have no row: they count as idle, except that a worker that
contributed to a row and began another is busy until it is cut. Their samples are drawn again, in
another time.
"""

from typing import NamedTuple

import numpy as np

from stragglers import earliest
from stragglers.event_loop import compiled, loop
from stragglers.interleaved import interleaved
from stragglers.lookahead import Ahead, columns_of
from stragglers.processes import as_process
from stragglers.rule import (
    Setting,
    Turnout,
    Unfit,
    checked_cost,
    mini_batches_each,
    per_round,
)
from stragglers.schedule import Schedule

ANY_AGE = 2**62  # updates: no staleness is too large


class EventState(NamedTuple):
    """State of the loop between two updates: every worker has a contribution in flight."""

    update: int  # index of the next row
    time: float  # s, landing of the last row
    opened: float  # s, from which contributions count for the next row; 0 without a grace
    begin: np.ndarray  # [P] s, begin of the contribution in flight
    end: np.ndarray  # [P] s, end of the contribution in flight
    version: np.ndarray  # [P] int64, version of the contribution in flight
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, counter of the first mini-batch in flight


class Protocol(NamedTuple):
    """Behaviour of a worker after its push, the oldest gradient that counts, and the grace.

    With a grace an update waits on after the k-th push, and takes along later pushes, each worker
    once. Where workers go on after a push, the grace is a share of the time that the first of them
    is expected to need for its next push, and ends when any of them is back.
    """

    idle: bool  # a worker waits for the update after its push
    limit: int = ANY_AGE  # updates: a gradient of this staleness does not count
    interrupt: bool = False  # its worker begins anew at that staleness, not after its push
    grace: float = 0.0  # s, maximum
    share: float = 0.0  # of the remaining time, for workers that go on

    @property
    def cancels(self) -> bool:
        """True if an update restarts all workers."""
        return self.interrupt and self.limit == 1

    @property
    def waits_on(self) -> bool:
        """True if an update may have more than k contributions."""
        return self.grace > 0


class _Rows(NamedTuple):
    """Columns that the event loop fills, [T, k] each."""

    workers: np.ndarray  # int32
    start: np.ndarray  # s
    finish: np.ndarray  # s
    first: np.ndarray  # int64
    version: np.ndarray  # int32
    busy: np.ndarray  # s
    communication: np.ndarray  # s


class EventClock:
    """Plan of a protocol: `init()` and `extend(state, updates, k=...)` as in a `Rule`.

    name: of the rule, for errors; k: contributions of an update, or the fewest of one with a
    grace. A contribution is `setting.mini_batches` mini-batches and lasts for the sum of their
    durations. Bad values raise ValueError.
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
        """Number of workers, P."""
        return self.mini_batches.size

    @property
    def asynchronous(self) -> bool:
        """True if contributions may be taken at older versions."""
        return self.protocol.limit > 1

    def turnout(self, fewest: int, most: int) -> Turnout:
        """Return the turnout of an update of `fewest` to `most` contributions."""
        waits_on = self.protocol.waits_on
        early = not self.protocol.idle and (most > 1 or waits_on)
        twice = early and not waits_on
        return Turnout(1 if twice else fewest, early=early, twice=twice)

    def check_k(self, k: int) -> None:
        """Raise ValueError for a k that the server cannot wait for."""
        distinct = self.protocol.idle or self.protocol.waits_on
        if not 1 <= k <= (self.workers if distinct else np.inf):
            most = f" <= {self.workers} workers, as they are distinct" if distinct else ""
            raise ValueError(f"{self.name}: needs 1 <= k{most}, got k={k}; set k in this range")

    def init(self) -> EventState:
        """Begin a contribution of every worker at 0 s."""
        zeros, end = np.zeros(self.workers, np.int64), np.zeros(self.workers)
        for step in range(self.mini_batches.max()):
            at = np.flatnonzero(step < self.mini_batches)
            end[at] += self._process.duration(at, end[at], step)
        return EventState(
            0, 0.0, 0.0, np.zeros(self.workers), end, zeros, self.mini_batches.copy(), zeros
        )

    def extend(
        self, state: EventState, updates: int, *, k: int | None = None
    ) -> tuple[EventState, Schedule]:
        """Return the next `updates` rows; k: another one for this segment alone."""
        k = self.k if k is None else k
        self.check_k(k)
        cost = self._costs(state.update, updates)
        kinds = (np.int32, float, float, np.int64, np.int32, float, float)
        width = self.workers if self.protocol.waits_on else k
        rows = _Rows(*(np.empty((updates, width), kind) for kind in kinds))
        after, opened = self._filled(state, cost, k, rows)
        landed = np.concatenate([[state.time], rows.finish.max(axis=1)])
        time = np.maximum.accumulate(landed)  # an update over cheaper links may overtake
        after = after._replace(update=state.update + updates, time=float(time[-1]), opened=opened)
        each = np.append(self.mini_batches, 0)  # no worker has finished 0 mini-batches
        return after, Schedule(
            time=time[1:],
            batches=each[rows.workers].astype(np.int32),
            held=after.version.astype(np.int32),
            offset=state.update,
            population=self.workers,
            **rows._asdict(),
        )

    def _costs(self, update: int, updates: int) -> np.ndarray:
        """Return seconds of communication, [T, 1] or [T, P]; a single row if they are constant."""
        if not callable(self._communication):
            return np.ravel(self._seconds(0)).astype(np.float64)[None]
        rows = [np.ravel(self._seconds(t)) for t in range(update, update + updates)]
        width = max((row.size for row in rows), default=1)
        return np.array([np.broadcast_to(row, width) for row in rows], np.float64).reshape(
            -1, width
        )

    def _filled(
        self, state: EventState, cost: np.ndarray, k: int, rows: _Rows
    ) -> tuple[EventState, float]:
        """Fill `rows`; return the state's arrays after them, and the next row's opening."""
        unknown = np.zeros(self.workers, np.int64)
        *arrays, counter, steps = interleaved([*state[3:], unknown, self.mini_batches])
        _, end, _, attempts, _ = arrays
        fixed = (steps, k, *self.protocol)
        longest, (updates, width) = int(self.mini_batches.max()), rows.workers.shape
        place, times = np.zeros(3, np.int64), np.array([0.0, 0.0, 0.0, state.opened])
        taken = np.zeros(updates, np.int64)
        while place[0] < updates:
            each = (updates - place[0]) * width / self.workers * longest
            columns = columns_of(self.workers, longest, each)
            seconds = self._ahead.of(attempts, columns, end, times[1])
            counter[:] = seconds.counter
            seconds = seconds._replace(counter=counter)
            run = compiled() if isinstance(seconds.table, np.ndarray) else loop
            where = place, times, taken, state.update
            moving = tuple(arrays), earliest.tree_of(end)
            run(*where, tuple(seconds), fixed, cost, *moving, tuple(rows))
        after = (np.ascontiguousarray(array) for array in arrays)
        return EventState(*state[:3], *after), float(times[3])


def _check_server(name: str, setting: Setting) -> None:
    if setting.graph is not None or setting.links is not None:
        raise Unfit(
            name,
            "workers push to a server and have no neighbours, but got a graph or links",
            "leave both out, or take a rule in rounds as neighbour_barrier",
        )
    check_draw(name, setting, "")


def check_draw(name: str, setting: Setting, instead: str) -> None:
    """Raise ValueError unless every mini-batch has its own duration; instead: another way out."""
    if per_round(name, setting.draw):
        raise ValueError(
            f"{name}: every mini-batch has its own duration, got draw={setting.draw!r}; set "
            f"draw='mini_batch'{instead}"
        )
