"""The picture of rules and methods under one slow worker, each at its best rate and setting.

It is drawn from the records of `configs/frontier_async.py`, where all train for the same seconds,
and of `configs/async_baselines.py`, where all train to the same loss.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments import premises
from experiments.publishing import published, quoted
from experiments.reports import figure

TEXT = """\
## Rules and methods with one slow worker
![Training loss at the end, or seconds to a loss, of every method](gallery/slow_worker.png)

Asynchronous DiLoCo, which delays its momentum, ends below DiLoCo, which waits for the slow worker,
below averages without momentum and far below momentum at every push. Whether fewer local steps of
the slow worker help cannot be told. On uneven data Ringleader, in which all workers count alike,
ends above Ringmaster and K-async; Rennala differs too much from seed to seed to be placed. No
baseline of asynchronous SGD comes to its target before plain Async-SGD in the mean. Those whose
setting can switch them off are best where they are Async-SGD, at the end of their grid.

```
{}
```
"""
FRONTIER, BASELINES = "frontier_async", "async_baselines"
LOSS, SECONDS = "final_train_loss", "seconds_to_target"
LOCAL_STEPS = {
    "diloco": "DiLoCo, all wait",
    "async_nesterov": "momentum at every push",
    "async_nesterov_small": "the same, smaller outer rate",
    "async_average": "averages, no momentum",
    "async_diloco": "asynchronous DiLoCo",
    "async_diloco_by_speed": "the same, steps by speed",
}
UNEVEN = {
    "ringleader": "Ringleader ASGD",
    "ringmaster": "Ringmaster ASGD",
    "rennala": "Rennala SGD",
    "k_async": "K-async",
}
METHODS = {
    "async_sgd": "Async-SGD",
    "delay_adaptive": "delay-adaptive rate",
    "inverse_staleness": "inverse staleness",
    "hinge": "hinge of staleness",
    "fedbuff": "FedBuff",
    "dc_asgd": "DC-ASGD",
    "compensated": "compensated rate",
    "ringmaster_ignore": "Ringmaster, ignores",
    "ringmaster_interrupt": "Ringmaster, interrupts",
    "rennala_ignore": "Rennala, ignores",
    "rennala_interrupt": "Rennala, interrupts",
    "k_sync": "K-sync",
}


class Records(NamedTuple):
    """What the picture is drawn from: the arms of two sweeps by their names."""

    frontier: Mapping[str, Mapping[str, Any]]
    baselines: Mapping[str, Mapping[str, Any]]


class Point(NamedTuple):
    """How a method does at its best rate and setting."""

    label: str
    mean: float  # over the seeds
    by_seed: tuple[float, ...]
    inside: bool  # whether its rate and its setting lie inside of their grid


def read() -> Records:
    """The arms of both records."""
    return Records(*(quoted.arms(published.record(name)) for name in (FRONTIER, BASELINES)))


def commands() -> list[str]:
    """What made the records."""
    return [published.record(name)["command"] for name in (FRONTIER, BASELINES)]


def points(
    arms: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str], field: str
) -> list[Point]:
    """A point for every group of `labels` that has the field in every seed of some arm."""
    found = []
    for group, label in labels.items():
        members = premises.group(arms.values(), group)
        try:
            best = premises.best(members, field)
        except premises.CannotTell:
            continue
        inside = not premises.ends(best, members)
        found.append(Point(label, best[field], tuple(best[f"{field}_by_seed"]), inside))
    return found


def draw(records: Records) -> Figure:
    """A picture of 1500 pixels' width: losses at the end on the left, seconds on the right."""
    panels = {
        "local steps, one worker 4x slower": (records.frontier, LOCAL_STEPS, LOSS),
        "gradients on uneven data, one worker 4x slower": (records.frontier, UNEVEN, LOSS),
        "asynchronous SGD, one worker 10x slower": (records.baselines, METHODS, SECONDS),
    }
    canvas = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    grid = canvas.add_gridspec(2, 2, height_ratios=(len(LOCAL_STEPS) + 1, len(UNEVEN) + 1))
    found = [canvas.add_subplot(place) for place in (grid[0, 0], grid[1, 0], grid[:, 1])]
    found[0].sharex(found[1])
    everything = []
    for axes, (title, wanted) in zip(found, panels.items(), strict=True):
        everything += (drawn := points(*wanted))
        _rows(axes, drawn)
        axes.set_title(title, fontsize=10)
    for axes in found[:2]:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    found[0].tick_params(labelbottom=False)
    found[1].set_xlabel(
        f"training loss after {_one(records.frontier, 'seconds'):g} virtual seconds", fontsize=9
    )
    found[2].set_xlim(left=0)
    target = _one(records.baselines, "target_loss")
    found[2].set_xlabel(f"virtual seconds to training loss {target:g}", fontsize=9)
    canvas.supxlabel("\n".join(_notes(panels, everything)), fontsize=8)
    return canvas


def _one(arms: Mapping[str, Mapping[str, Any]], field: str) -> float:
    """What all arms have in common."""
    (value,) = {arm[field] for arm in arms.values()}
    return value


def _rows(axes: Axes, drawn: Sequence[Point]) -> None:
    """A row per point, the first at the top: its mean, and its seeds a little below."""
    for row, point in enumerate(drawn):
        colour = figure.COLOURS[0]
        filled = colour if point.inside else "white"
        axes.plot(point.mean, row, "o", color=colour, markersize=7, markerfacecolor=filled)
        below = np.full(len(point.by_seed), row + 0.25)
        axes.plot(point.by_seed, below, ".", color=figure.COLOURS[1], markersize=5)
    axes.set_yticks(range(len(drawn)), [point.label for point in drawn])
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _notes(panels, drawn: Sequence[Point]) -> Iterator[str]:
    """What has to be known of the picture, in sentences."""
    yield (
        "All have eight workers. A large marker is the mean of the seeds at the best of several "
        "rates and settings, a small dot is one seed."
    )
    if not all(point.inside for point in drawn):
        yield "The rate or setting of a hollow marker is the lowest or the highest that was tried."
    labels = [label for _, names, _ in panels.values() for label in names.values()]
    there = [point.label for point in drawn]
    if gone := [label for label in labels if label not in there]:
        yield f"Left out, as not every seed comes to the target at any rate: {', '.join(gone)}."
