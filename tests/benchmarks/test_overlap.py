"""Schedules of MG-WFBP as they run, with a tiny model on devices of one process."""

import numpy as np
import pytest

from benchmarks import overlap
from comms import buckets
from experiments import profiling


def test_steps_that_end_in_the_next_forward_pass_are_foreseen_by_hand():
    """Layers of 4 and 2 bytes, known at 1 and 3 s; a byte takes 1 s, half of it decoupled."""
    profile = profiling.Profile([], np.array([1.0, 3.0]), np.array([0.0, 9]), np.array([0.0, 9]),
                                forward=2.0)  # fmt: skip
    forwards = 4 / 3, 2 / 3  # of the first layer, which takes 2 s backward, and of the second

    def bars(spans):
        return [(span.lane, span.start, span.end) for span in spans]

    plan = buckets.byte_scheduler([4, 2], profile.ready, profile.cost, bytes=2)
    seconds, spans = overlap.foreseen(profile, [4, 2], plan, decoupled=False)
    assert seconds == pytest.approx(max(5 + forwards[0], 7) + forwards[1])
    assert bars(spans) == [("compute", 0, 2), *(("exchange", i, i + 2) for i in (0, 2, 4))]
    plan = buckets.wfbp([4, 2], profile.ready, profile.cost)
    seconds, spans = overlap.foreseen(profile, [4, 2], plan, decoupled=True)
    assert seconds == pytest.approx(max(5 + forwards[0], 7) + forwards[1])
    halves = (0, 2), (2, 3), (3, 4), (4, 6)
    assert bars(spans) == [("compute", 0, 2), *(("exchange", *half) for half in halves)]


@pytest.mark.slow
def test_every_schedule_has_a_point_and_a_timeline(tmp_path, monkeypatch):
    tiny = {"name": "digits", "model": {"name": "mlp", "hidden": [8, 8]}}
    monkeypatch.setitem(overlap.MODELS, "tiny", (tiny, 4))
    points, spans = overlap.measured("tiny", turns=2, steps=2)
    by = {point["schedule"]: point for point in points}
    assert list(by) == list(overlap.SCHEDULES) == list(spans)
    assert by["wfbp"]["buckets"] == by["byte_scheduler"]["buckets"] == 3
    assert by["single"]["buckets"] == 1
    assert 1 <= by["optimal"]["buckets"] <= 3 and by["single"]["hidden"] in (0, None)
    for point in points:
        assert point["megabytes"] == 4 * (64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10) / 1e6
        assert point["seconds"] == pytest.approx(sum(point["turns"]) / 2, abs=1e-5)  # of two
    assert not spans["in one program"]["measured"]  # nothing in it is apart from the rest
    overlap.draw(spans, tmp_path / "timelines.png")
    assert (tmp_path / "timelines.png").stat().st_size > 10_000
    events = [e for e in overlap.trace({"wfbp": spans["wfbp"]})["traceEvents"] if e["ph"] == "X"]
    assert {event["tid"] for event in events} == {1, 2, 3, 4} and min(e["ts"] for e in events) == 0
    names, steps = [event["name"] for event in events], overlap.TRACED
    assert all(names.count(f"reduce {b}") == names.count(f"stage {b}") == steps for b in range(3))
    assert [names.count(f"planned {b}") for b in range(4)] == [1, 1, 1, 0]
    step = overlap.typical_step(spans["byte_scheduler"]["measured"])
    assert [span.start for span in step if span.name == "reduce 0"] == [0]
    shown = [span.name for span in overlap.typical_step(spans["wfbp"]["measured"])]
    assert sorted(shown) == [*(f"reduce {b}" for b in range(3)), *(f"stage {b}" for b in range(3)),
                             "update"]  # fmt: skip
