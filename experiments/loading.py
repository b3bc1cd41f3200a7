"""A run that lies in a workdir, for a notebook or a script: `experiments.load`.

Names in the records are only data until `task` or `params` build the task of the config: then a
module from elsewhere has to be trusted by name.
"""

import functools
import importlib
import itertools
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments import formats, initial, records, registry, tasks
from stragglers import schedule

LOOKED_AT = 5  # runs to look for below a folder that is no run
RUN = formats.CONFIG._replace(way_out="give the folder of a run that is whole")


class Run:
    """The records of a run, finished or not.

    config: as it ran. summary: its result, None until it has finished. records: a dict per
    evaluation.
    """

    def __init__(self, workdir: str | os.PathLike, trust: Collection[str] = ()):
        """See `load`."""
        records.check_path(workdir, "workdir")
        self.workdir = Path(workdir).expanduser()
        self._trust = {trust} if isinstance(trust, str) else set(trust)
        path = self.workdir / records.CONFIG
        if not _is_run(self.workdir):
            places = (one.parent for one in self.workdir.rglob(records.CONFIG))
            below = sorted(map(str, itertools.islice(filter(_is_run, places), LOOKED_AT)))
            runs = f"runs below it; give one, as {below[0]}" if below else "no run; give a run"
            raise ValueError(f"load: {workdir} holds {runs}")
        self.config: ConfigDict = records.read_config(path, RUN)
        if not formats.is_arm(self.config.to_dict()):
            raise ValueError(f"load: {path} is no config of a run that trains; give such a run")
        self.summary: dict[str, Any] | None = records.read_summary(self.workdir)
        measured = (self.workdir / records.METRICS).exists()
        self.records: list[dict] = records.read_metrics(self.workdir) if measured else []

    def _file(self, name: str) -> Path | None:
        """Return the path of a file, or None if missing; Damaged if its digest differs."""
        path = self.workdir / name
        if not path.exists():
            return None
        formats.check_digest(path, RUN)
        return path

    @functools.cached_property
    def metrics(self) -> Any:
        """The records as a table of pandas, a column per field and a row per evaluation."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise ValueError(
                "metrics are a table of pandas, which is missing; run pip install pandas, or take "
                "records, a list of dicts"
            ) from error
        return pandas.DataFrame(self.records)

    @functools.cached_property
    def schedule(self) -> schedule.Schedule | None:
        """The schedule, who did what and when; None where no update was made, or not yet."""
        path = self._file(records.SCHEDULE)
        return None if path is None else schedule.load(path)

    @functools.cached_property
    def task(self) -> tasks.Task:
        """The task, built anew: its losses, examples and evaluation."""
        unknown = sorted(registry.named_modules(self.config.task) - self._trust)
        if unknown:
            raise ValueError(
                f"load: {self.workdir / records.CONFIG} names code of the module {unknown[0]!r}, "
                f"which would run here; if you trust it, add trust={unknown}"
            )
        return tasks.TASK.build(self.config.task)

    @functools.cached_property
    def params(self) -> Any:
        """The trained model, in the structure of the task's; ValueError before its end."""
        if self.summary is None:
            raise ValueError(
                f"load: {self.workdir} has not finished and has no model yet; the command that "
                "began it goes on"
            )
        path = self._file(records.PARAMETERS)
        if path is None:
            raise ValueError(
                f"load: {self.workdir} has no {records.PARAMETERS}, which a run leaves at its end; "
                "run it anew"
            )
        return initial.read(str(path), jax.eval_shape(self.task.init, jax.random.key(0)))


def _is_run(place: Path) -> bool:
    """Return whether a folder is of a run, and not of an analysis, which has trained nothing."""
    config, summary, metrics = (
        (place / name).exists() for name in (records.CONFIG, records.SUMMARY, records.METRICS)
    )
    return config and (metrics or not summary)


def load(workdir: str | os.PathLike, trust: Collection[str] = ()) -> Run:
    """Return the run of a workdir, or of an arm's folder below one.

        run = experiments.load("runs/x")
        print(run.config.wait, run.summary["test_accuracy"], run.schedule.mean_staleness)
        run.metrics.plot("seconds", "train_loss")
        losses = run.task.losses(run.params, run.task.test)

    trust: modules of others that the config may name and `task` may import.
    Raises ValueError in a sentence where there is no run, or it is damaged.
    """
    return Run(workdir, trust)
