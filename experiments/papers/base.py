"""The parts of which a paper's file is made: its sweeps, and panels of arms at their best."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments import stats
from experiments.figures import COLOURS, literal, plain

Records = Callable[[str], Mapping[str, Any]]  # name of a record -> the record


class Sweep(NamedTuple):
    """A record of docs/results and the command that makes it."""

    name: str  # of the record and of its workdir
    arguments: str  # of launch.py, all but the workdir
    hours: float  # expected, on two slow cores of a CPU


def arms(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of a record as summaries over their seeds; [] for an analysis."""
    table = record.get("arms", {"columns": (), "rows": ()})
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


class Panel(NamedTuple):
    """A panel of a figure: groups of arms, each at its best setting, in one quantity."""

    title: str
    record: str
    groups: Mapping[str, str]  # group of arms -> its label
    quantity: str = stats.SECONDS
    label: str = "seconds to the target loss"
    by: str = ""  # the quantity by which the best setting is chosen; "": the one that is shown
    log: bool = False


def dots(panels: Sequence[Panel], records: Records, columns: int = 2) -> Figure:
    """Draw a row per group of arms, 1500 pixels wide, with the mean and every seed.

    The line below explains the dots, and names the groups that never come there.
    """
    rows = -(-len(panels) // columns)
    tall = max(len(panel.groups) for panel in panels)
    canvas = Figure(figsize=(10, rows * (1.1 + 0.27 * tall)), dpi=150, layout="constrained")
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    missing = []
    for axes, panel in zip(places, panels, strict=False):
        missing += _draw(axes, panel, arms(records(panel.record)))
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    words = (
        "A large dot is the mean of the seeds, a small one a seed, and a hollow one lies at the "
        "end of its grid."
    )
    if missing:
        words += f" Left out, as not every seed comes there: {', '.join(dict.fromkeys(missing))}."
    canvas.supxlabel("\n".join(textwrap.wrap(words, 150)), fontsize=8)
    return canvas


def _draw(axes: Axes, panel: Panel, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Draw one panel; return the labels of the groups that have no such number."""
    scale, unit = stats.UNITS.get(panel.quantity, (1.0, ""))
    labels, missing = [], []
    for name, label in panel.groups.items():
        try:
            members = stats.group(found, name)
            best = stats.best(members, panel.by or panel.quantity)
            stats.finite(panel.quantity, best)
        except stats.Inconclusive:
            missing.append(label)
            continue
        inside = not stats.ends(best, members)
        row, values = len(labels), best.get(f"{panel.quantity}_by_seed") or []
        axes.plot(scale * best[panel.quantity], row, "o", color=COLOURS[0], markersize=7,
                  markerfacecolor=COLOURS[0] if inside else "white")  # fmt: skip
        axes.plot(scale * np.array(values), np.full(len(values), row + 0.28), ".",
                  color=COLOURS[1], markersize=5)  # fmt: skip
        labels.append(label)
    axes.set_yticks(range(len(labels)), [literal(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    if panel.log:
        axes.set_xscale("log")
        left, right = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if right > 100 * left else (1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif panel.quantity in (stats.SECONDS, *stats.COUNTED):
        axes.set_xlim(left=0)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.label + (f" [{unit.strip()}]" if unit.strip() in ("MB", "%") else ""),
                    fontsize=9)  # fmt: skip
    plain(axes)
    return missing
