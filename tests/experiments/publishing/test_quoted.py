"""Numbers in pages, and the records that they name."""

import json
import re

import pytest

from experiments.publishing import published, quoted

SWEEP = {
    "arms": {
        "columns": ["name", "seconds_to_target", "test_accuracy", "bytes_per_worker", "l_by_seed"],
        "rows": [["a/x", 3.0, 0.9549, 1.25e7, [1.0, 3.0, 2.0]], ["b y", 1.2, 0.9612, 3.2e6, [1.0]]],
    }
}
GRID = {
    "arms": {
        "columns": ["name", "seconds_to_target", "reached"],
        "rows": [["m/K=1/rate=1", 3.0, "2/2"], ["m/K=2/rate=2", 1.5, "2/2"],
                 ["m/K=2/rate=4", None, "0/2"], ["m/K=2/x/rate=1", 0.5, "2/2"]],
    }
}  # fmt: skip
STUDY = {
    "summary": {
        "gap": {"mean": 0.0256},
        "points": [
            {"delay": "pareto", "workers": 8, "seconds": 0.0431},
            {"delay": "pareto", "workers": 16, "seconds": 0.0982},
            {"delay": "pareto, k = 2", "workers": 16, "seconds": 0.2},
        ],
    }
}


@pytest.mark.parametrize(
    ("record", "place", "like", "shown"),
    [
        (SWEEP, "seconds_to_target of a/x", "9.99 s", "3.00 s"),
        (SWEEP, "seconds_to_target of a/x over seconds_to_target of b y", "0.0x", "2.5x"),
        (SWEEP, "test_accuracy of a/x", "9.9 %", "95.5 %"),
        (SWEEP, "test_accuracy of b y minus test_accuracy of a/x", "+9.9 points", "+0.6 points"),
        (
            SWEEP,
            "test_accuracy of a/x minus test_accuracy of b y",
            "9.9 points",
            "\u22120.6 points",
        ),
        (GRID, "seconds_to_target of best m", "9.99 s", "1.50 s"),
        (GRID, "seconds_to_target of best m/K=1 over seconds_to_target of best m", "1x", "2x"),
        (SWEEP, "l_std of a/x", "0.00", "1.00"),
        (SWEEP, "bytes_per_worker of a/x", "about 1 MB", "about 12 MB"),
        (SWEEP, "bytes_per_worker of a/x", "1,000", "12,500,000"),
        (STUDY, "gap.mean", "9.9 %", "2.6 %"),
        (STUDY, "points[delay=pareto, workers=16].seconds", "1 ms", "98 ms"),
        (STUDY, "points[workers=16, delay=pareto, k = 2].seconds", "1 ms", "200 ms"),
    ],
)
def test_a_number_is_shown_in_the_form_of_the_text(record, place, like, shown):
    assert quoted.show(quoted.value(record, place), like) == shown


def test_a_number_is_not_shown_as_zero_unless_it_is():
    with pytest.raises(ValueError, match=r"6.02e-07 MB would be shown as 0.00; .* are in .*bytes"):
        quoted.show(0.602, "0.60 MB")  # megabytes, where bytes are expected
    assert quoted.show(6.02e5, "0.00 MB") == "0.60 MB"
    assert quoted.show(0.0, "1 %") == "0 %" and quoted.show(1e-16, "1.0 points") == "0.0 points"


def page(place, text="1.0x", record="results/one.json"):
    return f'before [{text}]({record} "{place}") after'


def test_a_page_is_written_anew_and_nothing_else_of_it_changes(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.json").write_text(json.dumps(SWEEP))
    ratio = "seconds_to_target of a/x\n  over seconds_to_target of b y"
    text = page(ratio) + "\n[1.0x](https://a.b) [a](results/one.json)"
    made = quoted.refresh(text, tmp_path)
    assert made == text.replace("[1.0x](results", "[2.5x](results")
    assert quoted.refresh(made, tmp_path) == made
    for wrong in (
        page("seconds_to_target of c"), page("seconds of a/x"), page("points[delay=x].seconds"),
        page("seconds_to_target of a/x", text="three"),
        page("seconds_to_target of a/x", record="results/none.json"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="correct the title"):
            quoted.refresh(wrong, tmp_path)


@pytest.mark.parametrize("path", published.pages(), ids=lambda path: path.name)
def test_every_number_of_a_page_is_that_of_its_record(path):
    text = path.read_text(encoding="utf-8")
    advice = "run python -m experiments.publishing.published"
    assert quoted.refresh(text, path.parent) == text, advice


# A number with the unit of a result.
RESULT = re.compile(r"(?<![\w.])[\d.]+ ?(?:x|%|MB|kB|ms|points)(?![\w/])|\b\d+\.\d+ s\b")


@pytest.mark.parametrize("name", ["README.md", "findings.md", "nonblocking.md"])
def test_no_number_in_a_table_of_results_goes_without_its_record(name):
    (path,) = (path for path in published.pages() if path.name == name)
    text = path.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    bare = [re.sub(r"`[^`]*`", "", quoted.QUOTE.sub("", row)) for row in rows]
    assert len(rows) > 15 and not [row for row in bare if RESULT.search(row)]
