"""Training loss above the lowest against virtual time, as a figure (arXiv 1803.01113).

Dotted lines are the levels at which the noise of fresh gradients keeps training, as `noise_floor`
estimates them at the minimum of a convex task. The floor that the paper proves is not drawn: with
the same estimates it lies more than a hundred times as high, and gamma and p0, which it needs for
stale gradients, are not estimated.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look


def draw_error_against_time(
    rows: Mapping[str, Mapping[str, Mapping[str, Sequence[Sequence[Mapping]]]]],
    target_loss: float,
    lowest: float,
    path: str | os.PathLike,
    levels: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> None:
    """Write a PNG of training loss above `lowest` against virtual time, both logarithmic.

    rows: row of panels -> panel, a protocol -> line, a K -> the metrics records of each seed, of
    which the geometric mean is drawn, averaged over a twelfth of a decade of time.
    levels: row -> panel -> line -> loss above `lowest` at which its noise would keep it; None: they
    are not known.
    """
    columns = max(map(len, rows.values()))
    canvas = Figure(figsize=(10, 1 + 2 * len(rows)), dpi=150, layout="constrained")
    panels = canvas.subplots(len(rows), columns, sharex=True, sharey=True, squeeze=False)
    lines, begin = {}, 0.0
    for (row, protocols), of_row in zip(rows.items(), panels, strict=True):
        for (protocol, by_k), axes in zip(protocols.items(), of_row, strict=True):
            for (label, runs), colour in zip(by_k.items(), COLOURS, strict=False):
                seconds, excess = _mean_excess(runs, lowest)
                begin = max(begin, runs[0][0]["train_loss"] - lowest)
                (lines[label],) = axes.plot(seconds, excess, color=colour, linewidth=1.2)
                if levels is not None:
                    level = levels[row][protocol][label]
                    if np.isfinite(level):
                        axes.axhline(level, color=colour, linewidth=1, linestyle=":")
            axes.axhline(target_loss - lowest, color="0.35", linewidth=0.8, linestyle="--")
            axes.set_title(f"{protocol}, {row}", fontsize=7.5)
    for axes in panels.flat:
        axes.set(xscale="log", yscale="log")
        axes.set_ylim(top=2 * begin)  # who diverges leaves
        look.logarithmic(axes)
    canvas.supxlabel("virtual time [s]", fontsize=9)
    known = f" above the lowest, {lowest:.4g}" if lowest else ""
    canvas.supylabel(f"training loss{known}", fontsize=9)
    lines[f"target {target_loss:.3g}"] = Line2D([], [], color="0.35", linewidth=0.8, linestyle="--")
    if levels is not None:
        dotted = Line2D([], [], color="0.35", linewidth=1, linestyle=":")
        lines["level of the noise without staleness"] = dotted
    canvas.legend(
        lines.values(),
        lines.keys(),
        loc="outside upper center",
        ncols=len(lines),
        fontsize=8,
        frameon=False,
    )
    save(canvas, path)


def draw_final_losses(
    lines: Mapping[str, Mapping[float, float]], lowest: float, path: str | os.PathLike
) -> None:
    """Write a PNG of 1050x630 pixels: loss at the end above `lowest` against the learning rate.

    lines: label -> rate -> final loss, infinite where it diverged, which is left out.
    """
    canvas = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = canvas.subplots()
    for (label, losses), colour in zip(lines.items(), COLOURS, strict=False):
        points = [(rate, loss - lowest) for rate, loss in sorted(losses.items())]
        points = [point for point in points if np.isfinite(point[1])]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="learning rate eta")
    known = f" above the lowest, {lowest:.4g}" if lowest else ""
    axes.set_ylabel(f"training loss at the end{known}")
    look.logarithmic(axes)
    canvas.legend(loc="outside upper center", ncols=len(lines), fontsize=8, frameon=False)
    save(canvas, path)


def _mean_excess(runs, lowest: float) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, loss above `lowest`): geometric means over seeds and over short spans of time."""
    moments = [at for at in zip(*runs, strict=False) if None not in [r["train_loss"] for r in at]]
    seconds = np.array([at[0]["seconds"] for at in moments[1:]])
    losses = np.array([[record["train_loss"] for record in at] for at in moments[1:]])
    losses = losses.reshape(-1, len(runs))  # nothing at all, if it diverges at once
    logs = np.log(np.maximum(losses - lowest, 1e-9)).mean(1)
    # As many spans per decade everywhere, or the noise of the end would hide its mean.
    span = np.round(12 * np.log10(seconds)).astype(int)
    spans = np.unique(span)
    means = [[np.mean(values[span == s]) for s in spans] for values in (seconds, logs)]
    return np.array(means[0]), np.exp(means[1])
