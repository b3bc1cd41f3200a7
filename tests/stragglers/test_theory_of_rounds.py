"""Gains of non-blocking rounds against simulated rules, by hand, and published numbers."""

import math

import pytest

from stragglers import delays, theory
from stragglers.order_statistics import moments
from stragglers.processes import persistent, trace
from tests import planned
from tests.refusals import refused

EXPONENTIAL = delays.exponential(1.0)
SHIFTED = delays.shifted_exponential(1.0, 1.0)
PAUSE = delays.bernoulli_slowdown(1.0, 5.0, 0.1)


def test_infinite_means():
    law = delays.pareto(1.0, 0.8)
    assert moments(law, 8, 8, "round", "finish").nonblocking == math.inf
    assert theory.throughput_gain(law, 8, 8) == math.inf
    with pytest.raises(ValueError, match=r"neither round has a finite mean.*take in_flight='cut'"):
        theory.throughput_gain(law, 8, 8, in_flight="finish")


@pytest.mark.parametrize(("law", "draw"), [(PAUSE, "mini_batch"), (SHIFTED, "round")], ids=str)
def test_rules_reach_the_theory(law, draw):
    """Round times E[max] and E[min], finished shares and gains, in both in-flight policies."""
    updates = 4000
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


@pytest.mark.parametrize("workers", [2, 64])
def test_a_round_of_one_mini_batch_that_all_end_gains_nothing(workers):
    for law in (EXPONENTIAL, delays.gamma(0.3, 1.0)):  # half of whose mass is near 0
        options = {"draw": "mini_batch", "in_flight": "finish"}
        assert theory.throughput_gain(law, workers, 1, **options) == 1


def test_a_worker_that_is_a_billion_times_slower_has_begun_a_mini_batch():
    law = delays.gamma(0.2, 1.0)
    assert moments(law, 500, 2, "round", "finish").share > 0.5
    assert theory.speeds_gain([1.0, 1e12], 2, in_flight="finish") == pytest.approx(1.5)


def test_the_fastest_of_many_workers_is_not_rounded_to_a_lattice():
    law = delays.lognormal(0.0, 1.5)
    found = moments(law, 1000, 1, "mini_batch", "cut")
    assert found.nonblocking == pytest.approx(0.0087, rel=0.05)
    assert found.share == pytest.approx(0.001, rel=0.05)


def test_fixed_speeds():
    assert theory.speeds_gain([1, 1, 1, 1], 8) == 1
    assert theory.speeds_gain([2] + 7 * [1], 8) == pytest.approx(1.875)
    assert theory.speeds_gain([4] + 7 * [1], 8, in_flight="finish") == pytest.approx(4 * 58 / 64)
    # Four mini-batches at 1 s and 2.5 s: 10 s or, cut at 4 s, one of worker 1's is done.
    gain = theory.speeds_gain([1.0, 2.5], 4, communication=2.0)
    assert gain == pytest.approx(5 / 8 * (10 + 2) / (4 + 2))
    gain = theory.speeds_gain([1.0, 2.5], 4, communication=2.0, in_flight="finish")
    assert gain == pytest.approx(6 / 8 * (10 + 2) / (5 + 2))
    # Many mini-batches: s (n - 1 + 1/s) / n.
    assert theory.speeds_gain([5] + 7 * [1], 10_000) == pytest.approx(5 * 7.2 / 8, rel=1e-3)


def test_the_gain_is_that_of_rounds_times_what_is_finished_in_one():
    """1 + Exp(1), 8 workers: E[max] / E[min] = (1 + H_8) / (1 + 1/8)."""
    law = SHIFTED
    harmonic = sum(1 / k for k in range(1, 9))
    expected = (8 * (1 + harmonic) + 3) / (8 * (1 + 1 / 8) + 3)
    share = moments(law, 8, 8, "round", "cut").share
    assert theory.throughput_gain(law, 8, 8, 3.0) == pytest.approx(share * expected)
    assert theory.throughput_gain(law, 8, 8) == pytest.approx(1.99, rel=0.02)  # published


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


test_bad_values = refused(
    ("throughput_gain", (SHIFTED, 8, 8), {"draw": "epoch"}, "unknown draw='epoch'"),
    ("throughput_gain", (SHIFTED, 8, 0), {}, "mini_batches >= 1"),
    ("throughput_gain", (SHIFTED, 8, 8, -1.0), {}, "communication >= 0, got -1.0"),
    ("throughput_gain", (delays.pareto(1, 1.1), 8, 8), {"draw": "mini_batch"}, "too heavy for"),
    ("throughput_gain", (delays.lognormal(0, 1.5), 500, 2), {"draw": "mini_batch"}, "too fast"),
    ("speeds_gain", ([1.0, 0.0], 8), {}, "needs positive factors"),
    ("estimate_gain", (SHIFTED, 8, 8), {"rounds": 0}, "rounds >= 1 to simulate, got 0"),
    by=lambda form, arguments, options: getattr(theory, form)(*arguments, **options),
)
