"""Event loop of nodes that work and meet in pairs, batched into wavefronts of disjoint pairs.

A node works for some mini-batches and then meets a partner. Meetings are ordered by the time of
their landing, ties by the node that asked for them. A row of the schedule takes `width` of them:
the loop simulates until a window of meetings is pending, goes through it in order, and takes every
meeting that shares no node with an earlier one of the window, taken or left. Each node thus keeps
its own sequence, and as meetings of different nodes commute, the rows give the result of the order,
to the last bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers import earliest
from stragglers.earliest import interleaved
from stragglers.lookahead import Seconds
from stragglers.pair_loop import compiled, loop
from stragglers.schedule import Schedule

# Pending meetings per place of a row: with more, rows are hardly fuller, but less in order.
WINDOW_PER_WIDTH = 4


class Nodes(NamedTuple):
    """State of every node: its local steps, wait for a partner, or landing."""

    begin: np.ndarray  # [P] s, begin of its local steps
    end: np.ndarray  # [P] s, end of its local steps
    steps: np.ndarray  # [P] int64, number of its local steps
    first: np.ndarray  # [P] int64, counter of the first local step
    round: np.ndarray  # [P] int64, finished rounds of local steps
    asked: np.ndarray  # [P] int64, its drawn or met partner
    waits: np.ndarray  # [P] int64, the working node that it waits for, or -1
    wake: np.ndarray  # [P] s, of its next look for a partner, inf if it has one or waits
    land: np.ndarray  # [P] s, landing of the meeting that it asked for, inf if there is none


_OFTEN = 6  # the first arrays of `Nodes`, which a meeting reads, share a cache line


class Pending(NamedTuple):
    """Simulated meetings in their order that are in no row yet; the first of a pair asked.

    A node that met itself is twice in its pair.
    """

    count: np.ndarray  # [1] int64, number of the W places in use
    pair: np.ndarray  # [W, 2] int64
    steps: np.ndarray  # [W, 2] int64, local steps that each brings along
    first: np.ndarray  # [W, 2] int64, counter of the first local step
    begin: np.ndarray  # [W, 2] s, begin of the local steps
    end: np.ndarray  # [W, 2] s, end of the local steps
    spent: np.ndarray  # [W, 2] s of communication
    land: np.ndarray  # [W] s


class Lookahead(NamedTuple):
    """Future of every node: durations of mini-batches and the draws of its rounds."""

    seconds: Seconds  # by the counter of a mini-batch
    partner: np.ndarray  # [P, R] int32, drawn partners
    steps: np.ndarray  # [P, R] int64; axes of one entry if all nodes or rounds have the same
    cost: np.ndarray  # [P, R] s, likewise; of meetings with another node
    round: np.ndarray  # [P] int64, round of the first column of the draws


class Rows(NamedTuple):
    """Columns that the event loop fills, [T, 2 width] each, and the times of the rows."""

    time: np.ndarray  # [T] s
    workers: np.ndarray  # int32
    partner: np.ndarray  # int32
    start: np.ndarray  # s
    finish: np.ndarray  # s
    batches: np.ndarray  # int32
    first: np.ndarray  # int64
    busy: np.ndarray  # s
    communication: np.ndarray  # s


class Meetings(NamedTuple):
    """Meetings of a schedule, I of them, in their order by time."""

    pairs: np.ndarray  # [I, 2] int, workers: the asking node and its partner, or itself
    time: np.ndarray  # [I] s, of the landing
    row: np.ndarray  # [I] int, of the schedule
    position: np.ndarray  # [I, 2] int, of the two in that row


def empty_window(width: int) -> Pending:
    """Return a window without pending meetings, for rows of `width` meetings."""
    size = WINDOW_PER_WIDTH * width
    whole, real = (np.zeros((size, 2), kind) for kind in (np.int64, np.float64))
    return Pending(np.zeros(1, np.int64), whole, whole, whole, real, real, real, np.zeros(size))


def empty_rows(updates: int, width: int) -> Rows:
    """Return rows that are yet to be filled."""
    kinds = (np.int32, np.int32, float, float, np.int32, np.int64, float, float)
    return Rows(np.empty(updates), *(np.empty((updates, 2 * width), kind) for kind in kinds))


def fill(
    nodes: Nodes, pending: Pending, time: float, blocking: bool, ahead: Callable, rows: Rows
) -> None:
    """Fill all `rows` after a row that landed at `time`, and move `nodes` and `pending` on.

    ahead: (nodes, s until when paths of speeds have to be known) -> Lookahead that lets every
        node go on.
    """
    row, until, unknown = 0, np.zeros(1), np.zeros_like(nodes.round)
    *often, counter, begun = interleaved([*nodes[:_OFTEN], unknown, unknown])
    moving, place = Nodes(*often, *nodes[_OFTEN:]), np.arange(pending.land.size)
    landing, levels = earliest.tree_of(nodes.land)
    waking, _ = earliest.tree_of(nodes.wake)
    fixed = place, moving[:-2], (landing, waking, levels), tuple(pending), tuple(rows)
    while row < rows.time.size:
        known = ahead(moving, until[0])
        counter[:], begun[:] = known.seconds.counter, known.round
        run = compiled() if isinstance(known.seconds.table, np.ndarray) else loop
        draws = (tuple(known.seconds._replace(counter=counter)), *known[1:-1], begun)
        row = run(row, time, until, blocking, draws, *fixed)
    moved = (*moving[:-2], *(tree[: nodes.land.size] for tree in (waking, landing)))
    for array, new in zip(nodes, moved, strict=True):
        array[:] = new
    for array in pending[1:]:
        array[:] = array[place]


def interactions(schedule: Schedule) -> Meetings:
    """Return the meetings of a schedule of pairs, by landing, ties by the worker that asked."""
    width = schedule.workers.shape[1] // 2
    # An unused position brings no mini-batches along; a node that asks brings some.
    row, asked = np.nonzero(schedule.batches[:, :width])
    worker, time = schedule.workers[row, asked], schedule.finish[row, asked]
    order = np.lexsort((worker, time))
    row = row[order]
    position = np.stack([asked[order], schedule.partner[row, asked[order]]], axis=1)
    return Meetings(schedule.workers[row[:, None], position], time[order], row, position)


def meetings(schedule: Schedule, workers: int) -> np.ndarray:
    """Count meetings of each two workers, symmetric [P, P]; on the diagonal, each with itself."""
    pairs = interactions(schedule).pairs
    counts = np.zeros((workers, workers), np.int64)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    return counts + counts.T - np.diag(counts.diagonal())


def copy_staleness(schedule: Schedule) -> np.ndarray:
    """Return the seconds [I], for every interaction, since the partner's copy had its own work.

    0 where the partner brings its work along. Before its first delivery a worker's copy dates
    from the first start of the schedule. The public copy of 1910.12308 (non-blocking) lacks the
    local steps that are not finished.
    """
    met = interactions(schedule)
    stride = max(met.time.size, 1)
    # A worker and a place in the order as one number: the last delivery before is one search.
    place = met.pairs.astype(np.int64) * stride + np.arange(met.time.size)[:, None]
    brings = schedule.batches[met.row[:, None], met.position] > 0
    delivered = np.sort(place[brings])
    at = delivered.searchsorted(place[:, 1], side="right") - 1
    last = delivered[at]
    known = (at >= 0) & (last // stride == met.pairs[:, 1])
    beginning = schedule.start.min(initial=np.inf)
    return met.time - np.where(known, met.time[last % stride], beginning)
