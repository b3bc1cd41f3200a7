"""A process that has lost another one is started again, and no other is."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments import restarts
from stragglers import schedule
from tests import launcher, two_processes
from tests.launcher import ROOT, summary
from tests.two_processes import said, wait_for

# Ends with the code that is next in a file; a negative one is a signal to itself.
SCRIPT = """
import json, os, pathlib, sys
path = pathlib.Path(sys.argv[1])
code, *codes = json.loads(path.read_text())
path.write_text(json.dumps(codes))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("codes", "count", "expected", "left"),
    [
        ([0, 0], 3, 0, 1),
        ([3, 0, 0], 3, 0, 1),
        ([3, 2, 0], 2, 0, 0),  # the others were not back yet
        ([2, 0], 3, 2, 1),  # a command that makes no sense
        ([1, 0], 3, 1, 1),
        ([143, 0], 3, 143, 1),
        ([KILLED, KILLED, 0], 2, 0, 0),
        ([3, 3, 0], 1, 3, 1),
        ([KILLED, KILLED, 0], 1, 137, 1),
    ],
)
def test_losses_are_started_again(
    tmp_path, monkeypatch, own_handlers, capfd, codes, count, expected, left
):
    monkeypatch.setattr(restarts, "PAUSE", 0.0)
    path = tmp_path / "codes.json"
    path.write_text(json.dumps(codes))
    code = restarts.run(["-c", SCRIPT, str(path), f"--restarts={count}"], count)
    remaining = json.loads(path.read_text())
    assert code == expected and len(remaining) == left
    assert capfd.readouterr().err.count("it starts again") == len(codes) - left - 1


@pytest.fixture
def own_handlers():
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, *restarts.endings.OTHERS)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Call:
    """A roll call that ends with these members, or with nobody."""

    def __init__(self, *members):
        self.members, self.left = (0, 1, 2), members

    def call(self, stopped):
        assert not stopped()
        if not self.left:
            raise restarts.Gone("process 0 has not come back")
        self.members = self.left

    def flags(self):
        return ["--num_processes=1"]

    def close(self):
        self.members = ()


def test_another_start_has_the_command_that_the_roll_call_gives(monkeypatch, own_handlers, capfd):
    monkeypatch.setattr(restarts, "PAUSE", 0.0)
    code = "import sys; sys.exit(3 if '--num_processes=3' in sys.argv else len(sys.argv) - 2)"
    argv = ["-c", code, "--coordinator_address", "h:1", "--num_processes=3", "--process_id=0"]
    call = Call(0, 2)
    assert restarts.run(argv, 2, call) == 0 and not call.members
    assert "process 1 has not come back; the run goes on with 2 of 3" in capfd.readouterr().err
    assert restarts.run(argv, 2, Call()) == 3
    assert capfd.readouterr().err.endswith("error: process 0 has not come back\n")


def test_a_signal_goes_to_the_command_and_nothing_starts_again():
    child = "import time; print('begun', flush=True); time.sleep(60)"
    parent = (
        "import sys; from experiments import restarts\n"
        f"sys.exit(restarts.run(['-c', {child!r}], 5))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert process.stdout.read() == ""


@pytest.mark.slow
def test_who_has_not_come_back_is_left_out_and_the_others_get_new_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(restarts, "PATIENCE", 1.5)
    monkeypatch.setattr(restarts, "BEAT", 0.02)
    workdir = str(tmp_path / "out")
    calls = [restarts.RollCall(workdir, "h:1", 4, i) for i in (0, 2, 3)]
    for _ in range(2):  # all who are left come to the second one, which does not wait
        threads = [threading.Thread(target=call.call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [call.members for call in calls] == [(0, 2, 3)] * 3
    assert calls[1].flags() == ["--coordinator_address=h:1", "--num_processes=3", "--process_id=1"]
    calls[0].call()  # alone, as the others have gone
    assert calls[0].members == (0,) and calls[0].flags() == []
    calls[0].close()
    assert not list(tmp_path.iterdir())


def test_nobody_goes_on_without_the_first_one(tmp_path, monkeypatch):
    monkeypatch.setattr(restarts, "PATIENCE", 0.1)
    monkeypatch.setattr(restarts, "BEAT", 0.02)
    call = restarts.RollCall(str(tmp_path / "out"), "h:1", 2, 1)
    with pytest.raises(restarts.Gone, match="process 0, at whose address h:1 the others meet"):
        call.call()
    call.call(stopped=lambda: True)  # somebody has asked it to end


@pytest.fixture
def here(tmp_path, monkeypatch):
    return launcher.directory(tmp_path, monkeypatch)


@pytest.mark.slow
def test_both_start_again_when_one_is_killed_and_finish_the_run(here):
    """At the same address, with the checkpoint of the first start, under a rule that counts."""
    flags = ("--restarts=2", *two_processes.ENDLESS, "--config.updates=600")
    flags = (*flags, "--config.wait=first_finisher", "--config.delay=exponential(scale=0.004)")
    flags = (*flags, "--checkpoint_seconds=0", "--config.evaluate_every=0.05", "--workdir=out")
    with two_processes.started(here, *flags) as both:
        wait_for(here / "out" / "metrics.jsonl", 4)
        (child,) = children(both[1].pid)
        subprocess.run(["kill", "-KILL", child], check=True)
        for name, process in enumerate(both):
            assert process.wait(240) == 0, said(here, name)
    assert "was ended by SIGKILL; it starts again, 1 of 2 times" in said(here, 1)
    assert "has ended with 3; it starts again, 1 of 2 times" in said(here, 0)
    assert summary(here / "out")["updates"] == 600
    happened = schedule.load(here / "out" / "schedule.npz")
    happened.validate()
    assert happened.updates == 600 and (happened.batches.max(1) == 2).all()
    assert (happened.batches < 2).any()
    assert len(list((here / "out" / "checkpoint").iterdir())) == 1  # of the end


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "processes"), [(4, 2), (12, 4)])
def test_a_run_goes_on_with_fewer_processes_when_one_is_gone_for_good(here, workers, processes):
    """To the same end, with as many workers."""
    flags = ("--restarts=1", *two_processes.ENDLESS, f"--config=config.py:workers={workers}")
    flags = (*flags, "--config.updates=200", "--config.delay=exponential(scale=0.004)")
    flags = (*flags, "--checkpoint_seconds=0", "--config.evaluate_every=0.05", "--workdir=out")
    with two_processes.started(here, *flags, processes=processes) as running:
        wait_for(here / "out" / "metrics.jsonl", 4, seconds=300)
        (child,) = children(running[1].pid)
        subprocess.run(["kill", "-KILL", str(running[1].pid), child], check=True)
        for name, process in enumerate(running):
            assert process.wait(300) == (0 if name != 1 else KILLED), said(here, name)
    left = f"the run goes on with {processes - 1} of {processes} processes"
    assert f"process 1 has not come back; {left}" in said(here, 0)
    assert summary(here / "out")["updates"] == 200
    happened = schedule.load(here / "out" / "schedule.npz")
    happened.validate()
    assert happened.updates == 200 and happened.all_workers == workers
    for who in range(workers):  # each mini-batch once
        assert happened.first[:, who].tolist() == list(range(0, 400, 2))


def children(pid):
    """The processes that a process has started, once there are some."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        path = f"/proc/{pid}/task/{pid}/children"
        with open(path, encoding="ascii") as file:
            if found := file.read().split():
                return found
        time.sleep(0.05)
    raise AssertionError(f"{pid} has started nothing")
