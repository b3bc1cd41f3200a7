"""Every premise, met and not, and the four verdicts."""

import pytest

from experiments import premises, quantities


def arm(name="ours", values=(1.0, 1.1, 0.9), **changed):
    mean = sum(values) / len(values)
    found = {
        "name": name, "seeds": list(range(len(values))), "samples": 1000, "updates": 10,
        "reached": f"{len(values)}/{len(values)}", "seconds_to_target": mean,
        "seconds_to_target_by_seed": list(values), "train_loss": mean,
        "train_loss_by_seed": list(values), "bytes_per_worker": 5.0,
    }  # fmt: skip
    return found | changed


OURS, THEIRS = arm(), arm("theirs", (2.0, 2.2, 1.8))
GRID = [arm(f"m/K=2/rate={rate}", (loss, loss + 0.1)) for rate, loss in
        ((0.1, 3.0), (0.2, 1.0), (0.4, 2.0))]  # fmt: skip
ONE_RATE = [arm(f"m/C={threshold}/rate=1") for threshold in (1, 2, 3)]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda: premises.named([OURS], "theirs"), "there is no arm theirs"),
        (lambda: premises.group([OURS], "theirs"), "there is no arm theirs"),
        (lambda: premises.finite("train_loss", OURS | {"train_loss": None}), "is not finite"),
        (
            lambda: premises.finite("train_loss", OURS | {"train_loss_by_seed": [1.0, None, 1.0]}),
            "train loss of ours is not finite in every seed",
        ),
        (lambda: premises.finite("train_loss", OURS | {"train_loss": float("nan")}), "not finite"),
        (lambda: premises.reached(OURS | {"reached": "2/3"}), r"not reached .* of ours \(2/3\)"),
        (lambda: premises.reached(OURS | {"seconds_to_target": None}), "was not reached"),
        (lambda: premises.repeated(arm(values=(1.0,))), "ours has 1 seed, a deviation needs 2"),
        (
            lambda: premises.equal("samples", OURS, THEIRS | {"samples": 1100}),
            "the samples of the arms differ: ours 1,000, theirs 1,100",
        ),
        (lambda: premises.inside(GRID[0], GRID), "rate of m/K=2/rate=0.1, the best, is at the end"),
        (
            lambda: premises.inside(ONE_RATE[1], ONE_RATE),
            "rate of m/C=2/rate=1 has one value, it was not searched",
        ),
        (lambda: premises.inside(GRID[0], GRID[:1]), "run at one setting, nothing was searched"),
        (
            lambda: premises.best([one | {"reached": "0/2"} for one in GRID], "seconds_to_target"),
            "no arm of m/K=2 came to the target in every seed",
        ),
    ],
)
def test_a_premise_that_is_not_met_is_named(broken, words):
    with pytest.raises(premises.CannotTell, match=words):
        broken()


def test_premises_that_are_met_say_nothing():
    premises.finite("train_loss", OURS, THEIRS)
    premises.reached(OURS, THEIRS)
    premises.repeated(OURS, THEIRS, least=3)
    premises.equal("samples", OURS, THEIRS | {"samples": 1010})
    assert premises.tuned(GRID, "m/K=2", "train_loss") is GRID[1]
    assert premises.tuned(GRID[1:], "m/K=2", "train_loss", {"rate": 0.2}) is GRID[1]
    assert premises.settings("m/K=2/x/rate=0.5") == {"K": 2.0, "rate": 0.5}


def verdict(ours, theirs, field="train_loss", **how):
    return premises.answer(premises.at_most, ours, theirs, field, **how).verdict


def test_the_four_verdicts():
    assert verdict(OURS, THEIRS) == premises.HOLDS
    assert verdict(OURS, THEIRS, where="on a ring") == premises.WHERE
    assert verdict(THEIRS, OURS) == premises.FAILS
    close = arm("close", (1.1, 0.9, 1.0))
    assert verdict(OURS, close) == verdict(close, OURS) == premises.UNKNOWN
    assert verdict(OURS, close, margin=0.5) == premises.HOLDS
    assert verdict(THEIRS, OURS, factor=3.0) == premises.HOLDS
    assert verdict(OURS, THEIRS, "seconds_to_target") == premises.HOLDS
    late = THEIRS | {"reached": "2/3"}
    assert verdict(OURS, late, "seconds_to_target") == premises.UNKNOWN


def test_an_answer_shows_means_deviations_and_the_test():
    text = premises.text(premises.at_most, OURS, THEIRS, "seconds_to_target")
    assert text == (
        "holds: ours 1 ± 0.1 s against theirs 2 ± 0.2 s, 0.50x; difference -1 ± 0.058 s, paired, "
        "p = 0.0033"
    )
    brief = premises.at_most(OURS, THEIRS, "seconds_to_target").brief
    assert brief == "1 ± 0.1 s against 2 ± 0.2 s, 0.50x"


def test_an_accuracy_shows_the_standard_error_of_its_test_samples():
    """sqrt(.9 * .1 / 900) is a hundredth; nothing else is a share of the test samples."""
    assert quantities.sampling_error(0.9, 900) == pytest.approx(0.01)
    arm = {"name": "a", "test_accuracy": 0.9, "test_accuracy_std": 0.002, "train_loss": 0.5}
    assert quantities.shown(arm, "test_accuracy") == "90 ± 0.2 %"
    arm["test_samples"] = 900
    assert quantities.shown(arm, "test_accuracy") == "90 ± 0.2 (test samples: ± 1) %"
    assert quantities.shown(arm, "train_loss") == "0.5"
    premises.resolved(0.011, arm)
    with pytest.raises(
        premises.CannotTell, match=r"900 test samples .* error of 1 points, and 0.9"
    ):
        premises.resolved(0.009, arm)


def test_seeds_that_agree_leave_half_a_test_sample_of_an_accuracy_open():
    exact = {"test_samples": 100, "test_accuracy": 0.9, "test_accuracy_by_seed": [0.9] * 3}
    ours, theirs = OURS | exact, THEIRS | exact
    assert verdict(ours, theirs, "test_accuracy", margin=0.006) == premises.HOLDS
    assert verdict(ours, theirs, "test_accuracy", margin=0.004) == premises.UNKNOWN
    better = ours | {"test_accuracy": 0.906, "test_accuracy_by_seed": [0.906] * 3}
    assert verdict(better, theirs, "test_accuracy", margin=0.002) == premises.UNKNOWN
    assert verdict(better, theirs, "test_accuracy", margin=0.0005) == premises.FAILS


def test_parts_of_a_claim_are_judged_together():
    good, bad = premises.Answer(premises.HOLDS, "a", 3), premises.Answer(premises.FAILS, "b", 2)
    unknown = premises.Answer(premises.UNKNOWN, "c")
    assert premises.both(good, good).verdict == premises.HOLDS
    assert premises.both(good, unknown).verdict == premises.UNKNOWN
    assert premises.both(unknown, bad) == (premises.FAILS, "c; b", 2, "", "c; b")
    assert premises.counted(OURS, THEIRS, "bytes_per_worker", 0.5).verdict == premises.FAILS
    verdicts = [premises.of_all(good, 2) for good in (0, 1, 2)]
    assert verdicts == [premises.FAILS, premises.WHERE, premises.HOLDS]


def test_a_seed_that_is_not_there_takes_the_mean_with_it():
    there = premises.per_seed(OURS, "bytes_to_target", [1.0, 2.0, 3.0])
    assert there["bytes_to_target"] == 2.0 and there["reached"] == "3/3"
    gone = premises.per_seed(OURS, "bytes_to_target", [1.0, None, 3.0])
    assert gone["bytes_to_target"] is None and gone["reached"] == "2/3"


@pytest.mark.parametrize(
    ("by_seed", "expected"),
    [([2.0, 4.0], (0.0, 0.003)), ([2.0, 4.01], (0.01 / 2**0.5,) * 2)],
    ids=["rounding", "noise"],
)
def test_a_loss_is_the_same_up_to_the_noise_level_or_a_thousandth(by_seed, expected):
    dense = {"name": "dense", "loss": 3.0, "loss_by_seed": [2.0, 4.0]}
    again = dense | {"loss_by_seed": by_seed}
    assert premises.loss_margin(again, dense, "loss") == pytest.approx(expected)
    twice = [one | {"loss_by_seed": 2 * one["loss_by_seed"]} for one in (again, dense)]
    assert premises.loss_margin(*twice, "loss") == pytest.approx(expected)


LUCKY = [  # each has one seed that is lucky, and the seeds of the first are best in the mean
    arm(f"m/rate={rate}", values)
    for rate, values in ((0.1, (0.0, 3.0, 3.0)), (0.2, (3.0, 0.5, 3.0)), (0.4, (3.0, 3.0, 1.0)))
]


def test_no_seed_is_judged_at_what_it_has_chosen():
    assert premises.best(LUCKY, "train_loss")["train_loss"] == 2.0
    with premises.chosen_by_other_seeds():
        found = premises.best(LUCKY, "train_loss")
    # Seed 0 is judged at rate .2, which the others choose, and they at .1, the choice of seed 0.
    assert found["train_loss_by_seed"] == found["seconds_to_target_by_seed"] == [3.0, 3.0, 3.0]
    assert (found["name"], found["train_loss"], found["reached"]) == ("m/rate=0.1", 3.0, "3/3")
    assert premises.best(LUCKY, "train_loss") is LUCKY[0]


def test_a_setting_that_every_seed_would_choose_is_judged_alike():
    with premises.chosen_by_other_seeds():
        found = premises.tuned(GRID, "m/K=2", "train_loss")
    assert found | {"train_loss_std": None} == GRID[1] | {
        "train_loss_std": None, "seconds_to_target_std": None
    }  # fmt: skip
