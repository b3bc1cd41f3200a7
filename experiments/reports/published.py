"""The page of results, docs/results.md, written from what runs have left behind.

python -m experiments.reports.published runs/swarm runs/demo  # take these in, then write the page
python -m experiments.reports.published                       # only write the page

What is taken in of a sweep goes to docs/results/NAME.json, NAME being that of its workdir: the
means over its seeds, its claims and the command that repeats it. Nothing on the page is typed.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from experiments import records
from experiments.reports import provenance, table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = FOLDER.with_suffix(".md")
FIELDS = (
    "name", "baseline", "clock", "target_loss", "seeds", "reached", "updates", "samples", "seconds",
    "seconds_to_target", "seconds_to_target_std", "train_loss", "train_loss_std", "test_accuracy",
    "test_accuracy_std", "idle_fraction", "bytes_per_worker", "fallback_share",
    "fallback_bytes", "fallback_seconds", "stopped",
)  # fmt: skip
MOST_ARMS = 20  # of a table; of more only the claims are told
OPENING = """\
# Results

Every sweep with the command that repeats it, means over its seeds, and beside each claim of a paper
what was measured, in favour or not. This page is written by `experiments/reports/published.py`.
"""


def take_in(root: str | os.PathLike, folder: Path = FOLDER) -> Path:
    """Copy what the page needs of a finished sweep into `folder`; the file.

    Raises ValueError where `root` holds no report of a sweep.
    """
    root = Path(root)
    try:
        summary = json.loads((root / records.SUMMARY).read_text())
        note = json.loads((root / provenance.NOTE).read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"published: {root} holds no {Path(error.filename).name}; give the --workdir of a "
            "finished sweep"
        ) from error
    arms = summary.get("arms", [summary])
    shown = arms if len(arms) <= MOST_ARMS else []
    rows = [{field: _rounded(arm[field]) for field in FIELDS if field in arm} for arm in shown]
    size = {"count": len(arms), "seeds": max(len(arm.get("seeds", [0])) for arm in arms)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{root.resolve().name}.json"
    told = {key: note[key] for key in ("command", "versions", "date", "claims")}
    path.write_text(json.dumps(told | size | {"arms": rows}, indent=1) + "\n")
    return path


def page(folder: Path = FOLDER) -> str:
    """The page of everything in `folder`, in Markdown."""
    sections = [_section(path) for path in sorted(folder.glob("*.json"))]
    return "\n".join([OPENING, *sections])


def _section(path: Path) -> str:
    taken = json.loads(path.read_text())
    lines = [f"## {path.stem.replace('_', ' ')}", f"`{taken['command']}`", ""]
    lines += [f"Arms: {taken['count']}, seeds: {taken['seeds']}.", ""]
    if taken["arms"]:
        shown = table.of_arms(taken["arms"])
        lines += [*_markdown(shown), "", f"{shown.caption}.", ""]
    if taken["claims"]:
        cells = [[_cell(text) for text in claim] for claim in taken["claims"]]
        lines += [*_rows(["claim", "measured"], cells), ""]
    versions = ", ".join(f"{name} {version}" for name, version in taken["versions"].items())
    return "\n".join([*lines, f"*{taken['date'][:10]}; {versions}*", ""])


def _markdown(table: Table) -> list[str]:
    headings = [_cell(str(column.header).replace("\n", " ")) for column in table.columns]
    columns = [[_cell(str(cell)) for cell in column.cells] for column in table.columns]
    return _rows(headings, list(zip(*columns, strict=True)), numbers=True)


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False):
    """A table; of numbers all but the first column are flush right."""
    marks = ["---", *["---:" if numbers else "---"] * (len(headings) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (headings, marks, *rows)]


def _cell(text: str) -> str:
    """One line; lines of its own in it stay lines."""
    lines = (" ".join(line.split()) for line in text.replace("|", "\\|").splitlines())
    return "<br>".join(filter(None, lines))


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(child) for key, child in value.items()}
    return [_rounded(child) for child in value] if isinstance(value, list) else value


def main(roots: Sequence[str]) -> None:
    """Take in the workdirs, then write the page."""
    try:
        for root in roots:
            print(take_in(root))
    except ValueError as error:
        sys.exit(f"error: {error}")
    PAGE.write_text(page())
    print(PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
