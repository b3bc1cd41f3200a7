"""Waiting rules of asynchronous gossip: SwarmSGD (1910.12308) and AD-PSGD (1710.06952).

Every node works through its local steps at its own speed and then meets a random neighbour.

    random_pairs                   the partner never stops; its local steps stay its own
    random_pairs, blocking=True    both have done their local steps; the first one waits
    bipartite_pairs                one side of a bipartite graph asks, the other goes on alone

A partner is drawn among a node's neighbours in `setting.graph`, uniformly or in proportion to the
edge attribute "weight". `setting.communication` is the seconds from the end of the local steps to
the meeting, in which the node does not compute: a scalar or [workers], or a function from the
node's number of meetings to either. Both rules take these parameters:

    local_steps    mini-batches before a meeting, by default all of `setting.mini_batches`
    steps          "fixed", or "geometric": capped at the mini-batches, with mean `local_steps` then
    width          meetings of a row, by default an eighth of the workers, or fewer if the graph
                   has fewer disjoint edges

Bad values raise ValueError.

A row of the schedule is a wavefront of disjoint meetings, which `stragglers.wavefront` takes from
the order of meetings by time. The nodes that asked fill the first half of a row. `partner` is the
position of the other node. `batches` are the local steps that a node contributes, 0 for a partner
that never stopped. A node that is its own partner meets itself and only delivers. An unused
position has the number of workers as its worker, and is its own partner. `version` is the index of
the row, as every node works on its own copy.

A draw of a neighbour or of local steps depends on the node and on its number of earlier draws,
never on time. `PairProtocol` makes the same draws in real time.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import networkx as nx
import numpy as np
import scipy

from stragglers import wavefront
from stragglers.lookahead import Ahead, columns_of, links_of, table_of
from stragglers.processes import as_process
from stragglers.rule import (
    AsyncProtocol,
    Decision,
    Rule,
    Setting,
    Turnout,
    Unfit,
    check_nodes,
    checked_cost,
    one_number,
)
from stragglers.schedule import Schedule
from stragglers.server_clock import check_draw
from stragglers.streams import addressed

PARTNERS, STEPS = 2, 3  # streams of random numbers; processes use stream 1, or none

Draw = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, round -> int


def neighbour(name: str, graph: nx.Graph, asks: np.ndarray, seed: int) -> Draw:
    """Return the draw of partners by weights of edges; nodes that never ask get themselves."""
    edges = [
        (i, j, links[j].get("weight", 1.0) if asks[i] else 1.0)
        for i, links in ((i, graph[i]) for i in range(len(graph)))
        for j in (sorted(links) if asks[i] else [i])
    ]
    node, partner, weight = (np.array(column) for column in zip(*edges, strict=True))
    partner = partner.astype(np.int32)
    usable = np.isfinite(weight) & (weight > 0)
    if not usable.all():
        raise ValueError(
            f"{name}: needs positive weights of edges, got {weight[~usable][0]}; remove such an "
            "edge"
        )
    start = np.searchsorted(node, np.arange(len(graph) + 1))  # first edge of each node
    degree, shares = np.diff(start), np.ones(len(weight))
    for d in np.unique(degree):  # the last edge of a node has the rest up to 1
        edges = start[:-1][degree == d, None] + np.arange(d)
        sums = weight[edges].sum(axis=1, keepdims=True)
        shares[edges[:, :-1]] = np.cumsum(weight[edges[:, :-1]], axis=1) / sums
    halvings = int(degree.max() - 1).bit_length()
    uniform = addressed(seed, PARTNERS)

    def drawn(worker: np.ndarray, count: np.ndarray) -> np.ndarray:
        worker, count = np.asarray(worker), np.asarray(count)
        u = uniform(worker, count)
        low, high = start[worker], start[worker + 1] - 1  # the first share above u is between them
        for _ in range(halvings):
            middle = (low + high) // 2
            under = shares[middle] <= u
            low = np.where(under, middle + 1, low)
            high = np.where(under, high, middle)
        return partner[np.broadcast_to(low, u.shape)]

    return drawn


def _fixed(name: str, mean: float, most: int, seed: int) -> Draw:
    """Return a draw that is always `mean` local steps."""
    if not 1 <= mean <= most or mean != int(mean):
        raise ValueError(
            f"{name}: needs a whole number 1 <= local_steps <= mini_batches={most}, got {mean}; "
            "set one in this range"
        )
    return lambda worker, count: np.full(np.broadcast(worker, count).shape, int(mean))


def _geometric(name: str, mean: float, most: int, seed: int) -> Draw:
    """Return a draw of geometric local steps, capped at `most`, with mean `mean` after the cap."""
    if not (1 <= mean < most or mean == most == 1):
        raise ValueError(
            f"{name}: needs 1 <= local_steps < mini_batches={most} for geometric steps, which "
            f"are capped there, got {mean}; set fewer local_steps or more mini_batches"
        )
    # sum_{h < M} (1 - p)^h is the mean of a geometric number that is capped at M.
    root = scipy.optimize.brentq
    stay = root(lambda q: sum(q**h for h in range(most)) - mean, 0.0, 1.0, xtol=1e-14)
    uniform = addressed(seed, STEPS)

    def drawn(worker: np.ndarray, count: np.ndarray) -> np.ndarray:
        worker, count = np.broadcast_arrays(worker, count)
        with np.errstate(divide="ignore"):  # stay = 0 always gives one step
            longer = np.log1p(-uniform(worker, count)) / np.log(stay)
        return 1 + np.minimum(longer, most - 1).astype(np.int64)

    return drawn


# draws of a round's number of local steps: (name, mean, most, seed) -> Draw
STEP_DRAWS: dict[str, Callable[..., Draw]] = {"fixed": _fixed, "geometric": _geometric}


class PairState(NamedTuple):
    """State of a schedule of pairs between two segments."""

    update: int  # index of the next row
    time: float  # s, landing of the last row
    nodes: wavefront.Nodes
    pending: wavefront.Pending


class PairClock:
    """Clock that plans pairs: `init()` and `extend(state, updates)` as in `stragglers.rule.Rule`.

    name: name of the rule, for errors. asks: [P] bool, True for nodes that meet neighbours; other
    nodes meet only themselves. Other parameters: see the module. Bad values raise ValueError.
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
        self.steps = STEP_DRAWS[steps](name, mean, self.mini_batches, setting.seed)
        self._always = np.full((1, 1), int(mean)) if STEP_DRAWS[steps] is _fixed else None
        self._known = Ahead(as_process(setting.delay), setting.seed)
        self._everybody = np.arange(self.workers)
        self._communication = setting.communication
        self._seconds = checked_cost(name, setting.communication, self.workers)

    def init(self) -> PairState:
        """Begin the local steps of all nodes at 0 s."""
        workers, everybody = self.workers, self._everybody
        first, waits = np.zeros(workers, np.int64), np.full(workers, -1)
        nothing = np.full(workers, np.inf)
        asked = table_of(self.partner, first, 1, np.int64)[:, 0]
        number = self.steps(everybody, first)
        begin, end = np.zeros(workers), self._known.first_ends(number)
        cost = np.where(asked == everybody, 0.0, self.costs(first, 1)[:, 0])
        if (spells := getattr(self._communication, "spells", None)) is not None:
            cost *= spells.slowness(everybody, asked, end)
        wake, land = (end.copy(), nothing) if self.blocking else (nothing, end + cost)
        nodes = wavefront.Nodes(
            begin, end, number, first, first, wake=wake, waits=waits, asked=asked, land=land
        )
        return PairState(0, 0.0, nodes, wavefront.empty_window(self.width))

    def extend(self, state: PairState, updates: int) -> tuple[PairState, Schedule]:
        """Return the next `updates` rows."""
        nodes, pending = (type(part)(*(a.copy() for a in part)) for part in state[2:])
        sides = 2 if self.blocking else 1  # sides of a meeting that begin another round
        steps = sides * self.width * updates / self.workers * self.mini_batches
        ahead = functools.partial(self._ahead, columns_of(self.workers, self.mini_batches, steps))
        rows = wavefront.filled(nodes, pending, state.time, self.blocking, ahead, updates)
        until = state.update + updates
        version = np.arange(state.update, until, dtype=np.int32)[:, None]
        time = float(rows["time"][-1]) if updates else state.time
        return PairState(until, time, nodes, pending), Schedule(
            version=np.tile(version, (1, 2 * self.width)),
            offset=state.update,
            population=self.workers,
            **rows,
        )

    def costs(self, first: np.ndarray, columns: int) -> np.ndarray:
        """Return each node's seconds of communication from its `first` round on, [P, columns].

        The seconds are for meetings with another node. An axis has one entry if all are equal.
        """
        if not callable(self._communication):
            return np.ravel(self._seconds(0)).astype(np.float64)[:, None]
        rounds = first[:, None] + np.arange(columns)
        known, at = np.unique(rounds, return_inverse=True)
        given = [np.ravel(self._seconds(t)) for t in known.tolist()]
        table = np.stack([np.broadcast_to(row, self.workers) for row in given])
        return table[at.reshape(rounds.shape), self._everybody[:, None]].astype(np.float64)

    def _ahead(
        self, columns: int, nodes: wavefront.Nodes, until: np.ndarray
    ) -> wavefront.Lookahead:
        first = nodes.round.copy()
        seconds = self._known.of(nodes.first + nodes.steps, columns, nodes.end, until[0])
        partners = table_of(self.partner, first, columns, np.int32)
        number = self._always
        if number is None:
            number = table_of(self.steps, first, columns, np.int64)
        cost, links = self.costs(first, columns), links_of(self._communication, until[1])
        return wavefront.Lookahead(seconds, partners, number, cost, links, first)


def check_neighbours(name: str, setting: Setting) -> None:
    """Raise ValueError unless every worker has a neighbour and a duration per mini-batch."""
    graph = setting.graph
    if graph is None:
        raise Unfit(
            name, "nodes meet neighbours, but got no graph", "take a method with a graph, as swarm"
        )
    if setting.links is not None:
        raise Unfit(name, "nodes draw their own partners, but got links", "leave them out")
    check_nodes(name, graph, setting.workers)
    lonely = [i for i in graph if set(graph[i]) <= {i} or graph.has_edge(i, i)]
    if lonely:
        raise ValueError(
            f"{name}: needs neighbours other than itself for every node, but the nodes {lonely} "
            "have none or an edge to themselves; correct the graph"
        )
    check_draw(name, setting, ", or give spells of the delay")


class MeetingState(NamedTuple):
    """State of the protocol between two arrivals."""

    rounds: np.ndarray  # [P] int64, finished rounds of local steps of each node
    waits: np.ndarray  # [P] int64, the node that each waits for, or -1
    since: np.ndarray  # [P] s, begin of its wait


class PairProtocol:
    """Protocol of pairs on arrivals; an update lists the node that asked and its partner.

    A node that meets itself is alone in its update. The version of an arrival does not matter, as
    every node works on its own copy.
    """

    def __init__(self, clock: PairClock):
        self._clock = clock

    def init(self) -> MeetingState:
        """Begin the first local steps of all nodes."""
        workers = self._clock.workers
        zeros = np.zeros(workers, np.int64)
        return MeetingState(zeros, np.full(workers, -1), np.zeros(workers))

    def mini_batches(self, state: MeetingState, worker: int) -> int:
        """Return the local steps that the node does next."""
        return int(self._clock.steps(worker, state.rounds[worker]))

    def begun(self, state: MeetingState, worker: int, version: int, now: float) -> MeetingState:
        """Return the state in which the node makes its local steps again and waits for no node."""
        del version, now
        waits = state.waits.copy()
        waits[worker] = -1
        return state._replace(waits=waits)

    def on_arrival(self, state: MeetingState, worker: int, version: int, now: float) -> Decision:
        """Let the node meet its partner, or wait for the partner if both have to stop."""
        del version
        partner = int(self._clock.partner(worker, state.rounds[worker]))
        if not self._clock.blocking:
            met = (worker,) if partner == worker else (worker, partner)
            return Decision(self._done(state, (worker,)), True, met, (worker,))
        waiting = np.flatnonzero(state.waits == worker)
        if waiting.size:  # the node that has waited longest, ties by node
            first = int(waiting[np.argmin(state.since[waiting])])
            met = (first, worker)
        elif state.waits[partner] >= 0:
            met = (worker, partner)
        else:
            waits, since = state.waits.copy(), state.since.copy()
            waits[worker], since[worker] = partner, now
            return Decision(state._replace(waits=waits, since=since), counts=True)
        return Decision(self._done(state, met), True, met, met)

    def _done(self, state: MeetingState, nodes: tuple[int, ...]) -> MeetingState:
        """Return the state after these nodes have met and begin their next local steps."""
        rounds, waits = state.rounds.copy(), state.waits.copy()
        rounds[list(nodes)] += 1
        waits[list(nodes)] = -1
        return state._replace(rounds=rounds, waits=waits)


def _rule(clock: PairClock) -> Rule:
    turnout = Turnout(fewest=1, pairs=True, stopped=clock.blocking)
    by = PairProtocol(clock)
    arrivals = AsyncProtocol(
        by.init, by.on_arrival, by.mini_batches, by.begun, apart=not clock.blocking
    )
    return Rule(clock.workers, clock.init, clock.extend, arrivals=arrivals, turnout=turnout)


def random_pairs(
    setting: Setting,
    *,
    local_steps: float | None = None,
    steps: str = "fixed",
    blocking: bool = False,
    width: int | None = None,
) -> Rule:
    """Let a node meet a random neighbour whenever it has done its local steps (1910.12308).

    blocking: the partner also has to end its local steps. A partner that waits for another node
    meets at once. A partner that still computes does not draw afterwards: it meets the node that
    has waited longest for it. Both nodes go on after the longer one of their communications.
    Source: arXiv 1910.12308, Algorithms 1 and 2.
    """
    check_neighbours("random_pairs", setting)
    everybody = np.ones(setting.workers, bool)
    options = {"local_steps": local_steps, "steps": steps, "width": width}
    return _rule(PairClock("random_pairs", setting, everybody, blocking=blocking, **options))


def bipartite_pairs(
    setting: Setting,
    *,
    local_steps: float | None = None,
    steps: str = "fixed",
    width: int | None = None,
) -> Rule:
    """Let active nodes meet random passive neighbours; both sides compute (1710.06952).

    In each component of the graph the first worker is active, its neighbours are passive, and so
    on. A passive node applies its own work alone: it meets itself, without communication. Raises
    ValueError if the graph is not bipartite. Source: arXiv 1710.06952, Section 3 (implementation).
    """
    check_neighbours("bipartite_pairs", setting)
    graph = setting.graph
    if not nx.is_bipartite(graph):
        raise Unfit(
            "bipartite_pairs",
            "the graph has a cycle of odd length, so that two nodes of one side share an edge",
            "take a bipartite graph as a ring of even length, or random_pairs",
        )
    active = np.zeros(setting.workers, bool)
    for part in nx.connected_components(graph):
        depth = nx.single_source_shortest_path_length(graph, min(part))
        active[[i for i, hops in depth.items() if hops % 2 == 0]] = True
    options = {"local_steps": local_steps, "steps": steps, "width": width}
    return _rule(PairClock("bipartite_pairs", setting, active, **options))
