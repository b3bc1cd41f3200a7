"""Where the arms of a sweep run: in this process or in several on this machine.

An executor runs groups of arms, each group as one program, and returns why arms have failed: {path
of the arm: one line}. A failing arm is no reason to stop the others. See also `experiments.slurm`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ml_collections import ConfigDict

from experiments import (
    distributed,
    endings,
    files,
    locks,
    loggers,
    progress,
    records,
    runtime_builders,
    train,
)
from runtimes.base import WorkersLost

OUTPUT = "output.txt"  # of an arm in a process of its own: what that printed
POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0  # to end after a polite request


class Arm(NamedTuple):
    """One run: its place below the workdir and its config.

    first: the first of the seeds that repeat it; None: its own.
    """

    path: str
    config: ConfigDict
    first: int | None = None


Groups = Sequence[Sequence[Arm]]
# (groups, workdir, whether to run finished arms again, progress) -> failures
Executor = Callable[[Groups, Path, bool, progress.Shown], dict[str, str]]


def here(
    groups: Groups,
    root: Path,
    overwrite: bool,
    shown: progress.Shown,
    *,
    log_to: Sequence[str] = (),
    checkpoint_seconds: float = 30.0,
) -> dict[str, str]:
    """One group after the other, in this process.

    log_to: names of `loggers.LOGGERS`. checkpoint_seconds: see `train.run`.
    """
    failures: dict[str, str] = {}
    how = {"overwrite": overwrite, "checkpoint_seconds": checkpoint_seconds}
    for group in groups:
        failure = _run(group, root, shown, log_to, how)
        if failure is not None and len(group) > 1:
            # It may be the fault of one: each of them has a chance of its own.
            alone = [[arm] for arm in group]
            failures |= here(
                alone, root, overwrite, shown, log_to=log_to, checkpoint_seconds=checkpoint_seconds
            )
        elif failure is not None:
            failures[group[0].path] = failure
    return failures


def _run(group, root: Path, shown: progress.Shown, names: Sequence[str], how: dict) -> str | None:
    """Train a group; why it has failed, or None."""
    watched = [shown.arm(arm.config) for arm in group]
    places = [root / arm.path for arm in group]
    configs = [arm.config for arm in group]
    names = names if distributed.is_writer() else ()  # one log of a run
    failure = None
    for place in places:
        (place / records.ERROR).unlink(missing_ok=True)
    try:
        with contextlib.ExitStack() as opened:
            tell = [
                opened.enter_context(loggers.attach(names, place, config, one.on_record))
                for place, config, one in zip(places, configs, watched, strict=True)
            ]
            notes = [one.noted for one in watched]
            if len(group) == 1:
                train.run(configs[0], places[0], on_record=tell[0], on_note=notes[0], **how)
            else:
                train.run_together(configs, places, on_record=tell, on_note=notes, **how)
    except Exception as error:  # whatever it is, the other arms can do without this one
        failure = one_line(f"{type(error).__name__}: {error}")
        # Another process writes there, or has gone and is the one to say why.
        others = isinstance(error, locks.InUse) or distributed.is_lost(error)
        if len(group) == 1 and distributed.is_writer() and not others:
            with contextlib.suppress(files.NotWritten):  # as on a full disk
                files.make(places[0])
                files.write(places[0] / records.ERROR, f"{failure}\n\n{traceback.format_exc()}")
        if distributed.processes() > 1 or isinstance(error, WorkersLost):
            raise  # the others wait in the middle of this arm, or there is nobody left to run one
    for one in watched:
        one.ended(failure)
    return failure


def one_line(text: str) -> str:
    """The text on one line, and not a page of it: XLA's messages have hundreds of lines."""
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]} ..."


def exit_words(code: int) -> str:
    """How a process has ended that has failed: its exit code or, negative, the signal."""
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def command(argv: Sequence[str], group: Sequence[Arm]) -> list[str]:
    """The command line that runs only the arms of a group; `argv` runs all, in whatever way."""
    others = {"jobs", "executor", "slurm", "ray", "arm"}
    if not any(runtime_builders.RUNTIMES[arm.config.runtime].cluster for arm in group):
        others.add("cluster")
    kept, arguments = [], iter(argv[1:])
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        flag = name if argument.startswith("-") else None
        if flag in others:
            if not equals:
                next(arguments)  # its value
        elif flag not in ("print_commands", "noprint_commands"):
            kept.append(argument)
    return [sys.executable, argv[0], *kept, *(f"--arm={arm.path}" for arm in group)]


class Job(Protocol):
    """A group that runs somewhere else."""

    def poll(self) -> str | None:
        """None while it runs; then how it ended, where "" means well."""

    def note(self) -> str | None:
        """What has happened to it since this was last asked, in a sentence; None: nothing."""
        return None

    def stop(self) -> None:
        """End it if it still runs."""


def follow(
    groups: Groups,
    start: Callable[[Sequence[Arm]], Job],
    at_once: int,
    root: Path,
    shown: progress.Shown,
) -> dict[str, str]:
    """Start every group that has work left, at most `at_once` at a time, and show their records."""
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
                    record = _last_record(root / arm.path)
                    if record not in (None, shown_records.get(arm.path)):
                        shown_records[arm.path] = record
                        one.on_record(record)
                    if note is not None:
                        one.noted(note)
                    if ended is not None:
                        failure = _failure(root, arm, ended)
                        one.ended(failure)
                        if failure is not None:
                            failures[arm.path] = failure
                if ended is not None:
                    running.remove(entry)
    finally:
        for _, job in running:
            job.stop()
    return failures


def _done(group: Sequence[Arm], root: Path) -> bool:
    return all(records.is_finished(root / arm.path, arm.config) for arm in group)


def _last_record(place: Path) -> dict | None:
    """What a run that somebody else writes has said last."""
    try:
        return next(reversed(records.read_metrics(place)), None)
    except ValueError:
        return None  # it has not begun, or begins again just now


def _failure(root: Path, arm: Arm, ended: str) -> str | None:
    """Return the cause of an arm's failure, or None; `ended`: how its process ended."""
    place = root / arm.path
    if (place / records.ERROR).exists():
        return records.read_error(place)
    if records.is_finished(place, arm.config):
        return None
    return ended or "its process left no summary"


def unfinished(groups: Groups, root: Path, overwrite: bool, shown: progress.Shown) -> Groups:
    """The groups with work left; the others are shown as finished."""
    left = []
    for group in groups:
        if not overwrite and _done(group, root):
            for arm in group:
                shown.arm(arm.config).ended(None)
            continue
        left.append(group)
        for arm in group:
            (root / arm.path / records.ERROR).unlink(missing_ok=True)
            if overwrite:
                (root / arm.path / records.SUMMARY).unlink(missing_ok=True)
    return left


class _Process(Job):
    """A group in a process of its own on this machine."""

    def __init__(self, command: Sequence[str], output: Path, environment: dict[str, str]):
        self._output = output
        with files.stream(output) as stream:
            # A session of its own: ctrl-C reaches it through `stop` alone, which waits for it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def poll(self) -> str | None:
        code = self._process.poll()
        if code is None or code == 0:
            return "" if code == 0 else None
        return f"its process ended with {exit_words(code)}; see {self._output}"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def local(
    groups: Groups,
    root: Path,
    overwrite: bool,
    shown: progress.Shown,
    *,
    command: Callable[[Sequence[Arm]], list[str]],
    jobs: int,
) -> dict[str, str]:
    """Groups as processes of this machine, `jobs` at once; `command` says how to start one."""
    # Else the first process would take most of a GPU's memory for itself.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ

    def start(group):
        return _Process(command(group), root / group[0].path / OUTPUT, environment)

    with endings.raised():  # so that no child is left behind
        left = unfinished(groups, root, overwrite, shown)
        return follow(left, start, jobs, root, shown)
