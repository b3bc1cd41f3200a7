"""What the claims about real processes say of made-up records, and that their figures are drawn."""

import json

import pytest

from configs import slow_and_stale_real, swarm_real
from experiments import records, sweep


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
                "seconds": 30.0,
                "seconds_to_target": seconds_to_target,
                "staleness_mean": 1.5,
                "metrics": [[{"seconds": 0.0, "train_loss": 2.0, "refusals_per_meeting": 0.25}]],
            }
        )
    return made


def test_protocols_are_compared_with_their_simulation_and_with_theory():
    found = arms(
        slow_and_stale_real, lambda name: (100 if name.startswith("simulated") else 80, None)
    )
    (_, seconds), (_, staleness), (_, gains) = slow_and_stale_real.claims(found)
    lines = seconds.splitlines()
    assert lines[-1] == "0 of 18 within 5% of the simulation of the same delays"
    # K-async with K = 1 and mean 0.2: 0.2 / 4 workers.
    assert "exponential/k_async/K=1: 0.375 s, simulated 0.3 s (+25.0%), theory 0.05 s" in lines
    assert "exponential/k_async/K=1: 1.5, simulated 1.5, theory 3" in staleness.splitlines()
    # P H_P = 4 (1 + 1/2 + 1/3 + 1/4) = 8.33
    assert gains.splitlines()[0] == "exponential: 1 times, simulated 1, theory 8.33"


def test_gossip_is_compared_with_its_simulation_and_with_methods_that_wait():
    def pace(name):
        waits = name.endswith(("dpsgd", "all_reduce"))
        return (60, 20.0) if waits else (600, None if "ad_psgd" in name else 5.0)

    first, tuned, over_dpsgd, over_all_reduce = swarm_real.claims(arms(swarm_real, pace))
    lines = first[1].splitlines()
    assert lines[0] == (
        "float32: 5.0 s (20.0 updates/s), simulated 5.0 s (20.0 updates/s); "
        "0.25 refusals per meeting"
    )
    assert lines[3].startswith("ad_psgd: never there (20.0 updates/s)")
    # All rates are equally quick, and the first of them counts.
    assert tuned[1].splitlines()[0] == "float32: 0.2; the best is 0.05 at the grid's end, 5.0 s"
    assert tuned[1].splitlines()[3] == "ad_psgd: no rate reaches the target"
    for _, text in (over_dpsgd, over_all_reduce):
        assert text.splitlines() == [
            *(f"{name}: 4.00 times as quick, simulated 4.00 times as quick"
              for name in ("float32", "8 bits", "blocking")),
            "ad_psgd: a target was not reached, simulated a target was not reached",
        ]  # fmt: skip


@pytest.mark.parametrize("file", [slow_and_stale_real, swarm_real])
def test_figures_show_a_line_for_every_arm(file, tmp_path):
    made = arms(file, lambda name: (100, 10.0))
    for arm in made:
        place = tmp_path / arm["name"]
        place.mkdir(parents=True)
        records.write_json(place / records.CONFIG, arm.pop("config").to_dict())
        lines = [{"update": n, "seconds": 1.0 * n, "train_loss": 2.0 / (1 + n)} for n in range(3)]
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        del arm["metrics"]
    records.write_json(tmp_path / records.SUMMARY, {"arms": made})
    file.figures(tmp_path)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
