"""What the claims of the asynchronous experiments say of made-up records."""

import math

from configs import adasync, async_baselines, slow_and_stale
from experiments import sweep

# What a protocol's updates cost and bring, so that no two arms are alike.
ORDER = {group: place for place, group in enumerate(slow_and_stale.GROUPS)}


def summary(file, name, changes, seconds, loss):
    return {
        "name": name,
        "config": sweep.override(file.get_config(), changes),
        "target_loss": 1.0,
        "seconds_to_target": seconds,
        "final_train_loss": loss,
    }


def arms(**changed):
    """Groups in their order are ever later at the target and end ever lower; rate 0.4 is best."""
    made = []
    for name, changes in slow_and_stale.sweep():
        group, _, rate = name.rpartition("/rate=")
        place = ORDER.get(group, 0)
        off = abs(math.log(float(rate) / 0.4))
        seconds, loss = 10.0 + place + off, 0.9 - 0.01 * place + 0.001 * off
        made.append(summary(slow_and_stale, name, changes, seconds, loss))
    return [arm | changed.get(arm["name"], {}) for arm in made]


def test_claims_name_who_is_first_and_who_ends_lowest():
    commonly, first, tuned, grid, compensated = slow_and_stale.claims(arms())
    for claim, measured in (commonly, first, tuned):
        assert "first at a loose loss does not end lowest" in claim
        early, low, verdict = measured.split("\n")
        assert early.startswith("first at 1: k_sync/K=1 (")
        assert low.startswith("lowest: k_batch_async/K=8 (") and verdict == "they differ"
    assert "(10.9 s, ends at 0.9009; rate 0.16)" in commonly[1]
    assert "(10.0 s, ends at 0.9; rate 0.4)" in first[1]
    assert grid[1].count("rate 0.4; rate 0.4") == len(slow_and_stale.GROUPS)
    assert "k_async/K=1/rate=1.0: ends at" in compensated[1]


def test_claims_say_what_is_not_so():
    """A rate at the end of its grid, a target that is never reached, a loss that is not finite."""
    best = {"seconds_to_target": 1.0, "final_train_loss": 0.1}
    never = {"seconds_to_target": None, "final_train_loss": None}
    changed = {"k_sync/K=2/rate=2.5": best, "k_async/K=1/rate=1.0": never}
    _, first, _, grid, compensated = slow_and_stale.claims(arms(**changed))
    assert first[1].endswith("they are the same")
    assert "k_sync/K=2 (1.0 s, ends at 0.1; rate 2.5 at the grid's end)" in first[1]
    assert "k_sync/K=2: rate 2.5 at the grid's end; rate 2.5 at the grid's end" in grid[1]
    assert "k_async/K=1/rate=1.0: ends at infinity" in compensated[1]


def metrics(seconds, floor):
    """A loss that falls from 2 by the factor e in `seconds`, down to a floor."""
    return [
        {"seconds": t, "train_loss": max(2 * math.exp(-t / seconds), floor)}
        for t in (0.0, 10.0, 100.0)
    ]


def test_adasync_is_compared_with_the_best_fixed_k_that_reaches_the_target():
    pace = {"fixed/K=1": (5.0, 0.32), "fixed/K=2": (8.0, 0.0), "adasync": (10.0, 0.0)}
    summaries = [{"name": name, "metrics": 2 * [metrics(*p)]} for name, p in pace.items()]
    loose, _, tight, tightest = adasync.claims(summaries)
    assert loose[1].startswith("1.83x: 6.9 s against K=1 3.8 s, K=2 5.5 s")
    assert tight[1].startswith("1.83x") and "train loss 0.35" in tight[0]
    assert tightest[1].startswith("1.25x: 19.0 s against K=1 never, K=2 15.2 s")
    summaries[-1]["metrics"][1] = metrics(5.0, 0.32)
    assert [*adasync.claims(summaries)][-1][1] == "a target was not reached by every seed"


def test_the_best_of_every_baseline_is_ranked():
    fast = "ringmaster_ignore/limit=8/rate=0.4"
    made = [
        summary(async_baselines, name, changes, 50.0 if name == fast else 100.0, 0.8)
        for name, changes in async_baselines.sweep()
    ]
    ranking, limited, fastest = async_baselines.claims(made)
    assert ranking[1].startswith("  50.0 s  ringmaster_ignore (limit=8, rate=0.4)\n")
    assert len(ranking[1].split("\n")) == len(async_baselines.METHODS)
    assert "rate at the grid's end" in ranking[1]
    assert limited[1] == "ringmaster_ignore takes 0.50x the time of Async-SGD"
    assert fastest[1] == "k_sync takes 1.00x the time of Async-SGD"
