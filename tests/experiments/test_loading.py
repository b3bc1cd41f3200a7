"""Runs as a notebook loads them."""

import importlib.util
import shutil
import sys

import jax
import numpy as np
import pytest

import experiments
from experiments import files, records, sweep, train
from tests import launcher
from tests.experiments.test_checkpoints import CONFIGS, configured, killed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("loaded") / "run"
    train.run(configured(**CONFIGS["sync"]), workdir, checkpoint_seconds=np.inf)
    return workdir


def test_a_finished_run_has_all_that_it_has_left(finished):
    run = experiments.load(finished)
    assert run.config.to_dict() == configured(**CONFIGS["sync"]).to_dict()
    assert run.summary == records.read_summary(finished)
    assert run.records == records.read_metrics(finished)
    assert run.schedule.updates == run.summary["updates"]
    losses = run.task.losses(jax.tree.map(np.asarray, run.params), run.task.train)
    np.testing.assert_allclose(losses.mean(), run.summary["train_loss"], rtol=1e-5)


def test_metrics_are_a_table_of_pandas_or_a_sentence(finished, monkeypatch):
    if importlib.util.find_spec("pandas"):
        run = experiments.load(finished)
        losses = [record["train_loss"] for record in run.records]
        assert run.metrics["train_loss"].tolist() == losses
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="run pip install pandas"):
        _ = experiments.load(finished).metrics


def test_an_unfinished_run_has_its_records_and_no_model_yet(finished, tmp_path):
    killed(configured(**CONFIGS["sync"]), tmp_path / "run", 3)
    run = experiments.load(tmp_path / "run")
    assert len(run.records) == 3 and run.summary is None and run.schedule is None
    assert run.task.name
    with pytest.raises(ValueError, match="has not finished"):
        _ = run.params
    shutil.copytree(finished, tmp_path / "bare")
    (tmp_path / "bare" / records.PARAMETERS).unlink()
    with pytest.raises(ValueError, match=r"has no parameters\.npz"):
        _ = experiments.load(tmp_path / "bare").params


def test_an_arm_of_a_sweep_is_named_where_the_sweep_is_given(tmp_path):
    for name in ("a/b", "a/c"):
        config = sweep.override(configured(), {"name": name})
        with records.Recorder(tmp_path / name, config) as recorder:
            recorder.begin()
    analysis = shutil.copytree(tmp_path / "a" / "b", tmp_path / "a" / "analysis")
    (analysis / records.METRICS).rename(analysis / records.SUMMARY)
    with pytest.raises(ValueError, match=rf"holds runs below it; give one, as {tmp_path}/a/b"):
        experiments.load(tmp_path)
    with pytest.raises(ValueError, match="analysis holds no run; give a run"):
        experiments.load(analysis)
    assert experiments.load(tmp_path / "a" / "b").config.name == "a/b"
    with pytest.raises(ValueError, match="holds no run; give a run"):
        experiments.load(tmp_path / "none")


def test_what_a_record_names_is_imported_when_it_is_trusted(tmp_path, monkeypatch):
    code = "from experiments import tasks\n\ndef line():\n    return tasks.build({!r})\n"
    code = code.format(configured().task.to_dict())
    (tmp_path / "brought_task.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    files.make(tmp_path / "run")
    config = configured().to_dict() | {"task": "brought_task:line"}
    records.write_json(tmp_path / "run" / "config.json", config)
    run = experiments.load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"names code of the module .* add trust="):
        _ = run.task
    assert "brought_task" not in sys.modules
    assert experiments.load(tmp_path / "run", trust="brought_task").task.name
    del sys.modules["brought_task"]


def test_a_remote_place_is_refused_before_anything_is_written(call, here):
    before = launcher.files(here)
    for flag, more in {"workdir": ["--config=config.py", "--restarts=1"], "advise": []}.items():
        launcher.refused(
            call(f"--{flag}=gs://bucket/x", *more), "gs://bucket/x is on a remote store"
        )
    assert launcher.files(here) == before
    with pytest.raises(ValueError, match="remote store"):
        train.run(configured(), "s3://bucket/x")
    with pytest.raises(ValueError, match="remote store"):
        experiments.load("s3://bucket/x")
