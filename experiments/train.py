"""Train arms, one or several that make one program, and go on with those that were cut off.

A run that was cut off at any moment goes on from its last checkpoint when it is asked for again. On
several processes the first one writes, and all of them read, so that they share the workdir.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments import checkpoints, distributed, endings, records
from experiments.checkpoints import Checkpoint, Unreadable, Writing
from experiments.prepare import Prepared, prepare
from experiments.training_loop import Arm
from runtimes import packing, phases
from runtimes.simulate import Batched


def run(
    config: ConfigDict,
    workdir,
    *,
    overwrite: bool = False,
    on_record: Callable[[dict], None] = lambda record: None,
    on_note: Callable[[str], None] = lambda text: None,
    checkpoint_seconds: float = 30.0,
) -> dict:
    """Train one arm and return its summary; `workdir` gets what `records` lists.

    on_record: called with every metrics record as it is written. on_note: called with a sentence
    on what a run goes on from. checkpoint_seconds: on the wall, from one checkpoint to the next
    evaluation that makes one; infinite: there is none, and the run cannot be trained longer.
    Raises ValueError, before anything is compiled or written, for a config that cannot run or a
    workdir that belongs to another config. An arm that has finished is not run again, but trained
    longer where `seconds` or `updates` are larger than they were.
    """
    prepared = prepare(config, settled=True)
    config = prepared.config
    with (
        _opened(workdir, config, overwrite) as recorder,
        endings.deferred(),
        contextlib.closing(prepared.runtime),
    ):
        if recorder.finished:
            return recorder.summary
        (checkpoint,) = newest([workdir], [on_note])
        arm = _begun(config, prepared, recorder, on_record, on_note, checkpoint)
        with Saver(checkpoint_seconds) as saver:
            while (budget := arm.budget()) is not None:
                arm.take(*prepared.runtime.advance(arm.state, *budget))
                if arm.budget() is not None:
                    saver.save([arm])
            summary = saver.end(arm)
        if (number := distributed.asked_to_end()) is not None:
            endings.end(number)
        return summary


def run_together(
    configs: Sequence[ConfigDict],
    workdirs: Sequence,
    *,
    overwrite: bool = False,
    on_record: Sequence[Callable[[dict], None]] | None = None,
    on_note: Sequence[Callable[[str], None]] | None = None,
    checkpoint_seconds: float = 30.0,
) -> list[dict]:
    """Train arms that differ only in data as one compiled program; otherwise as `run` does.

    See `alike` for which arms these are. Times on the wall count all of them together.
    """
    made: list[Prepared] = []
    for config in configs:  # whose tasks are the same
        made.append(prepare(config, made[0].task if made else None, settled=True))
    configs = [prepared.config for prepared in made]
    hooks = on_record or [lambda record: None] * len(configs)
    notes = on_note or [lambda text: None] * len(configs)
    with contextlib.ExitStack() as opened, endings.deferred():
        recorders = [
            opened.enter_context(_opened(workdir, config, overwrite))
            for workdir, config in zip(workdirs, configs, strict=True)
        ]
        going = [r for r, recorder in enumerate(recorders) if not recorder.finished]
        found = newest([workdirs[r] for r in going], [notes[r] for r in going])
        arms = {
            r: _begun(configs[r], made[r], recorders[r], hooks[r], notes[r], checkpoint)
            for r, checkpoint in zip(going, found, strict=True)
        }
        if arms:
            # An arm that has finished before keeps its place by a run of no updates: how many runs
            # a program has changes how it rounds.
            states = [
                arms[r].state
                if r in arms
                else one.runtime.start(one.task.init(jax.random.key(one.config.seed)))
                for r, one in enumerate(made)
            ]
            together = Batched([prepared.runtime for prepared in made])
            _train(arms, together, states, checkpoint_seconds)
        return [recorder.summary for recorder in recorders]


def _train(
    arms: Mapping[int, Arm], together: Batched, states: list, checkpoint_seconds: float
) -> None:
    """Train all arms to their ends, side by side; each writes its summary when it is there.

    arms: those that are left, by their places among the `states` of all.
    """
    batch, saver = together.stack(states), Saver(checkpoint_seconds)
    budgets = {n: _budget_or_end(arm, saver) for n, arm in arms.items()}
    while any(budgets.values()):
        batch = together.observed(batch, states)
        limits = [budgets.get(n) or (0.0, 0) for n in range(len(states))]
        batch, schedules = together.advance(batch, *zip(*limits, strict=True))
        for n, arm in arms.items():
            if budgets[n] is not None:
                arm.take(together.one(batch, n), schedules[n])
                states[n], budgets[n] = arm.state, _budget_or_end(arm, saver)
        if any(budgets.values()):
            saver.save([arm for n, arm in arms.items() if budgets[n] is not None])


def _budget_or_end(arm: Arm, saver: "Saver") -> tuple[float, int] | None:
    """Return `arm.budget()`; the summary is written when there is none."""
    budget = arm.budget()
    if budget is None:
        saver.end(arm)
    return budget


def _opened(workdir, config: ConfigDict, overwrite: bool) -> records.Recorder:
    """Open the records of a run, which the first process writes."""
    return records.start(workdir, config, overwrite, writes=distributed.is_writer())


def _begun(
    config: ConfigDict,
    prepared: Prepared,
    recorder: records.Recorder,
    on_record: Callable[[dict], None],
    on_note: Callable[[str], None],
    checkpoint: Checkpoint | None,
) -> Arm:
    """Return the arm from its checkpoint, or from its start for None."""
    arm = Arm(config, prepared, recorder, on_record, checkpoint)
    if checkpoint is not None:
        on_note(f"goes on at update {arm.state.update}")
    return arm


# --- checkpoints on the way ---


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
        """Make a checkpoint of every arm if one is due; when all have theirs, remove older ones.

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
    """Return the checkpoint from which each run of a group goes on; None: its start.

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
            finished = (Path(workdir) / records.SUMMARY).exists()
            raise Unreadable(" and ".join(str(e.path) for e in passed), passed[0].why, finished)
    for workdir, evaluation, note in zip(workdirs, evaluations, notes, strict=True):
        folder = checkpoints.folder_of(workdir)
        for path, error in unreadable.items():
            if path.parent == folder:
                note(f"{error.why}; goes on from {folder / str(evaluation)}, and it is removed")
        if evaluation is not None and distributed.is_writer():
            checkpoints.keep_only(workdir, evaluation)
    return found


def _usable(workdir: str | os.PathLike, evaluation: int) -> Checkpoint:
    """Return a checkpoint whose lines of metrics are those that there were; else Unreadable."""
    checkpoint = checkpoints.read(workdir, evaluation)
    try:
        if checkpoint.metrics not in ("", records.digest(workdir, checkpoint.records)):
            raise ValueError(f"workdir {workdir}: {records.METRICS} has been changed since")
    except ValueError as error:
        path = checkpoints.folder_of(workdir) / str(evaluation)
        raise Unreadable(path, str(error)) from error
    return checkpoint
