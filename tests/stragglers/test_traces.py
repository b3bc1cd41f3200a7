"""Files of durations beyond a single CSV table."""

import gzip
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from stragglers.processes import PROCESSES, trace
from stragglers.traces import statistics

HEADER, ROWS = "worker,time,batch_time\n", ["0,0,1.5", "1,0,2.5", "0,1,3.5", "1,1,4.5"]
WANTED = [[1.5, 3.5], [2.5, 4.5]]


def event(name, cat, start, duration):
    return {"ph": "X", "name": name, "cat": cat, "ts": 1.7e15 + start, "dur": duration}


def profiled(computing, rank=None, kernels=True):
    """Return a profile of steps of 1 s, each of which computes and then reduces."""
    events = [{"ph": "M", "name": "process_name"}, event(7, "cpu_op", 0, 1.0)]
    events += [{"ph": "X", "cat": "kernel", "ts": 1.7e15, "dur": 1.0}] if kernels else []
    for number, seconds in enumerate(computing):
        at = 1e6 * number
        events.append(event(f"ProfilerStep#{number + 7}", "user_annotation", at, 1e6))
        events.append(event("nccl:all_reduce", "user_annotation", at, 5.0))
        if kernels:
            events.append(event("gemm", "kernel", at, 0.5e6 * seconds))
            events.append(event("gemm", "kernel", at + 0.5e6 * seconds, 0.5e6 * seconds))
            # It begins beside the computing and goes on alone until the step ends.
            begin = at + 0.9e6 * seconds
            events.append(event("ncclKernel_AllReduce", "kernel", begin, at + 1e6 - begin))
    document = {"traceEvents": events}
    return json.dumps(document | ({} if rank is None else {"distributedInfo": {"rank": rank}}))


PARTS = {f"part{part}.csv": HEADER + "\n".join(ROWS[2 * part :][:2]) for part in (0, 1)}
RANKS = {
    f"run/node{node}/rank{rank}.csv": f"step,seconds\n0,{rank + 1}\n1,{'ab'.index(node) + 3}\n"
    for node in "ab"
    for rank in (0, 1)
}


@pytest.mark.parametrize(
    ("files", "path", "given", "names", "records"),
    [
        ({f"node{n}.csv": f"step,seconds\n0,{n}\n1,{n + 1}\n" for n in (10, 2)}, "node*.csv", {},
         ("2", "10"), [[2, 3], [10, 11]]),
        ({f"node{n}.csv": f"step,seconds\n0,{n}\n1,{n + 1}\n" for n in (10, 2)}, "", {},
         ("2", "10"), [[2, 3], [10, 11]]),
        # Each file has its own decimal mark, and a folder any name.
        ({"[1]/rank0.csv": "step;seconds\n0;1,5\n1;2,5\n",
          "[1]/rank1.csv": "step,seconds\n0,3.5\n1,4.5\n"}, "[1]", {},
         ("0", "1"), [[1.5, 2.5], [3.5, 4.5]]),
        # Files that name their workers, in the order of times or, without times, of their rows.
        (PARTS, "", {}, ("0", "1"), WANTED),
        (PARTS, "", {"time": None}, ("0", "1"), WANTED),
        # Of files of one name the folders tell which worker it is.
        (RANKS, "run/node*/rank*.csv", {},
         tuple(f"node{n}/rank{r}.csv" for n in "ab" for r in (0, 1)),
         [[1, 3], [2, 3], [1, 4], [2, 4]]),
        ({f"run/deep/rank{r}.csv": f"step,seconds\n0,{r + 1}\n" for r in (0, 1)}, "**/rank*.csv",
         {}, ("0", "1"), [[1], [2]]),
    ],
    ids=["pattern", "folder", "marks", "parts", "order", "folders", "below"],
)  # fmt: skip
def test_files_are_joined(tmp_path, files, path, given, names, records):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = trace(str(tmp_path / path), **given)
    assert found.names == names
    np.testing.assert_array_equal(found.records, records)


def test_files_that_are_no_workers_of_one_run_are_refused(tmp_path):
    (tmp_path / "node2.csv").write_text("step,seconds\n0,2\n")
    (tmp_path / "node3.csv").write_text("step,loss\n0,1\n")
    with pytest.raises(ValueError, match=r"node2\.csv has the columns .*, .*node3\.csv has"):
        trace(str(tmp_path / "node*.csv"))
    with pytest.raises(ValueError, match="no file has a name of that pattern"):
        trace(str(tmp_path / "rank*.csv"))
    (tmp_path / "node3.csv").write_text("step,seconds\n")
    with pytest.raises(ValueError, match=r"node3\.csv has no records of its worker"):
        trace(str(tmp_path))


def test_commas_are_decimal_in_a_file_with_one_that_separates_no_thousands(tmp_path):
    (tmp_path / "rank0.tsv").write_text("step\tseconds\n0\t0,5\n1\t1,250\n")
    (tmp_path / "rank1.csv").write_text('step,seconds\n0,"1,25"\n1,2\n')
    (tmp_path / "rank2.tsv").write_text("step\tseconds\n0\t3.5\n1\t4\n")
    read = trace(str(tmp_path)).records
    np.testing.assert_array_equal(read, [[0.5, 1.25], [1.25, 2], [3.5, 4]])
    for refused in ("step\tseconds\n0\t999.5\n1\t1,250\n", 'step,seconds\n0,9\n1,"1,250"\n'):
        (tmp_path / "rank2.tsv").write_text(refused)
        with pytest.raises(ValueError, match=r"rank2.tsv line 3 has .*seconds='1,250'; keep num"):
            trace(str(tmp_path))


@pytest.mark.parametrize(
    ("duration", "wait", "given"),
    [
        ("batch_time", "wait_ms", {"scale": 1e-3}),
        ("batch_time_ms", "wait", {}),
        ("batch_time_ms", "wait_us", {}),
    ],
)
def test_a_wait_is_in_the_unit_of_its_column_or_of_the_durations(tmp_path, duration, wait, given):
    waited = 50_000 if wait == "wait_us" else 50
    (tmp_path / "log.csv").write_text(f"worker,time,{duration},{wait}\n0,0,100,{waited}\n")
    found = trace(str(tmp_path / "log.csv"), waiting=wait, **given)
    np.testing.assert_allclose(found.records, [[0.05]])


def test_compressed_tables_and_parquet(tmp_path):
    text = HEADER + "\n".join(ROWS)
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.encode()))
    np.testing.assert_array_equal(trace(str(tmp_path / "log.csv.gz")).records, WANTED)
    cells = np.array([row.split(",") for row in ROWS], float).T
    columns = dict(zip(["rank", "step", "batch_time_ms"], cells, strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    np.testing.assert_allclose(trace(str(tmp_path / "log.parquet")).records, np.divide(WANTED, 1e3))


def test_columns_of_parquet_that_are_no_plain_numbers(tmp_path):
    """Categories, bytes, dates, spans of time and missing values, as pandas and Spark have them."""
    missing = np.arange(5) == 4
    dates = np.datetime64("2026-05-01T12:00") + np.array([1, 0, 0, 1, 0], "m8[s]")
    spans = np.array([4500, 1500, 2500, 3500, 0], "m8[ms]")
    columns = {
        "rank": pyarrow.array([b"r1", b"r0", b"r1", b"r0", None]).dictionary_encode(),
        "timestamp": pyarrow.array(dates.astype("M8[ns]"), mask=missing),
        "step_time": pyarrow.array(spans.astype("m8[ns]"), mask=missing),
        "losses": [[0.5, 0.25]] * 4 + [None],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    found = trace(str(tmp_path / "log.parquet"))
    assert found.names == ("r0", "r1") and "1 empty rows left out" in found.read
    np.testing.assert_array_equal(found.records, WANTED)
    cells = {"worker": [0, None], "time": [0, 1], "batch_time": [1.0, 2.0]}
    parquet.write_table(pyarrow.table(cells), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="line 3 has worker=''"):
        trace(str(tmp_path / "log.parquet"))


def test_numbers_as_numpy_writes_them_name_workers_in_their_order(tmp_path):
    rows = [[worker, 0, worker + 1.0] for worker in range(12)]
    np.savetxt(tmp_path / "log.txt", rows, header="rank step seconds")
    found = trace(str(tmp_path / "log.txt"))
    assert found.names == tuple(map(str, range(12)))
    np.testing.assert_array_equal(np.ravel(found.records), np.arange(1.0, 13.0))


def test_records_of_json_are_rows(tmp_path):
    rows = [dict(zip(("rank", "step", "step_time"), map(float, row.split(",")), strict=True))
            for row in ROWS]  # fmt: skip
    rows.insert(0, {"rank": None, "loss": 1.5})
    columns = {name: [row[name] for row in rows[1:]] for name in rows[1]}
    keyed = {name: dict(enumerate(column)) for name, column in columns.items()}  # by to_json()
    lists = {f"rank{worker}": seconds for worker, seconds in enumerate(WANTED)}
    lines = "\n".join(map(json.dumps, rows[1:]))
    for text in (lines, *map(json.dumps, (rows[1:], columns, keyed, lists))):
        (tmp_path / "log").write_text(text)
        np.testing.assert_array_equal(trace(str(tmp_path / "log")).records, WANTED)
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="line 1 has rank='', step='', step_time=''"):
        trace(str(tmp_path / "log"))


def test_windows_writes_a_micro_in_one_byte(tmp_path):
    (tmp_path / "log.csv").write_bytes("rank;step;step_time (µs)\n0;0;1,5e6\n".encode("cp1252"))
    np.testing.assert_array_equal(trace(str(tmp_path / "log.csv")).records, [[1.5]])
    (tmp_path / "log.csv").write_bytes(b"\x28\xb5\x2f\xfd\x00packed otherwise")
    with pytest.raises(ValueError, match="it is no text"):
        trace(str(tmp_path / "log.csv"))
    (tmp_path / "log.csv").write_bytes((HEADER + ROWS[0]).encode("utf-16-le"))
    with pytest.raises(ValueError, match="zero bytes, as UTF-16 without a byte-order mark; save"):
        trace(str(tmp_path / "log.csv"))


def test_a_column_that_was_asked_for_is_not_replaced_by_numbered_ones(tmp_path):
    (tmp_path / "log.csv").write_text("step,rank0,rank1\n0,1.5,2.5\n1,3.5,4.5\n")
    np.testing.assert_array_equal(trace(str(tmp_path / "log.csv")).records, WANTED)
    for parameter in ("time", "duration"):
        with pytest.raises(ValueError, match="no column 'took'; it has step, rank0, rank1"):
            trace(str(tmp_path / "log.csv"), **{parameter: "took"})
    refused = {"time,rank0,rank1": "no column 'worker'", "rank,time": "order with time=None"}
    for header, words in refused.items():
        (tmp_path / "log.csv").write_text(f"{header}\n0,1,2\n")
        with pytest.raises(ValueError, match=words):
            trace(str(tmp_path / "log.csv"), duration="time")


ODD_PROFILES = (  # JSON that a profiler does not write
    b'{"traceEvents": [7]}', b'{"traceEvents": [{"ph": "X", "dur": null, "cat": "kernel"}]}',
    b'{"traceEvents": [{"ph": "X", "dur": 1, "cat": "user_annotation", "name": 3}]}', 99999 * b"[",
)  # fmt: skip


FLIPPED = gzip.compress((HEADER + "\n".join(ROWS)).encode(), mtime=0)
FLIPPED = FLIPPED[:14] + bytes([FLIPPED[14] ^ 0xFF]) + FLIPPED[15:]


@pytest.mark.parametrize(
    "damaged",
    [b"\x1f\x8b\x08", FLIPPED, b"PAR1 but no more", b"{", *ODD_PROFILES],
)
def test_what_is_damaged_or_foreign_is_refused_in_a_sentence(tmp_path, damaged):
    (tmp_path / "log").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"trace: cannot read .*; give the path of"):
        trace(str(tmp_path / "log"))


def table(header, rows="{worker},{step},{seconds}"):
    """Return a table of the wanted durations."""
    cells = ((worker, step, WANTED[worker][step]) for step in (0, 1) for worker in (0, 1))
    return "\n".join([header, *(rows.format(worker=w, step=t, seconds=s) for w, t, s in cells)])


@pytest.mark.parametrize(
    ("text", "given", "unit"),
    [
        (table("rank,step,step_time"), {}, 1),
        (table("host,iteration,duration_s", "n{worker},{step},{seconds}"), {}, 1),
        (table("local_rank,host,iteration,duration_s", "{worker},n,{step},{seconds}"), {}, 1),
        (table("host,rank,step,seconds", "n,{worker},{step},{seconds}"), {"worker": "host"}, 1),
        (table("Worker,Time,Batch Time (s)"), {}, 1),
        (table("worker,step,time"), {}, 1),  # where time is what it took
        (table("rank,step,time,step_time", "{worker},{step},1{step}.5,{seconds}"), {}, 1),  # no
        (table("rank,timestamp,step_time,top1,top5", "{worker},{step},{seconds},0.5,0.9"), {}, 1),
        (table(",worker,gpu,time,batch_time_norm", "9{step}{worker},{worker},5,{step},{seconds}"),
         {}, 1),
        *((table(f"worker,time,{column}"), {"duration": column}, unit) for column, unit in (
            ("duration_seconds", 1), ("Duration_MS", 1e-3), ("step_time (milliseconds)", 1e-3),
            ("duration [µs]", 1e-6), ("duration.nsec", 1e-9), ("iteration_times", 1),
            ("address", 1),
        )),
    ],
)  # fmt: skip
def test_usual_columns_and_units_are_read_however_they_are_written(tmp_path, text, given, unit):
    (tmp_path / "log.csv").write_text(text)
    found = trace(str(tmp_path / "log.csv"), **given)
    np.testing.assert_allclose(found.records, np.multiply(WANTED, unit))


def test_numbers_without_a_header_and_beyond_floats_are_refused(tmp_path):
    (tmp_path / "log.csv").write_text("0.5,0.25\n0.5,0.25\n")
    with pytest.raises(ValueError, match=r"no column 'worker'; it has 0.5, 0.25"):
        trace(str(tmp_path / "log.csv"))
    for column in ("duration_min", "stepHours", "took (h)"):
        (tmp_path / "log.csv").write_text(f"worker,time,{column}\n0,0,2\n")
        with pytest.raises(ValueError, match="by its name; give scale=60 for minutes"):
            trace(str(tmp_path / "log.csv"), duration=column)
        assert trace(str(tmp_path / "log.csv"), duration=column, scale=60.0).shortest == 120
    (tmp_path / "log.csv").write_text(HEADER + "0,0,1e300\n")
    with pytest.raises(ValueError, match="are not finite; scale them down"):
        trace(str(tmp_path / "log.csv"), scale=1e9)


def test_profiles_tell_exposed_communication_apart(tmp_path):
    computing = np.array([[0.3, 0.4, 0.3], [0.8, 0.9, 0.8]])
    for rank, seconds in enumerate(computing):
        text = profiled(seconds, 1 - rank).encode()
        (tmp_path / f"worker_{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text))
    found = trace(str(tmp_path / "*.json.gz"))
    assert found.names == ("0", "1")  # the ranks that the profiles name
    np.testing.assert_allclose(found.records, computing[::-1])
    document = json.loads(profiled(computing[0], 0))
    for number in range(3):  # a step has a span on each stream of the device, the collectives' last
        for start, lasts in ((0.0, 1e6), (0.9e6, 0.1e6)):
            span = event(f"ProfilerStep#{number + 7}", "gpu_user_annotation",
                         1e6 * number + start, lasts)  # fmt: skip
            document["traceEvents"].append(span)
    (tmp_path / "streams.json").write_text(json.dumps(document))
    np.testing.assert_allclose(trace(str(tmp_path / "streams.json")).records, computing[:1])
    communication = np.median(1 - 0.9 * computing)
    assert f"communication apart, median {communication:.3g} s" in found.read
    document = json.loads(profiled(computing[0], 0))
    for one in document["traceEvents"]:  # as PyTorch 1.8 to 1.11 write it
        one["cat"] = {"user_annotation": "Operator", "kernel": "Kernel"}.get(one.get("cat"))
    copy = event("Memcpy HtoD", "Memcpy", 0.9e6, 0.1e6)  # beside the first step's collective
    (tmp_path / "old.json").write_text(
        json.dumps(document | {"traceEvents": [*document["traceEvents"], copy]})
    )
    found = trace(str(tmp_path / "old.json"))
    np.testing.assert_allclose(found.records, np.add(computing[:1], [0.1, 0, 0]))
    twice = trace(str(tmp_path / "old.json"), mean=2 * found.records[0].mean())
    np.testing.assert_allclose(twice.records, 2 * np.array(found.records))
    assert twice.exchange == pytest.approx(2 * found.exchange) and found.exchange > 0.1
    (tmp_path / "long.json").write_text(profiled(np.tile(computing[0], 22)))
    long = str(tmp_path / "long.json")
    assert statistics.like(long).exchange == trace(long).exchange > 0.1
    assert trace(long).names == ("long",)
    with pytest.raises(ValueError, match="no ProfilerStep; call"):
        (tmp_path / "other.json").write_text('{"traceEvents": []}')
        trace(str(tmp_path / "other.json"))


def test_operations_of_a_pipeline_become_micro_batches_of_its_slowest_stage(tmp_path):
    """Two replicas of two stages, two ranks in the first of them, and two chunks of a model."""
    rng = np.random.default_rng(0)
    names = ["dp_rank", "step", "mb_id", "stage", "mc", "rank", "optype", "duration"]
    wanted, rows = np.zeros((2, 3, 2, 2)), []
    for replica, step, batch, stage, chunk in np.ndindex(2, 3, 2, 2, 2):
        for rank in range(2 - stage):
            for operation in ("forward-compute", "backward-compute", "forward-send"):
                at, seconds = (replica, step, batch, stage, chunk), rng.uniform(1, 2)
                rows.append((*at, 4 * replica + 2 * stage + rank, operation, seconds))
                if operation != "forward-send":
                    wanted[replica, step, batch, stage] += seconds / (2 - stage)
    columns = zip(*(rows[i] for i in rng.permutation(len(rows))), strict=True)
    table = pyarrow.table(dict(zip(names, map(list, columns), strict=True)))
    parquet.write_table(table, tmp_path / "job.parquet")
    found = trace(str(tmp_path / "job.parquet"))
    np.testing.assert_allclose(found.records, wanted.max(axis=-1).reshape(2, 6))
    names = table.column_names  # ranks that are floats, as where an operation has none
    floats = table.set_column(names.index("rank"), "rank", table["rank"].cast("float64"))
    parquet.write_table(floats, tmp_path / "job.parquet")
    np.testing.assert_array_equal(trace(str(tmp_path / "job.parquet")).records, found.records)
    table = table.set_column(names.index("optype"), "optype", pyarrow.array(["other"] * len(table)))
    parquet.write_table(table, tmp_path / "job.parquet")
    with pytest.raises(ValueError, match="no optype of it is forward-compute"):
        trace(str(tmp_path / "job.parquet"))


PUBLIC = json.loads(statistics.PUBLIC.read_text())


def drawn(process, seed, workers, count=2 * statistics.LENGTH):
    return process.seeded(seed).duration(np.arange(workers)[:, None], 0.0, np.arange(count)[None])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_come_back_with_their_statistics(name):
    recorded = PUBLIC[name]
    quantiles = np.array(recorded["quantiles"])
    process = PROCESSES[name]()
    durations = [drawn(process, seed, len(quantiles)) for seed in range(4)]
    middle = slice(2, -2)  # from 2 % to 98 %
    found = np.quantile(np.concatenate(durations, axis=1), statistics.PROBABILITIES, axis=1).T
    np.testing.assert_allclose(found[:, middle], quantiles[:, middle], rtol=0.03)
    moments = [statistics.moments(one) for one in durations]
    lag_1 = np.mean([one.autocorrelation[0] for one in moments])
    assert lag_1 == pytest.approx(recorded["lag_1"], abs=0.05)
    assert np.mean([one.share for one in moments]) == pytest.approx(recorded["share"], abs=0.05)
    assert np.mean([one.barrier for one in moments]) == pytest.approx(recorded["barrier"], rel=0.03)
    assert process.shortest == quantiles.min()
    with pytest.raises(ValueError, match="needs mean > 0"):
        PROCESSES[name](mean=-1.0)


def test_draws_like_a_trace_have_its_spells_and_its_pairs(tmp_path):
    """Two workers are slow together for a while, and a third is always slow."""
    rng, count = np.random.default_rng(3), 4000
    slow = 1 + 4 * (np.cumsum(rng.standard_normal((2, count)) / 10, axis=1) % 1 > 0.5)
    jitter = np.exp(0.1 * rng.standard_normal((3, count)))
    recorded = np.array([slow[0], slow[0], 3 + 0 * slow[0]]) * jitter
    rows = [f"{w},{t},{recorded[w, t]}" for w in range(3) for t in range(count)]
    (tmp_path / "log.csv").write_text(HEADER + "\n".join(rows))
    process = statistics.like(str(tmp_path / "log.csv"))
    twice = statistics.like(str(tmp_path / "log.csv"), scale=2.0, in_step=True)
    assert twice.shortest == 2 * process.shortest
    found = drawn(process, 1, 6)
    assert np.corrcoef(found[0], found[1])[0, 1] > 0.7 > 0.2 > np.corrcoef(found[0], found[3])[0, 1]
    wanted, got = statistics.moments(recorded, 5), statistics.moments(found[:3], 5)
    np.testing.assert_allclose(got.autocorrelation, wanted.autocorrelation, atol=0.1)
    assert found[5].mean() == pytest.approx(recorded[2].mean(), rel=0.03)
    assert found.max(axis=0).mean() > 1.02 * found[:3].max(axis=0).mean()
    again = process.seeded(1).duration(np.array([4]), 9.0, np.array([77]))
    assert again == found[4, 77] != drawn(process, 2, 6)[4, 77]
    assert wanted.barrier == pytest.approx((recorded.max(axis=0) / recorded.mean()).mean(), 1e-3)
    with pytest.raises(ValueError, match="a worker has 40 durations"):
        statistics.of(recorded[:, :40])
