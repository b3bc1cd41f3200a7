"""What benchmarks put on record: ratios and their spread, and schedules of every kind."""

import json

import numpy as np
import pytest

from benchmarks import lattice, many_workers, points, ratios


def test_the_spread_lies_beside_what_was_measured(tmp_path):
    spread = ratios.spread("over_copy", [3.0, 1.0, 2.0, 9.0])
    assert spread == {"over_copy_median": 2.5, "over_copy_least": 1.0, "over_copy_greatest": 9.0}
    path = tmp_path / "record.json"
    old, new = {"codec": "a", "over_copy": 7.0}, {"codec": "b", "over_copy": 2.0, **spread}
    points.put(path, "command", ("codec",), [old])
    points.put(path, "command", ("codec",), [new])
    assert json.loads(path.read_text())["summary"]["points"] == [old, new]


def test_ratios_are_of_turns_that_lie_beside_each_other():
    assert ratios.over("floor", [2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == {
        "over_floor": 1.5,  # (2 + 4) / (1 + 3)
        "over_floor_median": 2.0,
        "over_floor_least": 1.0,
        "over_floor_greatest": 3.0,
    }


def test_lattice_adds_encoding_and_decoding_turn_by_turn(monkeypatch):
    times = {"copy": [1.0, 2.0, 1.0], "encode": [3.0, 8.0, 4.0], "decode": [2.0, 2.0, 1.0]}
    monkeypatch.setattr(lattice, "_times", lambda size, bits, turns: times)
    found = {point["call"]: point for point in lattice.measured(100, 8, 3)}
    both = found["encode + decode"]
    assert both["seconds"] == both["over_copy"] == 5.0
    assert both["over_copy_median"] == both["over_copy_least"] == both["over_copy_greatest"] == 5.0
    assert found["encode"]["over_copy_greatest"] == 4.0
    assert {"call", "size", "bits"} <= both.keys()


@pytest.mark.slow
def test_lattice_times_every_call():
    assert lattice._times(3000, 8, 3).keys() >= {"copy", "encode", "decode", "meeting of two"}


@pytest.mark.slow
def test_rounds_of_gossip_are_counted_as_on_record():
    on_record = json.loads((points.FOLDER / "lattice.json").read_text())["summary"]["points"]
    found = lattice.counted("nearest", 6)
    (known,) = (point for point in on_record if point.get("rounds") and
                (point["call"], point["bits"]) == (found["call"], 6))  # fmt: skip
    assert known["rounds"] == found["rounds"] > 1
    assert known["sent_again"] == pytest.approx(found["sent_again"], rel=1e-3)


@pytest.mark.few(8)
@pytest.mark.parametrize("delay", many_workers.DELAYS)
@pytest.mark.parametrize("schedule", many_workers.SCHEDULES)
def test_schedules_have_the_events_that_they_are_measured_by(schedule, delay):
    found = many_workers.measured(schedule, delay, 512, 2000, 2)
    kind = many_workers.SCHEDULES[schedule]
    _, planned = (rule := kind.make(many_workers.DELAYS[delay], 512)).extend(rule.init(), 4)
    assert planned.workers.shape[1] == (512 if kind.everyone else kind.places * many_workers.K)
    assert found["events"] == 2048
    rates = [found["million_events_per_second" + end] for end in ("_least", "", "_greatest")]
    assert rates == sorted(rates) and rates[0] > 0
    assert found["million_events_per_second"] == np.mean([rates[0], rates[2]])
