import json
import math
import pathlib

import pytest

from configs import goodput
from experiments.papers.failures import ELASTIC, OURS
from tests import launcher

FILE = goodput.__file__
BRIEF = (
    f"--config={FILE}:between=2000,repair=400,stop=30",
    "--workdir=out",
    "--config.workers=(4,32)",
    "--config.at_workers=8",
    "--config.betweens=(1000.0,4000.0)",
    "--config.learner_seconds=400000.0",
)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the launcher in this process, in an empty directory: flags -> (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    return launcher.caller(monkeypatch, capsys)


@pytest.mark.slow
def test_who_waits_for_nobody_loses_its_own_time_alone(call):
    code, out, err = call(*BRIEF)
    assert code == 0 and err == "" and "goodput by number of learners" in out
    assert "assumed: steps of 10 s" in out and "crosses 58%" not in out
    place = pathlib.Path("out")
    assert (place / "figure.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((place / "summary.json").read_text())
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
    assert points["asynchronous DiLoCo", 32]["taking_part"] == pytest.approx(1 / 32)
    assert points[OURS, 32]["staleness"] < points["asynchronous DiLoCo", 32]["staleness"] / 5
    (first, second) = (measured for _, measured in summary["claims"])
    assert first.startswith("does not hold: elastic") and second.startswith("holds: ")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--config.workers=(0,8)",), "config.workers must be positive whole numbers, got"),
        (("--config.repair=0.0",), "config.repair must be positive seconds, got 0.0"),
        (("--config.betweens=(5.0,)",), "fails every 5 s, and a step takes 10 s"),
        (("--config.rules=(('a',4,'k_async(k=9)'),)",), "k_async: needs 1 <= k <= 4 workers"),
        (("--config.rules=(('a',4,'haste'),)",), "haste"),
        ((f"--config.rules=(('{ELASTIC}',4,'barrier'),)",), "is no waiting rule"),
        (("--config.learner_seconds=100.0",), "make no update in"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(call, tmp_path, flags, words):
    code, out, err = call(*BRIEF, *flags)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err, err
    assert not list(tmp_path.iterdir())


def test_the_published_arguments_have_a_thousand_learners():
    config = goodput.get_config()
    assert max(config.workers) == 1000 and math.isclose(config.between, 86_400)
