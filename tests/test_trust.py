"""Records of somebody else: data, of which no code is imported or called."""

import json

import numpy as np
import pytest

import launch
from experiments import config_files, registry
from experiments.config_files import override
from stragglers import delays
from tests import launcher, planned

# A factory of ours stands for the code of somebody else: it says that it was imported and called.
HOSTILE = """
from pathlib import Path

Path('imported').touch()


def law(path):
    Path(path).touch()
"""
PARTS = [
    {"delay": {"name": "persistent", "law": "hostile:law(path=called)", "factors": [1.0]}},
    {"task": {"name": "images", "source": {"name": "hostile:law", "path": "called"}}},
    {"algorithm": {"name": "chain", "*": [{"name": "hostile:law", "path": "called"}]}},
    {"communication": {"name": "hostile:law", "path": "called"}},
]


@pytest.fixture
def hostile(here, monkeypatch):
    (here / "hostile.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(launch.sys.modules, "hostile", raising=False)
    registry._imported.cache_clear()
    return here


def record(place, **changes):
    """Leave a workdir as a run does, with what the advice reads."""
    given = {"mini_batches": 1, "wait": "barrier", "delay": "deterministic(value=0.02)", **changes}
    config = override(config_files.read("config.py:workers=3").config, given)
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config.to_dict()))
    planned.plan("barrier", delays.exponential(0.02), 3, 40).save(place / "schedule.npz")


def touched(here):
    return (here / "imported").exists() or (here / "called").exists()


def test_a_record_names_no_code_to_the_advice(hostile, call):
    run = hostile / "hostile:law"  # a name that makes nothing trusted
    record(run)
    there = json.loads((run / "config.json").read_text())
    for changes in PARTS:
        (run / "config.json").write_text(json.dumps(there | changes))
        answer = call("--advise=hostile:law", "--no_training", "--workdir=a", "--trust=other")
        launcher.refused(answer, "--trust=hostile")
    assert not touched(hostile)


def test_code_that_the_command_names_runs(hostile, call):
    record(hostile / "run", delay={"name": "hostile:law", "path": "called"})
    for more in (
        ["--trust=other,hostile"],
        ["--config=config.py:workers=3", "--config.delay=hostile:law(path=called)"],
        ["--rule=hostile:rule"],
    ):
        (hostile / "called").unlink(missing_ok=True)
        assert "gives NoneType; let it return" in call("--advise=run", "--no_training", *more)[2]
        assert (hostile / "called").exists()


@pytest.mark.slow
def test_a_record_names_no_code_to_reports_or_runs(hostile, call):
    """Neither to the report of a run, nor to a command that goes on in its workdir."""
    flags = ["--config=config.py:workers=3", "--config.updates=3", "--workdir=run"]
    assert call(*flags)[0] == 0
    path = hostile / "run" / "config.json"
    path.with_name("digests.json").unlink()  # which would refuse any other config
    good = json.loads(path.read_text())
    for finished in (True, False):
        if not finished:  # as if it had been cut off
            path.with_name("summary.json").unlink()
        for changes in PARTS:
            path.write_text(json.dumps(good | changes))
            call("--report=run")
            launcher.refused(call(*flags), "another config")
    assert not touched(hostile)


class Marks:
    """An object whose pickle makes a file when it is loaded."""

    def __reduce__(self):
        return open, ("called", "w")


def test_arrays_of_a_record_are_data(hostile, call):
    planned.plan("barrier", delays.exponential(0.02), 3, 40).save(hostile / "good.npz")
    arrays = dict(np.load(hostile / "good.npz"))
    arrays["time"] = np.array([Marks()] * 40, object)
    np.savez(hostile / "bad.npz", **arrays)
    for more in (["--advise=bad.npz"], ["--config.wait=replay(path=bad.npz)"]):
        launcher.refused(call("--config=config.py:workers=3", "--workdir=w", *more), "bad.npz")
    assert not touched(hostile)
