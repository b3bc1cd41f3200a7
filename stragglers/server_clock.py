"""Clock of a server that updates on every k-th contribution: the event loop in virtual time.

A `Protocol` says what a worker does after its push, and what an update does to other workers, see
`stragglers.rules.server`. A row of the schedule lists the k contributions in the order of their
pushes, ties by worker. `start` is the time at which a contribution begins. From `finish` on the
worker may begin another contribution; `finish` is the update's landing if the worker waits for the
update. Cancelled and ignored contributions have no row, and their time counts as idle. The
exception is a worker that contributes to a row and then begins another contribution: the worker
counts as busy until the update cuts that work. Samples of cancelled and ignored contributions are
drawn again with new durations; samples with costs are lost instead, as their worker draws new
samples.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from stragglers import lookahead, speed_paths
from stragglers.lookahead import Ahead, columns_of, links_of, tree_of
from stragglers.processes import as_process
from stragglers.rule import (
    AsyncProtocol,
    Decision,
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
    opened: float  # s, from which on pushes count for the next row; 0 without a grace
    begin: np.ndarray  # [P] s, begin of the contribution in flight
    end: np.ndarray  # [P] s, end of the contribution in flight
    version: np.ndarray  # [P] int64, version of the contribution in flight
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, counter of the first mini-batch in flight


class Protocol(NamedTuple):
    """Protocol of a server: the worker after a push, the largest staleness, and the grace.

    With a grace, an update also takes pushes after the k-th push, each worker once. If workers go
    on after a push, the grace is a share of the time until the next push that is expected of the
    update's first worker. The grace ends at the latest when any of the update's workers pushes
    again.
    """

    idle: bool  # a worker waits for the update after its push
    limit: int = ANY_AGE  # updates: a gradient of this staleness does not count
    interrupt: bool = False  # the worker begins anew at that staleness, not after its push
    grace: float = 0.0  # s, maximum
    share: float = 0.0  # of the remaining time, for workers that go on
    grows: bool = False  # the limit of update t is sqrt(t - 1), rounded down, if that is more

    @property
    def cancels(self) -> bool:
        """True if an update restarts all workers."""
        return self.interrupt and self.limit == 1 and not self.grows

    def limit_at(self, update: int) -> int:
        """Return the staleness from which on a gradient does not count in this update."""
        return max(self.limit, math.isqrt(max(update - 1, 0))) if self.grows else self.limit

    @property
    def waits_on(self) -> bool:
        """True if an update may have more than k contributions."""
        return self.grace > 0


# Columns that the event loop fills, [T, k] each, in its order; times in seconds.
_COLUMNS = {
    "workers": "int32",
    "start": "float64",
    "finish": "float64",
    "first": "int64",
    "version": "int32",
    "busy": "float64",
    "communication": "float64",
}


class EventClock:
    """Clock that plans a protocol: `init()` and `extend(state, updates, k=...)` as in a `Rule`.

    name: name of the rule, for errors. k: contributions of an update, or the fewest of an update if
    the protocol has a grace. A contribution is `setting.mini_batches` mini-batches and lasts for
    the sum of their durations. Bad values raise ValueError.
    """

    def __init__(self, name: str, setting: Setting, k: int, protocol: Protocol):
        self.name, self.k, self.protocol = name, k, protocol
        self.mini_batches = mini_batches_each(name, setting)
        if setting.graph is not None or setting.links is not None:
            raise Unfit(
                name,
                "workers push to a server and have no neighbours, but got a graph or links",
                "leave both out, or take a rule in rounds as neighbour_barrier",
            )
        check_draw(name, setting, "")
        self.check_k(k)
        process = as_process(setting.delay)
        self.renews = process.costs is not None
        self._ahead = Ahead(process, setting.seed)
        pushed = getattr(setting.communication, "push", setting.communication)
        self._varies, self._communication = callable(pushed), setting.communication
        self._seconds = checked_cost(name, pushed, self.workers)

    @property
    def workers(self) -> int:
        """Number of workers, P."""
        return self.mini_batches.size

    @property
    def asynchronous(self) -> bool:
        """True if contributions may be taken at older versions."""
        return self.protocol.limit > 1 or self.protocol.grows

    @property
    def _ignores(self) -> bool:
        return self.protocol.limit < ANY_AGE or self.protocol.grows

    def turnout(self, fewest: int, most: int) -> Turnout:
        """Return the turnout of an update of `fewest` to `most` contributions."""
        waits_on = self.protocol.waits_on
        early = not self.protocol.idle and (most > 1 or waits_on)
        twice = early and not waits_on
        return Turnout(
            1 if twice else fewest,
            early=early,
            twice=twice,
            cancels=self.protocol.cancels,
            wastes=self._ignores,
        )

    def check_k(self, k: int) -> None:
        """Raise ValueError for a k that the server cannot wait for."""
        distinct = self.protocol.idle or self.protocol.waits_on
        if not 1 <= k <= (self.workers if distinct else np.inf):
            most = f" <= {self.workers} workers, as they are distinct" if distinct else ""
            raise ValueError(f"{self.name}: needs 1 <= k{most}, got k={k}; set k in this range")

    def init(self) -> EventState:
        """Begin a contribution of every worker at 0 s."""
        zeros, begin = np.zeros(self.workers, np.int64), np.zeros(self.workers)
        end = self._ahead.first_ends(self.mini_batches)
        return EventState(0, 0.0, 0.0, begin, end, zeros, self.mini_batches.copy(), zeros)

    def extend(
        self, state: EventState, updates: int, *, k: int | None = None
    ) -> tuple[EventState, Schedule]:
        """Return the next state and `updates` rows; k: contributions of each; None: `self.k`."""
        k = self.k if k is None else k
        self.check_k(k)
        cost = self._costs(state.update, updates)
        width = self.workers if self.protocol.waits_on else k
        rows = {name: np.empty((updates, width), kind) for name, kind in _COLUMNS.items()}
        rows["ignored"] = np.zeros(updates, np.int32)
        after, opened = self._filled(state, cost, k, rows)
        ignored = rows.pop("ignored")
        landed = np.concatenate([[state.time], rows["finish"].max(axis=1)])
        time = np.maximum.accumulate(landed)  # an update over cheaper links may overtake
        after = after._replace(update=state.update + updates, time=float(time[-1]), opened=opened)
        each = np.append(self.mini_batches, 0)  # of unused positions
        return after, Schedule(
            time=time[1:],
            batches=each[rows["workers"]].astype(np.int32),
            held=after.version.astype(np.int32),
            offset=state.update,
            population=self.workers,
            ignored=ignored if self._ignores else None,
            **rows,
        )

    def _costs(self, update: int, updates: int) -> np.ndarray:
        """Return seconds of communication, [T, 1] or [T, P]; a single row if they are constant."""
        if not self._varies:
            return np.ravel(self._seconds(0)).astype(np.float64)[None]
        rows = [np.ravel(self._seconds(t)) for t in range(update, update + updates)]
        width = max((row.size for row in rows), default=1)
        return np.array([np.broadcast_to(row, width) for row in rows], np.float64).reshape(
            -1, width
        )

    def _filled(
        self, state: EventState, cost: np.ndarray, k: int, rows: dict[str, np.ndarray]
    ) -> tuple[EventState, float]:
        """Fill `rows`; return the state after them, and the opening of the next row in s."""
        arrays = [array.copy() for array in state[3:]]
        _, end, _, attempts, _ = arrays
        fixed = (self.mini_batches, k, self.renews, *self.protocol)
        longest, (updates, width) = int(self.mini_batches.max()), rows["workers"].shape
        place, times = np.zeros(3, np.int64), np.array([0.0, 0.0, 0.0, state.opened, 0.0])
        taken = np.zeros(updates, np.int64)
        while place[0] < updates:
            each = (updates - place[0]) * width / self.workers * longest
            columns = columns_of(self.workers, longest, each)
            seconds = self._ahead.of(attempts, columns, end, times[1])
            run = lookahead.compiled(loop) if isinstance(seconds.table, np.ndarray) else loop
            where = place, times, taken, state.update
            moving = tuple(arrays), tree_of(end)
            links = links_of(self._communication, times[4])
            run(*where, tuple(seconds), fixed, (cost, *links), *moving, tuple(rows.values()))
        return EventState(*state[:3], *arrays), float(times[3])


def loop(place, times, size, update, ahead, protocol, cost, state, due, rows) -> None:
    """Fill rows from `place` on while all durations are known, and advance `place`.

    place: [3], position to go on from: a row; a contribution of the row or, beyond its last one, an
        effect of the update; and a worker that the update may interrupt.
    times: [5] s of: the last push or the update; the end that speed paths must reach for the next
        step; the end of the row's grace; the row's opening; the end that paths of links must reach.
    size: [T] contributions of every row, 0 for a row that still waits.
    cost: seconds of communication, see `EventClock._costs`, and the links' paths in time.
    due: the tree of the workers' `end`, and its levels, see `stragglers.lookahead`.
    The loop is compiled, unless durations are drawn when they are looked up.
    """
    table, counter, columns, constant, path, slowest = ahead
    steps, k, renews, idle, limit, interrupt, grace, share, grows = protocol
    begin, end, version, attempts, consumed = state
    workers, start, finish, first, taken, busy, spent, ignored = rows
    updates, width = workers.shape
    late = grace > 0  # pushes within the grace count
    each, slow_paths, links, known = cost
    costs, own = each.shape  # a row per update, or one for all; columns likewise for the workers
    cancel = interrupt and limit == 1 and not grows  # an update restarts all workers
    in_time = path.shape[1] > 0
    held = np.zeros(end.size, np.bool_)  # workers that are in the row already, and have gone on
    tree, levels = due

    def enter(i):
        """Write the end of worker i into the tree, or inf if the row has the worker already."""
        lookahead.set_time(tree, levels, i, np.inf if held[i] else end[i])

    def seconds(row, i, at):
        usual = each[min(row, costs - 1), min(i, own - 1)]
        if slow_paths.shape[1] == 0:
            return usual
        return usual * lookahead.slowness(slow_paths, links, i, i, at)

    def restart(i, at):
        """Begin a contribution; return False, with nothing done, if too few durations are known."""
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
            i = lookahead.earliest(tree, levels)
            now = max(tree[i], times[3])  # a worker that is back early has waited
            needed = now  # s, at which links are looked at
            if c == width:
                needed = times[0]
            elif c >= k and now > times[2]:
                needed = times[2]
            if needed >= known:
                times[4] = needed
                place[0], place[1], place[2] = row, c, after
                return
            if c == width or (c >= k and now > times[2]):
                if c < width:
                    times[0] = times[2]
                size[row] = c
                continue
            oldest = limit
            if grows:
                oldest = max(limit, int(np.sqrt(max(update + row - 1, 0))))
            if update + row - version[i] >= oldest:  # too large a staleness: ignored
                if not restart(i, now + seconds(row, i, now)):
                    place[0], place[1], place[2] = row, c, after
                    return
                version[i] = update + row
                ignored[row] += 1
                enter(i)
                continue
            began, pushed, landed, took = begin[i], end[i], now, 0.0
            origin = attempts[i] - steps[i] if renews else consumed[i]
            if not (idle or cancel):
                took = seconds(row, i, now)
                landed = now + took
            if idle:
                end[i] = np.inf
            elif (not cancel or c < k - 1) and not restart(i, landed):
                place[0], place[1], place[2] = row, c, after
                return
            held[i] = late and not idle
            enter(i)
            workers[row, c], start[row, c], finish[row, c] = i, began, landed
            first[row, c], taken[row, c] = origin, version[i]
            busy[row, c], spent[row, c] = pushed - began, took
            consumed[i] = origin + steps[i]
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
                took = seconds(row, i, now)
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
            oldest = limit
            if grows:
                oldest = max(limit, int(np.sqrt(update + row)))
            while after < end.size:
                if update + row + 1 - version[after] >= oldest:
                    if not restart(after, now + seconds(row, after, now)):
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


def check_draw(name: str, setting: Setting, instead: str) -> None:
    """Raise ValueError unless every mini-batch has its own duration; instead: another remedy."""
    if per_round(name, setting.draw):
        raise ValueError(
            f"{name}: every mini-batch has its own duration, got draw={setting.draw!r}; set "
            f"draw='mini_batch'{instead}"
        )


class ServerState(NamedTuple):
    """State of the server between two arrivals."""

    update: int  # number of updates, the newest version
    version: np.ndarray  # [P] int64, of each worker's contribution in flight
    held: tuple[int, ...]  # the workers whose contributions wait for the next update, in order


class Server:
    """Server that updates on k contributions, with the reactions of an `AsyncProtocol`.

    mini_batches: [P] of each worker's contribution.
    """

    def __init__(self, protocol: Protocol, k: int, mini_batches: np.ndarray):
        self.protocol, self.k, self._mini_batches = protocol, k, mini_batches

    def face(self) -> AsyncProtocol:
        """Return the functions of this server as the `AsyncProtocol` of a rule."""
        return AsyncProtocol(self.init, self.on_arrival, self.mini_batches, self.begun)

    def init(self) -> Any:
        """Begin a contribution of every worker at version 0."""
        return ServerState(0, np.zeros(self._mini_batches.size, np.int64), ())

    def mini_batches(self, state: Any, worker: int) -> int:
        """Return the mini-batches of the worker's next contribution."""
        del state
        return int(self._mini_batches[worker])

    def begun(self, state: ServerState, worker: int, version: int, now: float) -> ServerState:
        """Return the state in which the worker's contribution in flight has this version."""
        del now
        versions = state.version.copy()
        versions[worker] = version
        return state._replace(version=versions)

    def on_arrival(
        self, state: ServerState, worker: int, version: int, now: float, k: int | None = None
    ) -> Decision:
        """Return the decision on a contribution; k: contributions of an update; None: `self.k`."""
        del now  # a server counts contributions, at any time
        if version != state.version[worker]:
            return Decision(state, counts=False)  # its worker has begun anew in the meantime
        protocol, newest = self.protocol, state.update
        if newest - version >= protocol.limit_at(newest):
            return self._restarted(state, Decision(state, counts=False), (worker,))
        held = (*state.held, worker)
        if len(held) < (self.k if k is None else k):
            waiting = Decision(state._replace(held=held), counts=True)
            if protocol.idle:
                return waiting
            if protocol.cancels:
                return waiting._replace(proceed=(worker,))
            return self._restarted(waiting.state, waiting, (worker,))
        state = state._replace(update=newest + 1, held=())
        free = held if protocol.idle else (worker,)
        if protocol.interrupt:
            limit = protocol.limit_at(state.update)
            old = np.flatnonzero(state.update - state.version >= limit)
            free = (*free, *old.tolist())
        made = Decision(state, counts=True, update=held)
        return self._restarted(state, made, tuple(dict.fromkeys(free)))

    def _restarted(self, state: ServerState, decision: Decision, workers) -> Decision:
        """Return the decision in which these workers begin anew at the newest version."""
        version = state.version.copy()
        version[list(workers)] = state.update
        return decision._replace(state=state._replace(version=version), restart=workers)


class GraceState(NamedTuple):
    """State of the server between two events."""

    update: int  # number of updates, the newest version
    version: np.ndarray  # [P] int64, of each worker's contribution in flight
    begun: np.ndarray  # [P] s, begin of this contribution
    held: tuple[int, ...]  # the workers whose contributions are in the next update, in order
    early: tuple[tuple[int, float], ...]  # (worker that has delivered again, s of that work)
    back: float  # s, expected time of the next delivery by the first of `held`
    due: float  # s, of the update; inf as long as its k-th contribution is missing


class GraceServer(Server):
    """Server whose updates wait for k contributions and then for a grace."""

    def face(self) -> AsyncProtocol:
        """Return the functions of this server as an `AsyncProtocol`, with the update's due time."""
        return super().face()._replace(due=lambda state: state.due, on_due=self.on_due)

    def init(self) -> GraceState:
        """Begin a contribution of every worker at version 0."""
        workers = self._mini_batches.size
        none = np.zeros(workers, np.int64), np.zeros(workers)
        return GraceState(0, *none, (), (), math.inf, math.inf)

    def begun(self, state: GraceState, worker: int, version: int, now: float) -> GraceState:
        """Return the state in which the worker begins a contribution now, at this version."""
        return _sent(state, (worker,), version, now)

    def on_arrival(self, state: GraceState, worker: int, version: int, now: float) -> Decision:
        """Hold a contribution; `on_due` makes the update, after all earlier arrivals."""
        if version != state.version[worker]:
            return Decision(state, counts=False)  # its worker has begun anew in the meantime
        seconds = now - float(state.begun[worker])
        if worker in state.held:
            # A worker is in an update only once. Its return ends the grace, as it would wait.
            due = now if len(state.held) >= self.k else state.due
            early = (*state.early, (worker, seconds))
            return Decision(state._replace(early=early, due=due), counts=True)
        state = self._with(state, worker, seconds, now)
        if self.protocol.idle:
            return Decision(state, counts=True)
        return Decision(_sent(state, (worker,), state.update, now), True, restart=(worker,))

    def on_due(self, state: GraceState, now: float) -> Decision:
        """Make the update; workers that delivered again before are in the next update."""
        early = tuple(worker for worker, _ in state.early)
        free = state.held if self.protocol.idle else early
        after = state._replace(update=state.update + 1, held=(), early=(), due=math.inf)
        for worker, seconds in state.early:
            after = self._with(after, worker, seconds, now)
        return Decision(_sent(after, free, after.update, now), False, state.held, free)

    def _with(self, state: GraceState, worker: int, seconds: float, now: float) -> GraceState:
        """Return the state with another contribution in the next update, and its new due time."""
        held = (*state.held, worker)
        back = state.back if state.held else now + seconds
        due, grace = state.due, self.protocol.grace
        if len(held) == self.k:
            if not self.protocol.idle:
                grace = min(grace, self.protocol.share * max(0.0, back - now))
            due = now if state.early else now + grace
        if len(held) == state.version.size:
            due = now  # no other worker can come along
        return state._replace(held=held, back=back, due=due)


def _sent(state: GraceState, workers: tuple[int, ...], version: int, now: float) -> GraceState:
    """Return the state in which these workers begin at this version."""
    versions, begun = state.version.copy(), state.begun.copy()
    versions[list(workers)], begun[list(workers)] = version, now
    return state._replace(version=versions, begun=begun)
