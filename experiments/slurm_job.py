"""The command of a group of arms as a job of Slurm, as submitit runs it on a node.

Jobs get this module by value, so that it needs no other one of ours where it runs.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # installed only where it is used
    from submitit.helpers import DelayedSubmission

POLL_SECONDS = 0.2


class Command:
    """A command as a job of submitit, once in every task; cut off, it resumes when it runs again.

    A job that is preempted, cancelled, queued again or about to be out of time gets a SIGTERM or
    SIGUSR2. Its run then ends at the next evaluation with a checkpoint, and leaves no result, so
    that it is Slurm who says what becomes of the job.

    grace: seconds in which a run that is about to be out of time may reach its next evaluation.
    """

    def __init__(self, command: Sequence[str], grace: float = 60.0):
        self.command, self.grace = list(command), grace
        self._process: subprocess.Popen | None = None
        self._asked = self._told = False  # this process by Slurm; its run by this process

    def __call__(self) -> int:
        """Run the command; its exit code."""
        signal.signal(signal.SIGTERM, self._note)
        begun_before = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        if begun_before:
            _forget_result()
        command = self._resuming() if begun_before else self.command
        self._process = subprocess.Popen(command, preexec_fn=_bear_signals)
        while self._process.poll() is None:
            self._tell()
            time.sleep(POLL_SECONDS)
        code = self._process.returncode
        if not self._asked and code <= 128:
            return code
        # Where Slurm ends a step by the first failure, the first task may still have to requeue.
        raise SystemExit(code if os.environ.get("SLURM_PROCID", "0") == "0" else 0)

    def checkpoint(self) -> "DelayedSubmission":
        """End the run with a checkpoint; what the job does when it runs again.

        submitit calls this in the first task, where it interrupts `__call__`, and asks Slurm to
        queue the job again.
        """
        from submitit.helpers import DelayedSubmission

        self._asked = True
        self._tell()
        until = time.monotonic() + self.grace
        while time.monotonic() < until and self._runs():
            time.sleep(POLL_SECONDS)
        return DelayedSubmission(type(self)(self._resuming(), self.grace))

    def _resuming(self) -> list[str]:
        return [c for c in self.command if not re.match(r"--?overwrite(=|$)", c)]

    def _note(self, number: int, _) -> None:
        self._asked = True

    def _tell(self) -> None:
        """Ask the run to end, once: a second signal would end it without a checkpoint."""
        if self._asked and not self._told and self._runs():
            self._told = True
            self._process.send_signal(signal.SIGHUP)

    def _runs(self) -> bool:
        """Whether the command runs; leaves it to `__call__` to take its exit code."""
        if self._process is None:
            return False
        only_look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, only_look) is None
        except ChildProcessError:  # its exit code has been taken
            return False


def _forget_result() -> None:
    """Remove what this task has left behind when the job ran before."""
    from submitit import JobEnvironment

    with contextlib.suppress(FileNotFoundError):
        os.remove(JobEnvironment().paths.result_pickle)


def _bear_signals() -> None:
    """Slurm sends these to all processes of a job, some of its set-ups only to the first."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
