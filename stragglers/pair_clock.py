"""Nodes that work and meet in pairs, in virtual time.

A row of the schedule is a wavefront of disjoint meetings, which `stragglers.wavefront` takes from
their order by time. Its first half are the nodes that asked, `partner` is the position of the other
one, and `batches` the local steps that each brings along: 0 for a partner that never stopped. A
node that meets itself, as its own partner, only delivers. An unused position has the number of
workers as its worker, and itself as its partner. `version` is the row, as every node works on its
own copy.
"""

import functools
from typing import NamedTuple

import networkx as nx
import numpy as np

from stragglers import wavefront
from stragglers.event_clock import check_draw
from stragglers.lookahead import Ahead, columns_of, table_of
from stragglers.pair_draws import CONSTANT, STEP_DRAWS, neighbour
from stragglers.processes import as_process
from stragglers.rule import Setting, Unfit, checked_cost, one_number
from stragglers.schedule import Schedule


class PairState(NamedTuple):
    """State of a schedule of pairs between two segments."""

    update: int  # index of the next row
    time: float  # s, landing of the last row
    nodes: wavefront.Nodes
    pending: wavefront.Pending


class PairClock:
    """Plan of pairs: `init()` and `extend(state, updates)` as in `stragglers.rule.Rule`.

    name: of the rule, for errors; asks: [P] bool, the nodes that meet neighbours, while the others
    only meet themselves. The other parameters are as in `stragglers.rules.pairs`. Bad values
    raise ValueError.
    """

    def __init__(
        self,
        name: str,
        setting: Setting,
        asks: np.ndarray,
        *,
        local_steps: float | None,
        steps: str,
        width: int | None,
        blocking: bool = False,
    ):
        if steps not in STEP_DRAWS:
            known = ", ".join(STEP_DRAWS)
            raise ValueError(f"{name}: unknown steps={steps!r}; choose one of {known}")
        graph, self.workers = setting.graph, setting.workers
        self.name, self.blocking = name, blocking
        self.mini_batches = one_number(name, setting)
        if width is None:
            disjoint = len(nx.maximal_matching(graph)) + (~asks).sum()
            width = int(max(1, min(self.workers // 8, disjoint)))
        if width < 1:
            raise ValueError(f"{name}: needs width >= 1 meetings a row, got {width}; set more")
        self.width = width
        mean = self.mini_batches if local_steps is None else local_steps
        self.partner = neighbour(name, graph, asks, setting.seed)
        draw = STEP_DRAWS[steps]
        self.steps = draw(name, mean, self.mini_batches, setting.seed)
        self._always = np.full((1, 1), int(mean)) if draw in CONSTANT else None
        process = as_process(setting.delay)
        self._process = process.seeded(setting.seed)
        self._known = Ahead(process, setting.seed)
        self._everybody = np.arange(self.workers)
        self._communication = setting.communication
        self._seconds = checked_cost(name, setting.communication, self.workers)

    def init(self) -> PairState:
        """Begin the local steps of all nodes at 0 s."""
        workers, everybody = self.workers, self._everybody
        begin, end = np.zeros(workers), np.zeros(workers)
        first, waits = np.zeros(workers, np.int64), np.full(workers, -1)
        nothing = np.full(workers, np.inf)
        asked = table_of(self.partner, first, 1, np.int64)[:, 0]
        number = self.steps(everybody, first)
        for step in range(number.max()):
            at = np.flatnonzero(step < number)
            end[at] += self._process.duration(at, end[at], step)
        cost = np.where(asked == everybody, 0.0, self.costs(first, 1)[:, 0])
        wake, land = (end.copy(), nothing) if self.blocking else (nothing, end + cost)
        nodes = wavefront.Nodes(
            begin, end, number, first, first, wake=wake, waits=waits, asked=asked, land=land
        )
        return PairState(0, 0.0, nodes, wavefront.empty_window(self.width))

    def extend(self, state: PairState, updates: int) -> tuple[PairState, Schedule]:
        """Return the next `updates` rows."""
        nodes, pending = (type(part)(*(a.copy() for a in part)) for part in state[2:])
        rows = wavefront.empty_rows(updates, self.width)
        sides = 2 if self.blocking else 1  # sides of a meeting that begin another round
        steps = sides * self.width * updates / self.workers * self.mini_batches
        ahead = functools.partial(self._ahead, columns_of(self.workers, self.mini_batches, steps))
        wavefront.fill(nodes, pending, state.time, self.blocking, ahead, rows)
        until = state.update + updates
        version = np.arange(state.update, until, dtype=np.int32)[:, None]
        time = float(rows.time[-1]) if updates else state.time
        return PairState(until, time, nodes, pending), Schedule(
            version=np.tile(version, (1, 2 * self.width)),
            offset=state.update,
            population=self.workers,
            **rows._asdict(),
        )

    def costs(self, first: np.ndarray, columns: int) -> np.ndarray:
        """Return the seconds of communication of nodes from their `first` rounds on.

        Of meetings with another node. As in a `wavefront.Lookahead`, [P, columns] or with axes of
        one entry.
        """
        if not callable(self._communication):
            return np.ravel(self._seconds(0)).astype(np.float64)[:, None]
        rounds = first[:, None] + np.arange(columns)
        known, at = np.unique(rounds, return_inverse=True)
        given = [np.ravel(self._seconds(t)) for t in known.tolist()]
        table = np.stack([np.broadcast_to(row, self.workers) for row in given])
        return table[at.reshape(rounds.shape), self._everybody[:, None]].astype(np.float64)

    def _ahead(self, columns: int, nodes: wavefront.Nodes, until: float) -> wavefront.Lookahead:
        first = nodes.round.copy()
        seconds = self._known.of(nodes.first + nodes.steps, columns, nodes.end, until)
        partners = table_of(self.partner, first, columns, np.int32)
        number = self._always
        if number is None:
            number = table_of(self.steps, first, columns, np.int64)
        return wavefront.Lookahead(seconds, partners, number, self.costs(first, columns), first)


def check_neighbours(name: str, setting: Setting) -> None:
    """Raise ValueError unless every worker has a neighbour and a duration per mini-batch."""
    graph, workers = setting.graph, setting.workers
    if graph is None:
        raise Unfit(
            name, "nodes meet neighbours, but got no graph", "take a method with a graph, as swarm"
        )
    if setting.links is not None:
        raise Unfit(name, "nodes draw their own partners, but got links", "leave them out")
    if set(graph) != set(range(workers)):
        raise ValueError(
            f"{name}: the graph has the nodes {sorted(graph, key=str)}, the rule {workers} "
            f"workers; label the nodes 0..{workers - 1}"
        )
    lonely = [i for i in graph if set(graph[i]) <= {i} or graph.has_edge(i, i)]
    if lonely:
        raise ValueError(
            f"{name}: needs neighbours other than itself for every node, but the nodes {lonely} "
            "have none or an edge to themselves; correct the graph"
        )
    check_draw(name, setting, ", or give spells of the delay")
