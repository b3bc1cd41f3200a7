"""One writer at a time: the system's lock on a file, held by whoever writes beside it.

The system takes the lock from a process that dies, however it dies; a file that is left behind
locks nothing. Where a file system has no locks, nobody is refused.
"""

import contextlib
import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from experiments import endings, files, texts

RUN = "run.lock"  # beside the records of a run while it trains
LAUNCH = "launch.lock"  # in a workdir while its arms are started and compared
WAITING = 1.0  # s between two looks at a lock that is waited for


class InUse(ValueError):
    """Another process writes there."""


@contextlib.contextmanager
def held(path: Path, waits: bool = False) -> Iterator[None]:
    """Hold the lock `path`, whose directory is made if need be.

    Where somebody else does: InUse, or wait for them, until a signal asks this process to end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _locked_in_time(path) if waits else _locked(path)
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds without a word in it
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked, see `_locked`
        os.close(descriptor)


def check(path: Path) -> None:
    """InUse where somebody holds the lock `path`; nothing is made."""
    try:
        descriptor = files.held_open(path, make=False)
    except FileNotFoundError:
        return
    try:
        _lock(descriptor, path, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _locked_in_time(path: Path) -> int:
    said = False
    while True:
        try:
            return _locked(path)
        except InUse as error:
            if endings.asked() is not None:
                raise
            if not said:
                print(f"waiting: {error}", file=sys.stderr, flush=True)
                said = True
            time.sleep(WAITING)


def _locked(path: Path) -> int:
    while True:
        descriptor = files.held_open(path)
        try:
            _lock(descriptor, path, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return descriptor
        except InUse:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder has removed it since it was opened


def _lock(descriptor: int, path: Path, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = texts.brief(os.pread(descriptor, 400, 0).decode(errors="replace"))
        raise InUse(
            f"workdir {path.parent} is in use by {holder or 'another process'}; wait until that "
            "ends, or choose another --workdir"
        ) from None
    except OSError:
        pass  # no locks here
