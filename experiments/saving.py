"""The moments at which a run makes checkpoints, and the one from which it goes on."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from experiments import checkpoints, distributed, endings, records
from experiments.checkpoints import Checkpoint, Unreadable, Writing
from experiments.training_loop import Arm
from runtimes import packing, phases


class Saver:
    """Makes the checkpoints of arms that train together, of one arm if its state is divided.

    with Saver(seconds) as saver:
        saver.save(arms)  # at every evaluation
        summary = saver.end(arm)
    """

    def __init__(self, seconds: float):
        """seconds: on the wall, from one checkpoint to the next `save` that makes one."""
        self._seconds, self._last = seconds, time.monotonic()
        self._writing: Writing | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing is written any more, though something else may have gone wrong before."""
        with contextlib.suppress(Exception):
            self.wait()

    @phases.within(phases.CHECKPOINT)
    def save(self, arms: Sequence[Arm]) -> None:
        """A checkpoint of every arm if one is due, and only when all have theirs, no older ones.

        One of divided state is still being written then; what goes wrong with it is raised later.
        Raises `endings.Asked` after it, where a signal asks the run to end. All processes call it.
        """
        number = distributed.asked_to_end()
        due = distributed.agreed(time.monotonic() - self._last >= self._seconds)
        if self._writing is not None:
            self._writing.check()
        if due:
            self._last = time.monotonic()
        elif number is None:
            return
        self._write(arms)
        if number is not None:
            self.wait()
            distributed.agreed(None)  # the first process has written it
            endings.end(number)

    def end(self, arm: Arm) -> dict:
        """Leave the state of a run's end, of which it can be trained longer, and its summary.

        Without checkpoints, as their seconds are infinite, there is none of the end either.
        """
        self.wait()
        keeps = math.isfinite(self._seconds)
        if keeps and not arm.resumed_at_end:
            self._write([arm])
            self.wait()
        summary = arm.summary()
        if not keeps and arm.recorder.writes:
            checkpoints.keep_only(arm.recorder.workdir, None)
        return summary

    def _write(self, arms: Sequence[Arm]) -> None:
        """Make a checkpoint of every arm, and remove the older ones when all have theirs."""
        self.wait()
        made = [(arm.recorder, arm.checkpoint()) for arm in arms]  # on all processes
        for recorder, checkpoint in made:
            recorder.sync()  # it relies on the metrics until now
            if recorder.writes:
                lines = records.digest(recorder.workdir, checkpoint.records)
                checkpoint = checkpoint._replace(metrics=lines)
            if recorder.writes or checkpoints.is_divided(checkpoint):
                writing = Writing(recorder.workdir, checkpoint)
                self._writing = writing if writing.is_divided else None
        for recorder, checkpoint in made:
            if recorder.writes and self._writing is None:
                checkpoints.keep_only(recorder.workdir, checkpoint.evaluation)

    @phases.within(phases.CHECKPOINT)
    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk; raises NotWritten if it is not."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.wait()


def newest(
    workdirs: Sequence[str | os.PathLike], notes: Sequence[Callable[[str], None]]
) -> list[Checkpoint | None]:
    """The checkpoint from which each of some runs that train together goes on; None: its start.

    One that cannot be read is passed over for an older one, with a sentence for the run's note.
    Raises Unreadable, with nothing removed, where a run has some and none can be read.
    """
    unreadable: dict[Path, Unreadable] = {}
    while True:
        found = []
        evaluations = distributed.agreed(checkpoints.resumable(workdirs, unreadable))
        for workdir, evaluation in zip(workdirs, evaluations, strict=True):
            path, error = checkpoints.folder_of(workdir) / str(evaluation), None
            try:
                found.append(None if evaluation is None else _usable(workdir, evaluation))
            except Unreadable as unread:
                error = unread
            if packing.of_all(np.array([error is not None])).any():
                why = f"checkpoint {path} cannot be read by another process"
                unreadable[path] = error or Unreadable(path, why)
                break
        else:
            break
    for workdir, checkpoint in zip(workdirs, found, strict=True):
        passed = [e for p, e in unreadable.items() if p.parent == checkpoints.folder_of(workdir)]
        if passed and checkpoint is None:
            raise Unreadable(" and ".join(str(e.path) for e in passed), passed[0].why)
    for workdir, evaluation, note in zip(workdirs, evaluations, notes, strict=True):
        folder = checkpoints.folder_of(workdir)
        for path, error in unreadable.items():
            if path.parent == folder:
                note(f"{error.why}; goes on from {folder / str(evaluation)}, and it is removed")
        if evaluation is not None and distributed.is_writer():
            checkpoints.keep_only(workdir, evaluation)
    return found


def _usable(workdir: str | os.PathLike, evaluation: int) -> Checkpoint:
    """As `checkpoints.read`, with the lines of metrics that there were; else Unreadable."""
    checkpoint = checkpoints.read(workdir, evaluation)
    try:
        if checkpoint.metrics not in ("", records.digest(workdir, checkpoint.records)):
            raise ValueError(f"workdir {workdir}: {records.METRICS} has been changed since")
    except ValueError as error:
        path = checkpoints.folder_of(workdir) / str(evaluation)
        raise Unreadable(path, str(error)) from error
    return checkpoint
