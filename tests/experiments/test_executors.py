"""Executors of arms: this process, and others on this machine."""

import functools
import os
import signal
import sys
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from experiments import endings, executors
from experiments.executors import Arm
from tests.launcher import summary

SHOWN = executors.Shown(9)
# What a process of an arm does here, in place of training: say when, fail, or leave a summary.
CHILD = """
import json, os, pathlib, signal, sys, time
place, what = pathlib.Path(sys.argv[1]), sys.argv[2]
place.mkdir(parents=True, exist_ok=True)
began = time.monotonic()
(place / "begun_pid").write_text(str(os.getpid()))
(place / "begun_pid").rename(place / "pid")  # whole
(place / "metrics.jsonl").write_text('{"update": 3, "seconds": 1.5, "train_loss": 0.25}\\n')
if what == "stay":
    time.sleep(60)
if what == "exit":
    print("something is wrong")
    sys.exit(3)
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "tells":
    (place / "error.txt").write_text("ValueError: no such luck\\n\\nTraceback")
    sys.exit(1)
time.sleep(0.3)
written = {"argv": sys.argv[3:], "began": began, "ended": time.monotonic()}
written["preallocates"] = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE")
(place / "summary.json").write_text(json.dumps(written))
"""


def group(*paths):
    budget = {"seed": 0, "seconds": 1.0, "updates": 9, "runtime": "simulate"}
    return [Arm(path, ConfigDict(budget | {"name": path})) for path in paths]


def child(root, group, *flags):
    """Return the command of an arm, which is named after what its process does."""
    (arm,) = group
    return [sys.executable, "-c", CHILD, str(root / arm.path), arm.path.partition("/")[0], *flags]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# --- several processes ---


def test_jobs_have_time_for_their_checkpoints_until_a_second_signal(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.01)
    for signals in (1, 2):
        left, events = iter([KeyboardInterrupt] * signals), []

        def begins(group, left=left, events=events):
            def poll():
                if error := next(left, None):
                    raise error
                return "" if events.count("looked") == 4 else events.append("looked")

            ask, kill = (functools.partial(events.append, what) for what in ("asked", "killed"))
            return executors.Job(poll, ask, kill)

        shown = SimpleNamespace(arm=lambda config: executors.Watched(*[lambda _: None] * 2))
        with pytest.raises(KeyboardInterrupt):
            executors.follow([group(name) for name in "abc"], begins, 3, tmp_path, shown)
        after = ["looked"] * 4 if signals == 1 else ["killed"] * 3
        assert events == ["asked"] * 3 + after


def test_no_process_is_left_behind(tmp_path, monkeypatch):
    """A system ends a launch as soon as both of its processes have begun."""
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.05)

    def on_record(record):
        if len([*tmp_path.rglob("pid")]) == 2:
            signal.raise_signal(signal.SIGTERM)

    shown = SimpleNamespace(arm=lambda config: executors.Watched(on_record, lambda _: None))
    command = functools.partial(child, tmp_path)
    before = signal.signal(signal.SIGTERM, lambda number, _: endings.end(number))  # as of a launch
    try:
        with pytest.raises(endings.Asked):
            groups = [group("stay/a"), group("stay/b")]
            executors.local(groups, tmp_path, shown, command=command, at_once=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    pids = [int(file.read_text()) for file in tmp_path.rglob("pid")]
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_failing_processes_do_not_stop_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.05)
    groups = [group(name) for name in ("exit", "killed", "tells", "fine/a", "fine/b", "fine/c")]
    (tmp_path / "fine" / "a").mkdir(parents=True)
    (tmp_path / "fine" / "a" / "error.txt").write_text("of an earlier attempt")
    run = functools.partial(executors.local, command=functools.partial(child, tmp_path), at_once=2)
    failures = run(groups, tmp_path, SHOWN)
    assert sorted(failures) == ["exit", "killed", "tells"]
    assert "exit code 3; see" in failures["exit"] and "SIGKILL" in failures["killed"]
    assert failures["tells"] == "ValueError: no such luck"
    assert (tmp_path / "exit" / "output.txt").read_text() == "something is wrong\n"
    shown = capsys.readouterr().out
    assert "fine/a seed 0:      3 updates      1.5/1 s  loss 0.2500" in shown
    assert "tells seed 0: failed: ValueError: no such luck" in shown

    spans = [summary(tmp_path / "fine" / name) for name in "abc"]
    assert {span["preallocates"] for span in spans} == {"false"}  # they share a GPU
    at_once = [sum(b["began"] <= a["began"] < b["ended"] for b in spans) for a in spans]
    assert max(at_once) <= 2
    assert sorted(run(groups, tmp_path, SHOWN)) == ["exit", "killed", "tells"]
    assert [summary(tmp_path / "fine" / name) for name in "abc"] == spans  # not run again


def test_a_command_of_one_group_has_no_flags_about_the_others():
    others = "--jobs 2 -executor=slurm --slurm partition=gpu --print_commands=True --arm=b -arm c"
    argv = ["launch.py", "--config=c.py", *others.split(), "--cluster", "auto", "--workdir", "jobs"]
    kept = ["launch.py", "--config=c.py", "--workdir", "jobs"]
    chosen = group("a/x", "b")
    arms = ["--arm=a/x", "--arm=b"]
    assert executors.command(argv, chosen) == [sys.executable, *kept, *arms]
    chosen[0].config.runtime = "actors"  # whose workers live on the cluster
    kept[2:2] = ["--cluster", "auto"]
    assert executors.command(argv, chosen) == [sys.executable, *kept, *arms]


# --- this process ---


@pytest.fixture
def trained(monkeypatch):
    """Return the names of the arms that are trained; that of an arm says what becomes of it."""
    names = []

    def run(config, place, *, on_record, on_note, checkpoint_seconds, shared):
        assert shared is not None
        names.append(config.name)
        if config.name == "bad":
            raise RuntimeError("out of memory\n  in many lines")

    def run_together(configs, places, on_record, **how):
        for config, place, tell in zip(configs, places, on_record, strict=True):
            run(config, place, on_record=tell, **how)

    monkeypatch.setattr(executors.train, "run", run)
    monkeypatch.setattr(executors.train, "run_together", run_together)
    return names


def test_a_failing_arm_does_not_lose_the_others(trained, tmp_path, capsys):
    groups = [group("bad"), group("fine"), group("good", "bad", "better")]
    failures = executors.here(groups, tmp_path, SHOWN)
    assert failures == {"bad": "RuntimeError: out of memory in many lines"}
    # Together, then each alone.
    assert trained == ["bad", "fine", "good", "bad", "good", "bad", "better"]
    reason, _, trace = (tmp_path / "bad" / "error.txt").read_text().partition("\n\n")
    assert reason == failures["bad"] and trace.startswith("Traceback") and "in run" in trace
    assert (
        "bad seed 0: failed: RuntimeError: out of memory in many lines\n" in capsys.readouterr().out
    )
