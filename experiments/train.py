"""The training of one arm, or of several arms as one program, and the resumption of such runs.

A run that was interrupted at any moment resumes from its last checkpoint when it is started again.
In virtual time a resumed run ends bit for bit like an uninterrupted one, as its clock replays the
recorded evaluations with their losses. If a run has several processes, process 0 writes and all
processes read, so that they need a shared workdir.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from comms import messages
from comms.trees import Tree
from experiments import (
    checkpoints,
    distributed,
    endings,
    files,
    prepare,
    records,
    registry,
    tasks,
)
from experiments.checkpoints import Checkpoint, Unreadable
from experiments.prepare import Prepared
from runtimes import packing, phases
from runtimes.base import Run
from runtimes.simulate import ANOTHER_CLOCK, Batched
from stragglers.schedule import Schedule, concatenate
from stragglers.slow_worker import ENTRIES, Watch

# The costs of reaching the target loss: beginning of a field of the summary -> column of metrics.
TO_TARGET = {
    "seconds": "seconds", "updates": "update", "samples": "samples",
    "communication_seconds": "communication_seconds",
}  # fmt: skip


def run(
    config: ConfigDict,
    workdir,
    *,
    overwrite: bool = False,
    on_record: Callable[[dict], None] = lambda record: None,
    on_note: Callable[[str], None] = lambda text: None,
    checkpoint_seconds: float = 30.0,
    shared: prepare.LastTask | None = None,
) -> dict:
    """Train one arm, write the files of `records` to `workdir`, and return the summary.

    on_record: called with every metrics record when it is written. on_note: called with a sentence
    on the checkpoint of a resumed run. checkpoint_seconds: the least wall time between checkpoints,
    which are made at evaluations; infinite: none is made, and the run cannot be trained longer.
    shared: holder of the task of the arm before, which this run uses if it has the same one.
    Raises ValueError, before anything is compiled or written, for a config that cannot run or a
    workdir of another config. A finished arm is not run again, but trained longer if `seconds` or
    `updates` are larger than before.
    """
    (summary,) = run_together(
        [config], [workdir], overwrite=overwrite, on_record=[on_record], on_note=[on_note],
        checkpoint_seconds=checkpoint_seconds, shared=shared,
    )  # fmt: skip
    return summary


def run_together(
    configs: Sequence[ConfigDict],
    workdirs: Sequence,
    *,
    overwrite: bool = False,
    on_record: Sequence[Callable[[dict], None]] | None = None,
    on_note: Sequence[Callable[[str], None]] | None = None,
    checkpoint_seconds: float = 30.0,
    shared: prepare.LastTask | None = None,
) -> list[dict]:
    """Train arms that differ only in data as one compiled program; see `run` for the arguments.

    `prepare.alike` decides which arms can do so. Wall times count all arms together.
    """
    shared, places = shared or prepare.LastTask(), [Path(workdir) for workdir in workdirs]
    made = [
        # The profile that was measured when the run began is used again.
        shared.prepare(config, settled=True, kept=None if overwrite else place / records.PROFILE)
        for config, place in zip(configs, places, strict=True)
    ]
    hooks = on_record or [lambda record: None] * len(made)
    notes = on_note or [lambda text: None] * len(made)
    with contextlib.ExitStack() as opened:
        recorders = [
            opened.enter_context(
                records.Recorder(place, prepared.config, overwrite, writes=distributed.is_writer())
            )
            for place, prepared in zip(places, made, strict=True)
        ]
        opened.enter_context(endings.deferred())
        for prepared in made:
            opened.enter_context(contextlib.closing(prepared.runtime))
        going = [n for n, recorder in enumerate(recorders) if not recorder.finished]
        for n in going:
            profile, path = made[n].profile, places[n] / records.PROFILE
            if recorders[n].writes and profile is not None and not path.exists():
                prepare.PROFILING["save"](path, profile)
        found = newest([places[n] for n in going], [notes[n] for n in going])
        arms = {
            n: Arm(made[n], recorders[n], hooks[n], notes[n], checkpoint)
            for n, checkpoint in zip(going, found, strict=True)
        }
        if arms:
            _train(arms, made, checkpoint_seconds)
            if (number := distributed.asked_to_end()) is not None:
                endings.end(number)
        return [recorder.summary for recorder in recorders]


def _train(
    arms: "Mapping[int, Arm]", made: Sequence[Prepared], checkpoint_seconds: float
) -> None:
    """Train arms side by side to their ends; each arm writes its summary at its own end.

    arms: the unfinished arms by their places in `made`. A finished arm keeps its place by a run
    without updates, as the number of runs of a program changes its rounding.
    """
    if len(made) > 1:
        together = Batched([one.runtime for one in made])
        states = [
            arms[n].state if n in arms else one.runtime.start(_initial(one))
            for n, one in enumerate(made)
        ]
        batch = together.stack(states)
    keeps, saved = math.isfinite(checkpoint_seconds), time.monotonic()
    going = _going(arms, keeps)
    while going:
        if len(made) == 1:
            (arm,) = going.values()
            arm.take(*made[0].runtime.advance(arm.state, *arm.budget()))
        else:
            batch = together.observed(batch, states)
            limits = [going[n].budget() if n in going else (0.0, 0) for n in range(len(made))]
            batch, schedules = together.advance(batch, *zip(*limits, strict=True))
            for n, arm in going.items():
                arm.take(together.one(batch, n), schedules[n])
                states[n] = arm.state
        going = _going(going, keeps)
        if not going:
            return
        asked = distributed.asked_to_end()
        due = distributed.agreed(time.monotonic() - saved >= checkpoint_seconds)
        if due or asked is not None:
            _save([*going.values()])
            saved = time.monotonic()
        if asked is not None:
            distributed.agreed(None)  # process 0 has written it
            endings.end(asked)


def _going(arms: "Mapping[int, Arm]", keeps: bool) -> "dict[int, Arm]":
    """Return the arms that train on; write the last checkpoint and the summary of the others.

    keeps: whether a checkpoint of the end is kept, for longer training; else older ones go, too.
    """
    for arm in (arm for arm in arms.values() if arm.budget() is None):
        if keeps and not arm.resumed_at_end:
            _save([arm])
        arm.end()
        if not keeps and arm.recorder.writes:
            checkpoints.keep_only(arm.recorder.workdir, None)
    return {n: arm for n, arm in arms.items() if arm.budget() is not None}


@phases.within(phases.CHECKPOINT)
def _save(arms: "Sequence[Arm]") -> None:
    """Make a checkpoint of every arm; when all arms have theirs, remove the older ones."""
    made = [(arm.recorder, arm.checkpoint()) for arm in arms]  # on all processes
    for recorder, checkpoint in made:
        if recorder.writes or checkpoints.is_divided(checkpoint):
            checkpoints.write(recorder.workdir, checkpoint)
    for recorder, checkpoint in made:
        if recorder.writes:
            checkpoints.keep_only(recorder.workdir, checkpoint.evaluation)


def _initial(prepared: Prepared) -> Tree:
    """Return the parameters with which a run begins."""
    return prepared.task.init(jax.random.key(prepared.config.seed))


def newest(
    workdirs: Sequence[str | os.PathLike], notes: Sequence[Callable[[str], None]]
) -> list[Checkpoint | None]:
    """Return the checkpoint from which each run of a group resumes; None: the run starts anew.

    An unreadable checkpoint is replaced by an older one, with a sentence to the run's function in
    `notes`. Raises Unreadable, with nothing removed, if a run has only unreadable checkpoints.
    """
    there = [sorted(checkpoints.numbers(workdir), reverse=True) for workdir in workdirs]
    read = [
        {number: _read(workdir, number) for number in numbers}
        for workdir, numbers in zip(workdirs, distributed.agreed(there), strict=True)
    ]
    usable = [{n for n, one in own.items() if isinstance(one, Checkpoint)} for own in read]
    runs = list(zip(workdirs, read, checkpoints.resumable(usable), notes, strict=True))
    for workdir, own, number, _ in runs:
        if own and number is None:
            errors, finished = [*own.values()], (Path(workdir) / records.SUMMARY).exists()
            paths = " and ".join(str(error.path) for error in errors)
            raise Unreadable(paths, errors[0].why, finished)
    for workdir, own, number, note in runs:
        for passed in (one for n, one in own.items() if n > number):
            if isinstance(passed, Unreadable):
                path = checkpoints.folder_of(workdir) / str(number)
                note(f"{passed.why}; goes on from {path}, and it is removed")
        if own and distributed.is_writer():
            checkpoints.keep_only(workdir, number)
    return [own.get(number) for _, own, number, _ in runs]


def _read(workdir: str | os.PathLike, number: int) -> Checkpoint | Unreadable:
    """Return a checkpoint that all processes can read, whose metrics are there; else the error."""
    path = checkpoints.folder_of(workdir) / str(number)
    try:
        found = checkpoints.read(workdir, number)
        if found.metrics not in ("", records.digest(workdir, found.records)):
            raise ValueError(f"workdir {workdir}: {records.METRICS} has been changed since")
    except ValueError as error:
        found = error if isinstance(error, Unreadable) else Unreadable(path, str(error))
    fails = isinstance(found, Unreadable)
    if packing.of_all(np.array([fails])).any() and not fails:
        return Unreadable(path, f"checkpoint {path} cannot be read by another process")
    return found


# --- one arm on its clock ---


@jax.jit
def _mean_and_spread(models):
    """Return (mean model, (1/n) sum_i ||x_i - mean||^2) of models with a leading worker axis."""
    mean = jax.tree.map(lambda a: a.mean(0), models)
    squares = jax.tree.map(  # short floats would overflow
        lambda a, m: jnp.sum((a - m[None]).astype(jnp.promote_types(a.dtype, jnp.float32)) ** 2),
        models,
        mean,
    )
    return mean, jax.tree.reduce(jnp.add, squares) / jax.tree.leaves(models)[0].shape[0]


@jax.jit
def _moved(models, start):
    """Return whether any model, along a leading worker axis, differs from the initial model."""
    differs = jax.tree.map(lambda a, b: jnp.any(a != b[None]), models, start)
    return jnp.any(jnp.stack(jax.tree.leaves(differs)))


class Arm:
    """The training of one arm on any runtime, from one evaluation to the next.

        while (budget := arm.budget()) is not None:
            arm.take(*runtime.advance(arm.state, *budget))
        summary = arm.end()

    state: the run of the runtime, which `advance` consumes and `take` replaces.
    recorder: the writer of the arm's records; the constructor opens its metrics.
    """

    def __init__(
        self,
        prepared: Prepared,
        recorder: records.Recorder,
        on_record: Callable[[dict], None],
        on_note: Callable[[str], None],
        checkpoint: Checkpoint | None,
    ):
        """Begin the run, or resume it from `checkpoint`; on_record, on_note: see `run`."""
        self.recorder = recorder
        self._config, self._prepared, self._on_record = prepared.config, prepared, on_record
        self._runtime = prepared.runtime
        self._history: list[Schedule] = []
        own_links = prepare.own_links(prepared.config, prepared)
        self._watch = Watch(prepared.config.workers, prepared.rule.cuts_off, own_links)
        self._sent = self._communicated = self._waited = 0.0
        self._evaluation, self._ended, self.resumed_at_end = 0, False, False
        self._between: Schedule | None = None  # what has happened since the last evaluation
        self.state: Run = self._runtime.start(_initial(prepared))
        self._began = time.monotonic()
        if checkpoint is None:
            recorder.begin()
            self._look()
        else:
            recorder.begin(checkpoint.records)
            self._go_on(checkpoint)
            on_note(f"goes on at update {self.state.update}")

    def budget(self) -> tuple[float, int] | None:
        """Return the time of the next evaluation [s] and the run's remaining updates, or None."""
        evaluation = self._next()
        if self._ended or evaluation is None:
            return None
        return _until(self._config, evaluation), self._config.updates - self.state.update

    def take(self, state: Run, schedule: Schedule | None) -> None:
        """Take the state and schedule of `advance`, evaluate them and note whether the run ends."""
        self._evaluation, self.state = self._next(), state
        happened = [part for part in (self._between, schedule) if part is not None]
        schedule, self._between = concatenate(happened) if happened else None, None
        if schedule is not None:
            self._history.append(schedule)
            self._watch.take(schedule)
            sent = messages.sent_bytes(self._prepared.algorithm, self._prepared.shapes, schedule)
            self._sent += float(sent.sum())
            self._communicated += float(schedule.communication.sum()) / self._config.workers
        self._look()
        self._ended |= self._is_over(schedule is None)

    def _is_over(self, waited: bool) -> bool:
        """Return whether the last evaluation ends the run; waited: it had no new update."""
        target, loss = self._config.target_loss, self._last["train_loss"]
        return (
            self.state.update >= self._config.updates
            or (self._config.stop_at_target and target is not None and loss <= target)
            or (waited and self.state.exhausted)
        )

    @phases.within(phases.EVALUATION)
    def _look(self) -> None:
        """Evaluate, write a record, and pass the loss to the runtime.

        A loss that is not finite ends the run.
        """
        mean, distance = jax.device_get(_mean_and_spread(self._runtime.models(self.state)))
        measured = self._runtime.measured(self.state)
        if "input_wait_seconds" in measured:
            measured["input_wait_seconds"] += self._waited  # before a resumption
        self._last = {
            "update": self.state.update,
            "samples": self.state.samples,
            "seconds": self.state.seconds,
            **tasks.evaluate(self._prepared.task, mean),
            "consensus_distance": float(distance),
            "bytes_per_worker": self._sent,
            "communication_seconds": self._communicated,
            **self._method_metrics(),
            **self._fallbacks(),
            **measured,
            **self._watch.metrics(),
            "wall_seconds": time.monotonic() - self._began,
        }
        self.recorder.append(self._last)
        self._on_record(self._last)
        loss = self._last["train_loss"]
        self._ended = not math.isfinite(loss)
        self.state = self._runtime.observe(self.state, self._last["seconds"], loss)

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of this moment, from which the run can resume."""
        config, recorder, replays = self._config, self.recorder, self._runtime.replays
        planned = self._evaluation * config.evaluate_every  # the time of a longer run's evaluation
        between = self.state.update >= config.updates or planned != _until(config, self._evaluation)
        # A rule must not see the loss of an evaluation that a longer run does not make.
        lines = len(recorder.records) - (between and replays)
        recorder.sync()  # the checkpoint relies on the metrics so far
        return Checkpoint(
            self._evaluation,
            lines,
            time.monotonic() - self._began,
            self._runtime.pack(self.state),
            concatenate(self._history) if self._history and not replays else None,
            between=between,
            metrics=records.digest(recorder.workdir, lines) if recorder.writes else "",
        )

    @phases.within(phases.CHECKPOINT)
    def end(self) -> dict:
        """Write the schedule, the mean model and the summary; return the summary."""
        config, last, metrics = self._config, self._last, self.recorder.records
        schedule = concatenate(self._history) if self._history else None
        models = self._runtime.models(self.state)
        if self.recorder.writes:
            place, (mean, _) = self.recorder.workdir, _mean_and_spread(models)
            if schedule is not None:
                with files.replacing(place / records.SCHEDULE) as file:
                    schedule.save(file)
            files.write_arrays(place / records.PARAMETERS, packing.pack({"params": mean}))
        stopped = None
        if not math.isfinite(last["train_loss"]):
            where = f"at update {last['update']}, {last['seconds']:.4g} s"
            stopped = f"training loss is not finite {where}"
        elif metrics[0]["train_loss"] == last["train_loss"]:
            stopped = self._standstill(schedule, models)
        summary = {
            "name": config.name,
            "baseline": config.baseline,
            "algorithm": config.algorithm.name,
            **({"decided": dict(decided)} if (decided := self._prepared.decided) else {}),
            "wait": config.wait.name,
            "runtime": config.runtime,
            "workers": config.workers,
            "seed": config.seed,
            "clock": self._runtime.clock,
            "stopped": stopped,
            "target_loss": config.target_loss,
            **{
                f"{name}_to_target": records.at_target(metrics, config.target_loss, column)
                for name, column in TO_TARGET.items()
            },
            "updates": last["update"],
            **{k: v for k, v in last.items() if k not in ("update", *ENTRIES)},
            "test_samples": tasks.tested(self._prepared.task),
            **tasks.worker_accuracy(self._prepared.task, models),
            "final_train_loss": _tail_mean([entry["train_loss"] for entry in metrics]),
            "idle_fraction": schedule
            and schedule.idle_share(self._prepared.rule.turnout.wastes),
            "staleness_mean": None if schedule is None else schedule.mean_staleness,
            **({} if schedule is None else prepare.kept(config, self._prepared, schedule)),
            "wall_seconds": time.monotonic() - self._began,
        }
        return self.recorder.finish(summary)

    def _standstill(self, schedule: Schedule | None, models) -> str | None:
        """Return why the run has trained nothing, or None if its parameters have moved."""
        config = self._config
        wait, delay = registry.text(config.wait), registry.text(config.delay)
        if schedule is None:
            return (
                f"no update was made in {self.state.seconds:.4g} s of {wait} with delay={delay} "
                f"and communication={registry.text(config.communication)}; give more seconds, or "
                "shorter delays"
            )
        if _moved(models, jax.device_get(_initial(self._prepared))):
            return None
        start = f"the parameters never moved in {self.state.update} updates"
        if not schedule.batches.any():
            return (
                f"{start}: under {wait} with delay={delay} no mini-batch was finished; give rounds "
                "more time"
            )
        missing = set(range(config.workers)) - set(schedule.workers[schedule.batches > 0].tolist())
        if missing:
            return (
                f"{start}: worker {min(missing)} delivered in none of them under {wait}, and "
                f"{config.algorithm.name} may wait for all; take a rule that takes everybody "
                "along, as k_async, or make more updates"
            )
        return (
            f"{start}: gradients or the learning rate are 0, or {config.algorithm.name} has yet to "
            "make its first step"
        )

    def _go_on(self, checkpoint: Checkpoint) -> None:
        """Restore the state, the history and the counters of the run from a checkpoint."""
        metrics = self.recorder.records
        losses = [entry["train_loss"] for entry in metrics]  # None: it was not finite
        losses = [math.nan if loss is None else loss for loss in losses]
        observed = list(zip([entry["seconds"] for entry in metrics], losses, strict=True))
        packed = checkpoint.packed
        if checkpoint.bring is not None:
            packed = checkpoint.bring(self._runtime.pack(self.state))
        self.state, happened = self._runtime.resume(self.state, packed, observed)
        if not self._runtime.replays:
            happened = checkpoint.schedule
        else:
            times = () if happened is None else happened.time
            if np.searchsorted(times, metrics[-1]["seconds"], "right") != metrics[-1]["update"]:
                raise ValueError(ANOTHER_CLOCK)
        self._last = metrics[-1] | {"train_loss": losses[-1]}
        self._evaluation = checkpoint.evaluation - checkpoint.between
        if happened is not None:
            known = self._last["update"] - happened.offset
            self._history = [happened.slice(0, known)] if known else []
            for schedule in self._history:
                self._watch.take(schedule)
            if known < happened.updates:
                self._between = happened.slice(known, happened.updates)
        self._sent = self._last.get("planned_bytes_per_worker", self._last["bytes_per_worker"])
        self._communicated = self._last["communication_seconds"]
        self._waited = self._last.get("input_wait_seconds", 0.0)
        self._began -= checkpoint.wall_seconds
        if self._between is None:
            waited = len(metrics) > 1 and metrics[-2]["update"] == self._last["update"]
            self._ended = not math.isfinite(losses[-1]) or self._is_over(waited)
        self.resumed_at_end = self.budget() is None

    def _next(self) -> int | None:
        """Return the number of the next evaluation that the clock has not passed, or None."""
        config, now = self._config, self.state.seconds
        passed = math.floor(min(now, config.seconds) / config.evaluate_every) - 1  # for rounding
        following = range(max(self._evaluation, passed) + 1, _evaluations(config) + 1)
        return next((e for e in following if _until(config, e) >= now), None)

    def _method_metrics(self) -> dict[str, float]:
        if self._prepared.algorithm.metrics is None:
            return {}
        memory = self._runtime.memory(self.state)
        measured = jax.device_get(self._prepared.algorithm.metrics(memory))
        measured = {name: float(value) for name, value in measured.items()}
        if "extra_messages_per_worker" in measured:
            # No clock contains messages that a worker has repeated: a schedule is made before the
            # training. If an exchange takes a fixed time, its messages take equal parts of it.
            count, size = (measured[f"extra_{what}_per_worker"] for what in ("messages", "bytes"))
            config, shapes = self._config, self._prepared.shapes
            if registry.is_number(config.communication):
                row = messages.Row(self._prepared.algorithm.settled)
                once = self._prepared.algorithm.messages(shapes, config.workers, row)
                seconds = count / len(once) * config.communication
            else:
                network = prepare.network(config, shapes)
                seconds = messages.extra_seconds(count, size, config.workers, network)
            measured["extra_seconds_per_worker"] = seconds
            measured["bytes_per_worker"] = self._sent + size
            measured["planned_bytes_per_worker"] = self._sent
        return measured

    def _fallbacks(self) -> dict[str, float | None]:
        """Return metrics of unplanned messages, which data cause and virtual clocks ignore.

        fallback_share: the share of updates with such messages. fallback_bytes: their bytes beyond
        the plan, which `bytes_per_worker` includes. fallback_seconds: their extra seconds, or None.
        """
        config, algorithm, shapes = self._config, *self._prepared[1:3]
        if algorithm.fallbacks is None:
            return {}
        pushed = bool(self._history) and messages.pushes(self._history[-1])
        row = messages.Row(algorithm.settled, pushed=pushed)
        found = algorithm.fallbacks(self._runtime.memory(self.state), shapes, config.workers, row)
        if not found.alternatives:
            return {}
        more, seconds = messages.fallback_bytes(found, config.workers, pushed), None
        if not registry.is_number(config.communication):
            network = prepare.network(config, shapes)
            seconds = messages.fallback_seconds(found, config.workers, network)
        # All workers that take part in an update fall back together, which may be a few workers.
        taking_part = sum(int((each.workers < config.workers).sum()) for each in self._history)
        several = taking_part / max(1, sum(each.updates for each in self._history))
        updates = found.updates * config.workers / (several or config.workers)
        return {
            "bytes_per_worker": self._sent + more,
            "planned_bytes_per_worker": self._sent,
            "fallback_bytes": more,
            "fallback_seconds": seconds,
            "fallback_share": updates / max(1, self.state.update),
        }


def _evaluations(config: ConfigDict) -> int:
    """Return the number of evaluations after the start; 2.1 s by 0.7 s are 3, despite rounding."""
    return max(1, math.ceil(config.seconds / config.evaluate_every - 1e-9))


def _until(config: ConfigDict, evaluation: int) -> float:
    """Return the time of an evaluation [s] on the run's clock."""
    last = evaluation >= _evaluations(config)
    return config.seconds if last else evaluation * config.evaluate_every


def _tail_mean(losses: list[float | None]) -> float | None:
    """Return the mean loss of the last tenth of the evaluations, as a single loss is noisy."""
    tail = losses[-max(1, len(losses) // 10) :]
    return None if None in tail else float(np.mean(tail))
