"""Rules whose patience follows what was seen: worked by hand, and against what a schedule says."""

import numpy as np
import pytest

from stragglers import delays
from stragglers.inject import Injector
from stragglers.processes import persistent
from stragglers.rules.rounds import round_deadline
from tests import planned

APART = persistent(delays.deterministic(1.0), [1.0, 2.0, 4.0, 10.0])
RANDOM = delays.shifted_exponential(1.0, 1.0)


def test_a_quorum_grants_a_grace_in_proportion():
    """Workers of 1, 2, 4 and 10 s a mini-batch, 2 each; two are full at 4 s, half of it is 2 s."""
    plan = planned.plan("quorum_grace", APART, 4, 1, 2, k=2, gamma=0.5, in_flight="cut")
    np.testing.assert_array_equal(plan.batches, [[2, 2, 1, 0]])
    np.testing.assert_array_equal(plan.busy, [[2, 4, 6, 6]])


def test_a_quorum_of_all_with_no_grace_is_a_barrier():
    waits = planned.plan("quorum_grace", RANDOM, 5, 30, 3, k=5, gamma=0.0, in_flight="cut")
    np.testing.assert_array_equal(waits.time, planned.plan("barrier", RANDOM, 5, 30, 3).time)


def test_a_deadline_is_the_median_and_so_many_deviations():
    """1, 2, 4 and 10 s: the median is 3, the deviations 2, 1, 1 and 7, whose median is 1.5."""
    plan = planned.plan("adaptive_deadline", APART, 4, 2, 2, c=1.0, in_flight="cut")
    np.testing.assert_array_equal(plan.batches, [[2, 2, 2, 2], [2, 2, 2, 0]])
    assert plan.time[1] - plan.time[0] == pytest.approx(2 * (3 + 1.5))


@pytest.mark.parametrize("in_flight", ["finish", "cut"])
def test_the_deadlines_follow_from_the_schedule_alone(in_flight):
    """Of every round after the first, from `busy` and `batches` of the rounds before it."""
    c, window, mini_batches = 0.5, 3, 4
    own = {"c": c, "window": window, "in_flight": in_flight}
    plan = planned.plan("adaptive_deadline", RANDOM, 6, 40, mini_batches, **own)
    stopped = 0
    for t in range(1, plan.updates):
        rows = slice(max(0, t - window), t)
        begun = plan.batches[rows] + (in_flight == "cut") * (plan.batches[rows] < mini_batches)
        seen = plan.busy[rows] / begun
        median = np.median(seen)
        deadline = mini_batches * (median + c * np.median(abs(seen - median)))
        short = plan.batches[t] < mini_batches
        stopped += short.sum()
        assert (plan.busy[t][short] >= deadline * (1 - 1e-6)).all()
        if in_flight == "cut":
            assert plan.busy[t].max() <= deadline * (1 + 1e-6)
    assert stopped > 20


def test_nothing_seen_is_no_deadline():
    assert round_deadline(np.full((2, 3), np.nan), 3.0, 4) == np.inf


@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        ("quorum_grace", {"k": 5}, "1 <= k <= 4 workers, got k=5"),
        ("quorum_grace", {"k": 1, "gamma": -1.0}, "gamma >= 0, got -1"),
        ("adaptive_deadline", {"c": -1.0}, "c >= 0, got -1"),
        ("adaptive_deadline", {"window": 0}, "window >= 1 rounds, got 0"),
    ],
)
def test_bad_parameters_are_refused(name, own, words):
    with pytest.raises(ValueError, match=words):
        planned.rule(name, RANDOM, 4, 2, **own)


def test_an_injector_keeps_what_it_has_seen_in_its_checkpoint():
    """A mesh that goes on has the deadlines of one that was not cut off."""
    trigger = planned.rule("adaptive_deadline", APART, 2, 2, window=2).trigger
    injector = Injector(2, trigger, 0)
    injector.resume()
    for t in range(3):
        for worker in range(2):
            injector.begin(worker, t, 0)
        for worker in range(2):
            for done in (1, 2):
                injector.tick(worker, t, done, 0)
        for worker in range(2):
            injector.land(worker, t, 0)
    injector.pause()
    packed = injector.pack()
    assert packed["past"].shape == (2, 2)
    again = Injector(2, trigger, 0)
    again.unpack(packed)
    np.testing.assert_array_equal(again.pack()["past"], packed["past"])
