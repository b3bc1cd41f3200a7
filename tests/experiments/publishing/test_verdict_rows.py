"""Every row of the verdicts, fed with a record that breaks what its question presupposes."""

import importlib
import re
from functools import cache, partial

import pytest

from experiments import formats, premises
from experiments.publishing import published, questions, verdicts
from experiments.publishing.verdict_rows import ROWS, row
from experiments.studies import (
    async_baselines,
    matcha,
    real_protocols,
    s2_reducer,
    slow_and_stale,
    swarm,
    swarm_epochs,
)
from tests.configs import made_up


def other_seconds(made) -> list[dict]:
    """Every arm has trained for another time."""
    return [arm | {"seconds": 10.0 * place} for place, arm in enumerate(made, 1)]


def few(made) -> list[dict]:
    """Too few updates for a mean of their seconds."""
    return [arm | {"updates": 29} for arm in made]


def never_measured(made) -> list[dict]:
    """Staleness is not known, as in records of an older version."""
    return [arm | {"staleness_mean": None} for arm in made]


def without_tables(made) -> list[dict]:
    """The arms are whole; a sweep without tables of numbers has no more than these."""
    return made


OWN = (other_seconds, few, never_measured, without_tables)
BREAKS = made_up.BREAKS | {each.__name__: each for each in OWN}
# Question, or the study's function by which it judges: what is broken in turn. No arm but the first
# is "missing".
ALWAYS = ("missing",)
TO_TARGET = (*ALWAYS, "never", "one_seed", "diverged")
AT_THE_END = (*ALWAYS, "one_seed", "at_the_edge", "diverged")
SWEEPS = {
    questions.as_printed: (*TO_TARGET, "at_the_edge"),
    questions.at_most: TO_TARGET,
    questions.accuracy: (*ALWAYS, "unequal", "one_seed", "diverged"),
    questions.half_the_bytes: (*ALWAYS, "unequal", "one_seed", "diverged"),
    questions.tuned: (*TO_TARGET, "at_the_edge"),
    questions.tuned_among: AT_THE_END,
    questions.tuned_after: AT_THE_END,
    questions.tuned_bytes: (*ALWAYS, "unequal", "at_the_edge", "diverged"),
    questions.compensated: AT_THE_END,
    questions.fewer_bytes_at_the_same_loss: (
        *ALWAYS, "unequal", "one_seed", "diverged", "without_tables",
    ),
    questions.sends_less: (*ALWAYS, "unequal"),
    questions.sooner_steps: (*ALWAYS, "without_tables"),
    async_baselines.better_left_out: (*TO_TARGET, "at_the_edge"),
    async_baselines.nearly_optimal: (*TO_TARGET, "at_the_edge"),
    matcha.five_times: (*TO_TARGET, "at_the_edge"),
    real_protocols.follows_the_simulation: (*ALWAYS, "one_seed", "few"),
    real_protocols.ends_as_low: (*ALWAYS, "one_seed", "few", "diverged"),
    real_protocols.is_as_stale: (*ALWAYS, "one_seed", "few", "never_measured"),
    slow_and_stale.at_a_common_rate: TO_TARGET,
    slow_and_stale.at_tuned_rates: (*TO_TARGET, "at_the_edge"),
    swarm.sooner_at_best_steps: (*TO_TARGET, "at_the_edge"),
    swarm.within: TO_TARGET,
    swarm_epochs.more_accurate: (*ALWAYS, "one_seed", "diverged"),
    swarm_epochs.within: (*ALWAYS, "one_seed", "diverged"),
}  # fmt: skip
BY_WHAT_IS_EQUAL = {
    "samples": "unequal", "bytes_per_worker": "unequal", "seconds": "other_seconds",
}  # fmt: skip
# Question: summaries of an analysis that lack what it presupposes.
ONE_RUN = {"share": 0.8, "share_std": None, "seeds": [0]}
POINT = {"method": "swarm/H=1", "workers": 8, "mean": 1.0, "error": 0.0}
LEARNERS = {"workers": 8, "between": 1.0, "goodput": 0.9, "taking_part": None, "staleness": None}
FORM = {
    "nodes": 4, "rate": "100mbit", "runs": 3, "meeting": 1.0, "meeting_deviation": 0.1,
    "seconds": 9.0, "seconds_deviation": 0.1,
}  # fmt: skip
TWO_RUNS = {"runs": 2, "median": 0.1, "worst": 0.1, "constant_median": 0.2, "constant_worst": 0.2,
            "beyond_constant": None, "correlation": None}  # fmt: skip
ANALYSES = {
    questions.does_not_grow: ({"points": []}, {"points": [POINT]}),
    questions.in_theory: ({"points": [], "by_workers": []},),
    questions.keeps_more: (
        {"by_workers": []},
        {"by_workers": [{"method": "Decoupled DiLoCo", **LEARNERS}]},
        {"by_workers": [{"method": method, **LEARNERS}
                        for method in ("Decoupled DiLoCo", "elastic all-reduce")]},
    ),
    questions.of_methods: (
        {"methods": []},
        {"methods": [{"name": name, **ONE_RUN} for name in ("DiLoCo", "Decoupled DiLoCo")]},
    ),
    questions.of_points: (
        {"points": []},
        {"points": [FORM | {"form": "8 bits"}, FORM | {"form": "float32", "runs": 1}]},
        {"points": [FORM | {"form": form, "meeting": None, "seconds": None}
                    for form in ("8 bits", "float32")]},
    ),
    questions.skilled: (
        {"errors": []},
        {"errors": [{"baseline": name, "median": 0.1, "constant_median": 0.2, "runs": 9}
                    for name in ("single", "wfbp", "byte_scheduler")]},
        {"errors": [TWO_RUNS | {"baseline": name}
                    for name in ("single", "wfbp", "byte_scheduler")]},
    ),
}  # fmt: skip


def question(one):
    """What decides on a row: its question, or the study's function."""
    asked = one.ask if isinstance(one.ask, partial) else partial(one.ask)
    return asked.keywords.get("judge", asked.func)


def broken_by(one) -> list[str]:
    """How the record of a row can be broken: as its question says, and by its arguments."""
    asked = one.ask.keywords
    spent = [BY_WHAT_IS_EQUAL[field] for field in asked.get("equal", ())]
    if asked.get("field") == questions.SECONDS:
        spent.append("never")
    if asked.get("pick") is swarm.at_best:
        spent.append("at_the_edge")
    if question(one) is questions.tuned_among:
        spent.append("other_seconds" if asked.get("field") == questions.END else "never")
    return list(dict.fromkeys([*SWEEPS[question(one)], *spent]))


@cache
def published_record(name):
    return formats.read(published.FOLDER / f"{name}.json", formats.PUBLISHED)


def config_of(name):
    """The config behind a record, and its argument."""
    path, argument = re.search(
        r"--config=(\S+)\.py:?(\S*)", published_record(name)["command"]
    ).groups()
    return importlib.import_module(path.replace("/", ".")), argument or None


@cache
def arms(name):
    """Made-up arms of the sweep behind a record."""
    made = made_up.arms(*config_of(name))
    return [arm | {"test_samples": 20_000, "fallback_share": 0.0} for arm in made]


@cache
def record(name, broken):
    """A record of the made-up arms, with its claims and the published tables of those there."""
    made = BREAKS[broken](arms(name)) if broken else arms(name)
    found = published._of_sweep({"arms": made})
    if any(question(one) is questions.as_printed for one in ROWS if one.record == name):
        found["claims"] = list(config_of(name)[0].claims(made))
    there = {arm["name"] for arm in made}
    if broken == "without_tables":
        return found
    tables = [table | {"rows": [cells for cells in table["rows"] if cells[0] in there]}
              for table in published_record(name).get("numbers", ())]  # fmt: skip
    return found | {"numbers": tables}


OF_SWEEPS = [one for one in ROWS if question(one) in SWEEPS]
CASES = [(one, broken) for one in OF_SWEEPS for broken in broken_by(one)]


def named(one) -> str:
    return f"{one.record}: {one.claim}"


def test_it_is_known_of_every_question_what_it_presupposes():
    asked = {question(one) for one in ROWS}
    assert asked == SWEEPS.keys() | ANALYSES.keys()


@pytest.mark.slow
def test_rows_whose_premises_are_met_are_judged():
    found = [premises.answer(one.ask, record(one.record, None)).verdict for one in OF_SWEEPS]
    assert found.count(premises.UNKNOWN) < len(found) / 10


@pytest.mark.few(100)
@pytest.mark.parametrize(
    ("one", "broken"), CASES, ids=lambda x: x if isinstance(x, str) else named(x)
)
def test_a_row_whose_premise_is_broken_cannot_be_judged(one, broken):
    answer = premises.answer(one.ask, record(one.record, broken))
    assert answer.verdict == premises.UNKNOWN
    assert answer.measured and not answer.measured.startswith(premises.NOISE)


@pytest.mark.parametrize("one", [one for one in ROWS if question(one) in ANALYSES], ids=named)
def test_an_analysis_that_lacks_something_cannot_be_judged(one):
    for summary in ANALYSES[question(one)]:
        assert premises.answer(one.ask, {"summary": summary}).verdict == premises.UNKNOWN


def test_the_table_and_the_claims_that_sweeps_printed_agree():
    """Where both measured the same, of a claim of a paper, their verdicts are the same."""
    compared = 0
    for one, answer in verdicts.answers(published.FOLDER):
        measured = answer.measured.replace(premises.NOISE, "")
        twins = [text.partition(": ")[0] for _, text in published_record(one.record)["claims"]
                 if measured in text.replace(premises.NOISE, "")]  # fmt: skip
        printed = question(one) is questions.as_printed  # which are twins of themselves
        if twins and one.paper != row.UNCLAIMED and not printed:
            compared += 1
            assert answer.verdict in twins, named(one)
    assert compared > 100


def test_p_values_are_judged_beside_all_the_others():
    """The k-th of m in order is compared with .05 k / m, and takes those before it along."""

    def said(*values):
        rows = [["", "", "", "", f"paired, p = {value}"] for value in values]
        return verdicts.of_many_tests(rows)

    text = said(0.9, 0.04, 0.02, 0.01, 0.03)
    assert "5 p-values, of which 4 are below 0.05." in text
    assert "4 of them stand" in text and "p up to 0.04" in text
    assert "1 of them stand" in said(0.001, *[0.04] * 3, *[0.9] * 6)
    assert "0 of them stand" in said(0.9) and "up to" not in said(0.9)


def test_verdicts_that_change_where_other_seeds_choose_are_counted(monkeypatch):
    """Of three rows the best of a grid that luck has made, one that is clear, and one without."""

    def grid(name, *values):
        return [
            {"name": f"{name}/rate={rate}", "train_loss": sum(seeds) / 3, "reached": "3/3",
             "train_loss_by_seed": list(seeds), "seeds": [0, 1, 2]}
            for rate, seeds in enumerate(values)
        ]  # fmt: skip

    rival = {"name": "rival", "train_loss": 2.9, "train_loss_by_seed": [2.9, 2.8, 3.0],
             "seeds": [0, 1, 2], "reached": "3/3"}  # fmt: skip
    lucky = grid("lucky", (0.0, 3.0, 3.0), (3.0, 0.5, 3.0), (3.0, 3.0, 1.0))
    clear = grid("clear", (4.0, 4.1, 4.2), (1.0, 1.1, 1.0), (4.0, 4.1, 4.2))

    def answers(folder):
        for arms in (lucky, clear, [rival]):
            best = premises.best(arms, "train_loss")
            yield None, premises.at_most(best, rival, "train_loss", factor=0.95)

    monkeypatch.setattr(verdicts, "answers", answers)
    text = verdicts.of_seeds_apart(published.FOLDER)
    assert "1 of 3 verdicts differ: 1 from *cannot be told* to *does not hold*." in text


def test_only_the_decoder_of_the_paper_is_judged_by_what_the_paper_claims():
    of_sketches = [one for one in ROWS if one.record.startswith("s2_")]
    assert of_sketches
    for one in of_sketches:
        ours = one.ask.keywords["ours"]
        published_one = ours in (s2_reducer.AS_PUBLISHED, (s2_reducer.AS_PUBLISHED,))
        assert published_one == (one.paper != row.UNCLAIMED), one.claim
