"""What the arms of a sweep have to say together: their table, their figure and a paper's claims."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich.console import Console

from experiments import (
    aggregates,
    codec_times,
    distributed,
    executors,
    files,
    formats,
    records,
    sweep,
    waiting,
)
from experiments.executors import Arm
from experiments.numbers import Numbers, as_table


class Outcome(NamedTuple):
    """What a sweep has come to."""

    failures: dict[str, str]  # path of an arm: why it has failed
    claims: list[tuple[str, str]]  # what a paper claims, what was measured
    numbers: Sequence[Numbers] = ()  # tables of what nobody claims


def launch(
    arms: list[Arm],
    workdir: str,
    overwrite: bool,
    claims: Callable[[list[dict]], Iterable[tuple[str, str]]] | None = None,
    figures: Callable[[pathlib.Path], None] | None = None,
    numbers: Callable[[list[dict]], Iterable[Numbers]] | None = None,
    together: bool = False,
    execute: executors.Executor = executors.here,
) -> Outcome:
    """Run the arms, see `sweep.run`; write and print what they have to say together.

    claims: summaries, each with its arm's `config`, the `metrics` and the `workdirs` of its seeds,
        -> (what a paper claims, what was measured) pairs, printed below the table.
    figures: writes figures of its own into the workdir, and returns nothing.
    numbers: what claims get -> tables of numbers beside the claims.
    All three need all arms; the table and the figure are of those that have not failed.
    """
    root = pathlib.Path(workdir)
    left = sweep.unfinished(arms, workdir, overwrite)
    if distributed.is_writer():
        for line in waiting.traces(arm.config for arm in left):
            print(f"delay: {line}")
        for line in codec_times.forecasts([arm.config for arm in left]):
            print(f"compression: {line}")
    failures = sweep.run(arms, workdir, overwrite, together, execute)
    # Late: drawing takes a second to load, and arms can start now.
    from experiments.reports import table

    claimed: list[tuple[str, str]] = []
    tables: list[Numbers] = []
    if not distributed.is_writer():
        return Outcome(failures, claimed)
    console = Console()
    finished = [arm for arm in arms if arm.path not in failures]
    if finished:
        try:
            summaries = _compare(finished, root, console)
        except files.NotWritten as error:
            if not failures:
                raise
            console.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
    if not failures:
        if claims is not None:
            claimed += _attempted(lambda: claims(summaries), "claims()")
        if numbers is not None:
            claimed += _attempted(lambda: tables.extend(numbers(summaries)) or (), "numbers()")
        if figures is not None:
            claimed += _attempted(lambda: figures(root) or (), "figures()")
    for shown in tables:
        table.print_numbers(console, as_table(shown))
    if claimed:
        table.print_claims(console, claimed)
    for path, reason in failures.items():
        where = root / path / records.ERROR
        seen = f"; see {where}" if where.exists() else ""
        console.print(
            f"failed: {path or root}: {reason}{seen}", highlight=False, markup=False, soft_wrap=True
        )
    drawn = f"   figure: {root / 'figure.png'}" if finished else ""
    console.print(f"records: {root}{drawn}", highlight=False, markup=False, soft_wrap=True)
    return Outcome(failures, claimed, tuple(tables))


def _attempted(tell: Callable[[], Iterable[tuple[str, str]]], what: str) -> list[tuple[str, str]]:
    """What `tell` says; that it fails, as of an arm that has diverged, loses nothing else."""
    claimed = []
    try:
        claimed.extend(tell())
    except Exception as error:  # a config file is code and can raise anything
        claimed.append((what, f"failed with {type(error).__name__}: {error}"))
    return claimed


def _compare(arms: list[Arm], root: pathlib.Path, console: Console) -> list[dict]:
    """Write the summary and the figure of all arms, print their table.

    Returns their summaries with the `config`, the `metrics` and the `workdirs` of each.
    """
    from experiments.reports import figure, multiples, table, telling

    summaries: dict[str, list[dict]] = {}
    curves: dict[str, list[list[dict]]] = {}
    places: dict[str, list[pathlib.Path]] = {}
    stopped = []
    for arm in arms:
        where = root / arm.path
        summary = records.read_summary(where, formats.WHOLE_SUMMARY)
        summaries.setdefault(arm.config.name, []).append(summary)
        curves.setdefault(arm.config.name, []).append(records.read_metrics(where, whole=True))
        places.setdefault(arm.config.name, []).append(where)
        if summary.get("stopped"):
            stopped.append(
                f"stopped: {arm.config.name} seed {arm.config.seed}: {summary['stopped']}"
            )
    merged = [aggregates.aggregate(repeats) for repeats in summaries.values()]
    if any(arm.path for arm in arms):
        records.write_json(root / records.SUMMARY, {"arms": merged})
    shown, target = list(curves.items()), arms[0].config.target_loss
    draw = figure.draw if len(shown) <= telling.MOST_ARMS else multiples.draw
    figure.save(draw(shown, target, merged[0]["clock"]), root / "figure.png")
    table.print_table(console, merged)
    for line in stopped:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    configs = {arm.config.name: arm.config for arm in arms}
    return [
        summary | {"config": configs[name], "metrics": curves[name], "workdirs": places[name]}
        for name, summary in zip(summaries, merged, strict=True)
    ]
