"""Learners that fail: the share of their time that goes into work which counts.

The question, and the shares 88 % and 58 %, are Decoupled DiLoCo's, arXiv 2604.21428. One analysis
plans schedules and trains nothing. The other kills processes while they train.
"""

import contextlib
import functools
import math
import os
import random
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, ScalarFormatter
from ml_collections import ConfigDict

from experiments import analysis, entries, parts, stats
from experiments.figures import COLOURS, DASHES, plain, save
from experiments.papers.base import Records, Sweep
from experiments.prepare import Prepared, prepare
from experiments.stats import Answer, Claim, Inconclusive
from experiments.waiting import RULE
from runtimes.actors import Actors
from stragglers.delays import bernoulli_slowdown
from stragglers.elastic import elastic_all_reduce
from stragglers.processes import from_law
from stragglers.rule import Setting
from stragglers.schedule import Event

TITLE = "Failures and goodput"
SWEEPS = (
    Sweep("goodput", "--config=configs/goodput.py", 0.07),
    Sweep("goodput_real", "--config=configs/goodput_real.py", 0.12),
)
OURS, ELASTIC, BARRIER = "Decoupled DiLoCo", "elastic all-reduce", "DiLoCo"
OURS_THERE, ELASTIC_THERE = 0.88, 0.58  # the paper's shares
ROWS = 2**18  # contributions that are planned at once, about
EXACT = 1e-6  # relative error of a sum of seconds
WARM = 1.0  # s at the begin of a run that are left out


def keeps_more(_, record: Mapping[str, Any]) -> Answer:
    """Judge both goodputs where elastic all-reduce crosses its share, between two numbers."""
    ours, theirs = (_of(record["summary"]["by_workers"], method) for method in (OURS, ELASTIC))
    shares = [point["goodput"] for point in theirs]
    crossed = [n for n in range(1, len(shares)) if shares[n] <= ELASTIC_THERE < shares[n - 1]]
    if len(crossed) != 1:
        raise Inconclusive(
            f"{ELASTIC} has {min(shares):.0%} to {max(shares):.0%}, and crosses "
            f"{ELASTIC_THERE:.0%} {len(crossed)} times; vary config.workers or the failures"
        )
    after = crossed[0]
    way = (shares[after - 1] - ELASTIC_THERE) / (shares[after - 1] - shares[after])
    logs = np.log2([theirs[after - 1]["workers"], theirs[after]["workers"]])
    kept = ours[after - 1]["goodput"]
    kept += way * (ours[after]["goodput"] - kept)
    learners = 2 ** (logs[0] + way * (logs[1] - logs[0]))
    measured = f"about {learners:,.0f} learners, where {OURS} keeps {kept:.1%}"
    return Answer(stats.of_all(int(kept >= OURS_THERE), 1), measured)


def does_not_fall(_, record: Mapping[str, Any]) -> Answer:
    """Judge the goodput with the most learners beside that with the fewest."""
    points = _of(record["summary"]["by_workers"], OURS)
    few, many = points[0], points[-1]
    if few["workers"] == many["workers"]:
        raise Inconclusive("one number of learners was simulated")
    measured = (
        f"{few['goodput']:.1%} of {few['workers']:,} learners' time, {many['goodput']:.1%} of that "
        f"of {many['workers']:,}"
    )
    return Answer(stats.of_all(int(many["goodput"] >= 0.98 * few["goodput"]), 1), measured)


def _of(points: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    """Return the points of a method, the fewest learners first."""
    found = sorted((p for p in points if p["method"] == method), key=lambda p: p["workers"])
    if not found:
        raise Inconclusive(f"{method} was not simulated")
    return found


def keeps_more_than_a_barrier(_, record: Mapping[str, Any]) -> Answer:
    """Judge the share of samples per second that both methods keep while processes are killed."""
    barrier, ours = stats.named(record["summary"]["methods"], BARRIER, OURS)
    found = stats.compare(barrier, ours, "share")
    measured = f"{stats.shown(ours, 'share')} against {stats.shown(barrier, 'share')}"
    return found._replace(measured=measured)


def loses_no_more(_, record: Mapping[str, Any]) -> Answer:
    """Judge the share of samples beside the share of the learners' time with a process."""
    (ours,) = stats.named(record["summary"]["methods"], OURS)
    there = ours | {"share": ours["there"], "share_by_seed": ours["there_by_seed"]}
    found = stats.compare(there, ours, "share", 1 / 0.95)
    measured = f"{stats.shown(ours, 'share')} of samples, {stats.shown(there, 'share')} of learners"
    return found._replace(measured=measured)


PAPER = "arXiv 2604.21428"
CLAIMS = (
    Claim(f"{OURS} keeps 88 % of the learners' time where {ELASTIC} has 58 %", PAPER, "goodput",
          judge=keeps_more),
    Claim(f"{OURS} keeps with the most learners 98 % of what it keeps with the fewest", PAPER,
          "goodput", judge=does_not_fall),
    Claim(f"while processes are killed {OURS} keeps a larger share than {BARRIER}", PAPER,
          "goodput_real", judge=keeps_more_than_a_barrier),
    Claim(f"{OURS} keeps at least 95 % of the share of learners that are there", "",
          "goodput_real", judge=loses_no_more),
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw goodput by learners and by failures, simulated, and of processes that are killed."""
    canvas = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    panels = canvas.subplots(1, 3, sharey=True)
    _lines(panels[:2], records("goodput")["summary"])
    for place, method in enumerate(records("goodput_real")["summary"]["methods"]):
        aside = place + np.linspace(0.14, 0.34, len(method["share_by_seed"]))
        panels[2].plot(aside, method["there_by_seed"], "_", color="0.4", markersize=10)
        panels[2].plot(aside, method["share_by_seed"], ".", color=COLOURS[1], markersize=6)
        panels[2].plot(place, method["share"], "o", color=COLOURS[0], markersize=8)
    names = [method["name"] for method in records("goodput_real")["summary"]["methods"]]
    panels[2].set_xticks(range(len(names)), names)
    panels[2].set_xlim(-0.5, len(names) - 0.5)
    panels[0].set_title("simulated", fontsize=9)
    panels[1].set_title("simulated", fontsize=9)
    panels[2].set_title("processes, some of them killed", fontsize=9)
    plain(panels[2])
    canvas.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    canvas.supxlabel("A large dot is the mean of the seeds, a small one a seed, and a dash the "
                     "share of its learners' time with a process.", fontsize=8)  # fmt: skip
    return canvas


def _lines(panels: Sequence[Axes], summary: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw goodput against learners and against hours between failures, a line per method."""
    for axes, axis, place, label in (
        (panels[0], "by_workers", lambda p: p["workers"], "learners"),
        (panels[1], "by_between", lambda p: p["between"] / 3600, "h between failures of one"),
    ):
        methods = dict.fromkeys(point["method"] for point in summary[axis])
        for number, method in enumerate(methods):
            line = [point for point in summary[axis] if point["method"] == method]
            axes.plot([place(p) for p in line], [p["goodput"] for p in line], "o",
                      linestyle=DASHES[number % len(DASHES)], color=COLOURS[number],
                      markersize=4, label=method if axis == "by_workers" else None)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted({place(p) for p in summary[axis]})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.set(xlabel=label, ylim=(0, 1))
        plain(axes)
    panels[0].set_ylabel("goodput")


# --- schedules of learners that fail: nothing is trained ---


def _is_positive(value) -> bool:
    return entries.is_number(value) and 0 < value < math.inf


ENTRIES = (
    ("positive whole numbers", entries.several(entries.is_count), ("workers",)),
    ("a positive whole number", entries.is_count, ("at_workers",)),
    ("positive seconds", entries.several(_is_positive), ("betweens",)),
    ("positive seconds", _is_positive, ("step", "between", "repair", "learner_seconds")),
    ("seconds, 0 or more", lambda v: v == 0 or _is_positive(v), ("stop",)),
    entries.SEED,
    ("rules, each a name, a number of mini-batches and a waiting rule",
     lambda v: len(v) and all(len(r) == 3 and entries.is_count(r[1]) for r in v), ("rules",)),
)  # fmt: skip


class Point(NamedTuple):
    """The success of a method with a number of learners."""

    method: str
    workers: int
    between: float  # s of work between two failures of a learner
    goodput: float  # share of the learners' seconds that went into mini-batches which count
    taking_part: float | None  # mean share of the learners in an update; None: no updates of a rule
    staleness: float | None  # updates between reading a model and using what was made of it


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return goodputs by learners and by failures; ValueError for a config that makes no sense.

    A learner fails at random: one of its mini-batches takes longer, by the time for which it is
    away. The work since its last push is lost, so that a contribution with a failure counts for
    nothing. Elastic all-reduce, which loses a step and stops to form a new group, is
    `stragglers.elastic`. All methods see the same failures.
    """
    entries.check(config, ENTRIES)
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
        "by_workers": [point._asdict() for workers in config.workers
                       for point in _points(config, workers, config.between)],
        "by_between": [point._asdict() for between in config.betweens
                       for point in _points(config, config.at_workers, between)],
    }  # fmt: skip
    assumed = (
        f"assumed: steps of {config.step:g} s; a learner fails at random, after {config.between:g} "
        f"s of work on average, is away for {config.repair:g} s and loses its work since its last "
        f"push; {ELASTIC} loses the step and stops for {config.stop:g} s when a learner fails and "
        "when it is back; links take no time, and nothing else is slow"
    )
    claims = [claim for claim in CLAIMS if claim.record == "goodput"]
    return analysis.Analysis(summary, [*_tables(summary), assumed],
                             functools.partial(_draw, summary), claims)  # fmt: skip


def _law(config: ConfigDict, between: float):
    """Return the distribution of a mini-batch in which the learner fails now and then."""
    return bernoulli_slowdown(config.step, 1 + config.repair / config.step, config.step / between)


def _rule(config: ConfigDict, part, mini_batches: int, workers: int, between: float):
    setting = Setting(_law(config, between), workers, mini_batches, config.seed)
    return RULE.build(parts.spec(part), setting=setting)


def _points(config: ConfigDict, workers: int, between: float) -> Iterator[Point]:
    seconds = config.learner_seconds / workers
    for name, mini_batches, part in config.rules:
        rule = _rule(config, part, mini_batches, workers, between)
        yield Point(name, workers, between, *_of_rule(rule, config.step, seconds))
    process = from_law(_law(config, between)).seeded(config.seed)
    ran = elastic_all_reduce(process, workers, config.step, config.stop, seconds)
    share = ran.mini_batches * config.step / (workers * ran.seconds)
    yield Point(ELASTIC, workers, between, share, None, None)


def _of_rule(rule, step: float, seconds: float) -> tuple[float, float, float]:
    """Return goodput, share of learners in an update and staleness in a rule's first `seconds`."""
    state, counted, there, stale, updates, time = rule.init(), 0, 0, 0, 0, 0.0
    most = 64
    while time < seconds:
        state, schedule = rule.extend(state, most)
        most = min(2 * most, max(64, ROWS // schedule.workers.shape[1]))
        landed = schedule.slice(0, int(np.searchsorted(schedule.time, seconds, side="right")))
        if not landed.updates:
            break
        real = landed.batches > 0
        whole = landed.busy < landed.batches * step * (1 + EXACT)
        counted += int(landed.batches[whole].sum())
        there += int(real.sum())
        stale += int(landed.staleness[real].sum())
        updates, time = updates + landed.updates, float(landed.time[-1])
        if landed.updates < schedule.updates:
            break
    if not updates:
        raise ValueError(
            f"goodput: {rule.workers} learners make no update in {seconds:g} s; set "
            "config.learner_seconds to more"
        )
    goodput = counted * step / (rule.workers * time)
    return goodput, there / updates / rule.workers, stale / there


def _tables(summary: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[stats.Numbers]:
    """Give the goodput of every method along each axis, then who takes part at its end."""
    for axis, place, title in (
        ("by_workers", "workers", "goodput by number of learners"),
        ("by_between", "between", "goodput by seconds between failures of a learner"),
    ):
        places = dict.fromkeys(f"{point[place]:,.0f}" for point in summary[axis])
        rows = []
        for method in dict.fromkeys(point["method"] for point in summary[axis]):
            line = [point for point in summary[axis] if point["method"] == method]
            last, ends = line[-1], ("–", "–")
            if last["taking_part"] is not None:
                ends = f"{last['taking_part']:.1%}", f"{last['staleness']:,.1f}"
            rows.append((method, *(f"{point['goodput']:.1%}" for point in line), *ends))
        yield stats.Numbers(title, ("method", *places, "in an update", "staleness"), rows)


def _draw(summary: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Write a PNG of 1200x600 pixels: goodput against learners, and against failures."""
    canvas = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    _lines(canvas.subplots(1, 2, sharey=True), summary)
    canvas.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save(canvas, path)


# --- processes that are killed while they train ---

KILLING = (
    ("positive seconds", _is_positive, ("undisturbed", "every")),
    ("a positive whole number", entries.is_count, ("kills", "seeds")),
    ("methods, each a name, an algorithm and a waiting rule",
     lambda v: len(v) and all(len(method) == 3 for method in v), ("methods",)),
)  # fmt: skip


class Run(NamedTuple):
    """A run of one method, first undisturbed, then with kills."""

    name: str
    seed: int
    kills: int
    undisturbed: float  # samples/s
    disturbed: float  # samples/s while processes are killed
    share: float  # the second over the first: goodput
    there: float  # share of the learners' time in which they had a process, while some are killed
    away: float  # s for which a killed one was away, on average, until the end of the run at most
    meanwhile: int  # updates that were made while a killed one was away
    train_loss: float  # at the end


def kill(config: ConfigDict) -> analysis.Analysis:
    """Train and kill, for every method and seed; ValueError, at once, for a senseless config.

    A sample counts when the contribution that has it is in an update, so that the undelivered work
    of a killed process counts for nothing.
    """
    entries.check(config, KILLING)
    arms = [(name, seed, prepare(_arm(config, algorithm, wait, seed)))
            for seed in range(config.seed, config.seed + config.seeds)
            for name, algorithm, wait in config.methods]  # fmt: skip
    if not all(isinstance(prepared.runtime, Actors) for _, _, prepared in arms):
        raise ValueError(
            "killed learners: kills workers that are processes under a server; set "
            "config.runtime='actors' and methods with a server"
        )
    runs = [_run(name, seed, prepared, config) for name, seed, prepared in arms]
    methods = [of_seeds([run for run in runs if run.name == name]) for name, *_ in config.methods]
    rules = ", ".join(f"{name} under {parts.text(wait)}" for name, _, wait in config.methods)
    conditions = (
        f"{config.workers} processes of one machine, {config.undisturbed:g} s undisturbed, then a "
        f"kill every {config.every:g} s, {config.kills} in a run; a mini-batch sleeps for "
        f"{parts.text(config.delay)} s; {rules}"
    )
    table = stats.Numbers(
        "goodput while learners are killed",
        ("method", "samples/s", "with kills", "goodput", "learners there", "away [s]",
         "updates meanwhile", "kills", "loss"),
        [
            (row["name"], f"{row['undisturbed']:,.0f}", f"{row['disturbed']:,.0f}",
             stats.shown(row, "share"), f"{row['there']:.1%}", f"{row['away']:.1f}",
             str(row["meanwhile"]), str(row["kills"]), f"{row['train_loss']:.3f}")
            for row in methods
        ],
    )  # fmt: skip
    summary = {"methods": methods, "runs": [run._asdict() for run in runs]}
    claims = [claim for claim in CLAIMS if claim.record == "goodput_real"]
    return analysis.Analysis(summary, [table, conditions], claims=claims)


def _arm(config: ConfigDict, algorithm: str, wait: str, seed: int) -> ConfigDict:
    own = ConfigDict(config.to_dict())
    for _, _, names in KILLING:
        for name in names:
            del own[name]
    own.algorithm, own.wait, own.seed = parts.as_part(algorithm), parts.as_part(wait), seed
    return own


def _run(name: str, seed: int, prepared: Prepared, config: ConfigDict) -> Run:
    """Train undisturbed, then kill `config.kills` processes, one every `config.every` seconds."""
    task, runtime, draw = prepared.task, prepared.runtime, random.Random(seed)
    with contextlib.closing(runtime):
        first = runtime.start(task.init(jax.random.key(seed)))
        begin, _ = runtime.advance(first, WARM)
        middle, _ = runtime.advance(begin, begin.seconds + config.undisturbed)
        rows, end = [], middle
        for number in range(1, config.kills + 1):
            kill_one(runtime.pids(), draw)
            end, schedule = runtime.advance(end, middle.seconds + number * config.every)
            rows.append(schedule)
        _, schedule = runtime.advance(end, np.inf, 1)  # losses are known with the next update
        rows = [schedule for schedule in (*rows, schedule) if schedule is not None]
        model = jax.tree.map(lambda leaf: leaf[0], runtime.models(end))
        loss = float(jnp.mean(task.losses(model, jax.tree.map(jnp.asarray, task.train))))
    alone, among_kills = rate(begin, middle), rate(middle, end)
    absent = absences([event for schedule in rows for event in schedule.events], end.seconds)
    seconds = [until - since for since, until in absent]
    updates = np.concatenate([schedule.time for schedule in rows])
    return Run(
        name,
        seed,
        kills=end.deaths - middle.deaths,
        undisturbed=alone,
        disturbed=among_kills,
        share=among_kills / alone,
        there=1 - sum(seconds) / (config.workers * (end.seconds - middle.seconds)),
        away=float(np.mean(seconds)) if absent else 0.0,
        meanwhile=sum(any(since < time < until for since, until in absent) for time in updates),
        train_loss=loss,
    )


def kill_one(pids: Mapping[int, int], draw: random.Random) -> None:
    """Kill the process of one of the workers that are ready, if there is any."""
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[draw.choice(sorted(pids))], signal.SIGKILL)


def rate(before, after) -> float:
    """Return samples per second between two snapshots of a run."""
    return (after.samples - before.samples) / (after.seconds - before.seconds)


def absences(events: Iterable[Event], end: float) -> list[tuple[float, float]]:
    """Return for each loss of a worker its time and that of its return, or `end`, in seconds."""
    lost, absent = {}, []
    for event in events:
        if event.kind == "lost":
            lost.setdefault(event.worker, event.time)
        elif event.worker in lost:
            absent.append((lost.pop(event.worker), min(event.time, end)))
    return absent + [(time, end) for time in lost.values() if time < end]


def of_seeds(runs: Sequence[Run]) -> dict[str, Any]:
    """Return means over the runs of a method, and every seed's share."""
    return {
        "name": runs[0].name,
        "seeds": [run.seed for run in runs],
        "kills": sum(run.kills for run in runs),
        "meanwhile": sum(run.meanwhile for run in runs),
        **{field: float(np.mean([getattr(run, field) for run in runs]))
           for field in ("undisturbed", "disturbed", "share", "there", "away", "train_loss")},
        "share_std": (float(np.std([run.share for run in runs], ddof=1)) if len(runs) > 1
                      else None),
        "share_by_seed": [run.share for run in runs],
        "there_by_seed": [run.there for run in runs],
    }  # fmt: skip
