"""Processes of this machine as they look from outside."""

import os
import pathlib
import signal
import socket


def children(pid: int) -> list[int]:
    """The processes that a process has started; none of one that has ended."""
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in path.read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, these have started, and so on."""
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def kill(pid: int) -> bool:
    """SIGKILL a process; whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    """A port where nobody listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
