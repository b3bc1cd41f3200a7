"""What the S2 Reducer experiment says of its arms, on a task small enough for a test."""

import pytest

from configs import s2_reducer
from experiments import codec_times, sweep

SMALL = "ncf(interactions=identifiers(files=60), width=8, hidden=8)"
# Seconds of a gradient, and of an exchange and a step.
SECONDS = {"dense": (0.010, 0.002), "s2/sketch": (0.011, 0.0022), "s2/exact": (0.012, 0.502),
           "parallax": (0.012, 0.002)}  # fmt: skip


LOSSES = {"dense": 2.0, "dense/reordered": 2.001, "s2/sketch": 2.02, "s2/exact": 2.0,
          "parallax": 2.0}  # fmt: skip


@pytest.fixture
def arms(monkeypatch):
    """Five arms of three seeds, whose measured values are given."""
    monkeypatch.setitem(s2_reducer.TASKS, "ncf", (SMALL, 4, 0.01, 9))
    chosen = sweep.expand(s2_reducer.get_config("task=ncf"), s2_reducer, {}, 1)
    configs = {arm.config.name: arm.config for arm in chosen}
    monkeypatch.setattr(
        codec_times, "step_seconds", lambda arm, config: SECONDS.get(config.name, (0.02, 0.1))
    )
    return [
        {
            "name": name, "config": configs[name], "updates": 9, "samples": 144, "seeds": [0, 1, 2],
            "train_loss": loss, "train_loss_by_seed": [loss - 1e-4, loss, loss + 1e-4],
            "test_hit_rate_10": 0.25, "clock": "virtual", "fallback_share": 0.0,
            "fallback_bytes": 0.0,
        }
        for name, loss in LOSSES.items()
    ]  # fmt: skip


def test_claims_are_figures_of_the_arms(arms):
    saves, median, exact, at_1, at_10, scales = (text for _, text in s2_reducer.claims(arms))
    assert saves.startswith("does not hold: 8") and "% fewer bytes for the tables" in saves
    assert "s2/sketch 2.02 ± 0.0001 against dense 2 ± 0.0001, 1.01x, noise level 0.001" in saves
    assert median == "cannot be told: there is no arm s2/median"
    assert exact.startswith("holds: s2/exact 2 ±") and "noise level 0.001" in exact
    # 1.8x is over other sparse methods: here the one that there is, whose codec is for free.
    assert at_1.startswith("does not hold: s2/sketch: ") and at_1.endswith("x parallax")
    assert at_10.startswith("does not hold: ") and scales.startswith(("does not", "holds where"))


def test_bytes_losses_and_steps_are_numbers(arms):
    lost, at_1, at_10, rows = s2_reducer.numbers(arms)
    assert lost.rows[0] == ("dense", "0.0", "+0.00", "test hit rate at 10 0.25", "0.0")
    by_name = {row[0]: row for row in lost.rows}
    assert float(by_name["s2/sketch"][1]) >= 81 and by_name["s2/sketch"][2] == "+1.00"
    assert float(by_name["s2/exact"][1]) > 90
    # The fastest gradient counts for all; what is more than in dense training is the codec's.
    steps = {row[0]: row for row in at_1.rows}
    assert float(steps["dense"][1]) > float(steps["s2/sketch"][1]) > 12
    assert steps["dense"][2:] == ("1.00x", "") and "of them 0.20 ms" in steps["s2/sketch"][3]
    assert float(steps["s2/exact"][1]) > 500 and "do not compress" in steps["s2/exact"][3]
    assert [row[0] for row in rows.rows] == ["4", "8", "32"] and len(at_10.rows) == len(LOSSES)


def test_bytes_that_fallbacks_sent_count(arms):
    (exact,) = (arm for arm in arms if arm["name"] == "s2/exact")
    exact |= {"fallback_share": 1.0, "fallback_bytes": 9e6}
    (row,) = (row for row in next(s2_reducer.numbers(arms)).rows if row[0] == "s2/exact")
    assert float(row[1]) < 0 and row[-1] == "100.0"


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="unknown task 'gpt'; known tasks: lstm, transformer"):
        s2_reducer.get_config("task=gpt")
