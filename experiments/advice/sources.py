"""Where durations come from: what `--advise` names, and the config that goes with it."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments import kinds, parts, prepare, records, waiting
from experiments.advice import durations
from experiments.config_files import override
from stragglers import schedule

SAMPLED = 1000  # durations of the config's own delay, for its mean


class Source(NamedTuple):
    """Durations with the config that rules are weighed for."""

    measured: durations.Measured
    config: ConfigDict  # as it was given or recorded
    command: list[str]  # that starts the config, without --config where that is of a record
    delay: str | None = None  # that repeats the durations; "": the config's own; None: none does


def read(
    text: str, config: ConfigDict | None, command: Sequence[str], trusted: Collection[str] = ()
) -> Source:
    """The source that a text names: the workdir of a run, a schedule, a trace, a law or a process.

    config: for anything but a run, which has its own; given, it replaces the run's. command: that
    starts it, or python and the launcher alone. trusted: modules that a run's record may name.
    Raises ValueError for what cannot be read, has too little in it, or names other workers.
    """
    path = Path(text)
    recorded = path / records.CONFIG
    if path.is_dir() and not recorded.exists():
        arms = [str(one.parent) for one in sorted(path.rglob(records.SCHEDULE))]
        several = f"; give one of its runs, as {arms[0]}" if arms else ""
        raise ValueError(
            f"--advise={text} is a directory without a run's {records.CONFIG}{several}"
        )
    if path.is_dir():
        return _of_run(path, config, command, trusted)
    if config is None:
        raise ValueError(
            f"--advise={text} has durations and no config; give --config=..., whose task, method "
            "and number of workers the advice is for"
        )
    if path.suffix == ".npz":
        done = schedule.load(path)
        _check_workers(text, done.all_workers, config)
        return Source(durations.of_schedule(done, text), config, list(command), None)
    part = parts.part("trace", path=text) if path.is_file() else text
    try:
        delay = waiting.build_delay(part)
    except ValueError as error:
        if path.is_file() or "(" in text:
            raise
        raise ValueError(
            f"--advise={text} is no directory, no file and no law ({error}); give the workdir of a "
            "run, a schedule.npz, a trace.csv, or a law as 'pareto(minimum=0.1, shape=2)'"
        ) from error
    names = getattr(delay, "names", ())
    _check_workers(text, len(names) or config.workers, config)
    measured = durations.of_delay(delay, config.workers, config.seed, text)
    return Source(measured, config, list(command), parts.text(part))


def _of_run(
    path: Path, config: ConfigDict | None, command: Sequence[str], trusted: Collection[str]
) -> Source:
    there = records.read_config(path / records.CONFIG)
    kinds.refuse_untrusted(there, trusted, path / records.CONFIG)
    if not (path / records.SCHEDULE).exists():
        raise ValueError(
            f"--advise={path}: the run has no {records.SCHEDULE} yet, which is written as it goes "
            "on; wait for it, or give another run"
        )
    done = schedule.load(path / records.SCHEDULE)
    _check_workers(str(path), done.all_workers, config or there)
    simulated = as_simulated(there)
    trigger = prepare.rule(simulated, prepare.prepare(simulated)).trigger
    measured = durations.of_schedule(done, str(path), trigger, there.seed)
    if config:
        return Source(measured, config, list(command), None)
    return Source(measured, there, list(command), "")


def _check_workers(source: str, workers: int, config: ConfigDict) -> None:
    if workers != config.workers:
        raise ValueError(
            f"--advise={source} has {workers} workers, the config asks for {config.workers}; give "
            f"--config.workers={workers}, or durations of {config.workers} workers"
        )


def as_simulated(config: ConfigDict) -> ConfigDict:
    """The config for the simulator, whatever it ran on; its delay is any, where it had none."""
    changes = {"runtime": "simulate", "devices": 1, "draw": "mini_batch"}
    if config.delay.name == waiting.NO_DELAY:
        changes["delay"] = parts.part("deterministic", value=1.0)
    return override(config, changes)


def budget(source: Source) -> float:
    """The config's budget [s], in proportion to the durations if it has a delay of its own."""
    config = source.config
    if config.delay.name == waiting.NO_DELAY:
        return config.seconds
    workers = min(config.workers, source.measured.workers)
    own = durations.of_delay(waiting.build_delay(config.delay), workers, config.seed, "delay")
    means = [
        np.mean([values[:SAMPLED].mean() for values in measured.seconds[:workers]])
        for measured in (source.measured, own)
    ]
    return float(config.seconds * means[0] / means[1])
