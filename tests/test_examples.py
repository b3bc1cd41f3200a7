"""Every script of examples/, run as a reader would, and the examples in docstrings."""

import doctest
import importlib
import os
import re

import pytest

from tests import warm
from tests.launcher import ROOT
from tests.test_architecture import FILES

LAST = {  # a pattern of the last lines of each
    "advice": r"\n 1\.\d\d times as fast as barrier: ",
    "dpsgd": r"step 200: loss 0\.0\d+, consensus distance \d\.\d+e-02\n$",
    "killed_learners": r"(?s)is killed.*replayed: .* differ by \d\.\de(\+00|-0[7-9]) at",
    "matcha": r"MATCHA: the mean is \d\.\de-0[5-9] off its optimum, consensus distance 0\.\d+\n$",
    "nonblocking_mesh": r"barrier: .*\nfirst_finisher: \d+ updates of .* training loss 0\.\d+\n$",
    "swarm_codec": r"too far apart to be read\n(.*\n)*.*at most \d\.\d\d apart\n",
}
# Of minutes of work: fewer learners, updates and kills; three rules, whose answer is not read.
FEWER = {"workers=4": "workers=2", "20, kills=3": "6, kills=1", "updates=80": "updates=12"}
QUICK = """
play.ROUNDS, play.REPEATS, play.noise_ratio, variants = 4, 1, lambda *_: 1.0, play.variants
PLAYED = "barrier", "first_finisher", "k_async"
play.variants = lambda wait, grids: variants(wait, grids)[:1] if wait["name"] in PLAYED else []
"""
SMALLER = {"killed_learners": FEWER, "advice": {"\nwith tempfile": f"{QUICK}\nwith tempfile"}}


def test_every_example_has_a_row_here():
    paths = sorted((ROOT / "examples").glob("*.py"))
    assert [path.stem for path in paths] == sorted(LAST)
    assert all(len(path.read_text().splitlines()) <= 60 for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST)
def test_examples_run(name, tmp_path):
    """From another folder than its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": warm.COMPILING}
    if name in ("dpsgd", "nonblocking_mesh"):
        del environment["XLA_FLAGS"]  # which the example sets
    script = ROOT / "examples" / f"{name}.py"
    if name in SMALLER:
        text, script = script.read_text(), tmp_path / f"{name}.py"
        for part, smaller in SMALLER[name].items():
            assert text.count(part) == 1, part
            text = text.replace(part, smaller)
        script.write_text(text)
    done = warm.run([script], cwd=tmp_path, env=environment, timeout=540)
    assert done.returncode == 0, done.stderr
    assert re.search(LAST[name], done.stdout), done.stdout


DOCTESTS = [path.relative_to(ROOT) for path in FILES if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", DOCTESTS, ids=str)
def test_examples_in_docstrings_are_true(path):
    found = doctest.testmod(importlib.import_module(".".join(path.with_suffix("").parts)))
    assert found.attempted and not found.failed
