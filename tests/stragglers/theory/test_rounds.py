import math

import networkx as nx
import pytest

from stragglers import delays
from stragglers.order_statistics import moments
from stragglers.processes import markov, persistent, trace
from stragglers.theory import rounds as theory
from tests import planned

LAWS = [
    delays.deterministic(0.125),
    delays.exponential(1.0),
    delays.shifted_exponential(1.0, 1.0),
    delays.pareto(1.0, 3.0),
    delays.weibull(1.0, 1.5),
    delays.gamma(2.0, 0.5),
    delays.lognormal(0.0, 0.7),
    delays.uniform(0.5, 1.5),
    delays.bernoulli_slowdown(0.125, 5.0, 0.1),
]


def test_infinite_means():
    law = delays.pareto(1.0, 0.8)
    assert moments(law, 8, 8, "round", "finish").nonblocking == math.inf
    assert theory.throughput_gain(law, 8, 8) == math.inf
    with pytest.raises(ValueError, match=r"neither round has a finite mean.*take in_flight='cut'"):
        theory.throughput_gain(law, 8, 8, in_flight="finish")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("law", "draw"), zip(LAWS, ["mini_batch", "round"] * 5, strict=False), ids=str
)
def test_rules_reach_the_theory(law, draw):
    """Round times E[max] and E[min], finished shares and gains, in both in-flight policies."""
    # The minimum of exponentials varies as much as it is long: it takes more rounds.
    updates = 20_000 if (law.name, draw) == ("exponential", "round") else 4000
    blocking = planned.plan("barrier", law, 8, updates, 8, 1, draw=draw)
    expected = moments(law, 8, 8, draw, "cut").blocking
    assert blocking.time[-1] / updates == pytest.approx(expected, rel=0.02)
    for in_flight in ("cut", "finish"):
        options = {"draw": draw, "in_flight": in_flight}
        rounds = planned.plan("first_finisher", law, 8, updates, 8, 1, **options)
        expected = moments(law, 8, 8, **options)
        assert rounds.time[-1] / updates == pytest.approx(expected.nonblocking, rel=0.02)
        assert rounds.batches.mean() / 8 == pytest.approx(expected.share, rel=0.02)
        # Landing at all workers, communication lengthens every round alike.
        spent = 0.5 * law.mean() * updates
        faster = (blocking.time[-1] + spent) / (rounds.time[-1] + spent)
        arguments = (law, 8, 8, spent / updates)
        gain = rounds.batches.mean() / 8 * faster
        assert gain == pytest.approx(theory.throughput_gain(*arguments, **options), rel=0.02)


@pytest.mark.parametrize(
    "law, workers, draw, in_flight, gain",
    [
        (delays.shifted_exponential(1.0, 1.0), 8, "round", "cut", 1.99),
        (delays.shifted_exponential(1.0, 1.0), 8, "mini_batch", "cut", 1.21),
        (delays.bernoulli_slowdown(1.0, 5.0, 0.1), 8, "round", "cut", 2.99),
        (delays.bernoulli_slowdown(1.0, 5.0, 0.1), 8, "round", "finish", 2.67),
        (delays.shifted_exponential(1.0, 1.0), 16, "round", "cut", 2.34),
    ],
)
def test_gains_of_the_run_time_model(law, workers, draw, in_flight, gain):
    computed = theory.throughput_gain(law, workers, 8, draw=draw, in_flight=in_flight)
    assert computed == pytest.approx(gain, rel=0.02)


def test_communication_dilutes_the_gain():
    law = delays.shifted_exponential(1.0, 1.0)
    gains = [theory.throughput_gain(law, 8, 8, communication=d) for d in (0.0, 4.0, 1e9)]
    assert gains[0] > gains[1] > gains[2]
    assert gains[2] == pytest.approx(moments(law, 8, 8, "round", "cut").share, rel=1e-6)


def test_one_worker_gains_nothing():
    for draw in ("round", "mini_batch"):
        for in_flight in ("cut", "finish"):
            gain = theory.throughput_gain(LAWS[1], 1, 4, draw=draw, in_flight=in_flight)
            assert gain == pytest.approx(1.0, rel=1e-6)


def test_fixed_speeds():
    assert theory.speeds_gain([1, 1, 1, 1], 8) == 1
    assert theory.speeds_gain([2] + 7 * [1], 8) == pytest.approx(1.875)
    assert theory.speeds_gain([4] + 7 * [1], 8, in_flight="finish") == pytest.approx(4 * 58 / 64)
    # Many mini-batches: s (n - 1 + 1/s) / n.
    assert theory.speeds_gain([5] + 7 * [1], 10_000) == pytest.approx(5 * 7.2 / 8, rel=1e-3)


def test_fixed_speeds_with_communication():
    """Four mini-batches at 1 s and 2.5 s: 10 s or, cut at 4 s, one of worker 1's is done."""
    gain = theory.speeds_gain([1.0, 2.5], 4, communication=2.0)
    assert gain == pytest.approx(5 / 8 * (10 + 2) / (4 + 2))
    gain = theory.speeds_gain([1.0, 2.5], 4, communication=2.0, in_flight="finish")
    assert gain == pytest.approx(6 / 8 * (10 + 2) / (5 + 2))


def test_every_law_is_tested():
    assert {law.name for law in LAWS} | {"jitter"} == set(delays.LAWS)  # jitter is log-normal


def test_the_gain_is_that_of_rounds_times_what_is_finished_in_one():
    """1 + Exp(1), 8 workers: E[max] / E[min] = (1 + H_8) / (1 + 1/8)."""
    law = delays.shifted_exponential(1.0, 1.0)
    harmonic = sum(1 / k for k in range(1, 9))
    expected = (8 * (1 + harmonic) + 3) / (8 * (1 + 1 / 8) + 3)
    share = moments(law, 8, 8, "round", "cut").share
    assert theory.throughput_gain(law, 8, 8, 3.0) == pytest.approx(share * expected)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "in_flight"), [("round", "cut"), ("mini_batch", "finish")])
def test_estimates_of_iid_delays_reach_the_theory(draw, in_flight):
    law, options = delays.shifted_exponential(1.0, 1.0), {"draw": draw, "in_flight": in_flight}
    expected = theory.throughput_gain(law, 8, 8, 2.0, **options)
    assert theory.estimate_gain(law, 8, 8, 2.0, **options) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("in_flight", ["cut", "finish"])
def test_estimates_of_fixed_speeds_are_exact(in_flight):
    factors = [1.0, 2.5, 1.0, 4.0]
    process = persistent(delays.deterministic(1.0), factors)
    estimate = theory.estimate_gain(process, 4, 8, 3.0, rounds=20, in_flight=in_flight)
    assert estimate == pytest.approx(theory.speeds_gain(factors, 8, 3.0, in_flight=in_flight))


def test_estimate_from_a_trace(tmp_path):
    """Worker 1 takes 1 s or 3 s in turn where worker 0 takes 1 s: rounds of 4 s and of 2 s."""
    path = tmp_path / "trace.csv"
    path.write_text("worker,time,batch_time\n0,0,1\n0,1,1\n1,0,1\n1,1,3\n")
    options = {"rounds": 20, "draw": "mini_batch", "in_flight": "finish"}
    # Non-blocking, worker 1 begins its second mini-batch at 1 s, which ends at 4 s: no gain.
    assert theory.estimate_gain(trace(str(path)), 2, 2, 1.0, **options) == pytest.approx(1.0)
    # Cut at 2 s, it does one a round and alternates 1 s (then cut) with nothing done in 2 s.
    cut = theory.estimate_gain(trace(str(path)), 2, 2, 1.0, **options | {"in_flight": "cut"})
    assert cut == pytest.approx(3 / 4 * (4 + 1) / (2 + 1))


@pytest.mark.slow
def test_slowness_in_time_gains_less_than_slowness_by_round():
    """Slow 10 % of the time, by 5: a slow spell does not end with the round."""
    process = markov(delays.deterministic(1 / 8), 5.0, 9.0, 1.0)
    options = {"rounds": 1500, "draw": "mini_batch", "in_flight": "finish"}
    gain = theory.estimate_gain(process, 8, 8, **options)
    by_round = delays.bernoulli_slowdown(1 / 8, 5.0, 0.1)
    assert 1.2 < gain < theory.throughput_gain(by_round, 8, 8, in_flight="finish")


@pytest.mark.slow
def test_estimates_on_a_graph():
    """The gain over D-PSGD on a ring, 5x slower with p = .1 per round."""
    law = delays.bernoulli_slowdown(1 / 8, 5.0, 0.1)
    options = {"in_flight": "finish", "graph": nx.cycle_graph(8)}
    gain = theory.estimate_gain(law, 8, 8, rounds=8000, landing="all", **options)
    assert gain == pytest.approx(2.18, rel=0.02)
    gain = theory.estimate_gain(law, 8, 8, rounds=8000, **options)
    assert gain == pytest.approx(2.29, rel=0.02)


def test_estimates_on_the_complete_graph_are_those_without():
    arguments = (delays.bernoulli_slowdown(1 / 8, 5.0, 0.1), 8, 8, 0.25)
    complete = theory.estimate_gain(*arguments, rounds=200, graph=nx.complete_graph(8))
    assert complete == theory.estimate_gain(*arguments, rounds=200)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: theory.throughput_gain(LAWS[1], 8, 8, draw="epoch"), "unknown draw='epoch'"),
        (lambda: theory.throughput_gain(LAWS[1], 8, 8, in_flight="x"), "unknown in_flight='x'"),
        (lambda: theory.throughput_gain(LAWS[1], 8, 0), "mini_batches >= 1"),
        (lambda: theory.throughput_gain(LAWS[1], 8, 8, -1.0), "communication >= 0, got -1.0"),
        (lambda: theory.speeds_gain([1.0, 0.0], 8), "needs positive factors"),
        (lambda: theory.speeds_gain([1.0, 2.0], 0), "mini_batches >= 1, got .* and 0"),
        (lambda: theory.speeds_gain([1.0], 8, -1.0), "communication >= 0, got -1.0"),
        (lambda: theory.estimate_gain(LAWS[1], 8, 8, rounds=0), "rounds >= 1 to simulate, got 0"),
        (
            lambda: theory.throughput_gain(delays.pareto(1.0, 1.1), 8, 8, draw="mini_batch"),
            "too heavy for a lattice",
        ),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["round", "mini_batch"])
def test_gains_of_neighbours_lie_between_their_bounds(draw):
    """Simulated D-PSGD on graphs of 8 workers, others cut at the signal."""
    law, spent = delays.shifted_exponential(0.125, 0.125), 0.5
    for graph in (nx.cycle_graph(8), nx.star_graph(7), nx.hypercube_graph(3)):
        graph = nx.convert_node_labels_to_integers(graph)
        degree = min(number for _, number in graph.degree)
        low, high = theory.neighbour_gain_bounds(law, 8, 8, degree, spent, draw)
        gain = theory.estimate_gain(law, 8, 8, spent, rounds=2000, graph=graph, draw=draw)
        assert low < high
        assert 0.99 * low < gain < 1.01 * high
    whole = theory.throughput_gain(law, 8, 8, spent, draw=draw)
    assert theory.neighbour_gain_bounds(law, 8, 8, 7, spent, draw) == (whole, whole)
    alone, _ = theory.neighbour_gain_bounds(law, 8, 8, 0, spent, draw)
    assert alone < low


def test_degrees_that_no_graph_has_are_refused():
    for degree in (-1, 8):
        with pytest.raises(ValueError, match=f"got degree={degree}; 8 workers have 0 to 7 neigh"):
            theory.neighbour_gain_bounds(delays.exponential(1.0), 8, 8, degree)
