"""Train arms, one or several that make one program, and go on with those that were cut off.

A run that was cut off at any moment goes on from its last checkpoint when it is asked for again. On
several processes the first one writes, and all of them read, so that they share the workdir.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments import distributed, endings, records, saving
from experiments.checkpoints import Checkpoint
from experiments.prepare import Prepared, prepare, to_the_end
from experiments.saving import Saver
from experiments.training_loop import Arm
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
    config = to_the_end(config)
    prepared = prepare(config, settled=True)
    with (
        _opened(workdir, config, overwrite) as recorder,
        endings.deferred(),
        contextlib.closing(prepared.runtime),
    ):
        if recorder.finished:
            return recorder.summary
        (checkpoint,) = saving.newest([workdir], [on_note])
        arm = _begun(config, prepared, recorder, on_record, on_note, checkpoint)
        with Saver(checkpoint_seconds) as saver:
            while (budget := arm.budget()) is not None:
                arm.take(*prepared.runtime.advance(arm.state, *budget))
                if arm.budget() is not None:
                    saver.save([arm])
            summary = saver.end(arm)
        _end_if_asked()
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
    configs = [to_the_end(config) for config in configs]
    made: list[Prepared] = []
    for config in configs:  # whose tasks are the same
        made.append(prepare(config, made[0].task if made else None, settled=True))
    hooks = on_record or [lambda record: None] * len(configs)
    notes = on_note or [lambda text: None] * len(configs)
    with contextlib.ExitStack() as opened, endings.deferred():
        recorders = [
            opened.enter_context(_opened(workdir, config, overwrite))
            for workdir, config in zip(workdirs, configs, strict=True)
        ]
        going = [r for r, recorder in enumerate(recorders) if not recorder.finished]
        found = saving.newest([workdirs[r] for r in going], [notes[r] for r in going])
        arms = {
            r: _begun(configs[r], made[r], recorders[r], hooks[r], notes[r], checkpoint)
            for r, checkpoint in zip(going, found, strict=True)
        }
        if arms:
            states = [
                arms[r].state if r in arms else _start(configs[r], prepared)
                for r, prepared in enumerate(made)
            ]
            together = Batched([prepared.runtime for prepared in made])
            _train(arms, together, states, checkpoint_seconds)
        return [recorder.summary for recorder in recorders]


def _start(config: ConfigDict, prepared: Prepared) -> Any:
    """A run of no updates, in the place of an arm that has finished before.

    It trains nothing: how many runs a program has changes how it rounds, so that what goes on from
    a checkpoint needs as many as there were.
    """
    return prepared.runtime.start(prepared.task.init(jax.random.key(config.seed)))


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


def _budget_or_end(arm: Arm, saver: Saver) -> tuple[float, int] | None:
    """`arm.budget()`; the summary is written when there is none."""
    budget = arm.budget()
    if budget is None:
        saver.end(arm)
    return budget


def _opened(workdir, config: ConfigDict, overwrite: bool) -> records.Recorder:
    """The records of a run, which the first process writes."""
    return records.start(workdir, config, overwrite, writes=distributed.is_writer())


def _begun(
    config: ConfigDict,
    prepared: Prepared,
    recorder: records.Recorder,
    on_record: Callable[[dict], None],
    on_note: Callable[[str], None],
    checkpoint: Checkpoint | None,
) -> Arm:
    """The arm from its checkpoint, or from its start for None."""
    arm = Arm(config, prepared, recorder, on_record, checkpoint)
    if checkpoint is not None:
        on_note(f"goes on at update {arm.state.update}")
    return arm


def _end_if_asked() -> None:
    number = distributed.asked_to_end()
    if number is not None:
        endings.end(number)
