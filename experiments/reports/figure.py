"""A figure of loss against time and against samples, and the lines that tell arms apart."""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from experiments import files

# Okabe and Ito's colours, which differ for any colour vision; the lightest left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX<>"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 1.5, 1, 1.5, 1, 1.5)))


class Curve(NamedTuple):
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def draw(
    curves: Sequence[tuple[str, Sequence[Sequence[Mapping]]]],
    target_loss: float | None,
    clock: str,
) -> Figure:
    """A figure of 1200x500 pixels: training loss against time and against samples.

    curves: (arm's name, the metrics records of each of its seeds). Several seeds are drawn as
        their geometric mean with a band of one standard deviation of the logarithm. For lines
        see `styles`.
    clock: what `seconds` are, "virtual" or "wall".
    """
    lines = styles([name for name, _ in curves])

    canvas = Figure(figsize=(8, 10 / 3), dpi=150, layout="constrained")
    time_axes, sample_axes = canvas.subplots(1, 2, sharey=True)
    for axes, field in ((time_axes, "seconds"), (sample_axes, "samples")):
        for name, runs in curves:
            plot(axes, runs, lines[name], field, label=literal(name) if axes is time_axes else None)
        if target_loss is not None:
            label = f"target {target_loss:.3g}" if axes is time_axes else None
            axes.axhline(target_loss, label=label, color="0.35", linewidth=0.8, linestyle="--")
        logarithmic(axes)
    time_axes.set(xlabel=f"{clock} time [s]", ylabel="training loss")
    sample_axes.set(xlabel="samples seen by all workers")
    sample_axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    entries = len(curves) + (target_loss is not None)
    canvas.legend(
        loc="outside lower center",
        ncols=min(entries, 4),
        fontsize=8,
        frameon=False,
        handlelength=3.2,
    )
    return canvas


def save(canvas: Figure, path: str | os.PathLike) -> None:
    """Write a figure as a PNG; what was there stays if that fails."""
    files.write(path, png(canvas), durable=False)


def png(canvas: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    return saved(canvas, "png")


def saved(canvas: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file; kind: png, pdf or svg, the last two without a date."""
    out = io.BytesIO()
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    canvas.savefig(out, format=kind, metadata=metadata)
    return out.getvalue()


def literal(text: str) -> str:
    """A text as a label shows it, in which $ begins no formula."""
    return text.replace("$", r"\$")


def styles(names: Sequence[str]) -> dict[str, dict]:
    """A line for every arm: the part of its name before "/" chooses the colour, the rest the dash.

    Where that gives two arms the same line, variants differ within their method alone, or
    else every arm has its own combination, up to 35 arms.
    """
    methods, variants = ([name.partition("/")[place] for name in names] for place in (0, 2))
    within = [methods[:place].count(method) for place, method in enumerate(methods)]
    places = range(len(names))
    choices = (
        (_assign(methods, COLOURS), _assign(variants, DASHES)),
        (_assign(methods, COLOURS), [DASHES[count % len(DASHES)] for count in within]),
        (
            [COLOURS[place % len(COLOURS)] for place in places],
            [DASHES[place // len(COLOURS) % len(DASHES)] for place in places],
        ),
    )
    lines = [list(zip(*choice, strict=True)) for choice in choices]
    chosen = next((choice for choice in lines if len(set(choice)) == len(names)), lines[-1])
    return {
        name: {"color": colour, "linestyle": dash, "linewidth": 1.6}
        for name, (colour, dash) in zip(names, chosen, strict=True)
    }


def _assign(keys: Sequence[str], values: Sequence) -> list:
    """Each key's value; every distinct one, in order of appearance, is given the next."""
    given = dict(zip(dict.fromkeys(keys), cycle(values), strict=False))
    return [given[key] for key in keys]


def plot(
    axes: Axes,
    runs: Sequence[Sequence[Mapping]],
    line: Mapping,
    x: str,
    y: str = "train_loss",
    *,
    scale: tuple[Callable, Callable] = (np.log, np.exp),
    label: str | None = None,
) -> Curve:
    """Draw the mean of one arm's runs, and of several a band of one standard deviation."""
    curve = mean_curve(runs, x, y, scale)
    axes.plot(curve.x, curve.mean, label=label, **line)
    if len(runs) > 1:
        axes.fill_between(
            curve.x, curve.low, curve.high, color=line["color"], alpha=0.18, linewidth=0
        )
    return curve


def mean_curve(
    runs: Sequence[Sequence[Mapping]],
    x: str,
    y: str = "train_loss",
    scale: tuple[Callable, Callable] = (np.log, np.exp),
) -> Curve:
    """Mean and spread of the column `y` where all runs have values, in between evaluations.

    scale: a function of the values in which the mean is taken, and its inverse. Values that have
        none, or are not finite, are left out.
    """
    forward, back = scale
    lines = []
    for records in runs:
        points = [(record[x], record[y]) for record in records if record.get(y) is not None]
        column, values = np.reshape(points, (-1, 2)).astype(np.float64).T
        with np.errstate(divide="ignore", invalid="ignore"):
            values = forward(values)
        known = np.isfinite(values)
        if known.any():
            lines.append((column[known], values[known]))
    if not lines:
        return Curve(*np.empty((4, 0)))
    places = np.unique(np.concatenate([line[0] for line in lines]))
    start, end = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    places = places[(start <= places) & (places <= end)]
    values = np.stack([np.interp(places, *line) for line in lines])
    mean, spread = values.mean(0), values.std(0, ddof=1) if len(lines) > 1 else 0.0
    return Curve(places, back(mean), back(mean - spread), back(mean + spread))


def logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with labels that can be read, and the rest plain."""
    axes.set_yscale("log")
    # A loss often spans about a decade, where the default labels hardly anything.
    bottom, top = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 1000 * bottom else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    plain(axes)


def room(axes: Axes, curves: Sequence[tuple[str, Sequence[Sequence[Mapping]]]]) -> None:
    """Cut off what rises far above all first losses: an arm that diverges hides the others."""
    first = [run[0]["train_loss"] or 0.0 for _, runs in curves for run in runs if run]
    bottom, top = axes.get_ylim()
    if top > 4 * max(first, default=top) > bottom:
        axes.set_ylim(top=4 * max(first))


def plain(axes: Axes) -> None:
    """Begin the horizontal axis at 0 and leave out what is only a frame."""
    axes.set_xlim(left=0)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
