"""What the sweep over weightings of non-blocking rounds says of itself, on made-up summaries."""

import numpy as np
import pytest

from algorithms import base, gossip
from configs import nonblocking, nonblocking_weightings
from experiments import premises, prepare, records, sweep
from experiments.publishing import verdict_rows
from experiments.studies import weightings as study
from stragglers.schedule import Schedule
from tests.configs import made_up

ARMS = dict(nonblocking_weightings.sweep())
GROUPS = list(dict.fromkeys(name.rpartition("/")[0] for name in ARMS))
LEVEL = {"all_reduce/equal": 0.5, "dpsgd/local_sum": 2.0, "matcha/blocking": 0.25}


def arms():
    """All summaries; some groups end lower or higher than all others."""
    return made_up.arms(
        nonblocking_weightings, level=lambda name: LEVEL.get(name.rpartition("/")[0], 1.0)
    )


@pytest.mark.parametrize("group", GROUPS)
def test_every_weighting_can_run(group):
    name = next(arm for arm in ARMS if arm.startswith(f"{group}/"))
    config = nonblocking_weightings.get_config("workers=4,mini_batches=2,slow=2,alpha=1")
    prepare.prepare(sweep.override(config, ARMS[name] | {"name": name}))
    assert config.delay.factors.to_dict() == {0: 2.0} and config.split.alpha == 1.0


def test_every_mixer_has_all_of_its_weightings_and_its_blocking_rounds_at_all_rates():
    known = {"all_reduce": base.WEIGHTINGS}
    expected = [
        f"{mixer}/{variant}"
        for mixer in nonblocking.MIXERS
        for variant in (*known.get(mixer, gossip.STEP_WEIGHTINGS), "blocking")
    ]
    assert expected == GROUPS
    for group in GROUPS:
        members = [arm for arm in ARMS if arm.rpartition("/")[0] == group]
        rates = nonblocking_weightings.RATES[group.partition("/")[0]]
        assert len(members) == len(rates) >= 5 and list(rates) == sorted(set(rates))
        assert ("wait" in ARMS[members[0]]) == group.endswith("/blocking")
    assert study.default("all_reduce") == "proportional" and study.default("matcha") == "equal"


def test_claims_compare_each_weighting_with_the_default_and_with_blocking_rounds():
    found = dict(study.claims(arms()))
    assert len(found) == 5 + 8
    text = found["all_reduce: equal weights end lower than proportional ones, the default"]
    assert text.startswith("holds: all_reduce/equal/rate=0.2 0.005005 ± 5e-06 against all_reduce/")
    assert "0.50x; difference -0.005" in text and ", paired, p = " in text
    text = found["dpsgd: local_sum weights end lower than equal ones, the default"]
    assert text.startswith("does not hold: ")
    after = "with equal weights non-blocking rounds end lower than blocking ones after the same"
    assert found[f"matcha: {after} time"].startswith("does not hold: matcha/equal/rate=0.05")


@pytest.mark.parametrize(
    ("field", "weights", "rounds"),
    [("seconds", premises.UNKNOWN, premises.UNKNOWN), ("samples", premises.UNKNOWN, None)],
)
def test_ends_are_compared_after_equal_seconds_and_weights_in_equal_rounds(field, weights, rounds):
    """Blocking rounds see fewer samples in the same time."""
    made = [arm | {field: place * 10.0} for place, arm in enumerate(arms(), 1)]
    of = premises.answer(study.ends_below, made, "dpsgd/confidence", "dpsgd/equal", True)
    assert of.verdict == weights and f"the {field} of the arms differ" in of.measured
    found = premises.answer(study.ends_below, made, "dpsgd/equal", "dpsgd/blocking")
    assert (found.verdict == premises.UNKNOWN) == (rounds == premises.UNKNOWN)


def test_rows_of_the_verdicts_need_what_the_claims_need():
    rows = [row for row in verdict_rows.ROWS if row.record == "nonblocking_weightings"]
    assert len(rows) == 8

    def asked(made):
        columns = ("name", "seeds", "samples", "seconds", study.LOSS, f"{study.LOSS}_by_seed")
        cells = [[arm.get(column) for column in columns] for arm in made]
        record = {"arms": {"columns": columns, "rows": cells}}
        return [premises.answer(row.ask, record).verdict for row in rows]

    found = dict(zip((row.claim for row in rows), asked(arms()), strict=True))
    key = "uneven data, {}: {} weights end below {} ones"
    assert found[key.format("all_reduce", "equal", "proportional")] == premises.HOLDS
    assert found[key.format("dpsgd", "local_sum", "equal")] == premises.FAILS
    for broken in (made_up.one_seed, made_up.at_the_edge, made_up.diverged, made_up.missing):
        assert set(asked(broken(arms()))) == {premises.UNKNOWN}
    later = [arm | {"seconds": 10.0 * place} for place, arm in enumerate(arms(), 1)]
    assert set(asked(later)) == {premises.UNKNOWN}
    assert asked(made_up.unequal(arms())).count(premises.UNKNOWN) == 5  # weights of equal rounds


def test_numbers_have_the_best_rate_and_what_the_slow_worker_finished(tmp_path):
    """Two of eight mini-batches in a round of eight workers, 2 / 58."""
    workers, batches = np.arange(8, dtype=np.int32)[None], np.full((1, 8), 8, np.int32)
    batches[0, 0] = 2
    ones = np.ones((1, 8))
    none = np.zeros((1, 8), np.int64)
    done = Schedule(np.ones(1), workers, 0 * ones, ones, batches, none, none, ones, 0 * ones)
    with open(tmp_path / records.SCHEDULE, "wb") as file:
        done.save(file)
    made = [arm | {"workdirs": [tmp_path]} for arm in arms()]
    gone = {study.LOSS: None, f"{study.LOSS}_by_seed": None}
    made = [arm | (gone if arm["name"].startswith("matcha/confidence") else {}) for arm in made]
    (table,) = study.numbers(made)
    assert [row[0] for row in table.rows] == [g for g in GROUPS if g != "matcha/confidence"]
    assert table.rows[1] == (
        "all_reduce/equal", "0.2", "100", "0.005005 ± 5e-06", "90 ± 0 %", "3.4",
    )  # fmt: skip
    shares = table.title.partition("holds ")[2].partition(" %")[0].split(", ")
    assert len(shares) == 3 and all(0 < float(share) < 100 for share in shares)
    (edge,) = study.numbers([arm | {"workdirs": [tmp_path]} for arm in made_up.at_the_edge(arms())])
    assert edge.rows[0][1] == "0.05*"
