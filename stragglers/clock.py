"""Waiting rules: from a delay to a Schedule, in virtual seconds, without any training.

The rules here work in rounds (Non-blocking SGD, arXiv 2211.00889; Anytime Minibatch,
2006.05752; DropCompute, 2306.10598).  In a round every worker takes up to M mini-batches, a
trigger says when to stop, and an update lands at all workers, or at each worker once its
neighbours are ready (D-PSGD, 1705.09056).  A gradient is always taken at the newest version, so
nothing is stale.  Event-driven rules are further factories of `Rule`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import networkx as nx
import numpy as np

from stragglers.delays import Law
from stragglers.processes import Process, as_process
from stragglers.schedule import Schedule

# begin [P], ends [P, M] of the mini-batches, all in seconds -> when to stop, scalar or [P]
Trigger = Callable[[np.ndarray, np.ndarray], float | np.ndarray]
Cost = float | Callable[[int], float | np.ndarray]  # s, or round -> s, scalar or [P]


class ClockState(NamedTuple):
    """Where a schedule stands between two segments."""

    update: int  # of the next row
    free: np.ndarray  # [P] s, when each worker can start its next round
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, the next mini-batch counter


class Rule(NamedTuple):
    """A waiting rule: `extend(state, updates, **knobs) -> (state, Schedule)` from `init()` on.

    Extending twice equals extending once.
    """

    workers: int
    init: Callable[[], ClockState]
    extend: Callable[..., tuple[ClockState, Schedule]]
    asynchronous: bool = False  # contributions may be taken at older versions


def until_full() -> Trigger:
    """Never stop anybody: blocking."""
    return lambda begin, ends: np.inf


def until_first_finisher() -> Trigger:
    """Stop all when somebody has finished all M mini-batches (2211.00889)."""
    return lambda begin, ends: ends[:, -1].min()


def until_deadline(seconds: float) -> Trigger:
    """Stop each worker `seconds` after it began (2006.05752, 2306.10598)."""
    if not 0 < seconds < np.inf:
        raise ValueError(f"deadline: needs seconds > 0, got {seconds}; set a positive deadline")
    return lambda begin, ends: begin + seconds


def until_quorum(k: int) -> Trigger:
    """Stop all when k mini-batches have been finished, by whomever."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> float:
        if not 1 <= k <= ends.size:
            raise ValueError(
                f"quorum: needs 1 <= k <= {ends.size} (workers x mini-batches), got k={k}; "
                "choose k in this range"
            )
        return np.partition(ends, k - 1, axis=None)[k - 1]

    return signal


def rounds(
    delay: Law | Process,
    workers: int,
    mini_batches: int,
    seed: int,
    *,
    trigger: Trigger,
    graph: nx.Graph | None = None,
    leftovers: str = "carry",
    in_flight: str = "finish",
    communication: Cost = 0.0,
    draw: str = "mini_batch",
) -> Rule:
    """Rounds of up to M mini-batches per worker, stopped by a global trigger.

    graph: land at each worker once it and its neighbours are ready (max-plus recursion), instead
      of at everybody once everybody is.
    leftovers: "carry" unfinished mini-batches on into the next round, or "drop" them.
    in_flight: at the signal, "finish" the mini-batch that has begun, or "cut" it: it is redone
      in the next round, in another time.
    communication: seconds per round, or a function of the round; then scalar or [workers].
    draw: one duration per "mini_batch", or per "round" and valid for each of its mini-batches.
    `extend` takes the knob `trigger`, for its segment alone.  Bad values raise ValueError.
    Source: arXiv 2211.00889, the trigger and its in-flight and leftover policies.
    """
    for key, value in (("workers", workers), ("mini_batches", mini_batches)):
        if value < 1:
            raise ValueError(f"rounds: needs {key} >= 1, got {key}={value}; set at least 1")
    process = as_process(delay)
    stop = _choose("in_flight", in_flight, {"finish": _stop_after_current, "cut": _stop_at_once})
    carry = _choose("leftovers", leftovers, {"carry": True, "drop": False})
    draws = _choose("draw", draw, {"mini_batch": _per_mini_batch, "round": _per_round})
    ends_of = draws(process.seeded(seed), workers, mini_batches)
    ready_everywhere = np.max if graph is None else _neighbourhood_max(graph, workers)
    cost = _checked_cost(communication)
    quickest = np.tile(process.shortest * np.arange(1, mini_batches + 1), (workers, 1))

    def check(trigger: Trigger) -> None:
        signal = np.max(trigger(np.zeros(workers), quickest))
        if in_flight == "cut" and signal < process.shortest:
            raise ValueError(
                f"rounds: the signal after {signal:g} s cuts every mini-batch, the quickest "
                f"takes {process.shortest:g} s; set a later deadline or in_flight='finish'"
            )

    def init() -> ClockState:
        zeros = np.zeros(workers, np.int64)
        return ClockState(0, np.zeros(workers), zeros, zeros)

    def extend(
        state: ClockState, updates: int, *, trigger: Trigger = trigger
    ) -> tuple[ClockState, Schedule]:
        check(trigger)
        shape = (updates, workers)
        start, finish, busy, spent = (np.empty(shape) for _ in range(4))
        batches, first = np.empty(shape, np.int32), np.empty(shape, np.int64)
        begins = np.empty((workers, mini_batches))
        free, attempts, consumed = state.free, state.attempts, state.consumed
        for row in range(updates):
            t = state.update + row
            ends = ends_of(t, free, attempts)
            begins[:, 0], begins[:, 1:] = free, ends[:, :-1]
            signal = np.reshape(trigger(free, ends), (-1, 1))
            started = (begins < signal).sum(axis=1)
            done, ready = stop(free, ends, signal, started)
            seconds = cost(t)
            start[row], first[row], batches[row] = free, consumed, done
            busy[row], spent[row] = ready - free, seconds
            finish[row] = ready_everywhere(ready) + seconds
            free = finish[row]
            attempts = attempts + started
            consumed = consumed + (done if carry else mini_batches)
        after = ClockState(state.update + updates, free.copy(), attempts, consumed)
        version = np.arange(state.update, after.update, dtype=np.int32)[:, None]
        return after, Schedule(
            time=finish.max(axis=1),
            workers=np.tile(np.arange(workers, dtype=np.int32), (updates, 1)),
            start=start,
            finish=finish,
            batches=batches,
            first=first,
            version=np.repeat(version, workers, axis=1),
            busy=busy,
            communication=spent,
            offset=state.update,
        )

    check(trigger)
    return Rule(workers, init, extend)


def _until(trigger: Callable[..., Trigger], check_graph: Callable = lambda graph: None) -> Callable:
    """A factory of rules for `rounds`; the parameters of `trigger` become keywords of it."""

    def rule(
        delay, workers, mini_batches, seed, *, graph=None, leftovers="carry", in_flight="finish",
        communication=0.0, draw="mini_batch", **parameters,
    ) -> Rule:  # fmt: skip
        check_graph(graph)
        return rounds(
            delay, workers, mini_batches, seed,
            trigger=trigger(**parameters), graph=graph, leftovers=leftovers, in_flight=in_flight,
            communication=communication, draw=draw,
        )  # fmt: skip

    # A config's misspelt or missing parameter shows in the signature, before any call.
    own = inspect.signature(rule)
    kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    extra = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(trigger).parameters.values()]
    rule.__signature__ = own.replace(parameters=[*kept, *extra])
    return rule


def _refuse_graph(graph) -> None:
    if graph is not None:
        raise ValueError(
            f"barrier: waits for all workers and takes no graph, got {graph}; use neighbour_barrier"
        )


def _need_graph(graph) -> None:
    if graph is None:
        raise ValueError("neighbour_barrier: got graph=None; pass the graph, or use barrier")


_barrier = _until(until_full, _refuse_graph)
_neighbour_barrier = _until(until_full, _need_graph)
_first_finisher = _until(until_first_finisher)
_deadline = _until(until_deadline)
_quorum = _until(until_quorum)


# (delay, workers, mini_batches, seed, *, graph, communication, draw, ...) -> Rule
RULES: dict[str, Callable[..., Rule]] = {
    "barrier": _barrier,
    "neighbour_barrier": _neighbour_barrier,
    "first_finisher": _first_finisher,
    "deadline": _deadline,
    "quorum": _quorum,
}


def barrier(law, workers, mini_batches, updates, seed, **options) -> Schedule:
    """Everybody waits for everybody's M mini-batches; options as in `rounds`."""
    return _whole(_barrier(law, workers, mini_batches, seed, **options), updates)


def neighbour_barrier(law, graph, mini_batches, updates, seed, **options) -> Schedule:
    """Everybody waits for its neighbours' M mini-batches (1705.09056); options as in `rounds`."""
    options |= {"graph": graph}
    return _whole(_neighbour_barrier(law, len(graph), mini_batches, seed, **options), updates)


def first_finisher(law, workers, mini_batches, updates, seed, **options) -> Schedule:
    """The first to finish M mini-batches stops the others (2211.00889); options as in `rounds`."""
    return _whole(_first_finisher(law, workers, mini_batches, seed, **options), updates)


def deadline(law, workers, mini_batches, seconds, updates, seed, **options) -> Schedule:
    """Everybody computes for `seconds`, at most M mini-batches; options as in `rounds`."""
    options |= {"seconds": seconds}
    return _whole(_deadline(law, workers, mini_batches, seed, **options), updates)


def quorum(law, workers, mini_batches, k, updates, seed, **options) -> Schedule:
    """The k-th finished mini-batch stops everybody; options as in `rounds`."""
    return _whole(_quorum(law, workers, mini_batches, seed, k=k, **options), updates)


def _whole(rule: Rule, updates: int) -> Schedule:
    return rule.extend(rule.init(), updates)[1]


def _choose(key: str, value: str, choices: dict) -> object:
    if value not in choices:
        raise ValueError(f"rounds: unknown {key}={value!r}; choose one of {', '.join(choices)}")
    return choices[value]


def _checked_cost(communication: Cost) -> Callable[[int], float | np.ndarray]:
    def cost(t: int) -> float | np.ndarray:
        seconds = communication(t) if callable(communication) else communication
        if not np.min(seconds) >= 0:
            raise ValueError(f"rounds: needs communication >= 0, got {seconds}; set it in seconds")
        return seconds

    cost(0)  # refuse a bad constant before the first segment
    return cost


def _per_mini_batch(process: Process, workers: int, mini_batches: int) -> Callable:
    """Ends [P, M] of a round's mini-batches, each with a duration of its own."""
    worker, offsets = np.arange(workers), np.arange(mini_batches)

    def ends_at_once(t: int, begin: np.ndarray, attempts: np.ndarray) -> np.ndarray:
        begin = begin[:, None]
        return begin + process.draw(worker[:, None], begin, attempts[:, None] + offsets).cumsum(1)

    def ends_in_turn(t: int, begin: np.ndarray, attempts: np.ndarray) -> np.ndarray:
        ends, now = np.empty((workers, mini_batches)), begin
        for step in offsets:
            now = ends[:, step] = now + process.draw(worker, now, attempts + step)
        return ends

    return ends_in_turn if process.uses_time else ends_at_once


def _per_round(process: Process, workers: int, mini_batches: int) -> Callable:
    """Ends [P, M] of a round's mini-batches, all with the duration drawn at its start."""
    worker, steps = np.arange(workers), np.arange(1, mini_batches + 1)
    return lambda t, begin, attempts: (
        begin[:, None] + process.duration(worker, begin, t)[:, None] * steps
    )


def _stop_after_current(begin, ends, signal, started) -> tuple[np.ndarray, np.ndarray]:
    """Finished mini-batches [P] and when each worker is ready [P], if begun ones count."""
    last = ends[np.arange(len(ends)), np.maximum(started - 1, 0)]
    return started, np.where(started > 0, last, begin)


def _stop_at_once(begin, ends, signal, started) -> tuple[np.ndarray, np.ndarray]:
    """Finished mini-batches [P] and when each worker is ready [P], if the signal cuts them."""
    done = (ends <= signal).sum(axis=1)
    return done, np.minimum(ends[:, -1], np.maximum(signal[:, 0], begin))


def _neighbourhood_max(graph: nx.Graph, workers: int) -> Callable[[np.ndarray], np.ndarray]:
    """Maximum over each worker's closed neighbourhood, [P] -> [P]."""
    if set(graph) != set(range(workers)):
        raise ValueError(
            f"rounds: the graph has the nodes {sorted(graph, key=str)}, the rule {workers} "
            f"workers; label the nodes 0..{workers - 1}"
        )
    width = 1 + max(degree for _, degree in graph.degree)
    near = np.tile(np.arange(workers)[:, None], (1, width))  # padded with the worker itself
    for i in range(workers):
        near[i, : graph.degree[i]] = list(graph[i])
    return lambda ready: ready[near].max(axis=1)
