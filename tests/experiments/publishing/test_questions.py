"""What records answer, for and against the claim."""

import pytest

from experiments import premises
from experiments.premises import CannotTell
from experiments.publishing import questions, quoted

RIVALS = ("sparcml", "omnireduce")
DENSE = {"bytes_per_worker": 100.0, "train_loss_by_seed": [1.0, 1.1, 1.2], "fallback_share": None}


def record(fewer="82.5", deviation="0.001", **changes) -> dict:
    """Dense training of two orders, a sketch, and two rivals; changes: of the sketch.

    fewer: percent of the bytes for tables that the sketch saves; deviation: of all steps, in ms.
    """
    arms = {
        "dense": DENSE,
        "dense/reordered": DENSE | {"train_loss_by_seed": [1.0005, 1.1, 1.2]},
        "s2/sketch": DENSE | {"bytes_per_worker": 18.0, "fallback_share": 0.0} | changes,
        "s2/exact": DENSE | {"fallback_share": 0.0},
        "sparcml": DENSE | {"bytes_per_worker": 5.0, "fallback_share": 0.0},
        "omnireduce": DENSE | {"bytes_per_worker": 30.0, "fallback_share": 0.0},
    }
    rows = []
    for name, arm in arms.items():
        losses = arm["train_loss_by_seed"]
        same = {"train_loss": sum(losses) / 3, "samples": 640, "seeds": [0, 1, 2]}
        rows.append({"name": name, **arm, **same})
    columns = list(rows[0])
    tables = [
        {
            "title": "a step at 1 Gbit/s",
            "columns": ["arm", "ms", "deviation [ms]"],
            "rows": [[name, ms, deviation] for name, ms in STEPS.items()],
        },
        {
            "title": "bytes for the tables, and what was lost",
            "columns": ["arm", "fewer bytes [%]"],
            "rows": [["s2/sketch", fewer]],
        },
    ]
    return {
        "arms": {"columns": columns, "rows": [[row[c] for c in columns] for row in rows]},
        "numbers": tables,
    }


STEPS = {"s2/sketch": "2.50", "s2/exact": "2.00", "sparcml": "1.90", "omnireduce": "3.66"}


def saves(**changes) -> premises.Answer:
    asked = {"ours": "s2/sketch", "theirs": "dense", "saved": 0.81}
    return questions.fewer_bytes_at_the_same_loss(record(**changes), **asked)


def test_bytes_and_the_loss_both_count_and_fallbacks_are_named():
    assert saves().verdict == premises.HOLDS and "fell back" not in saves().measured
    assert saves().deviation.endswith("; noise level 0.00029")
    of_all = saves(bytes_per_worker=20.0)
    assert of_all.verdict == premises.HOLDS
    assert of_all.brief.startswith("82.5 % fewer bytes, of all 80.0 %; ")
    assert saves(fewer="80.9").verdict == premises.FAILS
    assert saves(train_loss_by_seed=[1.1, 1.2, 1.3]).verdict == premises.FAILS
    fell = saves(fallback_share=1.0)
    assert "; fell back in 100 %; " in fell.measured and "; fell back in 100 %; " in fell.brief


def test_what_is_sent_is_compared_with_every_rival():
    answer = questions.sends_less(record(), "s2/sketch", RIVALS)
    assert answer.verdict == premises.WHERE
    assert answer.measured == "against 1 of 2: 3.60x sparcml, 0.60x omnireduce"
    fell = questions.sends_less(record(fallback_share=0.5), "s2/sketch", RIVALS)
    assert fell.measured.endswith("omnireduce; fell back in 50 %")
    with pytest.raises(CannotTell, match="no sketch was sent: s2/sketch in 75%"):
        questions.sends_less(record(fallback_share=0.75), "s2/sketch", RIVALS)
    with pytest.raises(CannotTell, match="no sketch was sent: s2/sketch in 75%"):
        questions.sooner_steps(record(fallback_share=0.75), ["s2/sketch"], RIVALS, 1)
    alone = questions.sends_less(record(), "s2/sketch", RIVALS[1:])
    assert alone.verdict == premises.HOLDS
    with pytest.raises(CannotTell, match="no arm parallax"):
        questions.sends_less(record(), "s2/sketch", ("parallax",))


def test_steps_are_of_the_fastest_of_ours():
    def verdict(*rivals, ours=("s2/sketch", "s2/exact"), deviation="0.001"):
        answer = questions.sooner_steps(record(deviation=deviation), ours, rivals, 1)
        return answer.verdict, answer.measured

    shown = "s2/exact: 0.95x sparcml, 1.83x omnireduce"
    assert verdict(*RIVALS) == (premises.WHERE, f"over omnireduce alone: {shown}")
    assert verdict("omnireduce") == (premises.HOLDS, "s2/exact: 1.83x omnireduce")
    assert verdict(*RIVALS, ours=["s2/sketch"])[0] == premises.FAILS
    noisy = (premises.UNKNOWN, f"over omnireduce in the noise: {shown}")
    assert verdict(*RIVALS, deviation="0.1") == noisy


def test_a_record_without_deviations_of_steps_cannot_tell():
    old = record()
    old["numbers"][0]["columns"][-1] = "over dense"
    with pytest.raises(CannotTell, match=r"a step at 1 Gbit/s has no column of deviation \[ms\]"):
        questions.sooner_steps(old, ("s2/sketch",), RIVALS, 1)


def test_a_method_or_a_table_that_is_missing_is_named():
    with pytest.raises(CannotTell, match="no arm parallax in the table of a step at 1 Gbit/s"):
        questions.sooner_steps(record(), ("s2/sketch",), ("parallax",), 1)
    with pytest.raises(CannotTell, match="no table of a step at 10 Gbit/s"):
        questions.sooner_steps(record(), ("s2/sketch",), RIVALS, 10)


def test_a_column_is_of_the_table_of_this_title():
    steps = {name: float(ms) for name, ms in STEPS.items()}
    assert quoted.column(record(), "a step at 1 Gbit/s", "ms") == steps
    with pytest.raises(ValueError, match="not enough values"):
        quoted.column(record(), "a step at 10 Gbit/s", "ms")


@pytest.mark.parametrize(("coarse", "verdict"), [(0.5, "holds"), (0.97, "does not hold")])
def test_forms_of_a_benchmark_by_their_runs(coarse, verdict):
    form = {"nodes": 4, "rate": "100mbit", "runs": 5, "meeting_deviation": 0.01}
    points = [
        form | {"form": "8 bits", "meeting": coarse},
        form | {"form": "float32", "meeting": 1.0},
        form | {"form": "float32", "meeting": 9.0, "rate": "1gbit"},
    ]
    asked = {"ours": "8 bits", "theirs": "float32", "field": "meeting", "factor": 0.9}
    answer = questions.of_points({"summary": {"points": points}}, **asked, rate="100mbit")
    assert (answer.verdict, answer.seeds) == (verdict, 5)
    assert answer.measured.startswith(f"8 bits {coarse} ± 0.01 s against float32 1 ± 0.01 s")


def test_what_a_sweep_printed_of_a_claim():
    printed = {
        "sooner": "holds where: at equal samples: a 1 s against b 2 s; c never; difference -1 s",
        "later": "cannot be told: there is no arm b",
    }
    record = {"claims": [list(claim) for claim in printed.items()], "seeds": 5}
    answer = questions.as_printed(record, lambda claims: claims[0])
    assert str(answer) == printed["sooner"]
    assert (answer.seeds, answer.brief) == (5, "at equal samples: a 1 s against b 2 s")
    answer = questions.as_printed(record, lambda claims: "later")
    assert (str(answer), answer.seeds) == (printed["later"], None)
    with pytest.raises(CannotTell, match="has not judged: never asked"):
        questions.as_printed(record, lambda claims: "never asked")
