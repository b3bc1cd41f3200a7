"""Durations from schedules, traces and laws: what was drawn is there, what was cut completed."""

import numpy as np
import pytest

from experiments.advice import durations
from stragglers import delays
from stragglers.processes import as_process, from_law, persistent
from stragglers.schedule import Event
from tests import planned

LAW = delays.shifted_exponential(1.0, 1.0)
UNEQUAL = persistent(LAW, [1.0, 1.0, 1.0, 3.0])


def drawn(delay, worker, count, seed=0):
    process = as_process(delay).seeded(seed)
    return process.duration(worker, 0.0, np.arange(count))


@pytest.mark.parametrize(("name", "own"), [("barrier", {}), ("k_async", {"k": 2})])
def test_a_schedule_gives_back_what_was_drawn(name, own):
    rule = planned.rule(name, UNEQUAL, 4, **own)
    measured = durations.of_schedule(planned.plan(name, UNEQUAL, 4, 80, **own), "run", rule.trigger)
    assert measured.censored == 0
    for i, seconds in enumerate(measured.seconds):
        np.testing.assert_allclose(seconds, drawn(UNEQUAL, i, seconds.size), rtol=1e-9)


def test_mini_batches_of_a_row_are_as_long_as_each_other():
    schedule = planned.plan("barrier", LAW, 3, 30, 4)
    measured = durations.of_schedule(schedule, "run", planned.rule("barrier", LAW, 3, 4).trigger)
    for i, seconds in enumerate(measured.seconds):
        rounds = seconds.reshape(30, 4)
        np.testing.assert_allclose(rounds.sum(axis=1), drawn(LAW, i, 120).reshape(30, 4).sum(1))
        assert (np.ptp(rounds, axis=1) < 1e-12).all()


@pytest.mark.parametrize(
    ("name", "own", "mini_batches"),
    [
        ("deadline", {"seconds": 2.2, "in_flight": "cut"}, 1),
        ("deadline", {"seconds": 6.0, "in_flight": "cut"}, 3),
        ("k_sync", {"k": 4}, 1),
    ],
)
def test_what_was_cut_is_completed(name, own, mini_batches):
    """The mean of what was finished is too low; with what was cut it is right."""
    rule = planned.rule(name, LAW, 6, mini_batches, **own)
    schedule = planned.plan(name, LAW, 6, 1500, mini_batches, **own)
    measured = durations.of_schedule(schedule, "run", rule.trigger)
    assert 0.15 < measured.censored < 0.5
    everything = np.concatenate(measured.seconds)
    finished = schedule.busy.sum() / schedule.batches.sum()
    if mini_batches == 1:
        # Nothing was seen beyond the cut, so that the completed ones end there.
        whole = schedule.batches > 0
        finished = schedule.busy[whole].sum() / schedule.batches[whole].sum()
        assert finished < everything.mean() <= LAW.mean() * 1.02
    else:
        assert everything.mean() == pytest.approx(LAW.mean(), rel=0.1)


def test_kaplan_meier_by_hand():
    """1, 2+, 3, 4+ (+: censored): S falls to 3/4 at 1, then to 3/8 at 3, and 3/8 is beyond 4."""
    seconds, mass = durations.kaplan_meier(
        np.array([3.0, 1.0, 4.0, 2.0]), np.array([True, True, False, False])
    )
    np.testing.assert_array_equal(seconds, [1, 3])
    np.testing.assert_allclose(mass, [1 / 4, 3 / 8])


def test_kaplan_meier_of_censored_exponentials_has_their_law():
    rng = np.random.default_rng(0)
    lasting, cut = rng.exponential(1.0, 20_000), rng.exponential(1.5, 20_000)
    seconds, mass = durations.kaplan_meier(np.minimum(lasting, cut), lasting <= cut)
    for at in (0.5, 1.0, 2.0):
        assert mass[seconds <= at].sum() == pytest.approx(1 - np.exp(-at), abs=0.015)


def test_a_trace_and_a_law_are_read(tmp_path):
    path = tmp_path / "t.csv"
    measured = durations.of_delay(LAW, 3, 7, "law")
    assert [len(values) for values in measured.seconds] == [durations.DRAWN] * 3
    np.testing.assert_array_equal(measured.seconds[1], drawn(LAW, 1, durations.DRAWN, seed=7))
    durations.write(measured, path)
    from stragglers.processes import trace

    again = durations.of_delay(trace(str(path)), 9, 0, "trace")
    np.testing.assert_array_equal(np.array(again.seconds), np.array(measured.seconds))
    assert again.read.startswith(f"{path}: {3 * durations.DRAWN} durations of 3 workers")


def test_resamples_are_blocks_at_the_same_places():
    """Workers that are slow at the same time stay so, and a repeat is a pure function."""
    rng = np.random.default_rng(0)
    one = rng.uniform(1, 2, 400)
    measured = durations.Measured((one, 10 * one), "t")
    first, second = (measured.process(repeat).records for repeat in (1, 1))
    np.testing.assert_array_equal(first[1], 10 * first[0])
    np.testing.assert_array_equal(first[0], second[0])
    assert not np.array_equal(first[0], measured.process(2).records[0])
    assert set(first[0]) <= set(one)
    steps = np.searchsorted(np.sort(one), first[0])
    assert steps.size == one.size
    order = {value: place for place, value in enumerate(one.tolist())}
    moves = np.diff([order[value] for value in first[0].tolist()])
    assert np.mean((moves == 1) | (moves == 1 - one.size)) > 0.9


def schedule_of(name, updates=80, workers=4, mini_batches=1, **own):
    rule = planned.rule(name, LAW, workers, mini_batches, **own)
    return planned.plan(name, LAW, workers, updates, mini_batches, **own), rule.trigger


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: schedule_of("barrier", updates=10), "has 40 durations, and fewer than 50"),
        (lambda: schedule_of("barrier", workers=1), "durations of one worker"),
        (lambda: schedule_of("k_sync", k=1), "cut 75% of the durations, and more than 50%"),
        (lambda: schedule_of("k_batch_sync", k=2), "does not say when it pushed"),
        (lambda: schedule_of("ringmaster", limit=2, updates=400), "ignored or interrupted"),
    ],
)
def test_too_little_is_refused(made, words):
    with pytest.raises(ValueError, match=words):
        durations.of_schedule(made()[0], "run", made()[1])


def test_a_worker_that_is_always_cut_is_refused():
    slow = persistent(delays.uniform(0.9, 1.1), [1.0, 1.0, 1.0, 5.0])
    own = {"seconds": 1.2, "in_flight": "cut"}
    schedule = planned.plan("deadline", slow, 4, 60, **own)
    trigger = planned.rule("deadline", slow, 4, **own).trigger
    with pytest.raises(ValueError, match="worker 3 never finished a mini-batch"):
        durations.of_schedule(schedule, "run", trigger)


def test_nothing_finished_is_refused():
    schedule, trigger = schedule_of("deadline", seconds=1.5, in_flight="cut")
    empty = schedule.batches * 0
    from dataclasses import replace

    with pytest.raises(ValueError, match="not one mini-batch was finished"):
        durations.of_schedule(replace(schedule, batches=empty), "run", trigger)


def test_a_worker_that_was_lost_may_have_gaps():
    from dataclasses import replace

    schedule, _ = schedule_of("k_async", k=1, updates=200)
    gone = schedule.workers == 2
    later = replace(
        schedule,
        start=np.where(gone & (schedule.start > 20), schedule.start + 50, schedule.start),
        finish=np.where(gone & (schedule.start > 20), schedule.finish + 50, schedule.finish),
    )
    with pytest.raises(ValueError, match="of the time of worker 2"):
        durations.of_schedule(later, "run")
    lost = (Event(20.0, 2, "lost"), Event(70.0, 2, "restored"))
    assert durations.of_schedule(replace(later, events=lost), "run").workers == 4


def test_a_trace_with_one_worker_is_refused():
    one = durations.Measured((np.ones(100),), "t.csv")
    with pytest.raises(ValueError, match="of one worker"):
        durations.checked(one)
    assert from_law(LAW).records == ()
