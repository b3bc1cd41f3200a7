"""Learners that are killed while they train, and what is made of it."""

import json
import pathlib

import pytest

from configs import goodput
from experiments.papers import failures as paper
from runtimes.asynchronous.pool import SESSION
from stragglers.schedule import Event
from tests import launcher

FILE = f"{goodput.__file__}:real"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the launcher in this process, in an empty directory: flags -> (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    return launcher.caller(monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.xdist_group("actors")
def test_who_waits_for_a_killed_learner_loses_what_others_do_not(call):
    try:
        code, out, err = call(
            f"--config={FILE},workers=2,every=6,kills=1,undisturbed=3,seeds=1", "--workdir=out"
        )
    finally:
        SESSION.close()
    assert code == 0 and err == "" and "goodput while learners are killed" in out
    summary = json.loads(pathlib.Path("out/summary.json").read_text())
    for row in summary["methods"]:
        assert row["kills"] == 1 and 0.4 < row["there"] < 1 and row["undisturbed"] > 0
    assert all(measured.startswith("inconclusive") for _, measured in summary["claims"])


def test_an_absence_ends_with_the_new_process_or_with_the_run():
    events = [
        Event(2.0, 1, "lost"), Event(3.0, 0, "lost"), Event(3.5, 0, "lost"),
        Event(4.5, 1, "restored"), Event(5.0, 2, "restored"), Event(9.0, 1, "lost"),
        Event(10.5, 1, "restored"), Event(10.5, 2, "lost"),
    ]  # fmt: skip
    assert paper.absences(events, 10.0) == [(2.0, 4.5), (9.0, 10.0), (3.0, 10.0)]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--config.kills=0",), "config.kills must be a positive whole number, got 0"),
        (("--config.every=0.0",), "config.every must be positive seconds, got 0.0"),
        (("--config.methods=(('a','all_reduce'),)",), "config.methods must be methods, each"),
        (
            ("--config.methods=(('a','all_reduce','barrier'),)",),
            "move freely, and the waiting rule",
        ),
        (("--config.methods=(('a','easgd','quorum_async(k=1)'),)",), "a worker may go on before"),
        (("--config.runtime=simulate",), "set config.runtime='actors' and methods with a server"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(call, tmp_path, flags, words):
    code, out, err = call(f"--config={FILE}", "--workdir=out", *flags)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err, err
    assert not list(tmp_path.iterdir())
