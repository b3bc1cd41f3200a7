"""A run that is cut off and asked for again ends as if nothing had happened, bit for bit."""

import os
import shutil

import numpy as np
import pytest

from configs import adasync, nonblocking
from experiments import checkpoints, records, sweep, train
from stragglers.schedule import load
from tests.marks import slow

TINY = {
    "task": "synthetic_logistic(samples=64, dimension=4)",
    "workers": 4,
    "batch_size": 4,
    "seconds": 0.5,
    "evaluate_every": 0.1,
    "delay": "exponential(scale=0.05)",
    "optimizer.learning_rate": 0.3,
}
MOMENTUM = {"optimizer": {"name": "momentum", "decay": 0.9, "learning_rate": 0.1}}
ADAPTIVE = {"name": "adasync", "protocol": "k_async", "interval": 0.2, "k": 1, "lowest_loss": 0.6}
CONFIGS = {
    "sync": {"wait": "barrier", "mini_batches": 2, "communication": 0.01, **MOMENTUM},
    "async": {"wait": "k_async(k=2)", **MOMENTUM},
    "adaptive": {"wait": ADAPTIVE},
    "top_k": {"algorithm": "top_k(ratio=0.5)", "wait": "first_finisher", "mini_batches": 2},
    "gossip": {"algorithm": "dpsgd", "wait": "first_finisher", "mini_batches": 2},
    "swarm": {"algorithm": "swarm", "wait": "random_pairs", "mini_batches": 2},
}


def configured(**changes):
    base = nonblocking.get_config()
    base.communication, base.mini_batches = 0.0, 1
    return sweep.override(base, TINY | changes)


class Killed(BaseException):
    """Nothing in a run catches it."""


def killer(records_left: int):
    """Return what ends the run when this number of records has been written."""

    def on_record(record):
        nonlocal records_left
        records_left -= 1
        if records_left == 0:
            raise Killed

    return on_record


def resumable(*workdirs):
    return checkpoints.resumable([checkpoints.numbers(workdir) for workdir in workdirs])


def killed(config, workdir, records_left):
    with pytest.raises(Killed):
        train.run(config, workdir, on_record=killer(records_left), checkpoint_seconds=0)


def left(workdir):
    """Return the files of a run without times of the wall clock; arrays as their bytes."""
    assert len(os.listdir(workdir / "checkpoint")) == 1  # of its end
    arrays = {
        (name, key): (value.dtype, value.shape, value.tobytes())
        for name in ("schedule.npz", "parameters.npz")
        for key, value in np.load(workdir / name).items()
    }
    metrics = records.read_metrics(workdir)
    summary = records.read_summary(workdir)
    for record in (*metrics, summary):
        assert record.pop("wall_seconds") > 0
    return arrays, metrics, summary


@pytest.mark.parametrize(
    ("name", "kills"),
    [("async", 2), slow("adaptive", 1), slow("top_k", 1), slow("swarm", 1)],
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, name, kills):
    config = configured(**CONFIGS[name])
    train.run(config, tmp_path / "whole")
    for kill in range(kills):
        killed(config, tmp_path / "cut", 4 if kill == 0 else 2)
        assert os.listdir(tmp_path / "cut" / "checkpoint") == [str(2 + kill)]
    seen = []
    train.run(config, tmp_path / "cut", on_record=seen.append)
    assert left(tmp_path / "cut") == left(tmp_path / "whole")
    assert len(seen) == 4 - kills  # of 6: only what was still to be done


def test_a_run_on_devices_that_was_killed_has_one_clock_and_one_schedule(tmp_path):
    """Its dispatches run past many evaluations: one is made after each of them."""
    config = configured(
        runtime="mesh", wait="barrier", delay="deterministic(value=0.002)", updates=12,
        rounds_per_dispatch=2, seconds=60.0, evaluate_every=1e-4,
    )  # fmt: skip
    killed(config, tmp_path, 4)
    seen = []
    summary = train.run(config, tmp_path, on_record=seen.append)
    assert len(seen) == 4 and summary["updates"] == 12
    metrics, schedule = records.read_metrics(tmp_path), load(tmp_path / records.SCHEDULE)
    assert [entry["update"] for entry in metrics] == [0, 2, 4, 6, 8, 10, 12]
    schedule.validate()
    assert schedule.updates == 12 and schedule.offset == 0
    np.testing.assert_array_equal(schedule.first, np.tile(np.arange(12)[:, None], 4))
    assert [entry["seconds"] for entry in metrics[1:]] == schedule.time[1::2].tolist()


def arms():
    base = adasync.get_config("rate=0.2")
    base.task, base.workers, base.batch_size = TINY["task"], 4, 4
    base.seconds, base.evaluate_every, base.wait.interval = 4.0, 1.0, 1.5
    changes = [{}, {"seed": 1, "wait.k": 3}, {"updates": 3}]
    return [sweep.override(base, {"name": f"arm{n}"} | c) for n, c in enumerate(changes)]


@pytest.mark.slow
def test_arms_that_train_together_go_on_together(tmp_path):
    configs = arms()
    whole, cut = ([tmp_path / place / f"{n}" for n in range(3)] for place in ("whole", "cut"))
    train.run_together(configs, whole)
    tell = [lambda record: None, killer(4), lambda record: None]
    with pytest.raises(Killed):
        train.run_together(configs, cut, on_record=tell, checkpoint_seconds=0)
    assert records.read_summary(cut[2])["updates"] == 3  # done before the others
    # As if the kill had come when the first arm had its next checkpoint and the second had not.
    newest = checkpoints.read(cut[0], 2)
    checkpoints.write(cut[0], newest._replace(evaluation=3))
    assert resumable(*cut[:2]) == [2, 2]
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "cut", other)
    train.run_together(configs, cut)
    assert [left(place) for place in cut] == [left(place) for place in whole]

    # One of them went on alone for a while: each goes on from where it stands.
    checkpoints.keep_only(other / "0", 2)
    killed(configs[0], other / "0", 2)
    assert resumable(other / "0", other / "1") == [3, 2]
    train.run_together(configs[:2], [other / "0", other / "1"])
    for n in range(2):
        ours, theirs = records.read_metrics(other / f"{n}"), records.read_metrics(whole[n])
        assert [r["update"] for r in ours] == [r["update"] for r in theirs]
        # A program for one arm may round otherwise than one for several.
        np.testing.assert_allclose(*([r["train_loss"] for r in m] for m in (ours, theirs)), 1e-5)


def test_arms_go_on_from_the_latest_moment_that_they_share():
    a, b, c, new = {2, 3}, {1, 2}, {5}, set()
    assert checkpoints.resumable([a, b]) == [2, 2]
    assert checkpoints.resumable([a, c, new]) == [3, 5, None]
    assert checkpoints.resumable([]) == []  # all of them have ended


def test_unusable_checkpoints_are_refused_and_left_alone(tmp_path):
    config, workdir = configured(**CONFIGS["sync"]), tmp_path
    killed(config, workdir, 3)

    def refused(words, config=config):
        before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match=words) as caught:
            train.run(config, workdir)
        assert "\n" not in str(caught.value)
        assert {path: path.read_bytes() for path in before} == before

    refused("differs in seed", configured(**CONFIGS["sync"], seed=3))
    metrics = workdir / records.METRICS
    text = metrics.read_text()
    metrics.write_text(text.splitlines(keepends=True)[0])
    refused("metrics.jsonl has 1 records, the checkpoint was made after 2; remove")
    metrics.write_text(text.replace('"update": 0', '"update": 1'))
    refused("metrics.jsonl has been changed since; remove")
    metrics.write_text(text)
    (workdir / "checkpoint" / "1" / checkpoints.STATE).write_bytes(b"nothing")
    refused(r"checkpoint .*1 cannot be read \(")
    assert train.run(config, workdir, overwrite=True)["updates"] > 0


def test_values_of_all_kinds_come_back_as_they_were(tmp_path):
    kinds = ["float32", "bfloat16", "float16", "int8", "uint32", "int64", "bool"]
    packed = {kind: np.arange(6).reshape(2, 3).astype(np.dtype(kind)) for kind in kinds}
    packed["params/a.b"] = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    packed |= {f"none/{kind}": np.zeros((0, 3), np.dtype(kind)) for kind in kinds[:2]}
    written = checkpoints.Checkpoint(7, 8, 0.1 + 0.2, packed, None)
    checkpoints.write(tmp_path, written)
    back = checkpoints.read(tmp_path, 7)
    assert back[:3] == written[:3] and back.schedule is None
    assert back.packed.keys() == packed.keys()
    for name, value in packed.items():
        assert back.packed[name].dtype == value.dtype
        assert back.packed[name].shape == value.shape
        assert back.packed[name].tobytes() == value.tobytes()


def test_a_clock_that_reads_another_file_now_is_refused(tmp_path):
    """A trace that has changed since would give other updates to the same seconds."""
    trace = tmp_path / "t.csv"

    def write(longest):
        seconds = np.random.default_rng(0).uniform(0.01, longest, (9, 4)).round(4)
        lines = (f"{w},{i},{x}\n" for i, row in enumerate(seconds) for w, x in enumerate(row))
        trace.write_text("worker,time,batch_time\n" + "".join(lines))

    config = configured(**CONFIGS["sync"], delay=f"trace(path='{trace}')")
    write(0.03)
    killed(config, tmp_path / "run", 4)
    write(0.09)
    with pytest.raises(ValueError, match=rf"differs in files_sha256\.{trace} \(\w+ there, "):
        train.run(config, tmp_path / "run")
    described = records.read_json(tmp_path / "run" / records.CONFIG)
    del described[records.DATA]  # as in an older record, which does not say
    records.write_json(tmp_path / "run" / records.CONFIG, described)
    with pytest.raises(ValueError, match="such as a trace or a profile, is another one now"):
        train.run(config, tmp_path / "run")
    write(0.03)
    assert train.run(config, tmp_path / "run")["updates"] > 2
