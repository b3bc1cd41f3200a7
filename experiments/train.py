"""Train arms, one or several that make one program, and go on with those that were cut off.

A run that was cut off at any moment goes on from its last checkpoint when it is asked for again. On
several processes the first one writes, and all of them read, so that they share the workdir.
"""

import contextlib
import time
from collections.abc import Callable, Sequence

import jax
from ml_collections import ConfigDict

from experiments import checkpoints, distributed, records
from experiments.prepare import Prepared, prepare
from experiments.training import Request, training
from runtimes import batched


def run(
    config: ConfigDict,
    workdir,
    *,
    overwrite: bool = False,
    on_record: Callable[[dict], None] = lambda record: None,
    checkpoint_seconds: float = 30.0,
) -> dict:
    """Train one arm and return its summary; `workdir` gets what `records` lists.

    on_record: called with every metrics record as it is written. checkpoint_seconds: on the wall,
    from one checkpoint to the next evaluation that makes one.
    Raises ValueError, before anything is compiled or written, for a config that cannot run or a
    workdir that belongs to another config. An arm that has finished is not run again.
    """
    arm = prepare(config)
    with _opened(workdir, config, overwrite) as recorder:
        if recorder.finished:
            return recorder.summary
        (evaluation,) = distributed.agreed(checkpoints.resumable([workdir]))
        state, checkpoint = _begun(config, arm, recorder, evaluation)
        steps = training(config, arm, recorder, on_record, state, checkpoint)
        request, due = next(steps), _timer(checkpoint_seconds)
        while isinstance(request, Request):
            request = steps.send(arm.runtime.advance(*request[:3]))
            if isinstance(request, Request) and due():
                _save([recorder], [request])
        return request


def run_together(
    configs: Sequence[ConfigDict],
    workdirs: Sequence,
    *,
    overwrite: bool = False,
    on_record: Sequence[Callable[[dict], None]] | None = None,
    checkpoint_seconds: float = 30.0,
) -> list[dict]:
    """Train arms that differ only in data as one compiled program; otherwise as `run` does.

    See `alike` for which arms these are. Times on the wall are those of all together.
    """
    arms = [prepare(config) for config in configs]
    tell = on_record or [lambda record: None] * len(arms)
    with contextlib.ExitStack() as opened:
        recorders = [
            opened.enter_context(_opened(workdir, config, overwrite))
            for workdir, config in zip(workdirs, configs, strict=True)
        ]
        going = [r for r, recorder in enumerate(recorders) if not recorder.finished]
        summaries = {
            r: recorder.summary for r, recorder in enumerate(recorders) if recorder.finished
        }
        if going:
            together = batched.batched([arms[r].runtime for r in going])
            evaluations = checkpoints.resumable([workdirs[r] for r in going])
            begun = [
                _begun(configs[r], arms[r], recorders[r], evaluation)
                for r, evaluation in zip(going, evaluations, strict=True)
            ]
            batch = together.stack([state for state, _ in begun])
            trainings = [
                training(configs[r], arms[r], recorders[r], tell[r], *begun[n])
                for n, r in enumerate(going)
            ]
            requests, due = [next(steps) for steps in trainings], _timer(checkpoint_seconds)
            while open_ := [n for n, q in enumerate(requests) if isinstance(q, Request)]:
                plans, seconds, updates = list(batch.plans), [0.0] * len(going), [0] * len(going)
                for n in open_:
                    state, seconds[n], updates[n], _ = requests[n]
                    plans[n] = state.plan  # it may have been told of the loss
                batch, rows = together.advance(batch._replace(plans=plans), seconds, updates)
                for n in open_:
                    requests[n] = trainings[n].send((together.one(batch, n), rows[n]))
                open_ = [n for n in open_ if isinstance(requests[n], Request)]
                if open_ and due():
                    _save([recorders[going[n]] for n in open_], [requests[n] for n in open_])
            summaries |= dict(zip(going, requests, strict=True))
    return [summaries[r] for r in range(len(arms))]


def _opened(workdir, config: ConfigDict, overwrite: bool) -> records.Recorder:
    """The records of a run, which the first process writes; those of a finished one are tidy."""
    recorder = records.start(workdir, config, overwrite, writes=distributed.is_writer())
    if recorder.finished and recorder.writes:
        checkpoints.remove(workdir)  # the run was cut off just before it would have done so
    return recorder


def _begun(config: ConfigDict, arm: Prepared, recorder: records.Recorder, evaluation: int | None):
    """The state to train from and the checkpoint that it is from, None at the start."""
    state = arm.runtime.start(arm.task.init(jax.random.key(config.seed)))
    if evaluation is None:
        return state, None
    checkpoint = checkpoints.read(recorder.workdir, evaluation)
    if recorder.writes:
        checkpoints.keep_only(recorder.workdir, evaluation)
    return arm.runtime.unpack(state, checkpoint.packed), checkpoint


def _timer(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds have passed since this was last true; the same on all processes."""
    last = time.monotonic()

    def due() -> bool:
        nonlocal last
        passed = distributed.agreed(time.monotonic() - last >= seconds)
        if passed:
            last = time.monotonic()
        return passed

    return due


def _save(recorders: Sequence[records.Recorder], requests: Sequence[Request]) -> None:
    """A checkpoint of every run, and only when all have theirs, no older ones."""
    made = [request.checkpoint() for request in requests]  # on all processes
    for recorder, checkpoint in zip(recorders, made, strict=True):
        if recorder.writes:
            checkpoints.save(recorder.workdir, checkpoint)
    for recorder, checkpoint in zip(recorders, made, strict=True):
        if recorder.writes:
            checkpoints.keep_only(recorder.workdir, checkpoint.evaluation)
