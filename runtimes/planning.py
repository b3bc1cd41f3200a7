"""The host's part of a simulated run: planned updates in the form that a device takes.

A waiting rule plans some updates ahead, and a run takes the updates that land in time, turn by
turn. If gradients are stale, every version of the parameters has a slot from its creation to its
last read. Versions stored by worker would be ambiguous if a worker delivers twice in an update. A
store of all versions would be unbounded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import hashing
from runtimes.bodies import Known, Row
from stragglers.rule import Rule
from stragglers.schedule import Schedule, concatenate

PLANNED_UPDATES = 64  # how far the clock runs ahead of the training
INDICES_PER_DISPATCH = 1 << 22  # bound on the sample indices of a dispatch: 16 MiB


def init_slots(slots: int) -> np.ndarray:
    """Return the version in each slot: version 0, the initial one, in slot 0, and -1 if free."""
    version = np.full(slots, -1, np.int64)
    version[0] = 0
    return version


def allocate(slots: np.ndarray, schedule) -> tuple[np.ndarray, ...]:
    """Return (slots after a segment, read [T, k], write [T], current [T]); see `init_slots`.

    schedule: the next segment; `schedule.held` lists the versions that later segments read (None:
        only the newest one). Raises ValueError if a version is missing or no slot is free.
    Update t reads its contributors' versions and version t, and writes version t + 1. All reads
    precede the write, so that the last update to read a version may overwrite the version's slot.
    The first updates of a segment get the same slots if the segment ends after them. A run can
    therefore be planned anew at any update.
    """
    first_update, updates = schedule.offset, schedule.updates
    end = first_update + updates
    reads = schedule.version.tolist()
    last_read = {first_update + t: first_update + t for t in range(updates)}
    for t in range(updates):
        last_read.update(dict.fromkeys(reads[t], first_update + t))
    held = [] if schedule.held is None else np.unique(schedule.held).tolist()
    last_read.update(dict.fromkeys([*held, end], end))

    slot_of = {v: s for s, v in enumerate(slots.tolist()) if v >= 0}
    expiring = [[] for _ in range(updates + 1)]
    # Sorted, because the order in which slots become free decides which one is written next.
    for version in sorted({*slot_of, *range(first_update, end + 1)}):
        expiring[max(last_read.get(version, first_update) - first_update, 0)].append(version)
    free = np.flatnonzero(slots < 0).tolist()
    read = np.empty(schedule.version.shape, np.int32)
    write, current = np.empty(updates, np.int32), np.empty(updates, np.int32)
    for t in range(updates):
        missing = [version for version in reads[t] if version not in slot_of]
        if missing:
            raise ValueError(
                f"update {first_update + t} reads version {missing[0]}, which is not born yet or "
                "was not announced in `held` of an earlier segment; check the schedule's versions"
            )
        read[t] = [slot_of[version] for version in reads[t]]
        current[t] = slot_of[first_update + t]
        free.extend(slot_of.pop(version) for version in expiring[t])
        if not free:
            raise ValueError(
                f"update {first_update + t} needs more than {len(slots)} live versions of "
                "the parameters; a schedule of n workers may keep at most n + 1 alive"
            )
        write[t] = slot_of[first_update + t + 1] = free.pop()
    version = np.full(len(slots), -1, np.int64)
    for v, s in slot_of.items():
        version[s] = v
    return version, read, write, current


class Plan(NamedTuple):
    """Position of a run on its clock."""

    clock: Any  # state of the waiting rule, after `planned`
    planned: Schedule | None  # rows that the rule has planned and that have not run
    begun: tuple[Any, np.ndarray] | None  # clock and slots from which `planned` was made
    rows: tuple[np.ndarray, ...] | None  # read, write, current, keep of `planned`
    slots: np.ndarray  # [slots] int64, versions in them after the last planned update
    newest: int  # slot of the newest parameters
    update: int
    samples: int
    seconds: float  # time of the last landing, or a later time until which no update has landed
    exhausted: bool  # the rule had no more rows at the last request
    remembers: bool  # the method keeps memory per worker
    known: Known  # of all rows that have been planned


class Turn(NamedTuple):
    """Updates that run in one dispatch."""

    schedule: Schedule
    samples: np.ndarray  # [T] int64, seen before each update
    read: np.ndarray  # [T, k]
    write: np.ndarray  # [T]
    current: np.ndarray  # [T]
    keep: np.ndarray  # [T] bool, see `bodies.Row`
    known: Known


class Addresses(NamedTuple):
    """Addresses of the mini-batches in the rows of a turn."""

    worker: np.ndarray  # [updates, k] int32, of working positions alone
    counter: np.ndarray  # [updates, k, mini_batches] int64
    schedule: Schedule  # the rows without padding
    workers: int  # number of workers in the run


class Planner:
    """Planner of the updates of one waiting rule."""

    def __init__(
        self,
        rule: Rule,
        batch_size: int,
        mini_batches: int,
        stale: bool,
        most: Callable[[int], int],
        recalls: bool = False,
    ):
        """Take a rule; batch_size, mini_batches: as in `runtimes.simulate.Simulator`.

        stale: contributions may be taken at older versions, which are kept in slots. most: samples
        of an update -> the most updates of a turn. recalls: a worker with a model of its own may
        restart from an older version of this model.
        """
        self._rule, self._batch_size = rule, batch_size
        self._mini_batches, self._stale, self._most = mini_batches, stale, most
        self._recalls = recalls

    def start(self, remembers: bool) -> Plan:
        """Return the plan of a run without updates; remembers: see `runtimes.base.remembers`."""
        free = init_slots(self._rule.workers + 1)
        known = Known(everyone=True, busy=True, served=True)
        clock = self._rule.init()
        return Plan(clock, None, None, None, free, 0, 0, 0, 0.0, False, remembers, known)

    def take(self, plan: Plan, seconds: float, most: float) -> tuple[Plan, Turn | None]:
        """Return (plan, turn of at most `most` updates that land by `seconds`, or None)."""
        plan = self._ahead(plan, seconds, most)
        planned, count = plan.planned, 0
        if planned is not None:
            per_update = planned.workers.shape[1] * self._mini_batches * self._batch_size
            landed = np.searchsorted(planned.time, seconds, side="right")
            count = int(min(landed, most, PLANNED_UPDATES, self._most(per_update)))
        if count == 0:
            waited = max(plan.seconds, seconds)
            return plan._replace(seconds=waited, exhausted=planned is None), None
        done = planned.slice(0, count)
        seen = plan.samples + np.concatenate([[0], done.samples_used(self._batch_size)])
        turn = Turn(done, seen[:-1], *(a[:count] for a in plan.rows), plan.known)
        left = planned.updates - count
        return plan._replace(
            planned=planned.slice(count, planned.updates) if left else None,
            rows=tuple(a[count:] for a in plan.rows) if left else None,
            newest=int(plan.rows[1][count - 1]),
            update=plan.update + count,
            samples=int(seen[-1]),
            seconds=max(plan.seconds, float(done.time[-1])),
        ), turn

    def addresses(self, turn: Turn, updates: int, width: int) -> Addresses:
        """Return the addresses of the mini-batches in `rows(turn, updates, width, ...)`."""
        done, workers = turn.schedule, self._rule.workers
        working = width
        if done.partner is not None and not done.batches[:, width // 2 :].any():
            working //= 2  # partners never stop, so that they have no mini-batches
        ids = _padded(done.workers, np.int32, updates, width, workers)[:, :working]
        counters = _padded(done.first, np.int64, updates, width)[:, :working]
        counters = counters[..., None] + np.arange(self._mini_batches)
        return Addresses(np.minimum(ids, workers - 1), counters, done, workers)

    def rows(
        self,
        turn: Turn,
        updates: int,
        width: int,
        indices: jax.Array,
        draws: jax.Array | None = None,
    ) -> Row:
        """Return the turn as rows, padded with empty rows and positions to [updates, width].

        indices: of the samples in the mini-batches of `addresses`, [..., batch_size]. draws: of
        the augmentation of these samples.
        """
        done, rest = turn.schedule, (0, updates - turn.schedule.updates)

        def pad(values, dtype, filler=0):
            return None if values is None else _padded(values, dtype, updates, width, filler)

        return Row(
            indices=indices,
            draws=draws,
            batches=pad(done.batches, np.int32),
            worker=pad(done.workers, np.int32, self._rule.workers),
            version=pad(done.version, np.int32),
            first=pad(done.first, np.int32),
            staleness=pad(done.staleness, np.int32),
            samples=hashing.words(pad(turn.samples, np.int64)),
            seen=None if done.samples is None else hashing.words(pad(done.samples, np.int64)),
            read=pad(turn.read, np.int32),
            write=pad(turn.write, np.int32),
            current=pad(turn.current, np.int32),
            active=None if done.matchings is None else np.pad(done.matchings, [rest, (0, 0)]),
            partner=pad(done.partner, np.int32),
            restored=pad(done.restored, np.int32, filler=-1),
            keep=pad(turn.keep, bool) if self._recalls else None,
        )

    def observe(self, plan: Plan, seconds: float, loss: float) -> Plan:
        """Pass a loss to a rule that follows it, and drop planned rows that the loss may change."""
        if self._rule.observe is None:
            return plan
        if plan.planned is not None:
            clock, held = plan.begun
            clock, done = self._rule.extend(clock, plan.update - clock.update)
            if self._stale and done.updates:
                held, *_ = allocate(held, done)
            plan = plan._replace(clock=clock, slots=held, planned=None, rows=None)
        return plan._replace(clock=self._rule.observe(plan.clock, seconds, loss))

    def skip(
        self, plan: Plan, seconds: float, most: float = np.inf
    ) -> tuple[Plan, Schedule | None]:
        """Return (plan, schedule) past all updates that land by `seconds`, at most `most`."""
        done = []
        while most > 0:
            plan, turn = self.take(plan, seconds, most)
            if turn is None:
                break
            done.append(turn.schedule)
            most -= turn.schedule.updates
        return plan, concatenate(done) if done else None

    def ahead(self, plan: Plan) -> Plan:
        """Plan the next rows while devices work and the host is idle; return the new plan."""
        follows = self._rule.observe is not None  # the rows depend on losses that are not known
        return plan if follows or plan.planned is not None else self._extended(plan)

    def _ahead(self, plan: Plan, seconds: float, most: float) -> Plan:
        """Return the plan with rows for a whole turn, as far as the rule has them.

        A turn of only the rows that are left would have a new shape, which must be compiled. A rule
        that follows the training plans again only when no rows are left.
        """
        planned = plan.planned
        if planned is None:
            return self._extended(plan)
        if self._rule.observe is not None or planned.time[-1] > seconds:
            return plan
        if planned.updates >= min(most, PLANNED_UPDATES):
            return plan
        longer = self._extended(plan)
        if longer.planned is planned:
            return longer
        joined = concatenate([planned, longer.planned])
        width = joined.workers.shape[1]
        pairs = zip(plan.rows, longer.rows, strict=True)
        rows = tuple(np.concatenate([_widened(a, width), _widened(b, width)]) for a, b in pairs)
        return longer._replace(planned=joined, rows=rows)

    def _extended(self, plan: Plan) -> Plan:
        """Return the plan with only the rule's next rows, or with the old rows if the rule ends."""
        clock, planned = self._rule.extend(plan.clock, PLANNED_UPDATES)
        if planned.updates == 0:
            return plan._replace(clock=clock)
        if plan.remembers and planned.twice.any():  # one of two new states would be lost
            raise AssertionError("planning: a worker delivers twice, against the rule's turnout")
        rows = [np.zeros_like(planned.version), *np.zeros((2, planned.updates), np.int32)]
        held = plan.slots
        if self._stale:
            held, *rows = allocate(held, planned)
        rows.append(_recalled(planned))
        begun = (plan.clock, plan.slots)
        return plan._replace(
            clock=clock,
            planned=planned,
            begun=begun,
            rows=tuple(rows),
            slots=held,
            known=plan.known & self._known(planned),
        )

    def _known(self, planned: Schedule) -> Known:
        workers = self._rule.workers
        everyone = planned.workers.shape[1] == workers and np.array_equal(
            planned.workers, np.broadcast_to(np.arange(workers), planned.workers.shape)
        )
        finished = planned.batches > 0
        return Known(everyone, busy=bool(finished.all()), served=bool(finished.any(axis=1).all()))


def whole_powers(updates: int) -> int:
    """Return the least power of two >= updates, so that few shapes are compiled."""
    return 1 << (updates - 1).bit_length()


def _recalled(planned: Schedule) -> np.ndarray:
    """Return [T] bool: a worker may restart later from its model as it is before this row."""
    older = np.unique([] if planned.held is None else planned.held)
    if planned.restored is not None:
        own = planned.restored == planned.workers
        older = np.union1d(older, planned.version[own])
    return np.isin(planned.offset + np.arange(planned.updates), older)


def stacked(rows: list[Row]) -> Row:
    """Return rows of several runs on a new leading axis; device arrays are stacked in one call."""
    leaves = zip(*map(jax.tree.leaves, rows), strict=True)
    stack = jax.jit(jnp.stack)
    joined = [np.stack(a) if isinstance(a[0], np.ndarray) else stack(a) for a in leaves]
    return jax.tree.unflatten(jax.tree.structure(rows[0]), joined)


def _padded(values: np.ndarray, dtype, updates: int, width: int, filler=0) -> np.ndarray:
    """Return values [T] or [T, k] padded with `filler` to [updates] or [updates, width]."""
    shape = (updates, *(width for _ in values.shape[1:]))
    if values.shape == shape:
        return values.astype(dtype)
    padded = np.full(shape, filler, dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    """Return values [T] unchanged, or values [T, k] padded with zeros to [T, width]."""
    return values if values.ndim == 1 else np.pad(values, [(0, 0), (0, width - values.shape[1])])
