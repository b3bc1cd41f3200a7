"""What Slurm's queue says of jobs, by squeue, which answers with accounting and without."""

import subprocess
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

# States of a job that has ended; squeue shows them for some minutes, others have work left.
ENDED = frozenset(
    (
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT",
    )
)  # fmt: skip
FORGOTTEN = "FORGOTTEN"  # of a job that the queue shows no more
SOONEST, LATEST = 2.0, 60.0  # s between two looks
_FIELDS = "JobArrayID:48,State:24,RestartCnt:12,Reason:80"


class Seen(NamedTuple):
    """A job as the queue shows it: its state, how often it has begun again, why it waits."""

    state: str
    restarts: int
    reason: str

    @property
    def ended(self) -> bool:
        return self.state in ENDED or self.state == FORGOTTEN


class Silent(ValueError):
    """Slurm does not answer."""


def look(jobs: Iterable[str]) -> dict[str, Seen]:
    """What the queue shows of these jobs, such as "12_0"; nothing of those that it has forgotten.

    Raises Silent where Slurm does not answer, as while its controller is down.
    """
    numbers = sorted({job.partition("_")[0] for job in jobs})
    command = ["squeue", "--noheader", "--array", "--states=all", f"--Format={_FIELDS}"]
    try:
        # One number twice: for a single one, if it is forgotten, squeue would fail.
        done = subprocess.run(
            [*command, f"--jobs={','.join([*numbers, numbers[0]])}"],
            capture_output=True,
            text=True,
            timeout=LATEST,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Silent(f"squeue does not answer ({error})") from error
    if done.returncode:
        reason = " ".join(done.stderr.split())[-200:]
        raise Silent(f"squeue fails ({reason})")
    seen = {}
    for line in done.stdout.splitlines():
        job, state, restarts, *reason = line.split()
        seen[job] = Seen(state, int(restarts), " ".join(reason))
    return seen


class Queue:
    """The queue as it was seen last, for all jobs of a launch at once.

    It is looked at every two seconds at first, then every minute: a job that leaves a result is
    noticed by that, and the queue is asked for the others.
    """

    def __init__(self, jobs: Iterable[str], say: Callable[[str], None]):
        """say: tells a person that Slurm does not answer, once until it does."""
        self._jobs, self._say, self._silent = set(jobs), say, False
        self._began = self._looked = time.monotonic()
        self._seen: dict[str, Seen] = {}

    def seen(self, job: str) -> Seen | None:
        """The job when the queue was last seen; None: not yet."""
        now = time.monotonic()
        if now - self._looked >= min(LATEST, max(SOONEST, (now - self._began) / 10)):
            self._looked = now
            try:
                shown = look(self._jobs)
            except Silent as error:
                if not self._silent:
                    self._say(f"{error}; jobs go on, and this is asked again")
                self._silent = True
                return self._seen.get(job)
            self._silent = False
            forgotten = {name: Seen(FORGOTTEN, 0, "") for name in self._jobs}
            self._seen = forgotten | {name: shown[name] for name in shown.keys() & self._jobs}
        return self._seen.get(job)
