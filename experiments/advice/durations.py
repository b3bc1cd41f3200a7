"""The durations of mini-batches by worker, from a recorded run, a trace or a distribution.

A row of a schedule has `busy` seconds for `batches` mini-batches, which are taken to be equally
long. Too few durations are refused. A schedule whose rule cut work short is refused, too: only a
lower bound of a cut duration is known, and leaving out such durations would hide stragglers.
"""

import glob
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments import files, prepare, records, registry
from experiments.config_files import override
from stragglers.delays import Law
from stragglers.processes import Process, as_process, replayed
from stragglers.rule import Trigger
from stragglers.schedule import Schedule

LEAST = 50  # durations of all workers together
MOST_GAPS = 0.05  # share of a worker's time without rows in an asynchronous schedule
DRAWN = 1000  # durations per worker that are drawn from a distribution
AGAIN = "record a run with barrier or k_async"


class Measured(NamedTuple):
    """The measured durations of mini-batches [s] of every worker, in the order of measurement."""

    seconds: tuple[np.ndarray, ...]
    source: str  # the name of the source for a reader
    read: str = ""  # a trace's description of itself, on one line
    names: tuple[str, ...] = ()  # the names of the workers of a trace
    exchange: float = 0.0  # s of an exchange, if they were recorded

    @property
    def workers(self) -> int:
        """The number of measured workers."""
        return len(self.seconds)

    @property
    def digest(self) -> str:
        """The SHA-256 of all durations."""
        return hashlib.sha256(b"".join(values.tobytes() for values in self.seconds)).hexdigest()

    def name(self, worker: int) -> str:
        """Return the name of a worker in the trace, or its number if the trace has no names."""
        return self.names[worker] if self.names else f"{worker}"

    def process(self, repeat: int = 0) -> Process:
        """Return a process that replays the durations, resampled unless `repeat` is 0.

        A resample joins blocks of about sqrt(n) of a worker's n durations, so that slow spells stay
        together. All workers have blocks at the same places (Politis, Romano, 1992).
        """
        if repeat == 0:
            return replayed(self.source, self.seconds)
        rng = np.random.default_rng(np.random.SeedSequence(repeat))
        places = rng.random(max(map(len, self.seconds)))
        blocks = []
        for values in self.seconds:
            length = max(1, round(values.size**0.5))
            begins = (places[: -(-values.size // length)] * values.size).astype(int)
            at = (begins[:, None] + np.arange(length)).ravel()[: values.size]
            blocks.append(values[at % values.size])
        shortest = min(float(values.min()) for values in self.seconds)
        # One shortest duration, so that a rule is refused for all repeats or for none.
        return replace(replayed(self.source, blocks), shortest=shortest)


class Source(NamedTuple):
    """The durations, and the config for which rules are weighed."""

    measured: Measured
    config: ConfigDict  # as it was given or recorded
    command: list[str]  # the words that start the config
    delay: str | None = None  # a delay with these durations; "": the config's own; None: unknown
    parameters: Path | None = None  # the file of the parameters at the run's end


def read(
    text: str, config: ConfigDict | None, command: Sequence[str], trusted: Collection[str] = ()
) -> Source:
    """Return the source that a text names: a run's workdir, a schedule, a trace, a distribution.

    config: required unless the source is a run; it replaces the run's own config. command: words
    that start `config`, or python and the launcher. trusted: modules that a run's record may name.
    Raises ValueError for an unreadable source, too few durations or another number of workers.
    """
    path = Path(text)
    command, delay, parameters = list(command), None, None
    if is_there(text) and path.is_dir() and (holds_run(path) or not any(path.iterdir())):
        own, text = _recorded(path, trusted), f"{path}"
        schedule = records.read_schedule(path / records.SCHEDULE)
        simulated = as_simulated(own)
        trigger = prepare.rule(simulated, prepare.prepare(simulated)).trigger
        measured = of_schedule(schedule, text, trigger)
        measured = measured._replace(exchange=float(np.median(schedule.communication.max(axis=1))))
        if config is None:
            config, delay, command = own, "", [*command, f"--config={path / records.CONFIG}"]
        ended = path / records.PARAMETERS
        if ended.exists() and registry.spec(config.task) == registry.spec(own.task):
            parameters = ended
    else:
        made = None if path.suffix == ".npz" else delay_of(text)
        if config is None:
            raise ValueError(
                f"--advise={text} has durations and no config; give --config=..., whose task, "
                "method and number of workers the advice is for"
            )
        if made is None:
            measured = of_schedule(records.read_schedule(path), text)
        else:
            measured = of_delay(made, config.workers, config.seed, text)
            delay = registry.text(as_part(text))
    workers = len(measured.names) or measured.workers
    if workers != config.workers:
        raise ValueError(
            f"--advise={text} has {workers} workers, the config asks for {config.workers}; give "
            f"--config.workers={workers}, or durations of {config.workers} workers"
        )
    return Source(measured, config, command, delay, parameters)


def delay_of(text: str) -> Law | Process:
    """Return the delay of a trace or of a law; ValueError for a text that names neither."""
    part = as_part(text)
    try:
        return prepare.build_delay(part)
    except ValueError as error:
        if part is not text or "(" in text:
            raise
        raise ValueError(
            f"{text} is no directory, no file and no law ({error}); give the workdir of a run, a "
            "schedule.npz, a trace.csv, or a law as pareto(minimum=0.1, shape=2)"
        ) from error


def part_of(path: Path) -> registry.Part:
    """Return the delay that replays a file of `write`, whose durations are already checked."""
    return registry.part("trace", path=f"{path}", scale=1.0, in_step=True)


def as_part(text: str) -> registry.Part:
    """Return a text as a delay: a trace if the text is a file or a pattern of files."""
    found = is_there(text) or (glob.has_magic(text) and "(" not in text)
    return registry.part("trace", path=text) if found else text


def is_there(text: str) -> bool:
    """Return whether a text is the path of a file or folder; a law may be too long for a path."""
    try:
        return Path(text).expanduser().exists()
    except OSError:
        return False


def holds_run(path: Path) -> bool:
    """Return whether a folder holds a run or a sweep, and not a trace with a file per worker."""
    return (path / records.CONFIG).exists() or any(path.rglob(records.SCHEDULE))


def _recorded(path: Path, trusted: Collection[str]) -> ConfigDict:
    """Return the config of a run with a schedule; ValueError if one is missing or not trusted."""
    if not (path / records.CONFIG).exists():
        arms = [f"{one.parent}" for one in sorted(path.rglob(records.SCHEDULE))]
        several = f"; give one of its runs, as {arms[0]}" if arms else ""
        raise ValueError(f"{path} is a directory without a run's {records.CONFIG}{several}")
    config = records.read_config(path / records.CONFIG)
    registry.refuse_untrusted(config, trusted, path / records.CONFIG)
    if not (path / records.SCHEDULE).exists():
        raise ValueError(
            f"{path}: the run has no {records.SCHEDULE} yet, which is written as it goes "
            "on; wait for it, or give another run"
        )
    return config


def as_simulated(config: ConfigDict, exchange: float = 0.0) -> ConfigDict:
    """Return the config for the simulator; a config without a delay gets one of 1 s.

    exchange: recorded seconds of an exchange, which replace config.communication if that is 0.
    """
    changes = {"runtime": "simulate", "devices": 1, "draw": "mini_batch"}
    if exchange and config.communication == 0:
        changes["communication"] = float(f"{exchange:.3g}")
    if config.delay.name == prepare.NO_DELAY:
        changes["delay"] = registry.part("deterministic", value=1.0)
    return override(config, changes)


def budget(source: Source) -> float:
    """Return the budget [s]: config.seconds, scaled to the durations if the config has a delay."""
    config = source.config
    if config.delay.name == prepare.NO_DELAY:
        return config.seconds
    workers = min(config.workers, source.measured.workers)
    own = of_delay(prepare.build_delay(config.delay), workers, config.seed, "delay")
    measured, expected = (
        np.mean([values[:DRAWN].mean() for values in one.seconds[:workers]])
        for one in (source.measured, own)
    )
    return float(config.seconds * measured / expected)


def checked(measured: Measured) -> Measured:
    """Return `measured`; ValueError if workers or durations are too few to play rules over."""
    count = sum(map(len, measured.seconds))
    if measured.workers < 2:
        raise ValueError(f"{measured.source}: has the durations of one worker, and a waiting rule "
                         "is about several; record a run of at least 2 workers")  # fmt: skip
    if not all(map(len, measured.seconds)):
        raise ValueError(f"{measured.source}: a worker finished no mini-batch; record a run in "
                         "which every worker takes part")  # fmt: skip
    if count < LEAST:
        raise ValueError(f"{measured.source}: has {count} durations, and fewer than {LEAST} say "
                         "little about stragglers; record a longer run")  # fmt: skip
    return measured


def of_delay(delay: Law | Process, workers: int, seed: int, source: str) -> Measured:
    """Return the records of a trace, or DRAWN successive draws per worker from a distribution."""
    process = as_process(delay).seeded(seed)
    drawn = process.records
    if not drawn:
        worker, now, drawn = np.arange(workers), np.zeros(workers), np.empty((workers, DRAWN))
        for count in range(DRAWN):
            drawn[:, count] = process.duration(worker, now, count)
            now = now + drawn[:, count]
    return checked(Measured(tuple(drawn), source, process.read, process.names, process.exchange))


def of_schedule(schedule: Schedule, source: str, trigger: Trigger | None = None) -> Measured:
    """Return the durations of a recorded schedule; ValueError if its rule cut any of them short.

    A worker that spent over MOST_GAPS of its time on work without rows is refused, too. trigger:
    the trigger of the schedule's rule; None: the rule has no trigger, or is unknown. Such a rule is
    taken to cut if any row has a worker that was busy and finished nothing.
    """
    workers = schedule.all_workers
    full, goes_on = schedule.batches.max(initial=1), False
    cuts = ((schedule.busy > 0) & (schedule.batches == 0)).any()
    if trigger is not None:
        full = trigger.mini_batches if trigger.whole is None else trigger.whole
        cuts = trigger.cuts
        goes_on = (np.asarray(trigger.mini_batches) > full).any()  # works after a push, until a cut
    real = (schedule.busy > 0) & (schedule.workers < workers)
    planned = np.append(np.broadcast_to(full, workers), 0)[schedule.workers]  # 0: nobody
    short = real & (schedule.batches < planned)
    # A row does not have the cancelled work of workers that had begun before the last push.
    pushed = (schedule.start + schedule.busy).max(axis=1)
    landed = np.append(schedule.start[0].min(), schedule.finish.max(axis=1)[:-1])
    gathered = not schedule.staleness.any() and schedule.partner is None
    cancels = gathered and schedule.workers.shape[1] < workers and (pushed > landed).any()
    if goes_on or cancels or (cuts and short.any()):
        raise ValueError(
            f"{source}: its rule cut mini-batches short, so that nobody knows how slow the slowest "
            f"ones are; {AGAIN}"
        )
    row, position = np.nonzero(real & (schedule.batches > 0))
    order = np.argsort(schedule.start[row, position], kind="stable")
    worker, busy, batches = (column[row, position][order] for column in
                             (schedule.workers, schedule.busy, schedule.batches))  # fmt: skip
    seconds, who = np.repeat(busy / batches, batches), np.repeat(worker, batches)
    measured = checked(Measured(tuple(seconds[who == i] for i in range(workers)), source))
    is_stale = schedule.staleness[schedule.batches > 0].any()
    stayed = np.setdiff1d(np.arange(workers), [event.worker for event in schedule.events])
    for i in stayed if is_stale else ():  # their time without rows went into lost work
        mine = schedule.workers == i
        start, finish = schedule.start[mine], schedule.finish[mine]
        known = (finish - start).sum() / (finish.max() - start.min())
        if known < 1 - MOST_GAPS:
            raise ValueError(
                f"{source}: {1 - known:.0%} of the time of worker {i} went into work that was "
                f"ignored or interrupted, of which the schedule has no row; {AGAIN}"
            )
    return measured


def write(measured: Measured, path: str | Path, repeat: int = 0) -> None:
    """Write the durations (see `Measured.process`) as a CSV file that the delay `trace` reads."""
    every = enumerate(measured.process(repeat).records)
    lines = ["worker,time,batch_time", *(f"{i},{count},{seconds!r}" for i, values in every
                                         for count, seconds in enumerate(values.tolist()))]
    files.write(path, "\n".join(lines) + "\n", durable=False)
