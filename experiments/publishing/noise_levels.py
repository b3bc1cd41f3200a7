"""The picture of how low SGD ends at a fixed rate, beside two theories of it.

The losses are from the record of `configs/slow_and_stale.py`. Both theories take their constants
from the minimum of its convex task; `experiments.studies.noise_floor` says how and what they lack.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from experiments import premises
from experiments.publishing import compensated, published
from experiments.publishing.compensated import CHANCE, RECORD, Records
from experiments.reports import figure
from experiments.studies import axes as look
from experiments.studies import noise_floor
from experiments.studies.slow_and_stale import GROUPS, LOSS, K

TEXT = """\
## How low noise lets SGD end, in theory
![Training loss at the end against the rate over K, with theory](gallery/noise_levels.png)

Every K of the protocols without staleness comes, at some of its rates, to the level at which the
noise of fresh gradients keeps a quadratic loss (dotted). At the lowest rates training has not come
down in time, and at the highest ones it ends above the level, or there is none. Stale gradients end
near the level as well, but far above it at high rates. The floor that the paper of these protocols
proves (dashed) lies more than a hundred times as high, and for most rates above guessing, so that
it says little here. Both are computed from the Hessian and the variance of the gradients at the
minimum. The proof asks for constants that hold wherever training goes, with which the floor can
only be higher. The constants that it needs for stale gradients have not been estimated, so that
both lines are for fresh ones.

```
{}
```
"""
BATCH = 4  # samples of a mini-batch, of which the server awaits K
SYNCHRONOUS = {"k_sync": "K-sync", "k_batch_sync": "K-batch-sync"}
ASYNCHRONOUS = {"k_async": "K-async", "k_batch_async": "K-batch-async"}
LINES = {"linestyle": "-", "linewidth": 0.9, "markersize": 5}


class Point(NamedTuple):
    """Where a protocol with one K ends at one rate."""

    rate: float
    excess: float  # loss above the lowest, the mean of the seeds
    by_seed: tuple[float, ...]


def read() -> Records:
    """The arms of the record, and the minimum of their task."""
    return compensated.read()


def commands() -> list[str]:
    """What made the record."""
    return [published.record(RECORD)["command"]]


def points(records: Records, group: str) -> list[Point]:
    """A point for every rate of a protocol with one K, the lowest rate first."""
    found = []
    for arm in premises.group(records.arms.values(), group):
        seeds = tuple(loss - records.minimum.loss for loss in arm[f"{LOSS}_by_seed"])
        rate = premises.settings(arm["name"])["rate"]
        found.append(Point(rate, arm[LOSS] - records.minimum.loss, seeds))
    return sorted(found)


def draw(records: Records) -> Figure:
    """A picture of 1500 pixels' width: protocols without and with staleness."""
    canvas = Figure(figsize=(10, 5.2), dpi=150, layout="constrained")
    panels = canvas.subplots(1, 2, sharex=True, sharey=True)
    for axes, protocols, title in (
        (panels[0], SYNCHRONOUS, "without staleness"),
        (panels[1], ASYNCHRONOUS, "with staleness"),
    ):
        rates: dict[int, set[float]] = {k: set() for k in K}
        for group, (protocol, k) in GROUPS.items():
            if protocol in protocols:
                line = points(records, group)
                rates[k] |= {point.rate for point in line}
                _measured(axes, line, k, figure.MARKERS[list(protocols).index(protocol)])
        _theory(axes, records.minimum, rates)
        shapes = [
            Line2D([], [], color="0.35", marker=marker, label=label, **LINES)
            for marker, label in zip(figure.MARKERS, protocols.values(), strict=False)
        ]
        axes.legend(handles=shapes, fontsize=8, frameon=False, loc="upper left")
        axes.set(xscale="log", yscale="log", title=title)
        axes.title.set_size(10)
        axes.set_xlabel("learning rate / K", fontsize=9)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        look.logarithmic(axes)
    lowest = records.minimum.loss
    panels[0].set_ylabel(f"training loss at the end, above the lowest, {lowest:.4g}", fontsize=9)
    canvas.legend(handles=_legend(), fontsize=8, frameon=False, ncols=7, loc="outside upper center")
    seeds = len(next(iter(records.arms.values()))[f"{LOSS}_by_seed"])
    canvas.supxlabel(f"A line goes through the means of {seeds} seeds, a dot is one.", fontsize=8)
    return canvas


def _colour(k: int) -> str:
    return figure.COLOURS[K.index(k)]


def _measured(axes: Axes, line: list[Point], k: int, marker: str) -> None:
    across = [point.rate / k for point in line]
    excess = [point.excess for point in line]
    axes.plot(across, excess, marker=marker, color=_colour(k), **LINES)
    for at, point in zip(across, line, strict=True):
        seeds = point.by_seed
        axes.plot([at] * len(seeds), seeds, ".", color=_colour(k), markersize=2.5, alpha=0.6)


def _theory(axes: Axes, minimum: noise_floor.Minimum, rates: Mapping[int, set[float]]) -> None:
    """The level of every K, the bound, which depends on rate / K alone, and guessing."""
    for k, of_k in rates.items():
        fine = np.geomspace(min(of_k), max(of_k), 30)
        levels = [noise_floor.level(minimum, rate, k, BATCH) for rate in fine]
        axes.plot(fine / k, levels, ":", color=_colour(k), linewidth=1.6)
    lowest = min(rate / k for k, of_k in rates.items() for rate in of_k)
    ends = [lowest, 1 / (2 * minimum.curvatures[-1])]  # at higher rates it is not proved
    bounds = [noise_floor.bound(minimum, end, 1, BATCH) for end in ends]
    axes.plot(ends, bounds, "--", color="black", linewidth=1.2)
    axes.axhline(CHANCE - minimum.loss, color="0.6", linewidth=0.8)


def _legend() -> list[Line2D]:
    plain = [Line2D([], [], color=_colour(k), linewidth=2, label=f"K = {k}") for k in K]
    return [
        *plain,
        Line2D([], [], color="0.35", linestyle=":", linewidth=1.6, label="level of the noise"),
        Line2D([], [], color="black", linestyle="--", linewidth=1.2, label="floor that is proved"),
        Line2D([], [], color="0.6", linewidth=0.8, label="guessing"),
    ]
