"""What the entries of a config must be, checked from tables before anything is built."""

import functools
import math
import operator
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments import parts


def is_number(value, kind: type = Real) -> bool:
    """Whether value is a number of this kind; true and false are none, whatever Python says."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_finite(value) -> bool:
    return is_number(value) and math.isfinite(value)


def is_count(value) -> bool:
    """Whether value is a whole number above 0."""
    return is_number(value, Integral) and value > 0


def is_seed(value) -> bool:
    """Whether value is a seed: random numbers of devices know 32 bits of it."""
    return is_number(value, Integral) and 0 <= value < 2**32


def _is_interval(value) -> bool:
    return _is_finite(value) and value >= SHORTEST


def several(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test for a list or tuple with at least one value, all of which pass the test `fits`."""
    return lambda value: isinstance(value, list | tuple) and bool(value) and all(map(fits, value))


def _is_count_or_counts(value) -> bool:
    return is_count(value) or several(is_count)(value)


SHORTEST = 1e-6  # s between two evaluations
# What entries of a config must be: in words, as a test, and of which entries.
Entries = Iterable[tuple[str, Callable[[Any], Any], Iterable[str]]]
SEED = ("a whole number, 0 or more", lambda v: is_number(v, Integral) and v >= 0, ("seed",))
# Of an arm.
_ENTRIES: Entries = (
    ("a text", lambda v: isinstance(v, str) and v, ("name", "runtime", "draw")),
    ("a part, as in name(parameter=value)", parts.is_part,
     parts.PARTS),
    ("a positive whole number", is_count,
     ("workers", "batch_size", "updates", "devices", "rounds_per_dispatch")),
    ("a positive whole number, or one per worker", _is_count_or_counts, ("mini_batches",)),
    SEED,
    ("below 2**32, as devices draw from 32 bits of it", is_seed, ("seed",)),
    ("below 2**31, as devices count", lambda v: np.max(v) < 2**31,
     ("workers", "batch_size", "updates", "devices", "rounds_per_dispatch", "mini_batches")),
    ("a positive number", lambda v: _is_finite(v) and v > 0, ("seconds",)),
    (f"a number of seconds, {SHORTEST} or more", _is_interval, ("evaluate_every",)),
    ("a number, 0 or more, or a part", lambda v: parts.is_part(v) or (_is_finite(v) and v >= 0),
     parts.NUMBER_OR_PART),
    ("a positive number or None", lambda v: v is None or (_is_finite(v) and v > 0),
     ("target_loss",)),
    ("true or false", lambda v: isinstance(v, bool), ("stop_at_target",)),
    ("an arm's name or None", lambda v: v is None or isinstance(v, str), ("baseline",)),
)  # fmt: skip
# Of an arm, which may leave them out.
_OPTIONAL: Entries = (
    ("a positive whole number below 2**31", lambda v: is_count(v) and v < 2**31,
     ("devices_per_worker",)),
    ("a text", lambda v: isinstance(v, str), ("sharding",)),
    ("a path or None", lambda v: v is None or (isinstance(v, str) and bool(v)), ("initial",)),
)  # fmt: skip
OPTIONAL_TEXTS = ("initial", "sharding")
OPTIONAL = frozenset(name for _, _, names in _OPTIONAL for name in names)


def check_arm(config: ConfigDict) -> None:
    """Raise ValueError for an entry of an arm that is missing, of a wrong type or range."""
    check(config, _ENTRIES)
    for words, fits, names in _OPTIONAL:
        check(config, [(words, fits, [name for name in names if name in config])])


def check(config: ConfigDict, entries: Entries) -> None:
    """Raise ValueError for the first entry that is missing or fails its test.

    entries: (in words what entries must be, a test for one, their names); "a.b" names an entry of
        an entry.
    """
    for words, fits, names in entries:
        for name in names:
            try:
                value = functools.reduce(operator.getitem, name.split("."), config)
            except KeyError as error:
                raise ValueError(f"config.{name} is missing; set it to {words}") from error
            if not fits(value):
                raise ValueError(f"config.{name} must be {words}, got {value!r}; set config.{name}")
