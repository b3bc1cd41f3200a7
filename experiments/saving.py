"""When a run makes checkpoints, and which kind: whole or, where its state is divided, in parts."""

import contextlib
import os
import time
from collections.abc import Sequence

from experiments import checkpoints, distributed, divided_checkpoints, endings
from experiments.divided_checkpoints import Writing
from experiments.training_loop import Arm
from runtimes import phases


class Saver:
    """Makes the checkpoints of arms that train together, of one arm if its state is divided.

    with Saver(seconds) as saver:
        saver.save(arms)  # at every evaluation
        saver.wait()  # at the end
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
        self.wait()
        made = [(arm.recorder, arm.checkpoint()) for arm in arms]  # on all processes
        for recorder, checkpoint in made:
            recorder.sync()  # it relies on the metrics until now
            if divided_checkpoints.is_divided(checkpoint):
                self._writing = Writing(recorder.workdir, checkpoint)
            elif recorder.writes:
                checkpoints.save(recorder.workdir, checkpoint)
        for recorder, checkpoint in made:
            if recorder.writes and self._writing is None:
                checkpoints.keep_only(recorder.workdir, checkpoint.evaluation)
        if number is not None:
            self.wait()
            distributed.agreed(None)  # the first process has written it
            endings.end(number)

    @phases.within(phases.CHECKPOINT)
    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk; raises NotWritten if it is not."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.wait()


def read(workdir: str | os.PathLike, evaluation: int) -> checkpoints.Checkpoint:
    """The checkpoint made after an evaluation; one that cannot be read raises ValueError."""
    kind = checkpoints
    if divided_checkpoints.is_there(workdir, evaluation):
        kind = divided_checkpoints
    return kind.read(workdir, evaluation)
