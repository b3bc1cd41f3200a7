"""The arms of a sweep as an array of Slurm jobs, by submitit (Meta's library, not required).

The state of jobs comes from squeue, which answers with accounting and without; submitit would ask
sacct. Which job has which arms stands in a file beside what the jobs print: a launch that comes
after one that was killed follows the jobs that Slurm still has, and submits only what is left.
"""

import contextlib
import importlib.util
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments import files, formats, registry, runtime_builders
from experiments.executors import (
    Arm,
    Groups,
    Shown,
    follow,
    process_words,
    unfinished,
)

FOLDER = "slurm"  # in a workdir
JOBS = "jobs.json"  # in the folder: by jobs, the paths of their arms and how many tasks they have
LATE = 15.0  # s after which a result that a shared file system does not show yet is missing
WARNING = 90  # s before its time is over at which submitit asks a job to end
POLL_SECONDS = 0.2
SOONEST, LATEST = 2.0, 60.0  # s between two looks at the queue
FORGOTTEN = "FORGOTTEN"  # of a job that the queue shows no more
# States of a job that has ended; squeue shows them for some minutes, others have work left.
ENDED = frozenset(
    (
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT", FORGOTTEN,
    )
)  # fmt: skip
SIGNAL, PARALLEL = "slurm_signal_delay_s", "slurm_array_parallelism"
LISTS = ("srun_args", "setup", "teardown")  # settings that have several words
# Options of sbatch that submitit passes on without knowing them.
SBATCH = (
    "begin", "clusters", "core_spec", "cores_per_socket", "distribution", "export",
    "gpu_bind", "gpus", "hint", "licenses", "mem_bind", "mincpus", "nice", "no_requeue",
    "ntasks_per_core", "ntasks_per_socket", "overcommit", "oversubscribe", "prefer", "priority",
    "requeue", "reservation", "sockets_per_node", "spread_job", "switches", "thread_spec",
    "threads_per_core", "time_min", "tmp", "wait_all_nodes",
)  # fmt: skip
# What submitit names alike for all schedulers; other settings are Slurm's own.
GENERAL = (
    "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node",
)  # fmt: skip


# --- on a node ---


class Command:
    """A command as a job of submitit, once in every task; cut off, it resumes when it runs again.

    Jobs get this class by value, so that it needs no module of ours where it runs. A job that is
    preempted, cancelled, queued again or about to be out of time gets a SIGTERM or SIGUSR2. Its run
    then ends at the next evaluation with a checkpoint, and leaves no result, so that it is Slurm
    who says what becomes of the job.

    grace: seconds in which a run that is about to be out of time may reach its next evaluation.
    """

    def __init__(self, command: Sequence[str], grace: float = 60.0):
        self.command, self.grace = list(command), grace
        self._process: subprocess.Popen | None = None
        self._asked = self._told = False  # this process by Slurm; its run by this process

    def __call__(self) -> int:
        """Run the command; return its exit code."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_asked", True))
        if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":  # the job has begun before
            from submitit import JobEnvironment

            with contextlib.suppress(FileNotFoundError):
                os.remove(JobEnvironment().paths.result_pickle)
        self._process = subprocess.Popen(self.command, preexec_fn=_bear_signals)
        while self._runs():
            self._tell()
            time.sleep(POLL_SECONDS)
        code = self._process.wait()
        if not self._asked and code <= 128:
            return code
        # Where Slurm ends a step by the first failure, the first task may still have to requeue.
        raise SystemExit(code if os.environ.get("SLURM_PROCID", "0") == "0" else 0)

    def checkpoint(self) -> Any:
        """End the run with a checkpoint; return what the job does when it runs again.

        submitit calls this in the first task, where it interrupts `__call__`, and asks Slurm to
        queue the job again.
        """
        from submitit.helpers import DelayedSubmission

        self._asked = True
        self._tell()
        until = time.monotonic() + self.grace
        while time.monotonic() < until and self._runs():
            time.sleep(POLL_SECONDS)
        return DelayedSubmission(type(self)(self.command, self.grace))

    def _tell(self) -> None:
        """Ask the run to end, once: a second signal would end it without a checkpoint."""
        if self._asked and not self._told and self._runs():
            self._told = True
            self._process.send_signal(signal.SIGHUP)

    def _runs(self) -> bool:
        if self._process is None:
            return False
        only_look = os.WEXITED | os.WNOHANG | os.WNOWAIT  # `poll` locks, and may be interrupted
        try:
            return os.waitid(os.P_PID, self._process.pid, only_look) is None
        except ChildProcessError:
            return False


def _bear_signals() -> None:
    """Slurm sends these to all processes of a job, some of its set-ups only to the first."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# --- the queue ---


class Seen(NamedTuple):
    """A job as the queue shows it: its state, and how often it has begun again."""

    state: str
    restarts: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Silent(ValueError):
    """Slurm does not answer."""


def look(jobs: Iterable[str]) -> dict[str, Seen]:
    """Return what the queue shows of these jobs, such as "12_0", but for those it has forgotten.

    Raises Silent where Slurm does not answer, as while its controller is down.
    """
    numbers = sorted({job.partition("_")[0] for job in jobs})
    command = ["squeue", "--noheader", "--array", "--states=all"]
    command += ["--Format=JobArrayID:48,State:24,RestartCnt:12"]
    # One number twice: for a single one, if it is forgotten, squeue would fail.
    command += [f"--jobs={','.join([*numbers, numbers[0]])}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LATEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Silent(f"squeue does not answer ({error})") from error
    if done.returncode:
        raise Silent(f"squeue fails ({' '.join(done.stderr.split())[-200:]})")
    rows = (line.split() for line in done.stdout.splitlines())
    return {job: Seen(state, int(restarts)) for job, state, restarts, *_ in rows}


class Queue:
    """The queue as it was seen last, for all jobs of a launch at once.

    It is looked at every two seconds at first, then every minute: a job that leaves a result is
    noticed by that, and the queue is asked for the others.
    """

    def __init__(self, jobs: Iterable[str]):
        self._jobs, self._silent = set(jobs), False
        self._began = self._looked = time.monotonic()
        self._seen: dict[str, Seen] = {}

    def seen(self, job: str) -> Seen | None:
        """Return the job when the queue was last seen; None: not yet."""
        now = time.monotonic()
        if now - self._looked >= min(LATEST, max(SOONEST, (now - self._began) / 10)):
            self._looked = now
            try:
                shown = look(self._jobs)
                self._seen = {name: shown.get(name, Seen(FORGOTTEN)) for name in self._jobs}
                self._silent = False
            except Silent as error:
                if not self._silent:
                    words = f"{error}; jobs go on, and this is asked again"
                    print(words, file=sys.stderr, flush=True)
                self._silent = True
        return self._seen.get(job)


class _Job:
    """A `Job` by submitit; seen: job -> its state in Slurm, None while it is unknown."""

    def __init__(self, job: Any, seen: Callable[[str], Seen | None]):
        self._job, self._seen, self.name = job, seen, f"job {job.job_id}"
        self._restarts: int | None = None
        self._completed: float | None = None  # when Slurm said so first

    def poll(self) -> str | None:
        paths = [self._job.task(number).paths for number in range(self._job.num_tasks)]
        left = [path for path in paths if path.result_pickle.exists()]
        ended = ""
        if len(left) < len(paths):
            seen = self._seen(self._job.job_id)
            if seen is None or not seen.ended or self._may_be_late(seen):
                return None
            known = "not known to Slurm any more" if seen.state == FORGOTTEN else seen.state
            where = f"see {paths[0].stderr}; the same command goes on from there"
            ended = f"{self.name} is {known}; {where}"
        try:
            codes = [(_result(path.result_pickle), path.stderr) for path in left]
        except (ValueError, OSError) as error:
            # Slurm may end what asks it to queue the job again, which leaves an error, and do it.
            seen = self._seen(self._job.job_id)
            if seen is None or not seen.ended:
                return None
            return registry.brief(f"{self.name} ended: {error}")
        if failed := [(code, path) for code, path in codes if code]:
            # A process that was killed before others that have lost it.
            return process_words(*min(failed), self.name)
        return ended

    def note(self) -> str | None:
        seen = self._seen(self._job.job_id)
        if seen is None or seen.ended:
            return None
        before, self._restarts = self._restarts, seen.restarts
        if before is None or seen.restarts <= before:
            return None
        return f"{self.name} is queued again; it goes on from the last checkpoint"

    def stop(self) -> None:
        self._job.cancel(check=False)

    def kill(self) -> None:
        """Leave the rest to Slurm, which has been asked."""

    def _may_be_late(self, seen: Seen) -> bool:
        now = time.monotonic()
        self._completed = self._completed or now
        return seen.state == "COMPLETED" and now - self._completed < LATE


class _Data(pickle.Unpickler):
    """A reader of numbers and texts, as a workdir must not choose what code runs here."""

    def find_class(self, module: str, name: str) -> None:
        """Refuse all but plain data."""
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


# --- a launch ---


def check(
    settings: str, at_once: int = 1, configs: Iterable[ConfigDict] = (), cluster: str = "slurm"
) -> None:
    """Raise ValueError where submitit or Slurm is missing, or a setting is unknown or in vain.

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
    given = _read(settings)
    for config in configs:
        tasks = given.get("nodes", 1) * given.get("tasks_per_node", 1)
        runtime_builders.check_processes(config, tasks)


def _executor(folder: str | Path, settings: str, at_once: int, cluster: str) -> tuple[Any, float]:
    """Return submitit's executor, and the seconds that a run has to end before its time is over.

    settings: "name=value,name=value", as submitit names them.
    """
    import cloudpickle
    import submitit

    given = _read(settings)
    minutes, warning = given.get("timeout_min", given.get("slurm_time")), given[SIGNAL]
    if not isinstance(warning, int):
        raise ValueError(f"--slurm={settings}: signal_delay_s has to be whole seconds; correct it")
    if isinstance(minutes, int) and 60 * minutes <= warning:
        raise ValueError(
            f"--slurm={settings}: a job of {minutes} min is asked to end {warning} s before its "
            "time is over, that is at once; give a longer timeout_min or a shorter signal_delay_s"
        )
    if at_once > 1 and given.setdefault(PARALLEL, at_once) != at_once:
        raise ValueError(f"--slurm={settings}: array_parallelism is --jobs; give one of them")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # jobs need no path to it then
    # A run that resumes may be out of time as often as it needs.
    made = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=10_000)
    try:
        made.update_parameters(name="gossax", **given)
        return made, warning * 2 / 3
    except (NameError, AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"--slurm={settings}: {error}; correct the setting") from error


def _read(settings: str) -> dict[str, Any]:
    """Return the parameters of submitit that settings say, and others as it passes them on."""
    given: dict[str, Any] = {SIGNAL: WARNING}
    others: dict[str, Any] = {"requeue": True}  # where a site's habit is not to
    for item in filter(None, settings.split(",")):
        name, equals, text = (part.strip() for part in item.partition("="))
        if not (name and equals and text):
            raise ValueError(f"cannot read {item!r} in --slurm; write name=value,name=value")
        short = name.removeprefix("slurm_")
        is_number = re.fullmatch(r"\d+(\.\d+)?" if name == "mem_gb" else r"\d+", text)
        value = (float if "." in text else int)(text) if is_number else text
        value = {"True": True, "False": False}.get(text, value)
        if short in LISTS:
            value = shlex.split(text) if short == "srun_args" else [text]
        if name in GENERAL:
            given[name] = value
        elif short in SBATCH:
            others[short] = value
        else:
            given[f"slurm_{short}"] = value
    if not others["requeue"] or others.get("no_requeue"):
        others |= {"requeue": False, "no_requeue": True}
    others = {name: value for name, value in others.items() if value is not False}
    return given | {"slurm_additional_parameters": others}


def _submitted(root: Path) -> dict[str, dict]:
    """Return the arms and tasks of each job of the launch before, whatever has become of them."""
    path = root / FOLDER / JOBS
    return formats.read(path, formats.SLURM_JOBS)["jobs"] if path.exists() else {}


def under_way(root: Path) -> dict[str, str]:
    """Return arms of a workdir whose jobs, of an earlier launch, Slurm still has: {path: job}.

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
    return {path: job for job in alive for path in jobs[job]["arms"]}


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
    shown: Shown,
    *,
    command: Callable[[Sequence[Arm]], list[str]],
    settings: str = "",
    at_once: int = 1,
    cluster: str = "slurm",
) -> dict[str, str]:
    """Run groups as one array of jobs, whose records arrive through the file system they share.

    Arms whose jobs Slurm still has from an earlier launch are only followed.
    settings: of submitit, such as "partition=gpu,timeout_min=60". at_once: how many jobs may run at
    the same time; 1: as many as Slurm lets. cluster: "local" tries it out without Slurm. Raises
    ValueError where Slurm does not take the jobs.
    """
    left = unfinished(groups, root, shown)
    if not left:
        return {}
    import submitit

    folder, submitted, alive = root / FOLDER, _submitted(root), under_way(root)
    jobs = {
        path: submitit.SlurmJob(folder=folder, job_id=job, tasks=range(submitted[job]["tasks"]))
        for path, job in alive.items()
    }
    followed = [[arm] for group in left for arm in group if arm.path in alive]
    new = [rest for group in left if (rest := [arm for arm in group if arm.path not in alive])]
    if new:
        executor, grace = _executor(folder, settings, at_once, cluster)
        try:
            with executor.batch():
                made = [executor.submit(Command(command(group), grace)) for group in new]
        except (RuntimeError, subprocess.CalledProcessError) as error:
            raise ValueError(
                f"Slurm does not take the jobs ({registry.brief(str(error))}); correct --slurm"
            ) from error
        jobs |= {arm.path: job for group, job in zip(new, made, strict=True) for arm in group}
    known: dict[str, dict] = {}  # for the next launch
    for path, job in jobs.items():
        known.setdefault(job.job_id, {"arms": [], "tasks": job.num_tasks})["arms"].append(path)
    files.make(folder)
    files.write(folder / JOBS, json.dumps({"jobs": known}, indent=1))
    seen = Queue(known).seen
    if cluster != "slurm":  # a process in the place of a job
        by_id = {job.job_id: job for job in jobs.values()}

        def seen(name: str) -> Seen | None:
            return Seen("FAILED") if by_id[name].done() else None

    def start(group: Sequence[Arm]) -> _Job:
        return _Job(jobs[group[0].path], seen)

    every = [*followed, *new]
    return follow(every, start, len(every), root, shown)
