"""Parts of a round: ends of mini-batches, the signal, finished mini-batches, waits for others."""

from collections.abc import Callable

import networkx as nx
import numpy as np

from stragglers.processes import Process
from stragglers.rule import Links

# begin [P], ends [P, M] of the mini-batches, all in seconds -> signal, scalar or [P]
Signal = Callable[[np.ndarray, np.ndarray], float | np.ndarray]
# ready [P] s, active matchings [M] of the round -> landing, scalar or [P], in seconds
Landing = Callable[[np.ndarray, np.ndarray], float | np.ndarray]


def never(begin: np.ndarray, ends: np.ndarray) -> float:
    """Return the signal of blocking rounds, inf: no worker is ever stopped."""
    return np.inf


def until_first_finisher() -> Signal:
    """Stop all when one worker has finished all M mini-batches (2211.00889)."""
    return lambda begin, ends: ends[:, -1].min()


def until_deadline(seconds: float) -> Signal:
    """Stop each worker `seconds` after it began (2006.05752, 2306.10598)."""
    if not 0 < seconds < np.inf:
        raise ValueError(f"deadline: needs seconds > 0, got {seconds}; set a positive deadline")
    return lambda begin, ends: begin + seconds


def until_quorum(k: int) -> Signal:
    """Stop all when k mini-batches have been finished, by any workers."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> float:
        if not 1 <= k <= ends.size:
            raise ValueError(
                f"quorum: needs 1 <= k <= {ends.size} (workers x mini-batches), got k={k}; "
                "choose k in this range"
            )
        return np.partition(ends, k - 1, axis=None)[k - 1]

    return signal


def until_grace(k: int, gamma: float) -> Signal:
    """Stop all gamma q seconds after k workers have finished all M mini-batches, in q seconds."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> np.ndarray:
        reached = np.partition(ends[:, -1], k - 1)[k - 1]
        return reached + gamma * np.maximum(reached - begin, 0.0)

    return signal


def seconds_each(busy: np.ndarray, batches: np.ndarray, whole: int, cuts: bool) -> np.ndarray:
    """Return the seconds of a mini-batch of each worker in a round, [P]; nan without any.

    busy: [P] s of computing; batches: [P] finished; whole: of a full round. For a cut worker this
    is a lower bound: the average of its mini-batches, with the one in flight.
    """
    begun = batches + (cuts & (batches < whole))
    return np.where(busy > 0, busy / np.maximum(begun, 1), np.nan)


def ends_by_mini_batch(process: Process, workers: int, mini_batches: int) -> Callable:
    """Return a function that ends a round's mini-batches, [P, M], each after its own duration."""
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


def ends_by_round(process: Process, workers: int, mini_batches: int) -> Callable:
    """Return a function that ends a round's mini-batches, [P, M], after one duration per round."""
    worker, steps = np.arange(workers), np.arange(1, mini_batches + 1)
    return lambda t, begin, attempts: (
        begin[:, None] + process.duration(worker, begin, t)[:, None] * steps
    )


def stop_after_current(begin, ends, signal, started) -> tuple[np.ndarray, np.ndarray]:
    """Return finished mini-batches [P] and ready times [P], if begun mini-batches count."""
    last = ends[np.arange(len(ends)), np.maximum(started - 1, 0)]
    return started, np.where(started > 0, last, begin)


def stop_at_once(begin, ends, signal, started) -> tuple[np.ndarray, np.ndarray]:
    """Return finished mini-batches [P] and ready times [P], if the signal cuts mini-batches."""
    done = (ends <= signal).sum(axis=1)
    return done, np.minimum(ends[:, -1], np.maximum(signal[:, 0], begin))


# in_flight -> (True if the signal cuts, finished mini-batches and ready times then)
STOPS = {"finish": (False, stop_after_current), "cut": (True, stop_at_once)}
LEFTOVERS = {"carry": True, "drop": False}  # True if unfinished mini-batches go on


def land_everywhere(ready: np.ndarray, active: np.ndarray) -> float:
    """Land at all workers once all are ready."""
    return ready.max()


def stay(ready: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Land at each worker once it is ready itself."""
    return ready


def land_at_neighbours(graph: nx.Graph | None, links: Links | None, workers: int) -> Landing:
    """Land at each worker once it and its neighbours of the round are ready, in max-plus form.

    Neighbours are those in `graph` (D-PSGD, 1705.09056), or those that `links` makes active
    (MATCHA, 1905.09435), or all workers where neither is given. Nodes other than the workers, and
    links without an edge in the graph, raise ValueError.
    """
    near = None if graph is None else _closed_neighbourhoods(graph, workers)
    if links is not None:
        partners = _checked_partners(graph, links, workers)
        return lambda ready, active: np.maximum(
            ready, ready[partners[active]].max(axis=0, initial=-np.inf)
        )
    return land_everywhere if near is None else lambda ready, active: ready[near].max(axis=1)


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
    if set(graph) != set(range(workers)):
        raise ValueError(
            f"rounds: the graph has the nodes {sorted(graph, key=str)}, the rule {workers} "
            f"workers; label the nodes 0..{workers - 1}"
        )
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
