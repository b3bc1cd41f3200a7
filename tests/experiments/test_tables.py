"""Rows of the table of arms, from summaries of one seed and of several."""

import io

from rich.console import Console

from experiments import records
from experiments import tables as table


def arm(name, seconds_to_target=10.0, baseline=None, seed=0, **changes):
    return {
        "name": name, "seed": seed, "updates": 1234, "samples": 1263616, "clock": "virtual",
        "seconds": 50.0, "target_loss": 0.368, "seconds_to_target": seconds_to_target,
        "train_loss": 0.12345, "test_accuracy": 0.9712, "idle_fraction": 0.4,
        "bytes_per_worker": 12_345_678, "baseline": baseline,
    } | changes  # fmt: skip


SECONDS = {"blocking": 20.0, "nonblocking": 8.0, "small_batch": None}
ARMS = [arm(f"all_reduce/{name}", seconds, "all_reduce/blocking")
        for name, seconds in SECONDS.items()] + [arm("dpsgd/blocking")]  # fmt: skip


def rows(arms):
    shown = table.of_arms(arms)
    headings = [column.header.replace("\n", " ") for column in shown.columns]
    cells = zip(*(column.cells for column in shown.columns), strict=True)
    return [dict(zip(headings, row, strict=True)) for row in cells]


def test_a_row_says_what_the_summary_says_and_speed_up_is_against_its_own_baseline():
    assert rows(ARMS)[1] == {
        "arm": "all_reduce/nonblocking", "updates": "1,234", "samples": "1,263,616",
        "clock [s]": "50.0", "to target [s]": "8.00", "speed-up": "2.50x", "train loss": "0.123",
        "test acc. [%]": "97.1", "idle [%]": "40.0", "MB per worker": "12.3",
    }  # fmt: skip
    assert [row["speed-up"] for row in rows(ARMS)] == ["1.00x*", "2.50x", "–", "–"]
    assert [row["to target [s]"] for row in rows(ARMS)] == ["20.0", "8.00", "never", "10.0"]
    unknown = arm("a/x", train_loss=None, test_accuracy=None, idle_fraction=None, target_loss=None)
    columns = ("train loss", "test acc. [%]", "idle [%]", "to target [s]")
    assert {rows([unknown])[0][column] for column in columns} == {"–"}
    for value, shown in {0.0: "0", 1234.567: "1,235", 3e-7: "3.00e-07", 2e9: "2.00e+09"}.items():
        assert rows([arm("a/x", train_loss=value)])[0]["train loss"] == shown
    for sent, shown in {276.0: "0.000276", 97_800.0: "0.0978", None: "–", 0: "0"}.items():
        assert rows([arm("a/x", bytes_per_worker=sent)])[0]["MB per worker"] == shown
    fell_back = rows([arm("dense"), arm("s2/sketch", fallback_share=0.125)])
    assert [row["fell back [%]"] for row in fell_back] == [table.NONE, "12.5"]
    assert "fell back [%]" not in rows(ARMS)[0]


def test_values_over_seeds_have_a_spread_and_the_table_fits_120_columns():
    seeds = [arm("a/x", 9.0), arm("a/x", 11.0, seed=1, test_accuracy=0.9512)]
    row = rows([records.aggregate(seeds)])[0]
    assert row["to target [s]"] == "10.0 ± 1.4" and row["test acc. [%]"] == "96.1 ± 1.4"
    partly = records.aggregate([arm("a/x", 9.0), arm("a/x", None, seed=1)])
    assert rows([partly])[0]["to target [s]"] == "1/2 seeds"
    tested = [arm("a", test_samples=900, test_accuracy=share) for share in (0.97, 0.9, None)]
    assert table.of_arms(tested).caption.endswith(  # sqrt(.9 * .1 / 900) is a hundredth
        "; with 900 test samples an accuracy has a standard error of up to 1.0 points"
    )
    again = {"seed": 1, "train_loss": 0.13, "test_accuracy": 0.9}
    out = io.StringIO()
    long = arm("wait=first_finisher(in_flight=cut)/optimizer.learning_rate=0.0001")
    shown = table.of_arms([records.aggregate([a, a | again]) for a in (*ARMS, long)])
    table.print_table(Console(file=out), shown)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 120 and "…" not in out.getvalue()
    assert lines[2].count("[s]") == 2 and "[%]" in lines[2]  # units, and no markup
    assert all(any(line.strip().startswith(a["name"]) for line in lines) for a in ARMS)
