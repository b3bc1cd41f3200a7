"""The figures of slow and stale gradients are drawn from the records of a workdir."""

import json

import numpy as np
import pytest

from configs import slow_and_stale as file
from experiments import records
from experiments.studies import error_against_time, noise_floor, slow_and_stale

MINIMUM = noise_floor.Minimum(0.5, np.array([0.5, 1.0]), np.array([2.0, 4.0]))


@pytest.fixture
def drawn(monkeypatch):
    """What the two figures were called with; nothing is drawn, and the minimum is made up."""
    calls = {}

    def keep(name):
        return lambda *values: calls.update({name: values})

    for name in ("draw_error_against_time", "draw_final_losses"):
        monkeypatch.setattr(error_against_time, name, keep(name))
    monkeypatch.setattr(noise_floor, "at_minimum", lambda task: MINIMUM)
    return calls


def written(folder, model: str) -> None:
    """Arms at two rates, the lower of which ends lower and the higher of which is sooner."""
    found = []
    for name in [*slow_and_stale.GROUPS, "compensated/threshold=0.1"]:
        for rate in (0.16, 1.0):
            config = file.get_config(f"model={model}")
            config.optimizer.learning_rate = rate
            place = folder / f"{name}/rate={rate}" / "seed_0"
            place.mkdir(parents=True)
            records.write_json(place / records.CONFIG, config.to_dict())
            line = {"update": 1, "seconds": 2.0, "train_loss": rate}
            (place / records.METRICS).write_text(json.dumps(line) + "\n")
            found.append(
                {
                    "name": f"{name}/rate={rate}",
                    "seconds_to_target": 3 - rate,
                    "final_train_loss": rate,
                }
            )
    records.write_json(folder / records.SUMMARY, {"arms": found})


def test_every_line_of_error_against_time_has_its_runs_and_the_level_of_its_rate_and_k(
    drawn, tmp_path
):
    written(tmp_path, "logistic")
    slow_and_stale.figures(tmp_path)
    rows, target, lowest, path, levels = drawn["draw_error_against_time"]
    rates = {"common rate 0.16": 0.16, "rate first at target": 1.0, "rate ending lowest": 0.16}
    assert list(rows) == list(levels) == list(rates)
    assert (target, lowest, path.name) == (1.0, 0.5, "error_against_time.png")
    for words, rate in rates.items():
        for protocol in slow_and_stale.PROTOCOLS:
            assert list(rows[words][protocol]) == list(levels[words][protocol])
            for k in (1, 2, 4, 8):
                ((record,),) = rows[words][protocol][f"K={k}"]
                assert record["train_loss"] == rate
                exact = rate * (2 / (2 - 0.5 * rate) + 4 / (2 - rate)) / (2 * k * 4)
                assert levels[words][protocol][f"K={k}"] == pytest.approx(exact)
    lines, lowest, path = drawn["draw_final_losses"]
    losses = {0.16: 0.16, 1.0: 1.0}
    assert lines == {"fixed": losses, "C = 0.1": losses} and lowest == 0.5


def test_of_a_model_that_is_not_convex_nothing_is_known(drawn, tmp_path):
    written(tmp_path, "cnn")
    slow_and_stale.figures(tmp_path)
    _, _, lowest, _, levels = drawn["draw_error_against_time"]
    assert lowest == 0 and levels is None
