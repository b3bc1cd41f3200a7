"""The comparison of two checkouts: what it takes for the same, and what it says where it is not."""

import json

import numpy as np

from benchmarks import every_method, same_behaviour
from benchmarks.same_behaviour import compare, fields
from tests.algorithms.methods import METHODS

OLD = {"a/loss": 0.5, "a/model": np.array([1.0, np.nan], np.float32), "a/part/k": [1, None]}


def test_every_setting_of_the_battery_is_run():
    assert METHODS.keys() <= every_method.METHODS.keys()


def test_a_field_that_differs_or_is_of_one_side_is_named():
    other = np.array([1.0, -np.nan], np.float32)
    assert compare(OLD, OLD | {"a/model": other, "a/loss": 0.5}) == []
    for name, value in (
        ("a/loss", np.nextafter(0.5, 1)),
        ("a/model", np.array([np.nextafter(np.float32(1), 2), np.nan], np.float32)),
        ("a/model", np.array([1.0, np.nan])),
        ("a/part/k", [True, None]),
    ):
        (sentence,) = compare(OLD, OLD | {name: value})
        assert sentence.startswith(f"{name} differs: ")
    new = {"b/loss": 0.5, "a/model": OLD["a/model"], "a/part/k": [1, None]}
    assert compare(OLD, new) == ["a/loss is missing", "b/loss is new"]


def test_fields_are_read_without_what_follows_the_wall_clock(tmp_path):
    arm = tmp_path / "arm"
    arm.mkdir()
    np.savez(arm / "schedule.npz", time=np.arange(3.0), workers=np.arange(2))
    summary = {"loss": 1.5, "wall_seconds": 7.0, "wait": {"path": f"{tmp_path}/x"}}
    (arm / "summary.json").write_text(json.dumps(summary))
    rows = [{"loss": 2.0, "wall_seconds": 1.0}, {"loss": 1.5, "bytes": 4}]
    (arm / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    note = {"claims": [["it is fast", "holds"]], "numbers": [], "command": "python launch.py"}
    (tmp_path / "report.json").write_text(json.dumps(note))
    found = fields(tmp_path, same_behaviour.WALL, {str(tmp_path): "RECORDS"})
    assert found.pop("arm/schedule.npz/time").tolist() == [0, 1, 2]
    assert found.pop("arm/schedule.npz/workers").tolist() == [0, 1]
    assert found == {
        "arm/summary.json/loss": 1.5, "arm/summary.json/wait/path": "RECORDS/x",
        "arm/metrics.jsonl/loss": [2.0, 1.5], "arm/metrics.jsonl/bytes": ["none", 4],
        "report.json/claims": note["claims"], "report.json/numbers": [],
    }  # fmt: skip
    real = fields(tmp_path, same_behaviour.REAL_TIME, {})
    assert "arm/schedule.npz/time" not in real and "arm/schedule.npz/workers" in real
