"""The only way to the disk: whole files or none, one writer at a time, never through a link.

A file is written under a name that nobody can guess, in the same directory, and takes the place of
the old one when it is complete. Whatever goes wrong, as on a full disk, the old file stays and the
error is one sentence, `NotWritten`. Only ordinary files are read, see `stragglers.reading`.

A lock is a system lock on a file, held by the process that writes beside it. The system releases
the lock of a process that dies; a file that is left behind locks nothing. If a file system has no
locks, nobody is refused. The package filelock would leave the file and not name the holder.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from experiments import endings, registry
from stragglers.reading import opened

RUN_LOCK = "run.lock"  # beside the records of a run while it trains
LAUNCH_LOCK = "launch.lock"  # in a workdir while its arms are started and compared
LOCK_WAITS = 1.0  # s between two looks at a lock that is waited for
_TEMPORARY = re.compile(r"\.gossax-[0-9a-f]{16}\.tmp")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o666  # less what the umask takes away


class NotWritten(ValueError):
    """An error of the disk; the old file is still there."""

    def __init__(self, path: str | os.PathLike, error: Exception):
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        super().__init__(
            f"{path} cannot be written ({reason}); make room or mend the disk, and the same "
            "command goes on"
        )


class InUse(ValueError):
    """An error of a workdir in which another process writes."""


@contextlib.contextmanager
def _writing(path: str | os.PathLike) -> Iterator[None]:
    """Turn errors of the system into NotWritten."""
    try:
        yield
    except OSError as error:
        raise NotWritten(path, error) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file, which takes the place of `path` when the block ends without an error.

    durable: whether it has to survive a power cut from then on.
    Raises NotWritten if the disk does not take the file.
    """
    path = Path(path)
    beside = path.with_name(f".gossax-{secrets.token_hex(8)}.tmp")
    try:
        with _writing(path):
            descriptor = os.open(beside, _NEW | os.O_EXCL, _MODE)
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(descriptor)
            os.replace(beside, path)
            if durable:
                sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)


def write(path: str | os.PathLike, content: str | bytes, durable: bool = True) -> None:
    """Write a whole file; see `replacing`."""
    with replacing(path, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a whole .npz file; see `replacing`."""
    with replacing(path) as file:
        np.savez(file, **arrays)


def append(path: str | os.PathLike, line: str) -> None:
    """Append a line to an ordinary file; the system has it when this returns.

    Raises NotWritten if the disk fails, and the line may then be cut off.
    """
    left = f"{line}\n".encode()
    with _writing(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)


def stream(path: str | os.PathLike) -> BinaryIO:
    """Return an emptied file for what a process prints, which people read while it grows."""
    with _writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, _NEW | os.O_NONBLOCK | os.O_TRUNC, _MODE)
    return os.fdopen(descriptor, "wb")


def make(folder: str | os.PathLike) -> None:
    """Make a directory and those above it, if need be."""
    with _writing(folder):
        os.makedirs(folder, exist_ok=True)


def read(path: str | os.PathLike) -> bytes:
    """Return an ordinary file's content; OSError where there is none, ValueError for a pipe."""
    with opened(path) as file:
        return file.read()


def digest(path: str | os.PathLike) -> str:
    """Return the SHA-256 of an ordinary file; errors are as in `read`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | os.PathLike) -> str:
    """Return the text of an ordinary file in UTF-8; errors are as in `read`."""
    return read(path).decode()


def remove(path: str | os.PathLike) -> None:
    """Remove a file or a link if it is there."""
    Path(path).unlink(missing_ok=True)


def remove_tree(folder: str | os.PathLike) -> None:
    """Remove a directory that we have made and all that is in it; a link to one stays."""
    shutil.rmtree(folder, ignore_errors=True)


def move(old: str | os.PathLike, new: str | os.PathLike) -> None:
    """Give a file or directory another name, which is on the disk when this returns."""
    with _writing(new):
        os.replace(old, new)
        sync(Path(new).parent)


def tidy(folder: str | os.PathLike) -> None:
    """Remove what processes that were killed in the middle of `replacing` have left behind."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                remove(entry.path)


def sync(path: str | os.PathLike) -> None:
    """Let a file, or the names in a directory, survive a power cut; raises NotWritten."""
    with _writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError:
            if not os.path.isdir(path):  # some file systems cannot do that for directories
                raise
        finally:
            os.close(descriptor)


# --- locks ---


@contextlib.contextmanager
def held(path: Path, waits: bool = False) -> Iterator[None]:
    """Hold the lock `path`, whose directory is made if need be.

    If another process holds it, raises InUse; with `waits`, waits for it, or for a signal to end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    said = False
    while True:
        try:
            descriptor = _lock(path, os.O_CREAT, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    break
            os.close(descriptor)  # its last holder has removed it since it was opened
        except InUse as error:
            if not waits or endings.asked() is not None:
                raise
            if not said:
                print(f"waiting: {error}", file=sys.stderr, flush=True)
                said = True
            time.sleep(LOCK_WAITS)
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds without a word in it
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked
        os.close(descriptor)


def check_lock(path: Path) -> None:
    """Raise InUse if a process holds the lock `path`; make no file."""
    with contextlib.suppress(FileNotFoundError):
        os.close(_lock(path, 0, fcntl.LOCK_SH))


def _lock(path: Path, make: int, kind: int) -> int:
    """Lock a file and return its descriptor, or raise InUse with its holder."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        descriptor = os.open(path, flags | make, _MODE)
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no ordinary file; move it away")
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = registry.brief(os.pread(descriptor, 400, 0).decode(errors="replace"))
            raise InUse(
                f"workdir {path.parent} is in use by {holder or 'another process'}; wait until "
                "that ends, or choose another --workdir"
            ) from None
        except OSError:
            pass  # no locks here
        stack.pop_all()
    return descriptor
