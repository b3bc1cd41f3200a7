"""Rows and records of the benchmarks, and the suite and the accelerator's command, tiny."""

import json
import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import accelerator, codec_calls, floors, suite
from benchmarks.harness import Line, Row, Skip, compared, put, run
from experiments import stopwatch
from tests.launcher import ROOT


def row(name, *lines, error=None, least=0.0):
    def measure(budget):
        yield from lines
        if error is not None:
            raise error

    return Row("a section", name, measure, least)


def ratio(name, value=2.0, goal=1.0):
    return Line(name, value, "x", goal)


def ran(rows, path, seconds=60.0, **more):
    """(whether none failed, the record as read, what was printed)."""
    printed = []
    good = run(rows, {"complete": False}, path, seconds, printed.append, **more)
    return good, json.loads(path.read_text()), printed


def states(record):
    return {row["name"]: row["state"] for row in record["rows"]}


def test_a_row_without_memory_or_with_an_error_says_so_and_the_next_one_runs(tmp_path):
    device = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
    rows = [
        row("device", ratio("kept", math.inf), error=device),
        row("elsewhere", error=Skip("there is one device")),
        row("broken", error=KeyError("x")),
        row("last", ratio("found")),
    ]
    good, record, printed = ran(rows, tmp_path / "record.json")
    assert not good and record["complete"]
    assert states(record) == {"device": "out of memory", "elsewhere": "skipped",
                              "broken": "failed", "last": "ran"}  # fmt: skip
    assert record["rows"][0]["lines"][0]["value"] is None  # JSON has no infinity
    assert record["rows"][2]["word"] == "KeyError: 'x'"
    assert any("device: out of memory: " in text and "9 bytes" in text for text in printed)


def test_a_run_that_is_cut_off_leaves_what_it_had_found(tmp_path):
    path = tmp_path / "record.json"
    rows = [row("first", ratio("a")), row("second", ratio("b"), error=KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        ran(rows, path)
    record = json.loads(path.read_text())
    assert not record["complete"]
    assert states(record) == {"first": "ran", "second": "under way"}
    assert [line["name"] for line in record["rows"][1]["lines"]] == ["b"]
    assert [path] == list(tmp_path.iterdir())  # nothing is left of the replacing


def test_a_row_that_would_not_fit_is_skipped_with_a_word(tmp_path):
    now = iter(range(0, 1000, 10))  # a look at the clock takes 10 s
    rows = [row("fits", ratio("a"), least=80.0), row("large", least=75.0), row("small", least=5.0)]
    good, record, _ = ran(rows, tmp_path / "record.json", 100.0, clock=lambda: next(now))
    assert good and states(record) == {"fits": "ran", "large": "skipped", "small": "ran"}
    assert record["rows"][1]["word"] == "takes about 75 s, 70 s are left; raise --minutes"


def test_a_compared_row_divides_the_first_by_the_second(monkeypatch):
    monkeypatch.setattr(stopwatch, "seconds", lambda sides, budget: {"ours": 3.0, "floor": 2.0})
    measured = compared("s", "name", 1.03, dict, 0.0, lambda taken: {"twice": 6.0}, scale=0.5)
    (line,) = measured.measure(1.0)
    assert line.value == 0.75 and line.facts == {"twice": 6.0} and line.verdict == "met"
    assert ratio("a", 2.3).verdict == "missed by 2.3x" and ratio("a", 5.0, None).verdict == ""


def test_a_record_keeps_other_points(tmp_path):
    path = tmp_path / "record.json"
    put(path, "command", ("codec",), [{"codec": "a", "x": 7.0}, {"codec": "b", "x": 1.0}])
    put(path, "command", ("codec",), [{"codec": "b", "x": 2.0}])
    points = json.loads(path.read_text())["summary"]["points"]
    assert points == [{"codec": "a", "x": 7.0}, {"codec": "b", "x": 2.0}]


def test_the_table_stands_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{''.join(suite.MARKS)}\nafter\n")
    _, record, _ = ran([row("r", ratio("a"), Line("b", 3.0, "s"))], tmp_path / "r.json")
    for _ in range(2):  # it replaces itself
        suite.publish(record | {"date": "2026-01-01T", "cores": 2, "backend": "cpu"}, page)
    text = page.read_text()
    assert text.count("| a | – | – | 2 | <= 1 |") == 1 and "| b | 3 s | – | – | – |" in text
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert all(mark in (ROOT / "docs" / "commands.md").read_text() for mark in suite.MARKS)


def test_the_share_of_communication_beside_computation():
    """0 .. 10 is sent, 4 .. 6 and 9 .. 20 computed: 3 of 10. Another device sends 10 alone."""

    def event(pid, tid, name, begin, end):
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin, "dur": end - begin}

    def process(pid, name):
        return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}

    frame = {"ph": "M", "pid": 1, "tid": 3, "name": "thread_name", "args": {"name": "XLA Modules"}}
    first = [
        event(1, 1, "ncclDevKernel_AllReduce_Sum", 0, 10),
        event(1, 2, "fusion.1", 4, 6),
        event(1, 2, "dot.3", 9, 20),
        event(1, 3, "jit_step", 0, 20),
    ]
    host = [process(9, "/host:CPU"), event(9, 1, "all-reduce.1", 0, 99), event(9, 2, "dot", 0, 99)]
    alone = [process(1, "/device:GPU:0"), frame, *first, *host]
    assert accelerator.beside(alone) == pytest.approx(0.3)
    second = [process(2, "/device:GPU:1"), event(2, 1, "all-reduce.7", 5, 15)]
    assert accelerator.beside([*alone, *second]) == pytest.approx(0.15)
    assert accelerator.beside(host) is None


@pytest.mark.slow
@pytest.mark.parametrize("family", ["all-reduce", "gossip"])
def test_both_sides_of_a_step_train_the_same_model(family):
    given = *floors.task_and_sampler(4), 4, 3, 1
    both = {
        "all-reduce": lambda: floors.all_reduce_sides(*given, loops=accelerator.LOOPS),
        "gossip": lambda: floors.gossip_sides(
            *given, step=floors.ring_step, loops=accelerator.LOOPS
        ),
    }[family]()
    ours = both.pop("ours")().params
    for floor in both.values():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, floor()[0])


def test_every_goal_is_of_a_codec_that_there_is():
    names = codec_calls.candidates(500)
    for start in suite.CODEC_GOALS:
        assert any(name.startswith(start) for name in names), start
    assert set(codec_calls.WORKERS) <= set(names)


@pytest.mark.parametrize("case", suite.CASES)
def test_every_case_of_arms_is_an_arm_of_its_sweep(case):
    first, second = suite.arms_of(case, 2)
    assert first.name == second.name == suite.CASES[case][1]
    assert (first.seed, second.seed) == (0, 1)


def command(module, *arguments):
    flags = ("--xla_force_host_platform_device_count=2", "--xla_backend_optimization_level=0")
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        env=os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"},
    )


def test_the_suite_measures_rows_that_are_named(tmp_path):
    path = tmp_path / "suite.json"
    ended = command("suite", "--tiny", "--only=codecs,buckets,schedules", f"--output={path}")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    record = json.loads(path.read_text())
    assert {row["section"] for row in record["rows"]} == {
        "codecs over copy", "buckets", "schedules"
    }  # fmt: skip
    assert all(line["value"] >= 0 for row in record["rows"] for line in row["lines"])


@pytest.mark.slow
def test_the_tiny_suite_measures_every_row(tmp_path):
    path = tmp_path / "suite.json"
    ended = command("suite", "--tiny", "--minutes=60", f"--output={path}")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert set(states(json.loads(path.read_text())).values()) == {"ran"}


@pytest.mark.slow
def test_the_tiny_command_for_accelerators_measures_every_row(tmp_path):
    ended = command(
        "accelerator", "--tiny", "--minutes=60", "--processes=2", f"--folder={tmp_path}"
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    record = json.loads((tmp_path / "accelerator_cpu.json").read_text())
    assert record["complete"] and record["device"]["count"] == 2
    assert set(states(record).values()) == {"ran"}
    lines = [line for row in record["rows"] for line in row["lines"]]
    assert all(math.isfinite(line["value"]) and line["value"] > 0 for line in lines)
    steps = [line for line in lines if "TFLOP/s" in line["facts"]]
    assert len(steps) == 6 and all(line["facts"]["peak"] == "unknown" for line in steps)
    buckets = [line["facts"] for line in lines if "planned" in line["facts"]]
    assert [fact["planned"] == fact["compiled"] for fact in buckets] == [True] * 3
    assert list((tmp_path / "accelerator_cpu_profile").rglob("*.xplane.pb"))
