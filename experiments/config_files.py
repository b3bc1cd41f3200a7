"""Config files: get_config([argument]), beside it sweep(), claims, numbers, figures or analyse().

A file is loaded once. Flags of the form --config.ENTRY=VALUE change its config before anything else
reads it; a value is whatever `parts.read` knows, and what an entry may be is checked after.
"""

import functools
import importlib.util
import inspect
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments import entries, formats, kinds, parts, records, texts
from experiments.entries import is_number


class ConfigFile(NamedTuple):
    """A config file with the values of the command line.

    path: as it was given, without an argument. config: with the values. values: dotted entry ->
    value, of the command line.
    """

    path: str
    module: ModuleType
    config: ConfigDict
    values: dict[str, Any]


def read(
    path: str, flags: Mapping[str, str | bool] | None = None, trusted: Collection[str] = ()
) -> ConfigFile:
    """The config of `file.py`, `file.py:argument` or a run's config.json.

    flags: as `overrides` finds them. trusted: modules that a config.json may name, beside those
    that the flags name.
    Raises ValueError for a file that cannot be used, and for a flag that names no entry.
    """
    file, colon, argument = path.partition(":")
    if file.endswith(".json"):
        if colon:
            raise ValueError(f"--config={path}: a record takes no argument; leave out :{argument}")
        module = _recorded(file)
    else:
        module = load(file)
    try:
        config = module.get_config(*[argument] if colon else [])
    except SystemExit as error:
        raise ValueError(f"get_config() of {file} ends the program; let it return") from error
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}; correct {file}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"get_config() gave {type(config).__name__}; return a ConfigDict")
    config = parts.canonical(config)
    values = {key: value(config, key, text) for key, text in (flags or {}).items()}
    config = override(config, values).lock()
    if file.endswith(".json"):
        named = kinds.named_modules(list((flags or {}).values()))
        kinds.refuse_untrusted(config, {*trusted, *named}, file)
    return ConfigFile(file, module, config, values)


def load(path: str) -> ModuleType:
    """A config file as a module; ValueError for one that is not there or cannot be run.

    Ours are found from every folder, as in configs/demo.py.
    """
    if not os.path.isfile(path):
        ours = Path(__file__).parents[1] / path
        if not (path.startswith("configs/") and ours.is_file()):
            raise ValueError(f"there is no file {path!r}; give the path of a config")
        path = str(ours)
    if not path.endswith(".py"):
        raise ValueError(f"{path}: a config is a Python file or a run's config.json; give one")
    try:
        spec = importlib.util.spec_from_file_location("_config", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise ValueError(f"{path} ends the program (sys.exit); leave that out") from error
    except ValueError:
        raise
    except Exception as error:  # the file is code and can raise anything
        raise ValueError(f"{type(error).__name__}: {error}; correct {path}") from error
    return module


def _recorded(path: str) -> ModuleType:
    """A module whose config is that of a run's config.json."""
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path!r}; give the path of a config")
    config = records.read_config(path, formats.GIVEN_CONFIG)
    if not formats.is_arm(config.to_dict()):
        raise formats.damaged(path, "no run has written it", formats.GIVEN_CONFIG)
    module = ModuleType("_config")
    module.__file__, module.get_config = path, lambda: config
    return module


def swept_arms(module: ModuleType, config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """What `sweep()` of a config file yields, or `sweep(config)` if it takes an argument."""
    return module.sweep(config) if inspect.signature(module.sweep).parameters else module.sweep()


def overrides(argv: Sequence[str], flag: str = "config") -> tuple[list[str], dict[str, str | bool]]:
    """Split the arguments: the ones of the form --config.ENTRY=VALUE become entry -> text.

    As with other flags the value may be the next argument, and a switch needs none: --config.ENTRY
    is true, --noconfig.ENTRY is false. The last one of an entry counts.
    """
    rest, found, arguments = [], {}, list(argv)
    while arguments:
        argument = arguments.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if argument == "--":
            return [*rest, argument, *arguments], found
        if not argument.startswith("-") or not name.startswith((f"{flag}.", f"no{flag}.")):
            rest.append(argument)
            continue
        switch, _, key = name.partition(".")
        found.pop(key, None)
        if switch != flag:
            found[key] = False
        elif equals:
            found[key] = value
        else:
            takes = arguments and not arguments[0].startswith("--")
            found[key] = arguments.pop(0) if takes else True
    return rest, found


def value(config: ConfigDict, key: str, text: str | bool) -> Any:
    """Return what a flag says: a literal, a bare word or a part, and otherwise the text as it is.

    A number that replaces a float is a float; what replaces a text is one, or None.
    """
    try:
        before = functools.reduce(lambda node, name: node[name], key.split("."), config)
    except (KeyError, TypeError, AttributeError):
        before = None
    if isinstance(text, bool) or isinstance(before, str) or key in entries.OPTIONAL_TEXTS:
        return None if text == "None" else text
    try:
        found = parts.read(text)
    except (SyntaxError, ValueError, AttributeError, TypeError, RecursionError, MemoryError):
        found = text
    if isinstance(before, float):
        try:
            return float(found) if is_number(found) else float(text)
        except ValueError:
            pass
    return found


def override(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """A copy of config with dotted keys replaced; ValueError for a key that it does not have.

    A part takes any parameter, also one that the config leaves at its default.
    """
    config = parts.canonical(config)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = config
        for parent in parents:
            node = node.get(parent) if isinstance(node, ConfigDict) else None
        known = isinstance(node, ConfigDict) and last in node
        inside = isinstance(node, ConfigDict) and node is not config and "name" in node
        optional = node is config and last in entries.OPTIONAL
        if not known and not optional and not (inside and last):
            raise ValueError(
                f"the config has no entry {key!r}; {texts.meant(key, config)}"
                f"known entries: {texts.listed(config)}"
            )
        with node.unlocked(), node.ignore_type():
            node[last] = value
        config = parts.canonical(config)
    return config
