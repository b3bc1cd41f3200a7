"""Benchmarks that kill processes: whom they kill, what they write down, and one trial of each."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import goodput, peers_that_die, points
from tests.launcher import ROOT


def test_victims_are_taken_from_all_places_once():
    every = ["first", "middle", "last"]
    assert [peers_that_die.victims_of(every, count) for count in (1, 2, 4)] == [
        [0],
        [0, 1],
        [0, 1, 2, 3],
    ]
    assert peers_that_die.victims_of(["middle"], 4) == [1, 2]
    assert peers_that_die.victims_of(["middle"], 2) == []


def test_goodputs_are_points_of_a_record(tmp_path):
    path = tmp_path / "goodput.json"
    rows = [
        goodput.Row("SwarmSGD", every, kills, 60.0, 9.5) for every, kills in ((0.0, 0), (5.0, 9))
    ]
    for row in rows:
        points.put(path, "a command", goodput.KEY, [row._asdict() | {"share": 0.5}])
    found = json.loads(path.read_text())["summary"]["points"]
    assert [point["kills"] for point in found] == [0, 9]


@pytest.mark.slow
@pytest.mark.parametrize("victim", peers_that_die.victims_of(["middle"], 4)[:1])
def test_three_of_four_say_that_one_in_the_middle_has_gone(victim):
    trial = peers_that_die.Trial("SIGKILL", 4, victim, "round")
    row = peers_that_die.tried(trial, None, resume=False)
    assert (row["codes"], row["wrong"], row["hanging"]) == ([3, 3, 3], [], 0), row


@pytest.mark.slow
def test_a_process_whose_reader_hangs_is_named_and_the_run_goes_on_later():
    trial = peers_that_die.Trial(peers_that_die.STILL, 2, 1, "input")
    row = peers_that_die.tried(trial, None, resume=True)
    assert (row["codes"], row["wrong"], row["hanging"]) == ([3, 3], [], 0), row
    assert row["named"] and row["resumed"] == "done", row


@pytest.mark.slow
@pytest.mark.xdist_group("actors")
def test_some_samples_are_left_while_workers_are_killed(tmp_path):
    path = tmp_path / "goodput.json"
    command = [sys.executable, "-m", "benchmarks.goodput", "--seconds=6", "--every=3"]
    command += ["--systems=K-batch-async", f"--output={path}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=400, env=os.environ)
    alone, killed = json.loads(path.read_text())["summary"]["points"]
    assert alone["kills"] == 0 < killed["kills"]
    assert alone["share"] == 1 and 0 < killed["share"] < 1.2
