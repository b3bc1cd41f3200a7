"""The notebook of the tour runs from its top to its end, as its readers run it."""

import json
import os
import subprocess
import sys

import pytest

from tests.launcher import ROOT

TOUR = ROOT / "docs" / "tour.ipynb"
# Runs cells in one namespace, and shows what the last expression of each shows in a notebook.
PLAYER = """
import ast, json, sys
names = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {number}", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        if hasattr(value, "_repr_png_"):
            print("picture", len(value._repr_png_()))
"""


def cells():
    return json.loads(TOUR.read_text())["cells"]


def test_the_notebook_is_stored_without_outputs():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) >= 5 and len({cell["id"] for cell in cells()}) == len(cells())
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]


@pytest.mark.slow
@pytest.mark.xdist_group("actors")
def test_every_cell_runs_in_order(tmp_path):
    sources = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    for name in ("configs", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-c", PLAYER],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("picture") == 2 and "wall clock" in done.stdout
    assert (tmp_path / "runs/tour_replay/summary.json").exists()
