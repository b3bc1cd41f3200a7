"""Promises of the code about its own structure."""

import ast
import importlib
import numbers
import pathlib
import re

import pytest

from comms.registry import Registry
from tests.launcher import ROOT

FOLDERS = ("algorithms", "benchmarks", "comms", "configs", "experiments", "runtimes", "stragglers")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
FILES += [ROOT / "launch.py", ROOT / "gossax.py", ROOT / "gossax_checkout.py"]


def registries():
    """Every module's dicts from names to what they stand for: {name: where it is a key}."""
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


def constants(tree):
    """The module's own tuples, lists and sets of strings, by name."""
    return {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def texts(node, known):
    """The literal strings that are compared, alone or in a tuple, list or set."""
    node = known.get(node.id, node) if isinstance(node, ast.Name) else node
    nodes = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def compared(tree):
    """(line, text) of every literal string that something is compared with."""
    known = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                for text in texts(side, known):
                    yield node.lineno, text
        if isinstance(node, ast.MatchValue):
            for text in texts(node.value, known):
                yield node.lineno, text


@pytest.fixture(scope="module")
def names():
    return registries()


def test_registries_are_found(names):
    assert {"k_sync", "all_reduce", "mesh", "digits", "pareto", "ring", "dirichlet"} <= set(names)


def test_nobody_asks_for_a_name_that_is_a_key_of_a_registry(names):
    """What a part can do stands in the part; a name is only looked up."""
    asked = [
        f"{path.relative_to(ROOT)}:{line}: {text!r} is a key of {names[text]}"
        for path in FILES
        for line, text in compared(ast.parse(path.read_text()))
        if text in names
    ]
    assert not asked


# From the top to the bottom; folders of one floor do not import each other.
FLOORS = (
    {"launch"},
    {"configs", "benchmarks"},
    {"experiments"},
    {"gossax"},
    {"runtimes"},
    {"algorithms"},
    {"stragglers"},
    {"comms"},
)


def imported(tree):
    """(line, first name of the module) of every import, wherever in a file it stands."""
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module]
        for module in modules:
            yield node.lineno, module.partition(".")[0]


def test_imports_point_down_only():
    floor = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in FILES
        for line, module in imported(ast.parse(path.read_text()))
        for here in [path.relative_to(ROOT).with_suffix("").parts[0]]
        if module in floor and module != here and floor[module] <= floor[here]
    ]
    assert not upward


def test_the_readme_lists_the_folders_in_the_order_of_imports():
    listed = [
        line.split()[0].strip("/").removesuffix(".py")
        for line in (ROOT / "README.md").read_text().splitlines()
        if re.match(r"[a-z]+(/|\.py) {2,}", line)
    ]
    floor = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
    floors = [floor[name] for name in listed if name in floor]
    assert floors == sorted(floors) and set(listed) >= set(floor)


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
    ("experiments/training_loop.py", "savez"),  # into a file of the module
    ("experiments/checkpoints.py", "savez"),  # the same
}  # fmt: skip


def calls(tree):
    """(call, name of what is called, on what) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                owner = function.value.id if isinstance(function.value, ast.Name) else None
                yield node, function.attr, owner
            elif isinstance(function, ast.Name):
                yield node, function.id, None


def faults(path, text):
    """Return the deeds of a module that only the launcher or `experiments.files` may do."""
    tree, here = ast.parse(text), path.as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "catches everything, ctrl-C included"
    is_program = '__name__ == "__main__"' in text
    for node, name, owner in calls(tree):
        ends = (owner, name) in (("sys", "exit"), ("os", "_exit"), (None, "exit"))
        if ends and here not in ENDS and not is_program:
            yield node.lineno, "ends the process"
        if path.parts[0] != "experiments" or here == "experiments/files.py":
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
        for line, fault in faults(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    pass\nexcept:\n    pass",
        "sys.exit(1)",
        "path.write_text('')",
        "open(path, 'w')",
        "path.open('a')",
        "np.savez(path)",
        "path.read_text()",
        "os.replace(a, b)",
        "canvas.savefig(path)",
        "shutil.rmtree(path)",
    ],
)
def test_such_faults_are_found(text):
    assert list(faults(pathlib.PurePosixPath("experiments/x.py"), text))
