"""Communication seconds of nodes whose link serves one transfer at a time.

A node has one link, which carries one message each way at a time. The communication of an update
lasts from the end of the local steps to the beginning of the next ones: it includes waits for links
and for partners, and the transfer itself.

    pairs       the meetings of a schedule of pairs, delayed while a link is busy
    matchings   D-PSGD: the matchings of a graph, one after the other
    pushes      SGP: a message to one node and a message from another node
    ring        all-reduce in 2 (n - 1) steps of an n-th of the model

Only time is simulated, from the same mini-batch durations for all; no model is trained.
"""

import heapq

import numpy as np

from stragglers import wavefront
from stragglers.schedule import Schedule


def pair_seconds(schedule: Schedule, workers: int, transfer: float) -> np.ndarray:
    """Return the seconds [I] from the end of local steps to the end of a meeting, by its start.

    schedule: of pairs that do not block, made without communication. The simulation keeps its
    partners, local steps and their durations, but not its times. A node goes on when its meeting is
    over, and its partner never stops computing. Among waiting meetings, the earliest request begins
    as soon as both links are free. transfer: seconds of the two messages, sent at the same time.
    Nodes that meet themselves are left out. A schedule that blocks raises ValueError.
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
    waiting: list[list[tuple[float, int, int]]] = [[] for _ in range(workers)]  # s, node, partner
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
        ended = [(i, j)]  # all transfers that end now, before any begins
        while events and events[0][:2] == (now, over):
            ended.append(heapq.heappop(events)[2:])
        nodes = {node for pair in ended for node in pair}
        for node in nodes:
            free[node] = True
        for request in sorted({request for node in nodes for request in waiting[node]}):
            if free[request[1]] and free[request[2]]:
                waiting[request[1]].remove(request)
                waiting[request[2]].remove(request)
                begin(request, now)
        for i, _ in ended:
            compute(i, now)
    return np.array(taken)


def matching_rounds(busy: np.ndarray, partners: np.ndarray, transfer: float) -> np.ndarray:
    """Return the seconds [T, n] of communication in rounds of D-PSGD, or of gossip over any graph.

    busy: [T, n] s of computing; partners: [M, n] of the matchings, which follow each other. A pair
    waits only for its slower node.
    """
    meets = partners != np.arange(partners.shape[1])

    def exchange(ready):
        for partner, met in zip(partners, meets, strict=True):
            ready = np.where(met, np.maximum(ready, ready[partner]) + transfer, ready)
        return ready

    return _in_rounds(busy, exchange)


def push_rounds(busy: np.ndarray, transfer: float) -> np.ndarray:
    """Return the seconds [T, n] of communication in SGP on the one-peer exponential graph.

    A node goes on when its message is sent and the message for it has arrived. A message waits
    until the receiver's link has taken the earlier message. Source: arXiv 1811.10792, Section 3.
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
    """Return the seconds [T, n] of communication in rounds of a ring all-reduce.

    step: s of one message. Each of the 2 (n - 1) steps waits for the predecessor's previous step.
    """

    def exchange(ready):
        for _ in range(2 * (busy.shape[1] - 1)):
            ready = np.maximum(ready, np.roll(ready, 1)) + step
        return ready

    return _in_rounds(busy, exchange)


def _in_rounds(busy, exchange) -> np.ndarray:
    """Return the seconds [T, n] of `exchange`: ends of computing [n] s -> next begins [n] s."""
    begin = np.zeros(busy.shape[1])
    spent = np.empty_like(busy)
    for t, seconds in enumerate(busy):
        ready = begin + seconds
        begin = exchange(ready)
        spent[t] = begin - ready
    return spent
