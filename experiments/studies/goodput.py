"""Which share of the time of learners that fail goes into work that counts; nothing is trained.

A learner fails at random: one of its mini-batches then takes longer, by the time for which the
learner is away. What it has done since its last push is lost with it, so that a contribution with a
failure counts for nothing. Who waits for whom is up to the waiting rule; elastic all-reduce, which
loses a step and stops to form a new group, is `stragglers.elastic`. All see the same failures.

The question, and the shares 88 % and 58 %, are Decoupled DiLoCo's, arXiv 2604.21428.
"""

import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from experiments import entries, parts, premises
from experiments.reports.figure import COLOURS, DASHES, save
from experiments.studies import axes as look
from experiments.studies.study import Study
from experiments.waiting import RULE
from stragglers.delays import bernoulli_slowdown
from stragglers.elastic import elastic_all_reduce
from stragglers.processes import from_law
from stragglers.rule import Setting

OURS, ELASTIC = "Decoupled DiLoCo", "elastic all-reduce"
OURS_THERE, ELASTIC_THERE = 0.88, 0.58  # the paper's shares
KEPT = 0.98  # of a goodput, which counts as none of it lost
ROWS = 2**18  # contributions that are planned at once, about
EXACT = 1e-6  # relative error of a sum of seconds


def _is_positive(value) -> bool:
    return entries.is_number(value) and 0 < value < math.inf


ENTRIES = (
    ("positive whole numbers", entries.several(entries.is_count), ("workers",)),
    ("a positive whole number", entries.is_count, ("at_workers",)),
    ("positive seconds", entries.several(_is_positive), ("betweens",)),
    ("positive seconds", _is_positive, ("step", "between", "repair", "learner_seconds")),
    ("seconds, 0 or more", lambda v: v == 0 or _is_positive(v), ("stop",)),
    entries.SEED,
    (
        "rules, each a name, a number of mini-batches and a waiting rule",
        lambda v: len(v) and all(len(r) == 3 and entries.is_count(r[1]) for r in v),
        ("rules",),
    ),
)


class Point(NamedTuple):
    """How a method fared with a number of learners."""

    method: str
    workers: int
    between: float  # s of work between two failures of a learner
    goodput: float  # share of the learners' seconds that went into mini-batches which count
    taking_part: float | None  # mean share of the learners in an update; None: no updates of a rule
    staleness: float | None  # updates between reading a model and using what was made of it


class Goodputs(NamedTuple):
    """The points along two axes."""

    by_workers: list[Point]  # at one time between failures
    by_between: list[Point]  # with one number of learners


def analyse(config: ConfigDict) -> Study:
    """The goodputs as `simulate` has them, with tables, a figure and claims."""
    found = simulate(config)
    summary = {axis: [point._asdict() for point in axis_points]
               for axis, axis_points in found._asdict().items()}  # fmt: skip
    shown = [*tables(found), assumptions(config)]
    return Study(summary, shown, functools.partial(draw, found, config), list(claims(found)))


def simulate(config: ConfigDict) -> Goodputs:
    """Every method at every place of both axes; ValueError, at once, for what makes no sense."""
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
    return Goodputs(
        [point for p in config.workers for point in _points(config, p, config.between)],
        [point for between in config.betweens
         for point in _points(config, config.at_workers, between)],
    )  # fmt: skip


def _law(config: ConfigDict, between: float):
    """A mini-batch, in which the learner fails now and then."""
    factor = 1 + config.repair / config.step
    return bernoulli_slowdown(config.step, factor, config.step / between)


def _rule(config: ConfigDict, part, mini_batches: int, workers: int, between: float):
    setting = Setting(_law(config, between), workers, mini_batches, config.seed)
    return RULE.build(parts.spec(part), setting=setting)


def _points(config: ConfigDict, workers: int, between: float) -> Iterator[Point]:
    seconds = config.learner_seconds / workers
    for name, mini_batches, part in config.rules:
        rule = _rule(config, part, mini_batches, workers, between)
        found = _of_rule(rule, config.step, seconds)
        yield Point(name, workers, between, *found)
    process = from_law(_law(config, between)).seeded(config.seed)
    ran = elastic_all_reduce(process, workers, config.step, config.stop, seconds)
    share = ran.mini_batches * config.step / (workers * ran.seconds)
    yield Point(ELASTIC, workers, between, share, None, None)


def _of_rule(rule, step: float, seconds: float) -> tuple[float, float, float]:
    """(goodput, share of learners in an update, staleness) of a rule's first `seconds`."""
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


def claims(found: Goodputs) -> Iterator[tuple[str, str]]:
    """What the paper says of goodput, beside what was simulated."""
    yield (
        f"where {ELASTIC} is left with {ELASTIC_THERE:.0%}, {OURS} keeps {OURS_THERE:.0%} "
        "(arXiv 2604.21428)",
        premises.text(keeps_more, found.by_workers),
    )
    yield (
        f"{OURS} keeps with the most learners {KEPT:.0%} of what it keeps with the fewest",
        premises.text(does_not_fall, found.by_workers),
    )


def keeps_more(points: Sequence[Point]) -> premises.Answer:
    """Both goodputs where elastic all-reduce crosses its share, between two numbers of learners."""
    ours, theirs = (_of(points, method) for method in (OURS, ELASTIC))
    shares = [point.goodput for point in theirs]
    crossed = [n for n in range(1, len(shares)) if shares[n] <= ELASTIC_THERE < shares[n - 1]]
    if len(crossed) != 1:
        raise premises.CannotTell(
            f"{ELASTIC} has {min(shares):.0%} to {max(shares):.0%}, and crosses "
            f"{ELASTIC_THERE:.0%} {len(crossed)} times; vary config.workers or the failures"
        )
    after = crossed[0]
    way = (shares[after - 1] - ELASTIC_THERE) / (shares[after - 1] - shares[after])
    logs = np.log2([theirs[after - 1].workers, theirs[after].workers])
    kept = ours[after - 1].goodput + way * (ours[after].goodput - ours[after - 1].goodput)
    learners = 2 ** (logs[0] + way * (logs[1] - logs[0]))
    measured = f"about {learners:,.0f} learners, where {OURS} keeps {kept:.1%}"
    return premises.Answer(premises.of_all(int(kept >= OURS_THERE), 1), measured)


def does_not_fall(points: Sequence[Point]) -> premises.Answer:
    """The goodput with the most learners over that with the fewest."""
    ours = _of(points, OURS)
    few, many = ours[0], ours[-1]
    if few.workers == many.workers:
        raise premises.CannotTell("one number of learners was simulated")
    measured = (
        f"{few.goodput:.1%} of {few.workers:,} learners' time, {many.goodput:.1%} of that of "
        f"{many.workers:,}"
    )
    return premises.Answer(premises.of_all(int(many.goodput >= KEPT * few.goodput), 1), measured)


def _of(points: Sequence[Point], method: str) -> list[Point]:
    """The points of a method, the fewest learners first."""
    found = sorted((p for p in points if p.method == method), key=lambda p: p.workers)
    if not found:
        raise premises.CannotTell(f"{method} was not simulated")
    return found


def assumptions(config: ConfigDict) -> str:
    """What the study takes for granted, in words."""
    return (
        f"assumed: steps of {config.step:g} s; a learner fails at random, after {config.between:g} "
        f"s of work on average, is away for {config.repair:g} s and loses what it has done since "
        f"its last push; {ELASTIC} loses the step and stops for {config.stop:g} s when a learner "
        "fails and when it is back; links take no time, and nothing else is slow"
    )


def tables(found: Goodputs) -> Iterator[Table]:
    """A row per method: its goodput along each axis, then who takes part at its end."""
    for title, points, column, shown in (
        ("goodput by number of learners", found.by_workers, "workers", "{:,}"),
        (f"goodput of {found.by_between[0].workers:,} learners, by seconds between failures of one",
         found.by_between, "between", "{:,.0f}"),
    ):  # fmt: skip
        places = list(dict.fromkeys(getattr(point, column) for point in points))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title)
        table.add_column("method", no_wrap=True)
        for place in places:
            table.add_column(shown.format(place), justify="right", no_wrap=True)
        table.add_column("in an update", justify="right")
        table.add_column("staleness", justify="right")
        for method in dict.fromkeys(point.method for point in points):
            row = [point for point in points if point.method == method]
            last = row[-1]
            ends = ("–", "–")
            if last.taking_part is not None:
                ends = f"{last.taking_part:.1%}", f"{last.staleness:,.1f}"
            table.add_row(method, *(f"{point.goodput:.1%}" for point in row), *ends)
        yield table


def draw(found: Goodputs, config: ConfigDict, path: str | os.PathLike) -> None:
    """Write a PNG of 1200x600 pixels: goodput against learners, and against failures."""
    canvas = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    hours = [between / 3600 for between in config.betweens]
    for axes, points, places in (
        (left, found.by_workers, config.workers),
        (right, found.by_between, hours),
    ):
        for n, method in enumerate(dict.fromkeys(point.method for point in points)):
            axes.plot(
                places,
                [point.goodput for point in points if point.method == method],
                color=COLOURS[n % len(COLOURS)],
                linestyle=DASHES[n % len(DASHES)],  # some lie on others
                marker="o", markersize=3.5, linewidth=1.5,
                label=method if axes is left else None,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        look.linear(axes)
        look.ticks(axes, places)
    between = np.array([config.between, *config.betweens])
    there = between / (between + config.repair)
    left.axhline(
        there[0], color="0.35", linewidth=0.8, linestyle="--", label="time without repairs"
    )
    right.plot(hours, there[1:], color="0.35", linewidth=0.8, linestyle="--")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    left.set(xlabel=f"learners, {config.between / 3600:g} h between failures of one",
             ylabel="goodput", ylim=(0, 1))  # fmt: skip
    right.set(xlabel=f"h between failures of one of {config.at_workers} learners")
    canvas.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save(canvas, path)
