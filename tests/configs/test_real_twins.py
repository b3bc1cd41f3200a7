"""What the claims about real processes say of made-up records, and that their figures are drawn."""

import json

import pytest
from matplotlib.axes import Axes

from configs import slow_and_stale_real, swarm_real
from experiments import records, sweep
from experiments.studies import twins
from tests.configs import made_up


def arms(file, pace):
    """Arms of a sweep; pace: name -> (updates, seconds to the target)."""
    made = []
    for name, changes in file.sweep():
        updates, seconds_to_target = pace(name)
        made.append(
            {
                "name": name,
                "config": sweep.override(file.get_config(), changes),
                "workers": 4,
                "updates": updates,
                "updates_by_seed": [updates] * 2,
                "seconds": 30.0,
                "seconds_to_target": seconds_to_target,
                "final_train_loss": 0.5,
                "final_train_loss_by_seed": [0.5] * 2,
                "staleness_mean": 1.5,
                "staleness_mean_by_seed": [1.5] * 2,
                "metrics": [[{"seconds": 0.0, "train_loss": 2.0, "refusals_per_meeting": 0.25}]],
            }
        )
    return made


def test_protocols_are_compared_with_their_simulation_and_with_theory():
    found = arms(
        slow_and_stale_real, lambda name: (100 if name.startswith("simulated") else 80, None)
    )
    seconds, ends, staleness, gains = (text for _, text in slow_and_stale_real.claims(found))
    assert seconds.startswith("does not hold: 0 of 18 places, 18 beyond, ") and "+25.0%" in seconds
    assert staleness.startswith("holds where: ") or staleness.startswith("does not hold: ")
    assert ends.startswith("holds: 18 of 18 places, 0 beyond, 0 in the noise; worst ")
    assert gains.startswith("does not hold: 0 of 2 places, 2 beyond, ")
    (table,) = slow_and_stale_real.numbers(found)
    # K-async with K = 1 and mean 0.2: 0.2 / 4 workers.
    row = ("exponential/k_async/K=1", "0.375", "0.3", "0.05", "1.5", "1.5", "3")
    assert row in table.rows


def test_a_real_update_of_several_seeds_has_a_deviation():
    """Of the ratios to the simulation, which has the same delays for every seed."""
    found = arms(slow_and_stale_real, lambda name: (300, None))
    for arm in found:
        real = arm["name"].startswith("real")
        paces = (250, 300, 200) if real else (300, 300, 300)
        arm |= {"seeds": [0, 1, 2], "updates_by_seed": list(paces), "updates": sum(paces) / 3}
        arm |= {
            f"{field}_by_seed": [arm[field]] * 3 for field in ("staleness_mean", "final_train_loss")
        }
    (_, seconds), *_ = slow_and_stale_real.claims(found)
    assert seconds.startswith("cannot be told: 0 of 18 places, 0 beyond, ")
    # 1.2, 1 and 1.5 times as long
    assert "+23.3% ± 25 points" in seconds


def test_gossip_is_compared_with_its_simulation_and_with_methods_that_wait():
    """Each at the rate that its grid finds best; the waiting ones are four times as slow."""
    waits = ("dpsgd", "all_reduce")
    made = made_up.arms(swarm_real, level=lambda name: 4.0 if name.endswith(waits) else 1.0)
    for arm in made:
        kind, method, *rate = arm["name"].split("/")
        if method in waits and kind == "tuning":
            best = rate == [f"rate={swarm_real.RATE}"]
            arm |= {"seconds_to_target": 1.0 if best else 2.0}
    found = dict(swarm_real.claims(made))
    assert found[
        "float32: processes take at most 1.1x the simulated time to the target"
    ].startswith("holds: real/float32 10.01")
    for rival in waits:
        for name in ("float32", "8 bits", "blocking", "ad_psgd"):
            text = found[f"with one slow process {name} is sooner at the target than {rival}"]
            assert text.startswith(f"holds: real/{name} 10.01") and "0.25x" in text
    (table,) = swarm_real.numbers(made)
    assert table.rows[0] == ("float32", "10.0", "2.0", "10.0", "2.0", "0.00")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [("",), ("seed_0", "seed_1")])
@pytest.mark.parametrize("file", [slow_and_stale_real, swarm_real])
def test_figures_show_a_line_for_every_seed_of_every_arm(file, seeds, tmp_path, monkeypatch):
    drawn, plot = [], Axes.plot

    def count(axes, *values, **how):
        drawn.append(values[-1])
        return plot(axes, *values, **how)

    monkeypatch.setattr(Axes, "plot", count)
    made = arms(file, lambda name: (100, 10.0))
    for arm in made:
        config = arm.pop("config").to_dict()
        for seed in seeds:
            place = tmp_path / arm["name"] / seed
            place.mkdir(parents=True)
            records.write_json(place / records.CONFIG, config)
            lines = [
                {"update": n, "seconds": 1.0 * n, "train_loss": 2.0 / (1 + n)} for n in range(3)
            ]
            (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        del arm["metrics"]
    records.write_json(tmp_path / records.SUMMARY, {"arms": made})
    file.figures(tmp_path)
    for kind, line in twins.LINES.items():
        assert drawn.count(line) == len(seeds) * len(twins.of_kind(made, kind))
    assert (tmp_path / "curves.png").stat().st_size > 10_000
