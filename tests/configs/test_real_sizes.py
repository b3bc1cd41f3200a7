"""The configs of real size, each as tiny as a test can train."""

import json

import jax
import numpy as np
import pytest

from configs import cifar10, imagenet, language_model
from experiments import prepare, sweep, train
from experiments.config_files import override

EVERY = {"workers": 2, "split": "tests.configs.test_real_sizes:one_batch", "target_loss": None}
SAMPLES = 4  # of one batch of all workers
# Config, arm of its sweep, and what makes it fit a batch in few updates.
ARMS = {
    "gpt": (language_model, "all_reduce", {}),
    "gpt/diloco": (language_model, "diloco/H=10", {}),
    "resnet18": (
        cifar10,
        "all_reduce/nonblocking",
        {"mini_batches": 1, "optimizer": "sgd(learning_rate=0.05)"},
    ),
    "resnet50": (imagenet, "all_reduce", {"optimizer": "sgd(learning_rate=0.05)"}),
}


def one_batch(labels, workers, seed):
    """Each worker's only mini-batch, the same in every epoch up to its order."""
    del labels, seed
    return np.array_split(np.arange(SAMPLES), workers)


def config_of(name, **changes):
    module, arm, own = ARMS[name]
    config = module.get_config("tiny")
    changes = {**dict(module.sweep())[arm], **EVERY, **own, **changes}
    return override(config, {"batch_size": SAMPLES // 2, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "resnet50"])
def test_it_fits_one_batch(name):
    """Until the loss is a tenth of its start: gradients reach every layer, and the rate fits."""
    prepared = prepare.prepare(config_of(name))
    task, runtime = prepared.task, prepared.runtime
    batch = jax.tree.map(lambda a: a[:SAMPLES], task.train)
    losses = jax.jit(lambda params: task.losses(params, batch).mean())
    params = task.init(jax.random.key(0))
    run, found = runtime.start(params), [float(losses(params))]
    while found[-1] > found[0] / 10 and run.update < 300:
        run, _ = runtime.advance(run, np.inf, 10)
        found.append(float(losses(jax.tree.map(lambda a: a[0], runtime.models(run)))))
    assert found[-1] < found[0] / 10, found


class Killed(Exception):
    pass


def metrics(place):
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt/diloco", "resnet18"])
def test_it_is_killed_and_goes_on_bit_for_bit(name, tmp_path):
    config = config_of(name, delay="deterministic(value=1.0)", communication=0.0)
    each = float(config.mini_batches)  # seconds of an update
    config = override(config, {"seconds": 5 * each, "evaluate_every": each})
    train.run(config, tmp_path / "whole", checkpoint_seconds=0)
    seen = []

    def kill(record):
        seen.append(record)
        if len(seen) == 3:
            raise Killed

    with pytest.raises(Killed):
        train.run(config, tmp_path / "cut", on_record=kill, checkpoint_seconds=0)
    assert (tmp_path / "cut" / "checkpoint").is_dir()
    train.run(config, tmp_path / "cut", checkpoint_seconds=0)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert len(metrics(tmp_path / "whole")) > 3
    whole, cut = (np.load(tmp_path / place / "parameters.npz") for place in ("whole", "cut"))
    assert set(whole) == set(cut)
    for key in whole:
        np.testing.assert_array_equal(whole[key], cut[key])


@pytest.mark.slow
@pytest.mark.parametrize("module", [cifar10, imagenet, language_model])
def test_every_arm_can_run(module):
    arms = sweep.expand(module.get_config("tiny"), module, {}, 1)
    for arm in arms:
        prepare.prepare(arm.config)
    assert len(arms) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("size", ["10M", "1B"])
def test_a_size_has_the_parameters_of_its_name(size):
    config = language_model.get_config(f"size={size}")
    shapes = prepare.prepare(config).shapes
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    named = float(size[:-1]) * {"k": 1e3, "M": 1e6, "B": 1e9}[size[-1]]
    assert count == pytest.approx(named, rel=0.1)


@pytest.mark.parametrize(
    ("module", "argument", "words"),
    [
        (language_model, "size=2B", "unknown size '2B'; known sizes: tiny, 140k"),
        (language_model, "steps=60", "steps must be a multiple of 50"),
        (cifar10, "delay=rain", "unknown delay 'rain'; known delays: equal"),
    ],
)
def test_bad_arguments_are_a_sentence(module, argument, words):
    with pytest.raises(ValueError, match=words):
        module.get_config(argument)
