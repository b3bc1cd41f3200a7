"""Looks at recorded durations."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs import nonblocking
from experiments import publish, train
from experiments.advice import observatory
from experiments.advice.durations import Measured
from tests import warm

ROOT = Path(__file__).parents[3]


def test_the_loss_at_a_barrier_has_three_parts():
    """Worker 0 is always twice as slow, another one for half of the time, and one at random."""
    rounds = np.ones((4, 640))
    rounds[0] = 2.0
    rounds[1, 320:] = 3.0
    rounds[2, ::32] = 10.0
    mean, last = rounds.mean(), rounds.max(axis=0).mean()
    found = observatory.loss(rounds)
    assert sum(found.values()) == pytest.approx(last / mean - 1)
    assert found["persistent"] == pytest.approx(2.0 / mean - 1)
    assert found["drifting"] == pytest.approx(0.5 / mean, rel=0.05)
    assert set(observatory.loss(np.ones((3, 40))).values()) == {0}
    short = np.ones((4, 32))  # the last worker is slow in the middle, which windows see most of
    short[3, 10:20] = 5.0
    found = observatory.loss(short)
    assert sum(found.values()) == pytest.approx(short.max(axis=0).mean() / short.mean() - 1)


def test_spells_are_counted_in_rounds_without_a_break():
    """Worker 1 is slow for 30 of 40 rounds in two spells, which all are, too, in round 5."""
    rounds = np.ones((3, 40))
    rounds[1, :20], rounds[1, 25:35], rounds[:, 5] = 2.0, 2.0, 2.0
    rounds[1, 5] = 4.0
    found = observatory.spells(rounds)
    assert found == {"share": 30 / 120, "rounds": (20 * 20 + 10 * 10) / 30, "workers": 1}
    assert set(observatory.spells(np.ones((2, 4))).values()) == {0}


def page(numbers):
    return "\n".join(publish.table(numbers.columns, numbers.rows))


def test_gains_are_those_of_known_durations():
    """One of four workers is four times slower, so that the others could do four rounds in one."""
    seconds = np.ones((4, 400))
    seconds[0] = 4.0
    measured = Measured(tuple(seconds), "four workers")
    record = observatory.observed(measured, 8)
    found = record["gains"]
    assert found["barrier"] == {"mean": 1.0, "spread": 0.0, "staleness": 0.0}
    fresh, stale = found["first_finisher"], found["k_batch_async(k=4)"]
    assert fresh["mean"] == pytest.approx((3 * 8 + 2) / 8 / (4 * 8 / 32), rel=0.01)
    assert stale["mean"] == pytest.approx((3 + 1 / 4) / (4 / 4), rel=0.02)
    assert stale["staleness"] > 0 == fresh["staleness"]
    assert {"quorum(k=29)", "rennala(k=4)"} <= found.keys()  # nine tenths of 32; 4 have 8 each
    assert record["slowest"][0] == {
        "worker": "0", "times_the_mean": pytest.approx(16 / 7), "share_of_rounds_last": 1.0
    }  # fmt: skip
    assert "first_finisher finishes 3.25 times as many" in observatory.advice(record)
    equal = observatory.observed(Measured(tuple(np.ones((4, 400))), "equal"), 8)
    assert {one["share_of_rounds_last"] for one in equal["slowest"]} == {0.25}  # all end together
    assert observatory.advice(equal).endswith("no rule gains 10%, so keep the barrier.")
    assert "| first_finisher | 3.25 | 1.00 |" in page(observatory.as_numbers([record, equal]))


def test_the_page_shows_the_record():
    record = json.loads((ROOT / "docs/results/benchmarks/observatory.json").read_text())
    text = (ROOT / "docs/observatory.md").read_text()
    alike = ("job_2_norm.csv", "job_3_norm.csv", "ST.parquet")  # which the page leaves out
    shown = [found for found in record["sources"] if found["source"] not in alike]
    assert page(observatory.as_numbers(shown)) in text
    assert page(observatory.of_workers(record["sources"])) in text


def test_a_run_is_looked_at(tmp_path):
    config = nonblocking.get_config("delay=slow4")
    config.task, config.updates = "synthetic_logistic(samples=256, dimension=8)", 30
    config.wait = "barrier"
    train.run(config, str(tmp_path / "run"))
    measured = observatory.read(str(tmp_path / "run"), 8)
    rounds = observatory.rounds_of(measured, 8)
    assert observatory.slowest(measured, rounds)[0]["worker"] == "0"
    assert observatory.loss(rounds)["persistent"] > 1
    assert observatory.read("alibaba_job_4(mean=2.0)", 8).workers == 10
    with pytest.raises(ValueError, match=r"config\.json; give one of its runs, as .*/run$"):
        observatory.read(f"{tmp_path}", 8)
    with pytest.raises(ValueError, match=r"nowhere\.csv is no directory, no file and no law"):
        observatory.read("nowhere.csv", 8)


@pytest.mark.slow
def test_a_look_at_files_from_the_command_line(tmp_path, monkeypatch):
    for worker in range(3):
        rows = [f"{step},{1 + worker + 0.1 * (step % 3)}" for step in range(40)]
        (tmp_path / f"rank{worker}.csv").write_text("step,seconds\n" + "\n".join(rows))
    pattern, png, path = f"{tmp_path}/rank*.csv", tmp_path / "look.png", tmp_path / "look.json"
    words = ["-m", "experiments.advice.observatory", pattern, "--mini_batches=2"]
    words += [f"--figure={png}", f"--record={path}"]
    run = warm.run(words, cwd=ROOT, env=os.environ, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "120 durations of 3 workers, 40 each" in run.stdout
    assert "A barrier's round takes 1.48 times the mean worker's" in run.stdout
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(path.read_text())["command"].endswith("/rank*.csv' --mini_batches=2")
    given = SimpleNamespace(mini_batches=40, workers=None, record=None, figure=None)
    monkeypatch.setattr(observatory, "flags", SimpleNamespace(FLAGS=given))
    with pytest.raises(SystemExit, match=r"error: .* too few durations for two rounds"):
        observatory.main(["observatory", pattern])
