"""However a launch is asked to end: a sentence, its exit code, a checkpoint to go on from."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import distributed, endings, sweep, watchdog
from tests import launcher, two_processes, warm
from tests.launcher import ROOT, metrics, summary
from tests.two_processes import ENDLESS, said, wait_for

LONG = ("--config=config.py", "--config.seconds=1e6", "--config.updates=10000000")
LONG = (*LONG, "--checkpoint_seconds=1000", "--workdir=out")


def ended(process, number, seconds=120):
    """Send a signal to a process, which ends with the code of it; return its stderr."""
    process.send_signal(number)
    _, err = process.communicate(timeout=seconds)
    assert process.returncode == 128 + number, err
    return err


@pytest.mark.slow
def test_a_signal_while_it_loads_is_a_sentence(here):
    for seconds, number in ((0.0, signal.SIGINT), (0.5, signal.SIGTERM)):
        process = launcher.begin(here, *LONG)
        ready = time.monotonic() + 60
        while not handled(process.pid) and time.monotonic() < ready:
            time.sleep(0.002)  # Python itself loads
        time.sleep(seconds)
        err = ended(process, number)
        assert err == endings.sentence(number) + "\n"
    assert not (here / "out" / "summary.json").exists()


def handled(pid):
    """Return whether a process has a handler for SIGTERM, which Python does not install."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
def test_a_run_that_sigterm_ends_goes_on_to_the_same_end(here, call):
    """In a process of its own until then; its end is reached here, as if it had not been ended."""
    flags = [flag for flag in LONG if "updates" not in flag] + ["--config.updates=2000"]
    process = launcher.begin(here, *flags, XLA_FLAGS=os.environ["XLA_FLAGS"])
    wait_for(here / "out" / "metrics.jsonl", 5)
    err, out = ended(process, signal.SIGTERM), here / "out"
    assert err == "ended by SIGTERM; the same command goes on from here\n"
    assert [path.name.isdecimal() for path in (out / "checkpoint").iterdir()] == [True]
    assert not list(out.rglob("*.lock"))
    left = len(metrics(out))
    for place in ("whole", "out"):
        code, _, err = call(*flags, f"--workdir={place}")
        assert code == 0, err
    assert metrics(out) == metrics(here / "whole") and left < len(metrics(out))
    summaries = [summary(place) for place in (out, here / "whole")]
    assert {**summaries[0], "wall_seconds": 0} == {**summaries[1], "wall_seconds": 0}


def test_signals_that_were_ignored_stay_ignored():
    script = (
        "import signal; from experiments import endings\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "endings.begin(); endings.raising()\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
        "try:\n"
        "    with endings.deferred():\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "        assert endings.asked() == signal.SIGTERM\n"
        "        print('noted')\n"
        "except endings.Asked as asked:\n"
        "    print(asked.number, endings.asked())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "noted\n15 None\n", done.stderr


def test_a_second_signal_does_not_wait(monkeypatch):
    monkeypatch.setattr(endings, "_deferring", 0)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        endings.begin()
        endings.raising()
        with pytest.raises(endings.Asked), endings.deferred():
            for _ in range(2):  # from a scheduler, and once more from the process above
                signal.raise_signal(signal.SIGTERM)
                assert endings.asked() == signal.SIGTERM
            monkeypatch.setattr(endings, "_last", {signal.SIGTERM: time.monotonic() - 3})
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert endings.asked() is None


@pytest.mark.slow
def test_a_process_that_loses_the_first_one_says_so_without_a_traceback(here):
    """While a second thread is in an all-reduce; without one it is as in `test_restarts`."""
    config = here / "config.py"
    parts = 'c.algorithm, c.buckets, c.overlap, c.mini_batches = "mg_wfbp", "wfbp", "threads", 1'
    config.write_text(config.read_text().replace("    return c", f"    {parts}\n    return c"))
    flags = (*ENDLESS[1:], "--config=config.py:workers=2", "--config.devices=1", "--workdir=out")
    with two_processes.started(here, *flags) as both:
        wait_for(here / "out" / "metrics.jsonl", 2)
        both[0].kill()
        assert both[1].wait(300) == 3, said(here, 1)
    text = said(here, 1)
    assert "Traceback" not in text and "the same command" in text
    assert not (here / "out" / "error.txt").exists()


@pytest.mark.slow
def test_processes_with_different_workdirs_are_all_refused(here):
    before = {path for path in here.rglob("*") if path.suffix != ".txt"}
    own = [("--workdir=a/b",), ("--workdir=c",)]
    with two_processes.started(here, *ENDLESS, own=own) as both:
        assert [process.wait(300) for process in both] == [2, 2], said(here, 0) + said(here, 1)
    words = "workdir 'c' of process 1 is not the one that process 0"
    for process in (0, 1):
        (sentence,) = re.findall("^error: .*", said(here, process), re.MULTILINE)
        assert words in sentence and "Traceback" not in said(here, process)
    assert {path for path in here.rglob("*") if path.suffix != ".txt"} == before


class Said(Exception):
    """The entries of a process of several."""


def test_differences_of_commands_are_named(call, monkeypatch):
    def check(said):
        raise Said(said)

    def entries(*flags):
        with monkeypatch.context() as patch, pytest.raises(Said) as raised:
            patch.setattr(distributed, "processes", lambda: 2)
            patch.setattr(sweep, "check_same", check)
            patch.setattr(watchdog, "watching", lambda seconds: contextlib.nullcontext())
            call(*ENDLESS, "--workdir=out", *flags)
        return raised.value.args[0]

    mine = entries()
    first = packed(mine)
    for entry, value in {"config.task.dimension": 9, "config.workers": 8, "seeds": 2}.items():
        its = entries(f"--{entry}={value}")
        with monkeypatch.context() as patch, pytest.raises(ValueError) as caught:
            patch.setattr(distributed, "agreed", lambda _: first)
            patch.setattr(distributed, "gathered", lambda found: [None, found])
            sweep.check_same(its)
        sentence = str(caught.value)
        assert entry in sentence and f"{value} in process 1; start" in sentence
        if entry != "seeds":  # which makes other arms
            assert sum(mine.get(name) != its.get(name) for name in {**mine, **its}) == 1
    sweep.check_same(mine)


def packed(said):
    """Return a plan as process 0 sends it."""
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "agreed", lambda text: sent.append(text) or text)
        patch.setattr(distributed, "gathered", lambda found: [found])
        sweep.check_same(said)
    return sent[0]


@pytest.mark.slow
def test_a_process_that_is_refused_alone_tells_the_others(here):
    """A refusal of which no config says anything."""
    (here / "out").write_text("mine")  # refused by all, and whoever is first tells the others
    with two_processes.started(here, *ENDLESS, "--workdir=out") as both:
        codes = {process.wait(300) for process in both}
    assert codes <= {2, 3} and 2 in codes
    text = said(here, 0) + said(here, 1)
    assert "out is not a directory" in text and "Traceback" not in text


@pytest.mark.slow
def test_a_process_that_finds_nobody_says_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from experiments import distributed; distributed.JOINING = 2\n"
        "try:\n"
        f"    distributed.initialize('127.0.0.1:{two_processes.free_port()}', 2, 0)\n"
        "except ValueError as error:\n"
        "    print('error:', error, file=sys.stderr); sys.exit(2)\n"
    )
    done = warm.run([script], cwd=ROOT, env=os.environ, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "error: several processes: they have not found each other at 127.0.0" in done.stderr


def listens_anywhere(pid):
    """Return the addresses of a process at which it listens on all interfaces."""
    names = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    sockets = {os.readlink(name) for name in names if os.path.islink(name)}
    inodes = {re.search(r"\d+", name)[0] for name in sockets if name.startswith("socket:")}
    found = []
    for table, zero in (("tcp", "0" * 8), ("tcp6", "0" * 32)):
        text = pathlib.Path(f"/proc/{pid}/net/{table}").read_text()
        for line in text.splitlines()[1:]:
            local, state, inode = (line.split()[at] for at in (1, 3, 9))
            if state == "0A" and inode in inodes and local.startswith(zero):
                found.append(local)
    return found


@pytest.mark.slow
def test_garbage_at_the_coordinators_port_changes_nothing(here):
    """Neither what no client would say, nor many connections that say nothing.

    It listens on its address only. SIGTERM to the other process then ends both in order.
    """
    with two_processes.started(here, *ENDLESS, "--workdir=out") as both:
        port = int(
            re.search(r"--coordinator_address=[^:]+:(\d+)", " ".join(map(str, both[0].args)))[1]
        )
        wait_for(here / "out" / "metrics.jsonl", 1)
        assert not listens_anywhere(both[0].pid)
        with contextlib.ExitStack() as open_ones:
            for number in range(100):
                silent = socket.create_connection(("127.0.0.1", port), timeout=10)
                open_ones.enter_context(silent)
                if number % 5 == 0:
                    silent.sendall(np.random.default_rng(number).bytes(4096))
            seen = len((here / "out" / "metrics.jsonl").read_text().splitlines())
            wait_for(here / "out" / "metrics.jsonl", seen + 3)
        both[1].send_signal(signal.SIGTERM)
        assert [process.wait(300) for process in both] == [143, 143], said(here, 0) + said(here, 1)
    for process in (0, 1):
        assert "ended by SIGTERM" in said(here, process)
        assert "Traceback" not in said(here, process)
    (made,) = (here / "out" / "checkpoint").iterdir()
    assert made.name.isdecimal()
