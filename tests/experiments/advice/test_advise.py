"""Advice from a recorded run to its page, and every way in which it is refused."""

import json

import numpy as np
import pytest

from experiments.advice import advise, page, play, trained, verdict, weigh
from experiments.advice.trained import Trained
from stragglers import delays
from stragglers.schedule import load
from tests import launcher, planned
from tests.experiments.reports.test_page import Page

SLOW = "--config.delay=persistent(law=exponential(scale=0.02), factors={0: 5.0})"


@pytest.fixture
def here(tmp_path, monkeypatch):
    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def quick(monkeypatch):
    """Little is played and trained; what it says is not looked at."""
    monkeypatch.setattr(play, "ROUNDS", 6)
    monkeypatch.setattr(play, "REPEATS", 2)
    monkeypatch.setattr(weigh, "MOST_TRAINED", 2)
    for name, value in (("COARSE", (1.0,)), ("FINE", (1.0,)), ("EVALUATIONS", 4)):
        monkeypatch.setattr(trained, name, value)


@pytest.fixture
def call(monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


@pytest.mark.slow
def test_from_a_run_to_a_page(here, call, quick):
    flags = ["--config=config.py:workers=3", SLOW, "--config.wait=barrier", "--workdir=run"]
    flags.append("--config.seconds=8")
    assert call(*flags)[0] == 0
    code, out, err = call("--advise=run")
    assert code == 0, err
    place = here / "run-advice"
    written = json.loads((place / advise.ADVICE).read_text())
    assert written["reference"] == "barrier" and len(written["rules"]) >= 10
    seconds = {rule["wait"]: rule["trained_seconds"] for rule in written["rules"]}
    done = [name for name, found in seconds.items() if found is not None]
    assert "barrier" in done and len(done) in (2, 3)
    schedule = load(here / "run" / "schedule.npz")
    assert written["durations"] == schedule.batches.sum()
    shown = Page((place / page.PAGE).read_text())
    for words in ("What would change the verdict", "Who waits for whom", "got no graph"):
        assert words in shown.text
    commands = [line for line in out.splitlines() if line.startswith("command: ")]
    assert commands and "--config.wait=" in commands[0] and "--workdir=run-advice-" in commands[0]
    assert (place / page.STRIP).read_bytes().startswith(b"\x89PNG")
    before = launcher.files(place / trained.ARMS)
    assert call("--advise=run")[0] == 0  # nothing is trained again
    assert launcher.files(place / trained.ARMS) == before


@pytest.mark.slow
def test_without_training_nothing_is_trained(here, call, quick):
    flags = ["--config=config.py:workers=3", "--no_training", "--workdir=advice"]
    code, out, err = call("--advise=exponential(scale=0.02)", *flags)
    assert code == 0, err
    assert not (here / "advice" / trained.ARMS).exists()
    written = json.loads((here / "advice" / advise.ADVICE).read_text())
    assert all(rule["trained_seconds"] is None for rule in written["rules"])
    assert "page: advice/advice.html" in out
    for rule in written["rules"]:
        low, high = rule["predicted_range"]
        assert 0 < low <= high
    predicted = [rule["predicted"] for rule in written["rules"]]
    assert predicted == sorted(predicted)


@pytest.mark.slow
def test_a_workdir_of_other_durations_is_left_alone(here, call, quick):
    flags = ["--config=config.py:workers=3", "--no_training", "--workdir=advice"]
    assert call("--advise=exponential(scale=0.02)", *flags)[0] == 0
    before = launcher.files(here)
    code, _, err = call("--advise=exponential(scale=0.03)", *flags)
    assert code == 2 and "holds an advice on other durations" in err
    assert launcher.files(here) == before
    assert call("--advise=exponential(scale=0.03)", *flags, "--overwrite")[0] == 0


def recorded(name="barrier", workers=3, updates=40, **own):
    return planned.plan(name, delays.exponential(0.02), workers, updates, **own)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--advise=nothing"], "has durations and no config; give --config"),
        (["--advise=nothing", "--config=config.py"], "is no directory, no file and no law"),
        (["--advise=exponential(scale=-1)", "--config=config.py"], "needs scale > 0"),
        (["--advise=empty"], "is a directory without a run's config.json"),
        (["--advise=trace.csv", "--config=config.py"], "has no column 'batch_time'"),
        (["--advise=file", "--config=config.py"], "has no column 'worker'"),
        (["--advise=file.npz", "--config=config.py"], "holds no schedule"),
        (["--advise=short.npz", "--config=config.py:workers=3"], "has 12 durations"),
        (["--advise=three.npz", "--config=config.py"], "has 3 workers, the config asks for 2"),
        (["--advise=one.npz", "--config=config.py:workers=1"], "durations of one worker"),
        (
            ["--advise=three.npz", "--config=config.py:workers=3", "--config.target_loss=None"],
            "config.target_loss is None; set --config.target_loss",
        ),
        (["--advise=x", "--sweep"], "--advise trains arms of its own; leave out --sweep"),
        (["--rule=barrier", "--config=config.py", "--workdir=w"], "--rule belongs to --advise"),
        (
            ["--advise=three.npz", "--config=config.py:workers=3", "--workdir=other"],
            "other holds something else than an advice",
        ),
        (
            [
                "--advise=three.npz",
                "--config=config.py:workers=3",
                "--config.wait=neighbour_barrier",
            ],
            "config.wait=neighbour_barrier cannot be played",
        ),
    ],
)
def test_what_cannot_be_advised_is_refused(here, call, quick, flags, words):
    (here / "file.npz").write_text("mine")
    recorded(updates=4).save(here / "short.npz")
    recorded().save(here / "three.npz")
    recorded(workers=1, updates=99).save(here / "one.npz")
    before = launcher.files(here)
    code, _, err = call(*flags)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert words in err
    assert launcher.files(here) == before


def test_what_is_refused_leaves_what_was_trained_before(here, call, quick):
    recorded().save(here / "three.npz")
    arms = here / "advice" / trained.ARMS
    arms.mkdir(parents=True)
    for path in (here / "advice" / trained.DURATIONS, arms / "arm"):
        path.write_text("mine")
    (here / "advice" / advise.ADVICE).write_text("{}")
    before = launcher.files(here)
    flags = ["--config=config.py:workers=3", "--config.target_loss=None", "--workdir=advice"]
    code, _, err = call("--advise=three.npz", *flags, "--overwrite")
    assert code == 2 and "config.target_loss is None" in err
    assert launcher.files(here) == before


def result(*seconds):
    return Trained(0.1, seconds, False)


def contenders(*names):
    """Stand-ins, which have only their names."""

    class Named:
        def __init__(self, name):
            self.name = name

    return [Named(name) for name in names]


def test_close_ends_are_not_sure():
    order = contenders("a", "b", "c")
    results = {"a": result(10.0, 12.0), "b": result(11.0, 12.0), "c": result(20.0, 21.0)}
    found = verdict.trained(order, results, order[2])
    assert not found.sure and [one.name for one in found.close] == ["a", "b"]
    results["b"] = result(15.0, 15.5)
    found = verdict.trained(order, results, order[2])
    assert found.sure and "a is at the target after 11 s against 20.5 s with c" in found.reason


def test_who_never_arrives_is_last():
    order = contenders("a", "b")
    results = {"a": result(np.inf, 12.0), "b": result(50.0, 51.0)}
    assert [one.name for one in verdict.trained(order, results, order[0]).order] == ["b", "a"]
    results["b"] = result(np.inf, np.inf)
    assert (
        "nothing that was trained has come to the target"
        in verdict.trained(order, results, order[0]).reason
    )
