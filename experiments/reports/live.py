"""The part of a page that answers: arms and axes to switch, values under the pointer, zoom.

The page carries all of it: numbers as JSON, plotly.js from the Python package of that name, and
live.js, which draws the one with the other. A page that is opened without scripts shows its still
figures instead.
"""

import base64
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import files
from experiments.reports import figure, strip_chart, telling
from experiments.reports.telling import Runs
from experiments.reports.timeline import KINDS, NANOSECONDS

SCRIPT = Path(__file__).with_name("live.js")
MOST_POINTS = 400  # of a curve, as long as there are no more than MOST_DRAWN arms
MOST_STRIPS = 24
MOST_SPANS = 1200  # of a strip; more take a browser seconds to draw
DIGITS = 6  # of a number in the page
_LOGARITHM = (np.log, np.exp)
_PERCENT = (lambda values: 100 * values, lambda values: values)
# Column of the metrics: what its axis is called; whether it is logarithmic, and how it is averaged.
_ACROSS = {"samples": "samples seen by all workers", "bytes_per_worker": "bytes sent per worker",
           "update": "updates"}  # fmt: skip
_UP = {
    "train_loss": ("training loss", True, _LOGARITHM),
    "test_accuracy": ("test accuracy [%]", False, _PERCENT),
    "consensus_distance": ("consensus distance", True, _LOGARITHM),
}


class Line(NamedTuple):
    """An arm as the live figure shows it."""

    name: str
    runs: Runs
    finished: bool


class Script(NamedTuple):
    """A script of a page and what the page's policy knows it by."""

    text: str
    digest: str  # SHA-256 in base 64


@functools.cache
def scripts() -> tuple[Script, ...]:
    """What a page needs to be live: plotly.js, then ours."""
    package = importlib.util.find_spec("plotly").submodule_search_locations[0]
    paths = (Path(package) / "package_data" / "plotly.min.js", SCRIPT)
    contents = [files.read(path) for path in paths]
    return tuple(
        Script(content.decode(), base64.b64encode(hashlib.sha256(content).digest()).decode())
        for content in contents
    )


def curves(
    lines: Sequence[Line], target_loss: float | None, clock: str, shown: Sequence[str]
) -> dict[str, Any]:
    """What the live figure of curves shows; shown: the arms that it begins with."""
    styles = figure.styles([line.name for line in lines])
    groups = {
        name: title
        for title, names in telling.groups([line.name for line in lines]).items()
        for name in names
    }
    points = max(2, min(MOST_POINTS, MOST_POINTS * telling.MOST_DRAWN // max(1, len(lines))))
    across = {"seconds": f"{clock} time [s]".strip()} | _ACROSS
    arms = [
        {
            "name": line.name,
            "group": groups[line.name],
            "colour": styles[line.name]["color"],
            "dash": _dash(styles[line.name]),
            "shown": line.name in shown,
            "finished": line.finished,
            "curves": {
                up: drawn
                for up, (_, _, scale) in _UP.items()
                if (drawn := {x: _curve(line.runs, x, up, scale, points) for x in across})[
                    "seconds"
                ]
            },
        }
        for line in lines
    ]
    known = {up for arm in arms for up in arm["curves"]}
    return {
        "target": target_loss,
        "across": across,
        "up": {
            up: {"label": label, "logarithmic": logarithmic}
            for up, (label, logarithmic, _) in _UP.items()
            if up in known
        },
        "arms": arms,
    }


def _curve(
    runs: Runs, x: str, y: str, scale: tuple, points: int
) -> list[list[float | None]] | None:
    """Return columns of the mean over runs and, of several, the edges of its band.

    None without values. points: how many there are at most.
    """
    usable = [[record for record in run if x in record] for run in runs]
    curve = figure.mean_curve(usable, x, y, scale)
    if not curve.x.size or not np.any(curve.mean):
        return None
    keep = np.unique(np.linspace(0, curve.x.size - 1, points).round().astype(int))
    columns = curve if len(runs) > 1 else curve[:2]
    return [_rounded(column[keep]) for column in columns]


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in values.tolist()]


def _dash(line: Mapping) -> str:
    """A dash pattern of matplotlib as plotly has it, in pixels."""
    if line["linestyle"] == "-":
        return "solid"
    return ",".join(f"{2 * length:g}px" for length in line["linestyle"][1])


def strips(beginnings: Sequence[strip_chart.Strip]) -> dict[str, Any]:
    """What the live strip shows: of every arm the stretches of its first rounds, as columns."""
    kinds = [{"name": kind, "colour": strip_chart.COLOURS[kind]} for kind in KINDS]
    return {"kinds": kinds, "arms": [_strip(one) for one in beginnings[:MOST_STRIPS]]}


def _strip(strip: strip_chart.Strip) -> dict[str, Any]:
    lanes = strip_chart.lanes_of(strip.first, strip.workers)
    inside = np.flatnonzero(np.isin(strip.first.worker, lanes))[:MOST_SPANS]
    drawn = type(strip.first)(*(column[inside] for column in strip.first))
    return {
        "name": strip.name,
        "workers": lanes.tolist(),
        "until": strip_chart.window([strip.first]),  # s, shown at first
        "worker": drawn.worker.tolist(),
        "kind": drawn.kind.tolist(),
        "begin": _rounded(drawn.begin / NANOSECONDS),
        "seconds": _rounded((drawn.end - drawn.begin) / NANOSECONDS),
        "update": drawn.update.tolist(),
        "mini_batches": drawn.mini_batches.tolist(),
        "staleness": drawn.staleness.tolist(),
        "partner": drawn.partner.tolist(),
        "events": [
            [event.kind, event.worker, event.time]
            for event in strip.events
            if event.worker in lanes
        ],
    }


def numbers(value: Mapping[str, Any], name: str) -> str:
    """Numbers as JSON in an element that runs nothing and that no text in them can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def of_curves(found: Mapping[str, Any]) -> Iterator[str]:
    """The elements of the live figure of curves, hidden until live.js fills them."""
    yield numbers(found, "curves-data")
    yield (
        '<div class="live" id="curves" hidden><p class="switches">'
        '<label>up <select id="curves-up"></select></label> '
        '<label>across <select id="curves-across"></select></label> '
        '<label><input type="checkbox" id="curves-logarithmic"> logarithmic</label></p>\n'
        '<div class="plot" id="curves-plot"></div>\n'
        '<p class="switches"><button type="button" id="curves-all">all arms</button> '
        '<button type="button" id="curves-none">none</button></p>\n'
        '<div class="arms" id="curves-arms"></div></div>'
    )


def of_strips(found: Mapping[str, Any]) -> Iterator[str]:
    """The elements of the live strip, hidden until live.js fills them."""
    yield numbers(found, "strips-data")
    kinds = "".join(
        f'<span class="kind"><span style="background: {colour}"></span>{name}</span>'
        for name, colour in strip_chart.COLOURS.items()
    )
    yield (
        '<div class="live" id="strips" hidden><p class="switches">'
        '<label>arm <select id="strips-arm"></select></label> '
        f'<button type="button" id="strips-whole">whole beginning</button> {kinds}</p>\n'
        '<div class="plot" id="strips-plot"></div></div>'
    )
