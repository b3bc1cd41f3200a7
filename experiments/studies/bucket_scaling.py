"""How MG-WFBP and other schedules of communication scale, simulated; nothing is trained.

Shi, Chu, Li, arXiv 1811.11141 and 1912.09268. The model is that of `comms.iteration`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, PercentFormatter
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from comms import cost, iteration
from experiments import entries
from experiments.reports.figure import save
from experiments.studies import layer_traces
from experiments.studies.study import Study

COLLECTIVES = {
    "ring": cost.ring,
    "binary_tree": cost.binary_tree,
    "recursive_doubling": cost.recursive_doubling,
    "double_binary_tree": cost.double_binary_tree,
    "halving_doubling": cost.halving_doubling,
}
# Colour, dashes and width of a schedule; those that cannot overlap the next forward are solid.
LINES = {
    "optimal": ("#000000", "-", 2.0),
    "greedy": ("#0072B2", "-", 1.3),
    "asc": ("#56B4E9", "-", 1.3),
    "fixed": ("#009E73", "-", 1.3),
    "wfbp": ("#D55E00", "-", 1.3),
    "single": ("#E69F00", "-", 1.3),
    "dear": ("#CC79A7", (0, (5, 1.5)), 1.3),
    "byte_scheduler": ("0.45", (0, (5, 1.5)), 1.3),
}
LABELS = {
    "optimal": "optimal buckets",
    "greedy": "MG-WFBP, greedy",
    "asc": "ASC grouping",
    "fixed": "buckets of 25 MiB",
    "wfbp": "WFBP, per layer",
    "single": "single, at the end",
    "dear": "DeAR, tuned",
    "byte_scheduler": "ByteScheduler, tuned",
}
TITLES = {
    "ethernet_10": "10 Gbit/s Ethernet",
    "infiniband_56": "56 Gbit/s InfiniBand",
    "infiniband_100": "100 Gbit/s InfiniBand",
}


def _is_group(value) -> bool:
    return entries.is_count(value) and value > 1


def _some_of(names: Sequence[str]) -> tuple[str, Callable[[Any], bool]]:
    return f"one or more of {', '.join(names)}", entries.several(lambda value: value in names)


ENTRIES = (
    (
        f"one or more of {', '.join(layer_traces.NAMES)}, or paths of CSV files",
        entries.several(lambda name: name in layer_traces.NAMES or layer_traces.is_file(name)),
        ("traces",),
    ),
    (*_some_of(tuple(iteration.SCHEDULES)), ("schedules",)),
    (f"one of {', '.join(COLLECTIVES)}", lambda v: v in tuple(COLLECTIVES), ("collective",)),
    ("numbers above 1", entries.several(_is_group), ("workers",)),
    ("a positive whole number", entries.is_count, ("batch",)),
)


class Curve(NamedTuple):
    """One schedule on one network."""

    trace: str
    network: str
    schedule: str
    workers: list[int]
    seconds: list[float]  # of an iteration
    speedup: list[float]
    efficiency: list[float]


def link(measured: Mapping) -> tuple[float, float]:
    """Alpha and beta of the links of a ring whose all-reduce was measured.

    measured: `alpha` (s) and `beta` (s per byte) of an all-reduce over its `workers`; a byte's
    addition counts as part of its transfer.
    """
    ring = cost.ring(measured["workers"], 1.0, 1.0)
    return measured["alpha"] / ring.alpha, measured["beta"] / ring.beta


def analyse(config: ConfigDict) -> Study:
    """The curves as `simulate` has them, with a table and a figure."""
    curves = simulate(config)
    return Study(
        {"curves": [curve._asdict() for curve in curves]},
        [table_of(curves, config.at_workers)],
        partial(draw_curves, curves, TITLES),
    )


def simulate(config: ConfigDict) -> list[Curve]:
    """All schedules on all traces and networks.

    config: `traces`, names of `layer_traces.NAMES`; `batch` and `flops_per_second` of a worker;
    `networks` {name: see `link`}; `collective`, a name of COLLECTIVES; `workers`; `schedules`.
    Raises ValueError for what makes no sense.
    """
    entries.check(config, ENTRIES)
    measured = [f"networks.{network}.workers" for network in config.networks]
    simulated = ", ".join(map(str, config.workers))
    entries.check(
        config,
        [
            (f"one of config.workers, {simulated}", lambda v: v in config.workers, ("at_workers",)),
            ("a number above 1, that of the measured all-reduce", _is_group, measured),
        ],
    )
    collective = COLLECTIVES[config.collective]
    links = {network: link(measured) for network, measured in config.networks.items()}
    links = dict(sorted(links.items(), key=lambda item: -item[1][1]))  # the slowest first
    curves = []
    for name in config.traces:
        trace = layer_traces.build(name, config.batch, config.flops_per_second)
        for network, (alpha, beta) in links.items():
            cost_of = partial(collective, alpha=alpha, beta=beta)
            for schedule in config.schedules:
                result = iteration.scaling(trace, cost_of, config.workers, schedule)
                values = (column.tolist() for column in result)
                curves.append(Curve(name, network, schedule, *values))
    return curves


def table_of(curves: Sequence[Curve], workers: int) -> Table:
    """The efficiencies for one number of workers: a row per trace and network."""
    schedules = list(dict.fromkeys(curve.schedule for curve in curves))
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=f"scaling efficiency, {workers} workers [%]"
    )
    for heading in ("trace", "network"):
        table.add_column(heading, no_wrap=True)
    for schedule in schedules:
        table.add_column(schedule.replace("_", " "), justify="right")
    at = {(c.trace, c.network, c.schedule): c.efficiency[c.workers.index(workers)] for c in curves}
    previous = None
    for trace, network in dict.fromkeys((c.trace, c.network) for c in curves):
        if previous not in (None, trace):
            table.add_section()
        values = (f"{100 * at[trace, network, schedule]:.1f}" for schedule in schedules)
        table.add_row(trace if trace != previous else "", network, *values)
        previous = trace
    return table


def draw_curves(
    curves: Sequence[Curve], titles: Mapping[str, str], path: str | os.PathLike
) -> None:
    """Write a PNG, 1500 pixels wide: efficiency against workers, a row of panels per trace.

    titles: {network: heading of its column}.
    """
    traces = list(dict.fromkeys(curve.trace for curve in curves))
    networks = list(dict.fromkeys(curve.network for curve in curves))
    canvas = Figure(figsize=(10, 1.2 + 2.1 * len(traces)), dpi=150, layout="constrained")
    grid = canvas.subplots(len(traces), len(networks), sharex=True, sharey=True, squeeze=False)
    for axes, (trace, network) in zip(
        grid.flat, ((t, n) for t in traces for n in networks), strict=True
    ):
        for curve in curves:
            if (curve.trace, curve.network) != (trace, network):
                continue
            colour, dashes, width = LINES[curve.schedule]
            axes.plot(
                curve.workers,
                curve.efficiency,
                color=colour,
                linestyle=dashes,
                linewidth=width,
                label=LABELS[curve.schedule],
                zorder=1 + width,
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(curves[0].workers))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(curves[0].workers, map(str, curves[0].workers), rotation=45)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(0, 1.03)
        axes.grid(color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    for axes, network in zip(grid[0], networks, strict=True):
        axes.set_title(titles[network], fontsize=9)
    for axes, trace in zip(grid[:, 0], traces, strict=True):
        axes.set_ylabel(trace, fontsize=9)
    canvas.supxlabel("workers", fontsize=9)
    canvas.supylabel("scaling efficiency", fontsize=9)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    save(canvas, path)
