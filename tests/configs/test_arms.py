"""Arms of the sweeps: every one fits, and says what its name says."""

import importlib
import pathlib

import jax
import numpy as np
import pytest

from comms import buckets
from configs import base
from experiments import prepare, registry, sweep
from experiments.registry import part
from experiments.tasks import text_models

FILES = {
    path.stem: importlib.import_module(f"configs.{path.stem}")
    for path in sorted(pathlib.Path(base.__file__).parent.glob("*.py"))
}
QUESTIONS = FILES | {
    f"{name}:{variant}": asked
    for name, file in FILES.items()
    for variant, asked in getattr(file, "VARIANTS", {}).items()
}
SWEPT = [name for name, asked in QUESTIONS.items() if hasattr(asked, "sweep")]
matcha, nonblocking, swarm = (FILES[name] for name in ("matcha", "nonblocking", "swarm"))
DEAR = {"mg_wfbp", "s2_reducer", "s2_reducer:rates"}  # measured buckets, tables of real size
TINY = {"cifar10", "imagenet", "language_model", "local_training", "small_messages", "diloco"}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SWEPT)
def test_arms_fit_and_some_of_them_can_run(name):
    """All have the entries of the arm that is written out; four are built, on a task once built."""
    file = QUESTIONS[name]
    vars(file).setdefault("__file__", name)
    config = file.get_config(*["tiny"] if name in TINY else [])
    beside = {"actors", "buckets", "initial", "profile", "sample_cost", "balance", "sample_weight"}
    assert set(config) - beside == set(base.arm())
    arms = sweep.expand(config, file, {}, 1)
    assert len(arms) >= 3
    if config.runtime in ("simulate", "mesh") and name not in DEAR:
        tasks = {}
        for arm in arms[:: -(-len(arms) // 4)]:
            if "corpus" in arm.config.task:
                arm.config.task.corpus.files = 40
            task = str(arm.config.task)
            tasks[task] = prepare.prepare(arm.config, tasks.get(task)).task


def test_the_default_arm_is_complete_and_changes_replace_whole_entries():
    config = base.arm()
    registry.check_arm(config)
    prepare.prepare(config)
    left_out = {"initial", "sample_cost", "balance", "sample_weight", "profile"}
    assert set(config) == {name for _, _, names in registry.ARM for name in names} - left_out
    config = base.arm(target_loss=0.5, communication="link(seconds=1)", optimizer="adam", workers=3)
    assert (config.target_loss, config.communication, config.workers) == (0.5, "link(seconds=1)", 3)
    assert registry.canonical(config).optimizer.to_dict() == {"name": "adam"}
    assert base.arm().workers == 8 and base.arm().optimizer.name == "sgd"  # nobody's are changed
    with pytest.raises(ValueError, match=r"an arm has no entry 'grap'; did you mean 'graph'\?"):
        base.arm(grap="star")


@pytest.mark.parametrize(
    ("name", "argument", "words"),
    [
        ("diloco", "steps=75", "steps must be a multiple of local_steps=50, got 75"),
        ("local_training", "steps=40", "steps must be a multiple of 30, the fewest"),
        ("matcha", "graph=6", "has base graphs 0 to 5, got k=6"),
        ("mg_wfbp:scale", "workers=4", "known arguments: trace, collective, at_workers"),
        ("language_model", "size=2B", "unknown size '2B'; known sizes: tiny, 140k"),
        ("cifar10", "delay=rain", "unknown delay 'rain'; known delays: equal"),
        ("swarm", "graph=star", "all meetings share a few nodes"),
        ("demo:lengths", "delay=pause", "known arguments: workers"),
    ],
)
def test_bad_arguments_are_a_sentence(name, argument, words):
    with pytest.raises(ValueError, match=words):
        QUESTIONS[name].get_config(argument)


@pytest.mark.parametrize("delay", ["slow4", "pause", "bytedance_ar"])
def test_tuned_rounds_of_any_length_meet_the_same_spells(delay):
    """A draw per round of 128 samples lasts for 32 mini-batches of 4, whatever M is."""
    config = nonblocking.VARIANTS["tuned"].get_config(f"delay={delay}")
    assert (config.batch_size, config.draw) == (4, "mini_batch")
    assert (config.delay.get("mini_batches") == 32) == (delay != "slow4")
    law = prepare.build_delay(config.delay).seeded(0)
    first, last, other = (float(law.duration(1, 0.0, count)) for count in (0, 31, 32))
    assert (first == last) == (delay != "slow4")
    assert min(first, last, other) == pytest.approx(nonblocking.NOMINAL / 32, rel=0.5)


def test_arguments_reach_the_configs():
    config = matcha.get_config("graph=4,budget=0.2,communication=0.02")
    assert (config.name, config.algorithm) == ("matcha/budget=0.2", part("matcha", budget=0.2))
    assert (config.graph, config.communication) == (part("matcha", k=4), part("link", seconds=0.02))
    config = swarm.get_config("nodes=256,model=logistic,split=dirichlet,delay=slow4,graph=ring")
    assert config.workers == 256 and config.graph.name == "ring"
    assert config.split == part("dirichlet", alpha=0.3)
    assert config.task == part("digits", model="logistic")
    assert config.delay.factors.to_dict() == {0: 4.0}
    assert config.optimizer.warmup_samples == 256 * 240
    arms = dict(swarm.sweep())
    assert arms["all_reduce"]["optimizer.learning_rate"] == 16 * swarm.RATES["all_reduce"]
    assert [5, *[20] * 7] == FILES["frontier_async"].by_speed(4)  # the slow one's share
    chosen = {changes["buckets"] for _, changes in FILES["mg_wfbp"].sweep() if "buckets" in changes}
    unchosen = {"asc", "byte_scheduler"}
    assert {name.partition(":")[0] for name in chosen} == set(buckets.PLANNERS) - unchosen


@pytest.mark.slow
def test_a_size_has_the_parameters_of_its_name():
    for size, parameters in (("10M", 1e7), ("1B", 1e9)):
        task = FILES["language_model"].get_config(f"size={size}").task.to_dict()
        assert task["model"].pop("name") == "gpt"
        gpt = text_models.gpt(task["vocabulary"], **task["model"])
        shapes = jax.eval_shape(gpt.init, jax.random.key(0), np.zeros((1, 8), np.int32))
        count = sum(int(leaf.size) for leaf in jax.tree.leaves(shapes))
        assert count == pytest.approx(parameters, rel=0.1)
