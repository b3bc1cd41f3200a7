"""Every script of examples/, run as a reader would, from another folder."""

import os
import re
import subprocess
import sys

import pytest

from tests.launcher import ROOT

LAST = {  # a pattern of the last lines of each
    "advice": r"\n 1\.\d\d times as fast as barrier: ",
    "dpsgd": r"step 200: loss 0\.0\d+, consensus distance \d\.\d+e-03\n$",
    "killed_learners": r"(?s)(is killed.*){3}replayed: .* differ by \d\.\de(\+00|-0[7-9]) at",
    "matcha": r"MATCHA: the mean is \d\.\de-0[5-9] off its optimum, consensus distance 0\.\d+\n$",
    "nonblocking_mesh": r"barrier: .*\nfirst_finisher: \d+ updates of .* training loss 0\.\d+\n$",
    "swarm_codec": r"too far apart to be read\n(.*\n)*.*at most \d\.\d\d apart\n",
}


def test_every_example_has_a_row_here():
    paths = sorted((ROOT / "examples").glob("*.py"))
    assert [path.stem for path in paths] == sorted(LAST)
    assert all(len(path.read_text().splitlines()) <= 60 for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST)
def test_examples_run(name, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    if name in ("dpsgd", "nonblocking_mesh"):
        del environment["XLA_FLAGS"]  # which the example sets
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(LAST[name], done.stdout), done.stdout
