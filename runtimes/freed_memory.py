"""Memory that a process frees and takes again, over and over, kept instead of given back.

Parameters and gradients of tens of megabytes are allocated anew with every update. The C library
gives blocks of this size back to the system when they are freed, and every page of the next one has
to be cleared again.
"""

import contextlib
import ctypes
import sys

_LARGEST = 2**25  # bytes of a block, the most that glibc lets be
_KEPT = 2**31 - 1  # bytes in all
# Of a process that is started; one arena, as what one thread frees another one can take then.
VARIABLES = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(_LARGEST),
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT),
    "MALLOC_TOP_PAD_": str(2**27),
}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)


def keep() -> None:
    """Keep what this process frees, up to 2 GiB; does nothing without glibc."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
