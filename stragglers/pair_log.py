"""The schedule of meetings that have happened, put in order by what each node has counted.

Nodes on different machines have no common clock, so a row is written when its meeting is the next
one of both its ends. Every node's own order is kept, and the rows so far are always a run that is
whole. A row is one meeting: who asked, and its partner at the second position, or nobody there.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stragglers.schedule import Event, Schedule


class Entry(NamedTuple):
    """One end of a meeting."""

    worker: int
    count: int  # of its meetings before this one
    batches: int  # that it brings along, 0 of who goes on
    first: int  # their counter
    samples: int  # of all workers before them, by the node's own estimate
    start: float  # s
    busy: float  # s
    unheard: tuple["Meeting", ...] = ()  # it was alone in them, and they may be unknown so far


class Meeting(NamedTuple):
    """A meeting of two, of which the first has asked, or a node that was alone."""

    ends: tuple[Entry, ...]
    asked: float  # s, when it began, on the clock of who reports it
    landed: float  # s


class PairLog:
    """Meetings in any order, as rows in a consistent one."""

    def __init__(self, workers: int):
        self._workers = workers
        self._counts = np.zeros(workers, np.int64)  # of meetings that have rows
        self._update, self._time = 0, 0.0
        self._early: dict[tuple[int, int], Meeting] = {}  # (worker, its count) -> not written yet
        self._rows: list[Meeting] = []  # written, not taken yet
        self._events: list[Event] = []

    @property
    def updates(self) -> int:
        """Rows so far."""
        return self._update + len(self._rows)

    def counts(self) -> np.ndarray:
        """[workers] meetings of each node that have rows."""
        return self._counts.copy()

    def add(self, meeting: Meeting) -> None:
        """Write the meeting, and all that have waited for it, or keep it until its turn has come.

        One that has been added before is left out.
        """
        for end in meeting.ends:
            for before in end.unheard:
                self.add(before)
        if any(end.count < self._counts[end.worker] for end in meeting.ends):
            return
        self._early.update({(end.worker, end.count): meeting for end in meeting.ends})
        next_ones = [meeting]
        while next_ones:
            row = next_ones.pop()
            if any(end.count != self._counts[end.worker] for end in row.ends):
                continue
            self._rows.append(row)
            for end in row.ends:
                del self._early[end.worker, end.count]
                self._counts[end.worker] += 1
                following = self._early.get((end.worker, end.count + 1))
                next_ones += [] if following is None else [following]

    def happened(self, event: Event) -> None:
        """Note what happened to a node between the rows so far and those to come."""
        self._events.append(event)

    def take(self) -> Schedule | None:
        """The rows since the last call, None if there are none."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        offset, self._update = self._update, self._update + len(rows)
        latest = [max(self._time, *_finishes(row)) for row in rows]
        time = np.maximum.accumulate(latest)
        self._time = float(time[-1])
        events, self._events = tuple(self._events), []
        version = np.arange(offset, self._update, dtype=np.int32)[:, None]
        columns = {
            name: np.array([column[name] for column in map(self._columns, rows)], dtype)
            for name, dtype in _TYPES.items()
        }
        return Schedule(
            time=time,
            version=np.tile(version, (1, 2)),
            offset=offset,
            population=self._workers,
            events=events,
            **columns,
        )

    def pack(self) -> dict[str, np.ndarray]:
        """What `unpack` needs, once all rows are taken and no meeting waits for another one."""
        return {"counts": self.counts(), "rows": np.array([self._update, self._time])}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Go on from where the packed log stood."""
        self._counts = packed["counts"].astype(np.int64)
        self._update, self._time = int(packed["rows"][0]), float(packed["rows"][1])

    def _columns(self, row: Meeting) -> dict[str, list]:
        asker, *others = row.ends
        partner = others[0] if others else Entry(self._workers, 0, 0, 0, 0, row.landed, 0.0)
        ends, finishes = (asker, partner), [*_finishes(row), row.landed][:2]
        start = [f if not e.batches else e.start for e, f in zip(ends, finishes, strict=True)]
        spare = finishes[0] - asker.start - asker.busy
        return {
            "workers": [end.worker for end in ends],
            "start": start,
            "finish": finishes,
            "batches": [end.batches for end in ends],
            "first": [end.first for end in ends],
            "busy": [end.busy for end in ends],
            "communication": [max(0.0, min(row.landed - row.asked, spare)), 0.0],
            "partner": [1, 0] if others else [0, 1],
            "samples": [end.samples for end in ends],
        }


_TYPES = {
    **dict.fromkeys(("workers", "batches", "partner"), np.int32),
    **dict.fromkeys(("first", "samples"), np.int64),
    **dict.fromkeys(("start", "finish", "busy", "communication"), np.float64),
}


def _finishes(row: Meeting) -> list[float]:
    """When it landed at each end; clocks may differ, but nobody lands before its work is done."""
    return [max(row.landed, e.start + e.busy) if e.batches else row.landed for e in row.ends]
