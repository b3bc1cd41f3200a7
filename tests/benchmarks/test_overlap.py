"""Schedules of MG-WFBP as they run, with a tiny model on devices of one process."""

import numpy as np
import pytest

from benchmarks import overlap
from experiments import profiling


@pytest.mark.slow
def test_every_schedule_has_a_point_and_a_timeline(tmp_path, monkeypatch):
    tiny = {"name": "digits", "model": {"name": "mlp", "hidden": [8, 8]}}
    monkeypatch.setitem(overlap.MODELS, "tiny", (tiny, 4))
    points, spans = overlap.measured("tiny", turns=2, steps=2)
    by = {point["schedule"]: point for point in points}
    assert list(by) == list(overlap.SCHEDULES) == list(spans)
    assert by["wfbp"]["buckets"] == 3 and by["single"]["buckets"] == 1
    assert 1 <= by["optimal"]["buckets"] <= 3 and by["single"]["hidden"] in (0, None)
    for point in points:
        assert point["megabytes"] == 4 * (64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10) / 1e6
        assert 0 < point["computing"] <= point["predicted"]
        # What is seen of the exchange follows computing; half of DeAR's waits for a forward pass.
        assert point["predicted"] <= point["computing"] + 8 * point["exchange"]
    assert not spans["in one program"]["measured"]  # nothing in it is apart from the rest
    for point in points:  # the median of two
        assert point["seconds"] == pytest.approx(sum(point["turns"]) / 2, abs=1e-5)
    overlap.draw(overlap.trace(spans), tmp_path / "timelines.png")
    assert (tmp_path / "timelines.png").stat().st_size > 10_000
    events = [e for e in overlap.trace({"wfbp": spans["wfbp"]})["traceEvents"] if e["ph"] == "X"]
    assert {event["tid"] for event in events} == {1, 2, 3, 4} and min(e["ts"] for e in events) == 0
    names, steps = [event["name"] for event in events], overlap.TRACED
    assert all(names.count(f"reduce {b}") == names.count(f"stage {b}") == steps for b in range(3))
    assert [names.count(f"planned {b}") for b in range(4)] == [1, 1, 1, 0]
    shown = [event["name"] for event in overlap.typical_step(events)]
    assert sorted(shown) == [*(f"reduce {b}" for b in range(3)), *(f"stage {b}" for b in range(3)),
                             "update"]  # fmt: skip


@pytest.mark.slow
def test_layers_sleep_as_long_as_one_host_has_measured(monkeypatch):
    """A forward pass of 30 ms, then 20 ms a layer; nothing else computes."""

    def measured(task, batch, steps):
        del steps
        layers = profiling.backward_order(task, batch)
        return profiling.Profile(layers, np.array([0.02, 0.04, 0.06]), forward=0.03)

    tiny = {"name": "digits", "model": {"name": "mlp", "hidden": [8, 8]}}
    monkeypatch.setitem(overlap.MODELS, "tiny", (tiny, 4))
    monkeypatch.setattr(profiling, "measure_backward", measured)
    points, spans = overlap.measured("tiny", turns=2, steps=1, sleeps=True)
    assert [one["schedule"] for one in points] == [*overlap.SCHEDULES][1:-1]
    assert all(one["seconds"] >= 0.09 for one in points)
    for span in spans["wfbp"]["measured"]:
        if span.name.startswith("stage"):
            assert span.end - span.start >= {"stage 0": 0.05}.get(span.name, 0.02)
