"""Time that nodes spend communicating when a link serves one transfer at a time.

A node has one link, which carries one message each way at a time, and a message of x bytes takes
alpha + beta x seconds. What a node spends on an update is everything from the end of its local
steps to the beginning of its next ones: waiting for links, for partners, and the transfer itself.

    pairs       the meetings of a schedule of pairs, delayed where a link is taken
    matchings   D-PSGD: the matchings of a graph, one after the other
    pushes      SGP: a message to one node and one from another
    ring        all-reduce in 2 (n - 1) steps of an n-th of the model

Only time is simulated, from the same durations of mini-batches for all; nothing is trained.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import networkx as nx
import numpy as np
from ml_collections import ConfigDict

from algorithms.gossip import graph_matchings
from comms import cost, lattice, topology
from experiments import entries, parts, waiting
from stragglers import wavefront
from stragglers.rule import Setting, whole
from stragglers.rules import RULES
from stragglers.schedule import Schedule

QUANTILE = 0.99


class Point(NamedTuple):
    """Communication of one method on some number of nodes, over all nodes and updates."""

    method: str
    workers: int
    mean: float  # s of a node's update
    quantile: float  # s, which 99 % of them do not exceed
    of_compute: float  # seconds communicating per second computing
    bytes: float  # that a node sends for an update of its own


# --- links ---


def pair_seconds(schedule: Schedule, workers: int, transfer: float) -> np.ndarray:
    """Seconds [I] between the end of the local steps and the meeting, for every one asked for.

    schedule: of pairs that do not block, made without communication; its partners, local steps and
    their durations are kept, its times are not: a node goes on when its meeting is over, and
    whoever is asked never stops computing. Of meetings that wait, the one that was asked for first
    begins as soon as both links are free. transfer: seconds of the two messages, sent at the same
    time. Nodes that meet themselves are left out. A schedule that blocks raises ValueError.
    """
    met = wavefront.interactions(schedule)
    asked, other = met.position.T
    if schedule.batches[met.row, other][asked != other].any():
        raise ValueError(
            "pair_seconds: partners of this schedule stop for meetings; make it with blocking=false"
        )
    busy = schedule.busy[met.row, asked]
    partners: list[list[int]] = [[] for _ in range(workers)]
    seconds: list[list[float]] = [[] for _ in range(workers)]
    for (i, j), duration in zip(met.pairs.tolist(), busy.tolist(), strict=True):
        partners[i].append(j)
        seconds[i].append(duration)

    taken: list[float] = []
    free = [True] * workers
    waiting: list[list[tuple[float, int, int]]] = [[] for _ in range(workers)]  # asked, who, whom
    at = [0] * workers
    events = [(seconds[i][0], 0, i, i) for i in range(workers) if seconds[i]]  # time, kind, pair
    heapq.heapify(events)

    def compute(i, now):
        at[i] += 1
        if at[i] < len(seconds[i]):
            heapq.heappush(events, (now + seconds[i][at[i]], 0, i, i))

    def begin(request, now):
        asked_at, i, j = request
        free[i] = free[j] = False
        taken.append(now + transfer - asked_at)
        heapq.heappush(events, (now + transfer, 1, i, j))

    while events:
        now, over, i, j = heapq.heappop(events)
        if not over:
            j = partners[i][at[i]]
            if i == j:
                compute(i, now)
            elif free[i] and free[j]:
                begin((now, i, j), now)
            else:
                waiting[i].append((now, i, j))
                waiting[j].append((now, i, j))
            continue
        free[i] = free[j] = True
        for request in sorted({*waiting[i], *waiting[j]}):
            if free[request[1]] and free[request[2]]:
                waiting[request[1]].remove(request)
                waiting[request[2]].remove(request)
                begin(request, now)
        compute(i, now)
    return np.array(taken)


def matching_rounds(busy: np.ndarray, partners: np.ndarray, transfer: float) -> np.ndarray:
    """[T, n] seconds of communication in rounds of D-PSGD, or of gossip over any graph.

    busy: [T, n] s of computing; partners: [M, n], which meet one after the other. A pair waits for
    its slower node only.
    """
    meets = partners != np.arange(partners.shape[1])

    def exchange(ready):
        for partner, met in zip(partners, meets, strict=True):
            ready = np.where(met, np.maximum(ready, ready[partner]) + transfer, ready)
        return ready

    return _in_rounds(busy, exchange)


def push_rounds(busy: np.ndarray, transfer: float) -> np.ndarray:
    """[T, n] seconds of communication in rounds of SGP on the one-peer exponential graph.

    A node goes on when its message is away and the one that it waits for is there; a message waits
    until its receiver's link has taken the last one in. Source: arXiv 1811.10792, Section 3.
    """
    workers = busy.shape[1]
    hops = [1 << k for k in range(max(1, (workers - 1).bit_length()))]
    arrived = np.zeros(workers)
    turn = 0

    def exchange(ready):
        nonlocal arrived, turn
        hop = hops[turn % len(hops)]
        turn += 1
        arrived = np.maximum(np.roll(ready, hop), arrived) + transfer
        return np.maximum(arrived, np.roll(arrived, -hop))

    return _in_rounds(busy, exchange)


def ring_rounds(busy: np.ndarray, step: float) -> np.ndarray:
    """[T, n] seconds of communication in rounds of a ring all-reduce; step: s of one message.

    Every step waits for the predecessor's last one: 2 (n - 1) of them.
    """

    def exchange(ready):
        for _ in range(2 * (busy.shape[1] - 1)):
            ready = np.maximum(ready, np.roll(ready, 1)) + step
        return ready

    return _in_rounds(busy, exchange)


def _in_rounds(busy, exchange) -> np.ndarray:
    """exchange: (when each node has computed [n]) -> when it goes on."""
    begin = np.zeros(busy.shape[1])
    spent = np.empty_like(busy)
    for t, seconds in enumerate(busy):
        ready = begin + seconds
        begin = exchange(ready)
        spent[t] = begin - ready
    return spent


# --- methods ---


def _by_pairs(rule: str, graph_of):
    def simulate(config, workers, steps, payload):
        law = waiting.build_delay(config.delay)
        width = max(1, workers // 8)
        setting = Setting(law, workers, steps, config.seed, graph=graph_of(workers))
        schedule = whole(RULES[rule](setting, width=width), config.rounds * workers // width)
        met = wavefront.interactions(schedule)
        transfer = cost.AlphaBeta(config.alpha, config.beta).seconds(payload)
        spent = pair_seconds(schedule, workers, transfer)
        share = len(spent) / len(met.time)  # nodes that only answer deliver without a meeting
        return spent, schedule.busy.sum(), 2 * payload * share

    return simulate


def _by_rounds(seconds_of, sent):
    def simulate(config, workers, steps, payload):
        law = waiting.build_delay(config.delay)
        waits = RULES["barrier"](Setting(law, workers, steps, config.seed))
        busy = whole(waits, config.rounds).busy
        spent = seconds_of(busy, payload, cost.AlphaBeta(config.alpha, config.beta))
        return spent.ravel(), busy.sum(), sent(workers, payload)

    return simulate


def _gossip(make):
    def seconds_of(busy, payload, link):
        partners = graph_matchings(make(busy.shape[1]))[1]
        return matching_rounds(busy, partners, link.seconds(payload))

    def sent(workers, payload):
        graph: nx.Graph = make(workers)
        return payload * 2 * graph.size() / workers

    return _by_rounds(seconds_of, sent)


# (config, workers, local steps, bytes of a model) -> (s of communication, s of computing, bytes)
METHODS = {
    "swarm": _by_pairs("random_pairs", topology.complete),
    "ad_psgd": _by_pairs("bipartite_pairs", topology.hypercube),
    "sgp": _by_rounds(
        lambda busy, payload, link: push_rounds(busy, link.seconds(payload)),
        lambda workers, payload: payload,
    ),
    "dpsgd_ring": _gossip(topology.ring),
    "dpsgd_hypercube": _gossip(topology.hypercube),
    "dpsgd_complete": _gossip(topology.complete),
    "all_reduce": _by_rounds(
        lambda busy, payload, link: ring_rounds(busy, link.seconds(payload / busy.shape[1])),
        lambda workers, payload: cost.ring_all_reduce_bytes(payload, workers),
    ),
}


def simulate(config: ConfigDict) -> list[Point]:
    """Every method of config.methods on every number of config.workers.

    config: `methods`, pairs (label, `method(steps=..., bits=...)`), where steps are mini-batches
    between two exchanges and bits are sent per coordinate; `size` of the model in coordinates;
    `alpha` (s) and `beta` (s per byte); `delay` of a mini-batch; `rounds` of every node; `seed`.
    Raises ValueError for what cannot be simulated.
    """
    entries.check(config, [("a positive whole number", entries.is_count, ("rounds", "size"))])
    methods = {label: _checked(parts.spec(text), config.size) for label, text in config.methods}
    points = []
    for label, (method, steps, payload) in methods.items():
        for workers in config.workers:
            spent, computing, sent = method(config, workers, steps, payload)
            points.append(
                Point(
                    label,
                    int(workers),
                    float(spent.mean()),
                    float(np.quantile(spent, QUANTILE)),
                    float(spent.sum() / computing),
                    float(sent),
                )
            )
    return points


def _checked(spec: dict, size: int) -> tuple[Callable, int, int]:
    """(method, local steps, bytes of a model: float32, or what the lattice codec sends)."""
    if spec["name"] not in METHODS:
        raise ValueError(
            f"methods: unknown name {spec['name']!r}; known names: {', '.join(METHODS)}"
        )
    given = {"steps": 1, "bits": 32} | spec
    steps, bits = given["steps"], given["bits"]
    if len(given) > 3 or not (entries.is_number(steps, int) and steps > 0):
        raise ValueError(
            f"methods: {spec['name']!r} takes steps, a positive whole number, and bits, got "
            f"{spec}; correct it"
        )
    payload = lattice.payload_bytes(size, bits) if bits != 32 else 4 * size
    return METHODS[spec["name"]], steps, payload
