"""One arm: train on the run's clock, write down what happens.

On a virtual clock a training that goes on from a checkpoint ends bit for bit as if nothing had
happened: what the clock told until then is told again, with the losses from the metrics.
"""

import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from comms import messages
from experiments import checkpoints, parts, records, tasks
from experiments.prepare import Prepared
from runtimes import packing
from stragglers.schedule import Schedule, concatenate

# What it took to reach the target loss: field of the summary, column of the metrics.
TO_TARGET = {
    "seconds": "seconds",
    "updates": "update",
    "samples": "samples",
    "communication_seconds": "communication_seconds",
}


class Request(NamedTuple):
    """What a training asks for between two evaluations: go on from `state` until `seconds`."""

    state: Any  # of the runtime
    seconds: float
    updates: int  # at most
    checkpoint: Callable[[], checkpoints.Checkpoint]  # of this moment


@jax.jit
def _mean_and_spread(models):
    """(mean model, (1/n) sum_i ||x_i - mean||^2) of models with a leading worker axis."""
    mean = jax.tree.map(lambda a: a.mean(0), models)
    squares = jax.tree.map(lambda a, m: jnp.sum((a - m[None]) ** 2), models, mean)
    return mean, jax.tree.reduce(jnp.add, squares) / jax.tree.leaves(models)[0].shape[0]


def training(
    config: ConfigDict,
    arm: Prepared,
    recorder: records.Recorder,
    on_record: Callable[[dict], None],
    state,
    checkpoint: checkpoints.Checkpoint | None,
) -> Generator[Request | dict, tuple, None]:
    """Train from `state`: yields a Request and is sent (state, schedule or None).

    What it yields last is the summary.
    """
    began = time.monotonic() - (0.0 if checkpoint is None else checkpoint.wall_seconds)
    task, runtime = arm.task, arm.runtime
    history: list[Schedule] = []
    sent = communicated = 0.0
    evaluation, stopped = 0, None

    def method_metrics() -> dict:
        if arm.algorithm.metrics is None:
            return {}
        told = jax.device_get(arm.algorithm.metrics(runtime.memory(state)))
        return {name: float(value) for name, value in told.items()}

    def record(seconds: float, updates: int, samples: int) -> dict:
        mean, distance = jax.device_get(_mean_and_spread(runtime.models(state)))
        entry = {
            "update": updates,
            "samples": samples,
            "seconds": seconds,
            **tasks.evaluate(task, mean),
            "consensus_distance": float(distance),
            "bytes_per_worker": sent,
            "communication_seconds": communicated,
            **method_metrics(),
            "wall_seconds": time.monotonic() - began,
        }
        recorder.append(entry)
        on_record(entry)
        return entry

    def checkpoint_now() -> checkpoints.Checkpoint:
        happened = concatenate(history) if runtime.clock == "wall" and history else None
        return checkpoints.Checkpoint(
            evaluation,
            len(recorder.records),
            time.monotonic() - began,
            runtime.pack(state),
            happened,
        )

    if checkpoint is None:
        recorder.begin()
        last = record(0.0, 0, 0)
        state = runtime.observe(state, 0.0, last["train_loss"])
    else:
        recorder.begin(checkpoint.records)
        last, evaluation = recorder.records[-1], checkpoint.evaluation
        sent, communicated = last["bytes_per_worker"], last["communication_seconds"]
        if runtime.clock == "virtual":
            state, history = _forwarded(config, runtime, state, recorder.records)
        elif checkpoint.schedule is not None:
            history = [checkpoint.schedule]
    finite = math.isfinite(last["train_loss"])
    while finite and evaluation < _evaluations(config):
        until = _until(config, evaluation + 1)
        if runtime.clock == "wall" and state.seconds >= until:
            evaluation += 1  # the last dispatch has run past it already
            continue
        state, schedule = yield Request(state, until, config.updates - state.update, checkpoint_now)
        evaluation += 1
        if schedule is not None:
            history.append(schedule)
            sent += float(messages.sent_bytes(arm.algorithm, arm.shapes, schedule).sum())
            communicated += float(schedule.communication.sum()) / config.workers
        seconds = until if runtime.clock == "virtual" else state.seconds
        if schedule is not None and state.update >= config.updates:
            seconds = float(schedule.time[-1])  # the budget of updates ended before `until`
        # Asked before the rule is told of the loss, when it forgets what it had planned.
        ended = schedule is None and runtime.clock == "virtual" and state.exhausted
        last = record(seconds, state.update, state.samples)
        state = runtime.observe(state, seconds, last["train_loss"])
        finite = math.isfinite(last["train_loss"])
        if state.update >= config.updates:
            break
        reached = config.target_loss is not None and last["train_loss"] <= config.target_loss
        if config.stop_at_target and reached:
            break
        if ended:
            break  # a replayed schedule has come to its end
    if not finite:
        stopped = f"training loss is not finite at update {last['update']}, {last['seconds']:.4g} s"
    schedule = concatenate(history) if history else None
    models = runtime.models(state)
    mean, _ = _mean_and_spread(models)
    if recorder.writes:
        if schedule is not None:
            schedule.save(recorder.workdir / records.SCHEDULE)
        np.savez(recorder.workdir / records.PARAMETERS, **packing.pack({"params": mean}))
    metrics = recorder.records
    summary = {
        "name": config.name,
        "baseline": config.baseline,
        "algorithm": parts.spec(config.algorithm)["name"],
        "wait": parts.spec(config.wait)["name"],
        "runtime": config.runtime,
        "workers": config.workers,
        "seed": config.seed,
        "clock": runtime.clock,
        "stopped": stopped,
        "target_loss": config.target_loss,
        **{
            f"{name}_to_target": records.at_target(metrics, config.target_loss, column)
            for name, column in TO_TARGET.items()
        },
        "updates": last["update"],
        **{k: v for k, v in last.items() if k != "update"},
        **_worker_accuracy(task, models),
        "final_train_loss": _tail_mean([entry["train_loss"] for entry in metrics]),
        "idle_fraction": None if schedule is None else schedule.idle_fraction,
        "staleness_mean": None if schedule is None else schedule.mean_staleness,
        "wall_seconds": time.monotonic() - began,
    }
    summary = recorder.finish(summary)
    if recorder.writes:
        checkpoints.remove(recorder.workdir)
    yield summary


def _evaluations(config: ConfigDict) -> int:
    """How many follow the one at the start; 2.1 s every 0.7 s are 3, whatever floats say."""
    return max(1, math.ceil(config.seconds / config.evaluate_every - 1e-9))


def _until(config: ConfigDict, evaluation: int) -> float:
    """When an evaluation is made, on the run's clock."""
    last = evaluation >= _evaluations(config)
    return config.seconds if last else evaluation * config.evaluate_every


def _forwarded(config: ConfigDict, runtime, state, metrics: Sequence[dict]) -> tuple[Any, list]:
    """Take the clock to where `metrics` end, exactly as it got there: (state, schedules)."""
    history = []
    state = runtime.observe(state, 0.0, metrics[0]["train_loss"])
    for evaluation, entry in enumerate(metrics[1:], 1):
        state, schedule = runtime.skip(
            state, _until(config, evaluation), config.updates - state.update
        )
        history += [] if schedule is None else [schedule]
        state = runtime.observe(state, entry["seconds"], entry["train_loss"])
    return state, history


def _tail_mean(losses: list[float | None]) -> float | None:
    """The mean over the last tenth of the evaluations, as a single one is noisy."""
    tail = losses[-max(1, len(losses) // 10) :]
    return None if None in tail else float(np.mean(tail))


def _worker_accuracy(task: tasks.Task, models) -> dict:
    """The spread over workers: test accuracy of the worst and the best single model."""
    if task.correct is None:
        return {}

    @jax.jit
    def accuracies(models, examples):
        return jax.lax.map(lambda params: task.correct(params, examples).mean(), models)

    values = np.asarray(accuracies(models, jax.tree.map(jnp.asarray, task.test)))
    return {
        "test_accuracy_worst_worker": float(values.min()),
        "test_accuracy_best_worker": float(values.max()),
    }
