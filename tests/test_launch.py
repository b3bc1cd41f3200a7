"""Launches from the command line: records, sweeps, executors and what is refused."""

import json
import os
import shlex
from unittest.mock import ANY

import pytest

import launch
from experiments import executors
from experiments import files as disk
from tests import launcher
from tests.launcher import files, metrics, start, summary

OK = ("--config=config.py", "--workdir=out")
KEYS = {
    "name", "algorithm", "wait", "runtime", "workers", "seed", "updates", "samples", "clock",
    "seconds", "target_loss", "seconds_to_target", "train_loss", "test_loss", "test_accuracy",
    "consensus_distance", "bytes_per_worker", "idle_fraction", "staleness_mean", "wall_seconds",
}  # fmt: skip


def test_without_flags_it_shows_five_commands_that_make_sense(call, here):
    (here / "configs").symlink_to(launcher.ROOT / "configs")
    code, out, err = call()
    assert (code, err) == (0, "")
    found = [line for line in out.splitlines() if line.startswith("python launch.py --")]
    assert len(found) == 5 and not files(here / "empty")
    for _, program, *given in (shlex.split(line, comments=True) for line in found):
        if {"--config", "--list"} & {flag.partition("=")[0] for flag in given}:
            more = () if "--list" in given else ("--print_commands",)
            assert call(*given, *more)[0] == 0, given
        else:  # of a workdir that is not there yet
            code, _, err = call(*given)
            assert code == 2 and "runs/demo" in err, given
        assert program == "launch.py"


def test_a_run_leaves_its_records(here):
    """In a locale and a terminal without UTF-8."""
    name = "all_reduce/\u00b5\u4e2d"
    text = launcher.CONFIG.replace('"all_reduce/nonblocking"', f"{name!a}")
    (here / "config.py").write_text(text, encoding="utf-8")
    flags = ("--config=config.py:workers=3", "--config.seed=4", "--workdir=a/run")
    ended = start(here, *flags, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ended.returncode == 0, ended.stderr
    assert r"all_reduce/\xb5\u4e2d seed 4: started" in ended.stdout
    assert name in (here / "a" / "run" / "report.html").read_text(encoding="utf-8")
    assert "speed-up" in ended.stdout and "records: a/run" in ended.stdout
    run = here / "a" / "run"
    assert {path.name for path in run.iterdir()} == {
        "config.json", "metrics.jsonl", "summary.json", "schedule.npz", "parameters.npz",
        "digests.json", "timeline.json", "figure.png", "report.json", "report.html", "strip.png",
        "checkpoint",
    }  # fmt: skip
    noted = json.loads((run / "report.json").read_text())
    assert noted["command"].endswith("--config.seed=4 --workdir=a/run")
    assert "report: a/run/report.html" in ended.stdout
    config = json.loads((run / "config.json").read_text())
    assert config["workers"] == 3 and config["seed"] == 4 and config["optimizer"]["decay"] == 0.9
    assert [line["seconds"] for line in metrics(run)] == [0, 0.5, 1.0, 1.5, 2.0]
    made = summary(run)
    assert set(made) >= KEYS
    assert (made["algorithm"], made["wait"]) == ("all_reduce", "first_finisher")
    assert (made["workers"], made["seed"], made["clock"]) == (3, 4, "virtual")
    assert 0 < made["seconds_to_target"] < 2 and made["train_loss"] < 0.6
    assert (run / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_again_finds_its_work_done(call, here):
    code, first, err = call(*OK)
    assert code == 0 and err == ""
    made, lines = summary(here / "out"), metrics(here / "out")
    note = here / "out" / "report.json"
    noted = json.loads(note.read_text())
    note.write_text(json.dumps(noted | {"date": "2001-02-03T04:05:06+00:00"}))
    code, again, err = call(*OK)
    assert code == 0 and "already finished" in again and summary(here / "out") == made
    table = again.index(" arm ")
    assert again[table:] == first[first.index(" arm ") :]
    assert "03 February 2001" in (here / "out" / "report.html").read_text()  # when it ran

    code, _, err = call(*OK, "--config.seconds=1")
    assert code == 2 and "seconds (2.0 there, 1.0 here)" in err
    assert summary(here / "out") == made

    code, out, _ = call(*OK, "--overwrite")
    assert code == 0 and "already finished" not in out
    assert json.loads(note.read_text())["date"] >= noted["date"]
    assert summary(here / "out")["wall_seconds"] != made["wall_seconds"]
    assert metrics(here / "out") == lines  # the same seed, the same numbers


@pytest.mark.slow
@pytest.mark.xdist_group("actors")
def test_arms_run_elsewhere(call, here):
    """With the same records as here, and those that are done are not run again."""
    flags = ("--config=config.py", "--sweep", "--config.seconds=0.5", "--checkpoint_seconds=0")
    assert call(*flags, "--workdir=here")[0] == 0
    for name, how in {"jobs": ("--jobs=2",), "ray": ("--executor=ray", "--ray=cpus=1")}.items():
        there = (*flags, f"--workdir={name}", *how, "--loggers=tensorboard")
        done = start(here, *there, XLA_FLAGS=os.environ["XLA_FLAGS"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[2/2] dpsgd/nonblocking seed 0: started" in done.stdout
        for arm in ("all_reduce/blocking", "dpsgd/nonblocking"):
            assert metrics(here / "here" / arm) == metrics(here / name / arm)
            assert (here / name / arm / "tensorboard").is_dir()
    before = files(here / "jobs" / "all_reduce")
    code, _, err = call(*flags, "--workdir=jobs", "--jobs=2")
    assert code == 0 and files(here / "jobs" / "all_reduce") == before, err


@pytest.mark.slow
def test_a_workdir_has_one_launch_at_a_time(call, here):
    command = (*OK, "--sweep", "--config.updates=2")
    out = here / "out"
    for lock in (out / disk.LAUNCH_LOCK, out / "all_reduce" / "blocking" / disk.RUN_LOCK):
        with disk.held(lock):
            before = files(here)
            code, shown, err = call(*command)
            assert (code, shown) == (2, "") and "is in use by process" in err
            assert files(here) == before
    with disk.held(lock):
        code, shown, _ = call(*command, "--arm=all_reduce/blocking", "--arm=dpsgd/nonblocking")
        assert code == 1 and "failed: InUse: workdir out/all_reduce/blocking is in use" in shown
        assert not (here / "out" / "all_reduce" / "blocking" / "error.txt").exists()
    assert summary(here / "out" / "dpsgd" / "nonblocking")["updates"] == 2
    assert not list(here.rglob("*.lock"))


def test_ctrl_c_is_answered_in_a_sentence(call, here, monkeypatch):
    run = executors.train.run

    def interrupted(config, place, **how):
        if config.name == "dpsgd/nonblocking":
            raise KeyboardInterrupt
        return run(config, place, **how)

    monkeypatch.setattr(executors.train, "run", interrupted)
    command = (*OK, "--sweep", "--config.updates=2")
    assert call(*command) == (130, ANY, "interrupted; the same command goes on from here\n")
    sentence = "interrupted; the same command starts over, without --overwrite it goes on\n"
    assert call(*command, "--overwrite") == (130, ANY, sentence)
    assert call("--report=out")[0] == 0
    report = (here / "out" / "report.html").read_text()
    assert "1 arm " in report and f"{command[-1]} --overwrite<" in report

    def plan(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "plan", plan)
    assert call(*OK)[0] == 130


@pytest.mark.slow
def test_the_simulator_replays_what_happened_on_a_mesh(call, here):
    budget = ("--config.updates=12", "--config.seconds=60")
    mesh = ("--config=config.py:pace=0.005", "--config.runtime=mesh", "--workdir=mesh")
    assert call(*mesh, *budget)[0] == 0
    happened = summary(here / "mesh")
    assert (happened["clock"], happened["runtime"], happened["updates"]) == ("wall", "mesh", 12)
    replay = "--config.wait=replay(path='mesh/schedule.npz')"
    code, _, err = call(*OK, "--config.runtime=simulate", replay, *budget)
    assert code == 0, err
    replayed = summary(here / "out")
    assert (replayed["clock"], replayed["wait"]) == ("virtual", "replay")
    for exact in ("updates", "samples", "bytes_per_worker", "idle_fraction"):
        assert replayed[exact] == happened[exact]
    for rounded in ("train_loss", "test_loss", "test_accuracy"):
        assert replayed[rounded] == pytest.approx(happened[rounded], rel=1e-4)


@pytest.mark.slow
def test_a_record_is_run_again_and_trained_longer(call, here):
    assert call(*OK, "--config.updates=4")[0] == 0
    again = ("--config=out/config.json", "--workdir=again")
    assert call(*again)[0] == 0 and metrics(here / "again") == metrics(here / "out")
    code, out, err = call(*again, "--config.updates=9")
    assert (code, err) == (0, "") and "goes on at update 4" in out
    assert call("--config=config.py", "--workdir=whole", "--config.updates=9")[0] == 0
    assert metrics(here / "again") == metrics(here / "whole")
    code, _, err = call(*again, "--config.updates=5")
    assert code == 2 and "differs in updates (9 there, 5 here)" in err
    given = "--config.initial=out/parameters.npz"
    assert call("--config=config.py", given, "--config.updates=2", "--workdir=warm")[0] == 0
    assert metrics(here / "warm")[0]["train_loss"] == metrics(here / "out")[-1]["train_loss"]
    code, _, err = call("--config=config.py", "--config.initial=nowhere.npz", "--workdir=none")
    assert code == 2 and "there is no file or folder 'nowhere.npz'" in err
    assert not (here / "none").exists()
    (here / "launch.yaml").write_text("program: launch.py")
    for flags in (("--config=out/config.json", "--sweep"), ("--config=launch.yaml",)):
        code, _, err = call(*flags, "--workdir=other")
        assert code == 2 and err.count("\n") == 1
    assert "a config is a Python file or a run's config.json" in err
