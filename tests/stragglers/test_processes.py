import subprocess
import sys

import numpy as np
import pytest

from stragglers import delays, processes, speed_paths, streams
from stragglers.processes import as_process, markov, persistent, spells, trace
from tests.launcher import ROOT

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


def test_arguments_broadcast():
    process = as_process(LAW).seeded(0)
    assert process.duration(np.arange(3)[:, None], 0.0, np.arange(4)).shape == (3, 4)
    assert process.duration(0, np.zeros((2, 1)), np.arange(5)).shape == (2, 5)
    assert process.duration(np.arange(3), 0.0).shape == (3,)
    assert process.duration(np.arange(0), 0.0).shape == (0,)


def test_a_law_draws_its_own_distribution():
    process = as_process(LAW).seeded(0)
    sample = process.duration(np.arange(10)[:, None], 0.0, np.arange(20_000))
    np.testing.assert_allclose(sample.mean(), LAW.mean(), rtol=0.01)
    assert abs(np.corrcoef(sample)[np.triu_indices(10, 1)]).max() < 0.03  # 4 standard errors


def test_processes_share_random_numbers():
    address = (np.arange(3)[:, None], 0.0, np.arange(50))
    plain = as_process(LAW).seeded(4).duration(*address)
    slowed = persistent(LAW, [1.0, 2.0, 4.0]).seeded(4).duration(*address)
    np.testing.assert_array_equal(slowed, plain * [[1], [2], [4]])
    sparse = persistent(LAW, {2: 4.0, 1: 2.0}).seeded(4).duration(*address)
    np.testing.assert_array_equal(sparse, slowed)
    np.testing.assert_array_equal(
        persistent(LAW, {0: 3.0}).seeded(4).duration(*address)[1:], plain[1:]
    )


def test_markov_with_equal_speeds_is_its_law():
    address = (np.arange(3)[:, None], np.linspace(0, 99, 50), np.arange(50))
    np.testing.assert_allclose(
        markov(LAW, 1.0, 9.0, 1.0).seeded(4).duration(*address),
        as_process(LAW).seeded(4).duration(*address),
        rtol=1e-12,
    )


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


def test_markov_of_many_workers_begins_with_short_paths(monkeypatch):
    worker, start = np.arange(6), np.array([0.0, 3.0, 700.0, 50.0, 0.0, 10.0])
    process = markov(LAW, 4.0, 3.0, 2.0)
    expected = process.seeded(1).duration(worker, start, 2)
    monkeypatch.setattr(speed_paths, "MANY_SOJOURNS", 6)
    found = markov(LAW, 4.0, 3.0, 2.0).seeded(1).duration(worker, start, 2)
    np.testing.assert_array_equal(found, expected)


def test_many_searches_at_once_find_what_few_find(monkeypatch):
    rng = np.random.default_rng(0)
    worker, start = rng.integers(0, 5, (2, 200)), rng.uniform(0, 900, (2, 200))
    start[0] = 0.0
    expected = markov(LAW, 4.0, 3.0, 2.0).seeded(1).duration(worker, start, 2)
    monkeypatch.setattr(speed_paths, "MANY_SEARCHES", 1)
    monkeypatch.setattr(streams, "AT_ONCE", 1)  # and draws for one worker after the other
    found = markov(LAW, 4.0, 3.0, 2.0).seeded(1).duration(worker, start, 2)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("until", [0.0, 1e-3, 50.0, 1e5])
def test_paths_of_many_workers_are_long_enough_at_once(until):
    """The odds of a worker whose path ends too early are small, and paths are not much longer."""
    uniforms = streams.addressed(3, 1)
    paths = speed_paths.Paths(uniforms, 4.0, 90.0, 10.0)
    enough = paths.enough(2000, until)
    ends = paths.grown(2000, enough).sojourns[:, -1, speed_paths.SWITCH]
    assert ends.min() > until
    assert enough <= 2 * (until / 50.0) + 20


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
    np.testing.assert_allclose(trace(path, scale=0.1).seeded(0).duration(1, 0.0, 0), 2.0)
    scaled = trace(path, mean=1.0).seeded(0)
    np.testing.assert_allclose(scaled.duration(1, 0.0, 0), 20 / (91 / 4))
    assert trace(path).shortest == 1.0


def test_trace_takes_other_columns(tmp_path):
    path = write(tmp_path / "t.csv", "node,step,took\nb,1,7\na,1,5\n")
    process = trace(path, worker="node", time="step", duration="took").seeded(0)
    np.testing.assert_array_equal(process.duration([0, 1], 0.0), [5, 7])


def test_a_trace_has_workers_in_natural_order_and_says_what_was_read(tmp_path):
    rows = "".join(f"gpu-{i},{step},{i / 8}\n" for i in (12, 9, 10, 8) for step in (1, 0))
    path = write(tmp_path / "t.csv", "worker,time,batch_time\n" + rows + ",,\n")
    process = trace(path).seeded(0)
    np.testing.assert_array_equal(process.duration(np.arange(4), 0.0), [1, 1.125, 1.25, 1.5])
    assert process.names == ("gpu-8", "gpu-9", "gpu-10", "gpu-12")
    assert process.read == (
        f"{path}: 8 durations of 4 workers, 2 each (workers from 0 on are gpu-8, gpu-9, gpu-10, "
        "gpu-12; the file has none between gpu-10 and gpu-12), median 1.19 s, slowest gpu-12 "
        "(1.26 times the median worker), taken as seconds (milliseconds have scale=0.001), "
        "1 empty rows left out"
    )
    assert spells(persistent(process, {0: 2.0}), 2).read == process.read


def test_records_are_in_the_order_of_their_times(tmp_path):
    """Rows of several writers come in any order, and times need no common start."""
    rows = ["1,30,7", "0,1e3,3", "1,-2,5", "0,20,1", "1,4.5,6", "0,100,2"]
    process = trace(write(tmp_path / "t.csv", "\n".join(["worker,time,batch_time", *rows])))
    np.testing.assert_array_equal(process.records, [[1, 2, 3], [5, 6, 7]])
    unsorted = trace(
        write(tmp_path / "t.csv", "\n".join(["worker,batch_time", "0,3", "0,1"])), time=None
    )
    np.testing.assert_array_equal(unsorted.records, [[3, 1]])


@pytest.mark.parametrize(
    "column, number, seconds",
    [
        ("batch_time_ms", 250, 0.25),
        ("batch_time [us]", 250, 2.5e-4),
        ("batch_time(ns)", 1e9, 1.0),
        ("batch_time_s", 90, 90.0),
    ],
)
def test_the_unit_behind_a_column_counts(tmp_path, column, number, seconds):
    path = write(tmp_path / "t.csv", f"worker,time_ns,{column}\n0,0,{number}\n")
    for named in ({}, {"duration": column}):
        assert trace(path, **named).shortest == pytest.approx(seconds)
    assert trace(path, scale=0.5).shortest == number / 2
    assert trace(path, mean=3.0).shortest == pytest.approx(3.0)


def test_spaces_and_a_byte_order_mark_are_no_part_of_names(tmp_path):
    text = '\ufeff worker , "time", batch_time \r\n a, 0, 1.5 \r\n"b",0, 2\r\n'
    process = trace(write(tmp_path / "t.csv", text))
    assert process.names == ("a", "b") and process.shortest == 1.5


@pytest.mark.parametrize(
    "text, encoding",
    [
        ("Worker;Step;Batch_Time_ms\r\n1;0;2000,5\r\n0;0;1500\r\n", "utf-8"),
        ("# 2 nodes\nworker\tStep\tbatch_time\n0\t0\t1.5\n1\t0\t2.0005\n", "utf-16"),
        ("Step,rank1_ms,rank0_ms,loss\n7,2000.5,1500,0.1\n", "utf-8-sig"),
        ("Step,rank10,loss,rank9\n2026-05-01T12:00,2.0005,3,1.5\n", "utf-8"),
        ("worker,Step,batch_time\n0,2026-05-01T12:00Z,1.5\n1,2026-05-01,2.0005\n", "utf-8"),
    ],
)
def test_tables_of_other_programs_are_read(tmp_path, text, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    process = trace(path, time="Step")
    np.testing.assert_allclose(process.records, [[1.5], [2.0005]])


def test_a_column_a_worker_is_in_the_order_of_its_times(tmp_path):
    rows = "time,rank1,rank0\n2,8,4\n10,9,5\n1,7,3\n"
    process = trace(write(tmp_path / "t.csv", rows))
    assert process.names == ("rank0", "rank1")
    np.testing.assert_array_equal(process.records, [[3, 4, 5], [7, 8, 9]])


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no column 'worker'; it has none"),
        ("worker,time,ms\n0,0,1\n", "has no column 'batch_time'; it has worker, time, ms"),
        ("worker,time,batch_time\n", "has no records"),
        ("worker,time,batch_time\n0,0,1\n0,1,0\n", "line 3 has time='1', batch_time='0'"),
        ("worker,time,batch_time\n0,0,fast\n", "batch_time='fast'; keep numbers"),
        ("\n\nworker,time,batch_time\n\n0,0,1\n , \n0,1,-1\n", "line 7 has"),
        ("card;time;batch_time\n0;0;1\n", "it has card, time, batch_time; .*bad.csv', worker='"),
        ('{"worker": 0}', "JSON without the traceEvents"),
        ("step,rank0,rank1\n0,1,2\n1,1,\n", "line 3 has time='3', batch_time=''"),
        ("step,loss0,rank1\n0,1,2\n", "no column 'worker'"),
        ("worker,time,batch_time,time\n0,0,1,2\n", "two columns 'time'"),
        ("worker,time,batch_time\n0,0,0,25\n", "line 2 has 4 values for 3 columns"),
        ("worker,time,batch_time\n0,5,1\n0,6,1\n1,5,1\n0,5,2\n", "line 2 and line 5 both have"),
        ("worker,time,batch_time\n0,0,85\n0,1,97\n", "a median of 91, .*give scale=1e-3"),
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
    assert "hides who is slow" in trace(path, duration="step").read
    assert "slowest 2 (3" in trace(path).read and "warning" not in trace(path).read
    less = trace(path, duration="step", waiting="comm")
    assert "warning" not in less.read
    np.testing.assert_allclose(less.records, computing.T)
    with pytest.raises(ValueError, match=r"line 2 has .*batch_time='0.*step_ms='"):
        trace(path, waiting="step")


def test_spells_hold_a_draw_for_so_much_work():
    plain = as_process(LAW).seeded(3)
    slow = spells(LAW, 4).seeded(3)
    count = np.arange(12)
    np.testing.assert_array_equal(slow.duration(1, 0.0, count), plain.duration(1, 0.0, count // 4))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: spells(LAW, 0), "needs mini_batches >= 1, got 0"),
        (lambda: persistent(LAW, {-1: 2.0}), "count from the first worker"),
        (lambda: persistent(LAW, [1.0, 0.0]), "needs positive factors"),
        (lambda: persistent(LAW, []), "needs positive factors"),
        (lambda: persistent(LAW, [1.0]).seeded(0).duration(1, 0.0), "1 factors, but worker 1"),
        (lambda: markov(LAW, 0.5, 1.0, 1.0), "markov: needs factor >= 1, got 0.5"),
        (lambda: markov(LAW, 5.0, 0.0, 1.0), "needs mean_normal > 0, got mean_normal=0.0"),
        (lambda: as_process(LAW).duration(0, 0.0), "has no seed; call"),
        (lambda: trace("nowhere.csv"), "cannot read nowhere.csv"),
        (lambda: trace("x.csv", scale=2.0, mean=1.0), "exclude each other"),
        (lambda: trace("x.csv", scale=0.0), "needs scale > 0"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_registry_is_complete():
    assert set(processes.PROCESSES) == {"persistent", "spells", "markov", "trace"}


PICKLED = """
import numpy as np
from ray import cloudpickle  # in a process of its own, as it reads variables once
from stragglers import delays
from stragglers.processes import as_process, markov, persistent, spells

LAW = delays.shifted_exponential(1.0, 0.5)
for process in (as_process(LAW), persistent(LAW, {1: 4.0}), markov(LAW, 5.0, 9.0, 1.0),
                spells(markov(LAW, 5.0, 9.0, 1.0), 3)):
    drawn = process.seeded(1).duration(np.arange(3), 0.5, 2)
    there = cloudpickle.loads(cloudpickle.dumps(process))
    np.testing.assert_array_equal(there.seeded(1).duration(np.arange(3), 0.5, 2), drawn)
"""


@pytest.mark.slow
def test_processes_travel_to_workers():
    subprocess.run([sys.executable, "-c", PICKLED], cwd=ROOT, check=True)
