"""Numbers in pages of Markdown, each of which names the record that it is from.

    [2.85x](results/nonblocking_slow4.json "seconds_to_target of all_reduce/blocking over
    seconds_to_target of all_reduce/nonblocking")

is a link to a record in docs/results, and its title says where in the record the number is: a field
of an arm, the one over or minus the other, or a place in the summary of an analysis, written as
`by_workers[delay=pareto, workers=8].simulated`. A field that ends in `_std` is a deviation over
seeds, for which their numbers are enough. `best fixed` is the arm, of fixed/K=1/rate=0.5 and its
like, whose field is least. What is shown is the number itself, with as many decimals and in the
unit of the text before; `refresh` writes it, so that nobody types it. Records are in seconds, bytes
and shares of 1, from which the unit of the text is reckoned.
"""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from experiments import formats, premises

QUOTE = re.compile(r'\[([^\[\]]*)\]\(([^()\s]*results/[\w/]+\.json)\s+"([^"]+)"\)')
# Text before, the number, and the unit that says by what the value is multiplied.
NUMBER = re.compile(r"^([^\d+−-]*)([+−-]?)([\d,]*\.?\d+)(\s*)(x|%|points|s|ms|MB|kB|MiB|)$")
UNITS = {"%": 100.0, "points": 100.0, "ms": 1e3, "kB": 1e-3, "MB": 1e-6, "MiB": 2.0**-20}
ROUNDING = 1e-9  # of a float64 that should be zero, as the deviation of equal numbers
_STEP = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?")
_ITEM = re.compile(r",\s*(?=\w+=)")  # a value may have commas: codec=S2, rows, r = 1


class Quote(NamedTuple):
    """A number in a page, the path of its record and its place in it."""

    text: str
    record: str
    place: str


def find(page: str) -> Iterator[Quote]:
    """The numbers of a page that name their records."""
    for match in QUOTE.finditer(page):
        yield Quote(match[1], match[2], " ".join(match[3].split()))


def refresh(page: str, folder: Path) -> str:
    """A page with its numbers as the records have them; links are relative to `folder`.

    Raises ValueError for a record, a place or a form of number that makes no sense.
    """

    def written(match: re.Match) -> str:
        text, record, place = match[1], match[2], " ".join(match[3].split())
        try:
            shown = show(value(_read(folder / record), place), text)
        except (ValueError, OSError, LookupError, TypeError, ZeroDivisionError) as error:
            raise ValueError(
                f"{record}: cannot find {place!r} for {text!r} ({error}); correct the title"
            ) from error
        return match[0].replace(f"[{text}]", f"[{shown}]", 1)

    return QUOTE.sub(written, page)


def value(record: Mapping[str, Any], place: str) -> float:
    """The number at a place of a record: a term, or two with `over` or `minus` between them."""
    for word, join in _JOINED.items():
        first, found, second = place.partition(f" {word} ")
        if found:
            return join(_term(record, first), _term(record, second))
    return _term(record, place)


def column(record: Mapping[str, Any], title: str, heading: str) -> dict[str, float]:
    """A column of numbers of one of the tables of a record, by the first cells of its rows."""
    (table,) = (table for table in record["numbers"] if table["title"] == title)
    place = table["columns"].index(heading)
    return {row[0]: float(row[place]) for row in table["rows"]}


_JOINED: dict[str, Callable[[float, float], float]] = {
    "over": lambda a, b: a / b,
    "minus": lambda a, b: a - b,
}


def show(number: float, like: str) -> str:
    """A number in the form of a text: its decimals, its unit, and what stands before it.

    Raises ValueError for a text that is no number, and where only zeros would be left of it.
    """
    match = NUMBER.match(like)
    if match is None:
        raise ValueError(f"{like!r} is no number with a unit")
    before, sign, digits, space, unit = match.groups()
    decimals = len(digits.partition(".")[2])
    scaled = number * UNITS.get(unit, 1.0)
    text = f"{abs(scaled):{',' if ',' in digits else ''}.{decimals}f}"
    if abs(scaled) > ROUNDING and not float(text.replace(",", "")):
        raise ValueError(
            f"{scaled:g}{space}{unit} would be shown as {text}; give it more decimals, or mend the "
            "unit: records are in seconds, bytes and shares of 1"
        )
    minus = "−" if scaled < 0 and float(text.replace(",", "")) else ""
    plus = "+" if sign == "+" and not minus else ""
    return f"{before}{minus or plus}{text}{space}{unit}"


def _term(record: Mapping[str, Any], place: str) -> float:
    """`field of arm`, `field of best group`, or a path in the summary of an analysis."""
    field, found, arm = place.strip().partition(" of ")
    group = arm.removeprefix("best ")
    if found and group != arm:  # of a grid, as fixed/K=1/rate=0.5, the arm with the least
        return float(premises.best(premises.group(arms(record).values(), group), field)[field])
    if found:
        return _field(arms(record)[arm], field)
    node: Any = record["summary"]
    for name, chosen in _STEP.findall(place):
        node = node[name]
        if chosen:
            wanted = dict(item.strip().split("=", 1) for item in _ITEM.split(chosen))
            (node,) = (one for one in node if all(_same(one[k], wanted[k]) for k in wanted))
    return float(node)


def _field(arm: Mapping[str, Any], field: str) -> float:
    """The field, or the deviation of its seeds where the arm has only their numbers."""
    bare = field.removesuffix("_std")
    if field in arm or bare == field:
        return float(arm[field])
    return statistics.stdev(arm[f"{bare}_by_seed"])


def _same(there: Any, wanted: str) -> bool:
    return str(there) == wanted or (isinstance(there, float) and there == float(wanted))


def arms(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The arms of a record by their names."""
    table = record["arms"]
    return {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}


@cache
def _read(path: Path) -> dict[str, Any]:
    return formats.read(path, formats.QUOTED)
