from dataclasses import fields, replace

import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import persistent
from stragglers.rules.replay import recorded
from stragglers.schedule import Schedule, concatenate, load
from tests import planned


def worked_out():
    """Two workers, two updates: worker 1 takes 3 s where worker 0 takes 1 s, then 1 s both."""
    return Schedule(
        time=np.array([3.5, 5.0]),
        workers=np.array([[0, 1], [0, 1]], np.int32),
        start=np.array([[0.0, 0.0], [3.5, 3.5]]),
        finish=np.array([[3.5, 3.5], [5.0, 5.0]]),
        batches=np.array([[1, 1], [1, 2]], np.int32),
        first=np.array([[0, 0], [1, 1]], np.int64),
        version=np.array([[0, 0], [0, 1]], np.int32),
        busy=np.array([[1.0, 3.0], [1.0, 1.0]]),
        communication=np.full((2, 2), 0.5),
        held=np.array([2, 2], np.int32),
    )


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_columns_derived():
    schedule = worked_out()
    schedule.validate()
    assert schedule.updates == 2
    np.testing.assert_array_equal(schedule.staleness, [[0, 0], [1, 0]])
    assert schedule.mean_staleness == 0.25
    np.testing.assert_allclose(schedule.idle, [[2.0, 0.0], [0.0, 0.0]])
    assert schedule.idle_fraction == pytest.approx(2 / 10)
    np.testing.assert_array_equal(schedule.samples(16), [32, 80])


def test_idle_fraction_counts_gaps_between_rows():
    """Worker 0 takes part in the first and the last update only."""
    schedule = replace(
        worked_out(),
        time=np.array([1.0, 2.0, 4.0]),
        workers=np.array([[0], [2], [0]], np.int32),
        start=np.array([[0.0], [0.0], [3.0]]),
        finish=np.array([[1.0], [2.0], [4.0]]),
        busy=np.array([[1.0], [2.0], [1.0]]),
        communication=np.zeros((3, 1)),
    )
    assert schedule.idle_fraction == pytest.approx(2 / 6)


def test_slices_join_to_the_whole():
    whole = worked_out()
    parts = [whole.slice(0, 1), whole.slice(1, 2)]
    assert parts[0].held is None and parts[1].offset == 1
    np.testing.assert_array_equal(parts[1].staleness, [[1, 0]])
    assert_equal(concatenate(parts), whole)


def test_file_round_trip(tmp_path):
    whole = worked_out().slice(1, 2)
    whole.save(tmp_path / "schedule.npz")
    assert_equal(load(tmp_path / "schedule.npz"), whole)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"time": np.array([5.0, 3.5])}, "time must not decrease, row 0"),
        ({"time": np.array([3.0, 5.0])}, "time must be the latest finish, row 0"),
        ({"batches": np.array([[1, 1], [-1, 1]])}, "batches must be >= 0, row 1"),
        ({"version": np.array([[0, 0], [0, 2]])}, "version must lie in 0 .. t, row 1"),
        ({"busy": np.array([[1.0, 3.0], [1.0, 1.5]])}, "must fit, row 1"),
        ({"busy": np.ones((2, 3))}, r"busy has shape \(2, 3\), workers has \(2, 2\)"),
        ({"matchings": np.ones((3, 4), bool)}, "matchings has shape"),
    ],
)
def test_contradictions_are_found(change, message):
    with pytest.raises(ValueError, match=message):
        replace(worked_out(), **change).validate()


def test_bad_segments_and_files(tmp_path):
    first, second = worked_out().slice(0, 1), worked_out().slice(1, 2)
    with pytest.raises(ValueError, match="ends before update 2, the next starts at 0"):
        concatenate([second, first])
    with pytest.raises(ValueError, match="got no schedules"):
        concatenate([])
    with pytest.raises(ValueError, match="segments of one rule"):
        concatenate([first, replace(second, partner=np.zeros((1, 2), np.int32))])
    with pytest.raises(ValueError, match="holds no schedule"):
        load(tmp_path / "missing.npz")
    np.savez(tmp_path / "other.npz", offset=0, x=1)
    with pytest.raises(ValueError, match="holds no schedule"):
        load(tmp_path / "other.npz")


def test_rules_write_valid_schedules():
    planned.plan(
        "first_finisher", delays.exponential(1.0), 4, 50, 3, 0, communication=0.1
    ).validate()


def test_workers_that_have_never_delivered_are_remembered(tmp_path):
    """Worker 3 of four is so slow that the other three make all updates."""
    slow = persistent(delays.deterministic(1.0), {3: 50.0})
    schedule = planned.plan("k_async", slow, 4, 10, k=2)
    assert schedule.workers.max() == 2 and schedule.all_workers == 4
    schedule.slice(2, 8).save(tmp_path / "schedule.npz")
    again = load(tmp_path / "schedule.npz")
    assert again.all_workers == recorded(again).workers == 4
    wider = planned.plan("k_async", slow, 4, 15, k=3).slice(10, 15)
    assert concatenate([schedule, wider]).workers[0].tolist() == [0, 1, 4]  # 4 is nobody
    with pytest.raises(ValueError, match="workers must be below the population, row 1"):
        replace(schedule, population=2).validate()


def test_a_schedule_of_everybody_has_as_many_workers_as_it_lists():
    """Whoever never finishes anything is one of them."""
    slow = persistent(delays.deterministic(1.0), {3: 50.0})
    schedule = planned.plan("anytime", slow, 4, 5, 2, 0, seconds=2.5)
    assert schedule.population is None and not schedule.batches[:, 3].any()
    assert recorded(schedule).workers == schedule.all_workers == 4
