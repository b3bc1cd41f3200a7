"""Pair schedules against a plain event loop, their own order, closed forms and cases by hand."""

import heapq
from collections import deque

import networkx as nx
import numpy as np
import pytest

from comms import topology
from stragglers import delays
from stragglers.processes import as_process, persistent
from stragglers.rule import whole
from stragglers.schedule import concatenate, load
from stragglers.wavefront import copy_staleness, interactions, meetings
from tests import planned
from tests.stragglers.rules.pairs import (
    ANY,
    DELAYS,
    RULES,
    SHIFTED,
    assert_equal,
    flat,
    rule,
)

COST = {"communication": lambda t: 0.1 * np.arange(8) * (t % 3)}


def plain_loop(delay, seed, drawn, cost, blocking, count):
    """The same rows by a heap of events; drawn(i, m) -> (partner, steps), cost(i, m) -> s."""
    process, workers = as_process(delay).seeded(seed), 8
    round_, first = [-1] * workers, [0] * workers
    steps, start, end = [0] * workers, [0.0] * workers, [0.0] * workers
    waits, queue, events, met = [None] * workers, deque(), [], []

    def work(i, at):
        first[i], round_[i] = first[i] + steps[i], round_[i] + 1
        j, steps[i] = drawn(i, round_[i])
        start[i] = end[i] = at
        for c in range(steps[i]):
            end[i] += float(process.duration(i, end[i], first[i] + c))
        if blocking:
            heapq.heappush(events, (end[i], 0, i, j))
        else:
            heapq.heappush(events, (end[i] + cost(i, round_[i]) * (i != j), 1, i, j))

    def meet(i, j):
        waits[i] = waits[j] = None
        longer = max(cost(i, round_[i]), cost(j, round_[j]))
        heapq.heappush(events, (max(end[i], end[j]) + longer, 1, i, j))

    for i in range(workers):
        work(i, 0.0)
    while len(met) < count:
        at, lands, i, j = heapq.heappop(events)
        if lands:
            begun = start[j] if blocking or i == j else at
            met.append((at, i, j, steps[i], first[i], start[i], begun))
            work(i, at)
            if blocking:
                work(j, at)
            continue
        asking = [q for q in queue if waits[q] == i]  # in the order of their waiting
        queue = deque(q for q in queue if waits[q] is not None)
        if asking:
            meet(asking[0], i)
        elif waits[j] is not None:
            meet(i, j)
        else:
            waits[i] = j
            queue.append(i)
        queue = deque(q for q in queue if waits[q] is not None)
    return np.array(met)


@ANY
@pytest.mark.parametrize(
    ("delay", "steps"), zip(DELAYS, ["geometric", "fixed", "geometric"], strict=True)
)
def test_equals_a_plain_event_loop_exactly(kind, delay, steps):
    options = {"mini_batches": 4, "local_steps": 2, "steps": steps, "width": 2, "seed": 4} | COST
    schedule = whole(rule(kind, DELAYS[delay], **options), 150)
    schedule.validate()
    # A rule in lock-step on the same draws tells partners and steps of every round.
    still = options | {"delay": delays.deterministic(1.0), "communication": 0.0}
    drawn = {}
    fixed = "bipartite" if kind == "bipartite" else "non-blocking"
    for _, i, j, h, *_ in flat(whole(rule(fixed, **still), 2000)):
        drawn.setdefault(int(i), []).append((int(j), int(h)))
    rows = flat(schedule)
    # The earliest pending meeting comes first in its row: those before the last one are complete.
    rows = rows[rows[:, 0] < schedule.finish[-1, 0]]
    expected = plain_loop(
        DELAYS[delay],
        4,
        lambda i, m: drawn[i][m],
        lambda i, m: COST["communication"](m)[i],
        kind == "blocking",
        len(rows),
    )
    assert len(rows) > 150
    np.testing.assert_array_equal(rows, expected)


@ANY
@pytest.mark.parametrize("seconds", [0.3, 0.1 * np.arange(8)], ids=["of all", "of each"])
def test_constant_communication_equals_a_function_of_the_round(kind, seconds):
    options = {"mini_batches": 2, "width": 2}
    constant = whole(rule(kind, communication=seconds, **options), 60)
    assert_equal(constant, whole(rule(kind, communication=lambda t: seconds, **options), 60))


@ANY
def test_more_rounds_than_were_looked_up_equal_short_segments(kind):
    delay = persistent(SHIFTED, {0: 0.02})
    long = rule(kind, delay, topology.complete(4) if kind != "bipartite" else topology.ring(4))
    state, parts = long.init(), []
    for _ in range(40):
        state, schedule = long.extend(state, 50)
        parts.append(schedule)
    assert_equal(concatenate(parts), whole(long, 2000))


@ANY
@pytest.mark.parametrize("name", ["ring", "star"])
def test_rows_give_what_the_order_gives_to_the_last_bit(kind, name):
    graph = getattr(topology, name)(16)
    schedule = whole(rule(kind, graph=graph, width=3, communication=0.1), 200)
    met = interactions(schedule)
    rng = np.random.default_rng(0)
    initial, kicks = rng.normal(size=16), rng.normal(size=(200, 6))

    def interact(x, row, position):
        i, j = schedule.workers[row, position]
        mean = (x[i] + x[j]) / 2
        x[i], x[j] = mean - kicks[row, position[0]] * mean, mean + kicks[row, position[1]]

    in_order, in_rows = initial.copy(), initial.copy()
    for row, position in zip(met.row, met.position, strict=True):
        interact(in_order, row, position)
    for row, places in enumerate(schedule.workers):
        asking = np.flatnonzero(schedule.batches[row, :3])
        pair = schedule.workers[row][np.stack([asking, schedule.partner[row, asking]])]
        assert (
            np.unique(pair[0]).size + np.unique(pair[1]).size - (pair[0] == pair[1]).sum()
            == np.unique(pair).size
            == (places < 16).sum()
        )
        mean = (in_rows[pair[0]] + in_rows[pair[1]]) / 2
        in_rows[pair[0]] = mean - kicks[row, asking] * mean
        in_rows[pair[1]] = mean + kicks[row, schedule.partner[row, asking]]
    np.testing.assert_array_equal(in_rows, in_order)
    if name != "star":  # the order was changed, unless its centre is in every meeting
        assert met.row.size > 400 and (np.diff(met.row) < 0).any()


@ANY
def test_every_node_keeps_its_order_and_uses_every_counter_once(kind):
    options = {"steps": "geometric", "local_steps": 2, "mini_batches": 5, "width": 2}
    schedule = whole(rule(kind, **options), 400)
    for i in range(8):
        mine = schedule.workers == i
        finish, first, batches = (
            a[mine] for a in (schedule.finish, schedule.first, schedule.batches)
        )
        assert (mine.sum(axis=1) <= 1).all()
        assert (np.diff(finish) >= 0).all()
        np.testing.assert_array_equal(first, np.cumsum(batches) - batches)
        start, own = schedule.start[mine][batches > 0], finish[batches > 0]
        np.testing.assert_array_equal(start[1:], own[:-1])


def test_two_nodes_by_hand():
    """Worker 0 takes 1 s a mini-batch, worker 1 takes 3 s; 0.5 s for communication."""
    delay = persistent(delays.deterministic(1.0), [1.0, 3.0])
    schedule = planned.random_pairs(delay, topology.ring(2), 1, 4, 0, communication=0.5)
    np.testing.assert_array_equal(schedule.workers, [[0, 1], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(schedule.time, [1.5, 3.0, 3.5, 4.5])
    np.testing.assert_array_equal(schedule.start, [[0, 1.5], [1.5, 3], [0, 3.5], [3, 4.5]])
    np.testing.assert_array_equal(schedule.finish, [[1.5] * 2, [3.0] * 2, [3.5] * 2, [4.5] * 2])
    np.testing.assert_array_equal(schedule.busy, [[1, 0], [1, 0], [3, 0], [1, 0]])
    np.testing.assert_array_equal(schedule.communication, [[0.5, 0]] * 4)
    np.testing.assert_array_equal(schedule.batches, [[1, 0]] * 4)
    np.testing.assert_array_equal(schedule.first, [[0, 0], [1, 0], [0, 2], [2, 1]])
    np.testing.assert_array_equal(schedule.partner, [[1, 0]] * 4)
    np.testing.assert_array_equal(schedule.version, np.arange(4)[:, None] * [1, 1])
    # Worker 1's copy is as old as the run until it delivers at 3.5 s.
    np.testing.assert_array_equal(copy_staleness(schedule), [1.5, 3.0, 0.5, 1.0])
    np.testing.assert_array_equal(copy_staleness(schedule.slice(3, 4)), [1.5])
    np.testing.assert_array_equal(meetings(schedule, 2), [[0, 4], [4, 0]])
    blocking = planned.random_pairs(
        delay, topology.ring(2), 1, 2, 0, communication=0.5, blocking=True
    )
    np.testing.assert_array_equal(blocking.workers, [[0, 1]] * 2)  # 0 waits for 1, who serves it
    np.testing.assert_array_equal(blocking.time, [3.5, 7.0])
    np.testing.assert_array_equal(blocking.busy, [[1, 3]] * 2)
    np.testing.assert_array_equal(blocking.batches, [[1, 1]] * 2)
    np.testing.assert_array_equal(blocking.idle, [[2, 0]] * 2)
    assert blocking.idle_fraction == pytest.approx(4 / 14)
    np.testing.assert_array_equal(copy_staleness(blocking), [0, 0])


def test_who_has_waited_longest_is_served_first():
    """The centre of a star is slow: its leaves queue up in the order in which they finished."""
    delay = persistent(delays.deterministic(1.0), [10.0, 3.0, 2.0, 1.0])
    schedule = planned.random_pairs(delay, topology.star(4), 1, 4, 0, blocking=True)
    np.testing.assert_array_equal(schedule.workers, [[3, 0], [2, 0], [1, 0], [3, 0]])
    np.testing.assert_array_equal(schedule.time, [10, 20, 30, 40])
    np.testing.assert_array_equal(schedule.busy[:, 0], [1, 2, 3, 1])


def test_who_has_waited_as_long_is_served_in_the_order_of_numbers():
    delay = persistent(delays.deterministic(1.0), [10.0, 3.0, 3.0, 3.0])
    schedule = planned.random_pairs(delay, topology.star(4), 1, 3, 0, blocking=True)
    np.testing.assert_array_equal(schedule.workers, [[1, 0], [2, 0], [3, 0]])


@pytest.mark.parametrize(
    ("name", "delay"), [("ring", "law"), ("star", "ties"), ("complete", "law")]
)
def test_blocking_never_deadlocks(name, delay):
    graph = getattr(topology, name)(8)
    schedule = whole(rule("blocking", DELAYS[delay], graph, communication=0.2), 10_000)
    schedule.validate()
    counts = meetings(schedule, 8)
    assert counts.sum() == 20_000
    np.testing.assert_array_equal(counts > 0, nx.to_numpy_array(graph, range(8)) > 0)
    # Nobody is forgotten: each works, waits or communicates from its first start on.
    np.testing.assert_array_equal(schedule.batches, 1)
    last = [schedule.finish[schedule.workers == i].max() for i in range(8)]
    assert min(last) > 0.99 * schedule.time[-1]


def test_only_one_side_of_a_bipartite_graph_asks():
    graph = nx.disjoint_union(topology.ring(6), topology.star(4))
    schedule = whole(rule("bipartite", graph=graph, communication=0.5, width=3), 2000)
    schedule.validate()
    i, j = interactions(schedule).pairs.T
    active = {0, 2, 4, 6}
    asked = i != j
    assert set(i[asked].tolist()) == active
    assert all(
        graph.has_edge(*pair) for pair in zip(i[asked].tolist(), j[asked].tolist(), strict=True)
    )
    assert set(i[~asked].tolist()) == set(range(10)) - active
    alone = schedule.partner[:, :3] == np.arange(3)
    assert not schedule.communication[:, :3][alone].any()  # nothing is sent
    assert (schedule.workers[:, 3:][alone] == 10).all()
    assert schedule.idle_fraction == pytest.approx(0, abs=1e-9)
    itself = copy_staleness(schedule)[~asked]
    np.testing.assert_array_equal(itself, 0)


@pytest.mark.parametrize(
    ("kind", "name"), [("non-blocking", "ring"), ("blocking", "torus"), ("bipartite", "ring")]
)
def test_wavefronts_of_many_nodes_are_well_filled(kind, name):
    graph = getattr(topology, name)(256)
    schedule = whole(rule(kind, graph=graph), 200)
    schedule.validate()
    assert schedule.workers.shape == (200, 64)
    assert (schedule.workers[:, :32] < 256).mean() >= 0.95
    wide = whole(rule(kind, graph=graph, width=64), 200)
    assert (wide.workers[:, :64] < 256).mean() >= 0.6
    assert interactions(whole(rule(kind, graph=topology.star(256), width=1), 5)).row.size == 5


def test_padding_stands_for_nobody(tmp_path):
    schedule = whole(rule("non-blocking", graph=topology.star(8), width=3), 100)
    schedule.validate()
    nobody = schedule.workers == 8
    assert nobody.sum(axis=1).tolist() == [4] * 100  # the centre is in every meeting
    position = np.broadcast_to(np.arange(6), nobody.shape)
    np.testing.assert_array_equal(schedule.partner[nobody], position[nobody])
    for column in (schedule.batches, schedule.first, schedule.busy, schedule.communication):
        assert not column[nobody].any()
    time = np.broadcast_to(schedule.time[:, None], nobody.shape)
    np.testing.assert_array_equal(schedule.start[nobody], time[nobody])
    np.testing.assert_array_equal(schedule.finish[nobody], time[nobody])
    assert schedule.idle_fraction == pytest.approx(0, abs=1e-9)
    assert schedule.mean_staleness == 0
    np.testing.assert_array_equal(schedule.samples_used(16), 16 * np.arange(1, 101))
    schedule.save(tmp_path / "schedule.npz")
    assert_equal(load(tmp_path / "schedule.npz"), schedule)
    assert_equal(concatenate([schedule.slice(0, 40), schedule.slice(40, 100)]), schedule)
    met = interactions(schedule)
    np.testing.assert_array_equal(met.row, np.arange(100))
    np.testing.assert_array_equal(met.time, schedule.time)


@ANY
def test_no_updates_are_an_empty_schedule(kind):
    schedule = whole(rule(kind), 0)
    assert schedule.updates == 0
    assert interactions(schedule).pairs.shape == (0, 2) and copy_staleness(schedule).shape == (0,)


def test_copies_are_refreshed_by_deliveries():
    """For every meeting, the plain way: remember when each worker delivered last."""
    for kind in RULES:
        schedule = whole(rule(kind, width=2, communication=0.3), 200)
        met, last, ages = interactions(schedule), np.zeros(8), []
        for (i, j), time, row, position in zip(*met, strict=True):
            for worker, place in ((i, position[0]), (j, position[1])):
                if schedule.batches[row, place]:
                    last[worker] = time
            ages.append(time - last[j])
        np.testing.assert_array_equal(copy_staleness(schedule), ages)
        assert (np.max(ages) > 1) == (kind != "blocking")


def test_nobody_is_stale_in_a_schedule_of_copies():
    assert not rule("non-blocking").asynchronous


def weighted(weight):
    graph = topology.ring(8)
    graph.edges[0, 1]["weight"] = weight
    return graph


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bipartite", {"graph": topology.ring(5)}, "bipartite_pairs: the graph has a cycle of odd"),
        ("non-blocking", {"graph": topology.ring(1)}, "the nodes \\[0\\] have none"),
        ("non-blocking", {"graph": nx.path_graph([1, 2])}, "label the nodes 0..1"),
        ("non-blocking", {"graph": weighted(0.0)}, "needs positive weights of edges, got 0"),
        ("non-blocking", {"links": object()}, "but got links"),
        ("non-blocking", {"draw": "round"}, "spells of the delay"),
        ("non-blocking", {"local_steps": 2}, "1 <= local_steps <= mini_batches=1, got 2"),
        ("non-blocking", {"local_steps": 1.5, "mini_batches": 2}, "whole number"),
        ("non-blocking", {"steps": "poisson"}, "choose one of fixed, geometric"),
        ("non-blocking", {"steps": "geometric", "mini_batches": 2}, "more mini_batches"),
        ("blocking", {"width": 0}, "needs width >= 1 meetings a row, got 0"),
        ("bipartite", {"communication": lambda t: np.ones(3)}, "gave 3 numbers for 8 workers"),
    ],
)
def test_bad_values_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        whole(rule(kind, **options), 1)
    with pytest.raises(ValueError, match="got no graph"):
        planned.rule(RULES[kind][0], SHIFTED, 8)


def test_communication_may_be_a_number_per_worker():
    cost = np.linspace(0.1, 0.8, 8)
    schedule = whole(rule("non-blocking", communication=cost), 200)
    asked = schedule.batches > 0
    np.testing.assert_allclose(schedule.communication[asked], cost[schedule.workers[asked]])
    blocking = whole(rule("blocking", communication=cost), 200)
    slower = np.maximum(cost[blocking.workers[:, 0]], cost[blocking.workers[:, 1]])
    np.testing.assert_allclose(blocking.communication, slower[:, None] * [1, 1])


def test_idle_fraction_ignores_who_is_only_met():
    schedule = whole(rule("non-blocking"), 50)
    assert schedule.idle_fraction == pytest.approx(0, abs=1e-9)
    assert schedule.slice(20, 50).idle_fraction == pytest.approx(0, abs=1e-9)
