"""The picture of goodput: which share of their time learners keep while some of them fail.

Two panels are drawn from the record of `configs/goodput.py`, in which schedules were simulated, and
one from the record of `configs/goodput_real.py`, in which processes were killed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MultipleLocator

from experiments import formats
from experiments.publishing import published
from experiments.reports import figure
from experiments.studies import axes as look

TEXT = """\
## Learners that fail
![Share of the learners' time that counts, against their number and against failures](\
gallery/failures.png)

In a simulation Decoupled DiLoCo keeps as large a share of its learners' time with many of them as
with few. Elastic all-reduce, and DiLoCo, in which all wait for the lost one, lose more with every
learner. Asynchronous DiLoCo keeps as much as Decoupled DiLoCo, with pushes that are far older.
Where real processes are killed Decoupled DiLoCo keeps a larger share than DiLoCo.

```
{}
```
"""
SIMULATED, REAL = "goodput", "goodput_real"
METHODS = ("Decoupled DiLoCo", "asynchronous DiLoCo", "DiLoCo", "elastic all-reduce")
LOOKS = {
    method: {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.5}
    for method, colour, marker in zip(METHODS, figure.COLOURS, figure.MARKERS, strict=False)
}
# It lies on Decoupled DiLoCo, and both are to be seen.
LOOKS["asynchronous DiLoCo"] |= {"markerfacecolor": "none", "markersize": 9, "linestyle": ":"}
THERE = "time in which learners were there"
NOTE = (
    "Simulated goodput is the share of all learners' time that goes into mini-batches which count. "
    "Of real processes it is samples per second\n"
    "with kills over samples per second without: a large marker is the mean of the seeds, a dot is "
    "one seed, and a dash is the share of its learners' time without absences."
)


class Records(NamedTuple):
    """What the picture is drawn from: the summaries of two analyses."""

    simulated: Mapping[str, Any]
    real: Mapping[str, Any]


def read() -> Records:
    """The summaries of both records."""
    return Records(*(_record(name)["summary"] for name in (SIMULATED, REAL)))


def commands() -> list[str]:
    """What made the records."""
    return [_record(name)["command"] for name in (SIMULATED, REAL)]


def _record(name: str) -> dict[str, Any]:
    return published.record(name, formats.PUBLISHED_ANALYSIS)


def draw(records: Records) -> Figure:
    """A picture of 1500 pixels' width: goodput by learners, by failures, and of real processes."""
    canvas = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    columns = canvas.subplots(1, 3, sharey=True, width_ratios=(6, 6, 5))
    by_workers, by_between = records.simulated["by_workers"], records.simulated["by_between"]
    _lines(columns[0], by_workers, [point["workers"] for point in by_workers])
    _lines(columns[1], by_between, [point["between"] / 3600 for point in by_between])
    _seeds(columns[2], records.real["methods"])
    columns[0].set(xlabel="learners", ylabel="goodput")
    columns[1].set_xlabel("hours of work between two failures of a learner")
    for axes, title in zip(
        columns,
        (
            f"simulated, each fails after {by_workers[0]['between'] / 3600:g} h of work",
            f"simulated, {by_between[0]['workers']} learners",
            "real processes, some killed",
        ),
        strict=True,
    ):
        axes.set_title(title, fontsize=10)
        look.linear(axes)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MultipleLocator(0.2))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    there = Line2D([], [], color="0.4", marker="_", markersize=10, linestyle="", label=THERE)
    lines, _ = columns[0].get_legend_handles_labels()
    canvas.legend(
        handles=[*lines, there], loc="outside upper center", ncols=5, fontsize=8, frameon=False
    )
    canvas.supxlabel(NOTE, fontsize=8)
    return canvas


def _lines(axes: Axes, points: Sequence[Mapping[str, Any]], places: Sequence[float]) -> None:
    """A line per method over `places`, one for every point."""
    for method in METHODS:
        line = [
            (place, point["goodput"])
            for place, point in zip(places, points, strict=True)
            if point["method"] == method
        ]
        axes.plot(*zip(*line, strict=True), label=method, **LOOKS[method])
    axes.set_xscale("log", base=2)
    look.ticks(axes, places)


def _seeds(axes: Axes, methods: Sequence[Mapping[str, Any]]) -> None:
    """A mean per method, its seeds as dots, and how long their learners were there."""
    for place, method in enumerate(methods):
        line = LOOKS[method["name"]]
        aside = place + np.linspace(0.14, 0.34, len(method["share_by_seed"]))
        axes.plot(aside, method["there_by_seed"], "_", color="0.4", markersize=10)
        axes.plot(aside, method["share_by_seed"], ".", color=line["color"], markersize=6)
        axes.plot(place, method["share"], line["marker"], color=line["color"], markersize=8)
    axes.set_xticks(range(len(methods)), [method["name"] for method in methods])
    axes.set_xlim(-0.5, len(methods) - 0.5)
