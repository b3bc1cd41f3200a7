"""Rows and records of the benchmarks, and the suite and the accelerator's command, tiny."""

import json
import math

import jax
import numpy as np
import pytest

from benchmarks import accelerator, floors, harness, suite
from benchmarks.harness import Line, Row, Skip, compared, run
from experiments import stopwatch
from tests.launcher import program


def row(name, *lines, error=None):
    def measure(budget):
        yield from lines
        if error is not None:
            raise error

    return Row("a section", name, measure)


def ratio(name, value=2.0, goal=1.0):
    return Line(name, value, "x", goal)


def ran(rows, path, seconds=60.0, **more):
    """(whether none failed, the record as read)."""
    good = run(rows, {"complete": False}, path, seconds, **more)
    return good, json.loads(path.read_text())


def states(record):
    return {row["name"]: row["state"] for row in record["rows"]}


def test_a_row_without_memory_or_with_an_error_says_so_and_the_next_one_runs(tmp_path, capsys):
    device = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
    rows = [
        row("device", ratio("kept", math.inf), error=device),
        row("elsewhere", error=Skip("there is one device")),
        row("broken", error=KeyError("x")),
        row("last", ratio("found")),
    ]
    good, record = ran(rows, tmp_path / "record.json")
    assert not good and record["complete"]
    assert states(record) == {"device": "out of memory", "elsewhere": "skipped",
                              "broken": "failed", "last": "ran"}  # fmt: skip
    assert record["rows"][0]["lines"][0]["value"] is None  # JSON has no infinity
    assert record["rows"][2]["word"] == "KeyError: 'x'"
    printed = capsys.readouterr().out.splitlines()
    assert any("device: out of memory: " in text and "9 bytes" in text for text in printed)


def test_a_compared_row_divides_the_first_by_the_second(monkeypatch):
    monkeypatch.setattr(stopwatch, "seconds", lambda sides, budget: {"ours": 3.0, "floor": 2.0})
    measured = compared("s", "name", 1.03, dict, lambda taken: {"twice": 6.0}, scale=0.5)
    (line,) = measured.measure(1.0)
    assert line.value == 0.75 and line.facts == {"twice": 6.0} and line.verdict == "met"
    assert ratio("a", 2.3).verdict == "missed by 2.3x" and ratio("a", 5.0, None).verdict == ""


def test_a_record_keeps_other_points_with_their_day_and_a_remark_on_its_command(tmp_path):
    path = tmp_path / "record.json"
    record = harness.Record(path, "python -m a", ("rate",))
    record.put([{"rate": "1gbit", "ms": 1.23456789}])
    found = json.loads(path.read_text())
    earlier = {"remark": "Of an earlier form.", "date": "2026-01-02T03"}
    path.write_text(json.dumps(found | earlier))
    for command, remark in (("python -m a", "Of an earlier form."), ("python -m b", None)):
        record._replace(command=command).put([{"rate": "2gbit", "ms": 2.0}])
        found = json.loads(path.read_text())
        assert found.get("remark") == remark and found["command"] == command
        assert [point["ms"] for point in found["summary"]["points"]] == [1.2346, 2.0]
        days = [point.get("date") for point in found["summary"]["points"]]
        assert days == ["2026-01-02", None]


@pytest.mark.slow
def test_both_sides_of_a_step_train_the_same_model():
    given = *floors.task_and_sampler(4), 4, 3
    for step in (floors.union_step, floors.ring_step):
        both = floors.sides(*given, step=step, mini_batches=1, loops=accelerator.LOOPS)
        ours = both.pop("ours")().params
        for floor in both.values():
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, floor()[0])


def test_the_whole_suite_has_the_rows_that_are_published_and_a_device_all_codecs():
    rows = {row.name for row in suite.rows(suite.Sizes(), 8)}
    published = json.loads((harness.FOLDER / "suite.json").read_text())["rows"]
    assert rows == {row["name"] for row in published}
    codecs = {name for name in rows if name.endswith(", 1e7")}
    on_device = {row.name for row in accelerator.rows(accelerator.ACCELERATOR, 4, None)}
    assert len(codecs) == len(floors.codecs(floors.LEAST)) - 1 and codecs < on_device


def command(module, *arguments):
    flags = ("--xla_force_host_platform_device_count=2", "--xla_backend_optimization_level=0",
             "--xla_cpu_parallel_codegen_split_count=1")  # fmt: skip
    environment = {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    return program("-m", f"benchmarks.{module}", *arguments, timeout=1200, **environment)


@pytest.mark.slow
def test_the_tiny_command_for_accelerators_measures_every_row(tmp_path):
    """With `--only`, here of all sections, other rows of an earlier record stay."""
    path, other = tmp_path / "accelerator_cpu.json", {"name": "bf16, 1e9", "state": "ran"}
    path.write_text(json.dumps({"rows": [other, other | {"name": "bf16, 2e4"}]}))
    sections = "--only=over,host,several,steps,numbers"
    ended = command("accelerator", "--tiny", "--minutes=60", sections, f"--folder={tmp_path}")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    record = json.loads(path.read_text())
    assert record["complete"] and record["device"]["count"] == 2
    assert record["rows"].pop(0) == other and len(states(record)) == len(record["rows"])
    assert len({row["section"] for row in record["rows"]}) == 6
    seen = states(record)
    assert seen.pop("overlap") == ("ran" if hasattr(jax.lax, "psum_scatter_start") else "skipped")
    assert set(seen.values()) == {"ran"}
    lines = [line for row in record["rows"] for line in row["lines"]]
    assert all(math.isfinite(line["value"]) and line["value"] >= 0 for line in lines)
    (numbers,) = [line["facts"] for line in lines if "closer than 1e-6" in line["facts"]]
    assert numbers["closer than 1e-6"] == numbers["methods"] == 2  # here both sides are CPUs
    steps = [line for line in lines if "TFLOP/s" in line["facts"]]
    assert len(steps) == 3 and all(line["facts"]["peak"] == "unknown" for line in steps)
    buckets = [line["facts"] for line in lines if "planned" in line["facts"]]
    assert [fact["planned"] == fact["compiled"] for fact in buckets] == [True] * 3
