"""How MG-WFBP and other schedules of communication scale, simulated; nothing is trained.

Shi, Chu, Li, arXiv 1811.11141 and 1912.09268. The model is that of `comms.iteration`.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, PercentFormatter
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from comms import cost, iteration
from comms.layer_traces import LayerTrace, googlenet
from experiments import parts
from experiments.studies import layer_traces

COLLECTIVES = {
    "ring": cost.ring,
    "double_binary_tree": cost.double_binary_tree,
    "halving_doubling": cost.halving_doubling,
}
# Colour, dashes and width of a schedule; those that cannot overlap the next forward are solid.
OURS = "greedy"  # what published runs call MG-WFBP
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

# --- scaling ---


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


def simulate(config: ConfigDict) -> list[Curve]:
    """All schedules on all traces and networks.

    config: `traces`, names of `layer_traces.NAMES`; `batch` and `flops_per_second` of a worker;
    `networks` {name: see `link`}; `collective`, a name of COLLECTIVES; `workers`; `schedules`.
    Raises ValueError for what makes no sense.
    """
    _check(config)
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


def _check(config: ConfigDict):
    def count(value):
        return parts.is_number(value, Integral) and value > 0

    known = {
        "traces": layer_traces.NAMES,
        "schedules": tuple(iteration.SCHEDULES),
        "collective": tuple(COLLECTIVES),
    }
    for entry, names in known.items():
        given = config[entry]
        given = (given,) if isinstance(given, str) else given
        unknown = [name for name in given if name not in names]
        if unknown or not given:
            raise ValueError(
                f"config.{entry} = {config[entry]!r} is unknown or empty; choose from "
                f"{', '.join(names)}"
            )
    if not config.workers or not all(count(n) and n > 1 for n in config.workers):
        raise ValueError(f"config.workers must be numbers above 1, got {config.workers}; set them")
    if config.at_workers not in config.workers:
        raise ValueError(
            f"config.at_workers = {config.at_workers} is not one of config.workers; choose from "
            f"{', '.join(map(str, config.workers))}"
        )
    for network, measured in config.networks.items():
        if not (count(measured.workers) and measured.workers > 1):
            raise ValueError(
                f"config.networks.{network}.workers must be a number above 1, got "
                f"{measured.workers}; set that of the measured all-reduce"
            )
    if not count(config.batch):
        raise ValueError(
            f"config.batch must be a positive whole number, got {config.batch}; set config.batch"
        )


def print_curves(console: Console, curves: Sequence[Curve], workers: int):
    """Print the efficiencies for one number of workers: a row per trace and network."""
    if not console.is_terminal:
        console = Console(file=console.file, width=120)
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
    console.print(table)


def draw_curves(curves: Sequence[Curve], titles: Mapping[str, str], path: str | os.PathLike):
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
            axes.plot(curve.workers, curve.efficiency, color=colour, linestyle=dashes,
                      linewidth=width, label=LABELS[curve.schedule],
                      zorder=1 + width)  # fmt: skip
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
    canvas.savefig(path, format="png")


# --- published measurements ---


class Ratio(NamedTuple):
    """How many times faster MG-WFBP was than a baseline in a published run, and is in the model."""

    setting: str
    workers: int
    baseline: str  # a schedule
    published: float
    greedy: float  # the model's ratio for MG-WFBP's own merging
    optimal: float  # and for the best buckets


def compare_published(config: ConfigDict) -> list[Ratio]:
    """Ratios of iteration times, published and simulated.

    config: `published`, {setting: `trace`, `compute` (s of an iteration of one worker), `workers`,
    `alpha` (s) and `beta` (s per byte) of an all-reduce over them, `throughput` {schedule: samples
    per second, or 1 / s}, of which `greedy` is MG-WFBP}.
    """
    built: dict[str, LayerTrace] = {}
    ratios = []
    for setting, run in config.published.items():
        if run.trace not in built:
            # Any mini-batch and speed: the times are scaled.
            built[run.trace] = layer_traces.build(run.trace, 1, 1e12)
        trace = _at_compute(built[run.trace], run.compute)
        affine = cost.AlphaBeta(run.alpha, run.beta)

        def seconds(schedule, trace=trace, affine=affine):
            return iteration.iteration(trace, affine, schedule).seconds

        baselines = dict(run.throughput)
        ours = baselines.pop(OURS)
        for baseline, throughput in baselines.items():
            slow = seconds(baseline)
            simulated = (slow / seconds(OURS), slow / seconds("optimal"))
            ratios.append(Ratio(setting, run.workers, baseline, ours / throughput, *simulated))
    return ratios


def _at_compute(trace: LayerTrace, seconds: float) -> LayerTrace:
    if trace.name == "googlenet":  # its backward pass was measured, only the rest is free
        return googlenet(forward_seconds=seconds - float(trace.backward.sum()))
    return layer_traces.at_compute(trace, seconds)


def print_ratios(console: Console, ratios: Sequence[Ratio]):
    """Print the published speed-ups of MG-WFBP beside the model's, a row per setting."""
    if not console.is_terminal:
        console = Console(file=console.file, width=120)
    baselines = list(dict.fromkeys(ratio.baseline for ratio in ratios))
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="speed-up of MG-WFBP: published | simulated | simulated with optimal buckets",
    )
    table.add_column("setting", no_wrap=True)
    table.add_column("workers", justify="right")
    for baseline in baselines:
        table.add_column(f"over {baseline.replace('_', ' ')}", justify="right", no_wrap=True)
    of_setting = {(r.setting, r.baseline): r for r in ratios}
    for setting, workers in dict.fromkeys((r.setting, r.workers) for r in ratios):
        cells = (of_setting.get((setting, baseline)) for baseline in baselines)
        table.add_row(
            setting.replace("_", " "),
            str(workers),
            *(f"{r.published:.2f} | {r.greedy:.2f} | {r.optimal:.2f}" if r else "" for r in cells),
        )
    console.print(table)
    for baseline in baselines:
        errors = [abs(np.log(r.greedy / r.published)) for r in ratios if r.baseline == baseline]
        console.print(
            f"over {baseline.replace('_', ' ')}, {len(errors)} runs: simulated and published "
            f"differ by {100 * np.expm1(np.median(errors)):.0f} % in the median, at most "
            f"{100 * np.expm1(np.max(errors)):.0f} %",
            highlight=False,
        )
