"""What the S2 Reducer experiment says of its arms, on a task small enough for a test."""

import pytest

from configs import s2_reducer
from experiments import codec_times, sweep

SMALL = "ncf(interactions=identifiers(files=60), width=8, hidden=8)"
# Seconds of a gradient, and of an exchange and a step.
SECONDS = {"dense": (0.010, 0.002), "s2/sketch": (0.011, 0.0022), "s2/exact": (0.012, 0.502),
           "parallax": (0.012, 0.002)}  # fmt: skip


LOSSES = {"dense": 2.0, "s2/sketch": 2.02, "s2/exact": 2.0, "parallax": 2.0}


def claims(monkeypatch, of_exact):
    """The claims of four arms and their answers; measured values are given."""
    monkeypatch.setitem(s2_reducer.TASKS, "ncf", (SMALL, 4, 0.01, 9))
    chosen = sweep.expand(s2_reducer.get_config("task=ncf"), s2_reducer, {}, 1)
    arms = [
        {"name": arm.config.name, "config": arm.config, "train_loss": loss, "updates": 9}
        | {"test_hit_rate_10": 0.25, "clock": "virtual"}
        | (of_exact if arm.config.name == "s2/exact" else {})
        for arm in chosen
        for name, loss in (
            ("dense", 2.0),
            ("s2/sketch", 2.02),
            ("s2/exact", 2.0),
            ("parallax", 2.0),
        )
        if arm.config.name == name
    ]
    seconds = iter(SECONDS.values())
    monkeypatch.setattr(codec_times, "step_seconds", lambda arm, config: next(seconds))
    return s2_reducer.claims(arms)


@pytest.fixture
def claimed(monkeypatch):
    return dict(claims(monkeypatch, {"fallback_share": 0.0, "fallback_bytes": 0.0}))


def test_claims_are_figures_of_the_arms(claimed):
    lines = {claim: text.splitlines() for claim, text in claimed.items()}
    saved, loss, at_1, rivals, at_10, _, gathered = lines.values()
    dense = "dense: 0.0 % fewer bytes for the tables, loss +0.00 %, test hit rate at 10 0.25"
    assert saved[0] == f"{dense}, 0.0 % of updates fell back"
    assert saved[1].startswith("s2/sketch: 8") and "loss +1.00 %" in saved[1]
    assert float(saved[1].split()[1]) >= 81 and float(saved[2].split()[1]) > 90
    assert loss[0].startswith("equal bit for bit (not exp") and "+0.00 % (virtual clock)" in loss[0]
    # The fastest gradient counts for all; what is more than in dense training is the codec's.
    plain, sketched, slow, pushed = (float(line.split()[1]) for line in at_1)
    assert plain > sketched > 12 and at_1[0].endswith("1.00x")
    assert "of them 0.20 ms to encode" in at_1[1]
    assert slow > 500 and "do not compress" in at_1[2] and "do not compress" in at_10[2]
    # 1.8x is over other sparse methods: here the one that there is, whose codec is for free.
    assert rivals[0] == (
        f"s2/sketch: {pushed / sketched:.2f}x parallax; {pushed / sketched:.2f}x the best, parallax"
    )
    assert [line.partition(":")[0] for line in rivals] == ["s2/sketch", "s2/exact"]
    assert [line.split()[0] for line in gathered[:3]] == ["4", "8", "32"]
    assert gathered[3].startswith("the all-reduce ")


def test_bytes_that_fallbacks_sent_count(monkeypatch):
    _, text = next(claims(monkeypatch, {"fallback_share": 1.0, "fallback_bytes": 9e6}))
    exact = text.splitlines()[2]
    assert exact.startswith("s2/exact: -") and exact.endswith("100.0 % of updates fell back")


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="unknown task 'gpt'; known tasks: lstm, transformer"):
        s2_reducer.get_config("task=gpt")
