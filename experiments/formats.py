"""The JSON files of a workdir: the fields of each kind, digests, and the way out of a damaged one.

A field that is there must be of its type; only those that are `needed` must be there. A file that
is damaged anywhere is refused as a whole, in one sentence per kind. A finished run leaves the
SHA-256 of its files in `digests.json`, which are compared whenever one of them is read.
"""

import contextlib
import datetime
import json
import sys
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments import files
from experiments.registry import brief, is_number, is_visible

DIGESTS = "digests.json"  # names of files of a finished run -> their SHA-256
SEALED = ("config.json", "metrics.jsonl", "schedule.npz", "parameters.npz", "summary.json")
_LARGEST = sys.float_info.max  # beyond it a whole number of JSON is no float


class Damaged(ValueError):
    """An error about a file whose content is not of the kind that its name stands for."""


class Format(NamedTuple):
    """A kind of JSON object: a file, or a line of one.

    fields: name -> pattern of a field if present. A pattern is a type, a test, a list of a pattern,
    a tuple of alternatives, or another format. needed: the names of required fields. way_out: the
    remedy if damaged, with {path} and {folder} for its place.
    """

    fields: Mapping[str, Any]
    needed: tuple[str, ...] = ()
    way_out: str = ""


def read(path: str | Path, form: Format, sealed: bool = True) -> dict[str, Any]:
    """Return the object in a JSON file; Damaged where there is none of this kind.

    sealed: whether a file of a finished run has to match the run's digest of it.
    """
    if sealed:
        check_digest(path, form)
    with reading(path, form):
        return checked(parse(files.read(path)), path, form)


@contextlib.contextmanager
def reading(path: str | Path, form: Format) -> Iterator[None]:
    """Turn any error while a file is read into Damaged."""
    try:
        yield
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise damaged(path, error, form) from error


def check_digest(path: str | Path, form: Format) -> None:
    """Raise Damaged for a file that has changed since its run finished."""
    path = Path(path)
    if path.name not in SEALED:
        return
    with reading(path, form):
        try:
            known = parse(files.read(path.with_name(DIGESTS))).get(path.name, ...)
        except FileNotFoundError:  # of an older run, or one that has not finished
            return
        except (ValueError, AttributeError, RecursionError):
            known = None
        if known not in (..., files.digest(path)):
            raise ValueError(f"its SHA-256 is not in {DIGESTS}, without which it is taken as it is")


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
    reason = brief(getattr(why, "strerror", None) or why) or type(why).__name__
    way_out = form.way_out.format(path=path, folder=Path(path).parent)
    return Damaged(f"{path} cannot be read ({reason}); {way_out}")


def fits(value: Any, pattern: Any) -> bool:
    """Return whether a value matches a pattern, see `Format`."""
    if isinstance(pattern, Format):
        return _fault(value, pattern) is None
    if isinstance(pattern, tuple):
        return any(fits(value, one) for one in pattern)
    if isinstance(pattern, list):
        return isinstance(value, list) and all(fits(one, pattern[0]) for one in value)
    if pattern is None or isinstance(pattern, type):
        return value is None if pattern is None else isinstance(value, pattern)
    return pattern(value)


def _fault(value: Any, form: Format) -> str | None:
    if not isinstance(value, Mapping):
        return "object"
    wrong = [name for name in form.needed if name not in value] or [
        name for name, one in form.fields.items() if name in value and not fits(value[name], one)
    ]
    return repr(wrong[0]) if wrong else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_visible(value.replace("\n", " ").replace("\t", " "))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and is_visible(value)


def _is_count(value: Any) -> bool:
    return is_number(value, Integral) and 0 <= value < 2**63


def _is_finite(value: Any) -> bool:
    return is_number(value, Real) and -_LARGEST <= value <= _LARGEST


def _is_time(value: Any) -> bool:
    return _is_finite(value) and 0 <= value < 1e18  # s or bytes; their squares are finite


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _is_date(value: Any) -> bool:
    try:
        datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_table(value: Any, cell: Any = str) -> bool:
    """Return whether each row of a table has one cell of this pattern per column."""
    whole = fits(value, Format({"columns": [str], "rows": [[cell]]}, ("columns", "rows")))
    return whole and all(len(row) == len(value["columns"]) for row in value["rows"])


def _are_arms(value: Any) -> bool:
    """Return whether a value is a table of arms, as `publish.take` writes them."""
    if not _is_table(value, object):
        return False
    arms = [dict(zip(value["columns"], row, strict=True)) for row in value["rows"]]
    return fits(arms, [Format(_OF_ARM, _IN_TABLE)])


_MEASURED = (
    "train_loss", "test_loss", "test_accuracy", "consensus_distance", "bytes_per_worker",
    "communication_seconds", "wall_seconds", "input_wait_seconds",
)  # fmt: skip
BY_SEED = (  # fields whose number for each seed is in a summary of several seeds
    "seconds_to_target", "updates_to_target", "communication_seconds_to_target", "train_loss",
    "final_train_loss", "test_accuracy", "updates", "samples", "staleness_mean", "train_loss_long",
    "train_loss_short",
)  # fmt: skip
_NUMBERS = (
    *_MEASURED, *(f"{name}_std" for name in _MEASURED), "target_loss", "seconds_to_target",
    "seconds_to_target_std", "updates_to_target", "samples_to_target",
    "communication_seconds_to_target", "updates", "samples", "seconds", "final_train_loss",
    "idle_fraction", "staleness_mean", "test_accuracy_worst_worker", "test_accuracy_best_worker",
    "test_samples",
)  # fmt: skip
_OF_ARM: Mapping[str, Any] = MappingProxyType({
    **dict.fromkeys(("name", "clock", "wait", "algorithm", "runtime"), _is_name),
    "baseline": (None, _is_name), "stopped": (None, _is_text), "seed": _is_count,
    "workers": lambda value: _is_count(value) and 0 < value < 2**31, "seeds": [_is_count],
    "reached": _is_name, **dict.fromkeys(_NUMBERS, (None, _is_finite)),
    **{f"{name}_by_seed": (None, [(None, _is_finite)]) for name in BY_SEED},
})  # fmt: skip
_IN_TABLE = (
    "name", "baseline", "clock", "target_loss", "updates", "samples", "seconds",
    "seconds_to_target", "train_loss", "test_accuracy", "idle_fraction", "bytes_per_worker",
)  # fmt: skip

LINE = Format(
    {
        **dict.fromkeys(("update", "samples"), _is_count), "seconds": _is_finite,
        **dict.fromkeys(_MEASURED, (None, _is_finite)), "slow_worker": _is_count,
        "slow_factor": (None, _is_finite), "slow_persistent": bool,
        **dict.fromkeys(("slow_link_from", "slow_link_to"), _is_count),
        "slow_link_factor": (None, _is_finite), "slow_link_persistent": bool,
    },
    (),
    "remove the summary.json and the checkpoint of {folder}, and the same command trains that run "
    "again and leaves all others",
)  # fmt: skip
# Fields of a metrics line that figures need; a run that goes on needs one more.
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
    {"arms": [Format(_OF_ARM, ("name",))]},
    (),
    "remove it, and the same command writes it again from its arms' summaries",
)
WHOLE_SWEEP = SWEEP._replace(fields={"arms": [Format(_OF_ARM, _IN_TABLE)]})
NOTE = Format(
    {
        "command": str, "about": str, "date": _is_date, "versions": _are_texts,
        "claims": [lambda pair: fits(pair, [str]) and len(pair) == 2],
        "numbers": [lambda table: _is_table(table) and isinstance(table.get("title"), str)],
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
_JOB = Format({"arms": [str]}, ("arms",))
SLURM_JOBS = Format(
    {"jobs": lambda value: isinstance(value, dict) and fits([*value.values()], [_JOB])},
    ("jobs",),
    "when none of them is left in Slurm's queue, remove it, and the same command goes on",
)
_TIMES = ("ready", "sizes", "seconds")
PROFILE = Format(
    {
        "layers": [[str]],
        **dict.fromkeys(_TIMES, (None, [_is_time])),
        **dict.fromkeys(("error", "forward", "contention"), (None, _is_finite)),
    },
    ("layers", "ready"),
    "write it with experiments.profiling.save, or as docs/extend.md says",
)
MEASURED_PROFILE = PROFILE._replace(needed=("layers", *_TIMES))
PUBLISHED = Format(
    {
        **NOTE.fields, **dict.fromkeys(("count", "seeds"), _is_count), "settings": _are_texts,
        "arms": _are_arms, "summary": dict, "remark": str,
    },
    NOTE.needed,
    "take it in again with python -m experiments.publish take WORKDIR",
)  # fmt: skip
ANYTHING = Format({}, (), "give another file, or let the program that wrote it write it again")


def is_arm(config: Any) -> bool:
    """Return whether a config is an arm's, also of an older version with other entries."""
    part = (_is_name, Format({"name": _is_name}, ("name",)))
    fields = {
        **dict.fromkeys(("name", "runtime"), _is_name),
        **dict.fromkeys(("task", "algorithm", "wait", "delay", "optimizer"), part),
        **dict.fromkeys(("seed", "workers"), _is_count),
    }
    return fits(config, Format(fields, tuple(fields)))
