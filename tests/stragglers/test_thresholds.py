from dataclasses import fields

import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import persistent
from stragglers.schedule import Schedule
from stragglers.thresholds import Measured, drop_compute_threshold
from tests import planned

FIVE_TIMES = delays.bernoulli_slowdown(1 / 8, 5.0, 0.1)


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def throughput(schedule, first=0):
    before = schedule.time[first - 1] if first else 0.0
    return schedule.batches[first:].sum() / (schedule.time[-1] - before)


def test_threshold_worked_out():
    """Three workers end at 1 and 2 s, the fourth at 1 and 10 s, of which 1, 2 and 10 s are tried.

    Per second they keep 4 / (1 + D), 7 / (2 + D) and 8 / (10 + D): equal at D = 1/3 and D = 54.
    """
    durations = [[[1, 1], [1, 1], [1, 1], [1, 9]]]
    for communication, tau in ((0.0, 1), (0.3, 1), (0.4, 2), (53.0, 2), (55.0, 10)):
        assert drop_compute_threshold(durations, communication, candidates=10) == tau
    assert drop_compute_threshold(durations, candidates=1) == 10


def test_threshold_counts_a_round_that_ends_before_it_as_it_is():
    """Rounds end at 1 s and at 4 s: tau = 1 keeps 3 of 4 in 2 s, tau = 4 all of them in 5 s."""
    durations = [[[1.0], [1.0]], [[1.0], [4.0]]]
    assert drop_compute_threshold(durations, candidates=4) == 1
    assert drop_compute_threshold(durations, communication=[9.0, 9.0], candidates=4) == 4


def test_threshold_maximises_the_measured_throughput():
    rng = np.random.default_rng(0)
    durations = FIVE_TIMES.sample(rng, (50, 8, 1)) * np.ones(8)
    ends = durations.cumsum(axis=2)

    def rate(tau):
        seconds = [min(tau, round_.max()) for round_ in ends]
        return (ends <= tau).sum() / (np.sum(seconds) + 50 * 0.25)

    tau = drop_compute_threshold(durations, communication=0.25, candidates=2 * ends.size)
    assert rate(tau) == pytest.approx(max(rate(t) for t in np.unique(ends)))
    assert rate(drop_compute_threshold(durations, 0.25)) > 0.99 * rate(tau)
    assert rate(tau) > 1.5 * rate(ends.max())


def test_equal_speeds_drop_nothing():
    durations = np.full((5, 8, 8), 0.125)
    assert drop_compute_threshold(durations) == 1.0
    for in_flight in ("finish", "cut"):
        options = {"communication": 0.3, "in_flight": in_flight}
        dropped = planned.plan(
            "drop_compute", delays.deterministic(0.1), 8, 60, 8, 0, calibration=5, **options
        )
        assert_equal(
            dropped, planned.plan("barrier", delays.deterministic(0.1), 8, 60, 8, 0, **options)
        )


def test_rule_worked_out():
    """One worker takes 9 s a mini-batch, three take 1 s: blocking 18 s, then a deadline of 2 s."""
    delay = persistent(delays.deterministic(1.0), {3: 9.0})
    options = {"calibration": 2, "in_flight": "cut", "communication": 1.0}
    schedule = planned.plan("drop_compute", delay, 4, 4, 2, 0, **options)
    np.testing.assert_array_equal(schedule.batches[:2], 2)
    np.testing.assert_array_equal(schedule.batches[2:], [[2, 2, 2, 0]] * 2)
    np.testing.assert_array_equal(schedule.first[:, 3], [0, 2, 4, 6])  # leftovers are dropped
    np.testing.assert_allclose(schedule.time, [19, 38, 41, 44])


@pytest.mark.parametrize("splits", [(5, 1, 24), (20, 0, 10), (1,) * 30])
def test_threshold_does_not_depend_on_the_segments(splits):

    def make():
        return planned.rule("drop_compute", FIVE_TIMES, 8, 8, 0, calibration=10)

    state, times = make().init(), []
    for updates in splits:
        state, part = make().extend(state, updates)
        times.append(part.time)
    whole = planned.plan("drop_compute", FIVE_TIMES, 8, 30, 8, 0, calibration=10)
    np.testing.assert_array_equal(np.concatenate(times), whole.time)


def test_calibration_is_blocking_and_then_pays():
    options = {"draw": "round", "in_flight": "cut"}
    schedule = planned.plan("drop_compute", FIVE_TIMES, 8, 2000, 8, 0, calibration=100, **options)
    blocking = planned.plan("barrier", FIVE_TIMES, 8, 2000, 8, 0, leftovers="drop", **options)
    assert_equal(schedule.slice(0, 100), blocking.slice(0, 100))
    assert throughput(schedule, 100) > 2 * throughput(blocking, 100)


LAWS = [
    delays.deterministic(1.0),
    delays.exponential(1.0),
    delays.shifted_exponential(1.0, 1.0),
    delays.pareto(1.0, 3.0),
    delays.uniform(0.5, 1.5),
    FIVE_TIMES,
]


@pytest.mark.parametrize(
    ("law", "draw"), zip(LAWS, ["round", "mini_batch"] * 3, strict=True), ids=str
)
def test_anytime_reaches_the_batch_on_average(law, draw):
    """E[batch] >= b (2006.05752), if the fast workers may do more than b / n."""
    seconds = (1 + 8 / 64) * 64 / 8 * law.mean()  # (1 + n / b) times the mean of b / n
    batch = planned.plan("anytime", law, 8, 400, 100, 0, seconds=seconds, draw=draw).batches.sum(
        axis=1
    )
    assert batch.mean() >= 64 - 3 * batch.std() / 20


def test_anytime_computes_until_the_deadline_and_drops_the_rest():
    law = delays.exponential(1.0)
    seconds = 9.0
    schedule = planned.plan("anytime", law, 8, 50, 100, 0, seconds=seconds, communication=0.5)
    np.testing.assert_allclose(schedule.busy, seconds)
    np.testing.assert_allclose(schedule.time, (seconds + 0.5) * np.arange(1, 51))
    np.testing.assert_array_equal(schedule.first, np.tile(100 * np.arange(50)[:, None], 8))
    capped = planned.plan("anytime", law, 8, 50, 8, 0, seconds=seconds)
    assert capped.batches.mean() < 8


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: drop_compute_threshold(np.ones((8, 8))), r"got shape \(8, 8\)"),
        (lambda: drop_compute_threshold(np.ones((0, 8, 8))), "measure at least one round"),
        (lambda: drop_compute_threshold(-np.ones((1, 8, 8))), "needs positive durations"),
        (lambda: drop_compute_threshold(np.ones((1, 8, 8)), -1.0), "got 200 and -1.0"),
        (lambda: drop_compute_threshold(np.ones((1, 8, 8)), candidates=0), "candidates >= 1"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_calibration_that_is_cut_off_goes_on_to_the_same_deadline():
    rng = np.random.default_rng(0)
    durations, exchanges = rng.exponential(size=(6, 3, 4)), rng.exponential(size=6)
    calibration = planned.rule("drop_compute", FIVE_TIMES, 3, 4, calibration=5).trigger.calibration
    whole = Measured(calibration, 3, 4)
    whole.add(durations, exchanges)
    begun, resumed = Measured(calibration, 3, 4), Measured(calibration, 3, 4)
    begun.add(durations[:3], exchanges[:3])
    assert begun.deadline == np.inf and begun.mini_batches == 4
    resumed.unpack(begun.pack())
    resumed.add(durations[3:], exchanges[3:])
    assert resumed.deadline == whole.deadline < np.inf and resumed.mini_batches == 0
    finished = Measured(calibration, 3, 4)
    finished.unpack(resumed.pack())
    assert finished.deadline == whole.deadline
    threshold = drop_compute_threshold(durations[:5], exchanges[:5])
    np.testing.assert_allclose(whole.deadline, threshold, rtol=1e-8)
