"""What an analysis, which trains nothing, gives to the launcher to write and to print."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments import files, manifest, records
from experiments.reports.table import print_claims


class Study(NamedTuple):
    """The findings of an analysis."""

    summary: Mapping[str, Any]  # goes into summary.json, beside the name of the config
    tables: Sequence[Table | str]  # printed one below the other; a text is a line of its own
    figure: Callable[[Path], None] | None = None  # writes a PNG to the path that it gets
    claims: Sequence[tuple[str, str]] = ()  # what a paper claims, what was found


def check(workdir: str | os.PathLike, config: ConfigDict, overwrite: bool) -> None:
    """Raise ValueError for a workdir with anything that is not of this analysis; touch nothing."""
    records.check(workdir, config, overwrite)
    workdir = Path(workdir)
    ours = (workdir / records.CONFIG).exists()
    manifest.refuse(workdir, (*manifest.LAUNCH_FILES, *manifest.LAUNCH_FOLDERS), ours)


def write(found: Study, config: ConfigDict, workdir: str | os.PathLike, console: Console) -> None:
    """Write config.json, summary.json and figure.png into `workdir`, print tables and claims."""
    workdir = Path(workdir)
    files.make(workdir)
    records.write_json(workdir / records.CONFIG, config.to_dict())
    claims = {"claims": list(found.claims)} if found.claims else {}
    records.write_json(workdir / records.SUMMARY, {"name": config.name, **found.summary, **claims})
    drawn = ""
    if found.figure is not None:
        found.figure(workdir / "figure.png")
        drawn = f"   figure: {workdir / 'figure.png'}"
    show(console, found.tables)
    if found.claims:
        print_claims(console, found.claims)
    console.print(f"records: {workdir}{drawn}", highlight=False)


def show(console: Console, tables: Iterable[Table | str]) -> None:
    """Print tables and lines, 120 columns wide where there is no terminal."""
    if not console.is_terminal:
        console = Console(file=console.file, width=120)
    for table in tables:
        console.print(table, highlight=False)
