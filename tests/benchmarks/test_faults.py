"""Benchmarks that kill processes: one trial of each."""

import subprocess
import sys

import pytest

from tests.launcher import ROOT


@pytest.mark.slow
def test_runs_that_are_killed_are_finished_by_the_same_command():
    command = [sys.executable, "-m", "benchmarks.faults", "--ways=simulator", "--disks=0"]
    ended = subprocess.run(
        [*command, "--kills=1", "--terms=0"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split()[-2:] for line in ended.stdout.splitlines()[1:]] == [
        ["1", "0"], ["0", "0"], ["0", "0"]
    ]  # fmt: skip
