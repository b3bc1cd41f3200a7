"""One arm: train on the run's clock, write down what happens."""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments import parts, records, tasks
from experiments.prepare import Prepared, prepare
from runtimes import batched
from stragglers.schedule import Schedule, concatenate

# What it took to reach the target loss: field of the summary, column of the metrics.
TO_TARGET = {
    "seconds": "seconds",
    "updates": "update",
    "samples": "samples",
    "communication_seconds": "communication_seconds",
}


@jax.jit
def _mean_and_spread(models):
    """(mean model, (1/n) sum_i ||x_i - mean||^2) of models with a leading worker axis."""
    mean = jax.tree.map(lambda a: a.mean(0), models)
    squares = jax.tree.map(lambda a, m: jnp.sum((a - m[None]) ** 2), models, mean)
    return mean, jax.tree.reduce(jnp.add, squares) / jax.tree.leaves(models)[0].shape[0]


def run(
    config: ConfigDict,
    workdir,
    *,
    overwrite: bool = False,
    on_record: Callable[[dict], None] = lambda record: None,
) -> dict:
    """Train one arm and return its summary; `workdir` gets config, metrics, summary, schedule.

    on_record: called with every metrics record as it is written.
    Raises ValueError, before anything is compiled or written, for a config that cannot run or a
    workdir that belongs to another config. An arm that has finished is not run again.
    """
    arm = prepare(config)
    with records.start(workdir, config, overwrite=overwrite) as recorder:
        if recorder.finished:
            return recorder.summary
        state = arm.runtime.start(arm.task.init(jax.random.key(config.seed)))
        training = _training(config, arm, recorder, on_record, state)
        request = next(training)
        while not isinstance(request, dict):
            request = training.send(arm.runtime.advance(*request))
        return request


def run_together(
    configs: Sequence[ConfigDict],
    workdirs: Sequence,
    *,
    overwrite: bool = False,
    on_record: Sequence[Callable[[dict], None]] | None = None,
) -> list[dict]:
    """Train arms that differ only in data as one compiled program; otherwise as `run` does.

    See `alike` for which arms these are. Times on the wall are those of all together.
    """
    arms = [prepare(config) for config in configs]
    tell = on_record or [lambda record: None] * len(arms)
    with contextlib.ExitStack() as opened:
        recorders = [
            opened.enter_context(records.start(workdir, config, overwrite=overwrite))
            for workdir, config in zip(workdirs, configs, strict=True)
        ]
        going = [r for r, recorder in enumerate(recorders) if not recorder.finished]
        summaries = {
            r: recorder.summary for r, recorder in enumerate(recorders) if recorder.finished
        }
        if going:
            together = batched.batched([arms[r].runtime for r in going])
            batch = together.start(
                [arms[r].task.init(jax.random.key(configs[r].seed)) for r in going]
            )
            trainings = [
                _training(configs[r], arms[r], recorders[r], tell[r], together.one(batch, n))
                for n, r in enumerate(going)
            ]
            requests = [next(training) for training in trainings]
            while any(not isinstance(request, dict) for request in requests):
                plans, seconds, updates = list(batch.plans), [0.0] * len(going), [0] * len(going)
                for n, request in enumerate(requests):
                    if not isinstance(request, dict):
                        state, seconds[n], updates[n] = request
                        plans[n] = state.plan  # it may have been told of the loss
                batch, rows = together.advance(batch._replace(plans=plans), seconds, updates)
                for n, request in enumerate(requests):
                    if not isinstance(request, dict):
                        requests[n] = trainings[n].send((together.one(batch, n), rows[n]))
            summaries |= dict(zip(going, requests, strict=True))
    return [summaries[r] for r in range(len(arms))]


def _training(
    config: ConfigDict, arm: Prepared, recorder: records.Recorder, on_record, state
) -> Generator[tuple | dict, tuple, None]:
    """Train from `state`: asks for (state, seconds, updates) and is sent (state, schedule or None).

    What it yields last is the summary.
    """
    began = time.monotonic()
    task, runtime = arm.task, arm.runtime
    history: list[Schedule] = []
    sent = communicated = 0.0

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

    last = record(0.0, 0, 0)
    state = runtime.observe(state, 0.0, last["train_loss"])
    steps = math.ceil(config.seconds / config.evaluate_every)
    for step in range(1, steps + 1):
        until = min(step * config.evaluate_every, config.seconds)
        state, schedule = yield state, until, config.updates - state.update
        if schedule is None and runtime.clock == "wall":
            continue  # the last dispatch has run past this evaluation already
        if schedule is not None:
            history.append(schedule)
            sent += float(arm.algorithm.wire_bytes(arm.shapes, schedule).sum())
            communicated += float(schedule.communication.sum()) / config.workers
        seconds = until if runtime.clock == "virtual" else state.seconds
        if schedule is not None and state.update >= config.updates:
            seconds = float(schedule.time[-1])  # the budget of updates ended before `until`
        # Asked before the rule is told of the loss, when it forgets what it had planned.
        ended = schedule is None and runtime.clock == "virtual" and state.exhausted
        last = record(seconds, state.update, state.samples)
        state = runtime.observe(state, seconds, last["train_loss"])
        if state.update >= config.updates or not math.isfinite(last["train_loss"]):
            break
        reached = config.target_loss is not None and last["train_loss"] <= config.target_loss
        if config.stop_at_target and reached:
            break
        if ended:
            break  # a replayed schedule has come to its end
    schedule = concatenate(history) if history else None
    if schedule is not None:
        schedule.save(recorder.workdir / records.SCHEDULE)
    metrics = records.read_metrics(recorder.workdir)
    summary = {
        "name": config.name,
        "baseline": config.baseline,
        "algorithm": parts.spec(config.algorithm)["name"],
        "wait": parts.spec(config.wait)["name"],
        "runtime": config.runtime,
        "workers": config.workers,
        "seed": config.seed,
        "clock": runtime.clock,
        "target_loss": config.target_loss,
        **{
            f"{name}_to_target": records.at_target(metrics, config.target_loss, column)
            for name, column in TO_TARGET.items()
        },
        "updates": last["update"],
        **{k: v for k, v in last.items() if k != "update"},
        **_worker_accuracy(task, runtime.models(state)),
        "final_train_loss": _tail_mean([entry["train_loss"] for entry in metrics]),
        "idle_fraction": None if schedule is None else schedule.idle_fraction,
        "staleness_mean": None if schedule is None else schedule.mean_staleness,
        "wall_seconds": time.monotonic() - began,
    }
    yield recorder.finish(summary)


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
