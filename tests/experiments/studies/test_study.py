"""What the launcher writes and prints of an analysis."""

import io
import json

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from experiments.studies.study import Study, write

CONFIG = ConfigDict({"name": "speed", "seed": 3})


def written(found, place):
    """What is printed, and the names of the files that are there."""
    out = io.StringIO()
    write(found, CONFIG, place, Console(file=out))
    return out.getvalue(), {path.name for path in place.iterdir()}


def test_an_analysis_leaves_its_config_its_numbers_its_figure_and_its_claims(tmp_path):
    table = Table()
    table.add_column("seconds of an update")
    found = Study(
        {"points": [1.5, float("nan")]},
        [table, "a line below"],
        lambda path: path.write_text("x"),
        [("it is fast", "2x")],
    )
    place = tmp_path / "a" / "b"
    out, files = written(found, place)
    assert files == {"config.json", "summary.json", "figure.png"}
    assert json.loads((place / "config.json").read_text()) == {"name": "speed", "seed": 3}
    assert json.loads((place / "summary.json").read_text()) == {
        "name": "speed",
        "points": [1.5, None],
        "claims": [["it is fast", "2x"]],
    }
    order = ["seconds of an update", "a line below", "it is fast", "records: "]
    assert sorted(order, key=out.index) == order
    assert f"figure: {place / 'figure.png'}" in out.replace("\n", "").replace("  ", " ")


def test_what_is_not_given_is_not_written(tmp_path):
    out, files = written(Study({"ratios": []}, ["nothing"]), tmp_path)
    assert files == {"config.json", "summary.json"} and "figure" not in out
    assert json.loads((tmp_path / "summary.json").read_text()) == {"name": "speed", "ratios": []}
