"""The findings of an analysis, which trains nothing, and their records in a workdir."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments import figures, files, records, stats, tables
from experiments.stats import Claim, Numbers


class Analysis(NamedTuple):
    """The findings of an analysis."""

    summary: Mapping[str, Any]  # goes into summary.json, beside the name of the config
    tables: Sequence[Numbers | Table | str]  # printed one below the other; a text is a line
    figure: Figure | None = None
    claims: Sequence[Claim] = ()  # claims of papers, judged on `summary`


def check(workdir: str | os.PathLike, config: ConfigDict, overwrite: bool) -> None:
    """Raise ValueError for a workdir that holds anything but this analysis; touch nothing."""
    records.check(workdir, config, overwrite)
    workdir = Path(workdir)
    ours = (workdir / records.CONFIG).exists()
    records.refuse(workdir, (*records.LAUNCH_FILES, *records.LAUNCH_FOLDERS), ours)


def write(
    found: Analysis, config: ConfigDict, workdir: str | os.PathLike, console: Console
) -> list[tuple[str, str]]:
    """Write config.json, summary.json and figure.png; print tables, print and return claims."""
    workdir, record = Path(workdir), {"summary": found.summary}
    files.make(workdir)
    claims = list(stats.printed(found.claims, config.name, record)(stats.arms(record)))
    records.write_json(workdir / records.CONFIG, config.to_dict())
    summary = {"name": config.name, **found.summary}
    records.write_json(workdir / records.SUMMARY, summary | ({"claims": claims} if claims else {}))
    drawn = ""
    if found.figure is not None:
        figures.save(found.figure, workdir / "figure.png")
        drawn = f"   figure: {workdir / 'figure.png'}"
    tables.print_table(console, *found.tables)
    if claims:
        tables.print_claims(console, claims)
    console.print(f"records: {workdir}{drawn}", highlight=False)
    return claims
