"""A run that is trained longer is the run that had been made that long from its start."""

import os
import shutil

import pytest

from experiments import checkpoints, records, train
from tests.experiments.test_checkpoints import CONFIGS, configured, killed, left
from tests.marks import slow

MESH = {
    "runtime": "mesh", "wait": "barrier", "delay": "none", "seconds": 1000.0,
    "evaluate_every": 1000.0, "optimizer": {"name": "adam", "learning_rate": 0.01},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("async", {"seconds": 0.25}),  # between two evaluations
        slow("adaptive", {"updates": 11}),
        slow("gossip", {"updates": 3, "evaluate_every": 10.0}),
    ],
)
def test_a_simulated_run_is_trained_longer_bit_for_bit(tmp_path, name, short):
    every = {"evaluate_every": short.get("evaluate_every", 0.1)}
    long = configured(**CONFIGS[name], **every)
    train.run(long, tmp_path / "whole")
    train.run(configured(**CONFIGS[name], **short), tmp_path / "run")
    before, notes = records.read_summary(tmp_path / "run"), []
    train.run(long, tmp_path / "run", on_note=notes.append)
    assert notes == [f"goes on at update {before['updates']}"]
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    seen = []
    train.run(long, tmp_path / "run", on_record=seen.append)  # it has ended, and stays so
    assert not seen


@pytest.mark.slow
def test_a_mesh_run_is_trained_longer_with_the_same_parameters(tmp_path):
    train.run(configured(**MESH, updates=11), tmp_path / "whole")
    for updates in (3, 11):
        train.run(configured(**MESH, updates=updates), tmp_path / "run")
    assert left(tmp_path / "run")[0].keys() == left(tmp_path / "whole")[0].keys()
    ours, theirs = (
        {k: v for k, v in left(tmp_path / name)[0].items() if k[0] == records.PARAMETERS}
        for name in ("run", "whole")
    )
    assert ours == theirs
    updates = [record["update"] for record in records.read_metrics(tmp_path / "run")]
    assert updates == [0, 3, 11] and records.read_summary(tmp_path / "run")["updates"] == 11


@pytest.mark.slow
def test_arms_of_one_program_are_trained_longer(tmp_path):
    for seconds in (0.25, 0.5):
        configs = [configured(**CONFIGS["sync"], seed=s, seconds=seconds) for s in range(2)]
        places = [tmp_path / "cut" / f"{s}" for s in range(2)]
        summaries = train.run_together(configs, places)
    whole = train.run_together(configs, [tmp_path / "whole" / f"{s}" for s in range(2)])
    assert [s["train_loss"] for s in summaries] == [s["train_loss"] for s in whole]
    assert all(left(place) == left(tmp_path / "whole" / place.name) for place in places)


def test_only_the_length_may_grow(tmp_path):
    short = configured(**CONFIGS["sync"], updates=2)
    train.run(short, tmp_path / "run")
    for changes in ({"updates": 1}, {"updates": 4, "seconds": 0.1}, {"updates": 4, "seed": 3}):
        with pytest.raises(ValueError, match="another config, which differs in"):
            train.run(configured(**CONFIGS["sync"] | changes), tmp_path / "run")
    longer = configured(**CONFIGS["sync"], updates=4)
    shutil.copytree(tmp_path / "run", tmp_path / "bare")
    checkpoints.keep_only(tmp_path / "bare", None)
    with pytest.raises(ValueError, match="without the checkpoint of its end"):
        train.run(longer, tmp_path / "bare")
    assert train.run(short, tmp_path / "bare") == records.read_summary(tmp_path / "run")
    (number,) = checkpoints.numbers(tmp_path / "run")
    folder = checkpoints.folder_of(tmp_path / "run") / str(number)
    (folder / checkpoints.STATE).write_bytes(b"")
    # Not the advice to remove it: the same command would find no end to go on from.
    with pytest.raises(ValueError, match=r"cannot be read .*; --overwrite starts this run over"):
        train.run(longer, tmp_path / "run")


def test_a_kill_while_a_run_is_trained_longer_loses_nothing(tmp_path):
    train.run(configured(**CONFIGS["sync"], seconds=0.25), tmp_path / "run")
    killed(configured(**CONFIGS["sync"]), tmp_path / "run", 1)  # before any checkpoint of its own
    for name in ("run", "whole"):
        train.run(configured(**CONFIGS["sync"]), tmp_path / name)
    assert left(tmp_path / "run") == left(tmp_path / "whole")


def test_a_stop_for_good_stays_one(tmp_path):
    """As of a target that was reached, whatever time is left."""
    reached = {**CONFIGS["async"], "target_loss": 0.69, "stop_at_target": True}
    first = train.run(configured(**reached, seconds=0.4), tmp_path)
    second = train.run(configured(**reached), tmp_path)
    assert first["train_loss"] == second["train_loss"] <= 0.69
    assert first["seconds"] == second["seconds"] < 0.4


def test_a_run_that_has_diverged_stays_so_however_long_it_may_train(tmp_path):
    diverging = {**CONFIGS["adaptive"], "optimizer.learning_rate": 1e30}
    first = train.run(configured(**diverging, seconds=0.3), tmp_path)
    second = train.run(configured(**diverging), tmp_path)
    assert "not finite at update" in first["stopped"]
    assert (second["stopped"], second["updates"]) == (first["stopped"], first["updates"])


@pytest.mark.parametrize("number", ["0", "99"])
def test_a_half_checkpoint_beside_a_whole_one_is_passed_over(tmp_path, number):
    config, run, notes = configured(**CONFIGS["sync"]), tmp_path / "run", []
    killed(config, run, 4)
    folder = run / "checkpoint" / number
    folder.mkdir()
    if number == "99":  # the other one is empty
        (folder / checkpoints.STATE).write_bytes(b"PK\x03\x04")
    seen = []
    train.run(config, run, on_record=seen.append, on_note=notes.append)
    assert len(seen) == 3 and notes[-1].startswith("goes on at update")
    passed = [note for note in notes if str(folder) in note]
    assert len(passed) == (number == "99")  # an older one is not even looked at
    assert all(f"goes on from {run / 'checkpoint' / '2'}" in note for note in passed)
    assert not folder.exists()


def test_without_a_whole_one_exactly_the_half_ones_are_named(tmp_path):
    config, run = configured(**CONFIGS["sync"]), tmp_path / "run"
    killed(config, run, 4)
    whole, half = run / "checkpoint" / "2", run / "checkpoint" / "99"
    half.mkdir()
    (whole / checkpoints.STATE).write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be read") as caught:
        train.run(config, run)
    assert f"remove {half} and {whole}, and the same command starts" in str(caught.value)
    assert sorted(os.listdir(run / "checkpoint")) == ["2", "99"]
    shutil.rmtree(half)
    shutil.rmtree(whole)
    seen = []
    train.run(config, run, on_record=seen.append)
    assert len(seen) == 6


def test_metrics_that_are_too_short_for_one_checkpoint_are_enough_for_an_older(tmp_path):
    config, run = configured(**CONFIGS["sync"]), tmp_path / "run"
    killed(config, run, 3)
    shutil.copytree(run / "checkpoint" / "1", tmp_path / "1")
    killed(config, run, 2)
    shutil.copytree(tmp_path / "1", run / "checkpoint" / "1")
    lines = (run / records.METRICS).read_text().splitlines(keepends=True)
    (run / records.METRICS).write_text("".join(lines[:2]))
    seen = []
    train.run(config, run, on_record=seen.append)
    assert len(seen) == 4
