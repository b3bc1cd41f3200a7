"""The arms of a sweep as an array of Slurm jobs, by the commands of Slurm alone.

A job is one step that runs the command of its arms, with a task per process of a mesh. Slurm sends
SIGTERM to the tasks of a job that is preempted, cancelled or queued again, and the script of the
job sends SIGHUP when the time is nearly over; the run then ends with a checkpoint. An arm is done
when its records say so. The state of other jobs comes from squeue, which needs no accounting. A
file beside the jobs' output lists the arms of each job: a launch after a killed one follows the
jobs that Slurm still has, and submits only the other arms.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments import files, formats, records, registry, runtime_builders
from experiments.executors import (
    Arm,
    Groups,
    Shown,
    follow,
    process_words,
    read_settings,
    unfinished,
)

FOLDER = "slurm"  # in a workdir
JOBS = "jobs.json"  # in the folder: job -> the paths of its arms
LATE = 15.0  # s for the records of a completed job to appear on a shared file system
WARNING = 90  # s before the end of a job's time at which its run is asked to end
SOONEST, LATEST = 2.0, 60.0  # s between two calls of squeue
FORGOTTEN = "FORGOTTEN"  # the state of a job that the queue does not show any more
# States of a job that has ended; squeue shows them for some minutes. Other jobs have work left.
ENDED = frozenset(
    (
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT", FORGOTTEN,
    )
)  # fmt: skip
# Settings that are numbers.
NUMBERS = {
    "timeout_min": int, "nodes": int, "cpus_per_task": int, "gpus_per_node": int,
    "tasks_per_node": int, "signal_delay_s": int, "mem_gb": float,
}  # fmt: skip
# Settings whose name or unit is not that of sbatch.
RENAMED = {
    "timeout_min": "time={}", "mem_gb": "mem={:.0f}M", "tasks_per_node": "ntasks-per-node={}",
    "signal_delay_s": "signal=B:HUP@{}",
}  # fmt: skip
# The script ends with the exit code of its step. A job that runs out of time waits for its run,
# for some time less than is left, and is then queued again, if the run has not ended by itself.
SCRIPT = """\
#!/bin/bash
case $SLURM_ARRAY_TASK_ID in
{cases}
esac
out_of_time() {{
    scancel --signal=HUP "$SLURM_JOB_ID"
    for _ in $(seq {grace}); do
        kill -0 "$step" 2>/dev/null || break
        sleep 1
    done
    if ! kill -0 "$step" 2>/dev/null && wait "$step"; then exit; fi
    scontrol requeue "$SLURM_JOB_ID"
}}
trap out_of_time HUP
trap : TERM
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun "${{command[@]}}" &
step=$!
while kill -0 "$step" 2>/dev/null; do sleep 1; done
wait "$step"
"""


# --- the queue ---


class Seen(NamedTuple):
    """A job as the queue shows it: its state, the number of its restarts and its exit code."""

    state: str
    restarts: int = 0
    code: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def look(jobs: Iterable[str]) -> dict[str, Seen]:
    """Return the states of the jobs, such as "12_0", that the queue still shows.

    Raises ValueError if Slurm does not answer, as while its controller is down.
    """
    numbers = sorted({job.partition("_")[0] for job in jobs})
    command = ["squeue", "--noheader", "--array", "--states=all"]
    command += ["--Format=JobArrayID:48,State:24,RestartCnt:12,exit_code:12"]
    # One number stands twice, as squeue fails for a single number that Slurm has forgotten.
    command += [f"--jobs={','.join([*numbers, numbers[0]])}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LATEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"squeue does not answer ({error})") from error
    if done.returncode:
        raise ValueError(f"squeue fails ({' '.join(done.stderr.split())[-200:]})")
    rows = (line.split() for line in done.stdout.splitlines())
    return {
        job: Seen(state, int(restarts), os.waitstatus_to_exitcode(int(status)))
        for job, state, restarts, status, *_ in rows
    }


class Queue:
    """The last known states of all jobs of a launch.

    squeue is called every two seconds at first, and later every minute. A job whose arms are done
    is noticed by their records; the queue is needed for all other jobs.
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
            except ValueError as error:
                if not self._silent:
                    words = f"{error}; jobs go on, and this is asked again"
                    print(words, file=sys.stderr, flush=True)
                self._silent = True
        return self._seen.get(job)


class Job:
    """An `executors.Job` in Slurm's queue."""

    def __init__(self, name: str, group: Sequence[Arm], root: Path, queue: Queue):
        self._name, self._group, self._root, self._queue = name, group, root, queue
        self._restarts: int | None = None
        self._completed: float | None = None  # when Slurm first showed an ended state
        self._asked = False

    def poll(self) -> str | None:
        if self._asked or all(_is_done(self._root / a.path, a.config) for a in self._group):
            return ""
        seen, now = self._queue.seen(self._name), time.monotonic()
        if seen is None or not seen.ended:
            return None
        self._completed = self._completed or now
        if seen.state == "COMPLETED" and now - self._completed < LATE:
            return None
        output = self._root / FOLDER / f"{self._name}.txt"
        if seen.state == "FAILED" and seen.code:
            return process_words(seen.code, output, f"job {self._name}")
        known = "not known to Slurm any more" if seen.state == FORGOTTEN else seen.state
        return f"job {self._name} is {known}; see {output}; the same command goes on from there"

    def note(self) -> str | None:
        seen = self._queue.seen(self._name)
        if seen is None or seen.ended:
            return None
        before, self._restarts = self._restarts, seen.restarts
        if before is None or seen.restarts <= before:
            return None
        return f"job {self._name} is queued again; it goes on from the last checkpoint"

    def ask(self) -> None:
        """Let Slurm cancel the job, for which nobody waits."""
        self._asked = True
        subprocess.run(["scancel", self._name], capture_output=True)

    kill = ask


def _is_done(place: Path, config: ConfigDict) -> bool:
    return records.is_finished(place, config) or (place / records.ERROR).exists()


# --- a launch ---


def check(settings: str, arms: Sequence[Arm] = (), overwritten: Path | None = None) -> None:
    """Raise ValueError if Slurm is missing, or the settings are not for sbatch or these arms.

    overwritten: the workdir whose runs are to be removed, while which no job may train there.
    """
    _, tasks, _ = options(settings)
    if shutil.which("sbatch") is None:
        raise ValueError(
            "executor 'slurm' finds no sbatch; start it where jobs are submitted, or use --jobs"
        )
    for arm in arms:
        runtime_builders.check_processes(arm.config, tasks)
    _submit(settings, [], "--test-only")
    if overwritten is not None and (alive := sorted(set(under_way(overwritten).values()))):
        raise ValueError(
            f"workdir {overwritten}: Slurm still has job {', '.join(alive[:5])} of an earlier "
            "launch; give it to scancel, or leave out --overwrite, and the command follows it"
        )


def options(settings: str) -> tuple[list[str], int, int]:
    """Return options of sbatch, the number of tasks, and a run's time [s] to end before the job's.

    settings: "timeout_min=60,partition=gpu", see docs/running.md; ValueError for unreadable ones.
    """
    way_out = "name=value,name=value, of a number where one is needed"
    given = {"signal_delay_s": WARNING, "requeue": "True"}  # also on sites that do not by default
    given |= read_settings("--slurm", settings, NUMBERS, way_out, others=True)
    minutes, warning = given.get("timeout_min", given.get("time", "")), given["signal_delay_s"]
    if str(minutes).isdigit() and 60 * int(minutes) <= warning:
        raise ValueError(
            f"--slurm={settings}: a job of {minutes} min is asked to end {warning} s before its "
            "time is over, that is at once; give a longer timeout_min or a shorter signal_delay_s"
        )
    if given["requeue"] in ("False", "0"):
        given |= {"requeue": "False", "no_requeue": "True"}
    made = []
    for name, value in given.items():
        option = name.removeprefix("slurm_").replace("_", "-")
        value = 1024 * value if isinstance(value, float) else value
        switch = {"True": option, "False": None}.get(value, f"{option}={value}")
        option = RENAMED[name].format(value) if name in RENAMED else switch
        made += [] if option is None else [f"--{option}"]
    tasks = given.get("nodes", 1) * given.get("tasks_per_node", 1)
    return made, tasks, max(1, warning * 2 // 3)


def _submit(settings: str, commands: Sequence[Sequence[str]], *more: str) -> str:
    """Give an array of jobs, one per command, to sbatch; return the text of its answer."""
    asked, _, grace = options(settings)
    cases = (f"{n}) command=({shlex.join(command)});;" for n, command in enumerate(commands))
    done = subprocess.run(
        ["sbatch", "--parsable", "--job-name=gossax", "--open-mode=append", *asked, *more],
        input=SCRIPT.format(cases="\n".join(cases), grace=grace),
        capture_output=True,
        text=True,
    )
    # With --test-only: Slurm cannot run the job now, and says when it is submitted if it never can.
    if done.returncode and "allocation failure" not in done.stderr:
        raise ValueError(
            f"Slurm does not take the jobs ({registry.brief(done.stderr)}); correct --slurm"
        )
    return done.stdout.strip()


def under_way(root: Path) -> dict[str, str]:
    """Return {path of an arm: job} for the jobs of an earlier launch that have not ended.

    Raises ValueError if there was such a job and Slurm does not answer.
    """
    path = root / FOLDER / JOBS
    jobs = formats.read(path, formats.SLURM_JOBS)["jobs"] if path.exists() else {}
    if not jobs:
        return {}
    try:
        shown = look(jobs)
    except ValueError as error:
        raise ValueError(
            f"{error}; jobs of an earlier launch into {root} may still run, so repeat the command "
            "when Slurm answers"
        ) from error
    alive = [job for job in jobs if job in shown and not shown[job].ended]
    return {path: job for job in alive for path in jobs[job]["arms"]}


def run(
    groups: Groups,
    root: Path,
    shown: Shown,
    *,
    command: Callable[[Sequence[Arm]], list[str]],
    settings: str = "",
    at_once: int = 1,
) -> dict[str, str]:
    """Run groups as one array of jobs, and follow their records through the shared file system.

    If Slurm still has an arm's job from an earlier launch, the job is only followed. settings: see
    `options`. at_once: the most jobs that run at the same time; 1: as many as Slurm wants. Raises
    ValueError if Slurm does not accept the jobs. Returns the failures by paths of arms.
    """
    left = unfinished(groups, root, shown)
    if not left:
        return {}
    jobs, folder = under_way(root), root / FOLDER
    followed = [[arm] for group in left for arm in group if arm.path in jobs]
    new = [rest for group in left if (rest := [arm for arm in group if arm.path not in jobs])]
    files.make(folder)
    if new:
        array = f"--array=0-{len(new) - 1}" + (f"%{at_once}" if at_once > 1 else "")
        answer = _submit(settings, [*map(command, new)], array, f"--output={folder}/%A_%a.txt")
        number = answer.partition(";")[0]  # a cluster may follow
        jobs |= {arm.path: f"{number}_{n}" for n, group in enumerate(new) for arm in group}
    known: dict[str, dict] = {}  # for the next launch
    for path, job in jobs.items():
        known.setdefault(job, {"arms": []})["arms"].append(path)
    files.write(folder / JOBS, json.dumps({"jobs": known}, indent=1))
    every, queue = [*followed, *new], Queue(known)

    def start(group: Sequence[Arm]) -> Job:
        return Job(jobs[group[0].path], group, root, queue)

    return follow(every, start, len(every), root, shown)
