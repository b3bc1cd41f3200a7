from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from stragglers import delays, reading
from stragglers.processes import persistent
from stragglers.rules.replay import recorded
from stragglers.schedule import FORMAT, Event, Schedule, concatenate, load
from tests import planned
from tests.refusals import refused
from tests.stragglers.contract_rows import assert_equal


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


def test_columns_derived():
    schedule = worked_out()
    schedule.validate()
    assert schedule.updates == 2
    np.testing.assert_array_equal(schedule.staleness, [[0, 0], [1, 0]])
    assert schedule.mean_staleness == 0.25
    np.testing.assert_allclose(schedule.idle, [[2.0, 0.0], [0.0, 0.0]])
    assert schedule.idle_fraction == pytest.approx(2 / 10)
    np.testing.assert_array_equal(schedule.samples_used(16), [32, 80])
    # Worker 0 takes part in the first and the last update only.
    schedule = replace(
        schedule,
        time=np.array([1.0, 2.0, 4.0]),
        workers=np.array([[0], [2], [0]], np.int32),
        start=np.array([[0.0], [0.0], [3.0]]),
        finish=np.array([[1.0], [2.0], [4.0]]),
        busy=np.array([[1.0], [2.0], [1.0]]),
        communication=np.zeros((3, 1)),
    )
    assert schedule.idle_fraction == pytest.approx(2 / 6)


test_contradictions_are_found = refused(
    ({"time": np.array([5.0, 3.5])}, "time must not decrease, row 0"),
    ({"time": np.array([3.0, 5.0])}, "time must be the latest finish, row 0"),
    ({"batches": np.array([[1, 1], [-1, 1]])}, "batches must be >= 0, row 1"),
    ({"version": np.array([[0, 0], [0, 2]])}, "version must lie in 0 .. t, row 1"),
    ({"busy": np.array([[1.0, 3.0], [1.0, 1.5]])}, "must fit, row 1"),
    ({"busy": np.ones((2, 3))}, r"busy has shape \(2, 3\), workers has \(2, 2\)"),
    ({"matchings": np.ones((3, 4), bool)}, "matchings has shape"),
    ({"samples": np.array([[0, 0], [0, -1]])}, "samples must be >= 0, row 1"),
    by=lambda change: replace(worked_out(), **change).validate(),
)


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
    np.savez(tmp_path / "newer.npz", format=FORMAT + 1, unheard_of=1)
    with pytest.raises(ValueError, match=f"schedule of format {FORMAT + 1}, .* up to {FORMAT}"):
        load(tmp_path / "newer.npz")


def test_a_small_file_that_would_fill_the_memory_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "schedule.npz"
    np.savez_compressed(path, time=np.zeros(2**20))
    monkeypatch.setattr(reading, "MOST_BYTES", 2**22)
    monkeypatch.setattr(np.lib.format, "read_array", None)
    with pytest.raises(ValueError, match=r"its 0\.00\d+ MB would become 8 MB of arrays"):
        load(path)


class Runs:
    """Would run code if it were unpickled."""

    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('ran').touch()",)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("time", lambda a: a + 1j),
        ("time", lambda a: a + np.inf),
        ("first", lambda a: a + 2**62),
        ("partner", lambda a: a + 2),
        ("workers", lambda a: a[..., None]),
        ("workers", lambda a: a.astype(float)),
        ("batches", lambda a: np.full(a.shape, Runs())),
    ],
)
@pytest.mark.filterwarnings("error")  # none of NumPy's above the sentence
def test_a_file_with_an_array_of_another_kind_is_refused(tmp_path, monkeypatch, name, change):
    monkeypatch.chdir(tmp_path)
    replace(worked_out(), partner=np.array([[1, 0], [1, 0]], np.int32)).save("whole.npz")
    assert load("whole.npz").updates == 2
    with np.load("whole.npz") as file:
        arrays = dict(file)
    np.savez("other.npz", **arrays | {name: change(arrays[name])})
    with pytest.raises(ValueError, match=r"other\.npz") as caught:
        load("other.npz").validate()
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


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
    listed = planned.plan("anytime", slow, 4, 5, 2, 0, seconds=2.5)  # all workers, in every row
    assert listed.population is None and not listed.batches[:, 3].any()
    assert recorded(listed).workers == listed.all_workers == 4


def with_everything():
    """Return the same with a column of samples and with events, two of them at one time."""
    events = (
        Event(0.0, 0, "joined"),
        Event(3.5, 1, "lost"),
        Event(3.5, 1, "restored", 0),
        Event(9.0, 1, "lost"),
    )
    samples, matchings = np.array([[0, 0], [16, 32]], np.int64), np.array([[True], [False]])
    return replace(worked_out(), samples=samples, matchings=matchings, events=events)


def test_samples_and_events_come_back_from_a_file(tmp_path):
    with_everything().validate()
    with_everything().save(tmp_path / "schedule.npz")
    again = load(tmp_path / "schedule.npz")
    assert_equal(again, with_everything())
    part = with_everything().slice(1, 2)
    part.save(tmp_path / "part.npz")
    assert_equal(load(tmp_path / "part.npz"), part)
    assert again.events == with_everything().events
    assert [type(value) for value in again.events[2]] == [float, int, str, int]


def test_a_file_without_a_column_of_its_events_is_refused(tmp_path):
    with_everything().save(tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as file:
        arrays = {name: array for name, array in file.items() if name != "event_kind"}
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(ValueError, match="event_kind is missing or of another type"):
        load(tmp_path / "other.npz")


@pytest.mark.parametrize("more", [{}, {"population": 3, "partner": np.array([[0, 1], [1, 0]])}])
def test_a_file_without_a_format_is_one_of_the_first(tmp_path, more):
    """As an older version has written it, with the columns that it knew."""
    columns = {f.name: getattr(worked_out(), f.name) for f in fields(Schedule)[:10]}
    np.savez(tmp_path / "old.npz", offset=0, **columns, **more)
    again = load(tmp_path / "old.npz")
    assert_equal(again, replace(worked_out(), **more))
    assert again.samples is None and again.events == ()
    again.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as file:
        assert set(file) == {"format", "offset", *columns, *more} and file["format"] == FORMAT


def rows_and_events(rng):
    """Rows, some of which land at one time, and events between, at and after the landings."""
    rows = int(rng.integers(1, 8))
    time = np.cumsum(rng.integers(0, 2, rows)).astype(float)
    every = np.broadcast_to(time[:, None], (rows, 2))
    moments = np.sort(rng.choice([-0.5, 0.0, 0.5], 6) + rng.integers(0, rows + 2, 6))
    events = [Event(max(float(m), 0.0), i % 2, "joined") for i, m in enumerate(moments)]
    plan = planned.plan("barrier", delays.deterministic(1.0), 2, rows)
    columns = {"time": time, "start": every, "finish": every, "busy": 0 * every}
    return replace(plan, **columns, version=plan.version + 3, events=tuple(events), offset=3)


def test_slices_share_out_events_however_they_are_cut():
    """Cut twice, and with empty slices, as a run does."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        whole = rows_and_events(rng)
        whole.validate()
        cuts = [0, *np.sort(rng.integers(0, whole.updates + 1, 2)).tolist(), whole.updates]
        parts = [whole.slice(*ends) for ends in pairwise(cuts)]
        middle = int(rng.integers(0, parts[1].updates + 1))
        ends = parts[1].updates
        parts[1:2] = [parts[1].slice(0, middle), parts[1].slice(middle, ends)]
        joined = concatenate(parts)
        assert_equal(joined, whole)
        assert joined.events == whole.events, f"seed {seed}"
    every = with_everything()
    first, second = (every.slice(t, t + 1) for t in range(2))
    assert first.held is None and second.staleness.tolist() == [[1, 0]]
    assert (first.events, second.events) == (every.events[:3], every.events[3:])
    late = replace(first, events=(*first.events, Event(4.0, 0, "lost")))
    times = [event.time for event in concatenate([late, second]).events]
    assert times == [0.0, 3.5, 3.5, 4.0, 9.0]


@pytest.mark.parametrize(
    "event, message",
    [
        (Event(-1.0, 0, "lost"), r"\(worker 0 at -1.0 s\) needs a worker >= 0 and a finite"),
        (Event(1.0, -1, "lost"), r"\(worker -1 at 1.0 s\) needs"),
        (Event(1.0, 0, "gone"), "is 'gone' and must be one of joined, lost, restored"),
        (Event(1.0, 0, "restored", -2), r"\(restored\) cannot begin from worker -2"),
        (Event(1.0, 0, "lost", 1), r"\(lost\) cannot begin from worker 1"),
        (Event(0.1, 0, "lost"), "at 0.1 s must not come after one at 0.5 s"),
    ],
)
def test_events_that_make_no_sense_are_found(event, message):
    events = (Event(0.5, 1, "joined"), event)
    with pytest.raises(ValueError, match=f"schedule: event 1 {message}.*; correct that event"):
        replace(worked_out(), events=events).validate()
