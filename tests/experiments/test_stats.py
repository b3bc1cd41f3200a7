"""Verdicts of claims, against tests of SciPy and numbers worked out by hand."""

from unittest.mock import ANY

import numpy as np
import pytest
from scipy import stats as scipy_stats

from experiments import stats
from experiments.stats import FAILS, HOLDS, INCONCLUSIVE, WHERE, Claim, judge


def arm(name="ours", values=(1.0, 1.1, 1.2), **changes):
    """Return an arm whose losses and seconds are these, a number per seed."""
    made = {"name": name, "seeds": list(range(len(values))), "samples": 1000.0, "workers": 8,
            "reached": f"{len(values)}/{len(values)}", "bytes_per_worker": 1e6}  # fmt: skip
    for quantity in (stats.SECONDS, stats.END, "train_loss"):
        made |= {quantity: float(np.mean(values)), f"{quantity}_by_seed": list(values)}
    return made | changes


OURS, THEIRS = arm(), arm("theirs", (2.0, 2.2, 2.1))
CLOSE = arm("theirs", (1.3, 0.9, 1.25))


def verdict(*arms, **how):
    return judge(Claim("", "", "", "ours", "theirs", **how), arms).verdict


def test_a_difference_is_told_from_its_bound_or_lies_in_the_noise():
    assert verdict(OURS, THEIRS) == HOLDS
    assert verdict(OURS, THEIRS, bound=0.3) == FAILS
    assert verdict(OURS, CLOSE) == INCONCLUSIVE
    assert verdict(OURS, CLOSE, margin=0.7) == HOLDS
    assert verdict(OURS, THEIRS, condition="on a ring") == WHERE
    found = judge(Claim("", "", "", "ours", "theirs"), [OURS, CLOSE])
    assert found.reason == "in the noise" and str(found).startswith("inconclusive: in the noise; 1")


def test_seeds_are_paired_where_both_arms_have_them_and_welchs_test_takes_the_rest():
    a, b = OURS["train_loss_by_seed"], THEIRS["train_loss_by_seed"]
    _, p = stats.difference(OURS, THEIRS, "train_loss", bound=0.6)
    assert p == pytest.approx(scipy_stats.ttest_rel(a, 0.6 * np.array(b)).pvalue)
    other = THEIRS | {"seeds": [7, 8, 9]}
    means = {"train_loss_by_seed": None, "train_loss_std": float(np.std(b, ddof=1))}
    for unpaired in (other, THEIRS | means):
        beyond, p = stats.difference(OURS, unpaired, "train_loss", bound=0.6, margin=0.1)
        expected = scipy_stats.ttest_ind(np.array(a) - 0.1, 0.6 * np.array(b), equal_var=False)
        assert p == pytest.approx(expected.pvalue) and beyond == pytest.approx(1.1 - 1.26 - 0.1)


def test_equal_seeds_meet_a_bound_that_they_lie_on_and_bytes_need_none():
    assert verdict(OURS, OURS | {"name": "theirs"}, quantity="train_loss") == HOLDS
    assert verdict(OURS, OURS | {"name": "theirs"}, quantity="train_loss", bound=0.9) == FAILS
    by_rounding = arm(values=(0.1 + 0.2, 1.1)), arm("theirs", (0.3, 1.1))
    for pair in (by_rounding, by_rounding[::-1]):  # no test has said so
        assert stats.compare(*pair, "train_loss") == stats.Answer(HOLDS, ANY)
    assert stats.difference(arm(values=(1.5, 2.5)), arm(values=(1.0, 2.0)), "train_loss")[1] == 0
    one = arm(values=(1.0,), bytes_per_worker=5e5)
    assert verdict(one, arm("theirs"), quantity="bytes_per_worker", bound=0.5) == HOLDS
    assert verdict(one, arm("theirs"), quantity="bytes_per_worker", bound=0.4) == FAILS


def test_a_condition_that_is_not_met_is_the_reason():
    lost = OURS | {"train_loss_by_seed": [1.0, None, 1.0]}
    for ours, theirs, how, words in (
        (OURS, THEIRS | {"reached": "2/3"}, {}, "2/3 seeds of theirs came there"),
        (OURS | {stats.SECONDS: None}, THEIRS, {}, "seeds of ours came there"),
        (lost, THEIRS, {"quantity": "train_loss"},
         "not every seed of ours has a finite train loss"),
        (OURS | {"samples": 900.0}, THEIRS, {"equal": ("samples",)},
         "the samples of the arms differ: 900 and 1,000"),
        (arm(values=(1.0,)), arm("theirs", (2.0,)), {}, "one seed leaves no deviation"),
        (OURS, THEIRS | {"name": "else"}, {}, "there is no arm theirs"),
        (OURS, THEIRS, {"tuned": True}, "ours was run at one setting"),
    ):  # fmt: skip
        found = judge(Claim("", "", "", "ours", "theirs", **how), [ours, theirs])
        assert found.verdict == INCONCLUSIVE and words in found.reason


GRID = [arm(f"ours/rate={rate}", (v, v + 0.1, v + 0.2))
        for rate, v in ((0.1, 2.0), (0.2, 1.0), (0.4, 3.0))]  # fmt: skip
RIVAL = [arm(f"theirs/rate={rate}", (v, v + 0.1, v + 0.2))
         for rate, v in ((0.1, 4.0), (0.2, 3.0), (0.4, 2.0))]  # fmt: skip


def test_each_side_is_judged_at_its_best_which_lies_inside_of_its_grid():
    assert stats.tuned(GRID, "ours", "train_loss") is GRID[1]
    found = judge(Claim("", "", "", "ours", "theirs", tuned=True), GRID + RIVAL)
    assert found.reason == "rate of theirs/rate=0.4, the best, is at its grid's end"
    claim = Claim("", "", "", "ours", "theirs", tuned=True, edges={"rate": 0.4})
    assert judge(claim, GRID + RIVAL).verdict == HOLDS
    several = claim._replace(ours=("none", "theirs"), theirs="ours")
    assert judge(several, GRID + RIVAL).verdict == FAILS  # a group without arms is left out
    assert stats.settings("m/K=2/x/rate=0.5") == {"K": 2.0, "rate": 0.5}
    lost = [one | {"reached": "2/3"} for one in GRID]  # never at the target in every seed
    both = claim._replace(ours="theirs", theirs=("ours", "theirs"), bound=1.1)
    assert judge(both, lost + RIVAL).verdict == HOLDS


def recorded(*arms):
    """Return a record with these arms."""
    columns = list(arms[0])
    return {"seeds": 3, "arms": {"columns": columns, "rows": [[a[c] for c in columns]
                                                              for a in arms]}}  # fmt: skip


def test_bytes_until_the_target_are_a_share_of_all():
    row = arm("ours") | {"updates": 40, "updates_to_target": 10.0,
                         "updates_to_target_by_seed": [8, 10, 12]}  # fmt: skip
    (found,) = stats.arms(recorded(row))
    assert found[stats.BYTES_THERE] == 2.5e5
    assert found[f"{stats.BYTES_THERE}_by_seed"] == [2e5, 2.5e5, 3e5]
    never = stats.arms(recorded(row | {"updates_to_target": None}))
    assert stats.BYTES_THERE not in never[0]


def test_points_of_an_analysis_or_a_benchmark_are_arms_by_their_fields():
    points = [{"form": form, "nodes": 4, "ms": ms, "ms_deviation": 0.1, "runs": 5, "goodput": share,
               "turns": [ms, ms + 0.1, ms + 0.1]}
              for form, ms, share in (("few", 1.0, 0.96), ("full", 2.0, 0.6))]  # fmt: skip
    found = stats.arms({"summary": {"name": "x", "points": points}})
    few, full = {"form": "few", "nodes": 4}, {"form": "full"}
    for quantity, words in (
        ("ms", "holds: 1 ± 0.1 against 2 ± 0.1 ms, 0.50x; p = "),
        ("turns", "holds: 1.067 ± 0.058 against 2.067 ± 0.058 s, 0.52x; p = "),
        ("goodput", "holds: 96 against 60 %"),
    ):
        assert str(judge(Claim("", "", "", few, full, quantity), found)).startswith(words)
    more = Claim("", "", "", few, full, "goodput", 1.7)
    assert judge(more, found).verdict == FAILS
    none = judge(more._replace(theirs={"form": "some"}), found)
    assert str(none) == "inconclusive: there is no point some"
    other = judge(Claim("", "", "", few, full, "seconds"), found)
    assert str(other) == "inconclusive: not every seed of few, 4 has a finite seconds"


def test_seeds_that_choose_need_not_be_the_seeds_that_judge():
    lucky = [arm("ours/rate=0.1", (0.0, 3.0, 3.0)), arm("ours/rate=0.2", (2.1, 2.1, 2.1))]
    assert stats.best(lucky, "train_loss")["train_loss"] == 2.0
    found = stats.best(lucky, "train_loss", apart=True)
    # Without its 0 the first seed chooses the second arm, the others choose the first.
    assert found["train_loss_by_seed"] == [2.1, 3.0, 3.0] and found["name"] == "ours/rate=0.1"
    risky = arm("ours/rate=0.4") | {"train_loss": None, "train_loss_by_seed": [0.1, 0.1, None]}
    assert stats.best([*lucky, risky], "train_loss")["train_loss"] == 2.0
    with pytest.raises(stats.Inconclusive, match="that other seeds choose fails for one"):
        stats.best([*lucky, risky], "train_loss", apart=True)


def accurate(name, values, samples=10_000):
    return arm(name) | {stats.ACCURACY: float(np.mean(values)), "test_samples": samples,
                        f"{stats.ACCURACY}_by_seed": list(values)}  # fmt: skip


def test_accuracies_are_higher_is_better_and_no_finer_than_their_test_samples():
    ours, theirs = accurate("ours", (0.9, 0.901, 0.902)), accurate("theirs", (0.9, 0.9, 0.9))
    how = {"quantity": stats.ACCURACY}
    assert verdict(ours, theirs, margin=0.006, **how) == HOLDS
    better = accurate("theirs", (0.95, 0.951, 0.95))
    assert verdict(theirs | {"name": "ours"}, better, **how) == FAILS
    coarse = Claim("", "", "", "ours", "theirs", stats.ACCURACY, margin=0.001)
    found = judge(coarse, [ours, theirs])
    assert "10,000 test samples leave a standard error of 0.3" in found.reason
    # A difference of a tenth of a test sample, in which all seeds agree, is rounding.
    rounded = accurate("ours", (0.90001, 0.90001, 0.90001))
    assert verdict(rounded, theirs, **how) == INCONCLUSIVE
    assert stats.sampling_error(0.9, 900) == pytest.approx(0.01)
    assert stats.sampling_error(22.0, 900) == 0  # of an older record
    assert stats.shown(ours, stats.ACCURACY) == "90.1 ± 0.1 %"


def test_a_sweep_prints_the_rows_of_a_record_and_a_table_of_its_best_settings():
    rows = [Claim("sooner", "arXiv 1", record, "ours", "theirs") for record in ("here", "there")]
    ((words, found),) = stats.printed(rows, "here")([OURS, THEIRS])
    assert words == "sooner (arXiv 1)" and found.startswith("holds: 1.1 ± 0.1 against 2.1")
    (table,) = stats.at_best(stats.SECONDS)(GRID + RIVAL)
    assert table.rows == [("ours", "rate=0.2", "1.1 ± 0.1 s"),
                          ("theirs", "rate=0.4*", "2.1 ± 0.1 s")]  # fmt: skip
