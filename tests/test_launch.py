"""Launches from the command line: records, sweeps, executors and what is refused."""

import json
import os
import shlex
import sys
from unittest.mock import ANY

import pytest
from absl.testing import flagsaver

import launch
from experiments import distributed, executors
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
            launcher.refused(call(*given), "runs/demo")
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


def test_a_place_may_begin_with_a_tilde(call, here, monkeypatch):
    """A shell leaves it alone within a flag."""
    monkeypatch.setenv("HOME", str(here))
    launcher.refused(call("--report=~/none"), f"{here}/none holds no records")


def test_the_same_command_again_finds_its_work_done(call, here):
    code, first, err = call(*OK)
    assert code == 0 and err == ""
    made, lines = summary(here / "out"), metrics(here / "out")
    note = here / "out" / "report.json"
    noted = json.loads(note.read_text())
    note.write_text(json.dumps(noted | {"date": "2001-02-03T04:05:06+00:00"}))
    code, again, err = call(*OK)
    assert code == 0 and "already finished" in again and summary(here / "out") == made
    assert metrics(here / "out") == lines
    table = again.index(" arm ")
    assert again[table:] == first[first.index(" arm ") :]
    assert "03 February 2001" in (here / "out" / "report.html").read_text()  # when it ran

    launcher.refused(call(*OK, "--config.seconds=1"), "seconds (2.0 there, 1.0 here)")
    assert summary(here / "out") == made

    code, out, _ = call(*OK, "--overwrite")
    assert code == 0 and "already finished" not in out
    assert json.loads(note.read_text())["date"] >= noted["date"]
    assert summary(here / "out")["wall_seconds"] != made["wall_seconds"]
    assert metrics(here / "out") == lines  # the same seed, the same numbers
    assert call(*OK, "--overwrite", "--config.seed=1")[0] == 0 and metrics(here / "out") != lines


def test_what_runs_elsewhere_overwrites_nothing(monkeypatch):
    """Runs are removed before, so that what is started again goes on."""
    argv = ["launch.py", "--config=c.py", "--jobs=2", "--overwrite"]
    monkeypatch.setattr(sys, "argv", argv)
    with flagsaver.flagsaver():
        launch.FLAGS(argv)
        run = launch.executor([], None)
    assert "--overwrite" not in run.keywords["command"](group=[])


@pytest.mark.parametrize("flags", [("--jobs=2",), ("--executor=slurm",)])
def test_one_of_several_processes_starts_no_arms_elsewhere(here, monkeypatch, flags):
    """As under srun, where each of them would submit the same jobs."""
    monkeypatch.setattr(distributed, "initialize", lambda *_: None)
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    with flagsaver.flagsaver():
        launch.FLAGS(["launch.py", *OK, "--seeds=2", *flags])
        with pytest.raises(ValueError, match=r"this is one of 2, .* start the command once"):
            launch.run()


def test_commands_are_made_of_the_flags_of_a_file(call, here):
    """An arm that runs elsewhere is not given the file, which says where all of them run."""
    (here / "flags.txt").write_text("--executor=ray\n--config.updates=2\n")
    code, out, _ = call(*OK, "--sweep", "--flagfile=flags.txt", "--print_commands")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2
    assert all("--config.updates=2" in line and "executor" not in line for line in lines)
    assert "flagfile" not in out
    code, out, _ = call(*OK, "--restarts=2", "--print_commands")
    assert code == 0 and "--restarts=2" in out


@pytest.mark.slow
def test_arms_run_elsewhere(call, here):
    """With the same records as here, and those that are done are not run again."""
    flags = ("--config=config.py", "--sweep", "--config.seconds=0.5", "--checkpoint_seconds=0")
    assert call(*flags, "--workdir=here")[0] == 0
    there = (*flags, "--workdir=ray", "--executor=ray", "--ray=cpus=1", "--loggers=tensorboard")
    done = start(here, *there, XLA_FLAGS=os.environ["XLA_FLAGS"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[2/2] dpsgd/nonblocking seed 0: started" in done.stdout
    for arm in ("all_reduce/blocking", "dpsgd/nonblocking"):
        assert metrics(here / "here" / arm) == metrics(here / "ray" / arm)
        assert (here / "ray" / arm / "tensorboard").is_dir()
    before = files(here / "ray" / "all_reduce")
    code, _, err = call(*flags, "--workdir=ray", "--jobs=2")
    assert code == 0 and files(here / "ray" / "all_reduce") == before, err


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

    def interrupted_at_once():
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "run", interrupted_at_once)
    assert call(*OK)[0] == 130
