"""Panels of a page: small figures as SVG, for phones and for wide screens."""

import functools
import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from experiments.reports import figure, multiples, telling
from experiments.reports.telling import Runs
from experiments.reports.timeline import Stretches, stretches
from stragglers.diagnostics import Diagnostics, diagnose
from stragglers.schedule import Event, Schedule

SIZE = (4.6, 3.0)  # inches of a panel, which a phone shows at about this size
MARGINS = {"left": 0.14, "right": 0.97, "bottom": 0.16, "top": 0.97}  # the same, to align panels
NO_DISTANCE = 1e-9  # consensus distance of models that are equal but for rounding


class Look(NamedTuple):
    """What the figures need of a schedule."""

    staleness: np.ndarray  # [S] share of contributions that were 0, 1, ... updates old
    idle: np.ndarray  # [workers] share of the run in which nothing is done for any update
    first: Stretches  # the first ones
    events: tuple[Event, ...]  # all of them
    found: Diagnostics


class Panel(NamedTuple):
    """A figure in a page and the words below it."""

    caption: str
    svg: str


class Drawing(NamedTuple):
    """What a figure shows, wherever it is drawn."""

    name: str  # of a file
    caption: str
    draw: Callable[[Axes], None]
    margins: Mapping[str, float] = MARGINS


def look(schedule: Schedule, workers: int, most: int) -> Look:
    """Look at a schedule of `workers` workers; `most`: how many of its first stretches to keep."""
    real = schedule.batches > 0
    counts = np.bincount(schedule.staleness[real])
    # A node that is only met spends no time, nor does a position that stands for nobody.
    lasting = schedule.finish > schedule.start
    spent = (schedule.busy + schedule.communication)[lasting]
    used = np.bincount(schedule.workers[lasting], spent, workers)
    whole = schedule.time[-1] - schedule.start[lasting].min(initial=np.inf)
    idle = np.clip(1 - used / whole, 0.0, 1.0) if whole > 0 else np.zeros(workers)
    staleness = counts / max(1, counts.sum())
    found = diagnose(schedule, workers)
    return Look(staleness, idle, stretches(schedule, most), schedule.events, found)


def drawings(
    curves: Sequence[tuple[str, Runs]],
    looks: Mapping[str, Look],
    target_loss: float | None,
    clock: str,
) -> list[Drawing]:
    """What the records of some arms have to show, each in the line of `figure.styles`.

    curves: (arm's name, runs); looks: by the arm's name, of those with a schedule.
    """
    lines = figure.styles([name for name, _ in curves])
    made = []

    def add(name: str, caption: str, draw: Callable[[Axes], None]):
        made.append(Drawing(name, caption, draw))

    def peak(column: str) -> float:
        values = [r.get(column) or 0.0 for _, runs in curves for run in runs for r in run]
        return max(values, default=0.0)

    loss = functools.partial(_loss, curves=curves, lines=lines, target_loss=target_loss)
    add("loss_time", f"Training loss against {clock} time", functools.partial(loss, x="seconds"))
    add("loss_samples", "Training loss against samples", functools.partial(loss, x="samples"))
    if peak("bytes_per_worker"):
        bytes_sent = functools.partial(loss, x="bytes_per_worker")
        add("loss_bytes", "Training loss against bytes sent", bytes_sent)
    if peak("test_accuracy"):
        accuracy = functools.partial(_accuracy, curves=curves, lines=lines)
        add("accuracy_time", f"Test accuracy against {clock} time", accuracy)
    if peak("consensus_distance") > NO_DISTANCE:
        distance = functools.partial(_distance, curves=curves, lines=lines)
        add("distance_time", f"Consensus distance against {clock} time", distance)
    stale = {name: at.staleness for name, at in looks.items() if at.staleness.size > 1}
    if stale:
        add(
            "staleness",
            "Staleness of the gradients that made an update",
            functools.partial(_staleness, stale=stale, lines=lines),
        )
    idle = {name: at.idle for name, at in looks.items() if at.idle.max() > 1e-3}
    if idle:
        caption = "Share of the run in which a worker does nothing for any update"
        add("idle", caption, functools.partial(_idle, idle, lines))
    return made


def by_group(
    curves: Sequence[tuple[str, Runs]], target_loss: float | None, clock: str
) -> list[Drawing]:
    """Draw the training loss of MOST_DRAWN arms, a figure per group with their names in it."""
    curves = telling.chosen(curves, target_loss, telling.MOST_DRAWN)
    found = telling.groups([name for name, _ in curves])
    return [
        Drawing(
            f"group_{number}",
            f"{title}: training loss against {clock} time",
            functools.partial(_group, curves=curves, names=names, target_loss=target_loss),
            MARGINS | {"right": 0.72},  # for names
        )
        for number, (title, names) in enumerate(found.items())
    ]


def _group(axes: Axes, *, curves, names, target_loss):
    multiples.group(axes, curves, names, target_loss)
    _label(axes, "seconds", "training loss")


def drawn(
    caption: str,
    draw: Callable[[Axes], None],
    prefix: str,
    margins: Mapping[str, float] = MARGINS,
) -> Panel:
    """A panel of what `draw` draws; prefix: of ids, which no other panel of the page has."""
    canvas = Figure(figsize=SIZE)
    draw(canvas.subplots(gridspec_kw=dict(margins)))
    return Panel(caption, _svg(canvas, caption, prefix))


def figure_of(panel: Panel) -> str:
    """A panel as a figure of a page."""
    caption = html.escape(panel.caption)
    return f"<figure>\n{panel.svg}\n<figcaption>{caption}</figcaption>\n</figure>"


_X = {
    "seconds": ("time [s]", None),
    "samples": ("samples seen by all workers", EngFormatter(sep="")),
    "bytes_per_worker": ("bytes sent per worker", EngFormatter("B")),
}


def _label(axes: Axes, x: str, y: str):
    label, formatter = _X[x]
    axes.set(xlabel=label, ylabel=y)
    if formatter is not None:
        axes.xaxis.set_major_formatter(formatter)
        axes.xaxis.set_major_locator(MaxNLocator(5))


def _loss(axes: Axes, *, curves, lines, target_loss, x: str):
    for name, runs in curves:
        figure.plot(axes, runs, lines[name], x)
    if target_loss is not None:
        axes.axhline(target_loss, color="0.35", linewidth=0.8, linestyle="--")
    figure.logarithmic(axes)
    figure.room(axes, curves)
    _label(axes, x, "training loss")


def _accuracy(axes: Axes, *, curves, lines):
    for name, runs in curves:
        percent = (lambda values: 100 * values, lambda values: values)
        figure.plot(axes, runs, lines[name], "seconds", "test_accuracy", scale=percent)
    figure.plain(axes)
    _label(axes, "seconds", "test accuracy [%]")


def _distance(axes: Axes, *, curves, lines):
    for name, runs in curves:
        if any((r["consensus_distance"] or 0.0) > NO_DISTANCE for run in runs for r in run):
            figure.plot(axes, runs, lines[name], "seconds", "consensus_distance")
    figure.logarithmic(axes)
    _label(axes, "seconds", r"mean of $\|x_i - \bar{x}\|^2$")


def _staleness(axes: Axes, *, stale: Mapping[str, np.ndarray], lines):
    # The oldest hundredth is long and flat.
    last = max(int(np.searchsorted(np.cumsum(shares), 0.99)) for shares in stale.values())
    for name, shares in stale.items():
        shown = shares[: last + 1]
        marker = {"marker": "o", "markersize": 3} if last <= 40 else {}
        axes.plot(np.arange(shown.size), 100 * shown, **lines[name], **marker)
    figure.plain(axes)
    axes.set(xlabel="updates", ylabel="gradients [%]", ylim=(0, None), xlim=(-0.02 * last, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _idle(idle: Mapping[str, np.ndarray], lines, axes: Axes):
    for name, shares in idle.items():
        marker = {"marker": "o", "markersize": 3} if shares.size <= 40 else {}
        axes.plot(100 * shares, **lines[name], **marker)
    figure.plain(axes)
    axes.set(xlabel="worker", ylabel="idle [%]", ylim=(0, None), xlim=(None, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend(names: Sequence[str], target_loss: float | None) -> str:
    """The lines of `panels` with the names of their arms, as HTML that wraps."""
    lines = figure.styles(names)
    entries = [(name, line["color"], _dashes(line)) for name, line in lines.items()]
    if target_loss is not None:
        entries.append((f"target loss {target_loss:.3g}", "#595959", "3.7 1.6"))
    items = (
        '<li><svg viewBox="0 0 36 8" width="36" height="8" aria-hidden="true">'
        f'<path d="M0 4H36" stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dashes}"/>'
        f"</svg>{html.escape(name)}</li>"
        for name, colour, dashes in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _dashes(line: Mapping) -> str:
    """A dash pattern of matplotlib, in widths of the line, for a line of an SVG."""
    if line["linestyle"] == "-":
        return "none"
    return " ".join(f"{2.2 * length:g}" for length in line["linestyle"][1])


def _svg(canvas: Figure, caption: str, prefix: str) -> str:
    """The figure as an element of a page: glyphs as paths, ids of its own, as wide as its box."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": prefix}):
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text[text.index("<svg") :])
    head, _, body = text.partition(">")
    view = re.search(r'viewBox="[^"]*"', head)[0]
    return f'<svg {view} role="img" aria-label="{html.escape(caption)}">{body.strip()}'
