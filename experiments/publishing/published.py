"""The page of results, docs/results.md, and the numbers of all pages, from what runs have left.

python -m experiments.publishing.published runs/swarm runs/demo  # take these in, write the pages
python -m experiments.publishing.published                       # only write the pages

What is taken in goes to docs/results/NAME.json, where NAME is that of the workdir: the command that
repeats it, versions, claims, the settings of a sweep and all its arms in one table of means over
their seeds, or the summary of an analysis. No number on the page of results is typed; the other
pages name the place of theirs in a record, see `experiments.publishing.quoted`.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.table import Table

from experiments import files, formats, provenance, records, texts
from experiments.publishing import quoted, settings, verdicts
from experiments.reports import table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGE = FOLDER.with_suffix(".md")
FIELDS = (
    "name", "baseline", "clock", "target_loss", "seeds", "reached", "updates", "samples", "seconds",
    "seconds_to_target", "seconds_to_target_std", "updates_to_target", "samples_to_target",
    "communication_seconds_to_target", "train_loss", "train_loss_std", "test_accuracy",
    "test_accuracy_std", "test_samples", "final_train_loss", "idle_fraction", "bytes_per_worker",
    "workers", "staleness_mean", "fallback_share", "fallback_bytes", "fallback_seconds", "stopped",
    *(f"{field}_by_seed" for field in formats.BY_SEED),
)  # fmt: skip
MOST_ARMS = 20  # of a table; of more only the claims are shown
LONG = 100  # characters of a line of measurements that is divided
OPENING = """\
# Results

Every sweep with the command that made it, means over its seeds, and beside each claim of a paper
what was measured, in favour or not. Seconds on a network are modelled, but for `mg_wfbp` and the
sweeps whose names end in "real"; [links.md](links.md) has exchanges that were measured over links
with a rate. This page is written by `experiments/publishing/published.py`.

## Verdicts
A claim holds, holds where a condition is met, does not hold, or cannot be told. The last stands
where the record lacks what the claim presupposes, as seeds, equal samples or an optimum inside of
its grid, and where the difference lies within its noise: the 95 % interval of a difference has to
lie on one side of the claim's bound, by Student's paired test where a record has every seed's
number, else by Welch's. A difference stands with its standard error, and p is the probability of
such a one if there were none. A test accuracy has a standard error as well, which its test samples
leave and all seeds share; it stands below each sweep's own table, and smaller differences are not
resolved. A row without seeds is a single simulation, a count, a modelled step, or a claim whose
premise is not met. A loss at the end is a mean over the last tenth of the evaluations. For sketches
the noise level of a loss is how far apart dense training ends where it sums in another order; a
loss that is above by so much, or by a thousandth, counts as the same. Rows that are "not claimed"
compare what no paper does. The rows are in `experiments/publishing/verdict_rows`, and `make
evidence` repeats all sweeps, though not the benchmarks. Claims further below stand as the sweep
printed them when it ran; where they and this table differ, the table counts.

The rates of a grid are a factor of two or more apart but where its config says otherwise, so that a
method between two of them may be better than its best one by more than a small bound. Many sweeps
have three seeds. Where three left a claim in the noise, some sweeps were given more, and sweeps
that were decided by three were not.
"""


def take_in(root: str | os.PathLike, folder: Path = FOLDER) -> Path:
    """Copy what pages need of a finished sweep or analysis into `folder`; the file.

    Raises ValueError where `root` holds no note of a command, or no summary.
    """
    root = Path(root)
    try:
        os.stat(root / records.SUMMARY)
        os.stat(root / provenance.NOTE)
    except FileNotFoundError as error:
        raise ValueError(
            f"published: {root} holds no {Path(error.filename).name}; give the --workdir of a "
            "finished sweep or analysis"
        ) from error
    summary = records.read_summary(root)
    if "arms" in summary or "clock" in summary:
        whole = formats.WHOLE_SWEEP if "arms" in summary else formats.WHOLE_SUMMARY
        formats.checked(summary, root / records.SUMMARY, whole)
    note = provenance.read(root)
    files.make(folder)
    path = folder / f"{root.resolve().name}.json"
    noted = {key: note[key] for key in ("command", "versions", "date", "claims")}
    if note.get("numbers"):
        noted["numbers"] = note["numbers"]
    found = _of_sweep(summary) if "arms" in summary else _of_run(summary)
    if "arms" in summary:
        noted["settings"] = settings.of(
            {arm["name"]: _config(root, arm["name"]) for arm in summary["arms"]}
        )
    files.write(path, _dumps(noted | found))
    return path


def _config(root: Path, arm: str) -> ConfigDict:
    """Of the arm's run, or of the first of its seeds."""
    place = root / arm
    seeds = sorted(place.glob(f"seed_*/{records.CONFIG}"))
    return records.read_config(next(iter(seeds), place / records.CONFIG))


def _of_run(summary: Mapping) -> dict:
    """Of a single run, which has a clock, its one arm; of an analysis its whole summary."""
    if "clock" in summary:
        return _of_sweep({"arms": [summary]})
    return {"summary": _rounded({key: summary[key] for key in summary if key != "claims"})}


def _of_sweep(summary: Mapping) -> dict:
    """How many arms and seeds there are, and a table with a row per arm."""
    arms = summary["arms"]
    columns = [field for field in FIELDS if any(field in arm for arm in arms)]
    rows = [[_rounded(arm.get(field)) for field in columns] for arm in arms]
    size = {"count": len(arms), "seeds": max(len(arm.get("seeds", [0])) for arm in arms)}
    return size | {"arms": {"columns": columns, "rows": rows}}


def _dumps(record: Mapping) -> str:
    """JSON in which a row of a table, and a point of a summary, is a line."""
    marks: list[str] = []

    def marked(value: Any, depth: int) -> Any:
        nested = isinstance(value, dict | list)
        flat = nested and not any(isinstance(child, dict | list) for child in value)
        if nested and (depth > 2 or (depth > 1 and flat)):
            marks.append(json.dumps(value))
            return f"@{len(marks) - 1}@"
        if isinstance(value, dict):
            return {key: marked(child, depth + 1) for key, child in value.items()}
        return [marked(child, depth + 1) for child in value] if isinstance(value, list) else value

    text = json.dumps(marked(record, 0), indent=1)
    return re.sub(r'"@(\d+)@"', lambda match: marks[int(match[1])], text) + "\n"


def record(name: str, form: formats.Format = formats.PUBLISHED_SWEEP) -> dict[str, Any]:
    """The record of this name, of a sweep unless `form` says otherwise."""
    return formats.read(FOLDER / f"{name}.json", form)


def page(folder: Path = FOLDER) -> str:
    """The page of everything in `folder`, in Markdown."""
    sections = [_section(path) for path in sorted(folder.glob("*.json"))]
    rows = _verdicts(folder)
    limits = " ".join((verdicts.of_many_tests(rows), verdicts.of_seeds_apart(folder)))
    return "\n".join([OPENING, limits, "", *_rows(verdicts.HEADINGS, rows), "", *sections])


def _verdicts(folder: Path) -> list[list[str]]:
    return [[_cell(cell) for cell in row] for row in verdicts.cells(folder)]


def _section(path: Path) -> str:
    taken = formats.read(path, formats.PUBLISHED)
    if "arms" in taken:
        formats.checked(taken, path, formats.PUBLISHED_SWEEP)
    lines = [f"## {path.stem.replace('_', ' ')}", f"`{taken['command']}`", ""]
    if "remark" in taken:  # added by hand where a result is known to be wrong, until it runs again
        lines += [f"**{taken['remark']}**", ""]
    if "arms" in taken:
        lines += [f"Arms: {taken['count']}, seeds: {taken['seeds']}.", ""]
    if "arms" in taken and taken["count"] <= MOST_ARMS:
        shown = table.of_arms(list(quoted.arms(taken).values()))
        lines += [*_markdown(shown), "", f"{shown.caption}.", ""]
    else:
        lines += [f"All numbers: [{path.name}](results/{path.name}).", ""]
    if taken["claims"]:
        lines += ["Claims, and what was measured:", ""]
        for claim in taken["claims"]:
            lines += _claim(*claim)
        lines += [""]
    for numbers in taken.get("numbers", ()):
        cells = [[_cell(text) for text in row] for row in numbers["rows"]]
        headings = [_cell(text) for text in numbers["columns"]]
        lines += [f"{_cell(numbers['title'])}:", "", *_rows(headings, cells, numbers=True), ""]
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


def _claim(claim: str, measured: str) -> list[str]:
    """A claim as an entry of a list, and what was measured below it, a line per statement."""
    lines = [" ".join(line.split()) for line in measured.splitlines()]
    parts = [part for line in lines for part in (line.split("; ") if len(line) > LONG else [line])]
    return [
        f"- **{_words(' '.join(claim.split()))}**",
        *(f"  - {_words(part)}" for part in parts if part),
    ]


def _words(text: str) -> str:
    """A text in which nothing is markup, as the asterisks of 2 * 3 * 4 would be."""
    return re.sub(r"([*<\\`])", r"\\\1", text)


def _cell(text: str) -> str:
    """A cell of a table, on one line."""
    return " ".join(text.replace("|", "\\|").split())


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(child) for key, child in value.items()}
    return [_rounded(child) for child in value] if isinstance(value, list) else value


def pages() -> list[Path]:
    """The pages whose numbers name their records."""
    written = sorted(path for path in FOLDER.parent.glob("*.md") if path != PAGE)
    return [FOLDER.parents[1] / "README.md", *written]


def write_pages() -> None:
    """Write the page of results, then the numbers of all other pages.

    Raises ValueError for a number whose place no record has any more.
    """
    files.write(PAGE, page())
    for path in pages():
        files.write(path, quoted.refresh(files.read_text(path), path.parent))


def main(roots: Sequence[str]) -> None:
    """Take in the workdirs, then write the page."""
    try:
        for root in roots:
            print(take_in(root))
        write_pages()
        print(PAGE)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {texts.sentence(error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
