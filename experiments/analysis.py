"""The findings of an analysis, which trains nothing, and their way into a workdir."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments import files, manifest, records
from experiments.stats import Claim, Numbers, judge
from experiments.tables import as_table, print_claims


class Analysis(NamedTuple):
    """The findings of an analysis."""

    summary: Mapping[str, Any]  # goes into summary.json, beside the name of the config
    tables: Sequence[Numbers | Table | str]  # printed one below the other; a text is a line
    figure: Callable[[Path], None] | None = None  # writes a PNG to the path that it gets
    claims: Sequence[Claim] = ()  # rows of a paper's file, judged on the summary


def check(workdir: str | os.PathLike, config: ConfigDict, overwrite: bool) -> None:
    """Raise ValueError for a workdir with other things than this analysis; touch nothing."""
    records.check(workdir, config, overwrite)
    workdir = Path(workdir)
    ours = (workdir / records.CONFIG).exists()
    manifest.refuse(workdir, (*manifest.LAUNCH_FILES, *manifest.LAUNCH_FOLDERS), ours)


def write(
    found: Analysis, config: ConfigDict, workdir: str | os.PathLike, console: Console
) -> list[tuple[str, str]]:
    """Write config.json, summary.json and figure.png; print tables and claims, return these."""
    workdir = Path(workdir)
    files.make(workdir)
    claims = [
        (f"{claim.claim} ({claim.source})" if claim.source else claim.claim,
         str(judge(claim, [], {"summary": found.summary})))
        for claim in found.claims
    ]  # fmt: skip
    records.write_json(workdir / records.CONFIG, config.to_dict())
    summary = {"name": config.name, **found.summary}
    records.write_json(workdir / records.SUMMARY, summary | ({"claims": claims} if claims else {}))
    drawn = ""
    if found.figure is not None:
        found.figure(workdir / "figure.png")
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
        console.print(as_table(table) if isinstance(table, Numbers) else table, highlight=False)
