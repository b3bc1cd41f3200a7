"""The only way to the disk: whole files or none, never through a link, in UTF-8.

A file is written under a name that nobody can guess, in the same directory, and takes the place of
the old one when it is complete. Whatever goes wrong, as on a full disk, the old file stays and the
error is one sentence, `NotWritten`. Reading takes ordinary files alone, see `stragglers.reading`.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stragglers.reading import opened

_TEMPORARY = re.compile(r"\.gossax-[0-9a-f]{16}\.tmp")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o666  # less what the umask takes away


class NotWritten(ValueError):
    """Something could not be written; what was there is still there."""

    def __init__(self, path: str | os.PathLike, error: Exception):
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        super().__init__(
            f"{path} cannot be written ({reason}); make room or mend the disk, and the same "
            "command goes on"
        )


@contextlib.contextmanager
def replacing(path: str | os.PathLike, durable: bool = True) -> Iterator[BinaryIO]:
    """A new file, which takes the place of `path` when the block ends without an error.

    durable: whether it has to survive a power cut from then on.
    Raises NotWritten where the disk does not take it.
    """
    path = Path(path)
    beside = path.with_name(f".gossax-{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(beside, _NEW | os.O_EXCL, _MODE)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.replace(beside, path)
        if durable:
            sync(path.parent)
    except OSError as error:
        raise NotWritten(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)


def write(path: str | os.PathLike, content: str | bytes, durable: bool = True) -> None:
    """Write a whole file; as `replacing`."""
    with replacing(path, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


class Lines:
    """A file to which lines are added; each is with the system when `add` returns."""

    def __init__(self, path: str | os.PathLike):
        """Open an ordinary file that is there."""
        self._path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise NotWritten(path, error) from error

    def add(self, line: str) -> None:
        """Write a line, or raise NotWritten with the line cut off."""
        left = f"{line}\n".encode()
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise NotWritten(self._path, error) from error

    def sync(self) -> None:
        """Let all lines so far survive a power cut."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise NotWritten(self._path, error) from error

    def close(self) -> None:
        os.close(self._file)


def stream(path: str | os.PathLike) -> BinaryIO:
    """An emptied file for what a process prints, which people read while it grows."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, _NEW | os.O_NONBLOCK | os.O_TRUNC, _MODE)
    except OSError as error:
        raise NotWritten(path, error) from error
    return os.fdopen(descriptor, "wb")


def make(folder: str | os.PathLike) -> None:
    """Make a directory and those above it, if need be."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise NotWritten(folder, error) from error


def check_room(folder: str | os.PathLike, size: int) -> None:
    """Raise NotWritten where a disk has fewer bytes left than something will take."""
    if shutil.disk_usage(folder).free < size:
        raise NotWritten(folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def read(path: str | os.PathLike) -> bytes:
    """What an ordinary file holds; OSError where there is none, ValueError for a pipe."""
    with opened(path) as file:
        return file.read()


def digest(path: str | os.PathLike) -> str:
    """The SHA-256 of an ordinary file; as `read`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | os.PathLike) -> str:
    """The text of an ordinary file in UTF-8; as `read`."""
    return read(path).decode()


def remove(path: str | os.PathLike) -> None:
    """Remove a file or a link if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(folder: str | os.PathLike) -> None:
    """Remove a directory that we have made and all that is in it; a link to one stays."""
    shutil.rmtree(folder, ignore_errors=True)


def move(old: str | os.PathLike, new: str | os.PathLike) -> None:
    """Give a file or directory another name, which is on the disk when this returns."""
    try:
        os.replace(old, new)
        sync(Path(new).parent)
    except OSError as error:
        raise NotWritten(new, error) from error


def tidy(folder: str | os.PathLike) -> None:
    """Remove what processes that were killed in the middle of `replacing` have left behind."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                remove(entry.path)


def sync(folder: str | os.PathLike) -> None:
    """Let the names in a directory survive a power cut, where the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some file systems have no such thing
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
