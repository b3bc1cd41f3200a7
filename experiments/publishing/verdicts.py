"""The table of verdicts at the head of docs/results.md: what records say of every paper's claim."""

import re
from collections.abc import Iterator
from pathlib import Path

from experiments import formats, premises
from experiments.premises import Answer
from experiments.publishing.verdict_rows import ROWS, Row


def answers(folder: Path) -> Iterator[tuple[Row, Answer]]:
    """Every row with what its record says; a claim without a record cannot be judged."""
    for row in ROWS:
        path = folder / f"{row.record}.json"
        if not path.exists():
            yield row, Answer(premises.UNKNOWN, "nothing has been published")
            continue
        record = formats.read(path, formats.PUBLISHED)
        yield row, premises.answer(row.ask, record)


SAMPLING_ERROR = re.compile(r" \(test samples: ± [^)]*\)")  # as `premises.shown` writes it


def cells(folder: Path) -> list[list[str]]:
    """The rows of the table as texts: paper, claim, measured, seeds, deviation, verdict, record.

    Without the standard errors of test accuracies, which stand below every sweep's own table.
    """
    return [
        [
            row.paper,
            row.claim,
            SAMPLING_ERROR.sub("", answer.brief or answer.measured),
            "–" if answer.seeds is None else str(answer.seeds),
            answer.deviation or "–",
            f"**{answer.verdict}**",
            _link(row.record, folder),
        ]
        for row, answer in answers(folder)
    ]


def _link(record: str, folder: Path) -> str:
    """The record's section, where it has one; of a benchmark the file."""
    if not (folder / f"{record}.json").exists():
        return record
    if "/" in record:
        return f"[{record.rpartition('/')[2]}](results/{record}.json)"
    return f"[{record}](#{record.replace('_', '-')})"


HEADINGS = ("paper", "claim", "measured", "seeds", "deviation", "verdict", "record")
