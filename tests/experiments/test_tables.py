import io

import pytest
from rich.console import Console

from experiments import aggregates
from experiments import tables as table


def arm(name, seconds_to_target=10.0, baseline=None, seed=0, **changes):
    return {
        "name": name,
        "seed": seed,
        "updates": 1234,
        "samples": 1263616,
        "clock": "virtual",
        "seconds": 50.0,
        "target_loss": 0.368,
        "seconds_to_target": seconds_to_target,
        "train_loss": 0.12345,
        "test_accuracy": 0.9712,
        "idle_fraction": 0.4,
        "bytes_per_worker": 12_345_678,
        "baseline": baseline,
    } | changes


ARMS = [
    arm("all_reduce/blocking", 20.0, "all_reduce/blocking"),
    arm("all_reduce/nonblocking", 8.0, "all_reduce/blocking"),
    arm("all_reduce/small_batch", None, "all_reduce/blocking"),
    arm("dpsgd/blocking"),
]


def rows(arms):
    shown = table.of_arms(arms)
    headings = [column.header.replace("\n", " ") for column in shown.columns]
    cells = zip(*(column.cells for column in shown.columns), strict=True)
    return [dict(zip(headings, row, strict=True)) for row in cells]


def test_a_row_says_what_the_summary_says():
    assert rows(ARMS)[1] == {
        "arm": "all_reduce/nonblocking",
        "updates": "1,234",
        "samples": "1,263,616",
        "clock [s]": "50.0",
        "to target [s]": "8.00",
        "speed-up": "2.50x",
        "train loss": "0.123",
        "test acc. [%]": "97.1",
        "idle [%]": "40.0",
        "MB per worker": "12.3",
    }


def test_the_caption_has_the_largest_standard_error_of_an_accuracy():
    """sqrt(.9 * .1 / 900) is a hundredth; an arm that predicts nothing has none."""
    tested = [arm("a", test_samples=900), arm("b", test_samples=900, test_accuracy=0.9)]
    lost = arm("c", test_samples=900, test_accuracy=None)
    assert table.of_arms([*tested, lost]).caption.endswith(
        "; with 900 test samples an accuracy has a standard error of up to 1.0 points"
    )
    assert "test samples" not in table.of_arms([*ARMS, lost]).caption


def test_speed_up_is_against_the_arms_own_baseline():
    assert [row["speed-up"] for row in rows(ARMS)] == ["1.00x*", "2.50x", "–", "–"]
    assert [row["to target [s]"] for row in rows(ARMS)] == ["20.0", "8.00", "never", "10.0"]


def test_values_over_seeds_have_a_spread():
    seeds = [arm("a/x", 9.0), arm("a/x", 11.0, seed=1, test_accuracy=0.9512)]
    row = rows([aggregates.aggregate(seeds)])[0]
    assert row["to target [s]"] == "10.0 ± 1.4"
    assert row["test acc. [%]"] == "96.1 ± 1.4"
    partly = aggregates.aggregate([arm("a/x", 9.0), arm("a/x", None, seed=1)])
    assert rows([partly])[0]["to target [s]"] == "1/2 seeds"


def test_what_is_not_known_is_a_dash():
    unknown = arm("a/x", train_loss=None, test_accuracy=None, idle_fraction=None, target_loss=None)
    row = rows([unknown])[0]
    columns = ("train loss", "test acc. [%]", "idle [%]", "to target [s]")
    assert {row[column] for column in columns} == {"–"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (1234.567, "1,235"), (0.36788, "0.368"), (3e-7, "3.00e-07"), (2e9, "2.00e+09")],
)
def test_losses_of_any_size_are_readable(value, shown):
    assert rows([arm("a/x", train_loss=value)])[0]["train loss"] == shown


def test_the_table_fits_120_columns():
    arms = [
        aggregates.aggregate([a, a | {"seed": 1, "train_loss": 0.13, "test_accuracy": 0.9}])
        for a in ARMS
    ]
    out = io.StringIO()
    table.print_table(Console(file=out), table.of_arms(arms))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 120 and "…" not in out.getvalue()
    assert lines[2].count("[s]") == 2 and "[%]" in lines[2]  # units, and no markup
    assert all(any(line.strip().startswith(a["name"]) for line in lines) for a in arms)


def test_what_fell_back_has_a_column_where_methods_can():
    shown = rows([arm("dense"), arm("s2/sketch", fallback_share=0.125)])
    assert [row["fell back [%]"] for row in shown] == [table.NONE, "12.5"]
    assert "fell back [%]" not in rows(ARMS)[0]
