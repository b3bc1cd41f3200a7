"""The findings of an analysis, which trains nothing, and their way into a workdir."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments import figures, files, records, stats
from experiments.stats import Claim, Numbers
from experiments.tables import NONE, as_table, print_claims


class Analysis(NamedTuple):
    """The findings of an analysis."""

    summary: Mapping[str, Any]  # goes into summary.json, beside the name of the config
    tables: Sequence[Numbers | Table | str]  # printed one below the other; a text is a line
    figure: Figure | None = None
    claims: Sequence[Claim] = ()  # rows of a paper; the rows of this record are judged


def pivot(
    title: str,
    points: Sequence[Mapping[str, Any]],
    row: Callable[[Mapping], str],
    column: Callable[[Mapping], str],
    cell: Callable[[Mapping], str],
) -> Numbers:
    """Return a table of points, each of which says its row, its column and its cell."""
    cells = {(row(point), column(point)): cell(point) for point in points}
    rows, columns = (dict.fromkeys(key[place] for key in cells) for place in (0, 1))
    shown = [(name, *(cells.get((name, place), NONE) for place in columns)) for name in rows]
    return Numbers(title, ("", *columns), shown)


def check(workdir: str | os.PathLike, config: ConfigDict, overwrite: bool) -> None:
    """Raise ValueError for a workdir with other things than this analysis; touch nothing."""
    records.check(workdir, config, overwrite)
    workdir = Path(workdir)
    ours = (workdir / records.CONFIG).exists()
    records.refuse(workdir, (*records.LAUNCH_FILES, *records.LAUNCH_FOLDERS), ours)


def write(
    found: Analysis, config: ConfigDict, workdir: str | os.PathLike, console: Console
) -> list[tuple[str, str]]:
    """Write config.json, summary.json and figure.png; print tables and claims, return these."""
    workdir, record = Path(workdir), {"summary": found.summary}
    files.make(workdir)
    judged = stats.printed(found.claims, config.name, record)
    claims = list(judged(stats.arms(record)))
    records.write_json(workdir / records.CONFIG, config.to_dict())
    summary = {"name": config.name, **found.summary}
    records.write_json(workdir / records.SUMMARY, summary | ({"claims": claims} if claims else {}))
    drawn = ""
    if found.figure is not None:
        figures.save(found.figure, workdir / "figure.png")
        drawn = f"   figure: {workdir / 'figure.png'}"
    show(console, found.tables)
    if claims:
        print_claims(console, claims)
    console.print(f"records: {workdir}{drawn}", highlight=False)
    return claims


def show(console: Console, tables: Iterable[Numbers | Table | str]) -> None:
    """Print tables and lines, 120 columns wide where there is no terminal."""
    if not console.is_terminal:
        console = Console(file=console.file, width=120)
    for table in tables:
        shown = as_table(table) if isinstance(table, Numbers) else table
        console.print(shown, highlight=False, markup=False)  # [s] is a unit here, no style
