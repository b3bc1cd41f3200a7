"""A disk that is full or cannot be written to: a sentence, and the same command goes on later."""

import errno
import functools
import os
import resource
import shutil
import subprocess

import pytest

from experiments import files as disk
from experiments import records
from tests import launcher
from tests.launcher import files, metrics, start

OK = ("--config=config.py", "--config.updates=8", "--checkpoint_seconds=0")


@pytest.fixture
def here(tmp_path, monkeypatch):
    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def call(here, monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


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
            if str(disk.__file__) not in str(caller_file()):
                return function(*given, **more)
            self.calls += 1
            if self.calls == self.fails_at or (self.stays and self.calls > self.fails_at):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*given, **more)

        return call


def caller_file():
    import sys

    return sys._getframe(2).f_code.co_filename


def same(one, other):
    """Two finished runs have the same records but for the clock of the wall."""
    with open(one / "schedule.npz", "rb") as a, open(other / "schedule.npz", "rb") as b:
        schedules = a.read() == b.read()
    return schedules and metrics(one) == metrics(other)


def left_over(place):
    return [path for path in place.rglob("*") if path.name.endswith((".tmp", ".lock"))]


@pytest.mark.slow
def test_a_disk_that_is_full_at_some_moment_loses_nothing(call, here, monkeypatch):
    assert call(*OK, "--workdir=whole")[0] == 0
    codes = set()
    for fails_at in range(1, 100):
        with monkeypatch.context() as patch:
            full = Full(patch, ("fsync", "replace", "write"), fails_at)
            code, shown, err = call(*OK, "--workdir=out")
        if full.calls < fails_at:
            assert code == 0 and fails_at > 20
            break
        if code:  # the directory of a durable file may fail to be, without harm
            codes.add(code)
            assert "Traceback" not in err and "Traceback" not in shown
            words = err if code == 2 else shown
            assert "cannot be written (No space left on device); make room" in words, words
            assert err.count("\n") <= 1
        code, _, err = call(*OK, "--workdir=out")
        assert code == 0 and err == "" and same(here / "whole", here / "out")
        assert not left_over(here / "out")
        shutil.rmtree(here / "out")
    assert codes == {1, 2}


ALL = ("fsync", "replace", "write")


@pytest.mark.slow
def test_a_disk_that_stays_full_says_which_arms_have_failed(call, here, monkeypatch):
    """Even where it is full again at the figure and the report, the code is that of an arm."""
    sweep = ("--config=config.py", "--sweep", "--config.updates=8", "--workdir=out")
    with monkeypatch.context() as patch:
        full = Full(patch, ALL, 10**9)
        assert call(*sweep)[0] == 0
    shutil.rmtree(here / "out")
    codes, failed = [], []
    for fails_at in range(10, full.calls, full.calls // 8):
        with monkeypatch.context() as patch:
            Full(patch, ALL, fails_at, stays=True)
            code, shown, err = call(*sweep)
        codes.append(code)
        failed.append(shown.count("failed: all_reduce") + shown.count("failed: dpsgd"))
        assert code == (1 if failed[-1] else 2), (code, shown, err)
        assert "Traceback" not in err + shown and "No space left" in err
        shutil.rmtree(here / "out")
    assert set(codes) == {1, 2} and {1, 2} <= set(failed)


def test_an_old_file_stays_whatever_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    records.write_json(path, {"a": 1})
    before = files(tmp_path)
    for names in (("fsync",), ("replace",), ("open",)):
        with monkeypatch.context() as patch:
            Full(patch, names, 1)
            with pytest.raises(disk.NotWritten, match=r"x.json cannot be written \(No space left"):
                records.write_json(path, {"a": 2})
        assert files(tmp_path) == before
    with pytest.raises(RuntimeError), disk.replacing(path) as file:
        file.write(b"half of it")
        raise RuntimeError("somebody else's")
    assert files(tmp_path) == before


def test_a_line_that_is_cut_off_is_no_record(tmp_path, monkeypatch):
    (tmp_path / "lines").write_text("")
    lines = disk.Lines(tmp_path / "lines")
    lines.add("one")
    write = os.write
    with monkeypatch.context() as patch:
        Full(patch, ("write",), 2)
        patch.setattr(disk.os, "write", Short(disk.os.write, write))
        with pytest.raises(disk.NotWritten):
            lines.add("another")
    lines.close()
    assert (tmp_path / "lines").read_text() == "one\nano"


class Short:
    """Writes three bytes, as a system may, then what the other function does."""

    def __init__(self, then, write):
        self.then, self.write, self.calls = then, write, 0

    def __call__(self, descriptor, content):
        self.calls += 1
        if self.calls == 1:
            return self.write(descriptor, content[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_files_that_may_not_grow(call, here):
    """The system's own limit, which fails in the middle of a write."""
    assert call(*OK, "--workdir=whole")[0] == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 300, 1500, 4000, 20_000, 60_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            ended = start(here, *OK, "--workdir=out", JAX_COMPILATION_CACHE_DIR=str(here / "none"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert ended.returncode in (1, 2) and "Traceback" not in ended.stderr + ended.stdout
        assert "File too large" in ended.stderr + ended.stdout
    assert call(*OK, "--workdir=out")[0] == 0
    assert same(here / "whole", here / "out") and not left_over(here / "out")


@pytest.fixture
def small(here):
    """Mounts a small disk at `here / "disk"`: its options -> the directory."""
    place, mounted = here / "disk", []
    place.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a disk can only be mounted by root")
        mounted.append(place)
        return place

    yield mount
    for at in mounted:
        subprocess.run(["umount", str(at)], check=True)


def launched(here, *flags):
    """(exit code, stdout, stderr) of a launch in a process of its own."""
    ended = start(here, *flags)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.slow
def test_a_disk_that_cannot_be_written_to(call, here, small):
    place = small("size=20m")
    assert call(*OK, "--workdir=disk/out")[0] == 0
    before = files(place)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    for run, flags in (
        (functools.partial(launched, here), (*OK, "--workdir=disk/out")),
        (call, (*OK, "--workdir=disk/out", "--overwrite")),
        (call, (*OK, "--workdir=disk/other")),
        (call, ("--report=disk/out",)),
    ):
        code, _, err = run(*flags)
        assert code == 2 and err.count("\n") == 1, err
        assert "not writable" in err or "Read-only" in err
        assert files(place) == before
