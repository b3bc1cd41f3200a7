"""What the JSON files of a workdir must hold to be read back, from tables, checked in one place.

A table lists fields as in `experiments.entries`: in words what they must be, a test, their
names. A field that is there must pass its test; only some must be there. What is damaged is named
in a sentence with the way out that loses least.
"""

import datetime
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from experiments import files
from experiments.entries import Entries, is_number
from experiments.texts import brief, is_visible

_LARGEST = sys.float_info.max  # beyond it a whole number of JSON is no float


class Damaged(ValueError):
    """A file does not hold what we write into files of its name."""


class Format(NamedTuple):
    """What a file, or a line of one, holds: a JSON object.

    fields: what fields must be where they are there. needed: the names of fields that must be.
    way_out: what to do about a damaged one, with {path} and {folder} for where it lies.
    """

    fields: Entries
    needed: tuple[str, ...]
    way_out: str


def read(path: str | Path, form: Format) -> dict[str, Any]:
    """The object in a JSON file; Damaged where there is none of this form."""
    try:
        return checked(parse(files.read(path)), path, form)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise damaged(path, error, form) from error


def parse(text: str | bytes) -> Any:
    """A value in strict JSON; ValueError, or RecursionError where it is nested without end."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON")

    return json.loads(text if isinstance(text, str) else text.decode(), parse_constant=refuse)


def checked(value: Any, path: str | Path, form: Format) -> dict[str, Any]:
    """The value, if it is an object of this form; else Damaged."""
    wrong = complaint(value, form.fields, form.needed)
    if wrong is not None:
        raise damaged(path, wrong, form)
    return value


def damaged(path: str | Path, why: Exception | str, form: Format) -> Damaged:
    """The error that names a file, what is wrong with it and the way out."""
    if isinstance(why, Damaged):
        return why
    reason = {
        RecursionError: "it is nested too deeply",
        MemoryError: "it is too large",
    }.get(type(why)) or brief(getattr(why, "strerror", None) or why)
    way_out = form.way_out.format(path=path, folder=Path(path).parent)
    return Damaged(f"{path} cannot be read ({reason}); {way_out}")


def complaint(value: Any, fields: Entries, needed: Iterable[str] = ()) -> str | None:
    """What is wrong with a value that should be an object with such fields, or None."""
    if not isinstance(value, Mapping):
        return f"it holds {brief(repr(value))}, where an object is due"
    missing = next((name for name in needed if name not in value), None)
    if missing is not None:
        return f"it has no {missing!r}"
    for words, fits, names in fields:
        for name in names:
            if name in value and not fits(value[name]):
                return f"{name!r} is {brief(repr(value[name]))}, where {words} is due"
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_visible(value.replace("\n", " ").replace("\t", " "))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and is_visible(value)


def _is_count(value: Any) -> bool:
    return is_number(value, Integral) and 0 <= value < 2**63


def _is_finite(value: Any) -> bool:
    return is_number(value, Real) and -_LARGEST <= value <= _LARGEST


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_string, value))


def _is_numbers(value: Any) -> bool:
    """{"title": text, "columns": texts, "rows": [texts, one per column]}"""
    if not isinstance(value, dict) or not _is_string(value.get("title")):
        return False
    columns, rows = value.get("columns"), value.get("rows")
    if not _list_of(_is_string)(columns) or not _list_of(_list_of(_is_string))(rows):
        return False
    return all(len(row) == len(columns) for row in rows)


def _is_date(value: Any) -> bool:
    try:
        datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_time(value: Any) -> bool:
    return _is_finite(value) and 0 <= value < 1e18  # s or bytes, whose squares are numbers


def _is_table(value: Any, needed: Iterable[str] = ("name",)) -> bool:
    """Whether it has columns and rows of arms, as `publishing.published` writes them."""
    if not isinstance(value, dict) or not {"columns", "rows"} <= value.keys():
        return False
    columns, rows = value["columns"], value["rows"]
    if rows == []:
        return _list_of(_is_string)(columns)
    if not _list_of(_is_string)(columns) or columns[:1] != ["name"] or not _list_of(_is_list)(rows):
        return False
    if any(len(row) != len(columns) for row in rows):
        return False
    arms = (dict(zip(columns, row, strict=True)) for row in rows)
    return all(complaint(arm, _OF_ARM, needed) is None for arm in arms)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _is_jobs(value: Any) -> bool:
    """{job: {"arms": paths, "tasks": how many processes it has}}"""
    fields = (
        ("a list of texts", _list_of(_is_string), ("arms",)),
        ("a count", _is_count, ("tasks",)),
    )
    return isinstance(value, dict) and all(
        complaint(job, fields, ("arms", "tasks")) is None for job in value.values()
    )


def _reached(value: Any) -> bool:
    return isinstance(value, str) and all(
        part.isascii() and part.isdigit() for part in value.split("/", 1)
    )


_MEASURED = (
    "train_loss", "test_loss", "test_accuracy", "consensus_distance", "bytes_per_worker",
    "communication_seconds", "wall_seconds", "input_wait_seconds",
)  # fmt: skip
LINE = Format(
    (
        ("a count", _is_count, ("update", "samples")),
        ("a number", _is_finite, ("seconds",)),
        ("a number or null", _or_none(_is_finite), _MEASURED),
    ),
    (),
    "remove the summary.json and the checkpoint of {folder}, and the same command trains that run "
    "again and leaves all others",
)
# Of a run that goes into tables and figures, and of one that goes on.
_DRAWN = ("update", "samples", "seconds", "train_loss", "consensus_distance", "bytes_per_worker")
WHOLE_LINE = LINE._replace(needed=_DRAWN)
RESUMED_LINE = LINE._replace(needed=(*_DRAWN, "communication_seconds"))
BY_SEED = (  # fields of which a summary of several seeds has every seed's number
    "seconds_to_target", "updates_to_target", "communication_seconds_to_target", "train_loss",
    "final_train_loss", "test_accuracy", "updates", "staleness_mean",
)  # fmt: skip
_OF_ARM: Entries = (
    ("a name", _is_name, ("name", "clock", "wait", "algorithm", "runtime")),
    ("a name or null", _or_none(_is_name), ("baseline",)),
    ("a text or null", _or_none(_is_text), ("stopped",)),
    ("a count", lambda v: _is_count(v) and 0 < v < 2**31, ("workers",)),
    ("a count", _is_count, ("seed",)),
    ("a list of counts", _list_of(_is_count), ("seeds",)),
    ("a share as in 1/3", _reached, ("reached",)),
    ("a number or null", _or_none(_is_finite), (
        *_MEASURED, *(f"{name}_std" for name in _MEASURED),
        "target_loss", "seconds_to_target", "seconds_to_target_std", "updates_to_target",
        "samples_to_target", "communication_seconds_to_target", "updates", "samples", "seconds",
        "final_train_loss", "idle_fraction", "staleness_mean", "test_accuracy_worst_worker",
        "test_accuracy_best_worker", "test_samples")),
    ("a list of numbers or nulls", lambda v: v is None or _list_of(_or_none(_is_finite))(v),
     tuple(f"{name}_by_seed" for name in BY_SEED)),
)  # fmt: skip
_IN_TABLE = (
    "name", "baseline", "clock", "target_loss", "updates", "samples", "seconds",
    "seconds_to_target", "train_loss", "test_accuracy", "idle_fraction", "bytes_per_worker",
)  # fmt: skip
_TRAIN_AGAIN = (
    "remove it, and the same command trains that run again and leaves all others, or give another "
    "--workdir"
)
SUMMARY = Format(_OF_ARM, (), _TRAIN_AGAIN)
WHOLE_SUMMARY = SUMMARY._replace(needed=(*_IN_TABLE, "seed", "wait", "workers"))
SWEEP = Format(
    (
        ("a list of summaries with a name", _list_of(
            lambda arm: complaint(arm, _OF_ARM, ("name",)) is None), ("arms",)),
    ),
    (),
    "remove it, and the same command writes it again from its arms' summaries",
)  # fmt: skip
WHOLE_SWEEP = SWEEP._replace(
    fields=(
        ("a list of whole summaries", _list_of(
            lambda arm: complaint(arm, _OF_ARM, _IN_TABLE) is None), ("arms",)),
    ),
)  # fmt: skip
NOTE = Format(
    (
        ("a text", _is_string, ("command", "about")),
        ("a date", _is_date, ("date",)),
        ("an object of texts", _is_texts, ("versions",)),
        ("a list of pairs of texts", _list_of(_is_pair), ("claims",)),
        ("a list of tables of texts", _list_of(_is_numbers), ("numbers",)),
    ),
    ("command", "date", "versions", "claims"),
    "the command, the date and the claims are left out until the same launch writes it anew",
)
CONFIG = Format(
    (("a name", _is_name, ("name",)),),
    (),
    "give another --workdir, or remove it together with all that lies beside it",
)
GIVEN_CONFIG = CONFIG._replace(way_out="give a Python file, or the config.json of a run")
SLURM_JOBS = Format(
    (("an object of jobs with arms and tasks", _is_jobs, ("jobs",)),),
    ("jobs",),
    "when none of them is left in Slurm's queue, remove it, and the same command goes on",
)
PROFILE = Format(
    (
        ("a list of lists of texts", _list_of(_list_of(_is_string)), ("layers",)),
        ("a list of numbers >= 0, or null", _or_none(_list_of(_is_time)),
         ("ready", "sizes", "seconds")),
        ("a number or null", _or_none(_is_finite), ("error", "forward")),
    ),
    ("layers", "ready"),
    "write it with experiments.profiling.save, or as docs/extend.md says",
)  # fmt: skip
MEASURED_PROFILE = PROFILE._replace(needed=("layers", "ready", "sizes", "seconds"))
# A record of docs/results: of which a number is quoted, and which has a section of its own.
QUOTED = Format(
    (
        *NOTE.fields,
        ("a count", _is_count, ("count", "seeds")),
        ("an object of texts", _is_texts, ("settings",)),
        ("a table of arms", _is_table, ("arms",)),
        ("an object", lambda value: isinstance(value, dict), ("summary",)),
        ("a text", _is_string, ("remark",)),
    ),
    (),
    "take it in again with python -m experiments.publish take WORKDIR",
)
PUBLISHED = QUOTED._replace(
    fields=(
        *QUOTED.fields,
        ("a table of whole arms", lambda value: _is_table(value, _IN_TABLE), ("arms",)),
    ),
    needed=NOTE.needed,
)
PUBLISHED_SWEEP = PUBLISHED._replace(needed=(*NOTE.needed, "count", "seeds", "arms"))
PUBLISHED_ANALYSIS = PUBLISHED._replace(needed=(*NOTE.needed, "summary"))
ANYTHING = Format((), (), "give another file, or let the program that wrote it write it again")


def is_arm(config: Any) -> bool:
    """Whether a config is that of an arm, also of an older version with other entries."""

    def is_part(value: Any) -> bool:
        return _is_name(value) or (isinstance(value, dict) and _is_name(value.get("name")))

    fields = (
        ("a name", _is_name, ("name", "runtime")),
        ("a part", is_part, ("task", "algorithm", "wait", "delay", "optimizer")),
        ("a count", _is_count, ("seed", "workers")),
    )
    return complaint(config, fields, [name for _, _, names in fields for name in names]) is None
