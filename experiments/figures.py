"""Figures of matplotlib: curves of arms, strips of workers, PNGs for a page, PDFs for a paper."""

import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from experiments import files, records
from experiments.timeline import KINDS, MOST_STRETCHES, NANOSECONDS, Stretches, stretches
from stragglers.schedule import Diagnostics, Event, Schedule, diagnose

# Okabe and Ito's colours, which differ for any colour vision; the lightest left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 1.5, 1, 1.5, 1, 1.5)))
KIND_COLOURS = {"compute": "#0072B2", "wait": "#D9D9D9", "communicate": "#E69F00"}
EVENT_MARKERS = {"joined": ">", "lost": "X", "restored": "^"}
SIZE = (4.6, 3.0)  # inches of the axes' part of a figure, about a column of a paper
MOST_ARMS = 8  # the most curves that a reader can tell apart in one figure
MOST_DRAWN = 60  # the most arms with a curve, pale ones included
MOST_STRIPS = 5
MOST_LANES = 16  # the most workers that a strip shows
CYCLES = 4  # mini-batches of the slowest worker that strips show
MOST_CYCLES = 40  # the most that a strip shows of its own slowest worker
NO_DISTANCE = 1e-9  # squared consensus distance of models that are equal but for rounding
FOLDER = "figures"  # of a workdir, for a paper
# Text that stays text: TrueType in a PDF, where some publishers refuse Type 3, and words in an SVG.
_FONTS = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "figure"}
_LOGARITHM = (np.log, np.exp)
_PERCENT = (lambda values: 100 * values, lambda values: values)
# Column of metrics -> (part of a file name, axis label); _UP adds: logarithmic, scale of means.
_ACROSS = {
    "seconds": ("time", "{} time [s]"), "samples": ("samples", "samples seen by all workers"),
    "bytes_per_worker": ("bytes", "bytes sent per worker [B]"), "update": ("updates", "updates"),
}  # fmt: skip
_UP = {
    "train_loss": ("loss", "training loss", True, _LOGARITHM),
    "test_accuracy": ("accuracy", "test accuracy [%]", False, _PERCENT),
    "consensus_distance": ("distance", "consensus distance, squared", True, _LOGARITHM),
}
# Plots that have a file of their own, and a picture in a page.
_STILL = ("loss_time", "loss_samples", "loss_bytes", "accuracy_time", "distance_time", "staleness",
          "idle")  # fmt: skip

Runs = Sequence[Sequence[Mapping]]  # metrics records of each seed


class Curve(NamedTuple):
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Plot(NamedTuple):
    """Curves of arms over one axis, for any kind of figure."""

    name: str  # of its file
    y: str
    x: str
    logarithmic: bool
    curves: Mapping[str, Curve]  # by arm
    target: float | None = None
    top: float | None = None  # end of the vertical axis, if a diverging arm would hide others


class Look(NamedTuple):
    """Facts about a schedule that figures and tables need."""

    staleness: np.ndarray  # [S] share of contributions that were 0, 1, ... updates old
    idle: np.ndarray  # [workers] share of the run in which a worker waits
    seconds: np.ndarray  # [workers] s of a mini-batch, nan for a worker without any
    tail: float  # the 99th percentile of mini-batch times over their median
    first: Stretches  # the first stretches of the schedule
    events: tuple[Event, ...]  # all events of the schedule
    found: Diagnostics


class Strip(NamedTuple):
    """The beginning of an arm, worker by worker."""

    name: str
    first: Stretches
    workers: int
    events: Sequence[Event] = ()


def look(schedule: Schedule, workers: int) -> Look:
    """Return the facts about a schedule of `workers` workers."""
    real = schedule.batches > 0
    counts = np.bincount(schedule.staleness[real])
    # A node that is only met spends no time, nor does a position that stands for nobody.
    lasting = schedule.finish > schedule.start
    waited = np.bincount(schedule.workers[lasting], schedule.idle[lasting], workers)[:workers]
    whole = schedule.time[-1] - schedule.start[lasting].min(initial=np.inf)
    idle = waited / whole if whole > 0 else np.zeros(workers)
    own, batches, busy = (of[real] for of in (schedule.workers, schedule.batches, schedule.busy))
    done, computed = (np.bincount(own, of, workers)[:workers] for of in (batches, busy))
    each = busy / batches
    middle, late = np.quantile(each, [0.5, 0.99]) if each.size else (1.0, 1.0)
    return Look(
        counts / max(1, counts.sum()),
        idle,
        np.where(done > 0, computed / np.maximum(done, 1), np.nan),
        late / middle if middle > 0 else 1.0,
        stretches(schedule, MOST_STRETCHES),
        schedule.events,
        diagnose(schedule, workers),
    )


def mean_curve(
    runs: Runs, x: str, y: str = "train_loss", scale: tuple[Callable, Callable] = _LOGARITHM
) -> Curve:
    """Return mean and spread of column `y` where all runs have values, interpolated in column `x`.

    scale: a function that is applied before the mean is taken, and its inverse. Values are left out
    if the function is not finite there.
    """
    forward, back = scale
    lines = []
    for run in runs:
        points = [(record[x], record[y]) for record in run if record.get(y) is not None]
        column, values = np.reshape(points, (-1, 2)).astype(np.float64).T
        with np.errstate(divide="ignore", invalid="ignore"):
            values = forward(values)
        known = np.isfinite(values)
        if known.any():
            lines.append((column[known], values[known]))
    if not lines:
        return Curve(*np.empty((4, 0)))
    places = np.unique(np.concatenate([line[0] for line in lines]))
    start, end = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    places = places[(start <= places) & (places <= end)]
    values = np.stack([np.interp(places, *line) for line in lines])
    mean, spread = values.mean(0), values.std(0, ddof=1) if len(lines) > 1 else 0.0
    return Curve(places, back(mean), back(mean - spread), back(mean + spread))


def plots(
    curves: Sequence[tuple[str, Runs]],
    looks: Mapping[str, Look],
    target_loss: float | None,
    clock: str,
) -> list[Plot]:
    """Return the plots for which the records of some arms have values.

    curves: (arm's name, runs). looks: arm's name -> `Look`, for arms with a schedule.
    clock: the kind of `seconds`, "virtual" or "wall".
    """
    made = []
    for up, (short, label, logarithmic, scale) in _UP.items():
        for across, (over, name) in _ACROSS.items():
            found = {}
            for arm, runs in curves:
                usable = [[record for record in run if across in record] for run in runs]
                curve = mean_curve(usable, across, up, scale)
                least = NO_DISTANCE if up == "consensus_distance" else 0.0
                if (curve.mean.max(initial=0.0) > least and curve.x.any()) or curve.x.size == 1:
                    found[arm] = curve
            first = max((curve.mean[0] for curve in found.values()), default=0.0)
            highest = max((curve.mean.max() for curve in found.values()), default=0.0)
            is_loss = up == "train_loss"
            top = 4 * first if is_loss and highest > 4 * first else None
            if any(curve.x.any() for curve in found.values()) or (found and over == "time"):
                target = target_loss if is_loss else None
                names = (f"{short}_{over}", label, name.format(clock).strip())
                made.append(Plot(*names, logarithmic, found, target, top))
    stale, idle = {}, {}
    for name, at in looks.items():
        ages, workers = np.arange(at.staleness.size), np.arange(at.idle.size)
        kept = 1 + int(np.searchsorted(np.cumsum(at.staleness), 0.99))  # the rest is long and flat
        if at.staleness.size > 1:
            stale[name] = Curve(ages[:kept], *3 * [100 * at.staleness[:kept]])
        if at.idle.max() > 1e-3:
            idle[name] = Curve(workers, *3 * [100 * at.idle])
    for found, *names in ((stale, "staleness", "gradients [%]", "staleness [updates]"),
                          (idle, "idle", "idle [%]", "worker")):  # fmt: skip
        made += [Plot(*names, False, found)] if found else []
    return made


def ranked(curves: Sequence[tuple[str, Runs]], target_loss: float | None) -> list[str]:
    """Return the names of all arms: every method's fastest to the target, then the others.

    Both parts are in the order in which arms reach the target. Arms that miss it come last, by
    their loss.
    """
    arrivals = {}
    for name, runs in curves:
        seconds = [records.at_target(run, target_loss) for run in runs]
        losses = [run[-1]["train_loss"] for run in runs]
        arrivals[name] = (np.inf if None in seconds else float(np.mean(seconds)),
                          np.inf if None in losses else max(losses))  # fmt: skip
    order = sorted(arrivals, key=arrivals.__getitem__)
    best = {name.partition("/")[0]: name for name in reversed(order)}
    return sorted(order, key=lambda name: best[name.partition("/")[0]] != name)


def styles(names: Sequence[str]) -> dict[str, dict]:
    """Return a line style per arm: its name before "/" sets the colour, after it the dash.

    If that gives two arms the same line, every arm has its own combination, up to 35 arms.
    """
    pairs = [name.partition("/")[::2] for name in names]
    methods, variants = (list(dict.fromkeys(pair[place] for pair in pairs)) for place in (0, 1))
    chosen = [(methods.index(method), variants.index(variant)) for method, variant in pairs]
    kinds = {(colour % len(COLOURS), dash % len(DASHES)) for colour, dash in chosen}
    if len(kinds) < len(names):
        chosen = [(place, place // len(COLOURS)) for place in range(len(names))]
    return {
        name: {"color": COLOURS[colour % len(COLOURS)], "linestyle": DASHES[dash % len(DASHES)],
               "linewidth": 1.6}
        for name, (colour, dash) in zip(names, chosen, strict=True)
    }  # fmt: skip


def _fill(axes: Axes, shown: Plot, lines: Mapping[str, Mapping]) -> None:
    """Draw a plot; arms without a line are pale."""
    for name in sorted(shown.curves, key=lambda name: name in lines):
        curve = shown.curves[name]
        line = lines.get(name, {"color": "0.82", "linewidth": 0.7, "zorder": 1})
        axes.plot(curve.x, curve.mean, **line, markersize=3, marker="o" * (curve.x.size == 1))
        if np.any(curve.low != curve.high):
            axes.fill_between(curve.x, curve.low, curve.high, color=line["color"], alpha=0.18,
                              linewidth=0)  # fmt: skip
    if shown.target is not None:
        axes.axhline(shown.target, color="0.35", linewidth=0.8, linestyle="--")
        place = {"xy": (1, shown.target), "xycoords": ("axes fraction", "data"), "fontsize": 7}
        apart = {"xytext": (-2, 2), "textcoords": "offset points", "ha": "right", "color": "0.35"}
        axes.annotate(f"target {shown.target:.3g}", **place, **apart)
    if shown.logarithmic:
        axes.set_yscale("log")
        mark(axes.yaxis)  # a loss often spans a decade, where the default labels hardly anything
    plain(axes)
    axes.set_xlim(left=0)
    axes.set(xlabel=shown.x, ylabel=shown.y)
    if shown.top is not None and axes.get_ylim()[1] > shown.top:
        axes.set_ylim(top=shown.top)
    if not shown.logarithmic:
        axes.set_ylim(bottom=0)
    if not shown.x.endswith("[s]"):
        whole = shown.x == "worker" or shown.x.endswith("[updates]")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))


def canvas(shown: Sequence[Plot], lines: Mapping[str, Mapping], size=SIZE) -> Figure:
    """Return plots side by side above a common legend; size: inches without the legend."""
    entry = 0.7 + 0.062 * max(map(len, lines), default=0)  # inches of a legend's entry
    columns = max(1, min(2 * len(shown), int(size[0] / entry)))
    below = 0.5 + 0.2 * -(-len(lines) // columns)  # inches; computed, as fitting takes longer
    width, height = size[0], size[1] - 0.5 + below
    made = Figure(figsize=(width, height), dpi=150)
    sides = {"left": 0.65 / width, "right": 1 - 0.15 / width, "wspace": 0.25}
    sides |= {"bottom": below / height, "top": 1 - 0.1 / height}
    every = made.subplots(1, len(shown), squeeze=False, gridspec_kw=sides)[0]
    for axes, one in zip(every, shown, strict=True):
        _fill(axes, one, lines)
    handles = [Line2D([], [], label=literal(name), **line) for name, line in lines.items()]
    look = {"fontsize": 8, "frameon": False, "handlelength": 3.2, "borderaxespad": 0.1}
    made.legend(handles=handles, loc="lower center", ncols=min(columns, len(handles)) or 1, **look)
    made.set_label(f"{shown[0].y} against {shown[0].x}")
    return made


def draw(curves: Sequence[tuple[str, Runs]], target_loss: float | None, clock: str) -> Figure:
    """Return training loss against time and samples, 1200 pixels wide."""
    lines, found = _chosen(curves, {}, target_loss, clock)
    shown = [one for one in found if one.name in ("loss_time", "loss_samples")]
    return canvas(shown or [Plot("", "training loss", "", False, {})], lines, (8, 3.0))


def every(
    curves: Sequence[tuple[str, Runs]], looks: Mapping[str, Look], target: float | None, clock: str
) -> dict[str, Figure]:
    """Return all figures of some arms by file name; the label of a figure is its caption."""
    lines, found = _chosen(curves, looks, target, clock)
    return {one.name: canvas([one], lines) for one in found if one.name in _STILL}


def _chosen(curves, looks, target, clock) -> tuple[dict[str, dict], list[Plot]]:
    """Return line styles of the best arms, and plots, which draw the next best arms, too (pale)."""
    names = ranked(curves, target)
    most = set(names[:MOST_ARMS])
    lines = styles([name for name, _ in curves if name in most])
    drawn = [curve for curve in curves if curve[0] in names[:MOST_DRAWN]]
    own = {name: look for name, look in looks.items() if name in most}
    return lines, plots(drawn, own, target, clock)


def write_paper(root: Path, made: Mapping[str, Figure]) -> Path:
    """Write figures as PDF and SVG into the folder `figures` of a workdir; return its path."""
    files.make(root / FOLDER)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # else a line per table of a font
    with matplotlib.rc_context(_FONTS):
        for name, one in made.items():
            for kind in ("pdf", "svg"):
                files.write(root / FOLDER / f"{name}.{kind}", png(one, kind), durable=False)
    return root / FOLDER


def save(made: Figure, path: str | os.PathLike) -> None:
    """Write a figure as a PNG; the old file stays if that fails."""
    files.write(path, png(made), durable=False)


def png(made: Figure, kind: str = "png") -> bytes:
    """Return a figure as the bytes of a PNG, or of a PDF or an SVG without a date."""
    out = io.BytesIO()
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    made.savefig(out, format=kind, metadata=metadata)
    return out.getvalue()


def literal(text: str) -> str:
    """Return a text as a label needs it, with $ escaped, so that it begins no formula."""
    return text.replace("$", r"\$")


def plain(axes: Axes) -> None:
    """Give axes a faint grid, small numbers and no frame above and to the right."""
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def mark(axis: Axis) -> None:
    """Mark numbers on a logarithmic axis, more of them where it spans less than three decades."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_short))


def _short(value: float, _) -> str:
    return f"{value:{'g' if 1e-3 <= value < 1e5 else '.0e'}}"


def draw_strips(strips: Sequence[Strip]) -> Figure:
    """Return a figure of every worker's first work, a strip per arm over the same time.

    If an arm has more than MOST_LANES workers, some of them and the slowest are shown.
    """
    lanes = [lanes_of(strip) for strip in strips]
    until, counts = window(strips), [len(own) for own in lanes]
    height = 0.73 + 0.28 * len(strips) + 0.115 * sum(counts)  # inches
    made = Figure(figsize=(5.8, height), dpi=200, label="The first rounds")
    sides = {"left": 0.085, "right": 0.985, "top": 1 - 0.56 / height, "bottom": 0.45 / height}
    sides |= {"hspace": 0.28 / (0.115 * np.mean(counts)), "height_ratios": counts}
    panels = made.subplots(len(strips), 1, sharex=True, squeeze=False, gridspec_kw=sides)[:, 0]
    handles = {kind: Patch(color=colour, label=kind) for kind, colour in KIND_COLOURS.items()}
    for axes, strip, own in zip(panels, strips, lanes, strict=True):
        lane, drawn = {int(worker): place for place, worker in enumerate(own)}, strip.first
        colours = np.array([KIND_COLOURS[kind] for kind in KINDS])[drawn.kind]
        begin, end = drawn.begin / NANOSECONDS, drawn.end / NANOSECONDS
        for worker, place in lane.items():
            at = (drawn.worker == worker) & (begin < until)
            spans, look = np.stack([begin, end - begin], axis=1)[at], {"facecolors": colours[at]}
            axes.broken_barh(spans, (place - 0.42, 0.84), **look, edgecolors="white", lw=0.25)
        for event in strip.events:
            if event.time <= until and event.worker in lane:
                style = {"color": "black", "markeredgecolor": "white", "markersize": 5}
                style |= {"linestyle": "", "markeredgewidth": 0.4, "label": event.kind}
                at, marker = ([event.time], [lane[event.worker]]), EVENT_MARKERS[event.kind]
                (handles[event.kind],) = axes.plot(*at, marker, clip_on=False, zorder=3, **style)
        last = np.zeros(1 + drawn.update.max(), np.int64)  # ns at which updates end
        np.maximum.at(last, drawn.update, drawn.end)
        landed = (last[np.unique(drawn.update)] <= until * NANOSECONDS).sum()
        name = strip.name if len(strip.name) < 60 else f"{strip.name[:28]}…{strip.name[-30:]}"
        axes.set_title(f"{literal(name)}: {landed} updates", loc="left", fontsize=9, pad=4)
        step = -(-own.size // 8)
        axes.set_yticks(range(0, own.size, step), [str(worker) for worker in own[::step]])
        axes.set(xlim=(0, until), ylim=(own.size - 0.4, -0.6))
        axes.set_ylabel("worker", fontsize=8)
        axes.tick_params(labelsize=8, length=2)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("time [s]", fontsize=9)
    spaces = {"handlelength": 1.2, "columnspacing": 1.2, "handletextpad": 0.4}
    where = {"loc": "upper left", "ncols": 6, "fontsize": 9, "frameon": False}
    made.legend(handles=[*handles.values()], **where, **spaces)
    return made


def lanes_of(strip: Strip) -> np.ndarray:
    """Return the workers to show: all of them, or some evenly spread ones and the slowest."""
    if strip.workers <= MOST_LANES:
        return np.arange(strip.workers)
    spent = np.zeros(strip.workers)  # ns, of the longest computation
    at = strip.first.kind == KINDS.index("compute")
    length = (strip.first.end - strip.first.begin) / np.maximum(strip.first.mini_batches, 1)
    np.maximum.at(spent, strip.first.worker[at], length[at])
    some = np.linspace(0, strip.workers - 1, MOST_LANES - 1).astype(int)
    return np.union1d(some, [spent.argmax()])


def window(strips: Sequence[Strip]) -> float:
    """Return the seconds to show: CYCLES of the slowest worker, up to MOST_CYCLES of any strip."""
    cycles, known = [], []  # s
    for strip in strips:
        drawn = strip.first
        at = drawn.worker[drawn.kind == KINDS.index("compute")]
        times, last = np.bincount(at, minlength=1 + drawn.worker.max()), np.zeros(strip.workers + 1)
        np.maximum.at(last, drawn.worker, drawn.end / NANOSECONDS)
        often = np.flatnonzero(times > 0)  # a worker has none if its mini-batches take under 1 ns
        cycles += [(last[often] / times[often]).max()] if often.size else []
        # If a run has more stretches than are drawn, nothing after the last one is known.
        known += [drawn.begin.max() / NANOSECONDS] if drawn.begin.size == MOST_STRETCHES else []
    ends = max(strip.first.end.max() for strip in strips) / NANOSECONDS
    few = (CYCLES * max(cycles), MOST_CYCLES * min(cycles)) if cycles else ()
    return min(*few, ends, *known, np.inf)
