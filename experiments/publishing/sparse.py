"""The picture of S2 Reducer's sketch of several sizes, and of a step with more workers.

It is drawn from the records of `configs/s2_reducer.py:task=ncf`, and is on the page of
`publishing.gallery`. Bytes and losses are of the runs. A step is its measured gradient and codec
and its bytes over a modelled link (`experiments.studies.s2_reducer`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.publishing import published, quoted
from experiments.reports import figure
from experiments.studies.s2_reducer import FELL_BACK

TEXT = """\
## Sketches of several sizes, and more workers
![Bytes and losses against the size of a sketch, a step against the workers](gallery/sparse.png)

A sketch sends what its size says. Where it is too small for the rows that changed, the workers fall
back on sending these rows, which costs less here than a sketch that is large enough. Peeling loses
nothing that another order of summing does not lose as well. SparCML's step is among the shortest
for every number of workers. On the faster link dense all-reduce passes all of them with many.

```
{}
```
"""
SIZES = {percent: f"s2_ncf_ratio_{percent}" for percent in (1, 2, 5, 10, 18, 30, 50)}
WORKERS = {4: "s2_ncf", 16: "s2_ncf_workers_16", 64: "s2_ncf_workers_64"}
DENSE, REORDERED = "dense", "dense/reordered"
SKETCHES = {"s2/sketch": "peeled", "s2/median": "medians, as in the paper"}
STEPS = {
    "dense": "dense all-reduce",
    "s2/sketch": "sketch, peeled",
    "s2/exact": "compacted union",
    "sparse_all_gather": "sparse all-gather",
    "sparcml": "SparCML",
    "omnireduce": "OmniReduce",
    "parallax": "Parallax",
}
LINKS = (1, 10)  # Gbit/s
LOSS = "train_loss_by_seed"


class Point(NamedTuple):
    """What a sketch of one size, in percent of its table, does."""

    percent: int
    sent: float  # bytes, over dense training's
    fell_back: float  # share of the updates
    losses: tuple[float, ...]  # by seed, over dense training's
    orders: tuple[float, ...]  # the same of dense training with another order of summing


class Records(NamedTuple):
    """What the picture is drawn from."""

    by_percent: Mapping[int, Mapping[str, Any]]  # keys of SIZES
    by_workers: Mapping[int, Mapping[str, Any]]  # keys of WORKERS


def read() -> Records:
    """The records of SIZES and of WORKERS."""
    by_percent, by_workers = (
        {key: published.record(name) for key, name in names.items()} for names in (SIZES, WORKERS)
    )
    return Records(by_percent, by_workers)


def commands() -> list[str]:
    """What made the records."""
    return [published.record(name)["command"] for name in (*SIZES.values(), *WORKERS.values())]


def sizes(records: Records, name: str) -> list[Point]:
    """A point for every size of the sketch `name`."""
    found = []
    for percent, record in records.by_percent.items():
        arms = quoted.arms(record)
        ours, dense = arms[name], arms[DENSE]
        found.append(
            Point(
                percent,
                ours["bytes_per_worker"] / dense["bytes_per_worker"],
                ours["fallback_share"],
                tuple(np.divide(ours[LOSS], dense[LOSS])),
                tuple(np.divide(arms[REORDERED][LOSS], dense[LOSS])),
            )
        )
    return found


def steps(records: Records, gigabits: int) -> dict[str, list[float]]:
    """Milliseconds of a step of every arm of STEPS, for every number of workers."""
    tables = [
        quoted.column(record, f"a step at {gigabits} Gbit/s", "ms")
        for record in records.by_workers.values()
    ]
    return {name: [table[name] for table in tables] for name in STEPS}


def fallen(records: Records) -> dict[str, list[bool]]:
    """Whether most updates fell back, of every arm of STEPS, for every number of workers."""
    tables = [quoted.arms(record) for record in records.by_workers.values()]
    return {
        name: [(arms[name]["fallback_share"] or 0) > FELL_BACK for arms in tables] for name in STEPS
    }


def draw(records: Records) -> Figure:
    """A picture of 1500 pixels' width: two panels for the sizes, one for the step of each link."""
    canvas = Figure(figsize=(10, 8), dpi=150, layout="constrained")
    (sent, losses), links = canvas.subplots(2, 2)
    _sent(sent, {name: sizes(records, name) for name in STEPS if name != DENSE})
    _losses(losses, {label: sizes(records, name) for name, label in SKETCHES.items()})
    for axes, gigabits in zip(links, LINKS, strict=True):
        _steps(axes, steps(records, gigabits), fallen(records), list(records.by_workers))
        axes.set_title(f"a step over {gigabits} Gbit/s; hollow as above", fontsize=10)
    for axes in canvas.axes:
        axes.legend(
            fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2
        )
    return canvas


def _sent(axes: Axes, by_name: Mapping[str, Sequence[Point]]) -> None:
    for place, (name, points) in enumerate(by_name.items(), 1):
        percents = [point.percent for point in points]
        sent, gone = [p.sent for p in points], [p.fell_back > FELL_BACK for p in points]
        _line(axes, place, percents, sent, STEPS[name], gone)
    figure.logarithmic(axes)
    _across(axes, list(SIZES))
    axes.set_xlabel("size of the sketch [% of its table]", fontsize=9)
    axes.set_title("what is sent; hollow: most updates fell back", fontsize=10)
    axes.set_ylabel("bytes of a worker over dense", fontsize=9)


def _losses(axes: Axes, lines: Mapping[str, Sequence[Point]]) -> None:
    ends = {label: {point.percent: point.losses for point in line} for label, line in lines.items()}
    (first, *_) = lines.values()
    ends["dense, summed in another order"] = {point.percent: point.orders for point in first}
    # The colours that the sketch and dense training have in the other panels.
    for place, (label, by_percent) in zip((1, 3, 0), ends.items(), strict=True):
        means = [float(np.mean(by_seed)) for by_seed in by_percent.values()]
        _line(axes, place, list(by_percent), means, label)
        for percent, by_seed in by_percent.items():
            at, colour = np.full(len(by_seed), percent), figure.COLOURS[place]
            axes.plot(at, by_seed, ".", markersize=4, color=colour, alpha=0.6)
    figure.plain(axes)
    _across(axes, list(SIZES))
    axes.set_xlabel("size of the sketch [% of its table]", fontsize=9)
    axes.set_title("how low training ends; a dot is a seed", fontsize=10)
    axes.set_ylabel("training loss at the end over dense", fontsize=9)


def _steps(
    axes: Axes,
    by_name: Mapping[str, Sequence[float]],
    gone: Mapping[str, Sequence[bool]],
    workers: Sequence[int],
) -> None:
    for place, (name, taken) in enumerate(by_name.items()):
        _line(axes, place, workers, taken, STEPS[name], gone[name])
    figure.logarithmic(axes)
    _across(axes, workers)
    axes.set_xlabel("workers", fontsize=9)
    axes.set_ylabel("milliseconds", fontsize=9)


def _across(axes: Axes, values: Sequence[int]) -> None:
    """A logarithmic horizontal axis with these values on it."""
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 1.2, 1.2 * max(values))
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{value}" for value in values])


def _line(
    axes: Axes,
    place: int,
    x: Sequence[float],
    y: Sequence[float],
    label: str,
    gone: Sequence[bool] = (),
) -> None:
    """A line with markers, hollow where most updates have `gone` back to rows."""
    look = {"color": figure.COLOURS[place], "marker": figure.MARKERS[place], "markersize": 5}
    (line,) = axes.plot(x, y, label=label, linewidth=1.3, **look)
    if gone:
        hollow = [(a, b) for a, b, there in zip(x, y, gone, strict=True) if there]
        look |= {"markerfacecolor": "white", "linestyle": "", "zorder": line.get_zorder() + 1}
        axes.plot(*zip(*hollow, strict=True) if hollow else ([], []), **look)
