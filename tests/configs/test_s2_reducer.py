"""Claims of the S2 Reducer experiment, on a task small enough for a test."""

import pytest

from configs import s2_reducer
from experiments import codec_times, config_files, sweep

SMALL = "ncf(interactions=identifiers(files=60), width=8, hidden=8)"
# Seconds of a gradient, and of an exchange and a step.
SECONDS = {"dense": (0.010, 0.002), "s2/sketch": (0.011, 0.0022), "s2/exact": (0.012, 0.502),
           "parallax": (0.012, 0.002)}  # fmt: skip
LOSSES = {"dense": 2.0, "dense/reordered": 2.001, "s2/sketch": 2.02, "s2/exact": 2.0,
          "parallax": 2.0}  # fmt: skip


def _rounds(arms, rounds):
    """Return measured seconds, with 1 % from round to round."""
    return {
        name: [
            tuple((1 + 0.01 * n) * seconds for seconds in SECONDS.get(name, (0.02, 0.1)))
            for n in range(rounds)
        ]
        for name in arms
    }


@pytest.mark.slow
def test_bytes_losses_and_steps_are_numbers(monkeypatch):
    monkeypatch.setitem(s2_reducer.TASKS, "ncf", (SMALL, 4, 0.01, 9))
    measured = []
    monkeypatch.setattr(codec_times, "step_rounds",
                        lambda *given: measured.append(1) or _rounds(*given))  # fmt: skip
    chosen = sweep.expand(s2_reducer.get_config("task=ncf"), s2_reducer, {}, 1)
    configs = {arm.config.name: arm.config for arm in chosen}
    arms = [
        {"name": name, "config": configs[name], "updates": 9, "train_loss": loss,
         "fallback_share": 0.0, "fallback_bytes": 0.0}
        for name, loss in LOSSES.items()
    ]  # fmt: skip
    lost, steps = (table.rows for table in s2_reducer.numbers(arms))
    assert lost[0] == ("dense", "0.0", "+0.00", "0.0")
    lost, steps = ({row[0]: row for row in rows} for rows in (lost, steps))
    assert float(lost["s2/sketch"][1]) >= 81 and lost["s2/sketch"][2] == "+1.00"
    assert float(lost["s2/exact"][1]) > 90
    # The fastest gradient counts for all; what is more than in dense training is the codec's.
    assert float(steps["dense"][1]) > float(steps["s2/sketch"][1]) > 12
    # A gradient and a step of 12 ms, and codecs of 0.2 ms, differ by 1 % from round to round.
    assert steps["dense"][2:] == ("0.190", "1.00x") and steps["s2/sketch"][2] == "0.193"
    assert float(steps["s2/exact"][1]) > 500 and len(steps) == len(LOSSES)
    # Fallbacks that send 9 MB more than planned in nine updates take 8 ms of each at 1 Gbit/s.
    fallback = {"fallback_share": 1.0, "fallback_bytes": 9e6}
    arms = [arm | fallback if arm["name"] == "s2/sketch" else dict(arm) for arm in arms]
    lost, slower = ({row[0]: row for row in t.rows} for t in s2_reducer.numbers(arms))
    assert float(lost["s2/sketch"][1]) < 0 and lost["s2/sketch"][-1] == "100.0"
    assert measured == [1]  # once for all copies of the arms
    planned = float(steps["s2/sketch"][1])
    assert float(slower["s2/sketch"][1]) == pytest.approx(planned + 8, abs=0.01)


def test_exact_methods_have_the_room_that_the_task_and_the_workers_need():
    def ratios(argument):
        config = s2_reducer.get_config(argument)
        arms = dict(config_files.swept_arms(s2_reducer, config))
        union = arms["s2/exact"]["algorithm"].ratio
        return union, arms["omnireduce"]["algorithm"].ratio

    touched = s2_reducer.TOUCHED["ncf"]
    assert ratios("task=ncf") == (touched.rows_of_4, touched.blocks)
    (union, blocks), lstm = ratios("task=ncf,workers=16"), s2_reducer.TOUCHED["language_model"]
    assert touched.rows_of_4 < union < 4 * touched.rows_of_4 and blocks == touched.blocks
    assert ratios("task=lstm") == ratios("task=transformer") == (lstm.rows_of_4, lstm.blocks)


def test_a_task_whose_rows_nobody_has_counted_is_refused():
    config = s2_reducer.get_config("task=ncf")
    with pytest.raises(ValueError, match=r"how much of its tables digits touches is not known"):
        next(s2_reducer.sweep(sweep.override(config, {"task": "digits"})))
    with pytest.raises(ValueError, match="unknown task 'gpt'; known tasks: lstm, transformer"):
        s2_reducer.get_config("task=gpt")
