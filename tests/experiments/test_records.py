"""Records of a run, the lock beside them and the commit that they name."""

import fcntl
import hashlib
import math
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

import experiments
import gossax
from experiments import files as disk
from experiments import formats, provenance, records
from tests.launcher import ROOT


@pytest.fixture
def config():
    rest = {"name": "a", "seed": 0, "workers": 8, "delay": "none", "widths": (64, 32)}
    names = {"runtime": "simulate", "task": "digits", "algorithm": "all_reduce", "wait": "barrier"}
    return ConfigDict(rest | names | {"optimizer": {"name": "sgd", "learning_rate": 0.1}})


def files(path):
    return {file.name: file.read_text() for file in path.iterdir()}


def test_records_are_on_disk_as_they_happen(tmp_path, config):
    with records.Recorder(tmp_path / "a" / "b", config) as recorder:
        recorder.begin()
        assert not recorder.finished
        recorder.append({"update": np.int64(1), "train_loss": jnp.float32(0.5)})
        recorder.append({"update": 2, "train_loss": math.nan, "norms": np.array([1.0, np.inf])})
        assert records.read_metrics(recorder.workdir) == [
            {"update": 1, "train_loss": 0.5},
            {"update": 2, "train_loss": None, "norms": [1.0, None]},
        ]
        assert records.read_summary(recorder.workdir) is None
        summary = recorder.finish({"train_loss": -math.inf, "workers": 8})
    assert summary == records.read_summary(recorder.workdir) == {"train_loss": None, "workers": 8}
    names = {"config.json", "metrics.jsonl", "summary.json", "digests.json"}
    assert set(files(recorder.workdir)) == names


def test_an_interrupted_run_goes_on_from_the_records_it_keeps(tmp_path, config):
    whole = dict.fromkeys(formats.RESUMED_LINE.needed, 1)
    kept = [whole | {"train_loss": 0.1 + 0.2}, whole | {"update": 2, "train_loss": None}]
    with records.Recorder(tmp_path, config) as recorder:
        recorder.begin()
        for record in (*kept, {"update": 3}):
            recorder.append(record)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 4, "tr')
    with records.Recorder(tmp_path, config) as again:
        assert not again.finished
        again.begin(2)
        assert again.records == records.read_metrics(tmp_path) == kept
        again.append({"update": 5})
    assert records.read_metrics(tmp_path) == [*kept, {"update": 5}]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json"])
def test_another_value_in_a_finished_run_is_refused(tmp_path, config, name):
    """Though it is a valid one; without digests, as older runs are, all is taken as it is."""
    config.updates = 7
    with records.Recorder(tmp_path, config) as recorder:
        recorder.begin()
        recorder.append({"update": 7})
        recorder.finish({"updates": 7})
    path = tmp_path / name
    path.write_text(path.read_text().replace("7", "8"))
    with pytest.raises(ValueError, match=f"{name}.*SHA-256 is not in digests.json") as caught:
        experiments.load(tmp_path)
        records.check(tmp_path, config)
    assert "\n" not in str(caught.value)
    (tmp_path / "digests.json").unlink()
    found = experiments.load(tmp_path)
    values = found.config.updates, found.records[0]["update"], found.summary["updates"]
    assert sorted(values) == [7, 7, 8]


def test_only_one_process_writes(tmp_path, config):
    with records.Recorder(tmp_path / "none", config, writes=False) as recorder:
        recorder.begin()
        recorder.append({"train_loss": np.float32(0.5)})
        assert recorder.records == [{"train_loss": 0.5}]
        assert recorder.finish({"workers": np.int64(8)}) == {"workers": 8}
    assert not (tmp_path / "none").exists()


def test_a_run_has_one_writer(tmp_path, config):
    with records.Recorder(tmp_path, config) as recorder:
        recorder.begin()
        recorder.append({"update": 1})
        for overwrite in (False, True):
            with pytest.raises(disk.InUse, match="is in use by process"):
                records.Recorder(tmp_path, config, overwrite)
        assert records.Recorder(tmp_path, config, writes=False).summary is None
        recorder.finish({"seconds": 3.0})
        assert records.Recorder(tmp_path, config).finished
    assert records.read_metrics(tmp_path) == [{"update": 1}]
    records.Recorder(tmp_path, config, overwrite=True)


def test_a_run_that_cannot_begin_is_given_free_at_once(tmp_path, config, monkeypatch):
    def full(path, value):
        raise disk.NotWritten(path, OSError("no room"))

    monkeypatch.setattr(records, "write_json", full)
    with pytest.raises(disk.NotWritten) as caught:
        records.Recorder(tmp_path, config)
    assert caught.value and not (tmp_path / disk.RUN_LOCK).exists()  # while somebody has the error


def test_numbers_as_keys_are_read_as_numbers(tmp_path, config):
    """JSON knows them as texts, and a ConfigDict takes none with a dot."""
    scales = {1000.5: 0.1, 2e20: 0.5}
    schedule = {"name": "piecewise_constant_schedule", "scales": scales}
    delay = {"name": "persistent", "law": "exponential(scale=1)", "factors": {0: 4.0}}
    parts = {"optimizer": {"name": "sgd", "schedule": schedule}, "delay": delay}
    config = ConfigDict(config.to_dict() | parts)
    with records.Recorder(tmp_path, config):
        pass
    records.check(tmp_path, config)  # as one does that goes on
    read = records.read_config(tmp_path / "config.json")
    assert read.optimizer.schedule.scales.to_dict() == scales
    assert read.delay.factors.to_dict() == {0: 4.0}


def test_another_config_is_refused_and_nothing_written(tmp_path, config):
    with records.Recorder(tmp_path, config) as recorder:
        recorder.begin()
        recorder.append({"update": 1})
    before = files(tmp_path)
    other = config.copy_and_resolve_references()
    other.optimizer.learning_rate = 0.2
    other.devices = 3
    for call in (records.Recorder, records.check):
        with pytest.raises(ValueError) as caught:
            call(tmp_path, other)
        assert "optimizer.learning_rate (0.1 there, 0.2 here)" in str(caught.value)
        assert "devices (absent there, 3 here)" in str(caught.value)
    assert files(tmp_path) == before
    many = other.copy_and_resolve_references()
    many.workers, many.seed = 2, 1
    with pytest.raises(ValueError, match=r" and 1 more; choose another"):
        records.check(tmp_path, many)


def curve(*points):
    return [{"seconds": seconds, "train_loss": loss} for seconds, loss in points]


@pytest.mark.parametrize(
    ("points", "seconds"),
    [
        ([(0, 100.0), (10, 1.0)], 5),  # log-linear: 10 is half-way from 100 to 1
        ([(0, 100.0), (4, 10.0), (10, 1.0)], 4),
        ([(0, 100.0), (10, 1.0), (20, 50.0), (30, 1.0)], 5),  # the first crossing
        ([(3, 7.0), (10, 1.0)], 3),  # below from the start
        ([(0, 100.0), (10, 11.0)], None),
        ([(0, 100.0), (10, None), (20, 1.0)], 20),  # no finite loss to interpolate from
        ([(0, 100.0), (10, math.nan)], None),
        ([(0, 100.0), (10, 0.0)], 10),
        ([], None),
    ],
)
def test_seconds_to_target(points, seconds):
    assert records.at_target(curve(*points), 10.0) == pytest.approx(seconds)
    assert records.at_target(curve(*points), None) is None


def summary(seed, seconds_to_target, accuracy=0.9, loss=0.5):
    measured = {"updates": 10 + seed, "train_loss": loss, "test_accuracy": accuracy}
    measured |= {"seconds_to_target": seconds_to_target, "quick": True, "baseline": None}
    return {"name": "dpsgd/blocking", "workers": 8, "seed": seed, **measured}


def test_aggregate_averages_what_differs():
    merged = records.aggregate([summary(0, 1.0), summary(1, 3.0, accuracy=0.8)])
    assert merged["seconds_to_target"] == 2.0
    assert merged["seconds_to_target_std"] == pytest.approx(math.sqrt(2))
    assert merged["test_accuracy"] == pytest.approx(0.85)
    assert merged["train_loss"] == 0.5 and merged["train_loss_std"] == 0
    assert merged["updates"] == 10.5 and "updates_std" not in merged
    assert merged["workers"] == 8 and isinstance(merged["workers"], int)
    assert merged["quick"] is True and merged["baseline"] is merged["stopped"] is None
    assert (merged["seed"], merged["seeds"], merged["reached"]) == (0, [0, 1], "2/2")
    diverged = summary(1, None, loss=math.nan) | {"stopped": "at update 3"}
    merged = records.aggregate([summary(0, 1.0), diverged])
    assert (merged["stopped"], merged["reached"]) == ("at update 3", "1/2")
    for name in ("seconds_to_target", "seconds_to_target_std", "train_loss"):
        assert merged[name] is None
    alone = records.aggregate([summary(4, 1.0)])
    assert alone["seconds_to_target"] == 1.0 and alone["seconds_to_target_std"] is None


def test_a_run_knows_the_code_that_it_brought_along(tmp_path, monkeypatch):
    package = tmp_path / "brought" / "here"
    package.mkdir(parents=True)
    (package / "rules.py").write_text("def patient(setting):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = ConfigDict({"seed": 0, "wait": "brought.here.rules:patient"})
    with records.Recorder(tmp_path / "run", config):
        pass
    (digest,) = records.read_json(tmp_path / "run" / records.CONFIG)[records.MODULES].values()
    assert digest.startswith("sha256:")
    assert records.read_config(tmp_path / "run" / records.CONFIG).to_dict() == {
        "seed": 0, "wait": {"name": "brought.here.rules:patient"},
    }  # fmt: skip
    records.check(tmp_path / "run", config)
    (package / "rules.py").write_text("def patient(setting):\n    return setting\n")
    with pytest.raises(ValueError, match=r"which differs in modules\.brought\.here\.rules"):
        records.check(tmp_path / "run", config)


def test_a_run_knows_the_files_that_its_parts_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data.npz", "barrier"):  # the latter is the name of a part
        (tmp_path / name).write_text("1")
    task = {"name": "points", "path": "data.npz", "more": ["none.npz", "data.npz"]}
    config = ConfigDict({"seed": 0, "wait": "barrier", "task": task})
    with records.Recorder(tmp_path / "run", config):
        pass
    described = records.read_json(tmp_path / "run" / records.CONFIG)
    assert described[records.DATA] == {"data.npz": hashlib.sha256(b"1").hexdigest()}
    records.check(tmp_path / "run", config)
    (tmp_path / "data.npz").write_text("2")
    with pytest.raises(ValueError, match=r"differs in files_sha256\.data\.npz"):
        records.check(tmp_path / "run", config)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "train.npy").write_bytes(b"1" * 3000000)
    config.task = {"name": "packed_text", "folder": "tokens"}
    with records.Recorder(tmp_path / "other", config):
        pass
    records.check(tmp_path / "other", config)
    (tmp_path / "tokens" / "train.npy").write_bytes(b"1" * 2999999 + b"2")
    with pytest.raises(ValueError, match=r"differs in files_sha256\.tokens"):
        records.check(tmp_path / "other", config)
    with pytest.raises(ValueError, match="lies in tokens, a folder of data that has to stay"):
        records.check("tokens/runs/a", config)
    for path, name in (("ranks", r"ranks/\*"), ("ranks/*.csv", r"ranks/\*\.csv")):
        (tmp_path / "ranks").mkdir(exist_ok=True)
        (tmp_path / "ranks" / "0.csv").write_text("1")
        config.delay = {"name": "trace", "path": path}
        with records.Recorder(tmp_path / "ranks" / "run", config, overwrite=True):
            pass
        records.check(tmp_path / "ranks" / "run", config)
        (tmp_path / "ranks" / "0.csv").write_text("2")
        with pytest.raises(ValueError, match=rf"differs in files_sha256\.{name} "):
            records.check(tmp_path / "ranks" / "run", config)


# --- locks ---

HOLD = """
import pathlib, sys, time
from experiments import files
with files.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_process_that_is_killed_holds_nothing(tmp_path):
    path = tmp_path / "new" / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            with pytest.raises(disk.InUse, match=f"process {process.pid} on"):
                disk.check_lock(path)
        finally:
            process.kill()
    assert path.exists()
    disk.check_lock(path)
    with disk.held(path):
        for another in (disk.check_lock, lambda path: disk.held(path).__enter__()):
            with pytest.raises(disk.InUse, match=f"in use by process {os.getpid()} on .*; wait"):
                another(path)
    assert not path.exists()


def test_a_lock_that_its_holder_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    path, lock, tries = tmp_path / "lock", fcntl.flock, []

    def slow(file, kind):
        tries.append(kind)
        if len(tries) == 1:
            path.unlink()
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", slow)
    with disk.held(path), pytest.raises(disk.InUse):
        disk.check_lock(path)
    assert len(tries) == 3


# --- the commit ---


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def test_changed_code_is_dirty_and_changed_pages_are_not(tmp_path, monkeypatch):
    """Installed code has no commit in a repository of its user."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    git(tmp_path, "init")
    code, page = tmp_path / "code.py", tmp_path / "docs" / "results" / "demo.json"
    page.parent.mkdir(parents=True)
    for file in (code, page):
        file.write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = provenance.commit()
    assert len(clean) == 12
    page.write_text("b")
    (tmp_path / "new.py").write_text("not known to git")
    assert provenance.commit() == clean
    git(tmp_path, "add", "docs")
    git(tmp_path, "commit", "-m", "a record")
    assert provenance.commit() == clean  # the code is that of the first one
    code.write_text("b")
    assert provenance.commit() == f"{clean}-dirty"
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "docs")
    assert provenance.commit() is None
    provenance.begin(tmp_path, "python -m gossax.launch")
    assert provenance.read(tmp_path)["versions"]["gossax"] == gossax.__version__
