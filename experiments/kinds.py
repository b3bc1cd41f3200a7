"""Kinds of parts: what a config can name in one place, and how the named factory is called.

Beside the names of its registry a kind takes `package.module:factory`, whose module is found as
Python finds any (on PYTHONPATH). What it gives is checked, so that a mistake is one sentence.
"""

import contextlib
import functools
import hashlib
import importlib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from experiments import parts, texts
from experiments.entries import is_number, is_seed

# By the name of an annotation: how to call such values, and a test for them.
_VALUES = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: is_number(value, Integral)),
    "float": ("a number", lambda value: is_number(value)),
    "str": ("text", lambda value: isinstance(value, str)),
}

# The module of a name that is brought along, anywhere in a text.
_MODULE = re.compile(r"([\w.]+):(?=[^\W\d])")


class Kind(NamedTuple):
    """What can stand in one place of a config.

    name: what it is called in errors, e.g. "algorithm". factories: by the names of configs.
    gives: the type of what a factory returns, checked for one that is brought along.
    offered: parameters that the experiment gives to a factory which has them; all others are the
        config's.
    """

    name: str
    factories: Mapping[str, Callable]
    gives: type | tuple[type, ...] = object
    offered: tuple[str, ...] = ()

    def factory(self, name: str) -> Callable:
        """The factory of that name; ValueError for a name that is unknown or cannot be imported."""
        if isinstance(name, str) and ":" in name:
            return _imported(self.name, name)
        if not isinstance(name, str) or name not in self.factories:
            raise ValueError(
                f"{self.name}: unknown name {name!r}; {texts.meant(name, self.factories)}"
                f"known names: {texts.listed(sorted(self.factories))}, see --list; or bring your "
                "own as package.module:factory"
            )
        return self.factories[name]

    def wants(self, part: parts.Part, parameter: str) -> bool:
        """Whether the named factory has such a parameter; False for an unknown name."""
        try:
            return parameter in self.parameters(parts.as_part(part).get("name"))
        except ValueError:
            return False

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """Return the parameters of the named factory; ValueError for one that hides them.

        A class whose metaclass hides them, as in nnx, has the parameters of its __init__.
        """
        factory = self.factory(name)
        if isinstance(factory, type) and type(factory).__call__ is not type.__call__:
            factory = functools.partial(factory.__init__, None)
        try:
            return inspect.signature(factory).parameters
        except (ValueError, TypeError) as error:  # as of functions in C
            raise ValueError(
                f"{self.name} {name!r}: has no parameters that can be read, as many functions in "
                "C; wrap it in a Python function of your own, and name that one"
            ) from error

    def build(self, part: parts.Part, **available: Any) -> Any:
        """Call the factory that `part` names with the parameters that it gives.

        part: a plain dictionary may hold what its own parts describe instead of these parts.
        available: what the experiment can offer; a factory gets what it has a parameter for.
        Raises ValueError for an unknown name, for an unknown or a missing parameter, for a value
        that the factory cannot use, and for a factory that gives something else.
        """
        given = dict(part) if type(part) is dict else parts.spec(part)
        name = given.pop("name", None)
        factory = self.factory(name)
        who = f"{self.name} {name!r}"
        parameters = dict(self.parameters(name))
        inner = given.pop("*", ())
        several = [p for p in parameters if parameters[p].kind is inspect.Parameter.VAR_POSITIONAL]
        if inner and not several:
            raise ValueError(
                f"{who}: is not made of other parts, got {len(inner)} without a key; "
                f"write {name}(parameter=value, ...)"
            )
        for parameter in several:
            del parameters[parameter]
        own = [p for p in parameters if p not in available]
        _check_parameters(who, name, {p: parameters[p] for p in own}, given)
        offered = {p: available[p] for p in parameters if p in available}
        try:
            built = factory(*inner, **offered, **given)
        except MemoryError as error:
            raise ValueError(
                f"{who}: takes more memory than is free ({error or 'no more is said'}); "
                "choose smaller sizes"
            ) from error
        except (TypeError, AttributeError, ArithmeticError) as error:
            # What annotations do not say, as 3 where a list is due, shows when it is used.
            raise ValueError(f"{who}: cannot use {given} ({error}); correct a parameter") from error
        except ValueError:
            raise
        except Exception as error:
            if name in self.factories:
                raise
            raise ValueError(
                f"{who}: the factory fails with {type(error).__name__}: {error}; correct it"
            ) from error
        return self._checked(who, name, built)

    def _checked(self, who: str, name: str, built: Any) -> Any:
        if name in self.factories or isinstance(built, self.gives):
            return built
        kinds = self.gives if isinstance(self.gives, tuple) else (self.gives,)
        wanted = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
        raise ValueError(f"{who}: the factory gives {type(built).__name__}; let it return {wanted}")


def _check_parameters(who: str, name: str, own: Mapping, given: Mapping) -> None:
    """Raise ValueError for a parameter that the factory lacks, misses or has of another type."""
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    for parameter, value in given.items():
        if parameter in own:
            _check_value(who, own[parameter], value)
        elif not anything:
            raise ValueError(
                f"{who}: unknown parameter {parameter!r}; {texts.meant(parameter, own)}"
                f"it takes: {', '.join(own) or 'no parameters'}"
            )
    for parameter in own.values():
        required = parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD
        if required and parameter.name not in given:
            raise ValueError(
                f"{who}: parameter {parameter.name!r} is missing; "
                f"write {name}({parameter.name}=...)"
            )


def _check_value(who: str, parameter: inspect.Parameter, value: Any) -> None:
    if not all(map(math.isfinite, _numbers(value))):
        raise ValueError(
            f"{who}: parameter {parameter.name!r} must be finite, got {value!r}; correct it"
        )
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
    annotation = getattr(annotation, "__name__", annotation)
    words, fits = _VALUES.get(annotation, ("anything", lambda value: True))
    if not fits(value):
        raise ValueError(
            f"{who}: parameter {parameter.name!r} must be {words}, got {value!r}; correct it"
        )


def _numbers(value: Any) -> Iterator[float]:
    """All numbers of a value, however deep; none that is beyond all floats."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from _numbers(one)
    elif hasattr(value, "items"):
        yield from _numbers(list(value.values()))
    elif is_number(value) and not is_number(value, Integral):
        yield float(value)


@functools.cache
def _imported(kind: str, name: str) -> Callable:
    """The object `package.module:attribute`, which can be called."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module is code and can raise anything
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
    """Return the modules that a value names anywhere as `module:factory`, and import none.

    Texts count with all that stands in them, as a text may be read as a part again.
    """
    if isinstance(value, list | tuple):
        return set().union(*map(named_modules, value))
    if not hasattr(value, "items"):
        return set(_MODULE.findall(value)) if isinstance(value, str) else set()
    name, _, attribute = str(value.get("name")).partition(":")
    own = {name} if attribute else set()
    return own | named_modules([one for entry in value.items() for one in entry])


def refuse_untrusted(config: Mapping, trusted: Collection[str], place: Any) -> None:
    """Raise ValueError for a record that names a module which the user has not named.

    A record is data: whoever has written it must not choose the code that runs here.
    """
    brought_along = [config.get(name) for name in (*parts.PARTS, *parts.NUMBER_OR_PART)]
    unknown = sorted(named_modules(brought_along) - set(trusted))
    if unknown:
        raise ValueError(
            f"{place} names code of the module {unknown[0]!r}, which would run here; if you trust "
            f"it, add --trust={','.join(unknown)}"
        )


def brought(config: Mapping) -> dict[str, str]:
    """The modules that the parts of a config bring along -> "sha256:..." of their source files.

    Raises ValueError for the name of a part that cannot be imported.
    """
    entries = (config.get(name) for name in (*parts.PARTS, *parts.NUMBER_OR_PART))
    modules = {module.__name__: module for entry in entries for module in _modules(entry)}
    return {name: _digest(modules[name]) for name in sorted(modules)}


def _modules(value: Any) -> Iterator[types.ModuleType]:
    """The modules that a part names, itself or in the parts that it holds."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from _modules(one)
    elif hasattr(value, "items"):
        if isinstance(value.get("name"), str) and ":" in value["name"]:
            _imported("part", value["name"])
        for one in value.values():
            yield from _modules(one)
    elif isinstance(value, str) and parts.is_brought(value):
        with contextlib.suppress(ValueError):  # a text that only looks like the name of a part
            _imported("part", value)
            yield importlib.import_module(value.partition(":")[0])


def _digest(module: types.ModuleType) -> str:
    file = getattr(module, "__file__", None)
    if file is None:
        return "no file"
    return f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
