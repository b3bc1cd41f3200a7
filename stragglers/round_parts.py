"""The parts of a round: when mini-batches end, when it stops, what counts, who waits for whom."""

from collections.abc import Callable

import networkx as nx
import numpy as np

from stragglers.processes import Process
from stragglers.rule import Links

# begin [P], ends [P, M] of the mini-batches, all in seconds -> when to stop, scalar or [P]
Signal = Callable[[np.ndarray, np.ndarray], float | np.ndarray]
# ready [P] s, active matchings [M] of the round -> when it lands, scalar or [P], in seconds
Landing = Callable[[np.ndarray, np.ndarray], float | np.ndarray]


def never(begin: np.ndarray, ends: np.ndarray) -> float:
    """The signal of blocking rounds: nobody is ever stopped."""
    return np.inf


def until_first_finisher() -> Signal:
    """Stop all when somebody has finished all M mini-batches (2211.00889)."""
    return lambda begin, ends: ends[:, -1].min()


def until_deadline(seconds: float) -> Signal:
    """Stop each worker `seconds` after it began (2006.05752, 2306.10598)."""
    if not 0 < seconds < np.inf:
        raise ValueError(f"deadline: needs seconds > 0, got {seconds}; set a positive deadline")
    return lambda begin, ends: begin + seconds


def until_quorum(k: int) -> Signal:
    """Stop all when k mini-batches have been finished, by whomever."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> float:
        if not 1 <= k <= ends.size:
            raise ValueError(
                f"quorum: needs 1 <= k <= {ends.size} (workers x mini-batches), got k={k}; "
                "choose k in this range"
            )
        return np.partition(ends, k - 1, axis=None)[k - 1]

    return signal


def until_grace(k: int, gamma: float) -> Signal:
    """Stop all gamma times as long after k workers have finished all M as that has taken."""

    def signal(begin: np.ndarray, ends: np.ndarray) -> np.ndarray:
        reached = np.partition(ends[:, -1], k - 1)[k - 1]
        return reached + gamma * np.maximum(reached - begin, 0.0)

    return signal


def seconds_each(busy: np.ndarray, batches: np.ndarray, whole: int, cuts: bool) -> np.ndarray:
    """What a mini-batch of each worker has taken in a round, [P] s; nan where it took none.

    busy: [P] s of computing; batches: [P] finished; whole: of a full round. Of a worker that was
    cut it is the least that its mini-batches, with the one in flight, would have taken on average.
    """
    begun = batches + (cuts & (batches < whole))
    return np.where(busy > 0, busy / np.maximum(begun, 1), np.nan)


def ends_by_mini_batch(process: Process, workers: int, mini_batches: int) -> Callable:
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


def ends_by_round(process: Process, workers: int, mini_batches: int) -> Callable:
    """Ends [P, M] of a round's mini-batches, all with the duration drawn at its start."""
    worker, steps = np.arange(workers), np.arange(1, mini_batches + 1)
    return lambda t, begin, attempts: (
        begin[:, None] + process.duration(worker, begin, t)[:, None] * steps
    )


def stop_after_current(begin, ends, signal, started) -> tuple[np.ndarray, np.ndarray]:
    """Finished mini-batches [P] and when each worker is ready [P], if begun ones count."""
    last = ends[np.arange(len(ends)), np.maximum(started - 1, 0)]
    return started, np.where(started > 0, last, begin)


def stop_at_once(begin, ends, signal, started) -> tuple[np.ndarray, np.ndarray]:
    """Finished mini-batches [P] and when each worker is ready [P], if the signal cuts them."""
    done = (ends <= signal).sum(axis=1)
    return done, np.minimum(ends[:, -1], np.maximum(signal[:, 0], begin))


# in_flight -> (whether the signal cuts, what then counts)
STOPS = {"finish": (False, stop_after_current), "cut": (True, stop_at_once)}
LEFTOVERS = {"carry": True, "drop": False}  # whether unfinished mini-batches go on


def land_everywhere(ready: np.ndarray, active: np.ndarray) -> float:
    """Land at all workers once all are ready."""
    return ready.max()


def stay(ready: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Land at each worker once it is ready itself."""
    return ready


def land_at_neighbours(graph: nx.Graph | None, links: Links | None, workers: int) -> Landing:
    """Land at each worker once it and its neighbours of the round are ready, in max-plus form.

    Neighbours are those in `graph` (D-PSGD, 1705.09056), or those that `links` makes active
    (MATCHA, 1905.09435), or everybody where neither is given. Nodes other than the workers, and
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
    """Active matchings of rounds first .. first + count - 1, bool [count, M]; M = 0 if no links."""
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
    """Each worker and its neighbours, [P, 1 + max degree], padded with the worker itself."""
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
