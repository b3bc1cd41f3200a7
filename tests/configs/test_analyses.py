"""Configs that train nothing, or compare what others have trained, through the launcher."""

import json
import pathlib

import pytest

from configs import goodput, mg_wfbp, public_jobs
from experiments import train
from experiments.advice import observatory
from experiments.papers import failures
from tests import launcher

OURS, ELASTIC = failures.OURS, failures.ELASTIC
GOODPUT = (
    f"--config={goodput.__file__}:between=2000,repair=400,stop=30",
    "--workdir=out",
    "--config.workers=(4,32)",
    "--config.at_workers=8",
    "--config.betweens=(1000.0,4000.0)",
    "--config.learner_seconds=400000.0",
)
SCALE = (f"--config={mg_wfbp.__file__}:scale,trace=googlenet", "--workdir=out")


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the launcher in this process, in an empty directory: flags -> (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    return launcher.caller(monkeypatch, capsys, drawn=True)


def written(name="summary"):
    return json.loads(pathlib.Path("out", f"{name}.json").read_text())


@pytest.mark.slow
def test_who_waits_for_nobody_loses_its_own_time_alone(call):
    code, out, err = call(*GOODPUT)
    assert code == 0 and err == "" and "goodput by number of learners" in out
    assert "assumed: steps of 10 s" in out and "crosses 58%" not in out
    summary = written()
    points = {(p["method"], p["workers"]): p for p in summary["by_workers"]}
    assert len(points) == 4 * 2 and len(summary["by_between"]) == 4 * 2
    # Of 4 mini-batches none fails with probability (1 - 1 / 200)^4, each takes 12 s on average.
    for workers in (4, 32):
        left = points[OURS, workers]["goodput"]
        assert left == pytest.approx(0.995**4 * 10 / 12, rel=0.03)
        left = points["asynchronous DiLoCo", workers]["goodput"]
        assert left == pytest.approx(0.995**24 * 10 / 12, rel=0.04)
    # A round of DiLoCo is as long as the most unlucky of its learners.
    seconds = 240 + 400 * (1 - 0.995 ** (24 * 32))
    assert points["DiLoCo", 32]["goodput"] == pytest.approx(0.995**24 * 240 / seconds, rel=0.1)
    assert points[ELASTIC, 32]["goodput"] < 0.6 < points[ELASTIC, 4]["goodput"]
    (first, _) = (measured for _, measured in summary["claims"])
    assert first == f"inconclusive: there is no point {OURS}, 512"


def test_an_analysis_is_written_and_nothing_is_trained(call, monkeypatch):
    monkeypatch.setattr(train, "run", lambda *_: pytest.fail("an analysis trained"))
    code, out, err = call(*SCALE, "--config.workers=(4,8)", "--config.at_workers=8")
    assert code == 0 and err == "" and "scaling efficiency, 8 workers" in out
    files = {path.name for path in pathlib.Path("out").iterdir()}
    assert files == {"config.json", "summary.json", "figure.png", "report.json"}
    assert written("report")["command"].startswith("python ")
    assert pathlib.Path("out/figure.png").read_bytes().startswith(b"\x89PNG")
    assert {curve["trace"] for curve in written()["curves"]} == {"googlenet"}
    assert written("config")["at_workers"] == 8


@pytest.mark.parametrize(
    ("brief", "flag", "words"),
    [
        (GOODPUT, "--config.workers=(0,8)", "config.workers must be positive whole numbers, got"),
        (GOODPUT, "--config.betweens=(5.0,)", "fails every 5 s, and a step takes 10 s"),
        (GOODPUT, "--config.rules=(('a',4,'k_async(k=9)'),)", "needs 1 <= k <= 4 workers"),
        (GOODPUT, f"--config.rules=(('{ELASTIC}',4,'barrier'),)", "is no waiting rule"),
        (GOODPUT, "--config.learner_seconds=100.0", "make no update in"),
        (SCALE, "--sweep", "without arms and without training; leave out --sweep"),
        (SCALE, "--config.wokers=3", "no entry 'wokers'; did you mean 'workers'? known"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(call, tmp_path, brief, flag, words):
    code, out, err = call(*brief, flag)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err, err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_gains_on_a_job_are_points_and_a_barrier_is_one():
    config = public_jobs.get_config("mini_batches=4")
    config.jobs = ("bytedance_st",)
    found = public_jobs.analyse(config)
    gains = {point["rule"]: point["gain"] for point in found.summary["points"]}
    assert gains["barrier"] == 1.0 and 0.9 < gains["first_finisher"] < 1.1  # all are as fast
    assert {point["runs"] for point in found.summary["points"]} == {observatory.REPEATS}
    assert found.tables[0].columns == ["rule", "bytedance_st"]
