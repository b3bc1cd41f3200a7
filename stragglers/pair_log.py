"""Log of real meetings, put in order as a schedule by the meeting counters of the nodes.

Nodes on different hosts have no common clock. A row is therefore written when its meeting is the
next one of both nodes. This keeps every node's order, and the rows so far are always a complete
run. A row is one meeting: the node that asked, then its partner or an unused position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stragglers.schedule import Event, Schedule


class Entry(NamedTuple):
    """One node's side of a meeting."""

    worker: int
    count: int  # number of the node's meetings before this one
    batches: int  # contributed mini-batches; 0 if the node does not stop for the meeting
    first: int  # counter of the first of these mini-batches
    samples: int  # samples of all workers before this contribution, by the node's own estimate
    start: float  # s, begin of the local steps
    busy: float  # s, of the local steps
    unheard: tuple["Meeting", ...] = ()  # earlier meetings of the node alone, maybe not logged yet


class Meeting(NamedTuple):
    """Meeting of two nodes, of which the first has asked, or of a single node."""

    ends: tuple[Entry, ...]
    asked: float  # s, begin of the meeting, on the clock of the reporting node
    landed: float  # s, end of the meeting, on the same clock
    source: int = -1  # node whose model a lone node begins from, after the loss of its own process
    version: int | None = None  # row before which `source` had that model; None: this row


class PairLog:
    """Log that takes meetings in any order, and writes them as rows in a consistent order."""

    def __init__(
        self,
        workers: int,
        update: int = 0,
        seconds: float = 0.0,
        counts: Sequence[int] = (),
        counters: Sequence[int] = (),
    ):
        """Begin a log whose first row is `update`, after `seconds`.

        counts: earlier meetings of each node; counters: of each node's next mini-batch; else 0.
        """
        self._workers, self._update, self._time = workers, update, seconds
        self._counts, self._counters = np.zeros((2, workers), np.int64)
        self._counts[: len(counts)], self._counters[: len(counters)] = counts, counters
        self._early: dict[tuple[int, int], Meeting] = {}  # (worker, its count) -> unwritten
        self._lines: list[Meeting | Event] = []  # written, not taken yet

    @property
    def updates(self) -> int:
        """Number of rows so far."""
        return self._update + sum(isinstance(line, Meeting) for line in self._lines)

    def counts(self) -> np.ndarray:
        """Return each node's number of meetings with rows, [workers]."""
        return self._counts.copy()

    def known(self, worker: int) -> dict[str, int]:
        """Return a node's number of `meetings` with rows, and its next mini-batch's `counter`."""
        return {"meetings": int(self._counts[worker]), "counter": int(self._counters[worker])}

    def add(self, meeting: Meeting) -> None:
        """Write a meeting and all meetings that have waited for it, or keep it until its turn.

        A meeting that was added before is ignored.
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
            self._lines.append(row)
            for end in row.ends:
                if end.batches:
                    self._counters[end.worker] = end.first + end.batches
                del self._early[end.worker, end.count]
                self._counts[end.worker] += 1
                following = self._early.get((end.worker, end.count + 1))
                next_ones += [] if following is None else [following]

    def happened(self, event: Event) -> None:
        """Write an event after the rows so far.

        The time of the event is moved to fit between the times of these and later rows.
        """
        self._lines.append(event)

    def restored(
        self, worker: int, source: int, seconds: float, version: int | None = None
    ) -> None:
        """Write a row in which a node only takes the public model of `source`.

        The row follows the rows so far. version: row before which `source` had this model; None:
        the new row.
        """
        self._lines.append(Event(seconds, worker, "restored", source))
        nothing = Entry(worker, int(self._counts[worker]), 0, 0, 0, seconds, 0.0)
        self.add(Meeting((nothing,), seconds, seconds, source, version))

    @property
    def lines(self) -> int:
        """Number of rows and events that have not been taken yet."""
        return len(self._lines)

    def take(self, lines: int | None = None) -> Schedule | None:
        """Return the rows since the last call, or None; an event waits for a row that follows it.

        lines: number of rows and events to take, the oldest first; None: all.
        """
        rows, times, events = [], [], []
        kinds = [isinstance(line, Meeting) for line in self._lines[:lines]]
        last = max(np.flatnonzero(kinds), default=-1)
        for line in self._lines[: last + 1]:
            if isinstance(line, Meeting):
                self._time = max(self._time, *_finishes(line))
                rows.append(line)
                times.append(self._time)
            else:
                self._time = max(line.time, float(np.nextafter(self._time, np.inf)))
                events.append(line._replace(time=self._time))
        self._lines = self._lines[last + 1 :]
        if not rows:
            return None
        offset, self._update = self._update, self._update + len(rows)
        versions = [t if row.version is None else row.version for t, row in enumerate(rows, offset)]
        asked, landed = np.array([(row.asked, row.landed) for row in rows]).T
        nobody = Entry(self._workers, 0, 0, 0, 0, 0.0, 0.0)
        ends = [(*row.ends, nobody)[:2] for row in rows]

        def column(name: str, kind: type) -> np.ndarray:
            return np.array([[getattr(end, name) for end in both] for both in ends], kind)

        finish = np.array([[*_finishes(row), row.landed][:2] for row in rows])
        start, busy = column("start", float), column("busy", float)
        batches = column("batches", np.int32)
        spare = finish[:, 0] - start[:, 0] - busy[:, 0]
        met = np.array([[len(row.ends) > 1] for row in rows])
        return Schedule(
            time=np.array(times),
            workers=column("worker", np.int32),
            start=np.where(batches > 0, start, finish),
            finish=finish,
            batches=batches,
            first=column("first", np.int64),
            version=np.tile(np.array(versions, np.int32)[:, None], (1, 2)),
            busy=busy,
            communication=np.maximum(0.0, np.minimum(landed - asked, spare))[:, None] * [[1, 0]],
            partner=np.where(met, [[1, 0]], [[0, 1]]).astype(np.int32),
            offset=offset,
            population=self._workers,
            events=tuple(events),
            samples=column("samples", np.int64),
            restored=np.array([(row.source, -1) for row in rows], np.int32),
        )


def _finishes(row: Meeting) -> list[float]:
    """Return the landing at each node, not before the end of its work, as clocks may differ."""
    return [max(row.landed, e.start + e.busy) if e.batches else row.landed for e in row.ends]
