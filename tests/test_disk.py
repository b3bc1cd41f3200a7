"""A disk that is full or cannot be written to: a sentence, and the same command goes on later."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from experiments import files as disk
from experiments import records
from tests.launcher import files, metrics, refused

OK = ("--config=config.py", "--config.updates=8", "--checkpoint_seconds=0")
ALL = ("fsync", "replace", "write")


class Full:
    """Lets calls of the system fail, as on a full disk: the n-th of some functions.

    stays: whether all later ones fail, too.
    """

    def __init__(self, monkeypatch, names, fails_at, stays=False):
        self.calls, self.fails_at, self.stays = 0, fails_at, stays
        for name in names:
            monkeypatch.setattr(disk.os, name, self.counted(getattr(os, name)))

    def counted(self, function):
        def call(*given, **more):
            if sys._getframe(1).f_code.co_filename != disk.__file__:
                return function(*given, **more)
            self.calls += 1
            if self.calls == self.fails_at or (self.stays and self.calls > self.fails_at):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*given, **more)

        return call


def assert_same(one, other):
    """Check that two finished runs have the same records but for the clock of the wall."""
    assert (one / "schedule.npz").read_bytes() == (other / "schedule.npz").read_bytes()
    assert metrics(one) == metrics(other)
    assert not [p for p in other.rglob("*") if p.name.endswith((".tmp", ".lock"))]


@pytest.mark.slow
def test_a_disk_that_is_full_at_some_moment_loses_nothing(call, here, monkeypatch):
    """At every seventh moment; where it stays full, even the code is that of a failed arm."""
    assert call(*OK, "--workdir=whole")[0] == 0
    codes, ended = set(), False
    for fails_at in range(1, 130, 7):
        with monkeypatch.context() as patch:
            full = Full(patch, ALL, fails_at, stays=fails_at % 2 == 0)
            code, shown, err = call(*OK, "--workdir=out")
        if full.calls < fails_at:
            assert code == 0 and fails_at > 20
            ended = True
            break
        if code:  # the directory of a durable file may fail to be, without harm
            codes.add(code)
            assert "Traceback" not in err + shown and err.count("\n") <= 1
            assert "cannot be written (No space left on device); make room" in err + shown
        code, _, err = call(*OK, "--workdir=out")
        assert code == 0 and err == ""
        assert_same(here / "whole", here / "out")
        shutil.rmtree(here / "out")
    assert codes == {1, 2} and ended


def test_an_old_file_stays_whatever_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    records.write_json(path, {"a": 1})
    before = files(tmp_path)
    for name in ("fsync", "replace", "open"):
        with monkeypatch.context() as patch:
            Full(patch, (name,), 1)
            with pytest.raises(disk.NotWritten, match=r"x.json cannot be written \(No space left"):
                records.write_json(path, {"a": 2})
        assert files(tmp_path) == before
    with pytest.raises(RuntimeError), disk.replacing(path) as file:
        file.write(b"half of it")
        raise RuntimeError("somebody else's")
    assert files(tmp_path) == before


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_to(call, here):
    """A disk of its own in memory, which is mounted once more for reading alone."""
    place = here / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk can only be mounted by root")
    try:
        assert call(*OK, "--workdir=disk/out")[0] == 0
        before = files(place)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        for flags in (
            (*OK, "--workdir=disk/out"),
            (*OK, "--workdir=disk/out", "--overwrite"),
            (*OK, "--workdir=disk/other"),
            ("--report=disk/out",),
        ):
            err = refused(call(*flags), "")
            assert "not writable" in err or "Read-only" in err
            assert files(place) == before
    finally:
        subprocess.run(["umount", str(place)], check=True)
