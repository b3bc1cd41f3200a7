"""What the claims of the asynchronous experiments say of made-up records."""

import math

from configs import adasync, async_baselines, slow_and_stale
from experiments import premises
from tests.configs import made_up


def found(file, arms):
    return [text for _, text in file.claims(arms)]


def test_who_is_first_does_not_end_lowest_where_both_leads_are_sure():
    """One group is early, another one ends low, all at their middle rates."""
    made = made_up.arms(slow_and_stale)
    for arm in made:
        if arm["name"].startswith("k_async/K=1/"):
            arm |= _scaled(arm, "seconds_to_target", 0.1)
        if arm["name"].startswith("k_sync/K=8/"):
            arm |= _scaled(arm, "final_train_loss", 0.1)
    common, tuned, *_ = found(slow_and_stale, made)
    for text in (common, tuned):
        assert text.startswith("holds: k_async/K=1/rate=") and "against k_sync/K=8/rate=" in text
        assert text.count(", paired, p = ") == 2


def test_one_group_that_is_first_and_lowest_contradicts_the_claim():
    made = made_up.arms(slow_and_stale, level=lambda name: 0.5 if "k_sync/K=2" in name else 1.0)
    common, tuned, *_ = found(slow_and_stale, made)
    assert common == tuned == "does not hold: k_sync/K=2 is first and ends lowest"


def test_the_compensated_rate_is_compared_with_the_tuned_fixed_one():
    made = made_up.arms(slow_and_stale, level=lambda name: 2.0 if "compensated" in name else 1.0)
    for arm in made:
        if arm["name"] == "k_async/K=1/rate=1.0":
            arm |= {"final_train_loss": None, "final_train_loss_by_seed": None}
    _, _, trains, lower, sooner = found(slow_and_stale, made)
    assert trains.startswith("holds: compensated/threshold=0.1/rate=1.0 ends at 0.0")
    assert "k_async/K=1/rate=1.0 at infinity; guessing has 2.303" in trains
    assert lower.startswith("does not hold: compensated/threshold=0.1/rate=0.063")
    assert sooner.startswith("does not hold: compensated/")
    for arm in made:  # a C that never acts
        if arm["name"].startswith("compensated/threshold=10.0"):
            rate = arm["name"].rpartition("/")[2]
            (fixed,) = [one for one in made if one["name"] == f"k_async/K=1/{rate}"]
            arm |= {field: fixed[field] for field in fixed if field != "name"}
    *_, lower, sooner = found(slow_and_stale, made)
    same = "does not hold: the best threshold does not act, k_async/K=1 is the same: "
    assert lower.startswith(f"{same}0.01") and sooner.startswith(f"{same}11")
    (arm,) = premises.named(made, "compensated/threshold=10.0/rate=1.0")
    arm["final_train_loss_by_seed"] = arm["seconds_to_target_by_seed"] = [1e-3] * made_up.SEEDS
    arm |= dict.fromkeys(("final_train_loss", "seconds_to_target"), 1e-3)
    for end in found(slow_and_stale, made)[-2:]:
        assert end.startswith("cannot be told: threshold of compensated/threshold=10.0/rate=1.0")
    (table,) = slow_and_stale.numbers(made)
    assert len(table.rows) == len(slow_and_stale.GROUPS)
    assert table.rows[0][:2] == ("k_sync/K=1", "0.16")


def _scaled(arm, field, factor):
    values = [factor * value for value in arm[f"{field}_by_seed"]]
    return {field: factor * arm[field], f"{field}_by_seed": values}


def metrics(seconds, floor):
    """A loss that falls from 2 by the factor e in `seconds`, down to a floor."""
    return [
        {"seconds": t, "train_loss": max(2 * math.exp(-t / seconds), floor)}
        for t in (0.0, 10.0, 100.0)
    ]


def test_adasync_is_compared_with_the_best_fixed_k_that_reaches_the_target():
    """K = 1 is quick and stops at .32, K = 2 is slower than AdaSync, the others do not arrive."""
    pace = {"fixed/K=1": (5.0, 0.32), "fixed/K=2": (10.0, 0.01), "adasync": (8.0, 0.01)}
    pace |= {"adasync_sqrt": (4.0, 0.01)}  # and with such a rate it is first everywhere
    made = made_up.arms(adasync)
    for arm in made:
        seconds, floor = pace.get(arm["name"].rpartition("/")[0], (1e9, 1.9))
        off = arm["seconds_to_target"] / 10  # 1 in the middle of the grid
        arm["metrics"] = [metrics(seconds * off * (1 + 1e-3 * seed), floor) for seed in range(3)]
    loose, _, tight, tightest, _, *following = found(adasync, made)
    assert loose.startswith("does not hold: adasync/rate=0.25") and "fixed/K=8 never" in loose
    assert "against fixed/K=1/rate=" in tight and "fixed/K=4 never" in tight
    assert tightest.startswith("holds: adasync/rate=0.25") and "fixed/K=1 never" in tightest
    assert all(way.startswith("holds: adasync_sqrt/rate=0.25") for way in following[:4])
    assert all("adasync_linear" in way and "cannot be t" in way for way in following[5:])
    assert "to train loss 0.01," in [*adasync.claims(made)][-1][0]  # the lowest that one reaches


def test_the_best_of_every_baseline_is_ranked():
    made = made_up.arms(async_baselines, level=lambda name: LEVELS.get(name.partition("/")[0], 1.0))
    (ranking,) = async_baselines.numbers(made)
    assert ranking.rows[0] == ("ringmaster_ignore", "5.0 s", "limit=16, rate=0.16", "")
    assert len(ranking.rows) == len(async_baselines.METHODS)
    limited, fastest = found(async_baselines, made)
    assert limited.startswith("holds: ringmaster_ignore/limit=16/rate=0.16 5.005")
    assert fastest.startswith("does not hold: k_sync/k=4/rate=0.16")
    never = made_up.never(made)
    assert {row[1] for row in next(async_baselines.numbers(never)).rows} == {"never"}
    assert all(text.startswith(premises.UNKNOWN) for text in found(async_baselines, never))


LEVELS = {"async_sgd": 0.9, "ringmaster_ignore": 0.5}


def test_a_baseline_that_is_best_where_it_changes_nothing_is_no_rival_of_its_own():
    """All the grids end where the methods are Async-SGD, which is first."""
    made = made_up.arms(async_baselines)
    by_name = {arm["name"]: arm for arm in made}
    (plain,) = premises.named(made, "async_sgd/rate=0.16")
    _take(plain, 0.8)
    for off in ("ringmaster_ignore/limit=128", "compensated/threshold=100.0", "hinge/free=96"):
        by_name[f"{off}/rate=0.16"] |= {k: plain[k] for k in plain if k.startswith("seconds_to_")}
    limited, fastest = found(async_baselines, made)
    assert limited.startswith("does not hold: ringmaster_ignore/limit=16/rate=0.16 10.01")
    assert "against async_sgd/rate=0.16 8.0" in limited
    assert fastest.startswith("does not hold: k_sync/k=4/rate=0.16 10.01")
    remarks = {row[0]: row[-1] for row in next(async_baselines.numbers(made)).rows}
    assert remarks["compensated"] == remarks["hinge"] == "the same as async_sgd"
    _take(by_name["compensated/threshold=100.0/rate=0.16"], 0.7)  # where it does change something
    limited, fastest = found(async_baselines, made)
    assert fastest == (
        "cannot be told: threshold of compensated/threshold=100.0/rate=0.16, the best, is at the "
        "end of its grid"
    )
    remarks = {row[0]: row[-1] for row in next(async_baselines.numbers(made)).rows}
    assert remarks["compensated"] == "threshold at its grid's end"


def _take(arm, level):
    arm |= _scaled(arm, "seconds_to_target", level * 10.01 / arm["seconds_to_target"])
