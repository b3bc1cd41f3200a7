"""Whatever ends a process of the tests: its cause is on the screen, with the test that it ran."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.launcher import ROOT
from tests.marks import slow

PASSES = "import os\n\n\ndef test_passes():\n    pass\n\n\n"
KILLED = "def test_killed():\n    os.kill(os.getpid(), 9)\n"
ABORTED = "def test_aborted():\n    os.abort()\n"
# file -> its text, and the words that have to be on the screen
ENDINGS = [
    ({"test_one.py": PASSES + KILLED}, "crashed while running 'tests/test_one.py::test_killed'"),
    slow(
        {"test_one.py": PASSES + ABORTED}, "crashed while running 'tests/test_one.py::test_aborted'"
    ),
    slow({"test_one.py": PASSES + "os.abort()\n"}, 'test_one.py", line 8 in <module>'),
    ({"conftest.py": "import no_such_module\n"}, "No module named 'no_such_module'"),
]


@pytest.mark.parametrize(("files", "words"), ENDINGS)
def test_a_process_that_ends_says_where(files, words, tmp_path):
    """With the settings of this suite, on two processes as `make test` has it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    for name, text in files.items():
        (tmp_path / "tests" / name).write_text(text)
    code, screen = run_tests(tmp_path, "-n", "2")
    assert code != 0 and words in screen, screen


def test_a_flag_that_xla_refuses_is_named():
    code, screen = run_tests(ROOT, __file__, XLA_FLAGS="--xla_no_such_flag=1")
    assert code != 0
    assert "JAX does not start with" in screen
    assert "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1" in screen, screen


def run_tests(place, *flags, **environment):
    """The exit code of pytest in a process of its own, and all that it shows."""
    kept = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags],
        cwd=place,
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout
