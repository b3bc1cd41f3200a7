"""What a run leaves behind: its records in strict JSON, its schedule and the trained model.

config.json, metrics.jsonl, summary.json, schedule.npz (`stragglers.schedule.load` reads it) and
parameters.npz, the model that the losses and accuracies of the summary are those of: arrays by
their path, such as params/layers_2/kernel; where workers have models of their own the mean of them.

A metrics line is written when it is measured, a summary when the run is complete; until then there
may be a directory `checkpoint`, see `experiments.checkpoints`. NaN and infinities become null.
"""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from experiments import kinds, locks, parts

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
SCHEDULE = "schedule.npz"
MODULES = "modules"  # in a config: code that was brought along -> its SHA-256
PARAMETERS, CHECKPOINT = "parameters.npz", "checkpoint"
ERROR = "error.txt"  # of a run that has failed: the reason, then the traceback
WITH_SPREAD = ("seconds_to_target", "train_loss", "test_loss", "test_accuracy", "wall_seconds")


class Recorder:
    """Writes one run's records; made by `start`.

    summary: of the finished run which `start` found, or what `finish` was given; until then None.
    records: the metrics so far. writes: whether to touch the disk, which one process does for all.
    As a context it closes the metrics file and gives the run free, whatever happens to it; so does
    `finish`.
    """

    def __init__(
        self, workdir: Path, summary: dict | None, writes: bool, opened: contextlib.ExitStack
    ):
        self.workdir, self.summary, self.writes = workdir, summary, writes
        self.records: list[dict] = []
        self._metrics, self._opened = None, opened  # to be closed with the run

    @property
    def finished(self) -> bool:
        return self.summary is not None

    def begin(self, kept: int = 0) -> None:
        """Open the metrics, cut back to the first `kept` records; needed before `append`.

        ValueError if there are fewer.
        """
        path = self.workdir / METRICS
        with _readable(path):
            lines = _whole_lines(path)[:kept] if kept else []
            self.records = [json.loads(line) for line in lines]
        if len(lines) < kept:
            raise ValueError(
                f"workdir {self.workdir}: {METRICS} has {len(lines)} records, the checkpoint was "
                f"made after {kept}; --overwrite the run to start over"
            )
        if self.writes:
            _replace(path, "".join(lines))
            self._metrics = self._opened.enter_context(path.open("a"))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics, at once."""
        self.records.append(_plain(record))
        if self.writes:
            self._metrics.write(_dumps(record) + "\n")
            self._metrics.flush()

    def finish(self, summary: Mapping[str, Any]) -> dict:
        """Write the summary, close the metrics and return the summary as it will be read back."""
        if self.writes:
            write_json(self.workdir / SUMMARY, summary)
        self.summary = _plain(summary)
        self._opened.close()
        return self.summary

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened.close()


def start(
    workdir: str | os.PathLike,
    config: ml_collections.ConfigDict,
    overwrite: bool = False,
    writes: bool = True,
) -> Recorder:
    """Open `workdir` for the run that `config` describes; without `writes`, only look at it.

    If that run is there and finished, the recorder has its `summary` and there is nothing to do.
    If it was interrupted, its metrics and checkpoints are there to go on from.
    A directory that holds anything else is an error, and left alone, unless `overwrite`: then the
    run in it, finished or not, is removed. One that another process trains is left alone in any
    case: locks.InUse.
    """
    check(workdir, config, overwrite)
    workdir, opened = Path(workdir), contextlib.ExitStack()
    if writes and (overwrite or read_summary(workdir) is None):
        opened.enter_context(locks.held(workdir / locks.RUN))
    # Asked after that: somebody may just have finished the run.
    summary = None if overwrite else read_summary(workdir)
    if summary is None and writes:
        if overwrite:
            # First what could be taken for a part of the new run.
            shutil.rmtree(workdir / CHECKPOINT, ignore_errors=True)
            for name in (CONFIG, METRICS, SUMMARY, SCHEDULE, PARAMETERS):
                (workdir / name).unlink(missing_ok=True)
        write_json(workdir / CONFIG, _described(config))
    return Recorder(workdir, summary, writes, opened)


def check(
    workdir: str | os.PathLike, config: ml_collections.ConfigDict, overwrite: bool = False
) -> None:
    """Raise the ValueError that `start` would raise, and touch nothing."""
    workdir = Path(workdir)
    for place in (workdir, *workdir.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(
                f"workdir {workdir}: {place} is not a directory; choose another --workdir"
            )
    if overwrite:
        return
    read_summary(workdir)
    if (workdir / CONFIG).exists():
        try:
            there = flat(_unfolded(read_json(workdir / CONFIG)))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"workdir {workdir} holds a {CONFIG} that cannot be read ({error}); "
                "choose another --workdir, or --overwrite it"
            ) from error
        here = flat(json.loads(_dumps(_described(config))))
        differing = [
            f"{key} ({there.get(key, 'absent')} there, {here.get(key, 'absent')} here)"
            for key in sorted(there | here)
            if there.get(key, ...) != here.get(key, ...)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ValueError(
                f"workdir {workdir} holds a run with another config, which differs in "
                f"{', '.join(differing[:3])}{more}; choose another --workdir, or --overwrite it"
            )
    elif (workdir / SUMMARY).exists() or (workdir / METRICS).exists():
        raise ValueError(
            f"workdir {workdir} holds results without a {CONFIG}, such as a sweep's; "
            f"choose another --workdir, or --overwrite it"
        )


def read_metrics(workdir: str | os.PathLike) -> list[dict]:
    """All records of a run, finished or not; a line that was cut off by a kill is left out."""
    path = Path(workdir) / METRICS
    with _readable(path):
        return [json.loads(line) for line in _whole_lines(path)]


def read_summary(workdir: str | os.PathLike) -> dict | None:
    """The summary of a finished run; None: there is none."""
    path = Path(workdir) / SUMMARY
    return read_json(path) if path.exists() else None


def read_json(path: str | os.PathLike) -> Any:
    """What `write_json` has written; ValueError where it cannot be read."""
    with _readable(path):
        return json.loads(Path(path).read_text())


def read_config(path: str | os.PathLike) -> ml_collections.ConfigDict:
    """The config that a run has written, its parts as mappings, whichever way it has them."""
    config = _with_numbers(read_json(path))
    config.pop(MODULES, None)
    return parts.canonical(ml_collections.ConfigDict(config))


def _described(config: ml_collections.ConfigDict) -> dict:
    """What config.json says: the entries, and what the code was that they bring along."""
    modules = kinds.brought(parts.canonical(config))
    return parts.canonical(config).to_dict() | ({MODULES: modules} if modules else {})


def _unfolded(written: dict) -> dict:
    """What an older config.json says, whose parts may be texts, in today's form."""
    modules = written.pop(MODULES, {})
    config = parts.canonical(ml_collections.ConfigDict(written)).to_dict()
    return config | ({MODULES: modules} if modules else {})


def _with_numbers(tree: Any) -> Any:
    """Whole numbers as keys, as in factors={0: 4.0}, which JSON only knows as texts."""
    if isinstance(tree, list):
        return [_with_numbers(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    counts = bool(tree) and all(key.isdecimal() for key in tree)
    return {int(key) if counts else key: _with_numbers(value) for key, value in tree.items()}


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write strict JSON such that a reader finds the old file or the new one, never a part."""
    _replace(Path(path), _dumps(value, indent=2) + "\n")


def at_target(
    records: Sequence[Mapping], target_loss: float | None, column: str = "seconds"
) -> float | None:
    """`column` when the training loss first is at most `target_loss`; None: never, or no target.

    Between two evaluations log(train_loss) is taken to be linear in the column. A run that is at
    the target in its first record, or whose loss jumps to 0, has that record's value.
    """
    if target_loss is None:
        return None
    before = None
    for record in records:
        loss, value = record["train_loss"], record[column]
        loss = math.nan if loss is None else loss
        if loss <= target_loss:
            if before is None or loss <= 0:  # nothing to interpolate, or no logarithm
                return value
            drop = math.log(before[0] / target_loss) / math.log(before[0] / loss)
            return before[1] + drop * (value - before[1])
        before = (loss, value) if math.isfinite(loss) else None
    return None


def aggregate(summaries: Sequence[Mapping]) -> dict:
    """One summary of an arm from those of its seeds.

    Numbers that differ are averaged, null if any seed has null; `<field>_std` is the sample
    standard deviation of the fields of WITH_SPREAD, null for a single seed. `seeds` lists the
    seeds and `reached` says how many came to the target, as "k/n"; `stopped` is that of the first
    seed that has one. The rest is the first seed's, `seed` included.
    """
    summaries = _plain(summaries)
    merged = {}
    for field, first in summaries[0].items():
        values = [summary[field] for summary in summaries]
        merged[field] = _mean(values) if any(map(_is_number, values)) else first
        if field in WITH_SPREAD:
            spread = None if None in values or len(values) < 2 else float(np.std(values, ddof=1))
            merged[f"{field}_std"] = spread
    reached = sum(summary["seconds_to_target"] is not None for summary in summaries)
    return merged | {
        "stopped": next(filter(None, (summary.get("stopped") for summary in summaries)), None),
        "seed": summaries[0]["seed"],
        "seeds": [summary["seed"] for summary in summaries],
        "reached": f"{reached}/{len(summaries)}",
    }


def flat(tree, prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted keys; an empty one stays a value."""
    if not isinstance(tree, dict) or (prefix and not tree):
        return {prefix: tree}
    return {
        dotted: leaf
        for key, value in tree.items()
        for dotted, leaf in flat(value, f"{prefix}.{key}" if prefix else key).items()
    }


@contextlib.contextmanager
def _readable(path: str | os.PathLike) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); repeat the run with --overwrite"
        ) from error


def _whole_lines(path: Path) -> list[str]:
    with path.open() as lines:
        return [line for line in lines if line.endswith("\n")]


def _replace(path: Path, text: str):
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def _mean(values: list):
    if None in values:
        return None
    # Equal values stay what they are: 8 workers, not 8.0.
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dumps(value, **options) -> str:
    return json.dumps(_plain(value), allow_nan=False, **options)


def _plain(value):
    """Python's own types for what NumPy and JAX return, and None for what JSON cannot say."""
    if hasattr(value, "tolist"):  # arrays and array scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
