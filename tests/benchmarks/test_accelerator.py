"""The command for an accelerator: its bookkeeping, its formulas, and a tiny run of the whole."""

import json
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import codec_calls, sides, traces
from benchmarks.accelerator_record import Line, Row, Skip, compared, run, write
from benchmarks.accelerator_rows import CODEC_GOALS, LOOPS
from benchmarks.floors import ring_step
from experiments import peaks, stopwatch
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


# --- bookkeeping ---


def test_a_row_without_memory_or_with_an_error_says_so_and_the_next_one_runs(tmp_path):
    device = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
    rows = [
        row("device", ratio("kept"), error=device),
        row("host", error=MemoryError()),
        row("elsewhere", error=Skip("there is one device")),
        row("last", ratio("found")),
    ]
    good, record, printed = ran(rows, tmp_path / "record.json")
    assert good and record["complete"]
    assert states(record) == {
        "device": "out of memory",
        "host": "out of memory",
        "elsewhere": "skipped",
        "last": "ran",
    }
    assert [line["name"] for line in record["rows"][0]["lines"]] == ["kept"]
    assert any("device: out of memory: " in text and "9 bytes" in text for text in printed)

    good, record, _ = ran([row("broken", error=KeyError("x")), rows[-1]], tmp_path / "other.json")
    assert not good and states(record) == {"broken": "failed", "last": "ran"}
    assert record["rows"][0]["word"] == "KeyError: 'x'"


def test_a_run_that_is_cut_off_leaves_what_it_had_found(tmp_path):
    path = tmp_path / "record.json"
    rows = [row("first", ratio("a")), row("second", ratio("b"), error=KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        ran(rows, path)
    record = json.loads(path.read_text())
    assert not record["complete"]
    assert states(record) == {"first": "ran", "second": "under way"}
    assert [line["name"] for line in record["rows"][1]["lines"]] == ["b"]


def test_the_record_holds_a_line_before_the_next_one_is_measured(tmp_path):
    path = tmp_path / "record.json"
    seen = []

    def measure(budget):
        for name in "ab":
            yield ratio(name)
            seen.append([line["name"] for line in json.loads(path.read_text())["rows"][0]["lines"]])

    ran([Row("a section", "both", measure)], path)
    assert seen == [["a"], ["a", "b"]]
    assert [path] == list(tmp_path.iterdir())  # nothing is left of the replacing


def test_a_row_that_would_not_fit_is_skipped_with_a_word(tmp_path):
    now = iter(range(0, 1000, 10))  # a look at the clock takes 10 s
    budgets = []

    def measure(budget):
        budgets.append(budget)
        return [ratio("a")]

    rows = [
        Row("s", "fits", measure, 80.0),
        Row("s", "large", measure, 75.0),
        Row("s", "small", measure, 5.0),
    ]
    good, record, printed = ran(
        rows, tmp_path / "record.json", 100.0, share=0.5, clock=lambda: next(now)
    )
    assert good and states(record) == {"fits": "ran", "large": "skipped", "small": "ran"}
    assert record["rows"][1]["word"] == "takes about 75 s, 70 s are left; raise --minutes"
    assert budgets == [45.0, 25.0]  # half of the 90 and of the 50 seconds left
    assert any(text.startswith("large: skipped: takes") for text in printed)


def test_only_a_row_for_always_runs_when_no_time_is_left(tmp_path):
    late = row("profile", ratio("a"))._replace(always=True)
    good, record, _ = ran([row("other", ratio("b")), late], tmp_path / "record.json", 0.0)
    assert good and states(record) == {"other": "skipped", "profile": "ran"}
    assert record["rows"][0]["word"] == "0 s are left; raise --minutes"


def test_what_a_line_says_of_its_goal():
    assert ratio("a", 2.3, 1.0).verdict == "missed by 2.3x"
    assert ratio("a", 1.0, 1.0).verdict == "met"
    assert ratio("a", 5.0, None).verdict == "" and ratio("a", 5.0, None).excess == 0


def test_numbers_that_are_not_finite_become_null(tmp_path):
    write(tmp_path / "r.json", {"a": math.inf, "b": [np.float32(0.5), math.nan], "c": (1, "x")})
    assert json.loads((tmp_path / "r.json").read_text()) == {
        "a": None,
        "b": [0.5, None],
        "c": [1, "x"],
    }


def test_a_compared_row_divides_the_first_by_the_second(monkeypatch):
    monkeypatch.setattr(
        stopwatch, "seconds", lambda candidates, budget: {"ours": 3.0, "floor": 2.0}
    )
    measured = compared("s", "name", 1.03, dict, 0.0, lambda taken: {"twice": 6.0}, scale=0.5)
    (line,) = measured.measure(1.0)
    assert line.value == 0.75 and line.goal == 1.03 and line.facts == {"twice": 6.0}


# --- formulas ---


def test_utilisation_on_worked_numbers():
    """2e12 FLOPs in 10 ms are 200 TFLOP/s: 40.4 % of an H100's 494.7 in TF32."""
    peak = peaks.peak_of("NVIDIA H100 80GB HBM3")
    use = peaks.utilisation(2e12, 0.01, peak)
    assert use["TFLOP/s"] == pytest.approx(200.0)
    assert use["utilisation"] == pytest.approx(200 / 494.7)
    assert use["peak"] == "494.7 TF32"
    assert peaks.utilisation(2e12, 0.01, None) == {
        "TFLOP/s": pytest.approx(200.0),
        "utilisation": None,
        "peak": "unknown",
    }


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.4),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6e", 918),
    ],
)
def test_the_most_special_name_of_a_device_counts(kind, tera):
    assert peaks.peak_of(kind).bfloat16 == tera * 1e12


def test_an_unknown_device_has_no_peak():
    assert peaks.peak_of("cpu") is None


def test_flops_of_a_product_and_its_gradient():
    """[3, 4] @ [4, 5]: 2 * 3 * 4 * 5 = 120; the gradient by the right side is as much again."""
    x, w = jnp.ones((3, 4)), np.ones((4, 5), np.float32)
    assert peaks.flops(lambda x, w: x @ w, x, w) == 120
    by_right = jax.grad(lambda w, x: jnp.vdot(x @ w, jnp.ones((3, 5))))
    assert 120 <= peaks.flops(by_right, w, x) <= 240 + 3 * 60  # without or with the forward pass


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
    assert traces.beside(alone) == pytest.approx(0.3)
    second = [process(2, "/device:GPU:1"), event(2, 1, "all-reduce.7", 5, 15)]
    assert traces.beside([*alone, *second]) == pytest.approx(0.15)
    assert traces.beside(host) is None


# --- candidates ---


@pytest.mark.slow
@pytest.mark.parametrize("family", ["all-reduce", "gossip"])
def test_both_sides_of_a_step_train_the_same_model(family):
    task, sampler = sides.task_and_sampler(4)
    both = {
        "all-reduce": lambda: sides.all_reduce_sides(task, sampler, 4, 3, 1, loops=LOOPS),
        "gossip": lambda: sides.gossip_sides(task, sampler, 4, 3, 1, step=ring_step, loops=LOOPS),
    }[family]()
    ours = both.pop("ours")().params
    assert list(both) == ["floor", "looped"]
    for floor in both.values():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, floor()[0])


def test_every_goal_is_of_a_codec_that_there_is():
    names = codec_calls.candidates(500, 0.02)
    for start in CODEC_GOALS:
        assert any(name.startswith(start) for name in names), start
    assert set(codec_calls.WORKERS) <= set(names)


def test_bfloat16_and_bitmaps_return_what_they_were_given():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((40, 500)), jnp.float32)
    message, decoded = jax.jit(codec_calls.bfloat16)(x)
    assert message.dtype == jnp.bfloat16
    np.testing.assert_allclose(decoded, x, rtol=2**-8)
    np.testing.assert_array_equal(codec_calls.occupancy(x.at[3].set(0)), np.arange(40) != 3)


# --- the whole ---


@pytest.mark.slow
def test_the_tiny_command_measures_every_row(tmp_path):
    flags = ("--xla_force_host_platform_device_count=2", "--xla_backend_optimization_level=0")
    command = [sys.executable, "-m", "benchmarks.accelerator", "--tiny", "--processes=2"]
    ended = subprocess.run(
        [*command, f"--folder={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"},
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    record = json.loads((tmp_path / "accelerator_cpu.json").read_text())
    assert record["complete"] and record["device"]["count"] == 2
    assert record["command"] == "python -m benchmarks.accelerator --tiny --processes=2"
    assert not {row["name"]: row["word"] for row in record["rows"] if row["state"] != "ran"}
    sections = list(dict.fromkeys(row["section"] for row in record["rows"]))
    assert sections == [
        "steps",
        "simulator over floor",
        "codecs over copy",
        "host callbacks",
        "several devices",
        "profile",
    ]
    lines = [line for row in record["rows"] for line in row["lines"]]
    assert len(lines) == 12 + 3 + 3 + 3 + 1 + 3 + 4 + 1 + 1
    for line in lines:
        assert math.isfinite(line["value"]) and line["value"] > 0, line
        assert line["name"] in ended.stdout
        assert all(value > 0 for value in line["seconds"].values())
    steps = [line for line in lines if "TFLOP/s" in line["facts"]]
    assert len(steps) == 12 and all(line["facts"]["peak"] == "unknown" for line in steps)
    buckets = [line["facts"] for line in lines if "planned" in line["facts"]]
    assert [fact["planned"] == fact["compiled"] for fact in buckets] == [True] * 3
    assert all(fact["beside"].startswith("no device timeline") for fact in buckets)
    assert list((tmp_path / "accelerator_cpu_profile").rglob("*.xplane.pb"))
