"""The table of verdicts at the head of docs/results.md: what records say of every paper's claim."""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import formats, premises
from experiments.premises import Answer
from experiments.publishing.verdict_rows import ROWS, Row


def answers(folder: Path) -> Iterator[tuple[Row, Answer]]:
    """Every row with what its record says; a claim without a record cannot be judged."""
    read = functools.cache(functools.partial(formats.read, form=formats.PUBLISHED))
    for row in ROWS:
        path = folder / f"{row.record}.json"
        if not path.exists():
            yield row, Answer(premises.UNKNOWN, "nothing has been published")
            continue
        yield row, premises.answer(row.ask, read(path))


SAMPLING_ERROR = re.compile(r" \(test samples: ± [^)]*\)")  # as `quantities.shown` writes it


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


P_VALUE = re.compile(r"p = ([0-9.e-]+)")
FALSE_SHARE = 0.05  # of the differences that stand, which may be expected to be none


def of_many_tests(rows: Sequence[Sequence[str]]) -> str:
    """A sentence on how many p-values of the table stand beside all the others.

    With m of them in order, the first k stand for the largest k with p_k <= FALSE_SHARE k / m
    (Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995).
    """
    found = sorted(float(p) for row in rows for p in P_VALUE.findall(row[4]))
    few = sum(p < FALSE_SHARE for p in found)
    stand = max((k for k, p in enumerate(found, 1) if p <= FALSE_SHARE * k / len(found)), default=0)
    most = f" These are the rows with p up to {found[stand - 1]:.2g}." if stand else ""
    return (
        f"The table has {len(found)} p-values, of which {few} are below {FALSE_SHARE:g}. By the "
        f"procedure of Benjamini and Hochberg {stand} of them stand beside all the others."
        f"{most}"
    )


def of_seeds_apart(folder: Path) -> str:
    """A sentence on what the verdicts become where no seed is judged at what it has chosen."""
    usual = [answer.verdict for _, answer in answers(folder)]
    with premises.chosen_by_other_seeds():
        apart = [answer.verdict for _, answer in answers(folder)]
    changes = Counter(pair for pair in zip(usual, apart, strict=True) if len(set(pair)) > 1)
    shown = ", ".join(
        f"{count} from *{before}* to *{after}*" for (before, after), count in changes.most_common()
    )
    return (
        "The seeds that choose a best setting are the seeds that it is judged by. Where each seed "
        "is judged at the setting that the other seeds choose, "
        f"{changes.total() or 'none'} of {len(usual)} verdicts differ{': ' * bool(shown)}{shown}."
    )


def _link(record: str, folder: Path) -> str:
    """The record's section, where it has one; of a benchmark the file."""
    if not (folder / f"{record}.json").exists():
        return record
    if "/" in record:
        return f"[{record.rpartition('/')[2]}](results/{record}.json)"
    return f"[{record}](#{record.replace('_', '-')})"


HEADINGS = ("paper", "claim", "measured", "seeds", "deviation", "verdict", "record")
