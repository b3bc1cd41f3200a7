"""Configs name parts and their parameters; this reads a name, builds a part and explains misfits.

A part is written like a call, `deadline(seconds=0.3, leftovers=drop)`, so that one flag can
replace it; a mapping {"name": "deadline", "seconds": 0.3, ...} says the same.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def spec(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """`"name(key=value, ...)"` or a mapping with "name" -> dict with "name" and the parameters.

    Values are Python literals, bare words (strings) or parts themselves (dicts).
    """
    if not isinstance(text, str):
        return dict(text)
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
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
        return node.id
    if isinstance(node, ast.Call):
        if node.args or not isinstance(node.func, ast.Name):
            raise ValueError
        return {"name": node.func.id, **{k.arg: _value(k.value) for k in node.keywords}}
    return ast.literal_eval(node)


def build(kind: str, factories: Mapping[str, Callable], part: str | Mapping[str, Any], **available):
    """Call the factory that `part` names with the parameters that it gives.

    kind: what the part is called in errors, e.g. "algorithm".
    available: what the experiment can offer; a factory gets what it has a parameter for.
    Raises ValueError for an unknown name, an unknown parameter or a missing one.
    """
    given = spec(part)
    name = given.pop("name", None)
    if name not in factories:
        raise ValueError(
            f"{kind}: unknown name {name!r}; known names: {', '.join(sorted(factories))}"
        )
    parameters = inspect.signature(factories[name]).parameters
    own = [p for p in parameters if p not in available]
    for parameter in given:
        if parameter not in own:
            raise ValueError(
                f"{kind} {name!r}: unknown parameter {parameter!r}; "
                f"it takes: {', '.join(own) or 'no parameters'}"
            )
    for parameter in own:
        if parameters[parameter].default is inspect.Parameter.empty and parameter not in given:
            raise ValueError(
                f"{kind} {name!r}: parameter {parameter!r} is missing; "
                f"write {name}({parameter}=...)"
            )
    offered = {p: available[p] for p in parameters if p in available}
    return factories[name](**offered, **given)


def wants(factories: Mapping[str, Callable], part: str | Mapping[str, Any], parameter: str) -> bool:
    """Whether the named factory has such a parameter; False for an unknown name."""
    factory = factories.get(spec(part).get("name"))
    return factory is not None and parameter in inspect.signature(factory).parameters
