"""Advice on the command line, from durations to its page, and its refusals."""

import json
import shlex

import pytest

from experiments import config_files, prepare
from experiments.advice import durations, page, play
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
    """Sources of durations; little is played and trained, and what that says is not looked at."""
    root = launcher.directory(tmp_path, monkeypatch)
    for name, value in (("ROUNDS", 6), ("REPEATS", 2), ("MOST_TRAINED", 2), ("EVALUATIONS", 4)):
        monkeypatch.setattr(play, name, value)
    for name in ("COARSE", "FINE"):
        monkeypatch.setattr(play, name, (1.0,))
    for name, workers, updates in (("short", 3, 4), ("three", 3, 40), ("one", 1, 99)):
        planned.plan("barrier", delays.exponential(0.02), workers, updates).save(f"{name}.npz")
    rows = [
        f"node{9 + i},{t},{0.02 * (3 if i == 0 else 1) * (1 + 0.001 * (t * 7 % 50)):.6f}"
        for t in range(40)
        for i in range(3)
    ]
    (root / "good.csv").write_text("\n".join(["worker,time,batch_time", *rows]))
    (root / "file.npz").write_text("mine")
    return root


@pytest.fixture
def call(monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


def record(place, mini_batches=1, **changes):
    """A workdir as a run leaves it, with what the advice reads."""
    config = override(config_files.read("config.py:workers=3").config, {
        "mini_batches": mini_batches, "wait": "barrier", "delay": LAW, **changes,
    })  # fmt: skip
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config.to_dict()))
    law = processes.persistent(delays.jitter(0.02, 0.05), {0: 3.0})
    whole(RULES["barrier"](Setting(law, 3, mini_batches, 0)), 40).save(place / "schedule.npz")


SOURCES = ["good.csv", "run", "run/schedule.npz", "deterministic(value=0.02)"]


@pytest.mark.parametrize(
    ("source", "mini_batches"), [*zip(SOURCES, (1, 2, 8, 2), strict=True), ("run", 8)]
)
@pytest.mark.slow
def test_every_source_is_advised_on(here, call, source, mini_batches):
    record(here / "run", mini_batches)
    given = [THREE, f"--config.mini_batches={mini_batches}", "--config.wait=barrier"]
    flags = ["--no_training", "--workdir=a", *(given if source != "run" else [])]
    code, out, err = call(f"--advise={source}", *flags)
    assert code == 0, err
    assert "\nadvice: " in out and "…" not in out and "page: a/advice.html" in out
    written = json.loads((here / "a" / page.ADVICE).read_text())
    assert len(written["rules"]) >= 10 and written["reference"] == "barrier"
    assert all(rule["trained_seconds"] is None for rule in written["rules"])
    assert not (here / "a" / play.ARMS).exists()
    rates = {rule["wait"]: rule["samples_per_second"] for rule in written["rules"]}
    advised = written["rules"][0]["wait"]
    assert rates[advised] >= rates["barrier"] / (1 + play.MARGIN) and all(n in out for n in rates)
    if source == "good.csv":
        assert "node9 (" in out and "node10" in (here / "a" / page.PAGE).read_text()
    command = shlex.split(next(line for line in out.splitlines() if line.startswith("command: ")))
    assert command[1] == "python"
    code, _, err = call(*command[3:])
    assert code == 0, err
    assert launcher.summary(here / command[-1].removeprefix("--workdir="))["updates"] > 0


@pytest.mark.slow
def test_training_and_a_workdir_that_is_used_again(here, call):
    record(here / "run", seconds=2.0)
    assert call("--advise=run")[0] == 0
    place = here / "run-advice"
    written = json.loads((place / page.ADVICE).read_text())
    done = [rule["wait"] for rule in written["rules"] if rule["trained_seconds"]]
    assert "barrier" in done and len(done) in (2, 3) and written["durations"] == 120
    shown = Page((place / page.PAGE).read_text())
    for words in ("What would change the verdict", "Who waits for whom", "got no graph"):
        assert words in shown.text
    assert (place / page.WAITS).read_bytes().startswith(b"\x89PNG")
    before = launcher.files(place / play.ARMS)
    assert call("--advise=run")[0] == 0
    assert launcher.files(place / play.ARMS) == before  # nothing is trained again
    other = ["--advise=good.csv", THREE, "--no_training", "--workdir=run-advice"]
    before = launcher.files(here)
    code, _, err = call(*other)
    assert code == 2 and "holds an advice on other durations" in err
    # A refusal leaves what was trained before.
    assert call(*other, "--overwrite", "--config.target_loss=None")[0] == 2
    assert launcher.files(here) == before
    assert call(*other, "--overwrite")[0] == 0 and not (place / play.ARMS).exists()


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
        (["--advise=short.npz", THREE], "has 12 durations"),
        (["--advise=three.npz", "--config=config.py"], "give --config.workers=3"),
        (["--advise=good.csv", "--config=config.py:workers=5"], "give --config.workers=3"),
        (["--advise=spells(law=trace(path='good.csv'), mini_batches=2)", "--config=config.py"],
         "has 3 workers, the config asks for 2"),
        (["--advise=one.npz", "--config=config.py:workers=1"], "durations of one worker"),
        (["--advise=three.npz", THREE, "--config.target_loss=None"], "set --config.target_loss"),
        (["--advise=x", "--sweep"], "--advise trains arms of its own; leave out --sweep"),
        (["--rule=barrier", "--config=config.py", "--workdir=w"], "--rule belongs to --advise"),
        (["--advise=three.npz", THREE, "--workdir=other"], "something else than an advice"),
        (["--advise=three.npz", THREE, "--config.wait=neighbour_barrier"],
         "config.wait=neighbour_barrier cannot be played"),
    ],
)  # fmt: skip
def test_what_cannot_be_advised_is_refused(here, call, flags, words):
    before = launcher.files(here)
    code, _, err = call(*flags)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert words in err
    assert launcher.files(here) == before


@pytest.mark.parametrize("runtime", ["mesh", "actors"])
def test_a_rule_that_a_runtime_does_not_know_is_run_in_the_simulator(here, runtime):
    record(here / "run", runtime=runtime, delay="none", draw="round")
    source = durations.read("run", None, ["python", "launch.py"])
    rules = {"mesh": "k_async(k=1)", "actors": "deadline(seconds=0.1)"}
    flags = []
    for wait in (rules[runtime], {"mesh": "barrier", "actors": "k_async(k=1)"}[runtime]):
        arm = override(durations.as_simulated(source.config), {"wait": wait})
        one = play.play(arm, prepare.prepare(arm), source.measured)
        verdict = play.Verdict([one], "", [one])
        advice = play.Advice(source, arm, 1.0, [one], [one], one, [], verdict, [], {})
        flags.append(page.command(advice, here / "a"))
    beyond, known = flags
    assert "--config.runtime=simulate" in beyond
    assert f"--config.delay=trace(path='{here}/a/{play.DURATIONS[0]}')" in beyond
    assert not any(one.startswith(("--config.runtime", "--config.delay")) for one in known)
