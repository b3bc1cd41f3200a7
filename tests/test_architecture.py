"""Promises of the code about its own structure."""

import ast
import functools
import importlib
import numbers

from comms.registry import Registry
from tests.launcher import ROOT

FOLDERS = ("algorithms", "benchmarks", "comms", "configs", "experiments", "runtimes", "stragglers")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
FILES += [ROOT / "launch.py", ROOT / "gossax.py", ROOT / "gossax_checkout.py"]


@functools.cache
def nodes_of(path):
    """Return all nodes of a module's tree, the module first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def registries():
    """Return every module's dicts from names to objects as {name: where it is a key}."""
    found = {}
    for path in FILES:
        if path.parent in (ROOT / "benchmarks", ROOT):  # programs, which define flags
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        for variable, value in dict(vars(importlib.import_module(name))).items():
            if not (isinstance(value, dict | Registry) and variable.lstrip("_").isupper()):
                continue
            if {"while", "cond"} & set(value):
                continue  # primitives of JAX, which no config names
            if all(type(v) is tuple or isinstance(v, numbers.Number | str) for v in value.values()):
                continue  # a table of numbers or texts stands for nothing that could be called
            for key in value:
                found.setdefault(key, f"{name}.{variable}")
    return found


def compared(nodes):
    """Yield (line, text) of every literal string that something is compared with.

    Alone, or in a tuple, a list, a set or a constant of the module that is one of these.
    """
    known = {
        target.id: statement.value
        for statement in nodes[0].body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.value] if isinstance(node, ast.MatchValue) else []
        for side in sides:
            side = known.get(side.id, side) if isinstance(side, ast.Name) else side
            listed = isinstance(side, ast.Tuple | ast.List | ast.Set)
            for one in side.elts if listed else [side]:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield node.lineno, one.value


def test_nobody_asks_for_a_name_that_is_a_key_of_a_registry():
    names = registries()
    assert {"k_sync", "all_reduce", "mesh", "digits", "pareto", "ring", "dirichlet"} <= set(names)
    asked = [
        f"{path.relative_to(ROOT)}:{line}: {text!r} is a key of {names[text]}"
        for path in FILES
        for line, text in compared(nodes_of(path))
        if text in names
    ]
    assert not asked


# From the top to the bottom; folders of one floor do not import each other.
FLOORS = (
    "launch", "configs benchmarks", "experiments", "gossax", "runtimes", "algorithms", "stragglers",
    "comms",
)  # fmt: skip
FLOOR = {folder: number for number, floor in enumerate(FLOORS) for folder in floor.split()}


def imported(nodes):
    """Yield (line, first name of the module) of every import, wherever in a file it stands."""
    for node in nodes:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module]
        for module in modules:
            yield node.lineno, module.partition(".")[0]


def test_imports_point_down_only():
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in FILES
        for line, module in imported(nodes_of(path))
        for here in [path.relative_to(ROOT).with_suffix("").parts[0]]
        if module in FLOOR and module != here and FLOOR[module] <= FLOOR[here]
    ]
    assert not upward


# Where a program ends: the launcher and its processes, and modules that are programs.
ENDS = {"launch.py", "experiments/distributed.py", "experiments/endings.py"}
# What puts something on the disk, or takes it away; in experiments/ one module alone does that.
WRITES = {
    "write_text", "write_bytes", "savefig", "savez", "savez_compressed", "rmtree", "unlink",
    "rename", "touch", "mkdir", "makedirs", "truncate", "symlink_to", "copytree",
}  # fmt: skip
# A path that is only taken off a list, figures that are drawn into memory, and a
# directory without anything in it.
WRITES_ALLOWED = {
    ("experiments/executors.py", "unlink"), ("experiments/figures.py", "savefig"),
}  # fmt: skip


def faults(path):
    """Yield the deeds of a module that only the launcher or `experiments.files` may do."""
    here = path.relative_to(ROOT).as_posix()
    is_program = '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    for node in nodes_of(path):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "catches everything, ctrl-C included"
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        owner = getattr(getattr(node.func, "value", None), "id", None)
        ends = (owner, name) in (("sys", "exit"), ("os", "_exit"), (None, "exit"))
        if ends and here not in ENDS and not is_program:
            yield node.lineno, "ends the process"
        if not here.startswith("experiments/") or here == "experiments/files.py":
            continue
        if name in WRITES and owner != "files" and (here, name) not in WRITES_ALLOWED:
            yield node.lineno, f"writes with {name}"
        if (owner, name) == ("os", "replace"):
            yield node.lineno, "writes with os.replace"
        words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        modes = [word for word in words if isinstance(word, str) and set(word) <= set("rwaxbt+")]
        if name == "open" and any(set(mode) & set("wax+") for mode in modes):
            yield node.lineno, "writes with open"
        if name in ("read_text", "open") and owner not in ("files", "os"):
            keywords = {keyword.arg for keyword in node.keywords}
            if "encoding" not in keywords and "rb" not in modes:
                yield node.lineno, f"{name} in the encoding of the place"


def test_only_one_module_writes_and_only_the_launcher_ends():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in FILES
        for line, fault in faults(path)
    ]
    assert not found
