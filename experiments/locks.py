"""One writer at a time: the system's lock on a file, held by whoever writes beside it.

The system takes the lock from a process that dies, however it dies; a file that is left behind
locks nothing. Where a file system has no locks, nobody is refused. `filelock` would leave the file
behind, not name the holder, and make a file to look at a lock.
"""

import contextlib
import fcntl
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from experiments import endings, registry

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
    said = False
    while True:
        try:
            descriptor = _locked(path)
            break
        except InUse as error:
            if not waits or endings.asked() is not None:
                raise
            if not said:
                print(f"waiting: {error}", file=sys.stderr, flush=True)
                said = True
            time.sleep(WAITING)
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
        descriptor = _opened(path, 0)
    except FileNotFoundError:
        return
    try:
        _lock(descriptor, path, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        descriptor = _opened(path, os.O_CREAT)
        try:
            _lock(descriptor, path, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return descriptor
        except InUse:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder has removed it since it was opened


def _opened(path: Path, make: int) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | make, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is no ordinary file; move it away")
    return descriptor


def _lock(descriptor: int, path: Path, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = registry.brief(os.pread(descriptor, 400, 0).decode(errors="replace"))
        raise InUse(
            f"workdir {path.parent} is in use by {holder or 'another process'}; wait until that "
            "ends, or choose another --workdir"
        ) from None
    except OSError:
        pass  # no locks here
