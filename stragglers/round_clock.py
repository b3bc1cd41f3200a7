"""Clock of rounds in virtual time: every worker takes up to M mini-batches until a signal.

An update lands at all workers, or at each worker once its neighbours are ready (D-PSGD, 1705.09056;
MATCHA, 1905.09435). A gradient is always taken at the newest version, so the staleness is 0.

A worker waits for a transfer beside its work only if the work is shorter. Let worker i begin at t_i
and work for X_i seconds, let D be the seconds of the exchange, and j run over i and its neighbours:

    t_i <- max_j (t_j + X_j) + D           if the exchange leaves once a worker is ready
    t_i <- max(t_i + X_i, max_j t_j + D)   if the exchange leaves as a round begins
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from stragglers.processes import as_process
from stragglers.rule import (
    IN_FLIGHT,
    Links,
    Setting,
    check_nodes,
    hides,
    lasting,
    one_number,
    per_round,
    timed_transfers,
)
from stragglers.schedule import Schedule, concatenate

# begin [P], ends [P, M] of the mini-batches, all in seconds -> signal, scalar or [P]
Signal = Callable[[np.ndarray, np.ndarray], float | np.ndarray]
# ready [P] s, active matchings [M] of the round -> landing, scalar or [P], in seconds
Landing = Callable[[np.ndarray, np.ndarray], float | np.ndarray]


def never(begin: np.ndarray, ends: np.ndarray) -> float:
    """Return the signal of blocking rounds, inf: no worker is ever stopped."""
    return np.inf


def at_first_finisher(begin: np.ndarray, ends: np.ndarray) -> float:
    """Return the signal that stops all when one worker has M mini-batches (2211.00889)."""
    return ends[:, -1].min()


def until_deadline(seconds: float) -> Signal:
    """Return the signal that stops a worker `seconds` after its start (2006.05752, 2306.10598)."""
    if not 0 < seconds < np.inf:
        raise ValueError(f"deadline: needs seconds > 0, got {seconds}; set a positive deadline")
    return lambda begin, ends: begin + seconds


def until_quorum(k: int) -> Signal:
    """Return the signal that stops all at the k-th finished mini-batch of any workers."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> float:
        if not 1 <= k <= ends.size:
            raise ValueError(
                f"quorum: needs 1 <= k <= {ends.size} (workers x mini-batches), got k={k}; "
                "choose k in this range"
            )
        return np.partition(ends, k - 1, axis=None)[k - 1]

    return signal


def until_grace(k: int, gamma: float) -> Signal:
    """Return the signal gamma q s after k workers have M mini-batches, which took them q s."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> np.ndarray:
        reached = np.partition(ends[:, -1], k - 1)[k - 1]
        return reached + gamma * np.maximum(reached - begin, 0.0)

    return signal


def seconds_each(busy: np.ndarray, batches: np.ndarray, whole: int, cuts: bool) -> np.ndarray:
    """Return each worker's seconds per mini-batch in a round, [P]; nan for a worker without work.

    busy: [P] s of computing; batches: [P] finished; whole: mini-batches of a full round. For a cut
    worker the value is a lower bound, as it averages over the mini-batch in flight, too.
    """
    begun = batches + (cuts & (batches < whole))
    return np.where(busy > 0, busy / np.maximum(begun, 1), np.nan)


def landing_at_neighbours(graph: nx.Graph | None, links: Links | None, workers: int) -> Landing:
    """Return the landing at which each worker waits for itself and its neighbours (max-plus).

    Neighbours are those in `graph` (D-PSGD, 1705.09056), or the partners that `links` makes active
    (MATCHA, 1905.09435), or all workers without both. Raises ValueError if the nodes of the graph
    are not the workers, or if the graph lacks an edge of `links`.
    """
    near = None if graph is None else _closed_neighbourhoods(graph, workers)
    if links is not None:
        partners = _checked_partners(graph, links, workers)
        return lambda ready, active: np.maximum(
            ready, ready[partners[active]].max(axis=0, initial=-np.inf)
        )
    if near is None:
        return lambda ready, active: ready.max()
    return lambda ready, active: ready[near].max(axis=1)


def activations(links: Links | None, first: int, count: int) -> np.ndarray:
    """Return active matchings of rounds from `first` on, bool [count, M]; M = 0 without links."""
    if links is None:
        return np.empty((count, 0), bool)
    active = np.asarray(links.active(first, count))
    expected = (count, len(links.partners))
    if active.shape != expected or active.dtype != bool:
        raise ValueError(
            f"rounds: links.active gave {active.dtype} {active.shape}, expected bool {expected}; "
            "return a row per round and a column per matching"
        )
    return active


def _closed_neighbourhoods(graph: nx.Graph, workers: int) -> np.ndarray:
    """Return each worker and its neighbours, [P, 1 + max degree], padded with the worker itself."""
    check_nodes("rounds", graph, workers)
    width = 1 + max(degree for _, degree in graph.degree)
    near = np.tile(np.arange(workers)[:, None], (1, width))
    for i in range(workers):
        near[i, : graph.degree[i]] = list(graph[i])
    return near


def _checked_partners(graph: nx.Graph | None, links: Links, workers: int) -> np.ndarray:
    partners, everybody = np.asarray(links.partners), np.arange(workers)
    sizes = partners.ndim == 2 and partners.shape[1] == workers
    if not (sizes and np.isin(partners, everybody).all()):
        raise ValueError(
            f"rounds: links.partners has shape {partners.shape}, the rule {workers} workers; give "
            f"every matching a row of partners 0..{workers - 1}"
        )
    for j, partner in enumerate(partners):
        if not links.directed and (partner[partner] != everybody).any():
            raise ValueError(
                f"rounds: links.partners row {j} is no matching: {partner}; let partners name "
                "each other, and themselves where unmatched"
            )
        for pair in zip(everybody.tolist(), partner.tolist(), strict=True):
            if graph is not None and pair[0] != pair[1] and not graph.has_edge(*pair):
                raise ValueError(
                    f"rounds: links.partners row {j} pairs the workers {pair}, who share no edge "
                    "of the graph; pass the graph that the matchings come from"
                )
    return partners


class ClockState(NamedTuple):
    """State of a schedule between two segments."""

    update: int  # index of the next row
    free: np.ndarray  # [P] s, begin of each worker's next round
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, the next mini-batch counter
    under_way: tuple[tuple, ...] = ()  # (landing, duration) [s] for which each next round waits


class Learning(NamedTuple):
    """State of a schedule whose signals depend on earlier rounds."""

    clock: ClockState
    known: Any  # facts about earlier rounds

    update = property(lambda self: self.clock.update)


UNSENT = -np.inf, 0.0  # landing and duration of a transfer that was never sent
LEFTOVERS = {"carry": True, "drop": False}  # True if unfinished mini-batches go on
DRAWN_AT_ONCE = 1 << 20  # most durations of one call


def _known(leaves: float, start, ready, ends, done, stops) -> np.ndarray:
    """Return the times [P] s at which each worker's message can leave.

    leaves: share of the last mini-batch; 0 is the round's start. A worker knows its last mini-batch
    from the start if its round is whole, else from the signal on. start, ready: [P] s of the work;
    ends: [P, M] s of mini-batches; done: [P], their number; stops: [P, 1] or [1, 1] s, the signal.
    """
    if leaves in (0, 1):
        return ready if leaves else start
    workers, whole = ends.shape
    last = _begins(start, ends)[np.arange(workers), np.maximum(done - 1, 0)]
    sure = np.where(done == whole, last, np.minimum(stops[:, 0], ready))
    return np.maximum(last + leaves * (ready - last), sure)


def _begins(start: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the starts [P, M] s of consecutive mini-batches."""
    return np.concatenate([start[:, None], ends[:, :-1]], axis=1)


class RoundClock:
    """Clock that plans rounds: `init()` and `extend(state, updates)` as in `stragglers.rule.Rule`.

    signal: the end of a round. The other parameters are as for the rules in
    `stragglers.rules.rounds`. Bad values raise ValueError.
    Source: arXiv 2211.00889, the trigger and its in-flight and leftover policies.
    """

    def __init__(
        self, setting: Setting, signal: Signal, landing: str, leftovers: str, in_flight: str
    ):
        self.workers = setting.workers
        self.mini_batches = one_number("rounds", setting)
        self._signal = signal
        self.cuts = _choose("in_flight", in_flight, IN_FLIGHT)
        self.carries = _choose("leftovers", leftovers, LEFTOVERS)
        self._by_round = per_round("rounds", setting.draw)
        self.seeded = as_process(setting.delay).seeded(setting.seed)
        self._links = setting.links
        near = landing_at_neighbours(setting.graph, setting.links, self.workers)
        self.everywhere = _choose("landing", landing, {"neighbours": False, "all": True})
        self._land = (lambda ready, active: ready.max()) if self.everywhere else near
        self._transfers = timed_transfers("rounds", setting.communication, self.workers)
        self._check(signal)

    def init(self) -> ClockState:
        """Begin the first round of all workers at 0 s."""
        zeros = np.zeros(self.workers, np.int64)
        return ClockState(0, np.zeros(self.workers), zeros, zeros)

    def extend(
        self, state: ClockState, updates: int, *, signal: Signal | None = None
    ) -> tuple[ClockState, Schedule]:
        """Return the next state and `updates` rows; signal: of these; None: the clock's own."""
        if signal is not None:
            self._check(signal)
        signal = signal or self._signal
        shape = (updates, self.workers)
        start, finish, busy, spent = (np.empty(shape) for _ in range(4))
        batches, first = np.empty(shape, np.int32), np.empty(shape, np.int64)
        within = self._whole_rounds(state.attempts, state.consumed, updates, signal)
        active = activations(self._links, state.update, updates)
        free, attempts, consumed = state.free, state.attempts, state.consumed
        whole = np.full(self.workers, self.mini_batches)
        under_way = state.under_way
        for row in range(updates):
            t = state.update + row
            if within is None:
                ends = self._ends(t, free, attempts, consumed)
                stops = np.reshape(signal(free, ends), (-1, 1))
                started = done = (_begins(free, ends) < stops).sum(axis=1)
                if self.cuts:
                    done = (ends <= stops).sum(axis=1)
                    ready = np.minimum(ends[:, -1], np.maximum(stops[:, 0], free))
                else:
                    last = ends[np.arange(self.workers), np.maximum(started - 1, 0)]
                    ready = np.where(started > 0, last, free)
            else:
                ends = free[:, None] + within[row]
                stops, started, done, ready = np.full((1, 1), np.inf), whole, whole, ends[:, -1]
            start[row], first[row], batches[row] = free, consumed, done
            spent[row], finish[row], under_way = self._exchange(
                t, (free, ready, ends, done, stops), active[row], under_way
            )
            busy[row] = ready - free
            free = finish[row]
            attempts = attempts + started
            consumed = consumed + (done if self.carries else self.mini_batches)
        after = ClockState(state.update + updates, free.copy(), attempts, consumed, under_way)
        version = np.arange(state.update, after.update, dtype=np.int32)[:, None]
        return after, Schedule(
            time=finish.max(axis=1),
            workers=np.tile(np.arange(self.workers, dtype=np.int32), (updates, 1)),
            start=start,
            finish=finish,
            batches=batches,
            first=first,
            version=np.repeat(version, self.workers, axis=1),
            busy=busy,
            communication=spent,
            matchings=None if self._links is None else active,
            offset=state.update,
        )

    def learning(
        self,
        first: Any,
        signal_of: Callable[[Learning], Signal | None],
        learnt: Callable[[Any, Schedule], Any],
    ) -> tuple[Callable, Callable]:
        """Return the functions `init` and `extend` of a rule that sees the rounds before.

        first: facts known before the first round; signal_of: state -> signal of the next round;
        learnt: (facts, row of the next round) -> facts.
        """

        def extend(state: Learning, updates: int) -> tuple[Learning, Schedule]:
            rows = []
            for _ in range(updates):
                clock, row = self.extend(state.clock, 1, signal=signal_of(state))
                state = Learning(clock, learnt(state.known, row))
                rows.append(row)
            return state, concatenate(rows) if rows else self.extend(state.clock, 0)[1]

        return lambda: Learning(self.init(), first), extend

    def _ends(
        self, t: int, begin: np.ndarray, attempts: np.ndarray, consumed: np.ndarray
    ) -> np.ndarray:
        """Return the ends [P, M] s of the mini-batches of round t, begun at `begin` [P] s."""
        worker, steps = np.arange(self.workers), np.arange(self.mini_batches)
        lasts, plain = self.seeded.duration, self.seeded.cost is None
        if self._by_round and plain:
            return begin[:, None] + lasts(worker, begin, t)[:, None] * (steps + 1)
        count = np.full_like(attempts, t) if self._by_round else attempts
        ahead = 0 * steps if self._by_round else steps
        if not self.seeded.uses_time:
            counts, counters = count[:, None] + ahead, consumed[:, None] + steps
            each = lasts(worker[:, None], begin[:, None], counts, counters)
            return begin[:, None] + each.cumsum(1)
        ends, now = np.empty((self.workers, self.mini_batches)), begin
        for step in steps:
            now = ends[:, step] = now + lasts(worker, now, count + ahead[step], consumed + step)
        return ends

    def _whole_rounds(
        self, attempts: np.ndarray, consumed: np.ndarray, updates: int, signal: Signal
    ) -> np.ndarray | None:
        """Return [updates, P, M] s from a round's start to the ends of its mini-batches, or None.

        None unless one call may draw them: no worker is stopped, every mini-batch has a draw of its
        own, no duration depends on its start, all sums are finite, and DRAWN_AT_ONCE suffices.
        """
        shape = (updates, self.workers, self.mini_batches)
        fixed = signal is never and not (self._by_round or self.seeded.uses_time)
        if not fixed or np.prod(shape) > DRAWN_AT_ONCE:
            return None
        rounds, worker, step = np.ogrid[: shape[0], : shape[1], : shape[2]]
        counts = attempts[:, None] + (rounds * self.mini_batches + step)
        counters = counts + (consumed - attempts)[:, None]
        lasts = self.seeded.duration(worker, np.zeros((1, 1, 1)), counts, counters)
        within = lasts.cumsum(axis=2)
        return within if np.isfinite(within[..., -1]).all() else None

    def _exchange(self, t: int, work: tuple, active: np.ndarray, under_way: tuple):
        """Return round t's exposed seconds, its landing [s], and `under_way` for the next round.

        The first two are scalar or [P]. work: the other arguments of `_known`; active: [M] bool.
        """
        transfers, ready = self._transfers(t), work[1]
        arriving, *later = *under_way, *[UNSENT] * (under_way == ())
        landed, (at, seconds) = ready, UNSENT
        for transfer in transfers:
            known = _known(transfer.leaves, *work)
            begin = known[:-1].max() if transfer.others else self._land(known, active)
            begin = np.maximum(begin, at)
            lasts = lasting(transfer, begin)
            at, seconds = begin + lasts, seconds + lasts
            if transfer.late:
                later += [UNSENT] * (transfer.late - len(later))
                late = later[transfer.late - 1]
                later[transfer.late - 1] = tuple(map(np.maximum, late, (at, seconds)))
            else:
                arriving = tuple(map(np.maximum, arriving, (at, seconds)))
                landed = ready.max() if self.everywhere else ready
        arrived, seconds = arriving
        if under_way or any(hides(transfer) or transfer.others for transfer in transfers):
            seconds = np.clip(arrived - ready, 0.0, seconds)  # the rest hides behind the work
        return seconds, np.maximum(landed, arrived), tuple(later)

    def _check(self, signal: Signal) -> None:
        quickest = self.seeded.shortest * np.arange(1, self.mini_batches + 1)
        at = np.max(signal(np.zeros(self.workers), np.tile(quickest, (self.workers, 1))))
        if np.isnan(at):
            raise ValueError("rounds: the signal is after nan s; give seconds, or inf for no stop")
        if self.cuts and at < self.seeded.shortest:
            raise ValueError(
                f"rounds: the signal after {at:g} s cuts every mini-batch, the quickest takes "
                f"{self.seeded.shortest:g} s; set a later deadline or in_flight='finish'"
            )


def _choose(key: str, value: str, choices: dict):
    if value not in choices:
        raise ValueError(f"rounds: unknown {key}={value!r}; choose one of {', '.join(choices)}")
    return choices[value]
