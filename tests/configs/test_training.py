"""Configs that train: bit for bit after a kill, at equal samples or bytes."""

import importlib

import jax
import numpy as np
import pytest

from experiments import config_files, prepare, records, sweep, train
from experiments.registry import part
from tests.experiments.test_checkpoints import killed, left

LOGISTIC = "synthetic_logistic(samples=256, dimension=4)"


def arm_of(file, name, argument=None, variant=None, **changes):
    """Arm `name` of a config, or the first one whose name begins so, with changes."""
    file = importlib.import_module(f"configs.{file}")
    file = file.VARIANTS[variant] if variant else file
    config = file.get_config(argument)
    arms = dict(config_files.swept_arms(file, config))
    if name not in arms:
        name = next(arm for arm in arms if arm.startswith(f"{name}/"))
    return sweep.override(config, arms[name] | {"name": name} | changes)


# --- real sizes, each as tiny as a test can train ---

SAMPLES = 4  # of one batch of all workers
ONE_BATCH = {
    "workers": 2, "batch_size": SAMPLES // 2, "target_loss": None,
    "split": "tests.configs.test_training:one_batch",
}  # fmt: skip


def one_batch(labels, workers, seed):
    """Each worker's only mini-batch, the same in every epoch up to its order."""
    del labels, seed
    return np.array_split(np.arange(SAMPLES), workers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "resnet50"])
def test_it_fits_one_batch(name):
    """Until the loss is a tenth of its start: gradients reach every layer, and the rate fits."""
    gpt = arm_of("language_model", "all_reduce", "tiny", **ONE_BATCH)
    own = {"optimizer": "sgd(learning_rate=0.05)"}
    resnet50 = arm_of("imagenet", "all_reduce", "tiny", **ONE_BATCH, **own)
    prepared = prepare.prepare(gpt if name == "gpt" else resnet50)
    task, runtime = prepared.task, prepared.runtime
    batch = jax.tree.map(lambda a: a[:SAMPLES], task.train)
    losses = jax.jit(lambda params: task.losses(params, batch).mean())
    params = task.init(jax.random.key(0))
    run, found = runtime.start(params), [float(losses(params))]
    while found[-1] > found[0] / 10 and run.update < 300:
        run, _ = runtime.advance(run, np.inf, 10)
        found.append(float(losses(jax.tree.map(lambda a: a[0], runtime.models(run)))))
    assert found[-1] < found[0] / 10, found


@pytest.mark.slow
def test_augmented_images_are_killed_and_go_on_bit_for_bit(tmp_path):
    fixed = ONE_BATCH | {"delay": "deterministic(value=1.0)", "communication": 0.0}
    own = {"mini_batches": 1, "optimizer": "sgd(learning_rate=0.05)", "task.model": "cnn"}
    config = arm_of("cifar10", "all_reduce/nonblocking", "tiny", **fixed, **own)
    config = sweep.override(config, {"seconds": 5.0, "evaluate_every": 1.0})
    train.run(config, tmp_path / "whole")
    killed(config, tmp_path / "cut", 3)
    train.run(config, tmp_path / "cut")
    assert left(tmp_path / "cut") == left(tmp_path / "whole")
    assert len(left(tmp_path / "whole")[1]) > 3


def test_a_batch_that_a_slice_cannot_share_is_a_sentence():
    with pytest.raises(ValueError, match="4 devices of a worker cannot share"):
        prepare.prepare(arm_of("diloco", "diloco/whole", "tiny,steps=50,batch=4", batch_size=6))


@pytest.mark.slow
def test_all_arms_send_about_the_same(tmp_path):
    """Of 24 models each; a method that sends two makes half the updates."""
    sent, updates = {}, {}
    for name in ("dpsgd/ring", "gradient_tracking/ring", "dpsgd/base_2"):
        task = part("digits", model="logistic")
        config = arm_of("heterogeneous", name, "models=24,workers=8", task=task)
        summary = train.run(config, tmp_path / name)
        sent[name], updates[name] = summary["bytes_per_worker"], summary["updates"]
    assert max(sent.values()) <= 1.2 * min(sent.values())
    assert updates["dpsgd/base_2"] == pytest.approx(2 * updates["dpsgd/ring"], rel=0.1)
    assert updates["gradient_tracking/ring"] == pytest.approx(updates["dpsgd/ring"] / 2, rel=0.2)


@pytest.mark.slow
def test_a_matching_is_a_unit_of_time_and_the_whole_budget_is_vanilla(tmp_path):
    # A task without labels has nothing to split by Dirichlet.
    brief = {
        "task": LOGISTIC, "split": "iid", "updates": 40, "target_loss": None, "evaluate_every": 100,
    }  # fmt: skip
    vanilla, whole, half = (
        train.run(arm_of("matcha", f"{arm}/rate=0.8", **brief), tmp_path / arm)
        for arm in ("vanilla", "matcha/budget=1", "periodic/budget=0.5")
    )
    assert vanilla["communication_seconds"] == pytest.approx(40 * 5 * 0.1)  # 5 matchings
    assert whole["communication_seconds"] == pytest.approx(40 * 5 * 0.1)
    assert whole["train_loss"] == pytest.approx(vanilla["train_loss"], rel=1e-3)
    rounds = half["communication_seconds"] / (5 * 0.1)
    assert rounds == pytest.approx(round(rounds)) and 10 < rounds < 30  # of 40, half expected


@pytest.mark.slow
@pytest.mark.parametrize("communication", ["network(latency=0.25, bandwidth=100.0)", 0.5])
def test_what_is_sent_again_has_its_seconds_in_the_records(communication, tmp_path):
    """A start-up a message and the bytes on a network, else half of an exchange a message."""
    changes = {"updates": 20, "communication": communication, "task": LOGISTIC}
    config = arm_of("swarm", "swarm/H=2/8 bits", **changes)
    config.optimizer.learning_rate = 200.0
    train.run(config, tmp_path)
    last = records.read_metrics(tmp_path)[-1]
    count, size = last["extra_messages_per_worker"], last["extra_bytes_per_worker"]
    assert count > 0 and size > 0
    seconds = 0.25 * count
    if communication != 0.5:
        seconds += size / 100.0
    assert last["extra_seconds_per_worker"] == pytest.approx(seconds)
    assert last["bytes_per_worker"] == last["planned_bytes_per_worker"] + size
