"""What MG-WFBP gained in published runs, beside the model of `comms.iteration`.

Shi, Chu, Li, arXiv 1811.11141 and 1912.09268.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from comms import cost, iteration
from comms.layer_traces import LayerTrace, googlenet
from experiments.studies import layer_traces
from experiments.studies.study import Study

OURS = "greedy"  # what published runs call MG-WFBP


class Ratio(NamedTuple):
    """How many times faster MG-WFBP was than a baseline in a published run, and is in the model."""

    setting: str
    workers: int
    baseline: str  # a schedule
    published: float
    greedy: float  # the model's ratio for MG-WFBP's own merging
    optimal: float  # and for the best buckets


def analyse(config: ConfigDict) -> Study:
    """The ratios as `compare_published` has them, with a table."""
    ratios = compare_published(config)
    return Study({"ratios": [ratio._asdict() for ratio in ratios]}, tables(ratios))


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


def tables(ratios: Sequence[Ratio]) -> list[Table | str]:
    """The published speed-ups of MG-WFBP beside the model's, a row per setting; their distance."""
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
    lines = []
    for baseline in baselines:
        errors = [abs(np.log(r.greedy / r.published)) for r in ratios if r.baseline == baseline]
        lines.append(
            f"over {baseline.replace('_', ' ')}, {len(errors)} runs: simulated and published "
            f"differ by {100 * np.expm1(np.median(errors)):.0f} % in the median, at most "
            f"{100 * np.expm1(np.max(errors)):.0f} %"
        )
    return [table, *lines]
