"""The figures of an advice: curves over parameters, and who waits for whom."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.advice.ranking import Contender
from experiments.reports import figure, panels, strip_chart, timeline

MOST_WORKERS = 40  # that a map of who waits for whom shows


def curve(
    rule: str, parameter: str, points: Sequence[tuple[float, float]], unit: float
) -> panels.Panel:
    """Predicted seconds against a rule's parameter; unit: the seconds that are drawn as 1."""

    def draw(axes: Axes) -> None:
        values, seconds = np.array(points, float).T
        relative = seconds / unit
        axes.plot(values, relative, color=figure.COLOURS[0], marker="o", markersize=4)
        best = relative.argmin()
        axes.plot(values[best], relative[best], "o", color=figure.COLOURS[1], markersize=8)
        axes.axhline(1.0, color="0.35", linewidth=0.8, linestyle="--")
        figure.plain(axes)
        if values.min() > 0 and values.max() > 20 * values.min():
            axes.set_xlim(0.8 * values.min(), 1.25 * values.max())
            axes.set_xscale("log")
        axes.set(xlabel=parameter, ylabel="predicted time, yours = 1", ylim=(0, None))

    return panels.drawn(f"{rule}: predicted time over {parameter}", draw, f"curve_{rule}")


def waiting(name: str, waits: np.ndarray, lasted: float, prefix: str) -> panels.Panel:
    """Who waits for whom, in percent of each worker's time; waits: [P, P] s."""
    shown = slice(0, MOST_WORKERS)
    share = 100 * waits[shown, shown] / lasted

    def draw(axes: Axes) -> None:
        image = axes.imshow(
            share, cmap="Oranges", vmin=0, vmax=max(1.0, share.max()), aspect="auto"
        )
        axes.set(xlabel="is waited for by the others", ylabel="worker that waits")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.figure.colorbar(image, ax=axes, label="of its time [%]")

    return panels.drawn(f"Who waits for whom under {name}", draw, prefix)


def strips(shown: Mapping[str, Contender]) -> bytes:
    """A PNG of what every worker does at first, a strip per contender; keys are headings."""
    return strip_chart.draw(
        [
            strip_chart.Strip(
                heading,
                timeline.stretches(one.played.schedule, timeline.MOST_STRETCHES),
                one.arm.workers,
            )
            for heading, one in shown.items()
        ]
    )


def ranked(rows: Sequence[tuple[str, float, float, float | None]]) -> bytes:
    """A PNG of 1200 x 500 pixels at most: predicted time with its range, and trained time.

    rows: (name, lowest, highest and trained time), the first at the top, all relative to yours.
    """
    height = 0.9 + 0.26 * len(rows)
    canvas = Figure(figsize=(8, height), dpi=150, layout="constrained")
    axes = canvas.subplots()
    for place, (_, low, high, trained) in enumerate(rows):
        axes.plot([low, high], [place, place], color=figure.COLOURS[0], linewidth=5, alpha=0.5)
        if trained is not None and np.isfinite(trained):
            axes.plot(trained, place, "D", color=figure.COLOURS[1], markersize=5)
    axes.set_yticks(range(len(rows)), [figure.literal(name) for name, *_ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="0.35", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlabel("time to target, yours = 1   (bar: predicted, diamond: trained)", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    return figure.png(canvas)
