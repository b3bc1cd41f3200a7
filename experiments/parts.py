"""Configs name parts and their parameters; this reads a name, builds a part and explains misfits.

A part is written like a call, `deadline(seconds=0.3, leftovers=drop)`, so that one flag can
replace it; a mapping {"name": "deadline", "seconds": 0.3, ...} says the same. Parts that others are
made of come first, without a name, as in `chain(random_k(ratio=0.1), sign)`; in a mapping they are
a list under "*".
"""

import ast
import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from ml_collections import ConfigDict

# By the name of an annotation: how to call such values, and a test for them.
_KINDS = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: is_number(value, Integral)),
    "float": ("a number", lambda value: is_number(value)),
    "str": ("text", lambda value: isinstance(value, str)),
}


def spec(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """`"name(part, ..., key=value, ...)"` or a mapping -> dict with "name" and the parameters.

    Values are Python literals, true and false, bare words (strings) or parts themselves (dicts).
    What has no key has to be a part, and goes into a list under "*".
    """
    if hasattr(text, "items"):
        return dict(text.items())
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, AttributeError):
        value = None
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or "name" not in value:
        raise ValueError(
            f"cannot read the part {text!r}; write it as name or name(parameter=value, ...)"
        )
    return value


def _value(node: ast.expr):
    if isinstance(node, ast.Name):
        return {"true": True, "false": False}.get(node.id, node.id)
    if isinstance(node, ast.Call):
        keys = ["name", *(k.arg for k in node.keywords)]
        unclear = None in keys or len(set(keys)) < len(keys)  # f(**a), f(a=, a=)
        if unclear or not isinstance(node.func, ast.Name):
            raise ValueError
        named = {"name": node.func.id, **{k.arg: _value(k.value) for k in node.keywords}}
        return named | ({"*": [_part(argument) for argument in node.args]} if node.args else {})
    return ast.literal_eval(node)


def _part(node: ast.expr):
    """A part without a key: f(g) and f(g(a=1)), but neither f(1) nor f(true)."""
    value = _value(node) if isinstance(node, ast.Name | ast.Call) else None
    if not _is_part(value):
        raise ValueError
    return value


def build(
    kind: str, factories: Mapping[str, Callable], part: str | Mapping[str, Any], **available
) -> Any:
    """Call the factory that `part` names with the parameters that it gives.

    kind: what the part is called in errors, e.g. "algorithm".
    available: what the experiment can offer; a factory gets what it has a parameter for.
    Raises ValueError for an unknown name, for an unknown or a missing parameter, and for a value
    that the factory cannot use.
    """
    given = spec(part)
    name = given.pop("name", None)
    if name not in factories:
        raise ValueError(
            f"{kind}: unknown name {name!r}; known names: {', '.join(sorted(factories))}"
        )
    parameters = dict(inspect.signature(factories[name]).parameters)
    inner = given.pop("*", ())
    several = [p for p in parameters if parameters[p].kind is inspect.Parameter.VAR_POSITIONAL]
    if inner and not several:
        raise ValueError(
            f"{kind} {name!r}: is not made of other parts, got {len(inner)} without a key; "
            f"write {name}(parameter=value, ...)"
        )
    for parameter in several:
        del parameters[parameter]
    own = [p for p in parameters if p not in available]
    for parameter, value in given.items():
        if parameter not in own:
            raise ValueError(
                f"{kind} {name!r}: unknown parameter {parameter!r}; "
                f"it takes: {', '.join(own) or 'no parameters'}"
            )
        _check_kind(f"{kind} {name!r}", parameters[parameter], value)
    for parameter in own:
        if parameters[parameter].default is inspect.Parameter.empty and parameter not in given:
            raise ValueError(
                f"{kind} {name!r}: parameter {parameter!r} is missing; "
                f"write {name}({parameter}=...)"
            )
    offered = {p: available[p] for p in parameters if p in available}
    try:
        return factories[name](*inner, **offered, **given)
    except (TypeError, AttributeError, ArithmeticError) as error:
        # What annotations do not tell, as 3 where a list is due, shows when it is used.
        raise ValueError(
            f"{kind} {name!r}: cannot use {given} ({error}); correct a parameter"
        ) from error


def _check_kind(part: str, parameter: inspect.Parameter, value) -> None:
    annotation = parameter.annotation
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else ()
    if types.NoneType in members and len(members) == 2:  # as int | None
        if value is None:
            return
        annotation = next(member for member in members if member is not types.NoneType)
    annotation = getattr(annotation, "__name__", annotation)
    words, fits = _KINDS.get(annotation, ("anything", lambda value: True))
    if not fits(value):
        raise ValueError(
            f"{part}: parameter {parameter.name!r} must be {words}, got {value!r}; correct it"
        )


def wants(factories: Mapping[str, Callable], part: str | Mapping[str, Any], parameter: str) -> bool:
    """Whether the named factory has such a parameter; False for an unknown name."""
    factory = factories.get(spec(part).get("name"))
    return factory is not None and parameter in inspect.signature(factory).parameters


def is_number(value, kind: type = Real) -> bool:
    """Whether value is a number of this kind; true and false are none, whatever Python says."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_part(value) -> bool:
    return isinstance(value, str) or hasattr(value, "items")


def _is_finite(value) -> bool:
    return is_number(value) and math.isfinite(value)


def is_count(value) -> bool:
    """Whether value is a whole number above 0."""
    return is_number(value, Integral) and value > 0


def several(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test for a list or tuple with at least one value, all of which pass the test `fits`."""
    return lambda value: isinstance(value, list | tuple) and bool(value) and all(map(fits, value))


def _is_count_or_counts(value) -> bool:
    return is_count(value) or several(is_count)(value)


# What entries of a config must be: in words, as a test, and of which entries.
Entries = Iterable[tuple[str, Callable[[Any], Any], Iterable[str]]]
SEED = ("a whole number, 0 or more", lambda v: is_number(v, Integral) and v >= 0, ("seed",))
# Of an arm.
_ENTRIES: Entries = (
    ("a text", lambda v: isinstance(v, str) and v, ("name", "runtime", "draw")),
    ("a part, as in name(parameter=value)", _is_part,
     ("task", "split", "algorithm", "graph", "optimizer", "wait", "delay")),
    ("a positive whole number", is_count,
     ("workers", "batch_size", "updates", "devices", "rounds_per_dispatch")),
    ("a positive whole number, or one per worker", _is_count_or_counts, ("mini_batches",)),
    SEED,
    ("a positive number", lambda v: _is_finite(v) and v > 0, ("seconds", "evaluate_every")),
    ("a number, 0 or more, or a part", lambda v: _is_part(v) or (_is_finite(v) and v >= 0),
     ("communication",)),
    ("a positive number or None", lambda v: v is None or (_is_finite(v) and v > 0),
     ("target_loss",)),
    ("true or false", lambda v: isinstance(v, bool), ("stop_at_target",)),
    ("an arm's name or None", lambda v: v is None or isinstance(v, str), ("baseline",)),
)  # fmt: skip


def check_entries(config: ConfigDict) -> None:
    """Raise ValueError for an entry of an arm that is missing, of a wrong type or range."""
    check(config, _ENTRIES)


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
