"""What MG-WFBP gained in published runs, beside the model of `comms.iteration`.

Shi, Chu, Li, arXiv 1811.11141 and 1912.09268.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from comms import cost, iteration
from comms.layer_traces import LayerTrace, googlenet
from experiments import differences, premises
from experiments.studies import layer_traces
from experiments.studies.study import Study

CORRELATED = 0.5  # from which on a simulation is said to foresee
OURS = "greedy"  # what published runs call MG-WFBP


class Ratio(NamedTuple):
    """How many times faster MG-WFBP was than a baseline in a published run, and is in the model."""

    setting: str
    workers: int
    baseline: str  # a schedule
    published: float
    greedy: float  # the model's ratio for MG-WFBP's own merging
    optimal: float  # and for the best buckets
    counted: bool = True  # among the errors; another reading of a run that is counted is not


def analyse(config: ConfigDict) -> Study:
    """The ratios as `compare_published` has them, with a table."""
    ratios = compare_published(config)
    summary = {
        "ratios": [ratio._asdict() for ratio in ratios],
        "errors": [error._asdict() for error in errors(ratios)],
    }
    return Study(summary, tables(ratios), claims=list(claims(errors(ratios))))


def claims(found: Sequence["Error"]) -> Iterator[tuple[str, str]]:
    """Whether the model has skill: it is nearer than a constant, and correlates."""
    for error in found:
        words = error.baseline.replace("_", " ")
        yield (
            f"speed-ups over {words} are foreseen: nearer than the median of the other runs, "
            f"correlation of at least {CORRELATED:g}",
            premises.text(has_skill, error),
        )


def has_skill(error: "Error") -> premises.Answer:
    """Errors beside a constant's, by a paired test over the runs, and the correlation."""
    if error.correlation is None:
        raise premises.CannotTell(f"{error.runs} runs have no correlation that says anything")
    measured = (
        f"{error.runs} runs: median error {error.median:.0%}, a constant's "
        f"{error.constant_median:.0%}, correlation {error.correlation:.2f}"
    )
    low, high = error.beyond_constant
    verdict, before = premises.UNKNOWN, premises.NOISE
    if high < 0 and error.correlation >= CORRELATED:
        verdict, before = premises.HOLDS, ""
    elif low > 0:
        verdict, before = premises.FAILS, ""
    deviation = f"errors minus the constant's {100 * low:+.1f} to {100 * high:+.1f} %"
    return premises.Answer(verdict, before + measured, deviation=deviation)


def compare_published(config: ConfigDict) -> list[Ratio]:
    """Ratios of iteration times, published and simulated.

    config: `published`, {setting: `trace`, `compute` (s of an iteration of one worker), `workers`,
    `counted` among the errors, `alpha` (s) and `beta` (s per byte) of an all-reduce over them,
    `throughput` {schedule: samples per second, or 1 / s}, of which `greedy` is MG-WFBP}.
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
            published = ours / throughput
            ratios.append(
                Ratio(
                    setting, run.workers, baseline, published, *simulated, run.get("counted", True)
                )
            )
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
    lines = [
        f"over {error.baseline.replace('_', ' ')}, {error.runs} runs: simulated and published "
        f"differ by {100 * error.median:.0f} % in the median, at most {100 * error.worst:.0f} %; "
        f"the median of the other runs differs by {100 * error.constant_median:.0f} %, at most "
        f"{100 * error.constant_worst:.0f} %; {_correlated(error)}"
        for error in errors(ratios)
    ]
    return [table, *lines]


class Error(NamedTuple):
    """How far a prediction is from the published ratios over a baseline, relative to these."""

    baseline: str
    runs: int
    median: float
    worst: float
    constant_median: float  # the same for the median of the other published runs
    constant_worst: float
    # Interval of the mean of the model's error minus the constant's, in logarithms.
    beyond_constant: tuple[float, float] | None
    correlation: float | None  # of the logarithms, simulated and published; of three runs or more


def _correlated(error: Error) -> str:
    if error.correlation is None:
        return "too few runs for a correlation"
    return f"correlation {error.correlation:.2f}"


def errors(ratios: Sequence[Ratio]) -> list[Error]:
    """The model's errors beside a constant's: a model that knows nothing of a run."""
    found = []
    for baseline in dict.fromkeys(ratio.baseline for ratio in ratios):
        ours = [ratio for ratio in ratios if ratio.baseline == baseline and ratio.counted]
        if not ours:
            continue
        published = np.log([ratio.published for ratio in ours])
        simulated = np.log([ratio.greedy for ratio in ours])
        others = [
            np.median(np.delete(published, n)) if len(ours) > 1 else 0 for n in range(len(ours))
        ]
        model, constant = np.abs(simulated - published), np.abs(np.array(others) - published)
        numbers = (np.median(model), model.max(), np.median(constant), constant.max())
        relative = (float(np.expm1(number)) for number in numbers)
        beyond = correlation = None
        if len(ours) > 2:
            difference = differences.paired(model - constant)
            beyond = difference.low, difference.high
            correlation = float(np.corrcoef(simulated, published)[0, 1])
        found.append(Error(baseline, len(ours), *relative, beyond, correlation))
    return found
