"""MG-WFBP (Shi, Chu, Li, arXiv 1811.11141 and 1912.09268): gradients merged into buckets.

The analysis trains nothing: it computes how schedules scale in the model of `comms.iteration`.
"""

import functools
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from comms import cost, iteration
from experiments import analysis, model_traces, records, registry, stats, tables
from experiments.papers.base import HEADLINE, Lines, Records, Sweep, draw
from experiments.stats import Answer, Arm, Claim
from stragglers import reading

TITLE = "MG-WFBP"
SWEEPS = (
    Sweep("mg_wfbp", "--config=configs/mg_wfbp.py --sweep", 0.1, HEADLINE),
    Sweep("mg_wfbp_scale", "--config=configs/mg_wfbp.py:scale", 0.02, HEADLINE),
)
BITS = "buckets change no result, bit for bit"
PLAIN = "in one program"  # the schedule with all-reduces inside XLA's program


def change_nothing(arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge the claim that after equal updates every arm has the parameters of plain all-reduce.

    A published record has no parameters, so that the verdict written by its sweep stands.
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


def never_slower(other: str, arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge the claim that greedy buckets are never slower than another schedule in simulation.

    A case is a layer trace on a network with a number of workers. Nothing is drawn by chance.
    """
    seconds = {(arm["trace"], arm["network"], arm["schedule"]): np.array(arm["seconds"])
               for arm in arms}  # fmt: skip
    pairs = [(taken, seconds[greedy]) for (trace, network, schedule), taken in seconds.items()
             if schedule == other
             and (greedy := (trace, network, "greedy")) in seconds]  # fmt: skip
    if not pairs:
        raise stats.Inconclusive(f"there are no cases of greedy and {other}")
    faster = np.concatenate([theirs / ours for theirs, ours in pairs])
    low, middle, high = np.quantile(faster, (0.0, 0.5, 1.0))
    measured = f"{low:.2f}x to {high:.2f}x as fast, median {middle:.2f}x, in {faster.size} cases"
    return Answer(stats.HOLDS if low > 1 - stats.ROUNDING else stats.FAILS, measured)


def faster_in_cells(other: str, arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge the claim that on two hosts greedy buckets make a step faster than `other` everywhere.

    A cell is a model on links of a rate. Repeated turns of a schedule are tested as seeds are.
    Cells in which both have one bucket, in threads, are no comparison.
    """
    points = [arm for arm in arms if arm["hosts"] == 2]
    cells = sorted({(arm["model"], arm["rate"]) for arm in points})
    found, ratios = [], []
    for model, rate in cells:
        ours, theirs = (
            stats.point(points, {"model": model, "rate": rate, "schedule": name}, "turns")
            for name in ("greedy", other)
        )
        if other != PLAIN and ours["buckets"] == theirs["buckets"] == 1:
            continue
        found.append(stats.compare(ours, theirs, "turns").verdict)
        ratios.append(ours["turns"] / theirs["turns"])
    holds, fails = found.count(stats.HOLDS), found.count(stats.FAILS)
    measured = (f"{min(ratios):.2f}x to {max(ratios):.2f}x the time; faster in {holds} of "
                f"{len(found)} cells, slower in {fails}")  # fmt: skip
    if fails or holds == len(found):
        return Answer(stats.FAILS if fails else stats.HOLDS, measured)
    return Answer(stats.INCONCLUSIVE, measured, stats.NOISE)


CLAIMS = (
    *(
        Claim(f"simulated rings of 4 to 2,048: greedy is never slower than {words}",
              "arXiv 1811.11141, abstract", "mg_wfbp_scale",
              judge=functools.partial(never_slower, other), headline=True)
        for other, words in (("single", "a single all-reduce"), ("wfbp", "one per layer"))
    ),
    Claim("simulated rings of 4 to 2,048: greedy is never slower than 25 MB each", "",
          "mg_wfbp_scale", judge=functools.partial(never_slower, "fixed")),
    *(
        Claim(f"two hosts, three models, three rates: greedy buckets are faster than {words}",
              "arXiv 1912.09268, experiments", "benchmarks/overlap",
              judge=functools.partial(faster_in_cells, other), headline=True)
        for other, words in (("single", "a single all-reduce"), ("wfbp", "one per layer"),
                             (PLAIN, "a program without threads"))
    ),
    Claim(BITS, "arXiv 1811.11141, Sec. 4", "mg_wfbp", judge=change_nothing, headline=True),
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


def scale(config: ConfigDict) -> analysis.Analysis:
    """Return the efficiency of all schedules on all traces and networks, by workers.

    config: `traces`, names of `model_traces.NAMES`; `batch` and `flops_per_second` of a worker;
    `networks` {name: `alpha` (s) and `beta` (s per byte) of a ring's all-reduce over `workers`,
    where a byte's transfer includes its addition}; `collective`, a name of COLLECTIVES; `workers`;
    `schedules`; `at_workers`, the number of workers in the table. Raises ValueError for a config
    that makes no sense.
    """
    registry.check(config, [
        (f"one of {', '.join(COLLECTIVES)}", lambda v: v in tuple(COLLECTIVES), ("collective",)),
        ("positive whole numbers", registry.several(registry.is_count), ("workers",)),
        ("a positive whole number", registry.is_count, ("batch",)),
    ])  # fmt: skip
    networks = [f"networks.{network}.workers" for network in config.networks]
    simulated = ", ".join(map(str, config.workers))
    registry.check(config, [
        (f"one of config.workers, {simulated}", lambda v: v in config.workers, ("at_workers",)),
        ("a number above 1, that of the measured all-reduce",
         lambda v: registry.is_count(v) and v > 1, networks),
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
        {(f"{curve['trace']}, {curve['network']}", curve["schedule"].replace("_", " ")):
         f"{100 * curve['efficiency'][at]:.1f}" for curve in curves},
    )  # fmt: skip
    return analysis.Analysis({"curves": curves}, [table], _figure(curves), CLAIMS)
