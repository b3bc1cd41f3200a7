"""The picture of the compensating rate shows what the record says."""

import math

import numpy as np
import pytest

from experiments import premises
from experiments.publishing import compensated
from experiments.studies import noise_floor

LOSS = "final_train_loss"
FIXED = "k_async/K=1"
MINIMUM = noise_floor.Minimum(0.5, np.ones(1), np.ones(1))


def arms_of(losses: dict[str, float]) -> dict[str, dict]:
    return {
        name: {"name": name, LOSS: loss, f"{LOSS}_by_seed": [loss - 0.1, loss + 0.1]}
        for name, loss in losses.items()
    }


def lines_of(axes) -> dict[str, list]:
    return {
        line.get_label(): line.get_xydata().tolist()
        for line in axes.lines
        if not line.get_label().startswith("_") and line.get_label() != "guessing"
    }


def test_lines_are_sorted_and_lie_above_the_lowest_loss_with_their_seeds():
    arms = arms_of(
        {
            f"{FIXED}/rate=0.4": 3.0,
            f"{FIXED}/rate=0.1": 1.0,
            "k_async/K=2/rate=0.1": 9.0,
            "compensated/threshold=10.0/rate=0.1": 1.5,
            "compensated/threshold=0.01/rate=0.4": 2.5,
            "compensated/threshold=0.01/rate=0.1": 2.0,
        }
    )
    (axes,) = compensated.draw(compensated.Records(arms, MINIMUM)).axes
    assert lines_of(axes) == {
        "fixed rate": [[0.1, 0.5], [0.4, 2.5]],
        "C = 0.01": [[0.1, 1.5], [0.4, 2.0]],
        "C = 10": [[0.1, 1.0]],
    }
    dots = [line.get_xydata() for line in axes.lines if line.get_marker() == "."]
    assert np.allclose(dots[0], [[0.1, 0.4], [0.1, 0.6]]) and len(dots) == 5
    (guessing,) = (line for line in axes.lines if line.get_label() == "guessing")
    assert guessing.get_ydata()[0] == pytest.approx(math.log(10) - 0.5)
    assert axes.get_ylabel().endswith("the lowest, 0.5")


@pytest.mark.slow
def test_the_picture_of_the_record_has_every_arm_of_the_rate_and_of_the_fixed_one():
    records = compensated.read()
    (axes,) = compensated.draw(records).axes
    drawn = sorted(y for line in lines_of(axes).values() for _, y in line)
    wanted = [
        arm[LOSS] - records.minimum.loss
        for name, arm in records.arms.items()
        if name.startswith(("compensated/", f"{FIXED}/"))
    ]
    assert drawn == pytest.approx(sorted(wanted)) and len(drawn) == 36
    assert records.minimum.loss < min(arm[LOSS] for arm in records.arms.values())


def test_the_sentences_hold_in_the_record():
    lines = compensated.lines(compensated.read().arms)
    fixed, small = lines[math.inf], lines[min(lines)]
    assert fixed[-1].loss > compensated.CHANCE > small[-1].loss
    arms = compensated.read().arms.values()
    for field in (LOSS, "seconds_to_target"):
        answer = premises.beside_its_limit(arms, "compensated", FIXED, field, "threshold")
        assert answer.verdict == premises.FAILS and "does not act" in answer.measured
