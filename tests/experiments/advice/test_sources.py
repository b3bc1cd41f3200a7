"""Advice on every kind of source, and a refusal of what tells nothing about stragglers."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from configs import base
from experiments import records, train
from experiments.advice import durations, page, play
from experiments.config_files import override
from stragglers import delays
from tests import planned
from tests.stragglers.test_traces import profiled

SLOW = np.array([1.0, 1.1, 3.0])  # of the workers
SECONDS = 0.02 * SLOW[:, None] * (1 + 0.1 * np.sin(np.arange(40)))


def long(header="worker,time,batch_time", rows="{0},{1},{2:.6f}"):
    lines = [rows.format(i, t, SECONDS[i, t]) for t in range(40) for i in range(3)]
    return "\n".join([header, *lines])


def config(**changes):
    return base.arm(**{
        "task": "synthetic_logistic(samples=128, dimension=4)", "workers": 3, "batch_size": 4,
        "target_loss": 0.5, "seconds": 5.0, "optimizer": "sgd(learning_rate=0.5)", **changes,
    })  # fmt: skip


def kineto(root):
    for rank, factor in enumerate(SLOW):
        text = profiled(0.25 * factor * (1 + 0.1 * np.sin(np.arange(20))), rank).encode()
        (root / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text))
    return f"{root}/*.json.gz"


def file_per_rank(root):
    for rank in range(3):
        lines = [f"{t},{SECONDS[rank, t]:.6f}" for t in range(40)]
        (root / f"rank{rank}.csv").write_text("\n".join(["step,seconds", *lines]))
    return f"{root}"


def written(name, text):
    def write(root):
        (root / name).write_text(text)
        return f"{root / name}"

    return write


def alibaba(root):
    text = long(",worker,gpu,time,batch_time_norm", "0,{0},25,{1},{2:.6f}")
    (root / "job_1_norm.csv").write_text(text)
    return f"trace(path='{root}/job_1_norm.csv', duration=batch_time_norm, mean=0.2)"


def run(root):
    train.run(config(delay="persistent(law=jitter(mean=0.02, sigma=0.1), factors={0: 3.0})",
                     mini_batches=2, seconds=2.0), root)  # fmt: skip
    return f"{root}"


def schedule(root):
    planned.plan("barrier", delays.exponential(0.02), 3, 40).save(root / "schedule.npz")
    return f"{root}/schedule.npz"


GIVEN = ["python", "launch.py", "--config=c.py", "--config.wait=barrier"]


@pytest.mark.parametrize("source", [written("trace.csv", long()), file_per_rank, alibaba])
def test_a_file_a_folder_and_a_call_are_read(source, tmp_path):
    seconds = np.array(durations.read(source(tmp_path), config(), []).measured.seconds)
    found, expected = seconds / seconds.mean(), SECONDS / SECONDS.mean()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_what_tells_nothing_of_three_workers_is_refused(tmp_path):
    for text, words in (
        ("worker,time,batch_time\n0,0,1.0", "of one worker, .* record a run of at least 2 work"),
        ("step,rank0,rank1\n" + "".join(f"{t},1,2\n" for t in range(30)),
         "has 2 workers, the config asks for 3"),
        (long(rows="{0},{1},0.02{1:02d}"), "at equal times all workers took about equally long"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            durations.read(written("trace.csv", text)(tmp_path), config(), [])


SOURCES = {
    "law": (lambda root: "pareto(minimum=0.02, shape=2)", 1),
    "kineto": (kineto, 2),
    "run": (run, 2),
    "schedule": (schedule, 8),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_ends_with_advice(name, tmp_path, monkeypatch):
    monkeypatch.setattr(play, "ROUNDS", 6)
    monkeypatch.setattr(play, "REPEATS", 2)
    grid = {"seconds": [0.05], "k": [2], "limit": [3], "gamma": [0.5], "c": [3.0],
            "calibration": [5], "local_steps": [1], "in_flight": ["cut"]}  # fmt: skip
    monkeypatch.setattr(play, "grids_of", lambda *_: grid)
    source, mini_batches = SOURCES[name]
    text, own = source(tmp_path), config(mini_batches=mini_batches)
    advice = play.weigh(durations.read(text, own, GIVEN))
    written = page.as_json(advice)
    json.dumps(records.plain(written), allow_nan=False)
    assert advice.verdict.close and len(advice.order) > 3 and written["verdict"]
    for one in advice.order:
        assert one.batch == pytest.approx(advice.reference.batch, rel=play.EQUAL + 1e-9)
    assert any(f"{mini_batches} mini-batch" in fact for fact in page.facts(advice).values())
    words = page.command(advice, tmp_path / "advice")
    names = [word.partition("=")[0] for word in words]
    assert len(names) == len(set(names))  # what is advised replaces what was given
    assert words[-1].startswith("--workdir=") and all("=" in word for word in words[2:])
    if name == "kineto":  # whose exchange was recorded
        assert 0 < written["exchange_seconds"] < 1
        assert any(word.startswith("--config.communication=0") for word in words)
    if name == "run":  # whose end says how noisy gradients are
        initial = override(advice.config, {"seed": 0})
        assert written["ratio_at"] == str(Path(text) / "parameters.npz")
        assert advice.ratio > play.noise_ratio(initial, advice.reference.prepared)
