"""The figures of a report as files for a paper: PDF and SVG, each with a legend of its own."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import files
from experiments.reports import beginnings, figure, page, panels, strip_chart, telling, workdirs

FOLDER = "figures"
KINDS = ("pdf", "svg")
SIZE = (4.6, 3.0)  # inches of the axes' part, about a column of a page
LINE = 0.2  # inches of a line of the legend
# Text that stays text: TrueType in a PDF, where some publishers refuse Type 3, and words in an SVG.
_FONTS = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "figure"}


def write(root: str | os.PathLike) -> Path:
    """Write the figures of the finished arms below `root` into its folder `figures`; the folder.

    Raises ValueError where no arm has finished, or a record cannot be read.
    """
    root = Path(root)
    arms, _ = workdirs.gather(root)
    if not arms:
        raise ValueError(f"report: no run below {root} has finished; leave out --paper")
    looks = page.looks_of(arms)
    curves = [(arm.name, arm.runs) for arm in arms]
    target, clock = arms[0].summary["target_loss"], arms[0].summary["clock"]
    chosen = telling.chosen(curves, target)
    names = [name for name, _ in chosen]
    shown = {name: look for name, look in looks.items() if name in names}
    drawings = [
        (one, figure.styles(names)) for one in panels.drawings(chosen, shown, target, clock)
    ]
    if len(chosen) < len(curves):  # names stand beside the curves there
        drawings += [(one, {}) for one in panels.by_group(curves, target, clock)]
    folder = root / FOLDER
    files.make(folder)
    for one, lines in drawings:
        _save(folder / one.name, _canvas(one, lines))
    strips = beginnings.ranked(arms, looks)[: strip_chart.MOST_STRIPS]
    if strips:
        _save(folder / "strips", strip_chart.canvas_of(strips))
    return folder


def _canvas(drawing: panels.Drawing, lines: Mapping[str, Mapping]) -> Figure:
    columns = 2
    rows = -(-len(lines) // columns)
    canvas = Figure(figsize=(SIZE[0], SIZE[1] + LINE * rows), layout="constrained")
    axes: Axes = canvas.subplots()
    drawing.draw(axes)
    if lines:
        handles: Sequence[Line2D] = [
            Line2D([], [], label=figure.literal(name), **line) for name, line in lines.items()
        ]
        canvas.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            fontsize=8,
            frameon=False,
            handlelength=3.2,
        )
    return canvas


def _save(path: Path, canvas: Figure) -> None:
    """Write a figure in all kinds; path: without a suffix."""
    with matplotlib.rc_context(_FONTS):
        for kind in KINDS:
            content = figure.saved(canvas, kind)
            files.write(path.with_name(f"{path.name}.{kind}"), content, durable=False)
