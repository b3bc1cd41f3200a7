"""Local training, in step and not: the arms run, and the claims say what was found."""

import numpy as np
import pytest

from configs import frontier_async, local_training
from experiments import prepare, sweep, train
from experiments.studies import frontier_async as asynchronous
from experiments.studies import local_training as study
from tests.marks import slow_but

LOCAL, ASYNC = dict(local_training.sweep()), dict(frontier_async.sweep())
ONE = {
    group: next(name for name in LOCAL if name.startswith(f"{group}/")) for group in study.GROUPS
}


def small(name):
    """Thirty steps of the tiny model, or as many as an exchange of this arm needs."""
    config = local_training.get_config("tiny,steps=30,workers=2")
    return sweep.override(config, LOCAL[ONE[name]] | {"name": ONE[name]})


@pytest.mark.parametrize("name", slow_but((), study.GROUPS))
def test_every_method_trains_the_tiny_model(name, tmp_path):
    config = small(name)
    steps = int(config.mini_batches)
    if steps > 30:
        config = sweep.override(config, {"seconds": (steps + 0.5) * 0.1})
    summary = train.run(config, tmp_path)
    assert summary["updates"] >= 1 and np.isfinite(summary["train_loss"])
    assert summary["samples"] == 2 * 2 * max(30, steps)


def arm_of(module, name, changes, loss, **found):
    config = sweep.override(module.get_config(), changes | {"name": name})
    made = {"name": name, "config": config, "final_train_loss": loss, "train_loss_std": 0.001}
    return made | {"updates": 100, "bytes_per_worker": 1e8, "seconds_to_target": 50.0} | found


def valley(changes, lowest, rates):
    """A loss whose least is at the middle of the grid."""
    place = rates.index(changes["optimizer.learning_rate"])
    return lowest + 0.1 * abs(place - len(rates) // 2)


def test_claims_of_local_training_are_measured_at_the_best_rates(monkeypatch):
    losses = dict.fromkeys(study.GROUPS, 3.0) | {"diloco/H=100": 3.2, "local_sgd/H=30": 3.1}
    arms = []
    for name, changes in LOCAL.items():
        group = name.rpartition("/")[0]
        loss = valley(changes, losses[group], study.GROUPS[group][1])
        arms.append(arm_of(local_training, name, changes, loss))
    tiny = prepare.prepare(small("diloco/H=30"))
    monkeypatch.setattr(prepare, "prepare", lambda config: tiny)
    claims = dict(study.claims(arms))
    as_good = "as good as all-reduce (arXiv 2311.08105): diloco/H={} ends within 1 % of all_reduce"
    assert claims[as_good.format(30)] == "yes: 3 against 3, deviations up to 0.001"
    assert claims[as_good.format(100)].startswith("no: 3.2 against 3")
    helps = "outer momentum helps (arXiv 2311.08105): diloco/H=30 ends below local_sgd/H=30"
    assert claims[helps].startswith("yes: 3 against 3.1")
    assert claims["(not claimed) rates that end lowest lie inside of their grids"].startswith("yes")
    sent = claims["diloco/H=30: bytes, and seconds over links"]
    assert sent.startswith("1x fewer bytes than all-reduce, ") and "s at 100 Mbit/s" in sent
    assert "1 MB at a time" in sent


def test_what_streams_hides_its_seconds():
    """Of the same model over the same slow link, by the clock that the claims read."""
    arms = {}
    for name in ("diloco/H=30", "streaming/H=30"):
        config = small(name)
        made = {"name": name, "config": config, "bytes_per_worker": 1e6}
        rounds = 30 * 30 // int(config.mini_batches)
        arms[name] = study._sent(made | {"updates": rounds}, made)
    assert "90 s at 10 Gbit/s" in arms["streaming/H=30"]
    seconds = [float(text.split("; ")[1].split(", ")[2].split()[0]) for text in arms.values()]
    assert seconds[0] > seconds[1]


def test_claims_of_asynchronous_arms():
    losses = dict.fromkeys(asynchronous.GROUPS, 0.1) | {"async_nesterov": None, "diloco": 0.2}
    arms = []
    for name, changes in ASYNC.items():
        group = name.rpartition("/")[0]
        lowest = losses[group]
        loss = None if lowest is None else valley(changes, lowest, asynchronous.RATES)
        arms.append(arm_of(frontier_async, name, changes, loss))
    claims = list(asynchronous.claims(arms))
    assert claims[0][1].startswith("yes: loss 0.1 against inf")
    assert claims[1][1].startswith("within the deviation: loss 0.1 against 0.1")
    assert claims[4][1].startswith("yes: loss 0.1 against 0.2")
    assert claims[5][1] == "no: async_nesterov: 0.0125"


@pytest.mark.parametrize("group", slow_but(("async_diloco_by_speed",), asynchronous.GROUPS))
def test_every_asynchronous_arm_runs(group, tmp_path):
    config = frontier_async.get_config("seconds=120")
    name = next(name for name in ASYNC if name.startswith(f"{group}/"))
    config = sweep.override(config, ASYNC[name] | {"name": name})
    summary = train.run(config, tmp_path)
    assert summary["updates"] >= 1 and np.isfinite(summary["train_loss"])


def test_the_slow_worker_makes_its_share_of_the_steps():
    assert (5, *[20] * 7) == asynchronous.BY_SPEED


def test_bad_arguments_are_a_sentence():
    with pytest.raises(ValueError, match="steps must be a multiple of 30, the fewest"):
        local_training.get_config("steps=40")
