"""Schedules of a rate that end with the run."""

import json

import pytest

from configs import demo
from experiments import prepare, registry, sweep, train

SHORT = {
    "task": "synthetic_logistic(samples=64, dimension=4)", "seconds": 2.0, "workers": 4,
    "optimizer.schedule": "cosine",
}  # fmt: skip


def configured(**changes):
    return sweep.override(demo.get_config(), SHORT | changes)


def test_the_rate_falls_until_the_last_sample_of_the_run(tmp_path):
    summary = train.run(configured(wait="k_async(k=2)"), tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["optimizer"]["schedule"]
    assert written == {"name": "cosine", "samples": summary["samples"]}
    assert summary["updates"] > 2
    with pytest.raises(ValueError, match=r"differs in optimizer\.schedule\.samples"):
        train.run(configured(wait="k_async(k=2)", seconds=3.0), tmp_path)


def test_fewer_updates_end_it_before_the_seconds_do():
    config = prepare.to_the_end(configured(wait="barrier", updates=3, mini_batches=2))
    assert config.optimizer.schedule.samples == 3 * 4 * 2 * 16


def test_schedules_of_chains_and_servers_end_too_and_others_stay():
    rate = "sgd(learning_rate=1.0, schedule=cosine(floor=0.1))"
    changes = {"algorithm": f"local_sgd(server={rate})", "wait": "barrier", "updates": 3}
    changes["optimizer"] = "[clip_by_global_norm(max_norm=1.0), sgd(learning_rate=0.1)]"
    config = sweep.override(demo.get_config(), changes | {"mini_batches": 1, "workers": 4})
    ended = prepare.to_the_end(config)
    assert registry.text(ended.algorithm.server) == rate.replace("0.1)", "0.1, samples=192)")
    assert ended.optimizer == config.optimizer
    for schedule in ("constant", "cosine(samples=5)"):
        said = configured(**{"optimizer.schedule": schedule})
        assert prepare.to_the_end(said) == said


def test_a_config_without_such_a_schedule_is_recorded_as_it_is_written():
    """Records of runs compare with it: a server of several transforms stays a list."""
    server = ["scale_by_adam", "scale_by_learning_rate(learning_rate=0.05)"]
    changes = {"algorithm": f"local_sgd(server=[{', '.join(server)}])", "wait": "barrier"}
    config = registry.canonical(sweep.override(demo.get_config(), changes))
    assert not prepare.is_open(config)
    assert prepare.prepare(config).config == config
    assert [part["name"] for part in config.algorithm.server] == [
        "scale_by_adam",
        "scale_by_learning_rate",
    ]


def test_a_sweep_plans_every_arm_by_its_own_rule_and_the_first_of_its_seeds():
    changes = {"delay": "exponential(scale=0.1)", "seconds": 1.0}
    grids = {"wait": ["barrier", "first_finisher"]}
    arms = sweep.to_the_end(sweep.expand(configured(**changes), None, {}, 2, grids))
    samples = [arm.config.optimizer.schedule.samples for arm in arms]
    assert samples[0] == samples[1] != samples[2] == samples[3]
    assert [arm.config.seed for arm in arms] == [0, 1, 0, 1]
    last = sweep.to_the_end(arms[3:])
    assert last == arms[3:]


def test_a_recording_that_ends_earlier_ends_the_rate(tmp_path):
    train.run(configured(**{"optimizer.schedule": "constant"}), tmp_path)
    replayed = f"replay(path='{tmp_path / 'schedule.npz'}')"
    config = prepare.to_the_end(configured(wait=replayed, seconds=9.0))
    seen = json.loads((tmp_path / "summary.json").read_text())["samples"]
    assert config.optimizer.schedule.samples == seen


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runtime": "mesh", "workers": 1}, "on a real clock nobody knows how many samples"),
        (
            {"wait": "adasync(protocol=k_sync, k=1, interval=1.0)", "mini_batches": 1},
            "adasync follows the training loss",
        ),
    ],
)
def test_where_no_plan_knows_the_end_it_has_to_be_given(changes, words):
    with pytest.raises(ValueError) as caught:
        prepare.to_the_end(configured(**changes))
    assert words in str(caught.value) and "cosine(samples=100000)" in str(caught.value)
