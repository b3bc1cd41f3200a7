"""The picture of the staleness-compensating rate min(C / distance^2, eta) beside the fixed one.

It is drawn from the record of `configs/slow_and_stale.py`. The lowest loss of its convex task is
found anew (`experiments.studies.noise_floor`).
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments import premises, tasks
from experiments.publishing import published, quoted
from experiments.reports import figure
from experiments.studies import axes as look
from experiments.studies import noise_floor
from experiments.studies.slow_and_stale import COMPENSATED, CONVEX, FIXED, LOSS

TEXT = """\
## A rate that compensates staleness
![Training loss at the end against the rate, for several C](gallery/compensated.png)

The rate of asynchronous SGD is min(C / distance², η): the further a gradient's parameters are from
the current ones, the smaller. With a small C training still comes below guessing at an η at which
the fixed rate diverges. Where both C and η are searched, the best C is so large that it never acts,
and the compensation gains nothing over the tuned fixed rate.

```
{}
```
"""
RECORD = "slow_and_stale"
CHANCE = math.log(10)  # the loss of a model that takes all ten digits for equally likely


class Records(NamedTuple):
    """What the picture is drawn from."""

    arms: Mapping[str, Mapping[str, Any]]  # of the sweep, by name
    minimum: noise_floor.Minimum  # of its task


class Point(NamedTuple):
    """Where training ends at a rate."""

    rate: float
    loss: float  # the mean of the seeds
    by_seed: tuple[float, ...]


def read() -> Records:
    """The arms of the record, and the minimum of their task."""
    return Records(quoted.arms(published.record(RECORD)), minimum())


@functools.cache
def minimum() -> noise_floor.Minimum:
    """The minimum of the convex task."""
    return noise_floor.at_minimum(tasks.build(CONVEX))


def commands() -> list[str]:
    """What made the record."""
    return [published.record(RECORD)["command"]]


def lines(arms: Mapping[str, Mapping[str, Any]]) -> dict[float, list[Point]]:
    """A line over the rates for every C, the smallest first; the fixed rate has an infinite one."""
    found: dict[float, list[Point]] = {}
    for group in (COMPENSATED, FIXED):
        for arm in premises.group(arms.values(), group):
            chosen = premises.settings(arm["name"])
            point = Point(chosen["rate"], arm[LOSS], tuple(arm[f"{LOSS}_by_seed"]))
            found.setdefault(chosen.get("threshold", math.inf), []).append(point)
    return {threshold: sorted(found[threshold]) for threshold in sorted(found)}


def draw(records: Records) -> Figure:
    """A picture of 1000 pixels' width: loss above the lowest against eta, a line for every C."""
    canvas = Figure(figsize=(6.7, 4.6), dpi=150, layout="constrained")
    axes = canvas.subplots()
    lowest = records.minimum.loss
    by_threshold = lines(records.arms)
    fixed = by_threshold.pop(math.inf)
    wide = {"color": "0.75", "linewidth": 5, "solid_capstyle": "round"}
    _line(axes, fixed, lowest, "fixed rate", wide)
    for place, (threshold, points) in enumerate(by_threshold.items()):
        shape = {"marker": figure.MARKERS[place], "markersize": 5, "linewidth": 1.3}
        of_line = {"color": figure.COLOURS[place]} | shape
        _line(axes, points, lowest, f"C = {threshold:g}", of_line)
    axes.axhline(CHANCE - lowest, color="0.35", linewidth=0.8, linestyle="--", label="guessing")
    axes.set(xscale="log", yscale="log")
    rates = [point.rate for point in fixed]
    axes.xaxis.set_major_locator(FixedLocator(rates))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    look.logarithmic(axes)
    axes.set_xlabel("η, the highest learning rate", fontsize=9)
    axes.set_ylabel(f"training loss at the end, above the lowest, {lowest:.4g}", fontsize=9)
    canvas.legend(loc="outside right upper", fontsize=8, frameon=False)
    seeds = len(fixed[0].by_seed)
    canvas.supxlabel(f"A line goes through the means of {seeds} seeds, a dot is one.", fontsize=8)
    return canvas


def _line(axes: Axes, points: list[Point], lowest: float, label: str, line: dict) -> None:
    rates = [point.rate for point in points]
    axes.plot(rates, [point.loss - lowest for point in points], label=label, **line)
    for point in points:
        seeds = [loss - lowest for loss in point.by_seed]
        axes.plot([point.rate] * len(seeds), seeds, ".", color=line["color"], markersize=3)
