"""Parts: how configs name a method, a rule, a task or whatever else has parameters of its own.

In Python a part is written `part("deadline", seconds=0.3, leftovers="drop")`, and on the command
line `deadline(seconds=0.3, leftovers=drop)`, so that one flag can replace it. Both become the same
mapping, {"name": "deadline", "seconds": 0.3, ...}, in which `--config.wait.seconds=0.4` is an
entry. Parts that others are made of come first, without a name, as in `chain(random_k(ratio=0.1),
sign)`; the mapping has them as a list under "*". A name of our own is a key of a registry; any
other is brought along as `package.module:factory`. See `experiments.kinds`.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

# Entries of an arm that hold parts, and entries that may.
PARTS = ("task", "split", "algorithm", "graph", "optimizer", "wait", "delay")
NUMBER_OR_PART = ("communication",)
# Either a quoted text, which stays as it is, or a name that is brought along.
_BROUGHT = re.compile(r"""("[^"]*"|'[^']*')|\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)""")
_STAND_IN = "brought_along_"  # stands in for such a name, which Python's grammar does not have


def part(name: str, /, *inner: "Part", **parameters: Any) -> ConfigDict:
    """A part by its name, the parts that it is made of, and its parameters."""
    if "name" in parameters or "*" in parameters:
        raise ValueError(f"part {name!r}: no parameter can be called 'name' or '*'; rename it")
    return as_part({"name": name, **({"*": list(inner)} if inner else {}), **parameters})


def as_part(written: "Part") -> ConfigDict:
    """A part in the one form that all code reads: a mapping with "name" and the parameters.

    written: such a mapping, a text like a call, or a list of parts, which is their `chain`.
    Values of parameters are Python literals, true and false, bare words (texts) or parts.
    Raises ValueError for anything else.
    """
    if isinstance(written, list | tuple):
        written = {"name": "chain", "*": list(written)}
    if hasattr(written, "items"):
        entries = dict(written.items())
        if isinstance(entries.get("*"), list | tuple):
            entries["*"] = [as_part(inner).to_dict() for inner in entries["*"]]
        return ConfigDict(entries)
    value, why = None, ""
    try:
        value = read(written)
    except (
        SyntaxError, ValueError, AttributeError, TypeError, RecursionError, MemoryError
    ) as error:  # fmt: skip
        why = _piece(written, error)
    if isinstance(value, str):
        value = ConfigDict({"name": value})
    if isinstance(value, list) and value and all(map(is_part, value)):
        value = part("chain", *value)
    if not isinstance(value, ConfigDict):
        raise ValueError(
            f"cannot read the part {written!r}{why}; write it as name or name(parameter=value, ...)"
        )
    return value


class _Unclear(ValueError):
    """A piece of a text that is no part, and how to write it."""


_PATH = re.compile(r"""(\w+)\s*=\s*([^\s,()'"\[\]{}=]*)""")
_LIKE_A_PATH = re.compile(r".*[/~\\*].*|[A-Za-z_][\w.-]*\.\w+")


def _piece(text: Any, error: Exception) -> str:
    """Say which piece of a text is at fault, where that can be said."""
    if isinstance(error, _Unclear):
        return f": {error}"
    for key, value in _PATH.findall(text) if isinstance(text, str) else ():
        if _LIKE_A_PATH.fullmatch(value):
            return f": a path has quotes inside of the part, {key}={value!r}"
    if isinstance(text, str) and _LIKE_A_PATH.fullmatch(text):
        return f": a path stands in a parameter, as in name(path={text!r})"
    if not isinstance(error, SyntaxError) or not error.text or _STAND_IN in error.text:
        return ""
    rest = error.text[max(0, (error.offset or 1) - 1) :].strip()
    return f": {error.msg}, at {rest or 'the end'}"


def read(text: str) -> Any:
    """The value that a text stands for: a literal, a bare word (as text) or a part.

    Raises SyntaxError or ValueError for a text that is none of these.
    """
    names: list[str] = []

    def stand_in(match: re.Match) -> str:
        if match[1]:
            return match[1]
        names.append(match[2])
        return f"{_STAND_IN}{len(names) - 1}"

    return _value(ast.parse(_BROUGHT.sub(stand_in, text.strip()), mode="eval").body, names)


def _value(node: ast.expr, names: list[str]) -> Any:
    if isinstance(node, ast.Name):
        if node.id.startswith(_STAND_IN):
            return names[int(node.id.removeprefix(_STAND_IN))]
        return {"true": True, "false": False}.get(node.id, node.id)
    if isinstance(node, ast.Call):
        keys = ["name", *(keyword.arg for keyword in node.keywords)]
        twice = [key for key in keys if key is not None and keys.count(key) > 1]
        if twice:
            raise _Unclear(f"{twice[0]} stands there twice, leave one")
        if None in keys or not isinstance(node.func, ast.Name):  # f(**a), f(a)(b)
            raise ValueError
        inner = [_inner(argument, names, _value(node.func, names)) for argument in node.args]
        parameters = {keyword.arg: _value(keyword.value, names) for keyword in node.keywords}
        return part(_value(node.func, names), *inner, **parameters)
    if isinstance(node, ast.List | ast.Tuple) and any(
        isinstance(element, ast.Call | ast.Name) for element in node.elts
    ):
        return [as_part(_inner(element, names)).to_dict() for element in node.elts]
    if isinstance(node, ast.Dict) and any(
        isinstance(value, ast.Call | ast.Name) for value in node.values
    ):
        return {
            _value(key, names): as_part(_inner(value, names)).to_dict()
            for key, value in zip(node.keys, node.values, strict=True)
        }
    return ast.literal_eval(node)


def _inner(node: ast.expr, names: list[str], around: str = "") -> "Part":
    """A part without a key: f(g) and f(g(a=1)), but neither f(1) nor f(true)."""
    value = _value(node, names) if isinstance(node, ast.Name | ast.Call) else None
    if not is_part(value):
        piece = ast.unparse(node)
        way = f"{around}(parameter={piece}), as --list names it" if around else "parts alone"
        raise _Unclear(f"{piece} has no name, write {way}")
    return value


def spec(written: "Part") -> dict[str, Any]:
    """A part as a plain dictionary, which the caller may change."""
    return as_part(written).to_dict()


def text(written: Any) -> str:
    """A value as one would write it on the command line: parts as calls, the rest as literals."""
    if isinstance(written, str):
        return written
    if hasattr(written, "items") and "name" in written:
        entries = dict(written.items())
        name, inner = entries.pop("name"), entries.pop("*", ())
        arguments = [*map(text, inner), *(f"{key}={_literal(v)}" for key, v in entries.items())]
        return f"{name}({', '.join(arguments)})" if arguments else str(name)
    if isinstance(written, list | tuple) and any(hasattr(value, "items") for value in written):
        return f"[{', '.join(map(text, written))}]"
    if hasattr(written, "items") and any(hasattr(value, "items") for value in written.values()):
        return f"{{{', '.join(f'{key!r}: {text(value)}' for key, value in written.items())}}}"
    return str(written.to_dict() if isinstance(written, ConfigDict) else written)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _reads_back(value) else repr(value)
    return text(value)


def _reads_back(value: str) -> bool:
    """Whether a text is a bare word, so that it needs no quotes."""
    try:
        return read(value) == value
    except (SyntaxError, ValueError, AttributeError):
        return False


def is_part(value: Any) -> bool:
    """Whether a value can be a part: a text or a mapping."""
    return isinstance(value, str) or hasattr(value, "items")


def is_brought(name: str) -> bool:
    """Whether a text is the name of something brought along, `package.module:factory`."""
    match = _BROUGHT.fullmatch(name)
    return match is not None and match[2] is not None


def canonical(config: ConfigDict) -> ConfigDict:
    """A copy of a config in which every part is a mapping, whichever way it was written.

    Raises ValueError for a text that cannot be read; what is no part at all stays as it is.
    """
    copy = config.copy_and_resolve_references()
    with copy.unlocked(), copy.ignore_type():
        for name in (*PARTS, *NUMBER_OR_PART):
            chained = name == "optimizer" and isinstance(copy.get(name), list | tuple)
            if chained or is_part(copy.get(name)):
                copy[name] = as_part(copy[name])
    return copy


Part = str | Mapping[str, Any]
