"""Failures of learners: the share of the learners' time that goes into work which counts.

The question, and the shares 88 % and 58 %, are Decoupled DiLoCo's, arXiv 2604.21428. The analysis
plans schedules and trains nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments import analysis, registry, tables
from experiments.papers.base import Lines, Panel, Records, Sweep, draw
from experiments.prepare import RULE
from experiments.stats import GOODPUT, Claim
from stragglers.delays import bernoulli_slowdown
from stragglers.elastic import elastic_all_reduce
from stragglers.processes import from_law
from stragglers.rule import Setting

TITLE = "Failures and goodput"
SWEEPS = (Sweep("goodput", "--config=configs/goodput.py", 0.02),)
OURS, ELASTIC, BARRIER = "Decoupled DiLoCo", "elastic all-reduce", "DiLoCo"
ROWS = 2**18  # contributions that are planned at once, roughly
EXACT = 1e-6  # relative error of a sum of seconds
PAPER = "arXiv 2604.21428"
CLAIMS = (
    Claim(f"512 learners: {OURS} keeps 88/58 of what {ELASTIC} keeps", PAPER, "goodput",
          {"method": OURS, "workers": 512}, {"method": ELASTIC, "workers": 512}, GOODPUT, 88 / 58),
    Claim(f"1,000 learners: {OURS} keeps 98 % of what it keeps with 8", PAPER, "goodput",
          {"method": OURS, "workers": 1000}, {"method": OURS, "workers": 8}, GOODPUT, 0.98),
    Claim(f"while processes are killed {BARRIER} keeps a smaller share of its samples than {OURS}",
          PAPER, "goodput_real", BARRIER, OURS, "share"),
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw simulated goodput by learners and by failures; speed and uptime of killed processes."""
    names = {OURS: OURS, BARRIER: BARRIER}
    return draw([
        *_panels(records("goodput")["summary"]),
        Panel("processes killed: speed", "goodput_real", names, "share",
              "samples per second over those without kills"),
        Panel("processes killed: learners there", "goodput_real", names, "there",
              "share of the learners' time with a process"),
    ], records)  # fmt: skip


def _panels(summary: Mapping[str, Any]) -> list[Lines]:
    labels = {"workers": "learners", "between": "seconds between failures of one"}
    return [Lines("simulated", summary[f"by_{field}"], field, "goodput", "method",
                  (label, "goodput"), share=True) for field, label in labels.items()]  # fmt: skip


# --- schedules of learners that fail: nothing is trained ---


def _is_positive(value) -> bool:
    return registry.is_number(value) and 0 < value < np.inf


ENTRIES = (
    ("positive whole numbers", registry.several(registry.is_count), ("workers",)),
    ("a positive whole number", registry.is_count, ("at_workers",)),
    ("positive seconds", registry.several(_is_positive), ("betweens",)),
    ("positive seconds", _is_positive, ("step", "between", "repair", "learner_seconds")),
    ("seconds, 0 or more", lambda v: v == 0 or _is_positive(v), ("stop",)),
    registry.SEED,
    ("rules, each a name, a number of mini-batches and a waiting rule",
     lambda v: len(v) and all(len(r) == 3 and registry.is_count(r[1]) for r in v), ("rules",)),
)  # fmt: skip


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return goodputs by learners and by failures; ValueError for a config that makes no sense.

    A learner fails at random: one of its mini-batches takes longer, by the time for which it is
    away. The work since its last push is lost, so that a contribution with a failure counts for
    nothing. Elastic all-reduce, which loses a step and stops to form a new group, is
    `stragglers.elastic`. All methods see the same failures.
    """
    registry.check(config, ENTRIES)
    shortest = min(config.between, *config.betweens)
    if shortest < 2 * config.step:
        raise ValueError(
            f"goodput: a learner fails every {shortest:g} s, and a step takes {config.step:g} s; "
            "let it have at least two steps between failures"
        )
    for name, mini_batches, rule in config.rules:
        _rule(config, rule, mini_batches, min(*config.workers, config.at_workers), shortest)
        if name == ELASTIC:
            raise ValueError(f"goodput: {ELASTIC} is no waiting rule; give {rule!r} another name")
    summary = {
        "by_workers": [point for workers in config.workers
                       for point in _points(config, workers, config.between)],
        "by_between": [point for between in config.betweens
                       for point in _points(config, config.at_workers, between)],
    }  # fmt: skip
    assumed = (
        f"assumed: steps of {config.step:g} s; a learner fails at random, after {config.between:g} "
        f"s of work on average, is away for {config.repair:g} s and loses its work since its last "
        f"push; {ELASTIC} loses the step and stops for {config.stop:g} s when a learner fails and "
        "when it is back; links take no time, and nothing else is slow"
    )
    titles = {"workers": "number of learners", "between": "seconds between failures of a learner"}
    shown = [
        tables.pivot(f"goodput by {words}", {
            (point["method"], f"{point[field]:,.0f}"): f"{point['goodput']:.1%}"
            for point in summary[f"by_{field}"]
        })
        for field, words in titles.items()
    ]  # fmt: skip
    return analysis.Analysis(summary, [*shown, assumed], draw(_panels(summary)), CLAIMS)


def _law(config: ConfigDict, between: float):
    """Return the distribution of a mini-batch in which the learner fails now and then."""
    return bernoulli_slowdown(config.step, 1 + config.repair / config.step, config.step / between)


def _rule(config: ConfigDict, part, mini_batches: int, workers: int, between: float):
    setting = Setting(_law(config, between), workers, mini_batches, config.seed)
    return RULE.build(registry.spec(part), setting=setting)


def _points(config: ConfigDict, workers: int, between: float) -> Iterator[dict[str, Any]]:
    """Yield the goodput of every method; between: s of work between two failures of a learner."""
    seconds = config.learner_seconds / workers
    place = {"workers": workers, "between": between}
    for name, mini_batches, part in config.rules:
        rule = _rule(config, part, mini_batches, workers, between)
        yield {"method": name, **place, "goodput": _goodput(rule, config.step, seconds)}
    process = from_law(_law(config, between)).seeded(config.seed)
    ran = elastic_all_reduce(process, workers, config.step, config.stop, seconds)
    share = ran.mini_batches * config.step / (workers * ran.seconds)
    yield {"method": ELASTIC, **place, "goodput": share}


def _goodput(rule, step: float, seconds: float) -> float:
    """Return the share of the learners' time that goes into counted work in the first `seconds`."""
    state, counted, time, most = rule.init(), 0, 0.0, 64
    while time < seconds:
        state, schedule = rule.extend(state, most)
        most = min(2 * most, max(64, ROWS // schedule.workers.shape[1]))
        landed = schedule.slice(0, int(np.searchsorted(schedule.time, seconds, side="right")))
        if landed.updates:
            whole = landed.busy < landed.batches * step * (1 + EXACT)
            counted, time = counted + int(landed.batches[whole].sum()), float(landed.time[-1])
        if landed.updates < schedule.updates:
            break
    if not time:
        raise ValueError(
            f"goodput: {rule.workers} learners make no update in {seconds:g} s; set "
            "config.learner_seconds to more"
        )
    return counted * step / (rule.workers * time)
