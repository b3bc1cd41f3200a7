"""What SwarmSGD claims of the time that nodes communicate for, see `serial_links`."""

import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from experiments import premises
from experiments.reports.figure import COLOURS, DASHES, save
from experiments.reports.table import NONE
from experiments.studies import serial_links
from experiments.studies.serial_links import Point
from experiments.studies.study import Study

MOST_GROWTH = 1.1  # of a mean that counts as none
SMALL = 0.1  # of the time of computing


def analyse(config: ConfigDict) -> Study:
    """The times as `serial_links.simulate` has them, with a table, a figure and claims."""
    points = serial_links.simulate(config)
    summary = {"points": [point._asdict() for point in points]}
    figure = functools.partial(draw_points, points)
    return Study(summary, [table_of(points)], figure, list(claims(points)))


def claims(points) -> Iterator[tuple[str, str]]:
    """What the paper says of an exchange's time, beside the simulated one of all Swarm methods."""
    swarm: dict[str, list[Point]] = {}
    for point in points:
        if point.method.startswith("swarm"):
            swarm.setdefault(point.method, []).append(point)
    yield (
        f"an exchange takes less than {MOST_GROWTH:g}x the time with the most nodes that it takes "
        "with the fewest (arXiv 1910.12308)",
        premises.text(does_not_grow, swarm),
    )
    yield (
        f"less than {SMALL:.0%} of the time of computing, with the most nodes",
        premises.text(is_small, swarm),
    )


def does_not_grow(swarm: Mapping[str, Sequence[Point]]) -> premises.Answer:
    """Mean time of an exchange: method -> its points by number of nodes."""
    for label, row in swarm.items():
        if len({point.workers for point in row}) < 2:
            raise premises.CannotTell(f"{label} was simulated with one number of nodes")
        if not row[0].mean:
            raise premises.CannotTell(f"an exchange of {label} takes no time")
    grown = {label: row[-1].mean / row[0].mean for label, row in swarm.items()}
    return _where(grown, MOST_GROWTH, "{:.2f}x")


def is_small(swarm: Mapping[str, Sequence[Point]]) -> premises.Answer:
    """Time of communicating over that of computing, with the most nodes."""
    return _where({label: row[-1].of_compute for label, row in swarm.items()}, SMALL, "{:.1%}")


def _where(values: Mapping[str, float], most: float, shown: str) -> premises.Answer:
    if not values:
        raise premises.CannotTell("no method of Swarm was simulated")
    if not all(math.isfinite(value) for value in values.values()):
        raise premises.CannotTell("a time is not finite")
    good = [label for label, value in values.items() if value < most]
    measured = "; ".join(f"{label} {shown.format(value)}" for label, value in values.items())
    return premises.Answer(premises.of_all(len(good), len(values)), measured)


def table_of(points: Sequence[Point]) -> Table:
    """Mean and 99 % quantile by method and number of nodes, and how much they grow."""
    workers = list(dict.fromkeys(point.workers for point in points))
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="ms of communication per node and update, by number of nodes",
        caption="growth: most over fewest nodes; communicating over computing at most nodes",
    )
    table.add_column("method", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in (*map(str, workers), "growth", "comm./comp."):
        table.add_column(heading, justify="right", no_wrap=True)
    for field, heading, share in (("mean", "mean", "{:.3g}"), ("quantile", "99 %", "")):
        for method in dict.fromkeys(point.method for point in points):
            row = [point for point in points if point.method == method]
            values = [getattr(point, field) for point in row]
            table.add_row(
                method,
                heading,
                *(f"{1e3 * value:,.1f}" for value in values),
                f"{values[-1] / values[0]:.2f}x" if values[0] else NONE,
                share.format(row[-1].of_compute),
            )
        table.add_section()
    return table


def draw_points(points: Sequence[Point], path: str | os.PathLike) -> None:
    """Write a PNG of 1350x600 pixels: mean and 99 % quantile against the number of nodes.

    The part of a method's label before "/" chooses the colour, the rest the kind of line.
    """
    methods = list(dict.fromkeys(point.method for point in points))
    families = dict.fromkeys(method.partition("/")[0] for method in methods)
    colours = dict(zip(families, COLOURS, strict=False))
    workers = list(dict.fromkeys(point.workers for point in points))
    canvas = Figure(figsize=(9, 4), dpi=150, layout="constrained")
    panels = canvas.subplots(1, 2, sharey=True)
    for axes, field, title in zip(
        panels, ("mean", "quantile"), ("mean", "99 % quantile"), strict=True
    ):
        for method in methods:
            values = [getattr(p, field) for p in points if p.method == method]
            family = method.partition("/")[0]
            variants = [m for m in methods if m.partition("/")[0] == family]
            line = {"color": colours[family], "linestyle": DASHES[variants.index(method)]}
            axes.plot(workers, values, label=method, marker="o", markersize=3, **line)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(workers))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(workers, map(str, workers))
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("nodes")
        axes.grid(color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("communication per update [s]")
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save(canvas, path)
