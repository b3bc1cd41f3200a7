"""The arms of a sweep as an array of Slurm jobs, by submitit (Meta's library, not required).

The state of jobs comes from squeue, which works without Slurm's accounting; submitit alone would
use sacct, which needs accounting. A file beside the jobs' output lists the arms of each job: a
launch after a killed one follows the jobs that Slurm still has, and submits only the other arms.
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
from experiments.executors import Arm, Groups, Shown, follow, process_words, unfinished

FOLDER = "slurm"  # in a workdir
JOBS = "jobs.json"  # in the folder: job -> the paths of its arms and its number of tasks
LATE = 15.0  # s for a result of a completed job to appear on a shared file system
WARNING = 90  # s before the end of a job's time at which submitit asks the job to end
POLL_SECONDS = 0.2
SOONEST, LATEST = 2.0, 60.0  # s between two calls of squeue
FORGOTTEN = "FORGOTTEN"  # the state of a job that the queue does not show any more
# States of a job that has ended; squeue shows them for some minutes. Other jobs have work left.
ENDED = frozenset(
    (
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT", FORGOTTEN,
    )
)  # fmt: skip
SIGNAL, PARALLEL = "slurm_signal_delay_s", "slurm_array_parallelism"
LISTS = ("srun_args", "setup", "teardown")  # settings of which submitit wants a list
# Options of sbatch that submitit does not know, and passes on.
SBATCH = (
    "begin", "clusters", "core_spec", "cores_per_socket", "distribution", "export",
    "gpu_bind", "gpus", "hint", "licenses", "mem_bind", "mincpus", "nice", "no_requeue",
    "ntasks_per_core", "ntasks_per_socket", "overcommit", "oversubscribe", "prefer", "priority",
    "requeue", "reservation", "sockets_per_node", "spread_job", "switches", "thread_spec",
    "threads_per_core", "time_min", "tmp", "wait_all_nodes",
)  # fmt: skip
# Settings with one name for all schedulers of submitit; other settings are Slurm's own.
GENERAL = (
    "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node",
)  # fmt: skip


# --- on a node ---


class Command:
    """A command as a job of submitit, which every task runs and which resumes after a requeue.

    Jobs contain this class by value, so that a node needs no module of this code to load it. Slurm
    sends SIGTERM or SIGUSR2 to a job that is preempted, cancelled, queued again or nearly out of
    time. The run then ends at the next evaluation with a checkpoint. The job leaves no result, so
    that its state comes from Slurm.

    grace: seconds that a run has to reach its next evaluation when submitit asks it to end.
    """

    def __init__(self, command: Sequence[str], grace: float = 60.0):
        self.command, self.grace = list(command), grace
        self._process: subprocess.Popen | None = None
        self._asked = self._told = False  # whether Slurm, and this process, has asked for the end

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
        # If Slurm ends a step at the first failure, the first task may still have to requeue.
        raise SystemExit(code if os.environ.get("SLURM_PROCID", "0") == "0" else 0)

    def checkpoint(self) -> Any:
        """End the run with a checkpoint; return the same command for the job's next start.

        submitit calls this method in the first task, while `__call__` runs, and then asks Slurm to
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
        """Send SIGHUP to the run once; a second signal would end the run without a checkpoint."""
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
    """Ignore SIGUSR2 and SIGTERM, which some Slurm set-ups send to all processes of a job."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# --- the queue ---


class Seen(NamedTuple):
    """A job as the queue shows it: its state, and the number of its restarts."""

    state: str
    restarts: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Silent(ValueError):
    """An error of Slurm, which does not answer."""


def look(jobs: Iterable[str]) -> dict[str, Seen]:
    """Return the states of the jobs, such as "12_0", that the queue still shows.

    Raises Silent if Slurm does not answer, as while its controller is down.
    """
    numbers = sorted({job.partition("_")[0] for job in jobs})
    command = ["squeue", "--noheader", "--array", "--states=all"]
    command += ["--Format=JobArrayID:48,State:24,RestartCnt:12"]
    # One number stands twice, as squeue fails for a single number that Slurm has forgotten.
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
    """The last known states of all jobs of a launch.

    squeue is called every two seconds at first, and later every minute. A job with a result is
    noticed by its result; the queue is needed for all other jobs.
    """

    def __init__(self, jobs: Iterable[str]):
        self._jobs, self._silent = set(jobs), False
        self._began = self._looked = time.monotonic()
        self._seen: dict[str, Seen] = {}

    def seen(self, job: str) -> Seen | None:
        """Return the last known state of a job, after a call of squeue if one is due, or None."""
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
    """An `executors.Job` of submitit; seen: job -> its state in Slurm, or None if unknown."""

    def __init__(self, job: Any, seen: Callable[[str], Seen | None]):
        self._job, self._seen, self.name = job, seen, f"job {job.job_id}"
        self._restarts: int | None = None
        self._completed: float | None = None  # when Slurm first showed an ended state

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
            # Slurm may kill the process that requests a requeue, and yet requeue the job.
            seen = self._seen(self._job.job_id)
            if seen is None or not seen.ended:
                return None
            return registry.brief(f"{self.name} ended: {error}")
        if failed := [(code, path) for code, path in codes if code]:
            # min: a killed process, with a negative code, before processes that have lost it.
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
        """Do nothing, as `stop` has already asked Slurm to cancel the job."""

    def _may_be_late(self, seen: Seen) -> bool:
        now = time.monotonic()
        self._completed = self._completed or now
        return seen.state == "COMPLETED" and now - self._completed < LATE


class _Data(pickle.Unpickler):
    """A reader of pickled plain data, as a file of a workdir must not choose the code that runs."""

    def find_class(self, module: str, name: str) -> None:
        """Refuse all but plain data."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only data is read")


def _result(path: Path) -> int:
    """Return the exit code in a task's result; ValueError for an error or a damaged result."""
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
    """Raise ValueError if submitit or Slurm is missing, or a setting is unknown or does not fit.

    Settings become lines of a shell script, and therefore must not have control characters.
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
    with tempfile.TemporaryDirectory() as folder:  # submitit makes its folder at once
        _executor(folder, settings, at_once, cluster)
    given = _read(settings)
    for config in configs:
        tasks = given.get("nodes", 1) * given.get("tasks_per_node", 1)
        runtime_builders.check_processes(config, tasks)


def _executor(folder: str | Path, settings: str, at_once: int, cluster: str) -> tuple[Any, float]:
    """Return submitit's executor, and the grace [s] of a `Command` before its time is over.

    settings: "name=value,name=value", with submitit's names; ValueError if one does not fit.
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
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # jobs then need no path to it
    # A run that resumes may run out of time any number of times.
    made = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=10_000)
    try:
        made.update_parameters(name="gossax", **given)
        return made, warning * 2 / 3
    except (NameError, AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"--slurm={settings}: {error}; correct the setting") from error


def _read(settings: str) -> dict[str, Any]:
    """Return settings as submitit's parameters, and options of sbatch as additional parameters."""
    given: dict[str, Any] = {SIGNAL: WARNING}
    others: dict[str, Any] = {"requeue": True}  # also on sites that do not requeue by default
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
    """Return the arms and tasks of each job of the previous launch, also of ended jobs."""
    path = root / FOLDER / JOBS
    return formats.read(path, formats.SLURM_JOBS)["jobs"] if path.exists() else {}


def under_way(root: Path) -> dict[str, str]:
    """Return {path of an arm: job} for the jobs of an earlier launch that have not ended.

    Raises ValueError if there was such a job and Slurm does not answer.
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
    """Raise ValueError if jobs of an earlier launch into this workdir have not ended."""
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
    """Run groups as one array of jobs, and follow their records through the shared file system.

    If Slurm still has an arm's job from an earlier launch, the job is only followed.
    settings: submitit's, such as "partition=gpu,timeout_min=60". at_once: the most jobs that run at
    the same time; 1: submitit's own limit. cluster: "local" runs processes without Slurm. Raises
    ValueError if Slurm does not accept the jobs. Returns the failures by paths of arms.
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
    if cluster != "slurm":  # a job is then a process
        by_id = {job.job_id: job for job in jobs.values()}

        def seen(name: str) -> Seen | None:
            return Seen("FAILED") if by_id[name].done() else None

    def start(group: Sequence[Arm]) -> _Job:
        return _Job(jobs[group[0].path], seen)

    every = [*followed, *new]
    return follow(every, start, len(every), root, shown)
