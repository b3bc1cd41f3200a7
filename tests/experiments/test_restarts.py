"""A process that has lost another one is started again, and no other is."""

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import pytest

from experiments import restarts
from experiments.distributed import place_of
from stragglers import schedule
from tests import two_processes
from tests.launcher import ROOT, summary
from tests.two_processes import said, wait_for
from tests.waiting import until

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
        ([3, 2, 0, 0], 2, 0, 1),  # at the second start the others were not back yet
        ([2, 0], 3, 2, 1),  # a command that makes no sense
        ([143, 0], 3, 143, 1),
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


def test_all_starts_of_a_command_have_one_name_and_overwrite(tmp_path, monkeypatch, own_handlers):
    """So that each removes what no earlier one has, see `sweep.run`; another launch has another."""
    monkeypatch.setattr(restarts, "PAUSE", 0.0)
    script = (
        "import os, pathlib, sys\n"
        "seen = pathlib.Path(sys.argv[1])\n"
        "starts = seen.read_text().split()\n"
        f"seen.write_text(' '.join([*starts, sys.argv[2] + os.environ[{restarts.LAUNCH!r}]]))\n"
        "if len(starts) < 2: os.kill(os.getpid(), 9)\n"
    )
    seen = tmp_path / "seen.txt"
    seen.write_text("")
    argv = ["-c", script, str(seen), "--overwrite"]
    assert restarts.run(argv, 5) == restarts.run(argv, 5) == 0
    *same, other = seen.read_text().split()
    assert len(same) == 3 and len(set(same)) == 1 and other not in same
    assert all(start.startswith("--overwrite") for start in (*same, other))


@pytest.fixture
def own_handlers():
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, *restarts.endings.OTHERS)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


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


def called(address, members, stopped=lambda: False):
    """Return the processes that go on by each of those that call the roll at the same time."""
    answers = {}

    def call(me):
        answers[me] = restarts.call_the_roll(address, range(4), me, stopped)

    threads = [threading.Thread(target=call, args=(me,)) for me in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


def test_a_process_that_is_gone_is_left_out(monkeypatch):
    """Whoever else speaks to the port changes nothing."""
    monkeypatch.setattr(restarts, "PATIENCE", 1.5)
    monkeypatch.setattr(restarts, "BEAT", 0.1)
    address = f"127.0.0.1:{two_processes.free_port()}"

    def connect():
        with contextlib.suppress(OSError):
            return socket.create_connection(place_of(address), 20)

    def disturb():
        with until(connect) as silent:
            with socket.create_connection(place_of(address)) as other:
                other.sendall(b"\0GET / 9\n")
            with contextlib.suppress(OSError):
                silent.recv(1)

    strange = threading.Thread(target=disturb)
    strange.start()
    assert called(address, (0, 2, 3)) == {me: [0, 2, 3] for me in (0, 2, 3)}
    strange.join(30)
    assert called(address, (3, 2, 1, 0)) == {me: [0, 1, 2, 3] for me in range(4)}
    assert called(address, (0,)) == {0: [0]}


def test_nobody_goes_on_without_the_first_one_or_after_the_others(monkeypatch):
    monkeypatch.setattr(restarts, "PATIENCE", 0.1)
    monkeypatch.setattr(restarts, "BEAT", 0.02)
    address = f"127.0.0.1:{two_processes.free_port()}"
    words = f"process 0, at whose address {address} the others meet, .* gone on without process 1"
    with pytest.raises(ValueError, match=words):
        restarts.call_the_roll(address, (0, 1), 1)
    # Somebody has asked it to end.
    assert restarts.call_the_roll(address, (0, 1), 1, lambda: True) == [0, 1]
    with socket.create_server(place_of(address)) as process:  # 0, which has begun again
        threading.Thread(target=lambda: process.accept()[0].close(), daemon=True).start()
        with pytest.raises(ValueError, match=words):
            restarts.call_the_roll(address, (0, 1), 1)


# A launch whose parent, of process 0, soon takes those for gone who write nothing.
IMPATIENT = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from experiments import restarts
from experiments.distributed import place_of
restarts.PATIENCE = 4.0
runpy.run_path({str(ROOT / "launch.py")!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_both_start_again_when_one_is_killed_and_go_on_alone_when_it_is_gone_for_good(here):
    """At the same address, from the checkpoint, under a rule that counts, to the same end."""
    flags = ("--restarts=2", *two_processes.ENDLESS, "--config.updates=200", "--workdir=out")
    flags = (*flags, "--config.wait=first_finisher", "--config.delay=exponential(scale=0.004)")
    flags = (*flags, "--checkpoint_seconds=0", "--config.evaluate_every=0.2")
    metrics, first = here / "out" / "metrics.jsonl", here / "first.py"
    first.write_text(IMPATIENT)
    with two_processes.started(here, *flags, programs={0: first}) as both:
        wait_for(metrics, 4)
        (child,) = children(both[1].pid)
        subprocess.run(["kill", "-KILL", child], check=True)
        until(lambda: "it starts again, 1 of 2 times" in said(here, 0), lambda: said(here, 0))
        wait_for(metrics, metrics.read_text().count("\n") + 4)
        (child,) = children(both[1].pid)
        subprocess.run(["kill", "-KILL", str(both[1].pid), child], check=True)
        for name, code in enumerate((0, KILLED)):
            assert both[name].wait(300) == code, said(here, name)
    assert "was ended by SIGKILL; it starts again, 1 of 2 times" in said(here, 1)
    assert "has ended with 3; it starts again, 1 of 2 times" in said(here, 0)
    left = "the run goes on with 1 of 2 processes"
    assert f"process 1 has not come back; {left}" in said(here, 0)
    assert summary(here / "out")["updates"] == 200
    happened = schedule.load(here / "out" / "schedule.npz")
    happened.validate()
    assert happened.updates == 200 and (happened.batches.max(1) == 2).all()
    assert (happened.batches < 2).any() and happened.all_workers == 4
    assert len(list((here / "out" / "checkpoint").iterdir())) == 1  # of the end


def children(pid):
    """Return the processes that a process has started, once there are some."""
    place = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return until(lambda: place.read_text().split(), f"{pid} has started nothing")
