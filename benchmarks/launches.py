"""Launches of tiny runs in several ways, forked from a process that has loaded what they need.

Loading takes most of the time of a tiny run. The process that forks must not have begun with JAX,
so that each of its children is `launch.py` as a fresh interpreter runs it.
"""

import atexit
import contextlib
import os
import pathlib
import re
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.processes import children

LIMIT = 900.0  # s that a launch may take
CONFIG = """
from configs import nonblocking


def get_config():
    config = nonblocking.get_config()
    config.task = "synthetic_logistic(samples=512, dimension=16)"
    config.workers, config.batch_size, config.mini_batches = 4, 8, 2
    config.seconds, config.evaluate_every, config.updates = 4.0, 0.5, 100000
    config.name, config.baseline, config.target_loss = "all_reduce/0", None, None
    return config


def sweep():
    for number in range(3):
        yield f"all_reduce/{number}", {"seed": number, "seconds": 4.0 - number % 2}
"""
MESH = (
    "--config.runtime=mesh", "--config.wait=barrier", "--config.communication=0",
    "--config.delay=deterministic(value=0.005)", "--config.updates=24", "--config.seconds=100000",
    "--config.evaluate_every=0.05",
)  # fmt: skip


class Way(NamedTuple):
    """How a run is launched."""

    flags: tuple[str, ...]
    processes: int = 1
    arms: int = 1
    virtual: bool = True  # its clock


WAYS = {
    "simulator": Way(()),
    "together": Way(("--sweep", "--together"), arms=3),
    "jobs": Way(("--sweep", "--jobs=2"), arms=3),
    "mesh": Way(MESH, virtual=False),
    "two": Way(MESH, processes=2, virtual=False),
}


def load(programs: pathlib.Path) -> None:
    """Load what a launch loads; programs: where compiled ones are kept, unless the user says."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(programs))
    # Not earlier, as JAX reads the environment.
    from experiments import (  # noqa: F401
        agreement,
        config_files,
        figures,
        loggers,
        report,
        sweep,
        tables,
        train,
    )


class Process:
    """A launch in a process of its own."""

    def __init__(self, flags: Sequence[str], log: pathlib.Path):
        sys.stdout.flush()
        self._code: int | None = None
        self.cpu_seconds = 0.0  # in all, once it has ended
        self.pid = os.fork()
        if self.pid == 0:
            _launch(flags, log)

    def code(self) -> int | None:
        """The exit code, -N for signal N; None while it runs."""
        if self._code is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                self.cpu_seconds = used.ru_utime + used.ru_stime
        return self._code

    def wait(self) -> int:
        """The exit code; the process is killed where it takes too long, and has code -9."""
        until = time.monotonic() + LIMIT
        while self.code() is None:
            if time.monotonic() > until:
                self.send(signal.SIGKILL)
            time.sleep(0.01)
        return self.code()

    def send(self, number: int) -> None:
        if self.code() is None:
            os.kill(self.pid, number)

    def worked(self, seconds: float) -> bool:
        """Whether it and its children have computed for so long, or it has ended.

        CPU time, as others may use the machine; it is what `cpu_seconds` adds up in the end.
        """
        if self.code() is not None:
            return True
        ticks = 0
        for pid in (self.pid, *children(self.pid)):
            with contextlib.suppress(OSError):  # it has ended in the meantime
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
                ticks += sum(map(int, stat.split()[11:15]))  # ended children included
        return ticks / os.sysconf("SC_CLK_TCK") >= seconds

    def listens(self) -> bool:
        """Whether it has a handler for SIGTERM, or has ended."""
        if self.code() is not None:
            return True
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> signal.SIGTERM - 1 & 1)


def _launch(flags: Sequence[str], log: pathlib.Path) -> None:
    """Be `launch.py` with these flags until the end of this process."""
    code: int | str | None = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["launch.py", *flags]
        runpy.run_path("launch.py", run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        atexit._run_exitfuncs()  # as at the end of any program
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
