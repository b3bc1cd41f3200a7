"""The arms of a sweep as an array of Slurm jobs, by submitit (Meta's library, not required).

Which job has which arms stands in a file beside what the jobs print: a launch that comes after one
that was killed follows the jobs that Slurm still has, and submits only what is left.
"""

import importlib.util
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import files, formats, progress, slurm_job
from experiments.executors import Arm, Groups, Job, exit_words, follow, one_line, unfinished
from experiments.slurm_queue import FORGOTTEN, Queue, Seen, Silent, look

FOLDER = "slurm"  # in a workdir
JOBS = "jobs.json"  # in the folder: by jobs, the paths of their arms and how many tasks they have
LATE = 15.0  # s after which a result that a shared file system does not show yet is missing
WARNING = 90  # s before its time is over at which submitit asks a job to end


class _Job(Job):
    """A group as a job of submitit; seen: what Slurm says of a job, None while it does not know."""

    def __init__(self, job, seen: Callable[[str], Seen | None]):
        self._job, self._seen = job, seen
        self._restarts: int | None = None
        self._completed: float | None = None  # when Slurm said so first

    def poll(self) -> str | None:
        tasks = [self._job.task(number) for number in range(self._job.num_tasks)]
        left = [task for task in tasks if task.paths.result_pickle.exists()]
        name, state = f"job {self._job.job_id}", ""
        if len(left) < len(tasks):
            seen = self._seen(self._job.job_id)
            if seen is None or not seen.ended or self._may_be_late(seen):
                return None
            state = seen.state
        failed = []
        for task in left:
            try:
                code = _result(task.paths.result_pickle)
            except (ValueError, OSError) as error:
                return one_line(f"{name} ended: {error}")
            if code:
                failed.append((code, task.paths.stderr))
        if failed:
            code, path = min(failed)  # a process that was killed before others that have lost it
            return f"{name} ended with {exit_words(code)}; see {path}"
        if not state:
            return ""
        known = "is not known to Slurm any more" if state == FORGOTTEN else f"is {state}"
        return f"{name} {known}; see {tasks[0].paths.stderr}; the same command goes on from there"

    def note(self) -> str | None:
        seen = self._seen(self._job.job_id)
        if seen is None or seen.ended:
            return None
        before, self._restarts = self._restarts, seen.restarts
        if before is None or seen.restarts <= before:
            return None
        return f"job {self._job.job_id} is queued again; it goes on from the last checkpoint"

    def stop(self) -> None:
        self._job.cancel(check=False)

    def _may_be_late(self, seen: Seen) -> bool:
        now = time.monotonic()
        self._completed = self._completed or now
        return seen.state == "COMPLETED" and now - self._completed < LATE


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


def under_way(root: Path) -> dict[str, str]:
    """Arms of a workdir whose jobs, of an earlier launch, Slurm still has: {path: job}.

    Raises ValueError where there have been jobs and Slurm does not answer.
    """
    jobs = _submitted(root)
    if not jobs:
        return {}
    try:
        shown = look(jobs)
    except Silent as error:
        raise ValueError(
            f"{error}; jobs of an earlier launch into {root} may still run, so repeat the command "
            "when Slurm answers"
        ) from error
    alive = [job for job in jobs if job in shown and not shown[job].ended]
    return {path: job for job in alive for path in jobs[job].arms}


def refuse_to_overwrite(root: Path) -> None:
    """Raise ValueError where Slurm still has jobs of a workdir that is to be overwritten."""
    alive = sorted(set(under_way(root).values()))
    if alive:
        raise ValueError(
            f"workdir {root}: Slurm still has job {', '.join(alive[:5])} of an earlier launch; "
            "give it to scancel, or leave out --overwrite, and the command follows it"
        )


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

    Arms whose jobs Slurm still has from an earlier launch are only followed.
    settings: of submitit, such as "partition=gpu,timeout_min=60". at_once: how many jobs may run at
    the same time; 1: as many as Slurm lets. cluster: "local" tries it out without Slurm. Raises
    ValueError where Slurm does not take the jobs.
    """
    left = unfinished(groups, root, overwrite, shown)
    if not left:
        return {}
    folder, submitted, alive = root / FOLDER, _submitted(root), under_way(root)
    jobs = {path: _of_slurm(folder, job, submitted[job].tasks) for path, job in alive.items()}
    followed, new = [], []
    for group in left:
        rest = [arm for arm in group if arm.path not in alive]
        followed += [[arm] for arm in group if arm.path in alive]
        new += [rest] if rest else []
    made = _submit(new, command, folder, settings, at_once, cluster)
    jobs |= {arm.path: job for group, job in zip(new, made, strict=True) for arm in group}
    by_id = {job.job_id: job for job in jobs.values()}
    _keep(folder, jobs)
    queue = Queue(by_id, lambda text: print(text, file=sys.stderr, flush=True))
    seen = queue.seen if cluster == "slurm" else lambda name: _ended_here(by_id[name])

    def start(group: Sequence[Arm]) -> _Job:
        return _Job(jobs[group[0].path], seen)

    return follow([*followed, *new], start, len(left), root, shown)


def _submit(groups: Groups, command, folder: Path, settings: str, at_once: int, cluster: str):
    """The jobs of groups, one each, which begin when Slurm has room."""
    if not groups:
        return []
    executor = _executor(folder, settings, at_once, cluster)
    grace = _read(settings).get("slurm_signal_delay_s", WARNING) * 2 / 3
    try:
        with executor.batch():
            jobs = [executor.submit(slurm_job.Command(command(group), grace)) for group in groups]
    except (RuntimeError, subprocess.CalledProcessError) as error:
        raise ValueError(
            f"Slurm does not take the jobs ({one_line(str(error))}); correct --slurm"
        ) from error
    return jobs


class _Submitted(NamedTuple):
    """A job of an earlier launch."""

    arms: list[str]
    tasks: int


def _keep(folder: Path, jobs: Mapping[str, Any]) -> None:
    """Write down which job has which arms, for the next launch; jobs: by the paths of arms."""
    known: dict[str, dict] = {}
    for path, job in jobs.items():
        known.setdefault(job.job_id, {"arms": [], "tasks": job.num_tasks})["arms"].append(path)
    files.make(folder)
    files.write(folder / JOBS, json.dumps({"jobs": known}, indent=1))


def _submitted(root: Path) -> dict[str, _Submitted]:
    """The jobs of the launch before this one, whatever has become of them."""
    path = root / FOLDER / JOBS
    if not path.exists():
        return {}
    jobs = formats.read(path, formats.SLURM_JOBS)["jobs"]
    return {job: _Submitted(entry["arms"], entry["tasks"]) for job, entry in jobs.items()}


def _of_slurm(folder: Path, job: str, tasks: int):
    """A job that an earlier launch has submitted."""
    import submitit

    return submitit.SlurmJob(folder=folder, job_id=job, tasks=range(tasks))


class _Data(pickle.Unpickler):
    """A reader of numbers and texts, as a workdir must not choose what code runs here."""

    def find_class(self, module: str, name: str) -> None:
        """Refuse whatever is no plain data."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only data is read")


def _result(path: Path) -> int:
    """Return the exit code that a task has left; ValueError for one that has left an error."""
    try:
        with files.opened(path) as file:
            outcome, value = _Data(file).load()
    except Exception as error:  # a file that is no pickle raises many kinds
        raise ValueError(f"{path} cannot be read ({error})") from error
    if outcome != "success" or not isinstance(value, int):
        raise ValueError(f"it has raised {value}")
    return value


def _ended_here(job) -> Seen | None:
    """What Slurm would say of a process in the place of a job."""
    return Seen("FAILED", 0, "") if job.done() else None


def _read(settings: str) -> dict[str, int | str]:
    """The settings of "name=value,name=value", as submitit names them."""
    found: dict[str, int | str] = {}
    for item in filter(None, settings.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value):
            raise ValueError(f"cannot read {item!r} in --slurm; write name=value,name=value")
        name = name if name in GENERAL or name.startswith("slurm_") else f"slurm_{name}"
        found[name] = int(value) if value.isdecimal() else value
    return found


def _executor(folder, settings: str, at_once: int, cluster: str):
    import cloudpickle
    import submitit

    cloudpickle.register_pickle_by_value(slurm_job)  # jobs need no path to it then
    # A run that resumes may be out of time as often as it needs.
    made = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=10_000)
    given = {"slurm_additional_parameters": {"requeue": True}}  # where a site's habit is not to
    if at_once > 1:
        given["slurm_array_parallelism"] = at_once
    given |= _read(settings)
    minutes, warning = given.get("timeout_min"), given.get("slurm_signal_delay_s", WARNING)
    if isinstance(minutes, int) and isinstance(warning, int) and 60 * minutes <= warning:
        raise ValueError(
            f"--slurm={settings}: a job of {minutes} min is asked to end {warning} s before its "
            "time is over, that is at once; give a longer timeout_min or a shorter signal_delay_s"
        )
    try:
        made.update_parameters(name="gossax", **given)
    except (NameError, AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"--slurm={settings}: {error}; correct the setting") from error
    return made
