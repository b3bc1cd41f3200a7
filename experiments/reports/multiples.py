"""Small multiples: the curves of many arms, group by group, with names at their ends.

Every group has axes of its own with the same scales, in which all other arms are pale.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.reports import figure, telling
from experiments.reports.telling import Runs

PALE = {"color": "0.82", "linewidth": 0.7, "zorder": 1}
PALE_POINTS = 60  # of a pale curve, about
COLUMNS = 2
LINE = 0.085  # of the height of axes, between two names
LONGEST = 22  # characters of a name beside a curve


def draw(curves: Sequence[tuple[str, Runs]], target_loss: float | None, clock: str) -> Figure:
    """Draw training loss against time, 1200 pixels wide, with axes per group of MOST_DRAWN arms."""
    curves = telling.chosen(curves, target_loss, telling.MOST_DRAWN)
    found = telling.groups([name for name, _ in curves])
    rows = -(-len(found) // COLUMNS)
    canvas = Figure(figsize=(8, 2.5 * rows + 0.3), dpi=150, layout="constrained")
    panels = canvas.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
    for axes, (title, names) in zip(panels.flat, found.items(), strict=False):
        group(axes, curves, names, target_loss)
        axes.set_title(figure.literal(title), fontsize=9, loc="left")
    for axes in panels.flat[len(found) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("training loss", fontsize=8)
    for axes in panels.flat[max(0, len(found) - COLUMNS) : len(found)]:
        axes.set_xlabel(f"{clock} time [s]", fontsize=8)
        axes.tick_params(labelbottom=True)
    return canvas


def group(
    axes: Axes,
    curves: Sequence[tuple[str, Runs]],
    names: Sequence[str],
    target_loss: float | None,
    x: str = "seconds",
) -> None:
    """Draw training loss: the arms `names` with their names, all others pale."""
    ends = {}
    places = [str(place) for place in range(len(names))]  # each has a colour of its own
    lines = dict(zip(names, figure.styles(places).values(), strict=True))
    for name, runs in curves:
        if name not in names:
            curve = figure.mean_curve(runs, x)
            every = slice(None, None, max(1, curve.x.size // PALE_POINTS))
            axes.plot(curve.x[every], curve.mean[every], **PALE)
    for name, runs in curves:
        if name in names:
            curve = figure.plot(axes, runs, lines[name], x)
            if curve.x.size:
                ends[name] = (curve.mean[-1], lines[name]["color"])
    if target_loss is not None:
        axes.axhline(target_loss, color="0.35", linewidth=0.8, linestyle="--")
    figure.logarithmic(axes)
    figure.room(axes, curves)
    methods = {telling.method(name) for name in names}
    label_ends(
        axes,
        {
            name.partition("/")[2] or name if len(methods) == 1 else name: end
            for name, end in ends.items()
        },
    )


def label_ends(axes: Axes, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write names beside the right edge of logarithmic axes, apart from each other.

    ends: of each curve its last value and its colour.
    """
    low, high = np.log(axes.get_ylim())
    order = sorted(ends, key=lambda name: ends[name][0])
    wanted = np.array([(np.log(ends[name][0]) - low) / (high - low) for name in order])
    for name, place in zip(order, apart(wanted, LINE), strict=True):
        axes.text(
            1.02,
            place,
            figure.literal(_short(name)),
            color=ends[name][1],
            transform=axes.transAxes,
            fontsize=7,
            verticalalignment="center",
        )


def _short(name: str) -> str:
    """A name with its middle left out where it is too long; variants differ at their ends."""
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST // 2 - 1]}…{name[-LONGEST // 2 :]}"


def apart(wanted: np.ndarray, gap: float) -> np.ndarray:
    """Ascending places as near to the wanted ones as a gap between two allows, from 0 to 1.

    Where there is no room for all gaps, all are the same and smaller.
    """
    count = wanted.size
    gap = min(gap, 1 / max(1, count - 1))
    steps = gap * np.arange(count)
    # The nearest places in order, to what is left of each when the gaps are taken out.
    left = np.maximum.accumulate(np.clip(wanted - steps, 0, 1 - gap * max(0, count - 1)))
    return left + steps
