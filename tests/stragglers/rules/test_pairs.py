"""Pair schedules against a plain event loop, their own order, closed forms and cases by hand."""

import heapq
from collections import deque

import networkx as nx
import numpy as np
import pytest
from scipy import stats

from comms import topology
from stragglers import delays
from stragglers.processes import as_process, markov, persistent
from stragglers.rule import whole
from stragglers.schedule import concatenate, load
from stragglers.wavefront import interactions
from tests import planned
from tests.refusals import refused
from tests.stragglers.contract_rows import SHIFTED, assert_equal

DELAYS = {
    "law": SHIFTED,
    "ties": persistent(delays.deterministic(1.0), [1.0, 2.0, 1.0, 0.5, 2.0, 1.0, 1.0, 3.0]),
    "markov": markov(SHIFTED, 5.0, 9.0, 3.0),
}
RULES = {
    "non-blocking": ("random_pairs", {}),
    "blocking": ("random_pairs", {"blocking": True}),
    "bipartite": ("bipartite_pairs", {}),
}
ANY = pytest.mark.parametrize("kind", RULES)


def rule(kind, delay=SHIFTED, graph=None, mini_batches=1, seed=0, **options):
    name, fixed = RULES[kind]
    graph = topology.ring(8) if graph is None else graph
    options = {"graph": graph, **fixed, **options}
    return planned.rule(name, delay, len(graph), mini_batches, seed, **options)


def flat(schedule):
    """(landing, i, j, H_i, first_i, start_i, start_j) of every meeting, by time."""
    met = interactions(schedule)
    of = (met.row, met.position[:, 0])
    start = schedule.start[met.row[:, None], met.position]
    columns = [met.time, *met.pairs.T, schedule.batches[of], schedule.first[of], *start.T]
    return np.stack(columns, axis=1)


COST = {"communication": lambda t: 0.1 * np.arange(8) * (t % 3)}


def plain_loop(delay, seed, drawn, cost, blocking, count):
    """Return the rows by a heap of events; drawn(i, m) -> (partner, steps), cost(i, m) -> s."""
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
    ("delay", "steps"), [("law", "geometric"), ("ties", "fixed"), ("markov", "geometric")]
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
    blocking = planned.random_pairs(
        delay, topology.ring(2), 1, 2, 0, communication=0.5, blocking=True
    )
    np.testing.assert_array_equal(blocking.workers, [[0, 1]] * 2)  # 0 waits for 1, who serves it
    np.testing.assert_array_equal(blocking.time, [3.5, 7.0])
    np.testing.assert_array_equal(blocking.busy, [[1, 3]] * 2)
    np.testing.assert_array_equal(blocking.batches, [[1, 1]] * 2)
    np.testing.assert_array_equal(blocking.idle, [[2, 0]] * 2)
    assert blocking.idle_fraction == pytest.approx(4 / 14)


def test_who_has_waited_longest_is_served_first_ties_by_number():
    """The centre of a star is slow: its leaves queue up in the order in which they finished."""
    for leaves, order in (([3.0, 2.0, 1.0], [3, 2, 1, 3]), ([3.0, 3.0, 3.0], [1, 2, 3, 1])):
        delay = persistent(delays.deterministic(1.0), [10.0, *leaves])
        schedule = planned.random_pairs(delay, topology.star(4), 1, 4, 0, blocking=True)
        np.testing.assert_array_equal(schedule.workers, [[leaf, 0] for leaf in order])
        np.testing.assert_array_equal(schedule.time, [10, 20, 30, 40])
        np.testing.assert_array_equal(schedule.busy[:, 0], [leaves[leaf - 1] for leaf in order])


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
    for column in (schedule.start, schedule.finish):
        np.testing.assert_array_equal(column[nobody], time[nobody])
    assert schedule.idle_fraction == pytest.approx(0, abs=1e-9) and schedule.mean_staleness == 0
    np.testing.assert_array_equal(schedule.samples_used(16), 16 * np.arange(1, 101))
    schedule.save(tmp_path / "schedule.npz")
    assert_equal(load(tmp_path / "schedule.npz"), schedule)
    assert_equal(concatenate([schedule.slice(0, 40), schedule.slice(40, 100)]), schedule)
    met = interactions(schedule)
    np.testing.assert_array_equal(met.row, np.arange(100))
    np.testing.assert_array_equal(met.time, schedule.time)
    assert interactions(schedule.slice(0, 0)).pairs.shape == (0, 2)


def weighted(weight):
    graph = topology.ring(8)
    graph.edges[0, 1]["weight"] = weight
    return graph


test_bad_values_are_refused = refused(
    ("bipartite", {"graph": topology.ring(5)}, "bipartite_pairs: the graph has a cycle of odd"),
    ("non-blocking", {"graph": topology.ring(1)}, "the nodes \\[0\\] have none"),
    ("non-blocking", {"graph": weighted(0.0)}, "needs positive weights of edges, got 0"),
    ("non-blocking", {"links": object()}, "but got links"),
    ("non-blocking", {"draw": "round"}, "spells of the delay"),
    ("non-blocking", {"local_steps": 2}, "1 <= local_steps <= mini_batches=1, got 2"),
    ("non-blocking", {"steps": "poisson"}, "choose one of fixed, geometric"),
    ("non-blocking", {"steps": "geometric", "mini_batches": 2}, "more mini_batches"),
    ("blocking", {"width": 0}, "needs width >= 1 meetings a row, got 0"),
    by=lambda kind, options: whole(rule(kind, **options), 1),
)
test_pairs_without_a_graph_are_refused = refused(
    ("random_pairs", "got no graph"),
    ("bipartite_pairs", "got no graph"),
    by=lambda name: planned.rule(name, SHIFTED, 8),
)


# --- draws ---


def test_partners_are_uniform_among_neighbours_or_follow_the_weights_of_edges():
    graph = topology.complete(4)
    for weights in ([1, 1, 1], [1, 2, 5]):
        for j, weight in enumerate(weights, 1):
            graph.edges[0, j]["weight"] = float(weight)
        pair = interactions(whole(rule("non-blocking", graph=graph), 20_000)).pairs
        drawn = np.bincount(pair[pair[:, 0] == 0, 1], minlength=4)
        expected = drawn.sum() * np.array(weights) / sum(weights)
        assert not drawn[0] and stats.chisquare(drawn[1:], expected).pvalue > 1e-3


def test_partners_steps_and_durations_tell_nothing_of_each_other():
    """Correlations of the draws of one node, 5 standard deviations of none at most."""
    options = {"mini_batches": 8, "local_steps": 3, "steps": "geometric"}
    schedule = whole(rule("non-blocking", graph=topology.complete(8), **options), 12_000)
    met = interactions(schedule)
    mine = met.pairs[:, 0] == 0
    at = (met.row[mine], met.position[mine, 0])
    steps = schedule.batches[at]
    columns = met.pairs[mine, 1], steps, schedule.busy[at] / steps
    between = np.corrcoef(columns)[np.triu_indices(3, 1)]
    assert np.abs(between).max() < 5 / np.sqrt(mine.sum())


@pytest.mark.parametrize(("mean", "most"), [(2, 64), (3.5, 4)])
def test_geometric_steps_have_the_mean_that_is_asked_for(mean, most):
    options = {"mini_batches": most, "local_steps": mean, "steps": "geometric"}
    steps = flat(whole(rule("non-blocking", **options), 30_000))[:, 3]
    assert steps.min() >= 1 and steps.max() <= most
    assert steps.mean() == pytest.approx(mean, rel=0.01)
    if most == 64:  # hardly capped: P(H > h) = (1 - 1 / mean)^h
        assert (steps > 3).mean() == pytest.approx(0.5**3, rel=0.05)
