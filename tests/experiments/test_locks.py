import fcntl
import os
import subprocess
import sys

import pytest

from experiments import files
from tests.launcher import ROOT

HOLD = """
import pathlib, sys, time
from experiments import files
with files.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_holds_a_lock_at_a_time(tmp_path):
    path = tmp_path / "new" / "lock"
    files.check_lock(path)
    with files.held(path):
        for another in (files.check_lock, lambda path: files.held(path).__enter__()):
            with pytest.raises(files.InUse, match=f"in use by process {os.getpid()} on .*; wait"):
                another(path)
    assert not path.exists()
    files.check_lock(path)
    assert not path.exists()
    with files.held(path):
        pass


def test_a_process_that_is_killed_holds_nothing(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            with pytest.raises(files.InUse, match=f"process {process.pid} on"):
                files.check_lock(path)
        finally:
            process.kill()
    assert path.exists()
    files.check_lock(path)
    with files.held(path), pytest.raises(files.InUse, match=f"process {os.getpid()} on"):
        files.check_lock(path)


def test_a_lock_that_its_holder_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    path, lock = tmp_path / "lock", fcntl.flock
    tries = []

    def slow(file, kind):
        tries.append(kind)
        if len(tries) == 1:
            path.unlink()
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", slow)
    with files.held(path), pytest.raises(files.InUse):
        files.check_lock(path)
    assert len(tries) == 3


def test_without_locks_of_the_file_system_nobody_is_refused(tmp_path, monkeypatch):
    def unknown(file, kind):
        raise OSError("Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with files.held(tmp_path / "lock"), files.held(tmp_path / "lock"):
        files.check_lock(tmp_path / "lock")
