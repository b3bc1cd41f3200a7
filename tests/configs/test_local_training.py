"""Local training, in step and not: the arms run, and the claims say what was found."""

import numpy as np
import pytest

from configs import frontier_async, local_training
from experiments import premises, prepare, sweep, train
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


NOISE = (-0.001, 0.0, 0.001)  # of the seeds


def arm_of(module, name, changes, loss, **found):
    config = sweep.override(module.get_config(), changes | {"name": name})
    values = None if loss is None else [loss + off for off in NOISE]
    made = {"name": name, "config": config, "final_train_loss": loss, "train_loss_std": 0.001}
    made |= {"final_train_loss_by_seed": values, "seeds": [0, 1, 2], "samples": 4800}
    return made | {"updates": 100, "bytes_per_worker": 1e8, "seconds_to_target": 50.0} | found


def valley(name, lowest, rates, outer=()):
    """A loss whose least is at the middle of the grid."""
    found = premises.settings(name)
    off = sum(
        abs(values.index(found[key]) - len(values) // 2)
        for key, values in (("rate", rates), ("outer", outer))
        if values
    )
    return lowest + 0.1 * off


@pytest.mark.slow
def test_claims_of_local_training_are_measured_at_the_best_rates(monkeypatch):
    losses = dict.fromkeys(study.GROUPS, 3.0) | {"diloco/H=100": 3.2, "local_sgd/H=30": 3.1}
    arms = []
    for name, changes in LOCAL.items():
        group = name.partition("/outer")[0].partition("/rate")[0]
        loss = valley(name, losses[group], *study.GROUPS[group][1:])
        if group == "noloco/H=30":  # a best rate at the end of its grid
            loss = 3.0 - changes["optimizer.learning_rate"]
        arms.append(arm_of(local_training, name, changes, loss))
    claims = dict(study.claims(arms))
    as_good = "as good as all-reduce (arXiv 2311.08105): diloco/H={} ends within 1 % of all_reduce"
    assert claims[as_good.format(30)].startswith(premises.HOLDS)
    assert claims[as_good.format(100)].startswith(premises.FAILS)
    helps = "outer momentum helps (arXiv 2311.08105): diloco/H=30 ends below local_sgd/H=30"
    assert claims[helps].startswith(premises.HOLDS)
    (pairs,) = (claims[claim] for claim in claims if claim.startswith("no all-reduce at all"))
    assert pairs.startswith(premises.UNKNOWN) and "at the end of its grid" in pairs
    tiny = prepare.prepare(small("diloco/H=30"))
    monkeypatch.setattr(prepare, "prepare", lambda config: tiny)
    (table,) = study.numbers(arms)
    rows = {row[0]: row[1:] for row in table.rows}
    assert set(rows) == set(study.GROUPS) and len(table.columns) == 1 + len(rows["all_reduce"])
    assert rows["diloco/H=30"][:2] == ("0.7", "0.032") and rows["all_reduce"][0] == ""
    assert rows["diloco/H=30"][2:5] == ("3 ± 0.001", "100", "1")


@pytest.mark.slow
def test_what_streams_hides_its_seconds():
    """Of the same model over the same slow link, by the clock that the numbers have."""
    slow = []
    for name in ("diloco/H=30", "streaming/H=30"):
        config = small(name)
        rounds = 30 * 30 // int(config.mini_batches)
        made = arm_of(local_training, name, {}, 3.0, config=config, updates=rounds)
        *_, fast, _, slowest = study._sent(made)
        slow.append(float(slowest))
    assert fast == "90" and slow[0] > slow[1]


@pytest.mark.slow
def test_claims_of_asynchronous_arms():
    losses = dict.fromkeys(asynchronous.ALL, 0.1) | {"async_nesterov": None, "diloco": 0.2}
    arms = []
    for name, changes in ASYNC.items():
        group = name.rpartition("/")[0]
        lowest = losses[group]
        loss = None if lowest is None else valley(name, lowest, asynchronous.rates_of(group))
        arms.append(arm_of(frontier_async, name, changes, loss))
    claims = [measured for _, measured in asynchronous.claims(arms)]
    assert claims[0].startswith(premises.UNKNOWN) and "async_nesterov" in claims[0]
    assert claims[4].startswith(premises.HOLDS)
    (table,) = asynchronous.numbers(arms)
    assert "async_nesterov" not in [row[0] for row in table.rows]
    rates = asynchronous.rates_of("diloco")
    assert ("diloco", f"{rates[len(rates) // 2]:g}", "0.2 ± 0.001", "50") in table.rows


@pytest.mark.slow
@pytest.mark.parametrize("group", slow_but(("async_diloco_by_speed",), asynchronous.ALL))
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
