"""The JSON files of a workdir: which fields each kind has, and the way out of a damaged one.

A field that is there must be of its type; only those that are `needed` must be there. A file that
is damaged anywhere is refused as a whole, in one sentence per kind.
"""

import datetime
import json
import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments import files
from experiments.registry import brief, is_number, is_visible

_LARGEST = sys.float_info.max  # beyond it a whole number of JSON is no float
Fits = Callable[[Any], bool]


class Damaged(ValueError):
    """A file does not hold what we write into files of its name."""


class Format(NamedTuple):
    """A kind of file, or of a line of one: a JSON object.

    fields: tests of fields, where they are there. needed: the names of fields that must be.
    way_out: out of a damaged one, with {path} and {folder} for where it lies.
    """

    fields: Mapping[str, Fits]
    needed: tuple[str, ...]
    way_out: str


def read(path: str | Path, form: Format) -> dict[str, Any]:
    """Return the object in a JSON file; Damaged where there is none of this kind."""
    try:
        return checked(parse(files.read(path)), path, form)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise damaged(path, error, form) from error


def parse(text: str | bytes) -> Any:
    """Return a value in strict JSON; ValueError, or RecursionError for endless nesting."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON")

    return json.loads(text if isinstance(text, str) else text.decode(), parse_constant=refuse)


def checked(value: Any, path: str | Path, form: Format) -> dict[str, Any]:
    """Return the value, if it is an object of this kind; else raise Damaged."""
    fault = _fault(value, form)
    if fault is not None:
        raise damaged(path, f"its {fault} is missing or not what is written there", form)
    return value


def damaged(path: str | Path, why: Exception | str, form: Format) -> Damaged:
    """Return the error that names a file, its fault and the way out."""
    if isinstance(why, Damaged):
        return why
    reason = {
        RecursionError: "it is nested too deeply",
        MemoryError: "it is too large",
    }.get(type(why)) or brief(getattr(why, "strerror", None) or why)
    way_out = form.way_out.format(path=path, folder=Path(path).parent)
    return Damaged(f"{path} cannot be read ({reason}); {way_out}")


def fits(value: Any, form: Format) -> bool:
    """Return whether a value is an object of this kind."""
    return _fault(value, form) is None


def _fault(value: Any, form: Format) -> str | None:
    if not isinstance(value, Mapping):
        return "object"
    missing = (name for name in form.needed if name not in value)
    wrong = (name for name, test in form.fields.items() if name in value and not test(value[name]))
    return next((repr(name) for names in (missing, wrong) for name in names), None)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_visible(value.replace("\n", " ").replace("\t", " "))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and is_visible(value)


def _is_count(value: Any) -> bool:
    return is_number(value, Integral) and 0 <= value < 2**63


def _is_finite(value: Any) -> bool:
    return is_number(value, Real) and -_LARGEST <= value <= _LARGEST


def _is_time(value: Any) -> bool:
    return _is_finite(value) and 0 <= value < 1e18  # s or bytes, whose squares are numbers


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _is_date(value: Any) -> bool:
    try:
        datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_share(value: Any) -> bool:
    parts = value.split("/", 1) if isinstance(value, str) else [""]
    return all(part.isascii() and part.isdigit() for part in parts)


def _or_none(test: Fits) -> Fits:
    return lambda value: value is None or test(value)


def _list_of(test: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _object(fields: Mapping[str, Fits], needed: tuple[str, ...]) -> Fits:
    return lambda value: fits(value, Format(fields, needed, ""))


def _are_cells(value: Any) -> bool:
    """Return whether a table has as many cells in each row as columns."""
    return all(len(row) == len(value["columns"]) for row in value["rows"])


def _table(needed: tuple[str, ...]) -> Fits:
    """Return the test of a table of arms, as `publish.take` writes them."""
    is_table = _object(
        {"columns": _list_of(_is_string), "rows": _list_of(lambda row: isinstance(row, list))},
        ("columns", "rows"),
    )
    is_arm = _object(_OF_ARM, needed)

    def test(value: Any) -> bool:
        if not is_table(value) or not _are_cells(value):
            return False
        arms = [dict(zip(value["columns"], row, strict=True)) for row in value["rows"]]
        return all(map(is_arm, arms)) and (not arms or value["columns"][0] == "name")

    return test


_MEASURED = (
    "train_loss", "test_loss", "test_accuracy", "consensus_distance", "bytes_per_worker",
    "communication_seconds", "wall_seconds", "input_wait_seconds",
)  # fmt: skip
BY_SEED = (  # fields of which a summary of several seeds has every seed's number
    "seconds_to_target", "updates_to_target", "communication_seconds_to_target", "train_loss",
    "final_train_loss", "test_accuracy", "updates", "staleness_mean",
)  # fmt: skip
_NUMBERS = (
    *_MEASURED, *(f"{name}_std" for name in _MEASURED), "target_loss", "seconds_to_target",
    "seconds_to_target_std", "updates_to_target", "samples_to_target",
    "communication_seconds_to_target", "updates", "samples", "seconds", "final_train_loss",
    "idle_fraction", "staleness_mean", "test_accuracy_worst_worker", "test_accuracy_best_worker",
    "test_samples",
)  # fmt: skip
_OF_ARM: Mapping[str, Fits] = MappingProxyType({
    **dict.fromkeys(("name", "clock", "wait", "algorithm", "runtime"), _is_name),
    "baseline": _or_none(_is_name), "stopped": _or_none(_is_text), "seed": _is_count,
    "workers": lambda value: _is_count(value) and 0 < value < 2**31, "seeds": _list_of(_is_count),
    "reached": _is_share, **dict.fromkeys(_NUMBERS, _or_none(_is_finite)),
    **{f"{name}_by_seed": _or_none(_list_of(_or_none(_is_finite))) for name in BY_SEED},
})  # fmt: skip
_IN_TABLE = (
    "name", "baseline", "clock", "target_loss", "updates", "samples", "seconds",
    "seconds_to_target", "train_loss", "test_accuracy", "idle_fraction", "bytes_per_worker",
)  # fmt: skip

LINE = Format(
    {
        **dict.fromkeys(("update", "samples"), _is_count), "seconds": _is_finite,
        **dict.fromkeys(_MEASURED, _or_none(_is_finite)),
    },
    (),
    "remove the summary.json and the checkpoint of {folder}, and the same command trains that run "
    "again and leaves all others",
)  # fmt: skip
# Of a run that goes into tables and figures, and of one that goes on.
_DRAWN = ("update", "samples", "seconds", "train_loss", "consensus_distance", "bytes_per_worker")
WHOLE_LINE = LINE._replace(needed=_DRAWN)
RESUMED_LINE = LINE._replace(needed=(*_DRAWN, "communication_seconds"))
SUMMARY = Format(
    _OF_ARM,
    (),
    "remove it, and the same command trains that run again and leaves all others, or give another "
    "--workdir",
)
WHOLE_SUMMARY = SUMMARY._replace(needed=(*_IN_TABLE, "seed", "wait", "workers"))
SWEEP = Format(
    {"arms": _list_of(_object(_OF_ARM, ("name",)))},
    (),
    "remove it, and the same command writes it again from its arms' summaries",
)
WHOLE_SWEEP = SWEEP._replace(fields={"arms": _list_of(_object(_OF_ARM, _IN_TABLE))})
_NUMBERS_TABLE = _object(
    {"title": _is_string, "columns": _list_of(_is_string), "rows": _list_of(_list_of(_is_string))},
    ("title", "columns", "rows"),
)
NOTE = Format(
    {
        "command": _is_string, "about": _is_string, "date": _is_date, "versions": _is_texts,
        "claims": _list_of(lambda pair: _list_of(_is_string)(pair) and len(pair) == 2),
        "numbers": _list_of(lambda table: _NUMBERS_TABLE(table) and _are_cells(table)),
    },
    ("command", "date", "versions", "claims"),
    "the command, the date and the claims are left out until the same launch writes it anew",
)  # fmt: skip
CONFIG = Format(
    {"name": _is_name},
    (),
    "give another --workdir, or remove it together with all that lies beside it",
)
GIVEN_CONFIG = CONFIG._replace(way_out="give a Python file, or the config.json of a run")
_JOB = _object({"arms": _list_of(_is_string), "tasks": _is_count}, ("arms", "tasks"))
SLURM_JOBS = Format(
    {"jobs": lambda value: isinstance(value, dict) and all(map(_JOB, value.values()))},
    ("jobs",),
    "when none of them is left in Slurm's queue, remove it, and the same command goes on",
)
_TIMES = ("ready", "sizes", "seconds")
PROFILE = Format(
    {
        "layers": _list_of(_list_of(_is_string)),
        **dict.fromkeys(_TIMES, _or_none(_list_of(_is_time))),
        **dict.fromkeys(("error", "forward"), _or_none(_is_finite)),
    },
    ("layers", "ready"),
    "write it with experiments.profiling.save, or as docs/extend.md says",
)
MEASURED_PROFILE = PROFILE._replace(needed=("layers", *_TIMES))
# A record of docs/results: of which a number is quoted, and which has a section of its own.
QUOTED = Format(
    {
        **NOTE.fields, **dict.fromkeys(("count", "seeds"), _is_count), "settings": _is_texts,
        "arms": _table(("name",)), "summary": _is_object, "remark": _is_string,
    },
    (),
    "take it in again with python -m experiments.publish take WORKDIR",
)  # fmt: skip
PUBLISHED = QUOTED._replace(fields={**QUOTED.fields, "arms": _table(_IN_TABLE)}, needed=NOTE.needed)
PUBLISHED_SWEEP = PUBLISHED._replace(needed=(*NOTE.needed, "count", "seeds", "arms"))
ANYTHING = Format({}, (), "give another file, or let the program that wrote it write it again")


def is_arm(config: Any) -> bool:
    """Return whether a config is an arm's, also of an older version with other entries."""

    def is_part(value: Any) -> bool:
        return _is_name(value) or (isinstance(value, dict) and _is_name(value.get("name")))

    fields = {
        **dict.fromkeys(("name", "runtime"), _is_name),
        **dict.fromkeys(("task", "algorithm", "wait", "delay", "optimizer"), is_part),
        **dict.fromkeys(("seed", "workers"), _is_count),
    }
    return fits(config, Format(fields, tuple(fields), ""))
