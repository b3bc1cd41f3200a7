"""A fresh clone in which the README is followed from its top, installation included."""

import os
import shutil
import subprocess
import time

import pytest

from tests.launcher import ROOT
from tests.test_docs import BLOCK, commands

# Of an installer that cannot reach its packages.
OFFLINE = ("No matching distribution found", "Could not find a version", "Connection", "timed out")


def followed(clone, *words):
    """Return the output of a command in the clone; it may take the time of an installation."""
    environment = os.environ | {"XLA_FLAGS": ""}  # as a user's
    done = subprocess.run(
        words, cwd=clone, env=environment, capture_output=True, text=True, timeout=1800
    )
    if done.returncode and any(word in done.stderr for word in OFFLINE):
        pytest.skip("packages cannot be installed here")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not (ROOT / ".git").exists() or not all(map(shutil.which, ("git", "make"))),
    reason="this is no checkout, or git or make is missing",
)
def test_a_fresh_clone_followed_from_the_top(tmp_path, capsys):
    """Every command and every block of Python in order; of the tests only what `make` would do."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    began, first = time.monotonic(), None
    for language, body in BLOCK.findall((clone / "README.md").read_text()):
        if language:
            followed(clone, clone / ".venv/bin/python", "-c", body)
            continue
        for program, *rest in commands(body):
            if program == "git":  # that is done
                continue
            if program == "python":  # of the environment, which is active by then
                program = clone / ".venv/bin/python"
            dry = ["--dry-run"] if "test" in rest else []  # the suite would run itself
            followed(clone, program, *dry, *rest)
            if first is None and (clone / "runs/demo/figure.png").exists():
                first = time.monotonic() - began
    assert first is not None and (clone / "runs/demo/report.html").exists()
    with capsys.disabled():
        print(f"\nthe first picture of a fresh clone is there after {first:.0f} s")


def test_the_commands_of_the_readme_are_those_that_are_followed():
    found = [words for language, body in BLOCK.findall((ROOT / "README.md").read_text())
             if not language for words in commands(body)]  # fmt: skip
    assert {program for program, *_ in found} == {"git", "make", "python"}
    assert ["make", "demo"] in found and ["python", "launch.py", "--list"] in found
    assert any("--config=configs/nonblocking.py" in words for words in found)
