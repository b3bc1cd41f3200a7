"""Rows that are measured one after the other, and a record that holds whatever has been measured.

A row yields its lines as they are measured. Whatever happens in it, the next one runs: out of
memory and any other error stand in the record in place of what was to come. The record is replaced
as a whole after every line, so that a run which is cut off leaves all that it had found.
"""

import gc
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import stopwatch

RAN, SKIPPED, MEMORY, FAILED = "ran", "skipped", "out of memory", "failed"


class Line(NamedTuple):
    """One number of a row; goal: what it should not exceed, None where there is no goal."""

    name: str
    value: float
    unit: str  # "x" for a ratio of two times
    goal: float | None = None
    seconds: Mapping[str, float] = {}  # the times that a ratio is of, by candidate
    facts: Mapping[str, Any] = {}  # what else was found, JSON values

    @property
    def excess(self) -> float:
        """The value over its goal; 0 without a goal."""
        return 0.0 if self.goal is None else self.value / self.goal

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if self.value <= self.goal else f"missed by {self.excess:.3g}x"


class Row(NamedTuple):
    """What is measured together.

    measure: seconds for its turns -> its lines; it may raise anything.
    least: seconds that it takes at least, a guess; with fewer left it is skipped.
    again: the candidates of its comparison anew, for a profile; None: there is nothing to profile.
    always: it runs even when no seconds are left.
    """

    section: str
    name: str
    measure: Callable[[float], Iterable[Line]]
    least: float = 0.0
    again: Callable[[], Mapping[str, Callable]] | None = None
    always: bool = False


class Skip(Exception):
    """Raised by a row that makes no sense here; its text says why."""


def compared(
    section: str,
    name: str,
    goal: float | None,
    candidates: Callable[[], Mapping[str, Callable]],
    least: float,
    facts: Callable[[Mapping[str, float]], Mapping[str, Any]] = lambda seconds: {},
    scale: float = 1.0,
) -> Row:
    """A row of one line: the time of the first candidate over that of the second one, times scale.

    facts: the candidates' seconds -> what else stands in the line.
    """

    def measure(budget: float) -> Iterator[Line]:
        taken = stopwatch.seconds(candidates(), budget=budget)
        ours, floor, *_ = taken.values()
        yield Line(name, scale * ours / floor, "x", goal, taken, facts(taken))

    return Row(section, name, measure, least, candidates)


def out_of_memory(error: BaseException) -> bool:
    """Whether host or device had no memory left."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def write(path: Path, record: Mapping) -> None:
    """Replace the record as a whole; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(_finite(record), indent=1) + "\n")
    os.replace(beside, path)


def run(
    rows: Iterable[Row],
    record: dict,
    path: Path,
    seconds: float,
    say: Callable[[str], None],
    share: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Measure the rows in order within `seconds`; whether none failed.

    record: what is known beforehand; its `rows` are filled in, and its `complete` becomes true.
    share: of the seconds that are left, for the turns of one row. A row is not broken off: the
    last one may end later.
    """
    end = clock() + seconds
    done = record.setdefault("rows", [])
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            gc.collect()
            jax.clear_caches()  # programs of the last section are of no use to this one
            say(f"-- {section}")
        entry = {"section": row.section, "name": row.name, "state": "under way", "lines": []}
        done.append(entry)
        write(path, record)
        began = clock()
        entry |= _measured(
            row, entry["lines"], end - began, share, lambda: write(path, record), say
        )
        entry["seconds"] = clock() - began
        if entry["state"] != RAN:
            say(f"{row.name}: {entry['state']}: {entry['word']}")
        write(path, record)
    record["complete"] = True
    write(path, record)
    return all(entry["state"] != FAILED for entry in done)


def _measured(
    row: Row, lines: list, left: float, share: float, save: Callable, say: Callable
) -> dict:
    """Run one row, adding to `lines`; its state and, unless it ran, a word on it."""
    if not row.always and (left <= 0 or row.least > left):
        need = f"takes about {row.least:.0f} s, " if row.least else ""
        word = f"{need}{max(left, 0):.0f} s are left; raise --minutes"
        return {"state": SKIPPED, "word": word}
    try:
        for line in row.measure(share * max(left, 0.0)):
            lines.append(line._asdict() | {"verdict": line.verdict})
            say(shown(line))
            save()
    except Skip as reason:
        return {"state": SKIPPED, "word": str(reason)}
    except Exception as error:  # of any kind: the next row runs
        word = f"{type(error).__name__}: {str(error).strip() or 'no more is known'}"[:600]
        return {"state": MEMORY if out_of_memory(error) else FAILED, "word": word}
    return {"state": RAN}


def shown(line: Line) -> str:
    """A line of the table."""
    goal = "" if line.goal is None else f"<= {line.goal:g}"
    times = ", ".join(f"{name} {1e3 * value:.4g} ms" for name, value in line.seconds.items())
    facts = ", ".join(f"{name} {_brief(value)}" for name, value in line.facts.items())
    rest = "; ".join(filter(None, (times, facts)))
    number = f"{line.value:.4g} {line.unit}"
    return f"{line.name:44} {number:>18} {goal:>8} {line.verdict:18} {rest}".rstrip()


def _brief(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finite(value):
    if isinstance(value, Mapping):
        return {str(key): _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    if isinstance(value, float) or hasattr(value, "dtype"):
        number = float(value)
        return number if math.isfinite(number) else None
    return value
