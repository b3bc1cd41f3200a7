"""A setting with which JAX ends the process of the tests before they begin: it is named."""

import os
import subprocess
import sys

from tests.launcher import ROOT


def test_a_flag_that_xla_refuses_is_named():
    kept = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
        cwd=ROOT,
        env=kept | {"XLA_FLAGS": "--xla_no_such_flag=1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "JAX does not start with" in done.stdout
    assert "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1" in done.stdout, done.stdout
