"""Local training, in step and not: every method can run, and methods of each kind train."""

import numpy as np
import pytest

from configs import frontier_async, local_training
from experiments import prepare, sweep, train

LOCAL, ASYNC = dict(local_training.sweep()), dict(frontier_async.sweep())
ONE = {
    group: next(name for name in LOCAL if name.startswith(f"{group}/"))
    for group in local_training.GROUPS
}


def small(name):
    """Thirty steps of the tiny model, or as many as an exchange of this arm needs."""
    config = local_training.get_config("tiny,steps=30,workers=2")
    return sweep.override(config, LOCAL[ONE[name]] | {"name": ONE[name]})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diloco/H=100", "streaming_4_bits/H=30", "muloco/H=30"])
def test_methods_train_the_tiny_model(name, tmp_path):
    config = small(name)
    steps = int(config.mini_batches)
    if steps > 30:
        config = sweep.override(config, {"seconds": (steps + 0.5) * 0.1})
    summary = train.run(config, tmp_path)
    assert summary["updates"] >= 1 and np.isfinite(summary["train_loss"])
    assert summary["samples"] == 2 * 2 * max(30, steps)


def first(group):
    """The first asynchronous arm of a group."""
    name = next(name for name in ASYNC if name.startswith(f"{group}/"))
    config = frontier_async.get_config("seconds=120")
    return sweep.override(config, ASYNC[name] | {"name": name})


@pytest.mark.slow
def test_every_method_can_run():
    for configs in (map(small, local_training.GROUPS), map(first, frontier_async.ALL)):
        task = None
        for config in configs:
            task = prepare.prepare(config, task).task


@pytest.mark.slow
@pytest.mark.parametrize("group", ["async_diloco_by_speed", "ringmaster"])
def test_asynchronous_arms_run(group, tmp_path):
    summary = train.run(first(group), tmp_path)
    assert summary["updates"] >= 1 and np.isfinite(summary["train_loss"])


def test_the_slow_worker_makes_its_share_of_the_steps():
    assert (5, *[20] * 7) == frontier_async.BY_SPEED


def test_bad_arguments_are_a_sentence():
    with pytest.raises(ValueError, match="steps must be a multiple of 30, the fewest"):
        local_training.get_config("steps=40")
