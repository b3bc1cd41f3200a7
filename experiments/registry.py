"""The parts of a config, their factories by name, and checks of entries with one-sentence errors.

A part of a config, such as a method, a rule or a task, has a name and parameters of its own. In
Python a part is written `part("deadline", seconds=0.3, leftovers="drop")`. On the command line it
is `deadline(seconds=0.3, leftovers=drop)`, so that one flag can replace the part. Both become the
same mapping, {"name": "deadline", "seconds": 0.3, ...}, and `--config.wait.seconds=0.4` sets one
entry of the mapping. Inner parts are arguments without a key, as in `chain(random_k(ratio=0.1),
sign)`; the mapping lists inner parts under "*". Names of this codebase are keys of a registry, see
`Kind`. A user's own factory is named `package.module:factory`, and Python imports the module from
PYTHONPATH. The return value of such a factory is checked, and each mistake gives one sentence.
"""

import ast
import bisect
import contextlib
import difflib
import functools
import hashlib
import importlib
import inspect
import itertools
import operator
import re
import secrets
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

# --- sentences ---

MOST = 200  # characters of a user's text that an error quotes at most
LISTED = 100  # characters of a list of names at most
CLOSE = 0.7  # share of characters that a mistyped name needs in common with a known name
_LONGEST = 1000  # characters of a sentence at most
_QUOTED = re.compile(r"'[^']{200,}'|\"[^\"]{200,}\"|\S{200,}")
# Control characters, breaks of lines and paragraphs, changes of a text's direction, surrogates.
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def brief(text: Any) -> str:
    """Return a text on one line, without control characters, of at most 200 characters."""
    text = visible(" ".join(str(text).split()))
    return text if len(text) <= MOST else f"{text[:MOST]} ... ({len(text)} characters)"


def sentence(error: Exception | str) -> str:
    """Return an error on one line of at most 1000 characters, with quotes cut after 200."""
    text = visible(" ".join(str(error).split()))
    text = _QUOTED.sub(lambda match: brief(match[0]), text)
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST * 7 // 10]} ... {text[-_LONGEST // 4 :]}"


def meant(name: Any, known: Iterable[str]) -> str:
    """Return a question for the known name closest to a mistyped name, or "" if none is close.

        >>> meant("wokers", ["workers"])
        "did you mean 'workers'? "
    """
    close = difflib.get_close_matches(str(name), list(known), 1, CLOSE)
    return f"did you mean {close[0]!r}? " if close else ""


def listed(names: Iterable[str]) -> str:
    """Return names with commas; a list over 100 characters ends in the count of other names."""
    names = list(names)
    widths = list(itertools.accumulate(len(name) + 2 for name in names))
    shown = max(1, bisect.bisect(widths, LISTED))
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def visible(text: str) -> str:
    """Return a text with escapes in place of the characters that `is_visible` refuses."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def is_visible(text: str) -> bool:
    """Return whether a text is free of control characters, line breaks, surrogates and the like."""
    return not _HIDDEN.search(text)


# --- values ---


def is_number(value: Any, kind: type = Real) -> bool:
    """Return whether value is a number of this kind; true and false are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether value is a whole number above 0."""
    return is_number(value, Integral) and value > 0


def is_seed(value: Any) -> bool:
    """Return whether value is a seed, a whole number below 2**32, as JAX uses 32 bits."""
    return is_number(value, Integral) and 0 <= value < 2**32


# --- parts ---

Part = str | Mapping[str, Any]
# Entries of an arm that hold parts, and entries that hold a part or a number.
PARTS = ("task", "split", "algorithm", "graph", "optimizer", "wait", "delay")
NUMBER_OR_PART = ("communication",)
PLACES = (*PARTS, *NUMBER_OR_PART, "sharding")  # all entries that may hold parts
UNREADABLE = (SyntaxError, ValueError, AttributeError, TypeError, RecursionError, MemoryError)
# Either a quoted text, which stays as it is, or the name of a user's own factory.
_BROUGHT = re.compile(r"""("[^"]*"|'[^']*')|\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)""")
# Replaces the colon of such a name, which Python's grammar refuses; no user's text has this.
_COLON = f"._{secrets.token_hex(16)}_."
_ASSIGNED = re.compile(r"""(\w+)\s*=\s*([^\s,()'"\[\]{}=]*)""")
_PATH = re.compile(r".*[/~\\*].*|[A-Za-z_][\w.-]*\.\w+")


def part(name: str, /, *inner: Part, **parameters: Any) -> ConfigDict:
    """Return the part with a name, inner parts and parameters; see the module's docstring."""
    if "name" in parameters or "*" in parameters:
        raise ValueError(f"part {name!r}: no parameter can be called 'name' or '*'; rename it")
    return as_part({"name": name, **({"*": list(inner)} if inner else {}), **parameters})


UNIT = re.compile(r"\d[mun]?s\b")  # as in 10ms


def as_part(written: Part) -> ConfigDict:
    """Return a part in the form that all code reads: a mapping with "name" and the parameters.

    written: such a mapping, a text in the form of a call, or a list of parts to `chain`.
    Values of parameters are Python literals, true and false, bare words (texts) or parts.
    Raises ValueError for anything else.
    """
    value, why = written, ""
    if isinstance(value, str):
        try:
            value = read(value)
        except UNREADABLE as error:
            value, why = None, _piece(written, error)
        value = {"name": value} if isinstance(value, str) else value
    if isinstance(value, list | tuple) and (
        value is written or (value and all(map(is_part, value)))
    ):
        value = {"name": "chain", "*": list(value)}
    if not hasattr(value, "items") or (value is not written and "name" not in value):
        form = "name or name(parameter=value, ...)"
        if UNIT.search(str(written)):
            form += ", with durations in seconds and no unit"
        raise ValueError(f"cannot read the part {written!r}{why}; write it as {form}")
    entries = dict(value.items())
    if isinstance(entries.get("*"), list | tuple):
        entries["*"] = [spec(inner) for inner in entries["*"]]
    return ConfigDict(entries)


class _Unclear(ValueError):
    """An error about a piece of a text that is no part; its message says how to write it."""


def _piece(text: str, error: Exception) -> str:
    """Return words on the piece of a text that is at fault, or "" if it is unknown."""
    if isinstance(error, _Unclear):
        return f": {error}"
    for key, value in _ASSIGNED.findall(text):
        if _PATH.fullmatch(value):
            return f": a path has quotes inside of the part, {key}={value!r}"
        if re.search(r":\d", value):  # no factory of a module
            return f": a text with a colon has quotes inside of the part, {key}={value!r}"
    if _PATH.fullmatch(text):
        return f": a path stands in a parameter, as in name(path={text!r})"
    if not isinstance(error, SyntaxError) or not error.text or _COLON in error.text:
        return ""
    rest = error.text[max(0, (error.offset or 1) - 1) :].strip()
    return f": {error.msg}, at {rest or 'the end'}"


def read(text: str) -> Any:
    """Return the value of a text: a literal, a bare word (as text) or a part.

    Raises one of UNREADABLE for a text that is none of these.
    """
    marked = _BROUGHT.sub(lambda match: match[1] or match[2].replace(":", _COLON), text.strip())
    return _value(ast.parse(marked, mode="eval").body)


_NAMES = ast.Name | ast.Attribute  # an Attribute only in the name of a user's own factory


def _value(node: ast.expr) -> Any:
    if isinstance(node, _NAMES):
        name = ast.unparse(node).replace(_COLON, ":")
        if isinstance(node, ast.Attribute) and not is_brought(name):
            raise ValueError
        return {"true": True, "false": False}.get(name, name)
    if isinstance(node, ast.Call):
        keys = ["name", *(keyword.arg for keyword in node.keywords)]
        twice = [key for key in keys if key is not None and keys.count(key) > 1]
        if twice:
            raise _Unclear(f"{twice[0]} stands there twice, leave one")
        if None in keys or not isinstance(node.func, _NAMES):  # f(**a), f(a)(b)
            raise ValueError
        name = _value(node.func)
        inner = [_inner(argument, name) for argument in node.args]
        return part(name, *inner, **{k.arg: _value(k.value) for k in node.keywords})
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else ()
    elements = node.values if isinstance(node, ast.Dict) else elements
    if not any(isinstance(element, ast.Call | _NAMES) for element in elements):
        for inner in ast.walk(node):
            what = getattr(inner, "value", None) if isinstance(inner, ast.Constant) else inner
            if isinstance(what, ast.Set | complex | bytes | types.EllipsisType):
                raise _Unclear(f"{ast.unparse(node)} is no value of a config, write a list")
        return ast.literal_eval(node)
    values = [spec(_inner(element)) for element in elements]
    if isinstance(node, ast.Dict):
        return {_value(key): one for key, one in zip(node.keys, values, strict=True)}
    return values


def _inner(node: ast.expr, around: str = "") -> Part:
    """Return an inner part, as in f(g) or f(g(a=1)); _Unclear for a value, as in f(1)."""
    value = _value(node) if isinstance(node, ast.Call | _NAMES) else None
    if not is_part(value):
        piece = ast.unparse(node)
        way = f"{around}(parameter={piece}), as --list names it" if around else "parts alone"
        raise _Unclear(f"{piece} has no name, write {way}")
    return value


def spec(written: Part) -> dict[str, Any]:
    """Return a part as a plain dictionary, which the caller may change."""
    return as_part(written).to_dict()


def text(written: Any) -> str:
    """Return a value as the command line takes it: parts as calls, other values as literals.

        >>> text(part("top_k", ratio=0.1))
        'top_k(ratio=0.1)'
    """
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
        return str(value).lower()
    if not isinstance(value, str):
        return text(value)
    try:
        return value if read(value) == value else repr(value)
    except UNREADABLE:
        return repr(value)


def is_part(value: Any) -> bool:
    """Return whether a value can be a part: a text or a mapping."""
    return isinstance(value, str) or hasattr(value, "items")


def is_brought(name: str) -> bool:
    """Return whether a text names a user's own factory, `package.module:factory`.

        >>> is_brought("mine:law")
        True
    """
    match = _BROUGHT.fullmatch(name)
    return match is not None and match[2] is not None


def canonical(config: ConfigDict) -> ConfigDict:
    """Return a copy of a config in which every part is a mapping.

    Raises ValueError for a text that cannot be read; a value that is no part stays as it is.
    """
    copy = config.copy_and_resolve_references()
    with copy.unlocked(), copy.ignore_type():
        for name in PLACES:
            chained = name == "optimizer" and isinstance(copy.get(name), list | tuple)
            if chained or is_part(copy.get(name)):
                copy[name] = as_part(copy[name])
    return copy


# --- what the entries of an arm must be ---


def several(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test for a list or tuple with at least one value, all of which pass `fits`."""
    return lambda value: isinstance(value, list | tuple) and bool(value) and all(map(fits, value))


def _is_finite(value) -> bool:
    return is_number(value) and abs(value) <= sys.float_info.max


SHORTEST = 1e-6  # s between two evaluations
# Requirements on entries of a config: in words, as a test, and the names of the entries.
Entries = Iterable[tuple[str, Callable[[Any], Any], Iterable[str]]]
SEED = ("a whole number, 0 or more", lambda v: is_number(v, Integral) and v >= 0, ("seed",))
COUNTS = ("workers", "batch_size", "updates", "devices", "rounds_per_dispatch")
_ON_DEVICES = (*COUNTS, "devices_per_worker", "mini_batches")
OPTIONAL_TEXTS = ("initial", "overlap", "profile", "sample_cost", "sample_weight")
# Entries that an arm may leave out.
OPTIONAL = frozenset((*OPTIONAL_TEXTS, "balance", "devices_per_worker", "sharding"))
ARM: Entries = (
    ("a text", lambda v: isinstance(v, str) and v, ("name", "runtime", "draw")),
    ("a part, as in name(parameter=value)", is_part, (*PARTS, "sharding")),
    ("a positive whole number", is_count, (*COUNTS, "devices_per_worker")),
    ("a positive whole number, or one per worker",
     lambda v: is_count(v) or several(is_count)(v), ("mini_batches",)),
    SEED,
    ("below 2**32, as devices draw from 32 bits of it", is_seed, ("seed",)),
    ("below 2**31, as devices count", lambda v: np.max(v) < 2**31, _ON_DEVICES),
    ("a positive number", lambda v: _is_finite(v) and v > 0, ("seconds",)),
    (f"a number of seconds, {SHORTEST} or more",
     lambda v: _is_finite(v) and v >= SHORTEST, ("evaluate_every",)),
    ("a number, 0 or more, or a part",
     lambda v: is_part(v) or (_is_finite(v) and v >= 0), NUMBER_OR_PART),
    ("a positive number or None",
     lambda v: v is None or (_is_finite(v) and v > 0), ("target_loss",)),
    ("true or false", lambda v: isinstance(v, bool), ("stop_at_target", "balance")),
    ("an arm's name or None", lambda v: v is None or isinstance(v, str), ("baseline",)),
    ("'none', 'threads' or 'program'", lambda v: v in ("none", "threads", "program"), ("overlap",)),
    ("'packed', 'padded' or None", lambda v: v in (None, "packed", "padded"), ("sample_cost",)),
    ("'kept', '' or None", lambda v: v in (None, "", "kept"), ("sample_weight",)),
    ("a path or None", lambda v: v is None or (isinstance(v, str) and v), ("initial",)),
    ("'measure', a path, 'none' or None",
     lambda v: v is None or (isinstance(v, str) and v), ("profile",)),
)  # fmt: skip


def check_arm(config: ConfigDict) -> None:
    """Raise ValueError for an entry of an arm that is missing or has a wrong type or value."""
    check(config, [
        (words, fits, [name for name in names if name in config or name not in OPTIONAL])
        for words, fits, names in ARM
    ])  # fmt: skip


def check(config: Mapping, entries: Entries, within: str = "config") -> None:
    """Raise ValueError for the first entry that is missing or fails its test.

    entries: tuples (requirement in words, test of a value, names of entries); the name "a.b"
        stands for the entry b of the entry a. within: name of `config` in errors.
    """
    for words, fits, names in entries:
        for name in names:
            try:
                value = functools.reduce(operator.getitem, name.split("."), config)
            except KeyError as error:
                raise ValueError(f"{within}.{name} is missing; set it to {words}") from error
            if not fits(value):
                raise ValueError(
                    f"{within}.{name} must be {words}, got {value!r}; set {within}.{name}"
                )


# --- factories by their names ---

# Name of an annotation -> (such a value in words, a test for it).
_VALUES = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: is_number(value, Integral)),
    "float": ("a number", is_number),
    "str": ("text", lambda value: isinstance(value, str)),
}


class Kind(NamedTuple):
    """The parts that can stand in one place of a config.

    name: the kind's name in errors, e.g. "algorithm". factories: name in a config -> factory.
    gives: the type of a factory's return value, checked for a user's own factory.
    offered: parameters that the experiment passes to a factory which has them; the config sets all
        other parameters. nested: parameters, or "*", that hold parts of the same kind; these parts
        are built first.
    """

    name: str
    factories: Mapping[str, Callable]
    gives: type | tuple[type, ...] = object
    offered: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    taken_out: tuple[str, ...] = ()

    def factory(self, name: str) -> Callable:
        """Return the named factory; ValueError for a name that is unknown or not importable."""
        if isinstance(name, str) and name in self.factories:
            return self.factories[name]
        if isinstance(name, str) and ":" in name:
            return _imported(self.name, name)
        raise ValueError(
            f"{self.name}: unknown name {name!r}; {meant(name, self.factories)}known names: "
            f"{listed(sorted(self.factories))}, see --list; or bring your own as "
            "package.module:factory"
        )

    def opened(self, name: str) -> tuple[Callable, dict[str, inspect.Parameter]]:
        """Return the named factory and its parameters; ValueError if its signature is hidden.

        If the metaclass of a class hides the signature, as in nnx, __init__ has the parameters.
        """
        factory = called = self.factory(name)
        if isinstance(factory, type) and type(factory).__call__ is not type.__call__:
            called = functools.partial(factory.__init__, None)
        try:
            return factory, dict(inspect.signature(called).parameters)
        except (ValueError, TypeError) as error:  # as of functions in C
            raise ValueError(
                f"{self.name} {name!r}: has no parameters that can be read, as many functions in "
                "C; wrap it in a Python function of your own, and name that one"
            ) from error

    def wants(self, part: Part, parameter: str) -> bool:
        """Return whether the named factory has such a parameter; False for an unknown name."""
        try:
            return parameter in self.opened(as_part(part).get("name"))[1]
        except ValueError:
            return False

    def call(self, name: str) -> str:
        """Return a factory as configs write it: its name, and its own parameters with defaults."""
        own = [p for p in self.opened(name)[1].values() if p.name not in self.offered]
        return f"{name}({', '.join(map(_shown, own))})" if own else name

    def checked(
        self, part: Mapping[str, Any], available: Collection[str]
    ) -> tuple[Callable, dict[str, inspect.Parameter]]:
        """Return the factory of a part and its parameters; ValueError if the part does not fit.

        available: names of the parameters that the experiment offers.
        """
        name, inner = part.get("name"), part.get("*", ())
        factory, parameters = self.opened(name)
        who, kinds = f"{self.name} {name!r}", {one.kind for one in parameters.values()}
        if inner and inspect.Parameter.VAR_POSITIONAL not in kinds:
            raise ValueError(
                f"{who}: is not made of other parts, got {len(inner)} without a key; "
                f"write {name}(parameter=value, ...)"
            )
        own = {
            p: one for p, one in parameters.items()
            if p not in available and one.kind is not one.VAR_POSITIONAL
        }  # fmt: skip
        known = [*self.taken_out, *own]
        for parameter, value in part.items():
            if parameter in own:
                _check_value(f"{who}: parameter {parameter!r}", who, own[parameter], value)
            elif parameter not in ("name", "*") and inspect.Parameter.VAR_KEYWORD not in kinds:
                raise ValueError(
                    f"{who}: unknown parameter {parameter!r}; {meant(parameter, known)}"
                    f"it takes: {', '.join(known) or 'no parameters'}"
                )
        for p, one in own.items():
            if one.default is one.empty and one.kind is not one.VAR_KEYWORD and p not in part:
                raise ValueError(f"{who}: parameter {p!r} is missing; write {name}({p}=...)")
        return factory, parameters

    def build(self, part: Part, **available: Any) -> Any:
        """Call the factory that `part` names with the parameters of `part`; return its result.

        part: a plain dictionary may hold built objects in place of parts of other kinds.
        available: values that the experiment offers; a factory gets the values of its parameters.
        Raises ValueError for an unknown name, for an unknown or a missing parameter, for a value
        that the factory cannot use, and for a user's factory that returns another type.
        """
        given = dict(part) if type(part) is dict else spec(part)
        for place in self.nested:
            held = given.get(place)
            if isinstance(held, list | tuple):
                given[place] = [self.build(inner, **available) for inner in held]
            elif held is not None:
                given[place] = self.build(held, **available)
        factory, parameters = self.checked(given, available)
        name, inner = given.pop("name"), given.pop("*", ())
        who, is_own = f"{self.name} {name!r}", ":" in name
        offered = {p: available[p] for p in parameters if p in available}
        try:
            built = factory(*inner, **offered, **given)
        except ValueError:
            raise
        except (Exception, SystemExit) as error:
            unfit = isinstance(error, TypeError | AttributeError | ArithmeticError)
            if isinstance(error, MemoryError):
                said = error or "no more is said"
                why = f"takes more memory than is free ({said}); choose smaller sizes"
            elif unfit and (given or not is_own):
                # An annotation may allow a wrong value, as 3 for a list, which fails on use.
                why = f"cannot use {given} ({error}); correct a parameter"
            elif is_own:
                why = f"the factory fails with {type(error).__name__}: {error}; correct it"
            else:
                raise
            raise ValueError(f"{who}: {why}") from error
        if is_own and not isinstance(built, self.gives):
            kinds = self.gives if isinstance(self.gives, tuple) else (self.gives,)
            wanted = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
            got = type(built).__name__
            raise ValueError(f"{who}: the factory gives {got}; let it return {wanted}")
        return built


def first_sentence(factory: Callable) -> str:
    """Return the first paragraph of a docstring on one line; for a partial, its function's."""
    words = inspect.getdoc(getattr(factory, "func", factory)) or ""
    return " ".join(words.partition("\n\n")[0].split())


def _shown(parameter: inspect.Parameter) -> str:
    """Return a parameter as --list shows it."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "part, ..."
    if parameter.kind is parameter.VAR_KEYWORD:
        return "..."
    default = parameter.default
    if default is parameter.empty:
        return parameter.name
    plain = isinstance(default, str | bool | int | float | None) or type(default) is tuple
    value = default if plain else "..."  # transforms of optax are tuples, of functions
    return f"{parameter.name}={str(value).lower() if isinstance(value, bool) else value}"


def _check_value(what: str, who: str, parameter: inspect.Parameter, value: Any) -> None:
    if not _are_finite(value):
        raise ValueError(f"{what} must be finite, got {value!r}; correct it")
    if parameter.name == "seed" and is_number(value) and not is_seed(value):
        raise ValueError(
            f"{who}: a seed must be a whole number, 0 or more and below 2**32, got {value!r}; "
            "correct it"
        )
    annotation = parameter.annotation
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else ()
    if types.NoneType in members and len(members) == 2:  # as int | None
        if value is None:
            return
        annotation = next(member for member in members if member is not types.NoneType)
    known = _VALUES.get(getattr(annotation, "__name__", annotation))
    if known and not known[1](value):
        raise ValueError(f"{what} must be {known[0]}, got {value!r}; correct it")


def _are_finite(value: Any) -> bool:
    """Return whether all numbers in a nested value are finite."""
    if isinstance(value, list | tuple):
        return all(map(_are_finite, value))
    if hasattr(value, "items"):
        return all(map(_are_finite, value.values()))
    return not is_number(value) or abs(value) <= sys.float_info.max


# --- a user's own code ---

# The module in the name of a user's own factory, anywhere in a text.
_MODULE = re.compile(r"([\w.]+):(?=[^\W\d])")


@functools.cache
def _imported(kind: str, name: str) -> Callable:
    """Return the function `package.module:attribute`; ValueError if it cannot be imported."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module is code and can raise anything
        raise ValueError(
            f"{kind} {name!r}: {module_name} cannot be imported ({type(error).__name__}: {error}); "
            "correct the name, or put its folder on PYTHONPATH"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ValueError(
            f"{kind} {name!r}: {module_name} has no function {attribute!r}; correct the name"
        )
    return factory


def named_modules(value: Any) -> set[str]:
    """Return the modules that a nested value names as `module:factory`, without importing them.

    A text is searched as a whole, as other code may read the text as a part.
    """
    found = set()
    for key, text in _texts(value, keys=True):
        found |= {*_MODULE.findall(text)}
        if key == "name" and ":" in text:
            found.add(text.partition(":")[0])
        with contextlib.suppress(*UNREADABLE):
            inner = read(text)  # quotes and escapes may hide a name
            found |= named_modules(inner) if inner != text else set()
    return found


def refuse_untrusted(config: Mapping, trusted: Collection[str], place: Any) -> None:
    """Raise ValueError if the config of a record names a module that is not in `trusted`.

    A record is data: the author of a record must not choose the code that runs here.
    """
    unknown = sorted(named_modules([config.get(name) for name in PLACES]) - set(trusted))
    if unknown:
        raise ValueError(
            f"{place} names code of the module {unknown[0]!r}, which would run here; if you trust "
            f"it, add --trust={','.join(unknown)}"
        )


def texts(config: Mapping) -> Iterator[tuple[Any, str]]:
    """Yield (key or None, text) of each text in the parts of a config, however deep inside."""
    return _texts([config.get(name) for name in PLACES])


def _texts(value: Any, key: Any = None, keys: bool = False) -> Iterator[tuple[Any, str]]:
    if isinstance(value, str):
        yield key, value
    elif hasattr(value, "items"):
        yield from _texts([*value.keys()] if keys else [])
        for name, one in value.items():
            yield from _texts(one, name, keys)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one, None, keys)


def brought(config: Mapping) -> dict[str, str]:
    """Return {module of a user's code in a config: "sha256:..." of its file, or "no file"}.

    Raises ValueError for the name of a part that cannot be imported.
    """
    digests: dict[str, str] = {}
    for key, text in texts(config):
        if not (is_brought(text) or (key == "name" and ":" in text)):
            continue
        try:
            _imported("part", text)
        except ValueError:
            if key == "name":
                raise
            continue  # a text that only looks like the name of a part
        module = sys.modules[text.partition(":")[0]]
        file = getattr(module, "__file__", None)
        digest = file and f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
        digests[module.__name__] = digest or "no file"
    return dict(sorted(digests.items()))
