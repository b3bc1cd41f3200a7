"""Loggers beside the metrics of a run."""

import contextlib
import math
import sys
import types

import pytest
from ml_collections import ConfigDict
from tensorboardX.proto.event_pb2 import Event

from experiments import loggers

CONFIG = ConfigDict({"name": "a/b", "seed": 3, "workers": 2})
RECORDS = [
    {"update": 0, "samples": 0, "seconds": 0.0, "bytes_per_worker": 0.0, "train_loss": 2.0,
     "test_accuracy": None},
    {"update": 7, "samples": 80, "seconds": 1.5, "bytes_per_worker": 96.0, "train_loss": 0.5},
    {"update": 9, "samples": 99, "seconds": 2.5, "bytes_per_worker": 128.0, "train_loss": math.nan},
]  # fmt: skip


def events(place):
    """Return the events of a file of TensorBoard: length, checksum, event, checksum, and so on."""
    (file,) = place.iterdir()
    data, at = file.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size


def test_tensorboard_gets_every_metric_over_every_axis(tmp_path):
    received = []
    with loggers.attach(["tensorboard"], tmp_path, CONFIG, received.append) as on_record:
        assert not list(tmp_path.iterdir())  # a finished run, which tells nothing, opens nothing
        for record in RECORDS:
            on_record(record)
    assert received == RECORDS
    names = {
        value.tag for event in events(tmp_path / "tensorboard") for value in event.summary.value
    }
    assert not any("accuracy" in name for name in names)  # the task has none
    points = [
        (value.tag, event.step, event.wall_time, value.simple_value)
        for event in events(tmp_path / "tensorboard")
        for value in event.summary.value
        if value.tag.startswith("train_loss")
    ]
    assert points == [
        ("train_loss", 0, 0.0, 2.0),
        ("train_loss_by_samples", 0, 0.0, 2.0),
        ("train_loss_by_bytes", 0, 0.0, 2.0),
        ("train_loss", 7, 1.5, 0.5),
        ("train_loss_by_samples", 80, 1.5, 0.5),
        ("train_loss_by_bytes", 96, 1.5, 0.5),
    ]


def test_wandb_goes_on_with_the_run_of_a_killed_one(tmp_path, monkeypatch):
    calls, ids = [], iter(["first", "second"])
    run = types.SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append((name, step_metric)),
        log=calls.append,
        finish=lambda exit_code: calls.append(exit_code),
    )
    util = types.SimpleNamespace(generate_id=lambda: next(ids))
    init = lambda **settings: calls.append(settings["id"]) or run  # noqa: E731
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, util=util))

    def logged(record, killed=False):
        del calls[:]
        attached = loggers.attach(["wandb"], tmp_path, CONFIG, lambda record: None)
        with contextlib.suppress(KeyboardInterrupt), attached as on_record:
            on_record(record)
            if killed:
                raise KeyboardInterrupt
        return list(calls)

    begun = ["first", ("*", "update")]
    assert logged(RECORDS[1], killed=True) == [*begun, RECORDS[1], 1]
    finite = {name: value for name, value in RECORDS[2].items() if name != "train_loss"}
    assert logged(RECORDS[2]) == [*begun, finite, 0]
    assert logged(RECORDS[0])[0] == "second"  # from the start: a run of its own


def test_a_logger_that_is_unknown_or_not_installed_is_refused(monkeypatch):
    loggers.check([])
    loggers.check(["tensorboard"])
    with pytest.raises(ValueError, match="unknown logger 'tensorbord'; known loggers: tensorboard"):
        loggers.check(["tensorboard", "tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="run pip install tensorboardX or leave out --loggers"):
        loggers.check(["tensorboard"])
