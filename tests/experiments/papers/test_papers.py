"""Rows of every paper against their records, and the comparisons that rows alone cannot say."""

import numpy as np

from experiments import publish, stats
from experiments.papers import s2_reducer
from experiments.stats import FAILS, HOLDS, INCONCLUSIVE, arms, judge

ROWS = [(claim, claim.record) for paper in publish.papers() for claim in paper.CLAIMS]


def test_every_row_is_judged_on_its_record_and_names_are_used_once():
    for claim, name in ROWS:
        found = judge(claim, arms(publish.record(name)), publish.record(name))
        assert found.verdict in stats.VERDICTS
        assert "there is no" not in found.reason, (claim.claim, found.reason)
    papers = publish.papers()
    for names in ([sweep.name for paper in papers for sweep in paper.SWEEPS],
                  [paper.TITLE for paper in papers],
                  [(claim.claim, name) for claim, name in ROWS]):  # fmt: skip
        assert len(names) == len(set(names))


def broken(found):
    """Give arms that lost a seed on the way, whose losses diverged, after unequal work."""
    for place, arm in enumerate(found, 1):
        lost = {key: None for key in arm if key.startswith(("seconds_to", "updates_to"))}
        lost |= {key: None for key in arm if "loss" in key or "accuracy" in key}
        counts = {key: place * arm[key] for key in ("samples", "bytes_per_worker") if key in arm}
        yield arm | lost | counts | {"reached": "0/3", "updates": 1, "updates_by_seed": None,
                                     "seeds": [0], "staleness_mean_by_seed": None}  # fmt: skip


def test_no_row_is_decided_by_arms_that_have_lost_what_it_needs():
    for claim, name in ROWS:
        if "arms" in (record := publish.record(name)):
            found = judge(claim, list(broken(arms(record))), {"numbers": []})
            assert found.verdict == INCONCLUSIVE and found.reason, (claim.claim, found)


def made(name, seconds=10.0, end=1.0, **changes):
    """Return an arm of three seeds that differ by a thousandth."""
    found = {"name": name, "seeds": [0, 1, 2], "reached": "3/3", "samples": 1.0, "seconds": 50.0}
    for quantity, value in ((stats.SECONDS, seconds), (stats.END, end)):
        values = [value * (1 + 1e-3 * seed) for seed in range(3)]
        found |= {quantity: float(np.mean(values)), f"{quantity}_by_seed": values}
    return found | changes


def sparse(loss=0.5, fewer="82.0", ms="20.0"):
    """Return arms of S2 Reducer and the tables of their record."""
    names = (s2_reducer.AS_PUBLISHED, s2_reducer.DENSE, s2_reducer.REORDERED, "omnireduce")
    found = [made(name) for name in names]
    for arm in found:
        level = loss if arm["name"] == s2_reducer.AS_PUBLISHED else 0.5
        off = 1e-3 if arm["name"] == s2_reducer.REORDERED else 0.0
        values = [level + off + 1e-5 * seed for seed in range(3)]
        arm |= {"train_loss": float(np.mean(values)), "train_loss_by_seed": values}
    tables = [
        {"title": s2_reducer.TABLES, "columns": ["arm", "fewer bytes [%]"],
         "rows": [[s2_reducer.AS_PUBLISHED, fewer]]},
        {"title": "a step at 1 Gbit/s", "columns": ["arm", "ms", "deviation [ms]"],
         "rows": [[name, ms if name == "omnireduce" else "10.0", "0.1"] for name in names]},
    ]  # fmt: skip
    return found, {"numbers": tables}


def test_sketches_are_judged_by_bytes_losses_and_steps():
    assert s2_reducer.fewer_bytes(*sparse()).verdict == HOLDS
    assert s2_reducer.fewer_bytes(*sparse(fewer="80.9")).verdict == FAILS
    assert s2_reducer.fewer_bytes(*sparse(loss=0.6)).verdict == FAILS
    assert s2_reducer.faster(*sparse()).verdict == HOLDS
    assert s2_reducer.faster(*sparse(ms="17.0")).verdict == FAILS


def test_every_panel_of_a_figure_shows_numbers():
    for paper in publish.papers():
        panels = [axes for axes in paper.figure(publish.record).axes if axes.get_visible()]
        assert panels, paper.TITLE
        for axes in panels:
            lines = sum(np.isfinite(line.get_ydata()).any() for line in axes.lines)
            assert lines >= 4, (paper.TITLE, axes.get_title())
