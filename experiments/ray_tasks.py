"""The arms of a sweep as tasks of Ray: on this machine, or on a cluster that shares the workdir."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import endings, files, progress
from experiments.executors import OUTPUT, Arm, Groups, Job, follow, one_line, unfinished
from runtimes.asynchronous.pool import SESSION, Resources, environment

SETTINGS = ("cpus", "gpus")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def read(settings: str) -> Resources:
    """The shares that "cpus=1,gpus=0.25" asks for; ValueError for anything else."""
    found = {}
    for item in filter(None, settings.split(",")):
        name, _, value = (text.strip() for text in item.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if name not in SETTINGS or not 0 <= found[name] < 1e6:
            raise ValueError(
                f"cannot read {item!r} in --ray; write cpus=NUMBER,gpus=NUMBER, where a GPU can be "
                "shared"
            )
    return Resources(**found)


def run(
    groups: Groups,
    root: Path,
    overwrite: bool,
    shown: progress.Shown,
    *,
    command: Callable[[Sequence[Arm]], list[str]],
    settings: str = "",
    at_once: int = 1,
) -> dict[str, str]:
    """Groups as tasks, whose records arrive through the file system that they share.

    settings: what a task takes, as `read` reads it. at_once: tasks that may run at the same time;
    1: as many as there is room for. A task whose node is lost is started again on another one,
    where its run goes on from the last checkpoint.
    """
    resources = read(settings)
    left = unfinished(groups, root, overwrite, shown)
    if not left:
        return {}
    SESSION.provide(1, resources, 0)
    task = _task(resources)

    def start(group: Sequence[Arm]) -> "_Job":
        kept = [part for part in command(group) if part.lstrip("-") != "overwrite"]
        output = root / group[0].path / OUTPUT
        files.make(output.parent)
        return _Job(task.remote(kept, str(output.resolve()), os.getcwd()), output)

    with endings.raised():
        return follow(left, start, len(left) if at_once == 1 else at_once, root, shown)


class _Job(Job):
    """A group as a task of Ray."""

    def __init__(self, reference: Any, output: Path):
        self._reference, self._output = reference, output

    def poll(self) -> str | None:
        import ray

        done, _ = ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            code = ray.get(self._reference)
        except ray.exceptions.RayError as error:
            return one_line(f"its task ended: {error}")
        return f"its process ended with exit code {code}; see {self._output}" if code else ""

    def stop(self) -> None:
        import ray

        ray.cancel(self._reference, force=True)


def _task(resources: Resources) -> Any:
    import ray

    return ray.remote(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        max_retries=-1,  # of nodes that are lost; a command that fails has an exit code
        runtime_env={"env_vars": environment(resources)},
    )(_execute)


def _execute(command: Sequence[str], output: str, folder: str) -> int:
    """Run a command where the task is; it ends with the process of the task."""

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)

    with files.stream(Path(output)) as stream:
        return subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        ).returncode
