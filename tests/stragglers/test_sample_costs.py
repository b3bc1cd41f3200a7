"""Durations that samples bring along: in all clocks, what rules keep, and the expectation."""

import networkx as nx
import numpy as np
import pytest

from stragglers import delays, kept, processes
from stragglers.processes import by_sample
from stragglers.schedule import Schedule
from tests import planned
from tests.marks import slow_but
from tests.refusals import refused

P, M = 16, 4
LAW = delays.lognormal(0.0, 0.5)
DROP = {"leftovers": "drop", "in_flight": "cut", "landing": "all"}
RULES = {
    "k_sync": ({"k": 13}, kept.k_sync(13)),
    "first_finisher": (DROP, kept.first_finisher()),
    "deadline": ({**DROP, "seconds": 4.0}, kept.deadline(4.0)),
    "quorum": ({**DROP, "k": 50}, kept.quorum(50)),
    "first_finisher/finish": ({**DROP, "in_flight": "finish"}, kept.first_finisher("finish")),
    "quorum/finish": ({**DROP, "in_flight": "finish", "k": 50}, kept.quorum(50, "finish")),
}


def by_tenth(name, delay, updates, **own):
    rows = planned.plan(name.split("/")[0], delay, P, updates, M, **own)
    return kept.by_cost(rows, delay.seeded(0).cost).by_part


@pytest.mark.parametrize("name", slow_but(("k_sync", "quorum", "first_finisher/finish"), RULES))
def test_the_expected_shares_are_those_of_the_clock(name):
    own, expected = RULES[name]
    found = by_tenth(name, by_sample(LAW), 1500, **own)
    values = LAW.quantile((np.arange(2000) + 0.5) / 2000)
    np.testing.assert_allclose(kept.share_by_cost(expected, values, P, M), found, atol=0.02)
    drops_long = found[0] - found[-1] > 0.1
    assert drops_long == (not name.endswith("/finish"))


def test_shares_are_expected_also_where_few_durations_are_a_thousand_times_as_long():
    law = delays.lognormal(0.0, 2.0)
    found = by_tenth("first_finisher", by_sample(law), 1000, **DROP)
    values = law.quantile((np.arange(2000) + 0.5) / 2000)
    expected = kept.share_by_cost(kept.first_finisher(), values, P, M)
    np.testing.assert_allclose(expected, found, atol=0.03)


def test_two_workers_of_one_mini_batch_by_hand():
    """K-sync with one of two keeps x where the other takes longer."""
    thirds = [1.0, 2.0, 3.0]
    shares = kept.share_by_cost(kept.k_sync(1), thirds, 2, 1, parts=3)
    np.testing.assert_allclose(shares, [5 / 6, 1 / 2, 1 / 6], atol=1e-9)  # ties count for a half


@pytest.mark.parametrize(
    ("name", "own", "longest", "shorter_half"),
    [
        ("k_sync", {"k": 28}, 0.634, 0.907), ("k_sync", {"k": 24}, 0.401, 0.808),
        ("first_finisher", DROP, 0.694, 0.826),
    ],
)  # fmt: skip
def test_rules_drop_the_long_work_of_a_recorded_job(name, own, longest, shorter_half):
    """As a replay of its operations did, 32 workers with 8 micro-batches a step."""
    delay = by_sample(processes.PROCESSES["bytedance_se"]())
    rows = planned.plan(name, delay, 32, 1000, 8, **own)
    found = kept.by_cost(rows, delay.seeded(0).cost)
    assert abs(found.by_part[-1] - longest) < 0.02
    assert abs(found.by_part[:5].mean() - shorter_half) < 0.02


def schedule(workers, first, batches):
    shape = np.shape(workers)
    zeros, ones = np.zeros(shape), np.ones(shape)
    return Schedule(
        time=np.arange(1.0, 1 + shape[0]), workers=np.array(workers), start=zeros, finish=ones,
        batches=np.array(batches), first=np.array(first), version=zeros.astype(int), busy=ones,
        communication=zeros, population=2,
    )  # fmt: skip


def test_what_was_kept_by_hand():
    """Worker 0 has kept counters 0 and 2 of 0..2, worker 1 counter 1 of 0..1."""
    rows = schedule([[0, 1], [0, 2]], [[0, 1], [2, 0]], [[1, 1], [1, 0]])
    costs = np.array([[1.0, 4.0, 2.0], [5.0, 3.0, 9.0]])
    found = kept.by_cost(rows, lambda worker, counter: costs[worker, counter], parts=5)
    np.testing.assert_array_equal(found.by_part, [1, 1, 1, 0, 0])  # costs 1, 2, 3 of 1..5
    assert found.share == 0.6 and found.mean_cost == (1 + 2 + 3) / 3 / 3
    same = kept.by_cost(rows, lambda worker, counter: np.ones((len(worker), 2)), parts=5)
    np.testing.assert_allclose(same.by_part, 0.6)  # equal costs share their parts
    for none in (rows.slice(0, 0), rows.slice(0, 1)):  # or fewer samples than parts
        assert kept.by_cost(none, lambda worker, counter: counter) is None


def test_a_worker_that_is_always_cut_off_has_kept_nothing():
    """Worker 1 takes 3 s, the other 1 s: K-sync leaves it out, and rounds end before it has any."""
    delay = processes.persistent(by_sample(delays.deterministic(1.0)), [1.0, 3.0])

    def costs(worker, counter):
        return 1.0 + worker

    for name, own, lost in (("k_sync", {"k": 1}, 1), ("anytime", {"seconds": 2.0}, 0)):
        found = kept.by_cost(planned.plan(name, delay, 2, 10, **own), costs, parts=2, lost=lost)
        np.testing.assert_array_equal(found.by_part, [1, 0])


def test_weights_by_hand():
    """The shares 1, 1, 1/2 of parts of two samples; equal costs weigh as the mean of theirs."""
    found = kept.Kept(np.array([1.0, 1.0, 0.5]), 5 / 6, 1.0)
    weight = kept.weights(found, [4.0, 1.0, 9.0, 2.0, 3.0, 8.0])
    np.testing.assert_allclose(weight, 5 / 6 * np.array([1, 1, 2, 1, 1, 2]))
    tied = kept.weights(found, [4.0, 1.0, 9.0, 2.0, 3.0, 4.0])  # 4 stands in two parts
    np.testing.assert_allclose(tied, 5 / 6 / np.array([0.75, 1, 0.5, 1, 1, 0.75]))
    assert kept.effective_share(weight) == pytest.approx((5 / 6 * 8) ** 2 / (6 * 25 / 36 * 12))


@pytest.mark.parametrize("name", ["first_finisher", "k_sync"])
def test_weights_of_other_delays_undo_most_of_the_bias(name):
    """Within the longest tenth, longer samples are still dropped more often."""
    cost = np.random.default_rng(0).lognormal(0.0, 0.5, (P, 4000))
    base = processes.as_process(delays.jitter(1.0, 0.1))
    delay = base.costing(lambda worker, counter: cost[worker, counter], cost.min())
    rows, others = (planned.plan(name, delay, P, 300, M, seed, **RULES[name][0]) for seed in (0, 1))

    def of_sample(worker, counter):
        return cost[worker, counter]

    weight = kept.weights(kept.by_cost(others, of_sample), cost.ravel()).reshape(cost.shape)
    worker, counter, taken = kept.offered(rows)
    its, own = cost[worker, counter], weight[worker, counter]
    bias, left = (its.mean() - np.average(its[taken], weights=w) for w in (None, own[taken]))
    assert bias > 0.08 * its.mean() and abs(left) < bias / 4
    assert own[taken].mean() == pytest.approx(1.0, abs=0.01)


def test_work_that_is_cut_and_carried_on_takes_as_long_again():
    """Two workers, one mini-batch a round: the slow one is cut at 1 s and has the same again."""
    base = processes.as_process(delays.deterministic(1.0))
    delay = base.costing(lambda worker, counter: np.where(counter == 0, 1.0 + worker, 1.0), 1.0)
    rows = planned.plan("first_finisher", delay, 2, 3, in_flight="cut", landing="all")
    assert rows.batches.tolist() == [[1, 0]] * 3  # worker 1 never ends its mini-batch of 2 s
    assert rows.first[:, 1].tolist() == [0, 0, 0]
    rows = planned.plan("first_finisher", delay, 2, 3, **DROP)
    assert rows.batches.tolist() == [[1, 0], [1, 1], [1, 1]]


def test_a_cost_is_work_at_a_changing_speed():
    """Twice the cost of a mini-batch lasts as long as two, one after the other, begun then."""
    plain = processes.persistent(processes.markov(delays.deterministic(1.0), 3.0, 2.0, 1.0), {1: 2})
    twice = plain.costing(lambda worker, counter: np.full(worker.shape, 2.0), 2.0).seeded(4)
    plain = plain.seeded(4)
    start = np.linspace(0.0, 30.0, 200)
    first = plain.duration(0, start)
    np.testing.assert_allclose(
        twice.duration(0, start), first + plain.duration(0, start + first), rtol=1e-9
    )
    assert twice.shortest == 2 * plain.shortest
    for name, own in (("k_async", {"k": 1}), ("barrier", {})):
        slower = planned.plan(name, twice, 2, 20, seed=4, **own)
        each = slower.finish - slower.start
        expected = twice.duration(slower.workers, slower.start, slower.first)
        whole = slower.busy if name == "barrier" else each
        np.testing.assert_allclose(whole, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["barrier", "k_async", "k_sync", "random_pairs", "replayed"])
def test_every_row_takes_as_long_as_its_mini_batches(name):
    recorded = processes.replayed("two", [np.array([1.0, 2.0]), np.array([3.0])])
    delay = by_sample(recorded if name == "replayed" else LAW)
    graph = nx.cycle_graph(4) if name == "random_pairs" else None
    own = {"random_pairs": {"local_steps": 2}, "barrier": {}, "replayed": {}}.get(name, {"k": 2})
    rule = "barrier" if name == "replayed" else name
    rows = planned.plan(rule, delay, 4, 30, 2, graph=graph, **own)
    cost = delay.seeded(0).cost
    for at in zip(*np.nonzero(rows.batches), strict=True):
        counters = rows.first[at] + np.arange(rows.batches[at])
        expected = cost(np.full(counters.shape, rows.workers[at]), counters).sum()
        np.testing.assert_allclose(rows.busy[at], expected, rtol=1e-9)


def test_equal_work_ends_with_the_mini_batch_that_reaches_it():
    costs = np.array([[1.0, 3.0, 1.0, 1.0, 2.0, 1.0], [2.0, 1.0, 0.25, 5.0, 1.0, 1.0]])
    base = processes.as_process(delays.deterministic(1.0))
    delay = base.costing(lambda worker, counter: costs[worker, counter], 0.25)
    rows = planned.plan("equal_work", delay, 2, 2, 3, cost=3.5)
    assert rows.batches.tolist() == [[2, 3], [3, 1]]  # three is the most: they cost 3.25
    assert rows.first.tolist() == [[0, 0], [2, 3]] and rows.time.tolist() == [4.0, 9.0]
    alike = planned.plan("equal_work", LAW, 2, 5, 4, cost=2.5)
    assert (alike.batches == 3).all()


test_costs_that_make_no_sense_are_refused = refused(
    (lambda: planned.rule("equal_work", LAW, 2, cost=0.0), "finite cost > 0, got 0"),
    (lambda: by_sample(processes.markov(LAW, 2.0, 1.0, 1.0)), "durations of markov.* depend on mo"),
    (lambda: by_sample(LAW).costing(lambda worker, counter: counter, 1.0), "to samples already"),
    (lambda: kept.share_by_cost(kept.k_sync(1), [0.0, 1.0], 2, 1), "positive, finite"),
    (lambda: kept.share_by_cost(kept.k_sync(1), [], 2, 1), "positive, finite"),
    (lambda: kept.share_by_cost(kept.k_sync(1), [1.0] * 20 + [1e5], 2, 1), "for a lattice"),
    (lambda: kept.share_by_cost(kept.k_sync(3), [1.0], 2, 1, parts=1), "1 <= k <= 2, got k=3"),
    (lambda: kept.share_by_cost(kept.k_sync(1), [1.0, 2.0], 2, 1), "<= 2 durations, got parts=10"),
)
