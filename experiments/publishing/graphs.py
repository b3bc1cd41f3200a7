"""The picture of graphs of several sizes: how low gossip on uneven data ends with more workers.

It is drawn from the records of `configs/heterogeneous.py`, whose workers have all sent about as
many bytes. A point is a graph at its best rate; it is on the page of `publishing.gallery`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import matplotlib.axes
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from experiments import premises
from experiments.publishing import published, quoted
from experiments.reports import figure

TEXT = """\
## Gossip on uneven data with more workers
![Training loss against the number of workers, for graphs and methods](gallery/graphs.png)

All workers send about as many bytes. With D-PSGD the graphs that take turns (EquiDyn, one-peer,
Base-2) end lowest and lose little by more workers; the ring loses much, with MATCHA as well, which
ends below D-PSGD there. Gradient tracking sends two models, so that it makes half the updates. It
ends above D-PSGD on all graphs but large rings. On the ring DecentLaM has the lowest mean.

```
{}
```
"""
RECORDS = {
    16: "heterogeneous",
    64: "heterogeneous_workers_64",
    256: "heterogeneous_workers_256",
}
LOSS = "final_train_loss"  # of the mean model, a mean over the last tenth of the evaluations
CHANCE = math.log(10)  # the loss of a model that takes all ten digits for equally likely
PANELS = {
    "D-PSGD and MATCHA on graphs": {
        "dpsgd/ring": "ring",
        "dpsgd/torus": "torus",
        "dpsgd/groups": "groups of four",
        "dpsgd/equi": "EquiDyn",
        "dpsgd/one_peer": "one-peer exponential",
        "dpsgd/base_2": "Base-2",
        "matcha/ring": "ring, MATCHA",
    },
    "gradient tracking on graphs": {
        "gradient_tracking/ring": "ring",
        "gradient_tracking/torus": "torus",
        "gradient_tracking/groups": "groups of four",
        "gradient_tracking/equi": "EquiDyn",
        "gradient_tracking/one_peer": "one-peer exponential",
        "gradient_tracking/base_2": "Base-2",
    },
    "methods on the ring": {
        "dpsgd/ring": "D-PSGD",
        "gradient_tracking/ring": "gradient tracking",
        "exact_diffusion/ring": "exact diffusion",
        "dpsgd_momentum/ring": "D-PSGD, momentum",
        "decentlam/ring": "DecentLaM",
        "qg_dsgdm/ring": "QG-DSGDm",
    },
}
ASIDE = 1.06  # by what points of one size are drawn apart, so that none hides another


class Point(NamedTuple):
    """Where a method on a graph ends, at its best rate."""

    workers: int
    loss: float  # the mean of the seeds
    by_seed: tuple[float, ...]
    inside: bool  # whether the best rate lies inside of its grid


def read() -> dict[int, dict[str, Any]]:
    """The arms of every record, by the number of workers."""
    return {workers: quoted.arms(published.record(name)) for workers, name in RECORDS.items()}


def commands() -> list[str]:
    """What made the records."""
    return [published.record(name)["command"] for name in RECORDS.values()]


def points(by_workers: Mapping[int, Mapping[str, Mapping]], group: str) -> list[Point]:
    """A point for every number of workers with which the group converges at some rate."""
    found = []
    for workers, arms in by_workers.items():
        try:
            members = premises.group(arms.values(), group)
            best = premises.best(members, LOSS)
        except premises.CannotTell:
            continue
        if best[LOSS] < CHANCE:  # a loss can be finite and huge
            by_seed = tuple(best[f"{LOSS}_by_seed"])
            found.append(Point(workers, best[LOSS], by_seed, not premises.ends(best, members)))
    return found


def draw(by_workers: Mapping[int, Mapping[str, Mapping]]) -> Figure:
    """A picture of 1500 pixels' width: a panel for every question, a line for every graph."""
    panels = {
        title: {label: points(by_workers, group) for group, label in groups.items()}
        for title, groups in PANELS.items()
    }
    canvas = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    columns = canvas.subplots(1, len(panels))
    columns[1].sharey(columns[0])  # a graph has the same place with both methods
    for axes, (title, lines) in zip(columns, panels.items(), strict=True):
        _panel(axes, lines)
        axes.set_title(title, fontsize=10)
    columns[0].set_ylabel("training loss of the mean model at the end", fontsize=9)
    canvas.supxlabel("\n".join(_notes(by_workers, panels)), fontsize=8)
    return canvas


def _notes(by_workers, panels: Mapping[str, Mapping[str, list[Point]]]) -> Iterator[str]:
    """What has to be known of the picture, in sentences."""
    drawn = [point for lines in panels.values() for line in lines.values() for point in line]
    sent = [arm["bytes_per_worker"] / 1e6 for arms in by_workers.values() for arm in arms.values()]
    yield (
        f"Every worker has sent about {np.median(sent):.0f} MB. A point is the mean over the seeds "
        "at the best of several learning rates, a small dot is one seed."
    )
    yield "The vertical axis on the right is another one than that of the other two panels."
    if not all(point.inside for point in drawn):
        yield "The best rate of a hollow point is the lowest or the highest that was tried."
    gone = [
        f"{label} ({title}, {workers} workers)"
        for title, groups in PANELS.items()
        for group, label in groups.items()
        for workers, arms in by_workers.items()
        if any(name.startswith(f"{group}/rate=") for name in arms)
        and workers not in [point.workers for point in panels[title][label]]
    ]
    if gone:
        yield f"Left out, as it diverges at every rate: {', '.join(gone)}."


def _panel(axes: matplotlib.axes.Axes, lines: Mapping[str, list[Point]]) -> None:
    named = []
    for place, (label, line) in enumerate(lines.items()):
        colour = figure.COLOURS[place % len(figure.COLOURS)]
        marker = figure.MARKERS[place % len(figure.MARKERS)]
        if not line:
            continue
        aside = ASIDE ** (place - (len(lines) - 1) / 2)
        for point in line:
            at = np.full(len(point.by_seed), point.workers * aside)
            axes.plot(at, point.by_seed, ".", markersize=3, color=colour, alpha=0.6)
        x, y = [point.workers * aside for point in line], [point.loss for point in line]
        look = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.3}
        named += axes.plot(x, y, label=label, **look)
        for at, point in zip(x, line, strict=True):
            if not point.inside:
                axes.plot(
                    at, point.loss, marker, markersize=6, color=colour, markerfacecolor="white"
                )
    figure.logarithmic(axes)
    axes.set_xscale("log")
    axes.set_xlim(min(RECORDS) / 1.5, max(RECORDS) * 1.5)
    axes.xaxis.set_major_locator(FixedLocator(list(RECORDS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{workers}" for workers in RECORDS])
    axes.set_xlabel("workers", fontsize=9)
    axes.legend(
        handles=named, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14),
        ncols=2,
    )  # fmt: skip
