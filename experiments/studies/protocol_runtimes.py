"""How long an update of the four protocols takes, in theory and simulated.

The protocols and their expected runtimes come from "Slow and Stale Gradients", arXiv 1803.01113.
"""

import functools
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from experiments import entries, waiting
from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look
from experiments.studies.study import Study
from stragglers.delays import Law
from stragglers.rule import Setting
from stragglers.rules import RULES
from stragglers.theory import k_protocols

# Protocol -> (colour, line, marker, its size): the theory of some coincides, all shall be seen.
LOOKS = {
    "k_sync": (COLOURS[0], "-", "o", 7.5),
    "k_batch_sync": (COLOURS[1], (0, (4, 2)), "s", 6),
    "k_async": (COLOURS[2], (0, (1, 1.5)), "^", 4.5),
    "k_batch_async": (COLOURS[3], (0, (4, 1.5, 1, 1.5)), "D", 2.8),
}


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
    case: str  # how k depends on the workers
    workers: int
    k: int
    low: float  # s, what theory allows; equal to `high` where it knows
    high: float  # s, infinite where there is no bound
    simulated: float  # s

    @property
    def error(self) -> float:
        """Relative distance of the simulation from what theory allows."""
        return max(self.simulated / self.high - 1, 1 - self.simulated / self.low, 0.0)


def analyse(config: ConfigDict) -> Study:
    """The seconds as `compare_runtimes` has them, with a table and a figure."""
    points = compare_runtimes(config)
    summary = {"points": [point._asdict() | {"error": point.error} for point in points]}
    return Study(summary, [table_of(points)], functools.partial(draw_runtimes, points))


def compare_runtimes(config: ConfigDict) -> list[Runtime]:
    """Theory and simulation of the seconds per update (1803.01113), for all four protocols.

    config: `delays` {name: part}, iid laws; `workers`, a sequence; `share` of them and number `k`
    that the server waits for; `pushes` to simulate for every point; `seed`. Raises ValueError,
    before any simulation, for what makes no sense.
    """
    counts = "positive whole numbers", entries.several(entries.is_count), ("workers",)
    entries.check(config, [counts])
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
    return [
        _runtime(config, name, law, rule, case, workers, k_of(workers))
        for case, k_of in cases.items()
        for name, law in laws.items()
        for rule in LOOKS
        for workers in config.workers
    ]


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
    return Runtime(name, rule, case, workers, k, low, high, seconds)


def table_of(points: Sequence[Runtime]) -> Table:
    """A table: simulated seconds at the fewest and the most workers, and the errors."""
    few, most = (f(point.workers for point in points) for f in (min, max))
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="expected seconds per update",
        caption="where theory has bounds only: the simulation in them, and its distance from them",
    )
    for column in ("K", "delay", "protocol", f"P = {few}", f"P = {most}", "error"):
        left = column in ("K", "delay", "protocol")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for (case, delay, rule), row in _groups(points).items():
        ends = [next(p for p in row if p.workers == workers) for workers in (few, most)]
        worst = max(point.error for point in row)
        table.add_row(
            case, delay.replace("_", " "), rule, *map(_expected, ends), f"{100 * worst:.1f}%"
        )
    return table


def _expected(point: Runtime) -> str:
    if point.low == point.high:
        return f"{point.low:.4g}"
    return f"{point.simulated:.4g} in {point.low:.4g}..{point.high:.4g}"


def draw_runtimes(points: Sequence[Runtime], path: str | os.PathLike) -> None:
    """Write a PNG of 1500x900 pixels: seconds per update against workers, theory and simulation."""
    groups = _groups(points)
    cases, laws = ([*dict.fromkeys(key[i] for key in groups)] for i in (0, 1))
    canvas = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    panels = canvas.subplots(len(cases), len(laws), sharex=True, sharey="row", squeeze=False)
    for axes in panels.flat:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    for (case, law, rule), row in groups.items():
        axes = panels[cases.index(case), laws.index(law)]
        colour, line, marker, size = LOOKS[rule]
        x = [point.workers for point in row]
        low, high = [p.low for p in row], [p.high for p in row]
        known = [a if a == b else math.nan for a, b in zip(low, high, strict=True)]
        axes.plot(x, known, color=colour, linestyle=line, linewidth=1.5)
        axes.plot(
            x,
            [p.simulated for p in row],
            marker,
            color=colour,
            markersize=size,
            markerfacecolor="none",
            markeredgewidth=1.1,
        )
        axes.set_title(f"{law.replace('_', ' ')}, {case}", fontsize=9)
    for (case, law, rule), row in groups.items():
        axes = panels[cases.index(case), laws.index(law)]
        bottom, top = axes.get_ylim()
        x, low, high = ([getattr(p, name) for p in row] for name in ("workers", "low", "high"))
        if low != high:
            high = [min(value, top) for value in high]  # up to infinity
            axes.fill_between(x, low, high, color=LOOKS[rule][0], alpha=0.15, linewidth=0)
            axes.set_ylim(bottom, top)
    workers = sorted({point.workers for point in points})
    for axes in panels.flat:
        axes.xaxis.set_major_locator(FixedLocator(workers[:: 1 + len(workers) // 5]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        look.logarithmic(axes)
    canvas.supxlabel("workers P", fontsize=9)
    canvas.supylabel("seconds per update", fontsize=9)
    handles = [
        Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=size,
               markerfacecolor="none", label=rule)
        for rule, (colour, line, marker, size) in LOOKS.items()
    ]  # fmt: skip
    handles += [
        Line2D([], [], color="0.2", label="theory"),
        Patch(color="0.2", alpha=0.15, label="bounds of k_async"),
        Line2D(
            [], [], color="0.2", marker="o", linestyle="", markerfacecolor="none", label="simulated"
        ),
    ]
    canvas.legend(handles=handles, loc="outside upper center", ncols=7, fontsize=8, frameon=False)
    save(canvas, path)


def _groups(points: Sequence[Runtime]) -> dict[tuple[str, str, str], list[Runtime]]:
    groups: dict[tuple[str, str, str], list[Runtime]] = {}
    for point in points:
        groups.setdefault((point.case, point.delay, point.rule), []).append(point)
    return groups
