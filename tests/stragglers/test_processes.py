import re
import subprocess
import sys

import numpy as np
import pytest

from stragglers import delays, speed_paths, streams
from stragglers.processes import as_process, by_sample, markov, persistent, replayed, spells, trace
from tests.launcher import ROOT
from tests.refusals import refused

LAW = delays.shifted_exponential(1.0, 0.5)


def write(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "process",
    [as_process(LAW), persistent(LAW, {1: 4.0}), markov(LAW, 5.0, 9.0, 1.0)],
    ids=lambda p: p.name,
)
def test_durations_depend_on_the_address_only(process):
    rng = np.random.default_rng(0)
    worker, count = rng.integers(0, 5, 400), rng.integers(0, 3000, 400)
    start = rng.uniform(0, 2000, 400)
    at_once = process.seeded(7).duration(worker, start, count)
    one_by_one = process.seeded(7)
    for i in rng.permutation(400):
        assert one_by_one.duration(worker[i], start[i], count[i]) == at_once[i]
    assert (process.seeded(8).duration(worker, start, count) != at_once).any()
    assert (at_once >= process.shortest).all()
    assert process.seeded(0).duration(np.arange(3)[:, None], 0.0, np.arange(4)).shape == (3, 4)
    assert process.seeded(0).duration(np.arange(0), 0.0).shape == (0,)


def test_processes_share_random_numbers():
    address = (np.arange(3)[:, None], 0.0, np.arange(50))
    plain = as_process(LAW).seeded(4).duration(*address)
    slowed = persistent(LAW, [1.0, 2.0, 4.0]).seeded(4).duration(*address)
    np.testing.assert_array_equal(slowed, plain * [[1], [2], [4]])
    sparse = persistent(LAW, {2: 4.0, 1: 2.0}).seeded(4).duration(*address)
    np.testing.assert_array_equal(sparse, slowed)
    others = persistent(LAW, {0: 3.0}).seeded(4).duration(*address)[1:]
    np.testing.assert_array_equal(others, plain[1:])
    equal = markov(LAW, 1.0, 9.0, 1.0).seeded(4).duration(*address)
    np.testing.assert_allclose(equal, plain, rtol=1e-12)
    held = spells(LAW, 4).seeded(4).duration(1, 0.0, np.arange(12))
    np.testing.assert_array_equal(held, plain[1, np.arange(12) // 4])


def test_markov_durations_integrate_the_speed():
    """Durations of vanishing work give the speed in time, and its integral gives the others."""
    grid = np.arange(0, 60, 1e-3)
    tiny = markov(delays.deterministic(1e-9), 4.0, 3.0, 2.0).seeded(1)
    slowness = np.round(tiny.duration(0, grid, 0) / 1e-9)
    assert set(slowness) == {1.0, 4.0}
    done = np.concatenate([[0], np.cumsum(1e-3 / slowness)])
    process = markov(delays.deterministic(2.5), 4.0, 3.0, 2.0).seeded(1)
    for start in (0.0, 1.7, 11.3, 30.0):
        begun = done[round(start * 1000)]
        expected = np.searchsorted(done, begun + 2.5) * 1e-3 - start
        assert process.duration(0, start, 3) == pytest.approx(expected, abs=0.02)


def test_short_paths_and_many_searches_at_once_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    worker, start = rng.integers(0, 5, (2, 200)), rng.uniform(0, 900, (2, 200))
    start[0] = 0.0
    expected = markov(LAW, 4.0, 3.0, 2.0).seeded(1).duration(worker, start, 2)
    monkeypatch.setattr(speed_paths, "MANY_SOJOURNS", 6)
    monkeypatch.setattr(speed_paths, "MANY_SEARCHES", 1)
    monkeypatch.setattr(streams, "AT_ONCE", 1)  # and draws for one worker after the other
    found = markov(LAW, 4.0, 3.0, 2.0).seeded(1).duration(worker, start, 2)
    np.testing.assert_array_equal(found, expected)


def test_markov_starts_stationary():
    process = markov(delays.deterministic(1e-6), 5.0, 9.0, 1.0).seeded(0)
    slow = process.duration(np.arange(4000)[:, None], np.array([0.0, 25.0]), 0) > 2e-6
    np.testing.assert_allclose(slow.mean(axis=0), 0.1, atol=0.02)


def test_trace_replays_by_time_and_wraps_around(tmp_path):
    path = write(
        tmp_path / "trace.csv",
        "row,worker,gpu,time,batch_time\n0,10,25,2,30\n1,9,25,1,1\n2,10,25,1,20\n3,10,25,11,40\n",
    )
    process = trace(path).seeded(0)
    np.testing.assert_array_equal(process.duration(0, 0.0, np.arange(3)), [1, 1, 1])
    np.testing.assert_array_equal(process.duration(1, 5.0, np.arange(5)), [20, 30, 40, 20, 30])
    np.testing.assert_array_equal(process.duration([2, 3], 0.0, 1), [1, 30])
    assert trace(path).shortest == 1.0


def test_a_trace_has_workers_in_natural_order_and_says_what_was_read(tmp_path):
    rows = "".join(f"gpu-{i},{step},{i / 8}\n" for i in (12, 9, 10, 8) for step in (1, 0))
    path = write(tmp_path / "t.csv", "worker,time,batch_time\n" + rows + ",,\n")
    process = trace(path).seeded(0)
    np.testing.assert_array_equal(process.duration(np.arange(4), 0.0), [1, 1.125, 1.25, 1.5])
    assert process.names == ("gpu-8", "gpu-9", "gpu-10", "gpu-12")
    assert process.read == (
        f"{path}: 8 durations of 4 workers, 2 each (workers from 0 on are gpu-8, gpu-9, gpu-10, "
        "gpu-12; the file has none between gpu-10 and gpu-12), median 1.19 s, slowest gpu-12 "
        "(1.26 times the median worker, by medians), taken as seconds (milliseconds have "
        "scale=0.001), "
        "1 empty rows left out"
    )
    assert spells(persistent(process, {0: 2.0}), 2).read == process.read


@pytest.mark.parametrize(
    "text, options, records",
    [
        ("Worker;Step;Batch_Time_ms\r\n1;0;2000,5\r\n0;0;1500\r\n", {}, None),
        ("# 2 nodes\nworker\tStep\tbatch_time\n0\t0\t1.5\n1\t0\t2.0005\n", {}, None),
        ("Step,rank1_ms,rank0_ms,loss\n7,2000.5,1500,0.1\n", {}, None),
        ("Step,rank10,loss,rank9\n2026-05-01T12:00,2.0005,3,1.5\n", {}, None),
        ("worker,Step,batch_time\n0,2026-05-01T12:00Z,1.5\n1,2026-05-01,2.0005\n", {}, None),
        (' worker , "Step", batch_time [us] \r\n a, 0, 1.5e6 \r\n"b",0, 2000500\r\n', {}, None),
        ("worker,Step,batch_time(ns)\n0,0,15\n1,0,20\n", {"scale": 0.1}, [[1.5], [2]]),
        ("worker,Step,batch_time_s\n0,0,90\n1,0,91\n", {}, [[90], [91]]),
        ("worker,Step,batch_time\n0,0,1\n1,0,4\n", {"mean": 5.0}, [[2], [8]]),
        ("Step,rank1,rank0\n2,8,4\n10,9,5\n1,7,3\n", {}, [[3, 4, 5], [7, 8, 9]]),
        # rows of several writers, whose times have no common start
        ("worker,Step,batch_time\n1,30,7\n0,1e3,3\n1,-2,5\n0,20,1\n1,4.5,6\n0,100,2", {},
         [[1, 2, 3], [5, 6, 7]]),
        ("worker,batch_time\n0,3\n0,1", {"time": None}, [[3, 1]]),
        ("n,Step,took\nb,1,7\na,1,5\n", {"worker": "n", "duration": "took"}, [[5], [7]]),
        ("# by numpy.savetxt\n# worker,Step,batch_time\n0.0e+00,0.0,1.5\n1.0e+00,0.0,2.0005\n",
         {}, None),
        ("sep=;\nworker;Step;batch_time\n0;0;1,5\n1;0;2,0005\n", {}, None),
        ("worker Step   batch_time\n 0    0   1.5\n 1    0   2.0005 \n", {}, None),
        ("worker|Step|batch_time\n0|0|1.5\nworker|Step|batch_time\n1|0|2.0005\n", {}, None),
        ("worker\tStep\tbatch_time\n0\t0\t1,5\n1\t0\t2,0005\n", {}, None),
        ("Step rank0 rank1\n0 1,500 2,0005\n", {}, None),
        ('{"rank": 0, "Step": 3, "step_time": 1.5}', {}, [[1.5]]),
        ("workerId,Step,batchTimeMs\n0,0,1500\n1,0,2000.5\n", {}, None),
        ("worker,Step,batch_time_ms,wait_s\n0,0,2.5,1\n1,0,3.0005,1\n",
         {"scale": 1.0, "waiting": "wait"}, None),
        # a duration that is called time is not the order as well
        ("rank,Step,Time\n0,2,1\n0,1,3\n", {"time": "time", "duration": "time"}, [[3, 1]]),
        ("card,step,time\n0,2,1\n0,1,3\n", {"worker": "card", "time": "time"}, [[3, 1]]),
        ("rank,Step,Time,lost\n0,2,3,1\n0,1,3,2\n", {"time": "time", "waiting": "lost"},
         [[1, 2]]),
    ],
)  # fmt: skip
def test_tables_of_other_programs_are_read(tmp_path, text, options, records):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode("utf-16" if "\t" in text else "utf-8-sig"))
    process = trace(path, **{"time": "Step"} | options)
    np.testing.assert_allclose(process.records, records or [[1.5], [2.0005]])


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no column 'worker'; it has none"),
        ("worker,time,ms\n0,0,1\n", "has no column 'batch_time'; it has worker, time, ms"),
        ("worker,time,batch_time\n", "has no records"),
        ("worker,time,batch_time\n0,0,1\n0,1,0\n", "line 3 has time='1', batch_time='0'"),
        ("\n\nworker,time,batch_time\n\n0,0,1\n , \n0,1,-1\n", "line 7 has"),
        ("card;time;batch_time\n0;0;1\n", "it has card, time, batch_time; .*bad.csv', worker='"),
        ('{"worker": 0}', "no column 'time'; it has worker; .* rows in their order with time=None"),
        ('{"traceEvents": 0}', "its traceEvents are no list"),
        ('[{"worker": 0},\n{"worker"}]', "line 2 column 10"),
        ('{"worker": 0}\n{"worker": 1}\n{"wor', "line 3 column 2"),
        ("step,rank0,rank1\n0,1,2\n1,1,\n", "line 3 has step='1', rank1=''"),
        ("step,rank0,rank1\n0,1,2\n0,1,2\n", "line 2 and line 3 both have worker 'rank0'"),
        ("worker,time,batch_time,time\n0,0,1,2\n", "two columns 'time'"),
        ("worker,time,batch_time\n0,0,0,25\n", "line 2 has 4 values for 3 columns"),
        ("worker,time,batch_time\n0,5,1\n0,6,1\n1,5,1\n0,5,2\n", "line 2 and line 5 both have"),
        ("host,gpu,step,seconds\na,0,1,1\na,1,1,1\na,1,1,2\n", "3 and line 4 both have .* 'a/1'"),
        ("gpu,step,seconds,host\n0,1,1,a\n1,1,1,a\n1,2,1\n", "line 4 has host=None"),
        ("host,rank,step,seconds\na,0,1,1\nb,0,1,1\n", "by their host, too: worker='host'"),
        ("worker,time,batch_time\n0,0,85\n0,1,97\n", "a median of 91, .*give scale=1e-3"),
        ("worker\ttime\tbatch_time\n0\t0\t1,500\n", "batch_time='1,500'"),  # or 1.5
        ("worker time batch_time gpus\n0 0 1,500 0,1\n", "batch_time='1,500'"),
    ],
)
def test_bad_traces(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        trace(write(tmp_path / "bad.csv", text))


@pytest.mark.parametrize("times", [lambda i, n: n, lambda i, n: 1e9 + 7 * n + 0.1 * i])
def test_steps_that_end_together_are_told_apart_from_computing(tmp_path, times):
    """Worker 2 computes three times as long; the others wait for it, and a step shows the sum."""
    rng = np.random.default_rng(1)
    computing = 0.1 * rng.uniform(0.8, 1.2, (20, 3)) * [1, 1, 3]  # [steps, workers] s
    whole = computing.max(axis=1, keepdims=True) + rng.uniform(0, 1e-4, computing.shape)
    rows = [
        f"{i},{times(i, n)},{1e3 * whole[n, i]},{1e6 * (whole - computing)[n, i]},{computing[n, i]}"
        for n in range(20)
        for i in range(3)
    ]
    header = "worker,time,step_ms,comm_us,batch_time\n"
    path = str(write(tmp_path / "steps.csv", header + "\n".join(rows)))
    fewer = str(write(tmp_path / "fewer.csv", header + "\n".join(rows[:-1])))
    with pytest.raises(ValueError, match=r"hides who is slow; log the time of computing alone"):
        trace(path, duration="step")
    with pytest.raises(ValueError, match="hides who is slow"):
        trace(fewer, duration="step")
    assert "slowest 0 (1 times" in trace(path, duration="step", in_step=True).read
    assert "slowest 2 (3" in trace(path).read
    first = [f"{i},{times(-1, -1)},0,0,{40 + i}" for i in range(3)]  # as it is compiled
    compiled = str(write(tmp_path / "compiled.csv", header + "\n".join(first + rows)))
    assert "slowest 2 (3" in trace(compiled).read
    less = trace(path, duration="step", waiting="comm")
    np.testing.assert_allclose(less.records, computing.T)
    with pytest.raises(ValueError, match=r"line 2 has .*batch_time='0.*step_ms='"):
        trace(path, waiting="step")


test_bad_values = refused(
    (lambda: spells(LAW, 0), "needs mini_batches >= 1, got 0"),
    (lambda: spells(by_sample(LAW), 5), r"write by_sample\(spells\(\.\.\.\)\)"),
    (lambda: persistent(LAW, {-1: 2.0}), "count from the first worker"),
    (lambda: persistent(LAW, [1.0, 0.0]), "needs positive factors"),
    (lambda: persistent(LAW, [1.0]).seeded(0).duration(1, 0.0), "1 factors, but worker 1"),
    (lambda: persistent(LAW, {0.5: 2.0}), "count from the first worker"),
    *((lambda times=times: replayed("mine", times), f"mine: needs .*, got {re.escape(found)} for")
      for times, found in (([[1.0], [2.0, np.nan]], "[2.0, nan]"), ([[1.0, -1.0]], "[1.0, -1.0]"),
                           ([[1.0], []], "[]"), ([], "[]"), ([3.0, 4.0], "3.0"))),
    (lambda: markov(LAW, 5.0, 0.0, 1.0), "needs mean_normal > 0, got mean_normal=0.0"),
    (lambda: as_process(LAW).duration(0, 0.0), "has no seed; call"),
    (lambda: as_process(0.1), "needs a distribution or a process, got 0.1; write"),
    (lambda: trace("nowhere.csv"), "cannot read nowhere.csv"),
    (lambda: trace("~nobody of this name/log.csv"), "cannot read ~nobody of this name"),
    (lambda: trace("x.csv", scale=2.0, mean=1.0), "exclude each other"),
)


@pytest.mark.slow
def test_processes_travel_to_workers():
    """In a process of its own, as cloudpickle reads variables once."""
    lines = """
from ray import cloudpickle
from stragglers import delays
from stragglers.processes import as_process, markov, persistent, spells
slow = markov(delays.exponential(1.0), 5.0, 9.0, 1.0)
for process in (as_process(delays.exponential(1.0)), persistent(slow, {1: 4.0}), spells(slow, 3)):
    there = cloudpickle.loads(cloudpickle.dumps(process))
    assert there.seeded(1).duration(1, 0.5, 2) == process.seeded(1).duration(1, 0.5, 2)
"""
    subprocess.run([sys.executable, "-c", lines], cwd=ROOT, check=True)
