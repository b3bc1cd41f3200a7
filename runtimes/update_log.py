"""The log of a server: updates as they happen, for a schedule and for a run that resumes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from runtimes.free_worker import Order
from stragglers.rule import Arrivals
from stragglers.schedule import Event, Schedule, concatenate


class Held(NamedTuple):
    """A contribution that has arrived and waits for its update."""

    worker: int
    order: Order
    contribution: Any
    busy: float  # s
    arrived: float  # s
    free: float  # s, when its worker may go on, if it does not wait for the update
    restored: bool  # its worker had begun with a fresh state, as it had lost its process


class Made(NamedTuple):
    """An update, as far as a waiting rule wants to know of it."""

    time: float  # s
    workers: list[int]
    versions: list[int]


class UpdateLog:
    """Rows since they were last taken, and all updates since the run began.

    events: of the rows that have not been taken.
    """

    def __init__(self, workers: int):
        self._workers = workers
        self.events: list[Event] = []
        self._rows: list[Schedule] = []
        self._made: list[Made] = []
        self._observed: list[int] = []  # updates made before each loss

    @property
    def updates(self) -> int:
        """How many have been made."""
        return len(self._made)

    def add(
        self,
        now: float,
        taken: Sequence[Held],
        busy_on: Collection[int],
        elsewhere: Collection[int],
    ) -> Schedule:
        """Note an update of these contributions, in order; returns its row.

        busy_on: workers that have gone on to another contribution at the same parameters, which
        the update cancels. elsewhere: those that have gone on from newer ones.
        """
        orders = [held.order for held in taken]
        last = {held.worker: n for n, held in enumerate(taken)}
        # A worker's last push lands with the update, for which it has waited or has gone on.
        lands = [last[h.worker] == n and h.worker not in elsewhere for n, h in enumerate(taken)]
        arrived = np.array([held.arrived for held in taken])
        start = np.array([order.seconds for order in orders])
        finish = np.where(lands, now, [held.free for held in taken])
        more = [land and h.worker in busy_on for land, h in zip(lands, taken, strict=True)]
        computing = np.array([held.busy for held in taken])
        busy = np.minimum(computing + np.where(more, now - arrived, 0.0), finish - start)
        way = np.minimum(arrived - start - computing, finish - start - busy)

        def row(values, kind):
            return np.array([list(values)], kind)

        self._rows.append(
            Schedule(
                time=np.array([now]),
                workers=row((held.worker for held in taken), np.int32),
                start=start[None],
                finish=finish[None],
                batches=row((order.batches for order in orders), np.int32),
                first=row((order.first for order in orders), np.int64),
                version=row((order.version for order in orders), np.int32),
                busy=busy[None],
                communication=np.maximum(way, 0.0)[None],
                offset=self.updates,
                population=self._workers,
                samples=row((order.samples for order in orders), np.int64),
                restored=row((h.worker if h.restored else -1 for h in taken), np.int32),
            )
        )
        workers, versions = [held.worker for held in taken], [order.version for order in orders]
        self._made.append(Made(now, workers, versions))
        return self._rows[-1]

    def observed(self) -> None:
        """Note that the rule has seen a loss."""
        self._observed.append(self.updates)

    def take(self) -> Schedule | None:
        """The rows since the last call, with what has happened beside; None for none."""
        if not self._rows:
            return None
        schedule = concatenate(self._rows)
        events = tuple(self.events)
        self._rows, self.events = [], []
        return replace(schedule, events=events)

    def pack(self, updates: int) -> dict[str, np.ndarray]:
        """Who made the first updates and when losses came, for `resume`."""
        made = self._made[:updates]
        return {
            "time": np.array([one.time for one in made]),
            "width": np.array([len(one.workers) for one in made], np.int64),
            "workers": np.array([who for one in made for who in one.workers], np.int64),
            "version": np.array([version for one in made for version in one.versions], np.int64),
            "observed": np.array(self._observed, np.int64),
        }

    def resume(self, packed: Mapping[str, np.ndarray]) -> None:
        """Take over what another log has packed."""
        ends = np.cumsum(packed["width"], dtype=np.int64).tolist()
        spans = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        columns = [
            [packed[name][span].tolist() for span in spans] for name in ("workers", "version")
        ]
        times = packed["time"].tolist()
        self._made = [Made(*made) for made in zip(times, *columns, strict=True)]
        self._observed = packed["observed"].tolist()

    def repeated(
        self, arrivals: Arrivals, state: Any, losses: Sequence[tuple[float, float]]
    ) -> Any:
        """The state of a rule after all updates, and after the losses that it has seen."""
        for happened in self._in_order(losses):
            if isinstance(happened, Made):
                for arrival in zip(happened.workers, happened.versions, strict=True):
                    state = arrivals.begun(state, *arrival, happened.time)
                    state = arrivals.on_arrival(state, *arrival, happened.time).state
                if arrivals.on_due is not None:
                    state = arrivals.on_due(state, happened.time).state
            elif arrivals.observe is not None:
                state = arrivals.observe(state, *happened)
        return state

    def _in_order(self, losses: Sequence[tuple[float, float]]) -> Iterator[Made | tuple]:
        """All updates, and the losses between them, as they came."""
        waiting = list(zip(self._observed, losses[: len(self._observed)], strict=True))
        for update, made in enumerate(self._made):
            while waiting and waiting[0][0] <= update:
                yield waiting.pop(0)[1]
            yield made
        yield from (loss for _, loss in waiting)
