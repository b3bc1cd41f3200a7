"""The timeline of a schedule for Perfetto and chrome://tracing: when workers compute and wait.

Every contribution of a Schedule gives up to three stretches of time. Its worker computes from
`start` for `busy` seconds, communicates until `finish`, and waits in between. The time between two
contributions of a worker stays empty: there the worker computed a mini-batch that was cancelled or
ignored, which has no row. Positions without a contribution, such as a node that another one meets,
take no time. The events of a Schedule (a worker has joined, was lost, is restored) are instants.

Source: Trace Event Format (Google, 2016), JSON object format.
"""

import json
import os
from typing import Any, NamedTuple

import numpy as np

from experiments import files
from stragglers.schedule import Schedule

TIMELINE = "timeline.json"
KINDS = ("compute", "wait", "communicate")
MOST_STRETCHES = 4000  # about half a megabyte, and more than a reader looks through
NANOSECONDS = 1e9  # per second; times are whole, so that no two stretches overlap by rounding

LATEST = 2.0**62  # ns, about 146 years; later times are drawn at this time


class Stretches(NamedTuple):
    """The activities of workers: N stretches of time in the order in which they began."""

    worker: np.ndarray  # [N] int
    kind: np.ndarray  # [N] int, of KINDS
    begin: np.ndarray  # [N] int64, ns
    end: np.ndarray  # [N] int64, ns
    update: np.ndarray  # [N] int, the update with the contribution
    mini_batches: np.ndarray  # [N] int, of the contribution
    staleness: np.ndarray  # [N] int, of the contribution, in updates
    partner: np.ndarray  # [N] int, the worker that is met, or `worker` without a partner


def stretches(schedule: Schedule, most: int | None = None) -> Stretches:
    """Return the first `most` stretches of a schedule, or all stretches if `most` is None."""
    lasting = schedule.finish > schedule.start
    if most is not None and lasting.sum() > most:
        # A stretch never begins before its contribution, and every contribution has at least one.
        lasting &= schedule.start <= np.partition(schedule.start[lasting], most - 1)[most - 1]
    row, position = np.nonzero(lasting)

    def of(column: np.ndarray) -> np.ndarray:
        return column[row, position]

    worker, start, finish = of(schedule.workers), of(schedule.start), of(schedule.finish)
    met = worker if schedule.partner is None else schedule.workers[row, of(schedule.partner)]
    drawn = (schedule.offset + row, of(schedule.batches), of(schedule.staleness), met)
    computed = np.minimum(start + of(schedule.busy), finish)
    sent = np.maximum(finish - of(schedule.communication), computed)
    # An update over cheaper links may restart a worker before an earlier update has landed.
    order, following = np.lexsort((start, worker)), np.full(start.size, np.inf)
    same = np.diff(worker[order]) == 0
    following[order[:-1][same]] = start[order[1:][same]]
    end = np.minimum(finish, following)
    nanoseconds = np.rint(NANOSECONDS * np.stack([start, computed, sent, end]))
    edges = np.clip(nanoseconds, -LATEST, LATEST).astype(np.int64)

    kinds = len(KINDS)
    begin, end = edges[:-1].ravel(), edges[1:].ravel()
    order = np.flatnonzero(end > begin)
    order = order[np.argsort(begin[order], kind="stable")][:most]
    columns = [np.tile(column, kinds)[order] for column in (worker, *drawn)]
    kind = np.repeat(np.arange(kinds), worker.size)[order]
    return Stretches(columns[0], kind, begin[order], end[order], *columns[1:])


def trace(schedule: Schedule, name: str, clock: str, most: int = MOST_STRETCHES) -> dict[str, Any]:
    """Return a run as a process with a thread per worker, in the JSON format of trace events.

    name: the run's name. clock: the kind of its seconds, "virtual" or "wall". Only the first `most`
    stretches are drawn; `otherData` then states the limit.
    """
    drawn = stretches(schedule, most + 1)
    contents, until = "all of the run", np.inf
    if drawn.begin.size > most:
        drawn = Stretches(*(column[:most] for column in drawn))
        until = drawn.begin.max(initial=0) / NANOSECONDS
        contents = (
            f"the first {most} events, which begin within {until:.4g} s of "
            f"{float(schedule.time[-1]):.4g} s; schedule.npz has all"
        )
    events: list[dict[str, Any]] = []

    def add(event: str, phase: str, thread: int, arguments: dict, **own) -> None:
        """Add an event in microseconds; thread 0 is special to viewers, workers begin at 1."""
        made = {"name": event, "ph": phase, "pid": 1, "tid": thread, "args": arguments}
        events.append(made | own)

    add("process_name", "M", 0, {"name": name})
    add("process_labels", "M", 0, {"labels": contents})
    instants = [event for event in schedule.events if event.time <= until]
    for worker in sorted({*drawn.worker.tolist(), *(event.worker for event in instants)}):
        add("thread_name", "M", worker + 1, {"name": f"worker {worker}"})
        add("thread_sort_index", "M", worker + 1, {"sort_index": worker})  # 10 comes after 9
    rows = zip(*(column.tolist() for column in drawn), strict=True)
    for worker, kind, begin, end, update, mini_batches, staleness, partner in rows:
        about = {"update": update, "mini_batches": mini_batches, "staleness": staleness}
        about |= {"partner": partner} if partner != worker else {}
        times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
        add(KINDS[kind], "X", worker + 1, about, cat="worker", **times)
    for event in instants:  # on the threads of their workers
        source = {} if event.source < 0 else {"source": event.source}
        at = np.rint(NANOSECONDS * event.time) / 1000
        add(event.kind, "i", event.worker + 1, source, cat="event", s="t", ts=at)
    about = {"run": name, "clock": clock, "contents": contents}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write(schedule: Schedule, path: str | os.PathLike, *run: Any, **more: Any) -> None:
    """Write `trace(schedule, *run, **more)` as a file that ui.perfetto.dev opens."""
    text = json.dumps(trace(schedule, *run, **more), allow_nan=False, separators=(",", ":"))
    files.write(path, text, durable=False)
