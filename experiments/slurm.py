"""The arms of a sweep as an array of Slurm jobs, by submitit (Meta's library, not required)."""

import importlib.util
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import progress
from experiments.executors import Arm, Groups, follow, one_line, unfinished

if TYPE_CHECKING:  # installed only where it is used
    from submitit.helpers import DelayedSubmission


class Command:
    """A command as a job of submitit; if it is preempted or out of time, it is queued again.

    Its run resumes from the last checkpoint, since the flag to overwrite is left out then.
    """

    def __init__(self, command: Sequence[str]):
        self.command = list(command)

    def __call__(self) -> int:
        def bear_signals():
            # Slurm sends them to all processes of a job; submitit is the one to answer.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return subprocess.run(self.command, preexec_fn=bear_signals).returncode

    def checkpoint(self) -> "DelayedSubmission":
        from submitit.helpers import DelayedSubmission

        kept = [c for c in self.command if not re.match(r"--?overwrite(=|$)", c)]
        return DelayedSubmission(type(self)(kept))


class _Job:
    """A group as a job of submitit."""

    def __init__(self, job):
        self._job = job

    def poll(self) -> str | None:
        if not self._job.done():
            return None
        try:
            codes = self._job.results()
        except Exception as error:  # as submitit reports whatever became of the job
            return one_line(f"job {self._job.job_id} ended: {error}")
        failed = [code for code in codes if code]
        see = self._job.paths.stderr
        return f"job {self._job.job_id}: exit code {failed[0]}; see {see}" if failed else ""

    def stop(self) -> None:
        self._job.cancel()


# What submitit names alike for all schedulers; other settings are Slurm's own.
GENERAL = (
    "timeout_min",
    "mem_gb",
    "nodes",
    "cpus_per_task",
    "gpus_per_node",
    "tasks_per_node",
)


def check(settings: str, at_once: int = 1, cluster: str = "slurm") -> None:
    """Raise ValueError where submitit or Slurm is missing, or a setting is unknown.

    Settings are lines of a shell script in the end, so that they have no control characters.
    """
    if not settings.isprintable():
        raise ValueError(
            f"--slurm={settings!r} has a line break or another control character; leave it out"
        )
    if importlib.util.find_spec("submitit") is None:
        raise ValueError(
            "executor 'slurm' needs a package that is not installed; run pip install submitit, "
            "or give the lines of --print_commands to your scheduler"
        )
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise ValueError(
            "executor 'slurm' finds no sbatch; start it where jobs are submitted, or use --jobs"
        )
    with tempfile.TemporaryDirectory() as folder:  # as it is made on the spot
        _executor(folder, settings, at_once, cluster)


def run(
    groups: Groups,
    root: Path,
    overwrite: bool,
    shown: progress.Shown,
    *,
    command: Callable[[Sequence[Arm]], list[str]],
    settings: str = "",
    at_once: int = 1,
    cluster: str = "slurm",
) -> dict[str, str]:
    """Groups as one array of jobs, whose records arrive through the file system they share.

    settings: of submitit, such as "partition=gpu,timeout_min=60". at_once: so many jobs may run at
    the same time; 1: as many as Slurm lets. cluster: "local" tries it out without Slurm.
    """
    left = unfinished(groups, root, overwrite, shown)
    if not left:
        return {}
    executor = _executor(root / "slurm", settings, at_once, cluster)
    with executor.batch():
        submitted = [executor.submit(Command(command(group))) for group in left]
    jobs = iter(submitted)
    return follow(left, lambda _: _Job(next(jobs)), len(left), root, shown)


def _executor(folder, settings: str, at_once: int, cluster: str):
    import cloudpickle
    import submitit

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # jobs need no path to it then
    # A run that resumes may be out of time as often as it needs.
    made = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=10_000)
    given = {} if at_once == 1 else {"slurm_array_parallelism": at_once}
    for item in filter(None, settings.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value):
            raise ValueError(f"cannot read {item!r} in --slurm; write name=value,name=value")
        name = name if name in GENERAL or name.startswith("slurm_") else f"slurm_{name}"
        given[name] = int(value) if value.isdecimal() else value
    try:
        made.update_parameters(name="gossax", **given)
    except (NameError, AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"--slurm={settings}: {error}; correct the setting") from error
    return made
