"""Reading of files that may be foreign, damaged or put in the way."""

import contextlib
import io
import os
import stat
import warnings
import zipfile
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

# Bytes of arrays that any small file may hold, and bytes for each byte of a larger one.
MOST_BYTES, MOST_EXPANSION = 2**29, 64


def opened(path: str | os.PathLike) -> BinaryIO:
    """Open an ordinary file for reading.

    Raises OSError where there is none, and ValueError for a pipe or a device, which might never
    end, and for an impossible path.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no ordinary file")
    return os.fdopen(descriptor, "rb")


def arrays(path: str | Path | BinaryIO) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file by their names; raise ValueError for anything else.

    Every member is read to its end, so that its checksum counts.
    """
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about headers of old versions of Python
        try:
            file = path if hasattr(path, "read") else stack.enter_context(opened(path))
            archive = stack.enter_context(zipfile.ZipFile(file))
            size = file.seek(0, io.SEEK_END)
            members = archive.infolist()
            names = [member.filename.removesuffix(".npy") for member in members]
            if len(set(names)) < len(names):
                raise ValueError("two members have one name")
            claimed = sum(member.file_size for member in members)
            if claimed > max(MOST_BYTES, MOST_EXPANSION * size):
                raise ValueError(
                    f"its {size / 1e6:.3g} MB would become {claimed / 1e6:,.0f} MB of arrays"
                )
            return {
                name: _array(stack.enter_context(archive.open(member)))
                for name, member in zip(names, members, strict=True)
            }
        except Exception as error:  # zip, its codecs and NumPy's headers raise a dozen kinds
            raise ValueError(_reason(error)) from error


def _array(member: IO[bytes]) -> np.ndarray:
    """Read the array in a member of an archive, and the member to its end."""
    array = np.lib.format.read_array(member)
    member.read()
    return array


def _reason(error: Exception) -> str:
    """Return the reason why a file cannot be read, on one line and not without a word."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
