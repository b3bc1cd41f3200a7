"""Benchmarks that kill processes: one trial of each."""

import pytest

from tests.launcher import program


@pytest.mark.slow
def test_runs_that_are_killed_are_finished_by_the_same_command():
    words = ("--ways=simulator", "--disks=0", "--kills=1", "--terms=0")
    ended = program("-m", "benchmarks.faults", *words, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split()[-2:] for line in ended.stdout.splitlines()[1:]] == [
        ["1", "0"], ["0", "0"], ["0", "0"]
    ]  # fmt: skip
