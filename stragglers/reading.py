"""Safe reading of files that may be foreign, damaged or malicious."""

import contextlib
import io
import os
import stat
import warnings
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

# Most bytes of the arrays of a small file, and most bytes for each byte of a larger file.
MOST_BYTES, MOST_EXPANSION = 2**29, 64


def opened(path: str | os.PathLike) -> BinaryIO:
    """Open an ordinary file for reading.

    Raises OSError if there is no such file. Raises ValueError for an impossible path, and for a
    pipe or a device, whose content might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no ordinary file")
    return os.fdopen(descriptor, "rb")


def arrays(path: str | Path | BinaryIO) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file by their names; raise ValueError for anything else.

    Every member is read to its end, so that its checksum is verified.
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
            found = {}
            for name, member in zip(names, members, strict=True):
                with archive.open(member) as content:
                    found[name] = np.lib.format.read_array(content)
                    content.read()
            return found
        except Exception as error:  # zip, its codecs and NumPy's headers raise a dozen kinds
            reason = error.strerror if isinstance(error, OSError) else None
            reason = reason or " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(reason) from error
