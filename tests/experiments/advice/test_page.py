"""Advice on the command line, from durations to its page, and its refusals."""

import json
import shlex

import pytest

from experiments import config_files
from experiments.advice import page, play
from experiments.config_files import override
from stragglers import delays, processes
from stragglers.rule import Setting, whole
from stragglers.rules import RULES
from tests import launcher, planned
from tests.experiments.test_report import Page

LAW = "persistent(law=jitter(mean=0.02, sigma=0.05), factors={0: 3.0})"  # hardly spread
THREE = "--config=config.py:workers=3"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Write sources of durations; little is played and trained, for what is not looked at."""
    root = launcher.directory(tmp_path, monkeypatch)
    for name, value in (("ROUNDS", 6), ("REPEATS", 2), ("MOST_TRAINED", 3), ("EVALUATIONS", 4)):
        monkeypatch.setattr(play, name, value)
    monkeypatch.setattr(play, "COARSE", (1.0,))
    monkeypatch.setattr(play, "FURTHER", 0)
    for name, workers, updates in (("short", 3, 4), ("three", 3, 40)):
        planned.plan("barrier", delays.exponential(0.02), workers, updates).save(f"{name}.npz")
    rows = [
        f"node{9 + i},{t},{0.02 * (3 if i == 0 else 1) * (1 + 0.001 * (t * 7 % 50)):.6f}"
        for t in range(40)
        for i in range(3)
    ]
    (root / "good.csv").write_text("\n".join(["worker,time,batch_time", *rows]))
    return root


def record(place, mini_batches, **changes):
    """Leave a workdir as a run does, with what the advice reads."""
    config = override(config_files.read("config.py:workers=3").config, {
        "mini_batches": mini_batches, "wait": "barrier", "delay": LAW, **changes,
    })  # fmt: skip
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config.to_dict()))
    law = processes.persistent(delays.jitter(0.02, 0.05), {0: 3.0})
    whole(RULES["barrier"](Setting(law, 3, mini_batches, 0)), 40).save(place / "schedule.npz")


@pytest.mark.slow
def test_a_run_is_advised_on_trained_and_its_workdir_used_again(here, call):
    record(here / "run", mini_batches=2, seconds=2.0)
    code, out, err = call("--advise=run")
    assert code == 0, err
    assert "\nadvice: " in out and "…" not in out and "page: run-advice/advice.html" in out
    place = here / "run-advice"
    written = json.loads((place / page.ADVICE).read_text())
    assert len(written["rules"]) >= 10 and written["reference"] == "barrier"
    done = [rule["wait"] for rule in written["rules"] if rule["trained_seconds"]]
    assert "barrier" in done and len(done) in (2, 3) and written["durations"] == 240
    assert all(rule["wait"] in out for rule in written["rules"])
    assert written["straggler"]["worker"] == "0" and "straggler: worker 0 takes 1.8" in out
    assert "at the initial parameters, for lack of a finished run" in out
    shown = Page((place / page.PAGE).read_text())
    for words in ("A smaller batch: ", "Ranking", "got no graph"):
        assert words in shown.text
    command = shlex.split(next(line for line in out.splitlines() if line.startswith("command: ")))
    assert command[1] == "python" and call(*command[3:])[0] == 0
    assert launcher.summary(here / command[-1].removeprefix("--workdir="))["updates"] > 0
    before = launcher.files(place / play.ARMS)
    assert call("--advise=run")[0] == 0
    assert launcher.files(place / play.ARMS) == before  # nothing is trained again
    other = ["--advise=good.csv", THREE, "--no_training", "--workdir=run-advice"]
    before = launcher.files(here)
    launcher.refused(call(*other), "holds an advice on other durations")
    assert launcher.files(here) == before
    assert call(*other, "--overwrite")[0] == 0 and not (place / play.ARMS).exists()
    assert "node10" in (place / page.PAGE).read_text()


def test_what_cannot_be_advised_is_refused(here, call):
    before = launcher.files(here)
    for flags, words in (
        (["--advise=nothing"], "nothing is no directory, no file and no law"),
        (["--advise=good.csv"], "has durations and no config; give --config"),
        (["--advise=nothing", "--config=config.py"], "is no directory, no file and no law"),
        (["--advise=exponential(scale=-1)", "--config=config.py"], "needs scale > 0"),
        (["--advise=empty"], "is a directory without a run's config.json"),
        (["--advise=short.npz", THREE], "has 12 durations"),
        (["--advise=three.npz", THREE, "--config.target_loss=None"], "set --config.target_loss"),
        (["--advise=three.npz", THREE, "--workdir=other"], "something else than an advice"),
        (["--advise=three.npz", THREE, "--config.wait=neighbour_barrier"],
         "config.wait=neighbour_barrier cannot be played"),
        (["--advise=three.npz", THREE,
          "--config.optimizer=[clip_by_global_norm(max_norm=1.0), sgd(learning_rate=0.1)]"],
         "has none of its own; write one behind it"),
    ):  # fmt: skip
        launcher.refused(call(*flags), words)
        assert launcher.files(here) == before


def test_the_advised_command_trusts_what_its_record_names(here, monkeypatch):
    record(here / "run", mini_batches=2)
    commands = []

    def read(text, config, command, trusted):
        commands.append(command)
        raise ValueError("nothing is read")

    monkeypatch.setattr(page.durations, "read", read)
    for config, trusts in ((None, True), ("run/config.json", True), ("config.py", False)):
        with pytest.raises(ValueError, match="nothing is read"):
            page.launch("good.csv", config, {}, None, ["mine"], command="python launch.py")
        assert ("--trust=mine" in commands[-1]) == trusts
