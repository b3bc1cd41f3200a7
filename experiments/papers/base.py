"""The parts of a paper's file: its sweeps, and the panels of its figures."""

import functools
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from experiments import stats
from experiments.figures import COLOURS, DASHES, literal, mark, plain

Records = Callable[[str], Mapping[str, Any]]  # name of a record -> the record
LABELS = {
    stats.SECONDS: "seconds to the target loss", stats.END: "training loss at the end",
    stats.BYTES: "sent by a worker", stats.ACCURACY: "test accuracy",
}  # fmt: skip


HEADLINE, SECONDARY = "headline", "secondary"


class Sweep(NamedTuple):
    """A record of docs/results and the command that makes it."""

    name: str  # of the record and of its workdir
    arguments: str  # of launch.py, all but the workdir
    hours: float  # expected, on one core of a CPU
    tier: str = SECONDARY  # HEADLINE: what a reader may quote rests on it


def swept(
    name: str,
    config: str,
    hours: float,
    seeds: int = 3,
    last: str = " --together",
    tier: str = SECONDARY,
) -> Sweep:
    """Return a sweep; config: a file in configs/ with its arguments; last: further flags."""
    arguments = f"--config=configs/{config} --sweep --seeds={seeds}{last}"
    return Sweep(name, arguments, hours, tier)


def judged(paper: ModuleType, record: str, flags: frozenset[str]) -> Callable:
    """Return `claims(arms)` of the record that a command makes, else of `record`; see `Judged`."""
    words = {sweep.name: shlex.split(sweep.arguments) for sweep in paper.SWEEPS}
    made = {frozenset(word for word in arguments if word.startswith("--config")): name
            for name, arguments in words.items()}  # fmt: skip
    own = any(":" in flag or flag.startswith("--config.") for flag in flags)
    here = f"; here {' '.join(sorted(flags))}" if own and flags not in made else ""
    printed = stats.printed(paper.CLAIMS, made.get(flags, record))
    return lambda arms: ((claim + here, measured) for claim, measured in printed(arms))


class Panel(NamedTuple):
    """A panel with a row of dots per group of arms, each at its best setting, in one quantity."""

    title: str
    record: str
    groups: Mapping[str, str]  # group of arms -> its label
    quantity: str = stats.SECONDS
    label: str = ""  # of the horizontal axis; "": the quantity's label
    by: str = ""  # the quantity by which the best setting is chosen; "": the shown one
    log: bool = False

    note = (  # below the figure
        "A large dot is the mean of the seeds, a small one a seed, and a hollow one lies at the "
        "end of its grid."
    )

    def draw(self, axes: Axes, records: Records) -> list[str]:
        """Draw the rows; return the labels of the groups without a finite number."""
        scale = stats.UNITS.get(self.quantity, (1.0, ""))[0]
        found, missing = _best(self, records, self.by or self.quantity, self.quantity)
        for row, (_, best, look) in enumerate(found):
            values = best.get(f"{self.quantity}_by_seed") or []
            axes.plot(scale * best[self.quantity], row, "o", **look)
            axes.plot(scale * np.array(values), np.full(len(values), row + 0.28), ".",
                      color=COLOURS[1], markersize=5)  # fmt: skip
        axes.set_yticks(range(len(found)), [literal(label) for label, *_ in found])
        axes.set_ylim(len(found) - 0.4, -0.6)
        if self.log:
            axes.set_xscale("log")
            mark(axes.xaxis)
        elif self.quantity in (stats.SECONDS, "share", "there", *stats.COUNTED):
            axes.set_xlim(0, max(axes.get_xlim()[1], 1.02 * axes.dataLim.x1))  # no dot is cut
        axes.set_xlabel(_label(self.quantity, self.label), fontsize=9)
        return missing


class Scatter(NamedTuple):
    """A panel with a dot per group of arms, at its best setting, over two logarithmic axes."""

    title: str
    record: str
    groups: Mapping[str, str]  # group of arms -> its label
    x: str
    y: str  # the quantity by which the best setting is chosen, too

    def draw(self, axes: Axes, records: Records) -> list[str]:
        """Draw the dots; return the labels of the groups without one. Near dots share a label."""
        scales = [stats.UNITS.get(quantity, (1.0, ""))[0] for quantity in (self.x, self.y)]
        found, missing = _best(self, records, self.y, self.x)
        places = {}
        for label, best, look in found:
            x, y = (scale * best[of] for scale, of in zip(scales, (self.x, self.y), strict=True))
            axes.plot(x, y, "o", **look)
            places[label] = np.log([x, y])
        wide = np.ptp([*places.values()], axis=0)
        last = max(place[0] for place in places.values())
        while places:
            place = next(iter(places.values()))
            near = [label for label, other in places.items()
                    if np.all(np.abs(other - place) <= 0.06 * wide)]  # fmt: skip
            left = place[0] > last - 0.25 * wide[0]
            axes.annotate(literal("\n".join(near)), np.exp(place), xytext=(-7 if left else 7, 0),
                          textcoords="offset points", fontsize=8, va="center",
                          ha="right" if left else "left")  # fmt: skip
            places = {label: other for label, other in places.items() if label not in near}
        axes.set(xscale="log", yscale="log")
        axes.margins(0.06, 0.1)
        mark(axes.xaxis)
        mark(axes.yaxis)
        axes.set_xlabel(_label(self.x), fontsize=9)
        axes.set_ylabel(_label(self.y), fontsize=9)
        return missing


class Lines(NamedTuple):
    """A panel with a line per value of a field, through an analysis's points with that value."""

    title: str
    points: Sequence[Mapping[str, Any]]  # of an analysis
    x: str
    y: str
    by: str  # the field that tells lines apart
    labels: tuple[str, str]  # of the two axes
    share: bool = False  # the vertical axis is one from 0 to 100 %

    def draw(self, axes: Axes, records: Records | None = None) -> Sequence[str]:
        """Draw the lines; no group is missing."""
        for number, name in enumerate(dict.fromkeys(point[self.by] for point in self.points)):
            points = [point for point in self.points if point[self.by] == name]
            places, values = ([point[field] for point in points] for field in (self.x, self.y))
            colour = COLOURS[number % len(COLOURS)]
            dashes = DASHES[(number // len(COLOURS) + number) % len(DASHES)]
            look = {"color": colour, "markersize": 4, "label": str(name).replace("_", " ")}
            axes.plot(places, values, "o", linestyle=dashes, linewidth=1.4, **look)
        places = sorted({point[self.x] for point in self.points})
        if places[0] > 0 and places[-1] > 8 * places[0]:
            axes.set_xscale("log", base=2)
        shown = places[:: 1 + len(places) // 9]
        axes.set_xticks(shown, [f"{place:g}" for place in shown])
        axes.xaxis.set_minor_locator(NullLocator())
        if self.share:
            axes.set_ylim(0, 1.03)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel(self.labels[0], fontsize=9)
        axes.set_ylabel(self.labels[1], fontsize=9)
        return ()


class Curves(NamedTuple):
    """A panel with a line per group of arms: seconds to the target by M, at each M's best rate."""

    title: str
    record: str
    groups: Mapping[str, str]  # group of arms -> its label

    note = "Lines are means of the seeds, which are small dots."

    def draw(self, axes: Axes, records: Records) -> Sequence[str]:
        """Draw each group's best arm at every round length, and dots of its seeds."""
        found, points = stats.arms(records(self.record)), []
        for number, (name, label) in enumerate(self.groups.items()):
            lengths: dict[float, list] = {}
            for arm in stats.group(found, name):
                lengths.setdefault(stats.settings(arm["name"])["M"], []).append(arm)
            places, seeds = [], []
            for length, members in sorted(lengths.items()):
                best = stats.best(members, stats.SECONDS)
                points.append({"M": length, "seconds": best[stats.SECONDS], "side": label})
                seeds += best[f"{stats.SECONDS}_by_seed"]
                places += [length] * len(best[f"{stats.SECONDS}_by_seed"])
            axes.plot(places, seeds, ".", color=COLOURS[number], markersize=4)
        labels = "mini-batches in a round", LABELS[stats.SECONDS]
        Lines(self.title, points, "M", "seconds", "side", labels).draw(axes)
        axes.set_yscale("log")
        mark(axes.yaxis)
        return ()


def _best(
    panel: Panel | Scatter, records: Records, by: str, shown: str
) -> tuple[list[tuple[str, stats.Arm, dict]], list[str]]:
    """Return each group's label, best arm and look of its dot; and labels of groups without one.

    The dot is hollow if the best setting is at an end of its grid.
    """
    arms, found, missing = stats.arms(records(panel.record)), [], []
    for name, label in panel.groups.items():
        try:
            members = stats.group(arms, name)
            best = stats.best(members, by)
            stats.finite(shown, best)
        except stats.Inconclusive:
            missing.append(label)
            continue
        face = "white" if stats.ends(best, members) else COLOURS[0]
        found.append((label, best, {"color": COLOURS[0], "markersize": 7, "markerfacecolor": face}))
    return found, missing


def _label(quantity: str, own: str = "") -> str:
    """Return the label of an axis, `own` or else the quantity's, with the unit MB or %."""
    unit = stats.UNITS.get(quantity, (1.0, ""))[1].strip()
    return (own or LABELS[quantity]) + (f" [{unit}]" if unit in ("MB", "%") else "")


def drawn(*panels: Panel | Scatter | Curves, columns: int = 2) -> Callable[[Records], Figure]:
    """Return the function `figure(records)` of a paper."""
    return functools.partial(draw, panels, columns=columns)


def draw(
    panels: Sequence[Panel | Scatter | Curves | Lines],
    records: Records | None = None,
    columns: int = 2,
) -> Figure:
    """Draw panels in rows, 1500 pixels wide, above a line that explains the dots.

    The line also names the groups in which some seed does not reach the target. All panels with
    lines share one legend.
    """
    rows, missing, names = -(-len(panels) // columns), [], {}
    tall = max(len(one.groups) if isinstance(one, Panel) else 8 for one in panels)
    canvas = Figure(figsize=(10, rows * (1.1 + 0.27 * tall)), dpi=150, layout="constrained")
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        axes.set_title(panel.title, fontsize=10)
        plain(axes)
        missing += panel.draw(axes, records)
        names |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    notes = [*dict.fromkeys(panel.note for panel in panels if hasattr(panel, "note"))]
    if missing:
        left_out = ", ".join(dict.fromkeys(missing))
        notes.append(f"Left out, as not every seed comes there: {left_out}.")
    canvas.supxlabel("\n".join(textwrap.wrap(" ".join(notes), 150)), fontsize=8)
    if names:
        canvas.legend(names.values(), names.keys(), loc="outside upper center", ncols=4, fontsize=8,
                      frameon=False)  # fmt: skip
    return canvas
