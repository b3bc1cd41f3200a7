"""Learners that fail: the share of their time that goes into work which counts.

The question, and the shares 88 % and 58 %, are Decoupled DiLoCo's, arXiv 2604.21428. One analysis
plans schedules and trains nothing. The other kills processes while they train.
"""

import contextlib
import os
import random
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments import analysis, registry, stats, tables
from experiments.config_files import override
from experiments.papers.base import Lines, Panel, Records, Sweep, draw, is_positive
from experiments.prepare import RULE, Prepared, prepare
from experiments.stats import GOODPUT, Claim
from runtimes.asynchronous.runtime import AsynchronousRuntime
from stragglers.delays import bernoulli_slowdown
from stragglers.elastic import elastic_all_reduce
from stragglers.processes import from_law
from stragglers.rule import Setting
from stragglers.schedule import Event

TITLE = "Failures and goodput"
SWEEPS = (
    Sweep("goodput", "--config=configs/goodput.py", 0.07),
    Sweep("goodput_real", "--config=configs/goodput.py:real", 0.12),
)
OURS, ELASTIC, BARRIER = "Decoupled DiLoCo", "elastic all-reduce", "DiLoCo"
ROWS = 2**18  # contributions that are planned at once, about
EXACT = 1e-6  # relative error of a sum of seconds
WARM = 1.0  # s at the begin of a run that are left out


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
    """Draw goodput by learners and by failures, simulated, and of processes that are killed."""
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


ENTRIES = (
    ("positive whole numbers", registry.several(registry.is_count), ("workers",)),
    ("a positive whole number", registry.is_count, ("at_workers",)),
    ("positive seconds", registry.several(is_positive), ("betweens",)),
    ("positive seconds", is_positive, ("step", "between", "repair", "learner_seconds")),
    ("seconds, 0 or more", lambda v: v == 0 or is_positive(v), ("stop",)),
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
        tables.pivot(f"goodput by {words}", summary[f"by_{field}"], lambda point: point["method"],
                     lambda point, field=field: f"{point[field]:,.0f}",
                     lambda point: f"{point['goodput']:.1%}")
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
    """Yield the success of every method; between: s of work between two failures of a learner."""
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
    """Return the share of the learners' time in a rule's first `seconds` that counts."""
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


# --- processes that are killed while they train ---

KILLING = (
    ("positive seconds", is_positive, ("undisturbed", "every")),
    ("a positive whole number", registry.is_count, ("kills", "seeds")),
    ("methods, each a name, an algorithm and a waiting rule",
     lambda v: len(v) and all(len(method) == 3 for method in v), ("methods",)),
)  # fmt: skip


def kill(config: ConfigDict) -> analysis.Analysis:
    """Train and kill, for every method and seed; ValueError, at once, for a senseless config.

    A sample counts when the contribution that has it is in an update, so that the undelivered work
    of a killed process counts for nothing.
    """
    registry.check(config, KILLING)
    own = ConfigDict({name: entry for name, entry in config.to_dict().items()
                      if not any(name in names for _, _, names in KILLING)})  # fmt: skip
    arms = [
        (name, seed, prepare(override(own, {"algorithm": algorithm, "wait": wait, "seed": seed})))
        for seed in range(config.seed, config.seed + config.seeds)
        for name, algorithm, wait in config.methods
    ]
    if not all(isinstance(prepared.runtime, AsynchronousRuntime) for _, _, prepared in arms):
        raise ValueError(
            "killed learners: kills workers that are processes under a server; set "
            "config.runtime='actors' and methods with a server"
        )
    runs = [_run(name, seed, prepared, config) for name, seed, prepared in arms]
    methods = []
    for name, *_ in config.methods:
        own = [run for run in runs if run["name"] == name]
        methods.append({"name": name, "seeds": [run["seed"] for run in own]})
        for field in ("kills", "undisturbed", "disturbed", "share", "there"):
            values = [run[field] for run in own]
            methods[-1] |= {field: float(np.mean(values)), f"{field}_by_seed": values}
    rules = ", ".join(f"{name} under {registry.text(wait)}" for name, _, wait in config.methods)
    conditions = (
        f"{config.workers} processes of one machine, {config.undisturbed:g} s undisturbed, then a "
        f"kill every {config.every:g} s, {config.kills} in a run; a mini-batch sleeps for "
        f"{registry.text(config.delay)} s; {rules}"
    )
    table = stats.Numbers(
        "goodput while learners are killed",
        ("method", "samples/s", "with kills", "goodput", "learners there", "kills"),
        [(row["name"], f"{row['undisturbed']:,.0f}", f"{row['disturbed']:,.0f}",
          stats.shown(row, "share"), stats.shown(row, "there"), f"{row['kills']:g}")
         for row in methods],
    )  # fmt: skip
    return analysis.Analysis({"methods": methods, "runs": runs}, [table, conditions], claims=CLAIMS)


def _run(name: str, seed: int, prepared: Prepared, config: ConfigDict) -> dict[str, Any]:
    """Train undisturbed, then kill `config.kills` processes, one every `config.every` seconds."""
    runtime, draw = prepared.runtime, random.Random(seed)
    with contextlib.closing(runtime):
        first = runtime.start(prepared.task.init(jax.random.key(seed)))
        begin, _ = runtime.advance(first, WARM)
        middle, _ = runtime.advance(begin, begin.seconds + config.undisturbed)
        rows, end = [], middle
        for number in range(1, config.kills + 1):
            with contextlib.suppress(IndexError, ProcessLookupError):  # nobody is ready, or left
                pids = runtime.pids()
                os.kill(pids[draw.choice(sorted(pids))], signal.SIGKILL)
            end, schedule = runtime.advance(end, middle.seconds + number * config.every)
            rows.append(schedule)
        _, schedule = runtime.advance(end, np.inf, 1)  # losses are known with the next update
        rows = [schedule for schedule in (*rows, schedule) if schedule is not None]
    alone, among_kills = (
        (after.samples - before.samples) / (after.seconds - before.seconds)
        for before, after in ((begin, middle), (middle, end))
    )
    absent = absences([event for schedule in rows for event in schedule.events], end.seconds)
    away = sum(until - since for since, until in absent)
    there = 1 - away / (config.workers * (end.seconds - middle.seconds))
    return {
        "name": name, "seed": seed, "kills": end.deaths - middle.deaths,
        "undisturbed": alone, "disturbed": among_kills,  # samples/s
        "share": among_kills / alone, "there": there,  # goodput, and time with a process
    }  # fmt: skip


def absences(events: Iterable[Event], end: float) -> list[tuple[float, float]]:
    """Return for each loss of a worker its time and that of its return, or `end`, in seconds."""
    lost, absent = {}, []
    for event in events:
        if event.kind == "lost":
            lost.setdefault(event.worker, event.time)
        elif event.worker in lost:
            absent.append((lost.pop(event.worker), min(event.time, end)))
    return absent + [(time, end) for time in lost.values() if time < end]
