"""Arguments of a config: `--config=file.py:ARGUMENTS`, as in `workers=16,quick`."""

from collections.abc import Mapping
from typing import Any

from experiments import registry


def parse(text: str | None, **defaults) -> dict[str, Any]:
    """Return defaults as a dict, changed by a text `"workers=16,quick"`; a bare name means True.

    A value takes the type of its default. Raises ValueError for an unknown name or a bad value.
    """
    values = dict(defaults)
    for item in filter(None, map(str.strip, (text or "").split(","))):
        name, given, value = item.partition("=")
        if name not in defaults:
            raise ValueError(
                f"config argument {name!r} is unknown; {registry.meant(name, defaults)}"
                f"known arguments: {registry.listed(defaults)}"
            )
        kind = type(defaults[name])
        if kind is bool:
            if value.lower() not in ("", "true", "false"):
                raise ValueError(f"config argument {name!r} is a switch, got {value!r}; use true")
            values[name] = value.lower() != "false"
            continue
        try:
            values[name] = kind(value)
        except ValueError:
            given = ""
        if not given:
            raise ValueError(
                f"config argument {name!r} needs a value of type {kind.__name__}, got {value!r}; "
                f"write {name}={defaults[name]}"
            )
    return values


def chosen(values: Mapping[str, Any], name: str, known: Mapping[str, Any]) -> Any:
    """Return the value in `known` that an argument names; ValueError for an unknown name."""
    value = values[name]
    if value not in known:
        raise ValueError(
            f"unknown {name} {value!r}; {registry.meant(value, known)}known {name}s: "
            f"{registry.listed(known)}"
        )
    return known[value]
