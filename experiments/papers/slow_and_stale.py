"""Slow and stale gradients (Dutta et al., arXiv 1803.01113): K-sync, K-async and their batch forms.

Beside its claims stands the runtime of an update, in theory and simulated; that trains nothing.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from ml_collections import ConfigDict

from experiments import analysis, entries, stats, waiting
from experiments.figures import COLOURS, plain, save
from experiments.papers.base import Panel, Records, Sweep, arms, dots
from experiments.papers.nonblocking import follows_theory
from experiments.stats import END, SECONDS, Answer, Arm, Claim, Inconclusive
from stragglers.delays import Law
from stragglers.rule import Setting
from stragglers.rules import RULES
from stragglers.theory import k_protocols

TITLE = "Slow and stale gradients"
PAPER = "arXiv 1803.01113"
SWEEPS = (
    Sweep("slow_and_stale", "--config=configs/slow_and_stale.py --sweep --seeds=5 --together", 0.3),
    Sweep("runtime_analysis", "--config=configs/runtime_analysis.py", 0.02),
    Sweep("slow_and_stale_real", "--config=configs/slow_and_stale_real.py --sweep --seeds=3", 0.7),
)
PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
COMMON = 0.16  # the one rate for all K
FIXED, COMPENSATED = "k_async/K=1", "compensated"


def trade_off(rate: float | None) -> stats.Judge:
    """Return the judge of "the first at the target does not end lowest".

    rate: common to all protocols and K; None: each question is asked at the rate that suits it.
    """

    def judged(arms: Sequence[Arm], _) -> Answer:
        names = [name for name in stats.groups(arms) if name.startswith(PROTOCOLS)]
        first, lowest = (_choose(arms, names, quantity, rate) for quantity in (SECONDS, END))
        early = min(first, key=lambda name: first[name][SECONDS])
        low = min(lowest, key=lambda name: lowest[name][END])
        if early == low:
            return Answer(stats.FAILS, f"{early} is first and ends lowest")
        if rate is None:
            stats.tuned(arms, early, SECONDS)
            stats.tuned(arms, low, END)
        if early not in lowest or low not in first:
            raise Inconclusive(f"{early} or {low} has no arm to compare")
        sooner = stats.compare(first[early], first[low], SECONDS)
        lower = stats.compare(lowest[low], lowest[early], END)
        return _both(sooner, lower, f"first {early}, lowest {low}: ")

    return judged


def _choose(
    arms: Sequence[Arm], names: Sequence[str], quantity: str, rate: float | None
) -> dict[str, Arm]:
    """Return the arm by which each protocol and K is judged, of those that have the quantity."""
    found = {}
    for name in names:
        members = stats.group(arms, name)
        if rate is not None:
            members = [arm for arm in members if stats.settings(arm["name"])["rate"] == rate]
        if any(arm.get(quantity) is not None for arm in members) and stats.has(
            members, name, quantity
        ):
            found[name] = stats.best(members, quantity)
    if not found:
        raise Inconclusive(f"no arm has the {stats.words(quantity)} in every seed")
    return found


def _both(one: Answer, other: Answer, before: str) -> Answer:
    """Return the verdict of a claim with two parts: it holds if both do, and fails if one does."""
    verdicts = {one.verdict, other.verdict}
    verdict = next(v for v in (stats.FAILS, stats.INCONCLUSIVE, stats.HOLDS) if v in verdicts)
    reason = stats.NOISE if verdict == stats.INCONCLUSIVE else ""
    measured = f"{before}{one.measured}; {other.measured}"
    return Answer(verdict, measured, reason, max(one.p, other.p), min(one.seeds, other.seeds))


def compensated(quantity: str) -> stats.Judge:
    """Return the judge of min(C / distance^2, eta) against the fixed rate, each at its best.

    A threshold C at which the two arms are the same does not act, so that it is no grid's end;
    where it is the best, nothing is gained.
    """

    def judged(arms: Sequence[Arm], _) -> Answer:
        ours = stats.best(stats.group(arms, COMPENSATED), quantity)
        chosen = stats.settings(ours["name"])
        (alike,) = stats.named(arms, f"{FIXED}/rate={chosen['rate']}")
        acts = not same(ours, alike, quantity)
        stats.tuned(arms, COMPENSATED, quantity,
                    None if acts else {"threshold": chosen["threshold"]})  # fmt: skip
        theirs = stats.tuned(arms, FIXED, quantity)
        if not acts and theirs["name"] == alike["name"]:
            words = f"the best C never acts: both {stats.shown(ours, quantity)}"
            return Answer(stats.FAILS, words, seeds=len(ours["seeds"]))
        return stats.compare(ours, theirs, quantity)

    return judged


def same(one: Arm, other: Arm, quantity: str) -> bool:
    """Return whether every seed of two arms has the same quantity, but for rounding."""
    values = [arm.get(f"{quantity}_by_seed") or [None] for arm in (one, other)]
    return len(values[0]) == len(values[1]) and all(
        None not in pair and math.isclose(*pair, rel_tol=1e-6)
        for pair in zip(*values, strict=True)
    )


def real(
    distance: Callable[[str, Arm, Arm], np.ndarray], least: float, most: float
) -> stats.Judge:
    """Return the judge of processes beside the simulation of the same delays, at every place.

    distance: of a place `law/protocol/K=k`, its real and its simulated arm -> for each seed a
    relative distance, the interval of whose mean should lie between `least` and `most`.
    """

    def judged(arms: Sequence[Arm], _) -> Answer:
        off = {}
        for arm in arms:
            kind, _, place = arm["name"].partition("/")
            if kind == "real":
                (twin,) = stats.named(arms, f"simulated/{place}")
                off[place] = distance(place, arm, twin)
        if not off or min(map(len, off.values())) < 2:
            raise Inconclusive("no pair of arms has two seeds")
        found = {place: stats.interval(values) for place, values in off.items()}
        inside = sum(least <= low and high <= most for low, high in found.values())
        beyond = sum(low > most or high < least for low, high in found.values())
        verdict = stats.of_all(inside, len(off))
        if verdict == stats.FAILS and not beyond:
            verdict = stats.INCONCLUSIVE
        worst = max(off, key=lambda p: max(off[p].mean() - most, least - off[p].mean()))
        measured = (
            f"{inside} of {len(off)} places, {beyond} beyond, {len(off) - inside - beyond} in the "
            f"noise; worst {worst} {off[worst].mean():+.1%}"
        )
        reason = f"at {inside} of {len(off)} places" if verdict == stats.WHERE else ""
        return Answer(verdict, measured, reason, seeds=min(map(len, off.values())))

    return judged


def _per_update(arm: Arm) -> np.ndarray:
    """Return seconds of an update for each seed; runs of a real clock end at about one time."""
    return arm["seconds"] / np.asarray(arm.get("updates_by_seed") or [arm["updates"]], float)


def _slower(_, arm: Arm, twin: Arm) -> np.ndarray:
    return _per_update(arm) / _per_update(twin) - 1


def _staler(place: str, arm: Arm, _) -> np.ndarray:
    """Return mean staleness beside P / K - 1 (K-async), (P - 1) / K (K-batch-async) or 0."""
    _, protocol, k = place.split("/")
    expected = k_protocols.mean_staleness(protocol, int(k.removeprefix("K=")), arm["workers"])
    found = np.asarray(arm.get("staleness_mean_by_seed") or [arm["staleness_mean"]], float)
    return found / expected - 1 if expected else found


CLAIMS = (
    Claim("the first at the target does not end lowest, one rate for all", f"{PAPER}, abstract",
          "slow_and_stale", judge=trade_off(COMMON)),
    Claim("the first at the target does not end lowest, each at its best rates",
          f"{PAPER}, abstract", "slow_and_stale", judge=trade_off(None)),
    Claim("the lowest end without waiting is below the lowest with waiting", "", "slow_and_stale",
          ("k_async/K=1", "k_async/K=2", "k_async/K=4", "k_batch_async/K=2", "k_batch_async/K=4",
           "k_batch_async/K=8"),
          ("k_sync/K=1", "k_sync/K=2", "k_sync/K=4", "k_sync/K=8", "k_batch_sync/K=2",
           "k_batch_sync/K=4", "k_batch_sync/K=8"), END, tuned=True, equal=("seconds",)),
    Claim("a staleness-compensating rate ends below the tuned fixed rate", f"{PAPER}, Sec. 4",
          "slow_and_stale", judge=compensated(END)),
    Claim("a staleness-compensating rate is sooner at the target", f"{PAPER}, Sec. 4",
          "slow_and_stale", judge=compensated(SECONDS)),
    Claim("expected seconds of an update are within 5 % of simulated ones", f"{PAPER}, Sec. 3",
          "runtime_analysis", judge=follows_theory("points", 0.05)),
    Claim("processes take at most 1.05x the seconds of the same delays simulated", "",
          "slow_and_stale_real", judge=real(_slower, -math.inf, 0.05)),
    Claim("the staleness of processes is that of theory within 10 %", f"{PAPER}, Sec. 3",
          "slow_and_stale_real", judge=real(_staler, -0.1, 0.1)),
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw the seconds to a loose loss, and how low training ends, each at its best rate."""
    groups = {f"{protocol}/K={k}": f"{protocol}, K = {k}" for protocol in PROTOCOLS
              for k in (1, 2, 4, 8)} | {f"compensated/threshold={c}": f"compensated, C = {c:g}"
                                        for c in (0.01, 0.1, 1.0)}  # fmt: skip
    known = stats.groups(arms(records("slow_and_stale")))
    groups = {name: label for name, label in groups.items() if name in known}
    panels = [
        Panel("first at training loss 1", "slow_and_stale", groups),
        Panel("after the same time", "slow_and_stale", groups, END, "training loss at the end"),
    ]
    return dots(panels, records)


# --- the runtime of an update: nothing is trained ---

ENTRIES = (
    ("a share above 0 and up to 1", lambda v: entries.is_number(v) and 0 < v <= 1, ("share",)),
    ("a positive whole number", entries.is_count, ("pushes",)),
    entries.SEED,
    ("delays by name", lambda v: hasattr(v, "items") and len(v), ("delays",)),
)


class Runtime(NamedTuple):
    """Seconds between two updates, expected and simulated."""

    delay: str
    rule: str
    case: str  # how K depends on the workers
    workers: int
    k: int
    low: float  # s, the least that theory allows; equal to `high` where it is known
    high: float  # s, infinite where there is no bound
    simulated: float  # s
    error: float  # relative distance of the simulation from what theory allows


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return seconds per update (1803.01113, Section 3), in theory and simulated.

    config: `delays` {name: part}, iid distributions; `workers`, a sequence; `share` of them and
    number `k` that the server waits for; `pushes` to simulate for every point; `seed`. Raise
    ValueError, before any simulation, for a config that makes no sense.
    """
    entries.check(config, [
        ("positive whole numbers", entries.several(entries.is_count), ("workers",))])  # fmt: skip
    fewest = min(config.workers)
    words = f"a whole number from 1 to {fewest}, the fewest workers"
    few = words, lambda v: entries.is_count(v) and v <= fewest, ("k",)
    entries.check(config, [few, *ENTRIES])
    laws = {name: waiting.build_delay(part) for name, part in config.delays.items()}
    for name, law in laws.items():
        if not isinstance(law, Law) or math.isinf(law.mean()):
            raise ValueError(
                f"config.delays.{name} must be an iid law with a mean, got {config.delays[name]!r};"
                " theory knows no others"
            )
    cases = {f"K = {config.share:g} P": lambda workers: max(1, round(config.share * workers))}
    cases |= {f"K = {config.k}": lambda workers: config.k}
    points = [
        _runtime(config, name, law, rule, case, workers, k_of(workers))
        for case, k_of in cases.items()
        for name, law in laws.items()
        for rule in PROTOCOLS
        for workers in config.workers
    ]
    summary = {"points": [point._asdict() for point in points]}
    return analysis.Analysis(summary, [_table(points)], functools.partial(_draw, points))


def _runtime(config, name: str, law: Law, rule: str, case: str, workers: int, k: int) -> Runtime:
    low, high = k_protocols.runtime_bounds(rule, law, k, workers)
    simulated = RULES[rule](Setting(law, workers, 1, config.seed), k=k)
    state, begin = simulated.init(), 0.0
    if simulated.asynchronous:  # all workers begin together, which takes a while to forget
        state, schedule = simulated.extend(state, math.ceil(10 * workers / k))
        begin = schedule.time[-1]
    updates = max(500, config.pushes // k)
    _, schedule = simulated.extend(state, updates)
    seconds = float(schedule.time[-1] - begin) / updates
    error = max(seconds / high - 1, 1 - seconds / low, 0.0)
    return Runtime(name, rule, case, workers, k, low, high, seconds, error)


def _lines(points: Sequence[Runtime]) -> Mapping[tuple[str, str, str], list[Runtime]]:
    found: dict[tuple[str, str, str], list[Runtime]] = {}
    for point in points:
        found.setdefault((point.case, point.delay, point.rule), []).append(point)
    return found


def _table(points: Sequence[Runtime]) -> stats.Numbers:
    """Return simulated seconds at the fewest and the most workers, and the largest errors."""
    few, most = (f(point.workers for point in points) for f in (min, max))

    def known(line: list[Runtime], workers: int) -> str:
        (at,) = (point for point in line if point.workers == workers)
        bounds = "" if at.low == at.high else f" in {at.low:.4g}..{at.high:.4g}"
        return f"{at.simulated if bounds else at.low:.4g}{bounds}"

    return stats.Numbers(
        "expected seconds per update; a simulation in its bounds where theory has these alone",
        ("K", "delay", "protocol", f"P = {few}", f"P = {most}", "error"),
        [
            (case, delay.replace("_", " "), rule, known(line, few), known(line, most),
             f"{100 * max(point.error for point in line):.1f}%")
            for (case, delay, rule), line in _lines(points).items()
        ],
    )  # fmt: skip


def _draw(points: Sequence[Runtime], path: Path) -> None:
    """Write a PNG of 1500x900 pixels: seconds per update against workers, theory and simulation."""
    lines = _lines(points)
    cases, laws = ([*dict.fromkeys(key[i] for key in lines)] for i in (0, 1))
    canvas = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    panels = canvas.subplots(len(cases), len(laws), sharex=True, sharey="row", squeeze=False)
    for (case, law, rule), line in lines.items():
        axes, colour = panels[cases.index(case), laws.index(law)], COLOURS[PROTOCOLS.index(rule)]
        workers = [point.workers for point in line]
        axes.set(xscale="log", yscale="log")
        seen = [point.simulated for point in line]
        axes.plot(workers, seen, "os^D"[PROTOCOLS.index(rule)], color=colour, label=rule,
                  markerfacecolor="none")  # fmt: skip
        # Of theories that coincide each is to be seen; bounds reach up to ten times the simulation.
        dashes = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))[PROTOCOLS.index(rule)]
        axes.plot(workers, [p.low if p.low == p.high else math.nan for p in line], color=colour,
                  linestyle=dashes)  # fmt: skip
        axes.fill_between(workers, [p.low for p in line],
                          [min(p.high, 10 * p.simulated) for p in line], color=colour, alpha=0.15,
                          linewidth=0)  # fmt: skip
        axes.set_title(f"{law.replace('_', ' ')}, {case}", fontsize=9)
        plain(axes)
        axes.xaxis.set_major_locator(FixedLocator(workers[:: 1 + len(workers) // 5]))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_locator(NullLocator())
    canvas.supxlabel("workers P; lines: theory, shaded between its bounds", fontsize=9)
    canvas.supylabel("seconds per update", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    save(canvas, path)


def numbers(arms: Sequence[Arm]) -> Iterator[stats.Numbers]:
    """Give seconds per update and staleness of every real arm beside its simulation."""
    rows = []
    for arm in arms:
        kind, _, place = arm["name"].partition("/")
        if kind == "real":
            pair = (arm, *stats.named(arms, f"simulated/{place}"))
            low, high = k_protocols.runtime_bounds(
                arm["config"].wait.name, waiting.build_delay(arm["config"].delay),
                arm["config"].wait.k, arm["workers"])  # fmt: skip
            _, protocol, k = place.split("/")
            stale = k_protocols.mean_staleness(protocol, int(k.removeprefix("K=")), arm["workers"])
            rows.append((
                place, *(f"{_per_update(one).mean():.4g}" for one in pair),
                f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}",
                *(f"{one['staleness_mean']:.3g}" for one in pair), f"{stale:.3g}",
            ))  # fmt: skip
    yield stats.Numbers(
        "seconds per update, then staleness",
        ("law/protocol/K", "real [s]", "simulated [s]", "theory [s]", "staleness, real",
         "simulated", "theory"),
        rows,
    )  # fmt: skip
