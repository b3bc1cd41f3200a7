"""Meaning of the columns of a schedule, and contradictions to it."""

from collections.abc import Iterator, Mapping

import numpy as np

EVENT_KINDS = ("joined", "lost", "restored")
TIMES = ("time", "start", "finish", "busy", "communication")
MOST_WORKERS = 2**31
MOST_UPDATES = 2**53
MOST_COUNTED = 2**32  # counters of mini-batches are random addresses, of 32 bits


def complaint(schedule, columns: Mapping[str, np.ndarray]) -> str | None:
    """Return a contradiction to the meaning of a `stragglers.schedule.Schedule`, or None.

    columns: its arrays with a leading axis of updates.
    """
    return next(_complaints(schedule, columns), None)


def _complaints(schedule, columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield all contradictions, of which only the first can be relied on."""
    shape = schedule.workers.shape
    wanted = {"time": shape[:1], "matchings": None}
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
    """Yield (rule, bool array of where it holds), with a leading axis of updates."""
    for name in TIMES:
        yield f"{name} must be finite", np.isfinite(getattr(schedule, name))
    start, finish, batches = schedule.start, schedule.finish, schedule.batches
    slack = 1e-9 * (1 + np.abs(finish))  # s, room for float64 sums of many durations
    spent, real = schedule.busy + schedule.communication, batches > 0
    # Each end may be as large as its type allows, their sum may not.
    ends = sum(np.minimum(c.astype(np.int64), MOST_COUNTED) for c in (schedule.first, batches))
    yield "time must not decrease", np.diff(schedule.time) >= 0
    yield "time must be the latest finish", schedule.time[:, None] >= finish - slack
    yield "finish must not precede start", finish >= start
    yield (
        "busy and communication must be >= 0",
        np.minimum(schedule.busy, schedule.communication) >= 0,
    )
    yield "busy + communication must fit", spent <= finish - start + slack
    yield "workers must be >= 0", schedule.workers >= 0
    yield (
        "workers must be below the population",
        ~real | (schedule.workers < schedule.all_workers),
    )
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
    if schedule.samples is not None:
        yield "samples must be >= 0", schedule.samples >= 0


def _wrong(event, before: float) -> str | None:
    """Return a contradiction in an event, or None; before: seconds of the last one."""
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
