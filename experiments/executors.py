"""Executors of the arms of a sweep: this process, several on this machine, tasks of Ray, JobSets.

An executor runs groups of arms, each group as one program, and returns why arms have failed: {path
of the arm: one line}. A failing arm is no reason to stop the others. See also `experiments.slurm`.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments import (
    distributed,
    endings,
    files,
    loggers,
    prepare,
    records,
    registry,
    restarts,
    runtime_builders,
    train,
)
from runtimes.asynchronous.pool import SESSION, Resources, environment
from runtimes.base import WorkersLost
from stragglers import slow_worker

OUTPUT = "output.txt"  # the printed text of an arm's own process
POLL_SECONDS = 0.5
SECONDS_BETWEEN_LINES = 5.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Arm(NamedTuple):
    """One run: its place below the workdir and its config.

    first: the first seed of the runs that repeat this one; None: its own seed.
    """

    path: str
    config: ConfigDict
    first: int | None = None


Groups = Sequence[Sequence[Arm]]

# --- what a person sees meanwhile ---


class Watched(NamedTuple):
    """Callbacks for the events of an arm."""

    on_record: Callable[[dict], None]
    ended: Callable[[str | None], None]  # with the reason of a failure; None: it has finished
    noted: Callable[[str], None] = lambda text: None  # with a sentence on any other event


class Shown:
    """Progress of arms in lines: at the start, every few seconds and at the end of each."""

    def __init__(self, arms: int, quiet: bool = False):
        self._arms, self._quiet = arms, quiet
        self._numbers: dict[str, int] = {}

    def arm(self, config: ConfigDict) -> Watched:
        """Print that an arm has started, and return its callbacks."""
        title, printed, last = f"{config.name} seed {config.seed}", time.monotonic(), None
        number = self._numbers.setdefault(title, len(self._numbers) + 1)

        def say(text: str) -> None:
            if not self._quiet:
                print(f"[{number}/{self._arms}] {title}: {text}", flush=True)

        def on_record(record: dict) -> None:
            nonlocal printed, last
            loss = record["train_loss"]
            last = (
                f"{record['update']:>6} updates  {record['seconds']:7.1f}/{config.seconds:g} s  "
                f"loss {'not finite' if loss is None else f'{loss:.4f}'}"
            )
            if slow := slow_worker.described(record):
                last += f"  {slow}"
            if time.monotonic() - printed >= SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                say(last)

        def ended(failure: str | None) -> None:
            say(f"failed: {failure}" if failure else last or "already finished")

        say("started")
        return Watched(on_record, ended, say)


# (groups, workdir, progress) -> failures
Executor = Callable[[Groups, Path, Shown], dict[str, str]]

# --- in this process ---


def here(
    groups: Groups,
    root: Path,
    shown: Shown,
    *,
    log_to: Sequence[str] = (),
    checkpoint_seconds: float = 30.0,
    shared: prepare.LastTask | None = None,
) -> dict[str, str]:
    """Run one group after the other, in this process.

    log_to: names of `loggers.LOGGERS`. checkpoint_seconds, shared: see `train.run`.
    """
    failures: dict[str, str] = {}
    how = {"checkpoint_seconds": checkpoint_seconds, "shared": shared or prepare.LastTask()}
    waiting = list(groups)
    while waiting:
        group = waiting.pop(0)
        failure = _run(group, root, shown, log_to, how)
        if failure is not None and len(group) > 1:
            # One arm may be at fault, so each arm of the group runs again by itself.
            waiting[:0] = [[arm] for arm in group]
        elif failure is not None:
            failures[group[0].path] = failure
    return failures


def _run(
    group: Sequence[Arm], root: Path, shown: Shown, names: Sequence[str], how: Mapping[str, Any]
) -> str | None:
    """Train a group; return why it has failed, or None."""
    watched = [shown.arm(arm.config) for arm in group]
    workdirs = [root / arm.path for arm in group]
    configs, notes = [arm.config for arm in group], [one.noted for one in watched]
    names = names if distributed.is_writer() else ()  # one process alone logs a run
    failure = None
    for workdir in workdirs:
        (workdir / records.ERROR).unlink(missing_ok=True)
    try:
        with contextlib.ExitStack() as opened:
            tell = [
                opened.enter_context(loggers.attach(names, workdir, config, one.on_record))
                for workdir, config, one in zip(workdirs, configs, watched, strict=True)
            ]
            if len(group) == 1:
                train.run(configs[0], workdirs[0], on_record=tell[0], on_note=notes[0], **how)
            else:
                train.run_together(configs, workdirs, on_record=tell, on_note=notes, **how)
    except Exception as error:  # whatever it is, the other arms can do without this one
        said = registry.sentence if isinstance(error, ValueError) else registry.brief
        failure = said(f"{type(error).__name__}: {error}")
        # Another process writes there, or has gone and gives the reason itself.
        others = isinstance(error, files.InUse) or distributed.is_lost(error)
        if len(group) == 1 and distributed.is_writer() and not others:
            with contextlib.suppress(files.NotWritten):  # as on a full disk
                files.make(workdirs[0])
                files.write(workdirs[0] / records.ERROR, f"{failure}\n\n{traceback.format_exc()}")
        if distributed.processes() > 1 or isinstance(error, WorkersLost):
            raise  # other processes wait inside this arm, or no worker is left
    for one in watched:
        one.ended(failure)
    return failure


# --- somewhere else ---


def command(argv: Sequence[str], group: Sequence[Arm]) -> list[str]:
    """Return the command that runs only the arms of a group; argv: the command that runs all."""
    others = {"jobs", "executor", "slurm", "ray", "arm", "jobset", "pods"}
    if not any(runtime_builders.RUNTIMES[arm.config.runtime].cluster for arm in group):
        others.add("cluster")
    kept = restarts.without(argv, others, ["print_commands"])
    return [sys.executable, *kept, *(f"--arm={arm.path}" for arm in group)]


class Job(NamedTuple):
    """A group that runs somewhere else."""

    poll: Callable[[], str | None]  # None while it runs, then how it ended; "": well
    ask: Callable[[], None]  # asks it to end, which it does after its next evaluation
    kill: Callable[[], None] = lambda: None  # ends it at once
    note: Callable[[], str | None] = lambda: None  # what has happened since, in a sentence


def follow(
    groups: Groups, start: Callable[[Sequence[Arm]], Job], at_once: int, root: Path, shown: Shown
) -> dict[str, str]:
    """Start every group, at most `at_once` at a time, and show their records as they arrive."""
    failures: dict[str, str] = {}
    shown_records: dict[str, dict] = {}
    waiting, running = list(groups), []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                group = waiting.pop(0)
                watched = [(arm, shown.arm(arm.config)) for arm in group]
                running.append((watched, start(group)))
            time.sleep(POLL_SECONDS)
            for entry in list(running):
                watched, job = entry
                ended, note = job.poll(), job.note()
                for arm, one in watched:
                    record = None
                    with contextlib.suppress(ValueError):  # it has not begun, or begins again
                        record = next(reversed(records.read_metrics(root / arm.path)), None)
                    if record not in (None, shown_records.get(arm.path)):
                        shown_records[arm.path] = record
                        one.on_record(record)
                    if note is not None:
                        one.noted(note)
                    if ended is not None:
                        failure = _failure(root / arm.path, arm.config, ended)
                        one.ended(failure)
                        failures |= {} if failure is None else {arm.path: failure}
                if ended is not None:
                    running.remove(entry)
    finally:
        if running:
            _end([job for _, job in running])
    return failures


def _end(jobs: Sequence[Job]) -> None:
    """End all jobs, each after the checkpoint of its next evaluation, or at a second signal."""
    several = "a run is" if len(jobs) == 1 else f"{len(jobs)} runs are"
    print(f"{several} asked to end with a checkpoint; a second signal ends all at once")
    try:
        for job in jobs:
            job.ask()
        while any([job.poll() is None for job in jobs]):
            time.sleep(POLL_SECONDS)
    except BaseException:
        for job in jobs:
            job.kill()
        raise


def _failure(place: Path, config: ConfigDict, ended: str) -> str | None:
    """Return the cause of an arm's failure, or None; `ended`: how its process ended."""
    if (place / records.ERROR).exists():
        return records.read_error(place)
    if records.is_finished(place, config):
        return None
    return ended or "its process left no summary"


def unfinished(groups: Groups, root: Path, shown: Shown) -> Groups:
    """Return the groups with work left; the others are shown as finished."""
    left = []
    for group in groups:
        if all(records.is_finished(root / a.path, a.config) for a in group):
            for arm in group:
                shown.arm(arm.config).ended(None)
            continue
        left.append(group)
        for arm in group:
            (root / arm.path / records.ERROR).unlink(missing_ok=True)
    return left


def process_words(code: int | None, output: Path, what: str = "its process") -> str | None:
    """Return how a process has ended, see `Job`; code: its exit code, or minus its signal."""
    if not code:
        return code if code is None else ""
    how = f"exit code {code}" if code > 0 else endings.name_of(-code)
    return f"{what} ended with {how}; see {output}"


def _begin(command: Sequence[str], output: Path, **options: Any) -> subprocess.Popen:
    """Start a process whose text goes into a file; options: of Popen."""
    with files.stream(output) as stream:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, **options
        )


Command = Callable[[Sequence[Arm]], list[str]]  # group -> the command of its process


def local(
    groups: Groups, root: Path, shown: Shown, *, command: Command, at_once: int
) -> dict[str, str]:
    """Run groups as processes of this machine, `at_once` at the same time."""

    def start(group: Sequence[Arm]) -> Job:
        output = root / group[0].path / OUTPUT
        # Else the first process would take most of a GPU's memory for itself.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ
        # A session of its own: ctrl-C reaches it through `ask` alone.
        process = _begin(command(group), output, env=environment, start_new_session=True)
        poll = functools.partial(process_words, output=output)
        return Job(lambda: poll(process.poll()), process.terminate, process.kill)

    return follow(unfinished(groups, root, shown), start, at_once, root, shown)


# --- Ray ---


def ray_resources(settings: str) -> Resources:
    """Return the shares that "cpus=1,gpus=0.25" asks for; ValueError for anything else."""
    way_out = "cpus=NUMBER,gpus=NUMBER, where a GPU can be shared"
    return Resources(**read_settings("--ray", settings, {"cpus": float, "gpus": float}, way_out))


def read_settings(
    flag: str, settings: str, kinds: Mapping[str, type], way_out: str, others: bool = False
) -> dict[str, Any]:
    """Return {name: value} from "name=value,name=value"; kinds: known name -> type of its value.

    others: whether other names may be given, too, with texts as values.
    """
    found = {}
    for item in filter(None, settings.split(",")):
        name, _, value = (text.strip() for text in item.partition("="))
        try:
            kind = kinds.get(name, str) if others and name else kinds[name]
            found[name] = kind(value)
            if not (value if kind is str else 0 <= found[name] < 1e6):
                raise ValueError(value)
        except (KeyError, ValueError) as error:
            raise ValueError(f"cannot read {item!r} in {flag}; write {way_out}") from error
    return found


def on_ray(
    resources: Resources, groups: Groups, root: Path, shown: Shown, *, command: Command,
    at_once: int,
) -> dict[str, str]:  # fmt: skip
    """Run groups as tasks of Ray, whose records arrive through the file system that they share.

    resources: of a task. at_once: tasks that may run at the same time; 1: as many as there is room
    for. A task whose node is lost is started again on another one, where its run goes on from the
    last checkpoint.
    """
    left = unfinished(groups, root, shown)
    if not left:
        return {}
    SESSION.provide(1, resources, 0)
    import ray

    task = ray.remote(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        max_retries=-1,  # after lost nodes; a failed command returns its exit code
        runtime_env={"env_vars": environment(resources)},
    )(_execute)

    def start(group: Sequence[Arm]) -> Job:
        output = root / group[0].path / OUTPUT
        files.make(output.parent)
        reference = task.remote(command(group), str(output.resolve()), os.getcwd())

        def poll() -> str | None:
            if not ray.wait([reference], timeout=0)[0]:
                return None
            try:
                return process_words(ray.get(reference), output)
            except ray.exceptions.RayError as error:
                return registry.brief(f"its task ended: {error}")

        # Asked, `_execute` gets a KeyboardInterrupt.
        cancel = functools.partial(ray.cancel, reference)
        return Job(poll, cancel, functools.partial(cancel, force=True))

    return follow(left, start, len(left) if at_once == 1 else at_once, root, shown)


def _execute(command: Sequence[str], output: str, folder: str) -> int:
    """Run a command, which ends with the task's process, and return the command's exit code."""

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)

    process = _begin(command, Path(output), cwd=folder, preexec_fn=die_with_parent)
    try:
        return process.wait()
    except BaseException:  # the task is cancelled, or its node is being left
        process.terminate()
        process.wait()
        raise


# --- JobSets of Kubernetes: a Job of Pods per arm, one Pod per process of the run ---

PORT = 8476
# Settings of --pods -> their defaults.
SETTINGS = {
    "image": "", "processes": 1, "gpus": 0, "tpus": 0, "accelerator": "", "topology": "",
    "claim": "", "mount": "/gossax/runs", "restarts": 3,
}  # fmt: skip


def read_pods(settings: str) -> dict[str, Any]:
    """Return all settings of "image=IMAGE,tpus=4", or their defaults; ValueError for wrong ones."""
    kinds = {name: type(default) for name, default in SETTINGS.items()}
    way_out = f"name=value, of {', '.join(SETTINGS)}"
    found = SETTINGS | read_settings("--pods", settings, kinds, way_out)
    for wrong, way in (
        (not found["image"] or not found["processes"],
         "a Pod needs an image and a run a process; give image=IMAGE and processes=1 or more"),
        (found["gpus"] and found["tpus"], "no node has gpus and tpus; give one of them"),
        (found["topology"] and not found["tpus"], "topology is of tpus; give them, too"),
        (found["mount"] != SETTINGS["mount"] and not found["claim"],
         "mount is of a claim; give both"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(f"--pods={settings}: {way}")
    return found


def manifest(path: str, command: Sequence[str], pods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JobSet of an arm; pods: see `read_pods`.

    Processes find each other by the names that a JobSet gives its Pods. If a Pod fails, its Job is
    started again as a whole, and goes on from the last checkpoint.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:24].strip("-")
    whole = "\0".join([path, *command])  # has the workdir: names differ between sweeps
    own = hashlib.sha256(whole.encode()).hexdigest()[:6]
    name = "-".join(filter(None, ("gossax", slug, own)))
    count, words = pods["processes"], ["python", "launch.py", *command[2:]]
    words = [word.replace("$(", "$$(") for word in words]  # else Kubernetes would expand it
    # Also for one process, or JAX would look for others in a Pod with an index.
    words += [f"--coordinator_address={name}-arm-0-0.{name}:{PORT}"]
    words += [f"--num_processes={count}", "--process_id=$(JOB_COMPLETION_INDEX)"]
    # Labels by which GKE chooses the slices and GPUs of a Pod.
    kind = "gke-tpu-accelerator" if pods["tpus"] else "gke-accelerator"
    labels = {kind: pods["accelerator"], "gke-tpu-topology": pods["topology"]}
    devices = {"nvidia.com/gpu": pods["gpus"], "google.com/tpu": pods["tpus"]}
    container = {
        "name": "arm",
        "image": pods["image"],
        "command": words,
        # A Pod has no name that it could listen at before it is ready.
        "env": [{"name": distributed.BIND, "value": f"0.0.0.0:{PORT}"}],
        "resources": {"limits": {device: n for device, n in devices.items() if n}},
    }
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {f"cloud.google.com/{k}": value for k, value in labels.items() if value},
        "containers": [container],
    }
    if pods["claim"]:
        container["volumeMounts"] = [{"name": "records", "mountPath": pods["mount"]}]
        claim = {"claimName": pods["claim"]}
        pod["volumes"] = [{"name": "records", "persistentVolumeClaim": claim}]
    job = {
        "parallelism": count, "completions": count, "completionMode": "Indexed",
        "backoffLimit": 0, "template": {"spec": pod},
    }  # fmt: skip
    arm = {"name": "arm", "replicas": 1, "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": {"gossax/arm": path}},
        "spec": {"failurePolicy": {"maxRestarts": pods["restarts"]}, "replicatedJobs": [arm]},
    }


def write_jobsets(file: str, groups: Groups, root: Path, command: Command, settings: str) -> None:
    """Write a list of JobSets, one per group, for `kubectl apply`; settings: see `read_pods`."""
    pods = read_pods(settings)
    if pods["claim"] and root.is_absolute() and Path(pods["mount"]) not in (root, *root.parents):
        raise ValueError(
            f"--workdir={root} is not on the volume, which is mounted at {pods['mount']}, and "
            "records would go with the Pod; give a --workdir below it"
        )
    if not Path(file).parent.is_dir():
        raise ValueError(f"--jobset={file}: there is no folder {Path(file).parent}; make it first")
    for arm in (arm for group in groups for arm in group):
        runtime_builders.check_processes(arm.config, pods["processes"])
    items = [manifest(group[0].path, command(group), pods) for group in groups]
    files.write(file, json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    print(f"{len(items)} JobSets: {file}")
