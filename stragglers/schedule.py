"""Schedules: participants, work and times of every update, as plain arrays on the host.

`Schedule.save` writes an `.npz` file with an array per field that is not None, and a `format`:

    0  (no `format` in the file) the columns from `time` to `communication`, `held`, `partner`,
       `matchings`, `offset`, `population`
    1  also `samples`, and the events as `event_time`, `event_worker`, `event_kind`, `event_source`
    2  also `restored`
    3  also `ignored`

`load` reads all of them.

`diagnose` returns tree distances of a schedule's gradients, and the waits of workers for each
other. The tree distance is defined in Birch SGD (Tyurin, Sivtsov, arXiv 2505.09218). A run is a
tree whose edges are gradients. A gradient is computed at one node and applied at another; its
distance is the larger number of edges from these to their common ancestor. Up to a constant,
(R + 1) L D / e + s^2 L D / e^2 gradients reach a squared gradient norm of e, for the largest
distance R, smoothness L, initial excess loss D and variance s^2 of a gradient.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from stragglers import reading

EVENT_KINDS = ("joined", "lost", "restored")
TIMES = ("time", "start", "finish", "busy", "communication")
MOST_WORKERS = 2**31
MOST_UPDATES = 2**53
MOST_COUNTED = 2**32  # counters of mini-batches are random addresses, of 32 bits


def _complaints(schedule, columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield the errors of a schedule as texts; later errors may follow from the first.

    columns: the schedule's arrays with a leading axis of updates.
    """
    shape = schedule.workers.shape
    wanted = {"time": shape[:1], "ignored": shape[:1], "matchings": None}
    for name, value in columns.items():
        expected = wanted.get(name, shape)
        if (expected or value.shape) != value.shape or value.shape[:1] != shape[:1]:
            yield (
                f"{name} has shape {value.shape}, workers has {shape}; give every column one row "
                "per update"
            )
    if not 0 <= schedule.offset < MOST_UPDATES:
        yield f"offset must count updates, got {schedule.offset}; correct it"
    if schedule.population is not None and not 0 < schedule.population < MOST_WORKERS:
        yield f"population must count workers, got {schedule.population}; correct it"
    if schedule.held is not None:
        newest = schedule.offset + len(schedule.time)
        if schedule.held.ndim != 1 or not ((schedule.held >= 0) & (schedule.held <= newest)).all():
            yield f"held must be versions in 0 .. {newest}; correct them"
    with np.errstate(all="ignore"):
        for rule, holds in _rules(schedule):
            rows = holds.all(axis=tuple(range(1, holds.ndim)))
            if not rows.all():
                yield f"{rule}, row {int(np.argmin(rows))} breaks it; correct that row"
    before = 0.0
    for number, event in enumerate(schedule.events):
        wrong = _wrong(event, before)
        if wrong is not None:
            yield f"event {number} {wrong}; correct that event"
        before = event.time


def _rules(schedule) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (rule, bool array: True where the rule holds), with a leading axis of updates."""
    for name in TIMES:
        yield f"{name} must be finite", np.isfinite(getattr(schedule, name))
    start, finish, batches = schedule.start, schedule.finish, schedule.batches
    slack = 1e-9 * (1 + np.abs(finish))  # s, room for float64 sums of many durations
    spent, real = schedule.busy + schedule.communication, batches > 0
    # Either term may be as large as its type allows; with the limit their sum cannot overflow.
    ends = sum(np.minimum(c.astype(np.int64), MOST_COUNTED) for c in (schedule.first, batches))
    yield "time must not decrease", np.diff(schedule.time) >= 0
    yield "time must be the latest finish", schedule.time[:, None] >= finish - slack
    yield "finish must not precede start", finish >= start
    least = np.minimum(schedule.busy, schedule.communication)
    yield "busy and communication must be >= 0", least >= 0
    yield "busy + communication must fit", spent <= finish - start + slack
    yield "workers must be >= 0", schedule.workers >= 0
    there = schedule.workers < schedule.all_workers
    yield "workers must be below the population", ~real | there
    yield "batches must be >= 0", batches >= 0
    yield "first must be >= 0", schedule.first >= 0
    yield "first + batches must be at most 2^32", ends <= MOST_COUNTED
    yield "version must lie in 0 .. t", (schedule.version >= 0) & (schedule.staleness >= 0)
    if schedule.partner is not None:
        width = schedule.workers.shape[1]
        yield "partner must be a position", (schedule.partner >= 0) & (schedule.partner < width)
    if schedule.restored is not None:
        known = (schedule.restored >= -1) & (schedule.restored < schedule.all_workers)
        yield "restored must be a worker or -1", known
    for name in ("samples", "ignored"):
        if getattr(schedule, name) is not None:
            yield f"{name} must be >= 0", getattr(schedule, name) >= 0


def _wrong(event, before: float) -> str | None:
    """Return the error of an event as a text, or None; before: s, time of the previous event."""
    if not 0 <= event.time < np.inf or event.worker < 0:
        return (
            f"(worker {event.worker} at {event.time} s) needs a worker >= 0 and a finite time >= 0"
        )
    if event.time < before:
        return f"at {event.time} s must not come after one at {before} s"
    if event.kind not in EVENT_KINDS:
        return f"is {event.kind[:200]!r} and must be one of {', '.join(EVENT_KINDS)}"
    if event.source < -1 or (event.kind == "lost" and event.source != -1):
        return f"({event.kind}) cannot begin from worker {event.source}"
    return None


FORMAT = 3  # format of files by `Schedule.save`
SCALARS = ("offset", "population")  # fields of a Schedule that are whole numbers
# Arrays of a file: NumPy's kind of their types, and the number of their axes.
_KINDS = {
    **dict.fromkeys(SCALARS, ("i", 0)),
    **{"time": ("f", 1), "held": ("i", 1), "ignored": ("i", 1), "matchings": ("b", 2)},
    **dict.fromkeys(TIMES[1:], ("f", 2)),
    **dict.fromkeys(
        ("workers", "batches", "first", "version", "partner", "samples", "restored"), ("i", 2)
    ),
}


class Event(NamedTuple):
    """Event of a worker that is no update: it joined, was lost or was restored."""

    time: float  # s
    worker: int
    kind: str  # one of EVENT_KINDS
    source: int = -1  # the worker whose model this worker took; -1: none


@dataclass(frozen=True)
class Schedule:
    """Record of T updates, k participants each; times in seconds, counters from 0.

    Version v is the parameters after v updates; update t makes version t + 1. A worker is twice in
    an update if it delivered twice. An unused position has a worker number one past the last
    worker, and no mini-batches.
    """

    time: np.ndarray  # [T] s, the latest landing of the update
    workers: np.ndarray  # [T, k] int32
    start: np.ndarray  # [T, k] s, begin of the worker's computing for the update
    finish: np.ndarray  # [T, k] s, landing at that worker
    batches: np.ndarray  # [T, k] int32, mini-batches finished
    first: np.ndarray  # [T, k] int64, mini-batches have counters first .. first + batches - 1
    version: np.ndarray  # [T, k] int32, version at which the gradient is taken
    busy: np.ndarray  # [T, k] s of computing, for counted and cut work
    communication: np.ndarray  # [T, k] s
    held: np.ndarray | None = None  # int32, versions that later rows may read, as each worker's [P]
    partner: np.ndarray | None = None  # [T, k] int32, position of the partner in the row
    matchings: np.ndarray | None = None  # [T, M] bool, active matchings
    offset: int = 0  # index t of the first row
    population: int | None = None  # P, if a row lists only senders; None: it lists all workers
    samples: np.ndarray | None = None  # [T, k] int64, samples of all workers when the contribution
    # was taken, if a worker cannot know its row; None: the samples of all earlier rows
    events: tuple[Event, ...] = ()  # in the order of time
    restored: np.ndarray | None = None  # [T, k] int32, worker whose model this worker takes before
    # its contribution, with a fresh state, after the loss of its process. The entry is this worker
    # under a server, or if it takes its own model at `version`; -1: no loss. None: no losses
    ignored: np.ndarray | None = None  # [T] int32, pushes since the last update that the server
    # did not take, as their gradients were too old; None: there are none

    @property
    def updates(self) -> int:
        """Number of rows, T."""
        return self.time.shape[0]

    @property
    def all_workers(self) -> int:
        """Number of workers, P."""
        if self.population is not None:
            return self.population
        return 1 + int(self.workers.max(initial=-1))

    @property
    def fewest(self) -> int:
        """Number of workers in the smallest update, including workers that finished nothing."""
        there = [np.unique(row[row < self.all_workers]).size for row in self.workers]
        return min(there, default=self.all_workers)

    @property
    def stopped(self) -> bool:
        """True if all workers that meet others contribute local steps."""
        if self.partner is None:
            return False
        met = self.partner != np.arange(self.partner.shape[1])
        return bool((self.batches[met] > 0).all())

    @property
    def twice(self) -> np.ndarray:
        """Updates in which a worker delivers more than once, [T] bool."""
        row = np.sort(self.workers, axis=1)
        return ((row[:, 1:] == row[:, :-1]) & (row[:, 1:] < self.all_workers)).any(axis=1)

    @property
    def staleness(self) -> np.ndarray:
        """Updates between a gradient's version and its use, [T, k]: t - version."""
        return self.offset + np.arange(self.updates)[:, None] - self.version

    @property
    def mean_staleness(self) -> float:
        """Mean staleness over all contributions."""
        real = self.batches > 0
        return float(self.staleness[real].mean()) if real.any() else 0.0

    @property
    def idle(self) -> np.ndarray:
        """Seconds [T, k] between start and finish without computing or communicating."""
        return np.maximum(self.finish - self.start - self.busy - self.communication, 0.0)

    @property
    def idle_fraction(self) -> float:
        """The `idle_share` of a rule whose updates waste nothing."""
        return self.idle_share()

    def idle_share(self, wastes: bool = False) -> float:
        """Return the idle share of worker time, from each worker's first start to its last finish.

        A worker in no update is not counted, as it may still be at its first contribution. wastes:
        as in the rule's `Turnout`. Then all workers without a row are taken to compute, in vain,
        until the last update.
        """
        wastes = wastes and self.population is not None  # else a row lists all workers
        begin = np.full(max(self.workers.max() + 1, self.population if wastes else 0), np.inf)
        end = np.zeros_like(begin)
        spans = self.finish > self.start  # not partners that go on
        np.minimum.at(begin, self.workers[spans], self.start[spans])
        np.maximum.at(end, self.workers[spans], self.finish[spans])
        if wastes:
            everyone = slice(self.population)
            begin[everyone] = np.minimum(begin[everyone], self.start[0].min())
            end[everyone] = np.maximum(end[everyone], self.finish[-1].min())
        present = np.isfinite(begin)
        total = (end[present] - begin[present]).sum()
        if wastes:
            return float(self.idle.sum() / total)
        return float(max(0.0, 1 - (self.busy.sum() + self.communication.sum()) / total))

    def samples_used(self, batch_size: int) -> np.ndarray:
        """Return the samples that all workers have used after each update, [T] int64."""
        return np.cumsum(self.batches.sum(axis=1, dtype=np.int64)) * batch_size

    def slice(self, begin: int, end: int) -> "Schedule":
        """Return rows begin .. end - 1; `held` is kept only if the last row is among them.

        An event goes with the first row that lands at its time or later, or else with the last row.
        Slices that share out all rows thus share out all events, and `concatenate` restores both.
        """
        rows = {name: value[begin:end] for name, value in _columns(self).items()}
        held = self.held if end >= self.updates else None
        landed = np.searchsorted(self.time, [event.time for event in self.events])
        with_row = zip(self.events, np.minimum(landed, self.updates - 1), strict=True)
        events = tuple(event for event, row in with_row if begin <= row < end)
        return replace(self, **rows, held=held, events=events, offset=self.offset + begin)

    def save(self, path: str | Path) -> None:
        """Write all arrays to an `.npz` file, of the newest format."""
        names = [field.name for field in fields(self) if field.name != "events"]
        values = {name: getattr(self, name) for name in names}
        if self.events:
            columns = zip(Event._fields, zip(*self.events, strict=True), strict=True)
            values |= {f"event_{name}": np.array(column) for name, column in columns}
        present = {name: value for name, value in values.items() if value is not None}
        np.savez_compressed(path, format=FORMAT, **present)

    def validate(self) -> None:
        """Raise ValueError if the arrays contradict each other or the meaning of a column."""
        for found in _complaints(self, _columns(self)):
            raise ValueError(f"schedule: {found}")


def concatenate(schedules: Sequence[Schedule]) -> Schedule:
    """Join consecutive segments to one schedule, with their events in the order of time.

    A gap or overlap of updates raises ValueError.
    """
    if not schedules:
        raise ValueError("concatenate: got no schedules; pass at least one")
    for before, after in pairwise(schedules):
        if after.offset != before.offset + before.updates:
            raise ValueError(
                f"concatenate: a segment ends before update {before.offset + before.updates}, "
                f"the next starts at {after.offset}; pass consecutive segments"
            )
    width = max(schedule.workers.shape[1] for schedule in schedules)
    nobody = max(schedule.all_workers for schedule in schedules)
    columns = [_columns(_widened(schedule, width, nobody)) for schedule in schedules]
    if any(c.keys() != columns[0].keys() for c in columns):
        raise ValueError(
            f"concatenate: segments have the columns {[sorted(c) for c in columns]}; "
            "pass segments of one rule"
        )
    joined = {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}
    events = chain.from_iterable(schedule.events for schedule in schedules)
    in_order = tuple(sorted(events, key=lambda event: event.time))
    return replace(schedules[0], **joined, held=schedules[-1].held, events=in_order)


def _widened(schedule: Schedule, width: int, nobody: int) -> Schedule:
    """Return rows of fewer contributions padded to `width` positions, with worker `nobody`."""
    missing = width - schedule.workers.shape[1]
    if not missing:
        return schedule
    time = np.repeat(schedule.time[:, None], missing, axis=1)
    row = np.repeat(schedule.offset + np.arange(schedule.updates)[:, None], missing, axis=1)
    filler = {"workers": nobody, "start": time, "finish": time, "version": row, "restored": -1}
    if schedule.partner is not None:
        filler["partner"] = width - missing + np.zeros_like(row) + np.arange(missing)
    wide = {}
    for name, values in _columns(schedule).items():
        if name not in ("time", "ignored", "matchings"):
            added = np.broadcast_to(filler.get(name, 0), row.shape).astype(values.dtype)
            wide[name] = np.concatenate([values, added], axis=1)
    return replace(schedule, **wide)


def load(path: str | Path | BinaryIO) -> Schedule:
    """Read a schedule that `save` wrote, in this or in an older format.

    Raises ValueError for any other file, and for a schedule that `validate` refuses.
    """
    try:
        values = reading.arrays(path)
        written = int(values.pop("format", 0))
        if 0 <= written <= FORMAT:
            schedule = _from_arrays(values)
            schedule.validate()
            return schedule
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"load: {path} holds no schedule ({error}); give a file written by Schedule.save"
        ) from error
    raise ValueError(
        f"load: {path} is a schedule of format {written}, and formats up to {FORMAT} are known; "
        "read it with the version of the code that wrote it, or a newer one"
    )


def _from_arrays(values: dict[str, np.ndarray]) -> Schedule:
    """Return the schedule of a file's arrays; ValueError for a wrong kind or number of axes.

    `Schedule.validate` checks the contents of the arrays.
    """
    events = _events(values)
    for name, value in values.items():
        if name not in _KINDS:
            raise ValueError(f"it has an array {name!r}, which is none of a schedule")
        kind, axes = _KINDS[name]
        if value.dtype.kind != kind or value.ndim != axes or value.dtype.itemsize > 8:
            raise ValueError(
                f"{name} has the type {value.dtype} and {value.ndim} axes, where {axes} axes of "
                f"kind {kind!r} are due"
            )
    numbers = {name: int(values[name]) for name in SCALARS if name in values}
    return Schedule(**values | numbers, events=events)


def _columns(schedule: Schedule) -> dict[str, np.ndarray]:
    """Return the arrays with a leading axis of updates."""
    others = ("held", "events", *SCALARS)
    names = [field.name for field in fields(schedule) if field.name not in others]
    return {n: getattr(schedule, n) for n in names if getattr(schedule, n) is not None}


def _events(values: dict[str, np.ndarray]) -> tuple[Event, ...]:
    """Remove the columns of events, as `save` writes them, from a file's arrays; return events."""
    columns = [values.pop(f"event_{name}", None) for name in Event._fields]
    if all(column is None for column in columns):
        return ()
    for name, kind, column in zip(Event._fields, "fiUi", columns, strict=True):
        if column is None or column.ndim != 1 or column.dtype.kind != kind:
            raise ValueError(f"event_{name} is missing or of another type")
    return tuple(Event(*event) for event in zip(*(c.tolist() for c in columns), strict=True))


NOTHING = 1e-6  # share of an update's time; shorter waits count as none


class Diagnostics(NamedTuple):
    """Diagnostics of a schedule of T updates by P workers."""

    tree_distance: int  # the largest tree distance, in mini-batches
    mean_distance: float  # tree distance, mean over mini-batches
    staleness: float  # in updates, mean over mini-batches
    share: np.ndarray  # [P] each worker's share of all used mini-batches
    sent: np.ndarray  # [P] share of all messages in rows, and of bytes if messages are equally long
    limits: np.ndarray  # [P] share of the updates in which others waited for each worker
    waits: np.ndarray  # [P, P] s that a worker (row) waited for another (column)


def diagnose(schedule: Schedule, workers: int) -> Diagnostics:
    """Return the diagnostics of a schedule; versions before its first row count as the first one.

    All mini-batches of a contribution are taken to be computed at the version that the worker read.
    Local steps thus count like the gradients of an accumulated gradient.
    """
    real = schedule.batches > 0
    batches = schedule.batches
    in_update = batches.sum(axis=1, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(in_update)])
    version = np.clip(schedule.version - schedule.offset, 0, schedule.updates)
    ahead = before[:-1, None] - before[version]  # mini-batches applied since the version was read
    # The n-th mini-batch of an update is n - 1 further from its version than the first one.
    last = ahead + batches.cumsum(axis=1) - 1
    weight = max(1, batches[real].sum())
    largest = int(last[real].max(initial=0))
    mean = float(((last - (batches - 1) / 2) * batches)[real].sum() / weight)
    staleness = float((schedule.staleness * batches)[real].sum() / weight)
    used = np.bincount(schedule.workers[real], batches[real], workers)[:workers]
    sends = np.full(schedule.workers.shape, True)
    if schedule.partner is not None:  # who meets itself sends nothing
        sends = schedule.partner != np.arange(schedule.workers.shape[1])
    sent = np.bincount(schedule.workers[sends], minlength=workers)[:workers]
    shares = (part / max(1.0, part.sum()) for part in (used, sent))
    return Diagnostics(largest, mean, staleness, *shares, *_waiting(schedule, workers))


def _waiting(schedule: Schedule, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the fields `limits` [P] and `waits` [P, P] of `Diagnostics`."""
    takes_part = (schedule.finish > schedule.start) & (schedule.workers < workers)
    ready = np.where(takes_part, schedule.start + schedule.busy, -np.inf)
    last = np.take_along_axis(schedule.workers, _last(schedule, ready, takes_part), axis=1)
    begin = np.where(takes_part, schedule.start, np.inf).min(axis=1, keepdims=True)
    end = np.where(takes_part, schedule.finish, -np.inf).max(axis=1, keepdims=True)
    waits_long = takes_part & (schedule.idle > NOTHING * (end - begin))
    row, position = np.nonzero(waits_long & (last != schedule.workers))
    delayed = np.unique(np.stack([row, last[row, position]]), axis=1)  # a worker once an update
    limits = np.bincount(delayed[1], minlength=workers) / max(1, takes_part.any(axis=1).sum())
    waits = np.zeros((workers, workers))
    row, position = np.nonzero(takes_part)
    waiting, awaited = schedule.workers[row, position], last[row, position]
    np.add.at(waits, (waiting, awaited), schedule.idle[row, position])
    return limits, waits


def _last(schedule: Schedule, ready: np.ndarray, takes_part: np.ndarray) -> np.ndarray:
    """Return the position [T, k] of the last ready worker for which each position waits.

    In a pair this is the later of the two workers. If a round lands at neighbours, it is the worker
    that is ready as the wait ends. Otherwise it is the worker that is ready last of all.
    """
    positions = np.arange(ready.shape[1])
    if schedule.partner is not None:
        theirs = np.take_along_axis(ready, schedule.partner, axis=1)
        return np.where(theirs > ready, schedule.partner, positions)
    last = np.repeat(ready.argmax(axis=1)[:, None], positions.size, axis=1)
    if schedule.population is not None:  # a server: a whole update waits for one worker
        return last
    ended = schedule.finish - schedule.communication
    near = NOTHING * (schedule.finish - schedule.start)
    early = takes_part & (schedule.idle > near) & (ended + near < ready.max(axis=1)[:, None])
    for row in np.flatnonzero(early.any(axis=1)):
        order = np.argsort(ready[row], kind="stable")
        at = np.searchsorted(ready[row][order], ended[row] + near[row], "right") - 1
        last[row] = order[np.maximum(at, 0)]
    return last
