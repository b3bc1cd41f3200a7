"""The path of a run through the code does not grow unseen."""

import os
import subprocess
import sys

from tests.launcher import ROOT

# Each is lowered when a change shortens the path.
MOST = {
    "modules loaded": 70, "lines of these": 16_200, "files entered": 44,
    "moves before the simulator exists": 130,
}  # fmt: skip


def test_a_simulated_run_takes_no_longer_path_than_it_did():
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.path_of_a_run"], cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    rows = [line.split(maxsplit=1) for line in found.stdout.splitlines()]
    numbers = {row[1]: int(row[0]) for row in rows if row[1:] and row[0].isdigit()}
    assert numbers.keys() == MOST.keys()
    assert all(0 < numbers[name] <= most for name, most in MOST.items()), numbers
