"""What this machine can hold: free memory, estimates against it, and word of what takes long."""

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 5.0  # s of silence
CGROUP = Path("/sys/fs/cgroup")
# Limit and use of a control group, version 2 and version 1.
ACCOUNTS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_memory() -> int | None:
    """Bytes that this process may still take, as the machine and its control group say.

    None where neither says anything.
    """
    found = [*_of_machine(), *_of_group()]
    return min(found, default=None)


def _of_machine() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                yield int(value.split()[0]) * 1024


def _of_group() -> Iterator[int]:
    for limit, used in ACCOUNTS:
        with contextlib.suppress(OSError, ValueError):  # "max": there is no limit
            most = int((CGROUP / limit).read_text(encoding="ascii"))
            taken = int((CGROUP / used).read_text(encoding="ascii"))
            yield max(0, most - taken + _given_back((CGROUP / used).parent))


def _given_back(folder: Path) -> int:
    """Bytes of the files that the system only remembers, and forgets when memory is short."""
    for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def check_memory(estimate: float, what: str, way_out: str) -> None:
    """Raise ValueError where something would take more memory than is free.

    estimate: bytes that it takes at the least.
    """
    free = free_memory()
    if free is not None and estimate > free:
        raise ValueError(
            f"{what} takes at least {size(estimate)} of memory, and {size(free)} are free; "
            f"{way_out}"
        )


def size(number: float) -> str:
    """Bytes as one says them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


@contextlib.contextmanager
def rationed() -> Iterator[None]:
    """Within this, what is larger than the free memory is a MemoryError at once.

    Otherwise the system hands out what it does not have, and ends the process when it is used.
    """
    free, taken = free_memory(), _taken()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if free is None or taken is None:
        yield
        return
    most = taken + free
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _taken() -> int | None:
    """Bytes of private memory that the system has promised to this process."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "VmData":
                return int(value.split()[0]) * 1024
    return None


class Patience:
    """Says what is being done if that takes long: a line on stderr every few seconds.

    with Patience() as patience:
        patience.doing = "arm 3 of 1000"
    """

    def __init__(self):
        self.doing, self._began, self._done = "", time.monotonic(), threading.Event()

    def __enter__(self):
        threading.Thread(target=self._say, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._done.set()

    def _say(self) -> None:
        while not self._done.wait(PATIENCE):
            seconds = time.monotonic() - self._began
            print(f"{self.doing}, {seconds:.0f} s so far", file=sys.stderr, flush=True)
