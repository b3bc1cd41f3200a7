"""Config files and flags: how a config is read, and its grids on the command line.

A config file has get_config([argument]) and may have sweep(), claims, numbers, figures or
analyse(). A file with several questions has VARIANTS: the name of every further question -> a
`configs.base.Variant` of these functions. The name is the first word of the argument, as in
--config=configs/nonblocking.py:tuned,delay=pause. Flags of the form --config.ENTRY=VALUE change the
config before anything else reads it. `registry.read` reads the values, which are checked
afterwards. Grids make an arm of every combination of the values that some entries take:

    --grid='optimizer.learning_rate=0.05,0.1,0.2' --grid='wait=barrier,deadline(seconds=0.3)'
"""

import contextlib
import functools
import importlib.util
import inspect
import itertools
import operator
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments import formats, records, registry

ROOT = Path(__file__).parents[1]

# --- files and flags ---


class ConfigFile(NamedTuple):
    """A config file, or a variant of it, with the values of the command line.

    path: the given path without its argument. config: the file's config with `values` applied.
    values: dotted entry -> value, from the command line.
    """

    path: str
    module: Any
    config: ConfigDict
    values: dict[str, Any]


def read(
    path: str, flags: Mapping[str, str | bool] | None = None, trusted: Collection[str] = ()
) -> ConfigFile:
    """Return the config of `file.py`, `file.py:argument` or a run's config.json.

    flags: entry -> text, from `overrides`. trusted: modules that a config.json may name, beside the
    modules that the flags name.
    Raises ValueError for a file that cannot be used, and for a flag that names no entry.
    """
    prefixes = list(itertools.accumulate(path.split(":"), "{}:{}".format))
    named = [prefix for prefix in prefixes if prefix.endswith((".py", ".json"))]
    file = next(filter(os.path.isfile, prefixes), (named or prefixes)[0])
    colon, argument = path[len(file) :][:1], path[len(file) + 1 :]
    flags, recorded = flags or {}, file.endswith(".json")
    if recorded and colon:
        raise ValueError(f"--config={path}: a record takes no argument; leave out :{argument}")
    module = _recorded(file) if recorded else load(file)
    first, _, rest = argument.partition(",")
    variants = getattr(module, "VARIANTS", {})
    if first in variants:
        module, argument = variants[first], rest
        module.__file__ = f"{file}:{first}"  # for errors
    elif question := registry.meant(first, variants):
        known = registry.listed(variants)
        raise ValueError(f"{file} has no variant {first!r}; {question}known variants: {known}")
    blamed = f"{file}, or its argument {argument!r}" if argument else file
    with _code_of(blamed, f"get_config() of {file} ends the program; let it return"):
        config = module.get_config(*[argument] if colon else [])
    if not isinstance(config, ConfigDict):
        raise ValueError(f"get_config() gave {type(config).__name__}; return a ConfigDict")
    config = registry.canonical(config)
    values = {key: value(config, key, text) for key, text in flags.items()}
    config = override(config, values)
    parts = [config.get(entry) for entry in ("algorithm", "wait")]
    now = "/".join(str(part.name) for part in parts if isinstance(part, ConfigDict))
    renamed = {"algorithm", "algorithm.name", "wait", "wait.name"} & values.keys()
    if renamed and "name" not in values and re.fullmatch(r"[\w.:/]+", now):
        config.name = now  # the file's name would be untrue
    config.lock()
    if recorded:
        named = registry.named_modules(list(flags.values()))
        registry.refuse_untrusted(config, {*trusted, *named}, file)
    return ConfigFile(file, module, config, values)


def load(path: str) -> Any:
    """Return a config file as a module; ValueError for one that is not there or cannot be run.

    Paths such as configs/demo.py work from every folder.
    """
    found = Path(path)
    if not found.is_file() and path.startswith("configs/"):
        found = ROOT / path
    if not found.is_file():
        raise ValueError(f"there is no file {path!r}; give the path of a config")
    if found.suffix != ".py":
        raise ValueError(f"{path}: a config is a Python file or a run's config.json; give one")
    spec = importlib.util.spec_from_file_location("_config", found)
    module = importlib.util.module_from_spec(spec)
    with _code_of(path, f"{path} ends the program (sys.exit); leave that out"):
        # Python's import may run the cached code of an older file of the same second and size.
        exec(compile(found.read_bytes(), found, "exec"), vars(module))
    return module


@contextlib.contextmanager
def _code_of(path: str, ends: str) -> Iterator[None]:
    """Turn any error of a config file's code into ValueError; ends: its text if the code exits."""
    try:
        yield
    except SystemExit as error:
        raise ValueError(ends) from error
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}; correct {path}") from error


def _recorded(path: str) -> SimpleNamespace:
    """Return a stand-in for a config file, with the config of a run's config.json."""
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path!r}; give the path of a config")
    config = records.read_config(path, formats.GIVEN_CONFIG)
    if not formats.is_arm(config.to_dict()):
        raise formats.damaged(path, "no run has written it", formats.GIVEN_CONFIG)
    return SimpleNamespace(get_config=lambda: config, __file__=path, __doc__=None)


def swept_arms(module: Any, config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """Return what `sweep()` of a config file yields, or `sweep(config)` if it takes an argument."""
    return module.sweep(config) if inspect.signature(module.sweep).parameters else module.sweep()


def overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str | bool]]:
    """Return the other arguments, and {entry: text} from flags of the form --config.ENTRY=VALUE.

    As with other flags the value may be the next argument, and a switch needs none: --config.ENTRY
    is true, --noconfig.ENTRY is false. The last flag of an entry counts.
    """
    rest, found, arguments = [], {}, list(argv)
    while arguments:
        argument = arguments.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if argument == "--":
            return [*rest, argument, *arguments], found
        if not argument.startswith("-") or not name.startswith(("config.", "noconfig.")):
            rest.append(argument)
            continue
        switch, _, key = name.partition(".")
        found.pop(key, None)
        if switch != "config":
            found[key] = False
        elif equals:
            found[key] = value
        else:
            takes = arguments and not arguments[0].startswith("--")
            found[key] = arguments.pop(0) if takes else True
    return rest, found


_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")  # as a value with a comma in a grid


def value(config: ConfigDict, key: str, text: str | bool) -> Any:
    """Return the value of a flag's text: a literal, a bare word, a part, or else the text itself.

    A number that replaces a float is a float; a value that replaces a text is a text, or None.
    """
    try:
        before = functools.reduce(operator.getitem, key.split("."), config)
    except (KeyError, TypeError, AttributeError):
        before = None
    is_text = isinstance(before, str) or key in registry.OPTIONAL_TEXTS
    if isinstance(text, bool) or (is_text and not _QUOTED.fullmatch(text)):
        return None if text == "None" else text
    try:
        found = registry.read(text)
    except registry.UNREADABLE:
        found = text
    if isinstance(before, float):
        with contextlib.suppress(ValueError):
            return float(text)
    return found


def override(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """Return a copy of config with dotted keys replaced; ValueError for a key it does not have.

    A part takes any parameter, also one that the config leaves at its default.
    """
    config = registry.canonical(config)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = config
        for parent in parents:
            node = node.get(parent) if isinstance(node, ConfigDict) else None
        more = registry.OPTIONAL if node is config else ()
        in_part = node is not config and isinstance(node, ConfigDict) and "name" in node and last
        if not (in_part or (isinstance(node, ConfigDict) and (last in node or last in more))):
            raise ValueError(
                f"the config has no entry {key!r}; {registry.meant(key, config)}"
                f"known entries: {registry.listed(config)}"
            )
        with node.unlocked(), node.ignore_type():
            node[last] = value
        if not registry.is_number(value):  # a part may be written in another way
            config = registry.canonical(config)
    return config


# --- grids ---


def read_grids(grids: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of every entry, as texts; ValueError for a grid that cannot be read."""
    found: dict[str, list[str]] = {}
    for grid in grids:
        entry, equals, listed = grid.partition("=")
        entry, values = entry.strip().removeprefix("config."), _between_commas(listed)
        if not (equals and entry and all(values)):
            raise ValueError(
                f"--grid={grid!r} is no list of values; write it as "
                "--grid='optimizer.learning_rate=0.05,0.1'"
            )
        if entry == "name":
            raise ValueError("--grid names its arms after their values; leave out name")
        if entry in found:
            raise ValueError(f"--grid gives {entry} twice; put all of its values into one list")
        if one := next((one for one in found if meet(one, entry)), ""):
            raise ValueError(
                f"--grid gives {entry} and {one}, one of which is inside of the other; write whole "
                "parts, as in --grid='wait=quorum(k=1),quorum(k=2)'"
            )
        if len(set(values)) < len(values):
            raise ValueError(f"--grid={grid!r} has a value twice; leave one of them")
        found[entry] = values
    return found


def meet(entry: str, other: str) -> bool:
    """Return whether two entries are the same, or one of them is inside of the other."""
    return f"{entry}.".startswith(f"{other}.") or f"{other}.".startswith(f"{entry}.")


def _between_commas(text: str) -> list[str]:
    """Return the pieces of a text between commas outside of brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and not (depth or quote):
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def grid_points(grids: dict[str, list[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of every combination and its values by entry.

    A name has the last word of each entry, or the whole entry where two last words are equal.
    """
    short = {entry: entry.rpartition(".")[2] for entry in grids}
    words = [*short.values()]
    labels = {entry: last if words.count(last) == 1 else entry for entry, last in short.items()}
    for values in itertools.product(*grids.values()):
        point = dict(zip(grids, values, strict=True))
        pieces = (f"{labels[entry]}={text.replace('/', '_')}" for entry, text in point.items())
        yield "/".join(pieces), point


# --- what configs can name ---


def sections() -> list[tuple[str, str, registry.Kind]]:
    """Return, for every kind of part, a heading, the config entry that names it, and its `Kind`."""
    from experiments import optimizers, prepare, runtime_builders
    from experiments.tasks import TASK, dense_tasks, text, text_tasks

    return [
        ("Methods", "algorithm", prepare.METHOD),
        ("Codecs of methods that take an exchange", "algorithm.exchange", runtime_builders.REDUCER),
        ("Waiting rules", "wait", prepare.RULE),
        ("Delays", "delay", prepare.DELAY),
        ("Tasks", "task", TASK),
        ("Models of images", "task.model", dense_tasks.MODEL),
        ("Models of words", "task.model", text_tasks.LANGUAGE_MODEL),
        ("Sources of images", "task.source", dense_tasks.SOURCE),
        ("Corpora", "task.corpus", text.CORPUS),
        ("Interactions", "task.interactions", text.INTERACTION),
        ("Graphs", "graph", prepare.GRAPH),
        ("Mixing matrices of methods that gossip", "algorithm.mixing_matrix", prepare.MIXING),
        ("Shardings of a worker over its devices", "sharding", runtime_builders.SHARDING),
        ("Splits of the samples", "split", prepare.SPLIT),
        ("Networks", "communication", prepare.NETWORK),
        ("Spells of their links", "communication.spells", prepare.SPELLS),
        ("Optimizers and their members", "optimizer", optimizers.TRANSFORM),
        ("Schedules of the learning rate", "optimizer.schedule", optimizers.SCHEDULE),
    ]


def show_names(console: Any) -> None:
    """Print all names that configs know, and the files of `configs/`; console: rich's."""

    def line(head: str, text: str) -> None:
        console.print(f"  {head}", markup=False, highlight=False, soft_wrap=True)
        if text:
            console.print(f"      {text}", style="dim", markup=False, highlight=False,
                          soft_wrap=True)  # fmt: skip

    for heading, entry, kind in sections():
        console.print(f"\n[bold]{heading}[/bold]  --config.{entry}=", highlight=False)
        for name in sorted(kind.factories):
            line(kind.call(name), registry.first_sentence(kind.factories[name]))
    console.print("\n[bold]Configs[/bold]  --config=", highlight=False)
    for path, text in listed_configs():
        line(path, text)
    others = "\nAnything else is brought along as package.module:factory, see docs/extend.md."
    console.print(others, highlight=False)


def listed_configs() -> Iterator[tuple[str, str]]:
    """Yield the path and the first line of every config and variant of `configs/`."""
    for path in sorted(ROOT.glob("configs/*.py")):
        module = load(str(path))
        variants = getattr(module, "VARIANTS", {}).items()
        for name, one in (("", module), *((f":{name}", one) for name, one in variants)):
            if hasattr(one, "get_config"):
                yield f"configs/{path.name}{name}", (one.__doc__ or "").partition("\n")[0]
