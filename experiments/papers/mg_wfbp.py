"""MG-WFBP (Shi, Chu, Li, arXiv 1811.11141 and 1912.09268): gradients merged into buckets.

Two analyses that train nothing: how schedules of communication scale in the model of
`comms.iteration`, and published speed-ups beside that model.
"""

import functools
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict
from scipy.stats import ttest_rel

from comms import cost, iteration
from comms.iteration import googlenet
from experiments import analysis, model_traces, records, registry, stats, tables
from experiments.papers.base import Lines, Records, Sweep, draw
from experiments.stats import Answer, Arm, Claim, Inconclusive
from stragglers import reading

TITLE = "MG-WFBP"
SWEEPS = (
    Sweep("mg_wfbp", "--config=configs/mg_wfbp.py --sweep", 0.1),
    Sweep("mg_wfbp_paper", "--config=configs/mg_wfbp.py:paper", 0.01),
    Sweep("mg_wfbp_scale", "--config=configs/mg_wfbp.py:scale", 0.02),
)
BITS = "buckets change no result, bit for bit"


def change_nothing(arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge that the parameters of every arm are equal to plain all-reduce's, after equal updates.

    A published record has no parameters, so that its sweep's own verdict stands.
    """
    if "claims" in record:
        (text,) = (found for claim, found in record["claims"] if claim.startswith(BITS))
        verdict, _, measured = text.partition(": ")
        return Answer(verdict, measured)
    (plain_arm,) = stats.named(arms, "pmean")
    stats.equal("updates", *arms, within=0.0)
    stats.finite("train_loss", *arms)
    differ = [arm["name"] for arm in arms
              if not all(map(_same, arm["workdirs"], plain_arm["workdirs"]))]  # fmt: skip
    names = ", ".join(differ or [arm["name"] for arm in arms if arm is not plain_arm])
    words = "another result than" if differ else "the result of"
    measured = f"{words} pmean after {plain_arm['updates']:,.0f} updates: {names}"
    return Answer(stats.FAILS if differ else stats.HOLDS, measured)


def _same(one: Path, other: Path) -> bool:
    ours, theirs = (reading.arrays(run / records.PARAMETERS) for run in (one, other))
    return set(ours) == set(theirs) and all(np.array_equal(ours[k], theirs[k]) for k in ours)


def skilled(baseline: str) -> stats.Judge:
    """Return the judge of foreseen speed-ups: nearer than a constant, and correlated."""

    def judged(_, record: Mapping[str, Any]) -> Answer:
        found = {error["baseline"]: error for error in record["summary"]["errors"]}.get(baseline)
        if found is None or found["correlation"] is None:
            raise Inconclusive(f"too few runs over {baseline}")
        low, high = found["beyond_constant"]
        measured = (
            f"{found['runs']} runs: median error {found['median']:.0%}, a constant's "
            f"{found['constant_median']:.0%}, correlation {found['correlation']:.2f}"
        )
        good, bad = high < 0 and found["correlation"] >= 0.5, low > 0
        if not good and not bad:
            return Answer(stats.INCONCLUSIVE, measured, stats.NOISE)
        return Answer(stats.HOLDS if good else stats.FAILS, measured)

    return judged


def on_hosts(other: str) -> stats.Judge:
    """Return the judge of a step in the authors' buckets on two hosts, turn by turn of both."""

    def judged(_, record: Mapping[str, Any]) -> Answer:
        points = {
            point["schedule"]: point
            for point in record["summary"]["points"]
            if all(point[field] == value for field, value in ON_HOSTS.items())
        }
        ours, theirs = (
            {"name": name, "seeds": range(len(turns := points[name]["turns"])),
             "seconds": float(np.mean(turns)), "seconds_by_seed": turns}
            for name in (OURS, other)
        )  # fmt: skip
        return stats.compare(ours, theirs, "seconds")

    return judged


ON_HOSTS = {"model": "gpt", "rate": "200mbit"}  # of the points that claims are about
OURS = "greedy"  # the schedule that published runs call MG-WFBP
CLAIMS = (
    *(
        Claim(f"GPT, two hosts, 200 Mbit/s: a step takes less time than with {words}",
              "arXiv 1912.09268, experiments", "benchmarks/overlap", judge=on_hosts(other))
        for other, words in (("single", "a single all-reduce"), ("wfbp", "one per layer"))
    ),
    *(
        Claim(f"predicts published speed-ups over {words} better than a constant",
              "arXiv 1811.11141, experiments", "mg_wfbp_paper", judge=skilled(baseline))
        for baseline, words in (("single", "a single all-reduce"), ("wfbp", "WFBP"))
    ),
    Claim(BITS, "arXiv 1811.11141, Sec. 4", "mg_wfbp", judge=change_nothing),
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw simulated scaling efficiencies from 4 to 2048 workers, of three models."""
    return _figure(records("mg_wfbp_scale")["summary"]["curves"], most=3)


def _figure(curves: Sequence[Mapping[str, Any]], most: int | None = None) -> Figure:
    """Draw efficiency against workers, a row of panels for each of the first `most` traces."""
    traces, networks = (list(dict.fromkeys(curve[key] for curve in curves))
                        for key in ("trace", "network"))  # fmt: skip
    panels = []
    for trace, network in product(traces[:most], networks):
        points = [{"workers": workers, "efficiency": share, "schedule": curve["schedule"]}
                  for curve in curves if (curve["trace"], curve["network"]) == (trace, network)
                  for workers, share in zip(curve["workers"], curve["efficiency"], strict=True)]
        panels.append(Lines(f"{trace}, {network.replace('_', ', ')} Gbit/s", points, "workers",
                            "efficiency", "schedule", ("workers", "scaling efficiency"),
                            share=True))  # fmt: skip
    return draw(panels, columns=len(networks))


# --- how schedules scale: nothing is trained ---

COLLECTIVES = {
    "ring": cost.ring,
    "binary_tree": cost.binary_tree,
    "recursive_doubling": cost.recursive_doubling,
    "double_binary_tree": cost.double_binary_tree,
    "halving_doubling": cost.halving_doubling,
}


def _is_group(value) -> bool:
    return registry.is_count(value) and value > 1


ENTRIES = (
    (f"one or more of {', '.join(model_traces.NAMES)}, or paths of CSV files",
     registry.several(lambda name: name in model_traces.NAMES or model_traces.is_file(name)),
     ("traces",)),
    (f"one or more of {', '.join(iteration.SCHEDULES)}",
     registry.several(lambda value: value in tuple(iteration.SCHEDULES)), ("schedules",)),
    (f"one of {', '.join(COLLECTIVES)}", lambda v: v in tuple(COLLECTIVES), ("collective",)),
    ("numbers above 1", registry.several(_is_group), ("workers",)),
    ("a positive whole number", registry.is_count, ("batch",)),
)  # fmt: skip


def scale(config: ConfigDict) -> analysis.Analysis:
    """Return the efficiency of all schedules on all traces and networks, by workers.

    config: `traces`, names of `model_traces.NAMES`; `batch` and `flops_per_second` of a worker;
    `networks` {name: `alpha` (s) and `beta` (s per byte) of a ring's all-reduce over `workers`, a
    byte's addition in its transfer}; `collective`, a name of COLLECTIVES; `workers`; `schedules`;
    `at_workers`, the number of the table. Raise ValueError for a config that makes no sense.
    """
    registry.check(config, ENTRIES)
    networks = [f"networks.{network}.workers" for network in config.networks]
    simulated = ", ".join(map(str, config.workers))
    registry.check(config, [
        (f"one of config.workers, {simulated}", lambda v: v in config.workers, ("at_workers",)),
        ("a number above 1, that of the measured all-reduce", _is_group, networks),
    ])  # fmt: skip
    links = {}
    for network, measured in config.networks.items():
        ring = cost.ring(measured["workers"], 1.0, 1.0)
        links[network] = measured["alpha"] / ring.alpha, measured["beta"] / ring.beta
    links = dict(sorted(links.items(), key=lambda item: -item[1][1]))  # the slowest first
    curves = []
    for name in config.traces:
        trace = model_traces.build(name, config.batch, config.flops_per_second)
        for network, (alpha, beta) in links.items():
            cost_of = functools.partial(COLLECTIVES[config.collective], alpha=alpha, beta=beta)
            for schedule in config.schedules:
                found = iteration.scaling(trace, cost_of, config.workers, schedule)._asdict()
                curves.append({"trace": name, "network": network, "schedule": schedule}
                              | {key: column.tolist() for key, column in found.items()})
    at = list(config.workers).index(config.at_workers)
    table = tables.pivot(
        f"scaling efficiency, {config.at_workers} workers [%]",
        curves,
        lambda curve: f"{curve['trace']}, {curve['network']}",
        lambda curve: curve["schedule"].replace("_", " "),
        lambda curve: f"{100 * curve['efficiency'][at]:.1f}",
    )
    return analysis.Analysis({"curves": curves}, [table], _figure(curves))


# --- published speed-ups beside the model: nothing is trained ---


def published(config: ConfigDict) -> analysis.Analysis:
    """Return how many times faster MG-WFBP was than each baseline, published and in the model.

    config: `published`, {setting: `trace`, `compute` (s of an iteration of one worker), `workers`,
    `counted` among the errors, `alpha` (s) and `beta` (s per byte) of an all-reduce over them,
    `throughput` {schedule: samples per second, or 1 / s}, of which `greedy` is MG-WFBP}.
    """
    ratios, built = [], {}
    for setting, run in config.published.items():
        if run.trace not in built:  # any mini-batch and speed: the times are scaled
            built[run.trace] = model_traces.build(run.trace, 1, 1e12)
        trace = model_traces.at_compute(built[run.trace], run.compute)
        if trace.name == "googlenet":  # its backward pass was measured, only the rest is free
            trace = googlenet(forward_seconds=run.compute - float(built[run.trace].backward.sum()))
        affine = cost.AlphaBeta(run.alpha, run.beta)
        seconds = {
            schedule: iteration.iteration(trace, affine, schedule).seconds
            for schedule in (*run.throughput, "optimal")
        }
        rivals = dict(run.throughput)
        ours = rivals.pop(OURS)
        for baseline, throughput in rivals.items():
            ratios.append({
                "setting": setting, "workers": run.workers, "baseline": baseline,
                "published": ours / throughput, "greedy": seconds[baseline] / seconds[OURS],
                "optimal": seconds[baseline] / seconds["optimal"],
                "counted": run.get("counted", True),
            })  # fmt: skip
    baselines = list(dict.fromkeys(ratio["baseline"] for ratio in ratios))
    errors = [error for baseline in baselines if (error := _error(ratios, baseline))]
    table = tables.pivot(
        "speed-up of MG-WFBP: published | simulated | simulated with optimal buckets",
        ratios,
        lambda ratio: f"{ratio['setting']}, {ratio['workers']} workers".replace("_", " "),
        lambda ratio: f"over {ratio['baseline']}".replace("_", " "),
        lambda ratio: f"{ratio['published']:.2f} | {ratio['greedy']:.2f} | {ratio['optimal']:.2f}",
    )
    return analysis.Analysis({"ratios": ratios, "errors": errors}, [table], claims=CLAIMS)


def _error(ratios: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, Any] | None:
    """Return the model's errors beside a constant's, which knows nothing of a run."""
    ours = [ratio for ratio in ratios if ratio["baseline"] == baseline and ratio["counted"]]
    if not ours:
        return None
    known = np.log([ratio["published"] for ratio in ours])
    simulated = np.log([ratio["greedy"] for ratio in ours])
    # The constant is the median of the other runs.
    others = [np.median(np.delete(known, n)) if len(ours) > 1 else 0 for n in range(len(ours))]
    model, constant = np.abs(simulated - known), np.abs(np.array(others) - known)
    few = len(ours) < 3
    return {
        "baseline": baseline,
        "runs": len(ours),
        "median": float(np.expm1(np.median(model))),
        "constant_median": float(np.expm1(np.median(constant))),
        "beyond_constant": None if few else ttest_rel(model, constant).confidence_interval(),
        "correlation": None if few else float(np.corrcoef(simulated, known)[0, 1]),
    }
