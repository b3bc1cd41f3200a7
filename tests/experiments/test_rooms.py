"""Imports between the rooms of `experiments/`."""

import ast
import pathlib
import subprocess
import sys

import experiments.registry

FOLDER = pathlib.Path(experiments.registry.__file__).parent
# From the ground up. The running core are the modules of the folder itself; all read configs.
GROUND = ("registry", "parts")
FLOORS = ("configs", "tasks", "core", "papers", "publish", "advice")


def floor(module):
    """The place of `experiments.a` or `experiments.a.b` in FLOORS."""
    name = module.split(".")[1]
    if name in GROUND:
        return 0
    return FLOORS.index(name if name in FLOORS else "core")


def imported(path):
    """The modules of `experiments` that a file imports, at its top or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "experiments":
            yield from (f"experiments.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("experiments."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("experiments."))


def test_arrows_between_rooms_point_down():
    upward, rooms = [], set()
    for path in sorted(FOLDER.rglob("*.py")):
        relative = path.relative_to(FOLDER.parent).with_suffix("")
        if path == FOLDER / "__init__.py":
            continue
        own = floor(".".join(relative.parts))
        rooms.add(FLOORS[own])
        upward += [f"{relative}: {name}" for name in imported(path) if floor(name) > own]
    assert not upward
    assert rooms == set(FLOORS)


def test_importing_the_folder_imports_nothing():
    command = "import sys, experiments; print(*(n for n in sys.modules if 'experiments.' in n))"
    root = FOLDER.parent
    called = [sys.executable, "-c", command]
    shown = subprocess.run(called, cwd=root, capture_output=True, check=True)
    assert shown.stdout.split() == []
