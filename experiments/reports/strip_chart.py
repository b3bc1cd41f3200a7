"""A strip chart: what every worker does in the first rounds of some arms, as a picture."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.reports import figure
from experiments.reports.timeline import KINDS, MOST_STRETCHES, NANOSECONDS, Stretches
from stragglers.schedule import Event

COLOURS = {"compute": "#0072B2", "wait": "#D9D9D9", "communicate": "#E69F00"}
MARKERS = {"joined": ">", "lost": "X", "restored": "^"}  # of events
MOST_STRIPS = 4
MOST_LANES = 16  # workers of a strip
CYCLES = 4  # of the slowest worker, which a strip shows, unless others have very many in this time
MOST_CYCLES = 40


class Strip(NamedTuple):
    """What a strip shows: the beginning of an arm."""

    name: str
    first: Stretches
    workers: int
    events: Sequence[Event] = ()


def draw(strips: Sequence[Strip]) -> bytes:
    """A PNG of `canvas_of`."""
    return figure.png(canvas_of(strips))


def canvas_of(strips: Sequence[Strip]) -> Figure:
    """A figure of what every worker does at first, one strip below the other over the same time.

    Of many workers, some and the slowest are shown.
    """
    shown = [(strip, lanes_of(strip.first, strip.workers)) for strip in strips]
    until = window([strip.first for strip in strips])
    width, lane, above, below = 5.8, 0.115, 0.28, 0.45  # inches
    top = height = above + below + sum(above + lane * len(lanes) for _, lanes in shown)
    top -= above  # for the legend
    canvas = Figure(figsize=(width, height), dpi=200)
    marked = []
    for strip, lanes in shown:
        top -= above + lane * len(lanes)
        axes = canvas.add_axes((0.085, top / height, 0.9, lane * len(lanes) / height))
        _lay(axes, strip.first, lanes, until)
        marked += _mark(axes, strip.events, lanes, until)
        title = f"{figure.literal(strip.name)}: {_landed(strip.first, until)} updates"
        axes.set_title(title, loc="left", fontsize=9, pad=4)
        axes.set_xlim(0, until)
        axes.tick_params(labelbottom=False)
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("time [s]", fontsize=9)
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    handles += {line.get_label(): line for line in marked}.values()
    spaces = {"handlelength": 1.2, "columnspacing": 1.2, "handletextpad": 0.4} if marked else {}
    canvas.legend(
        handles=handles, loc="upper left", ncols=len(handles), fontsize=9, frameon=False, **spaces
    )
    return canvas


def _lay(axes: Axes, drawn: Stretches, lanes: np.ndarray, until: float):
    """Draw the stretches of the workers `lanes` in the first `until` seconds."""
    lane = np.full(1 + max(drawn.worker.max(), lanes.max()), -1)
    lane[lanes] = np.arange(lanes.size)
    inside = (drawn.begin < until * NANOSECONDS) & (lane[drawn.worker] >= 0)
    for kind, name in enumerate(KINDS):
        for place in range(lanes.size):
            at = np.flatnonzero(inside & (drawn.kind == kind) & (lane[drawn.worker] == place))
            spans = (
                np.stack([drawn.begin[at], drawn.end[at] - drawn.begin[at]], axis=1) / NANOSECONDS
            )
            axes.broken_barh(
                spans,
                (place - 0.42, 0.84),
                facecolors=COLOURS[name],
                edgecolors="white",
                linewidths=0.25,
            )
    every = -(-lanes.size // 8)
    axes.set_yticks(range(0, lanes.size, every), [str(i) for i in lanes[::every]])
    axes.set_ylim(lanes.size - 0.4, -0.6)
    axes.set_ylabel("worker", fontsize=8)
    axes.tick_params(labelsize=8, length=2)
    axes.spines[["top", "right"]].set_visible(False)


def _mark(axes: Axes, events: Sequence[Event], lanes: np.ndarray, until: float) -> list[Line2D]:
    """Draw the events of the workers `lanes` in the first `until` seconds: a line per kind."""
    lane_of = {worker: lane for lane, worker in enumerate(lanes.tolist())}
    inside = [event for event in events if event.time <= until and event.worker in lane_of]
    marked = []
    for kind, marker in MARKERS.items():
        at = [(event.time, lane_of[event.worker]) for event in inside if event.kind == kind]
        if at:
            style = {"linestyle": "", "markersize": 5, "markeredgewidth": 0.4}
            marked += axes.plot(
                *zip(*at, strict=True),
                marker=marker,
                color="black",
                markeredgecolor="white",
                label=kind,
                zorder=3,
                clip_on=False,
                **style,
            )
    return marked


def _landed(drawn: Stretches, until: float) -> int:
    """How many updates have landed at all their workers by `until` [s]."""
    last = np.zeros(1 + drawn.update.max(), np.int64)
    np.maximum.at(last, drawn.update, drawn.end)
    last = last[np.unique(drawn.update)]
    return int((last <= until * NANOSECONDS).sum())


def has_gaps(drawn: Stretches) -> bool:
    """Whether some worker has spent time that belongs to no contribution."""
    order = np.lexsort((drawn.begin, drawn.worker))
    worker, begin, end = (column[order] for column in (drawn.worker, drawn.begin, drawn.end))
    return bool(((begin[1:] > end[:-1] + 1) & (worker[1:] == worker[:-1])).any())


def _computing(drawn: Stretches) -> tuple[np.ndarray, np.ndarray]:
    """How often each worker computes and the seconds that it spends on a mini-batch, or nan."""
    at = drawn.kind == KINDS.index("compute")
    worker, size = drawn.worker[at], drawn.worker.max() + 1
    spent = np.bincount(worker, (drawn.end - drawn.begin)[at], size) / NANOSECONDS
    mini_batches = np.bincount(worker, drawn.mini_batches[at], size)
    each = np.where(mini_batches > 0, spent / np.maximum(mini_batches, 1), np.nan)
    return np.bincount(worker, minlength=size), each


def lanes_of(drawn: Stretches, workers: int) -> np.ndarray:
    """The workers to show: all of them, or some that are evenly spread and the slowest."""
    if workers <= MOST_LANES:
        return np.arange(workers)
    _, each = _computing(drawn)
    some = np.linspace(0, workers - 1, MOST_LANES - 1).astype(int)
    slowest = np.nan_to_num(each, nan=-1.0).argmax()
    return np.union1d(some, [slowest])


def window(strips: Sequence[Stretches]) -> float:
    """Seconds to show: CYCLES of the slowest worker, at most MOST_CYCLES of the quickest strip."""
    cycles, known = [], []
    for drawn in strips:
        times, _ = _computing(drawn)
        often = np.flatnonzero(times > 0)
        last = np.zeros(times.size)
        np.maximum.at(last, drawn.worker, drawn.end / NANOSECONDS)
        if often.size:  # no mini-batch takes a nanosecond otherwise
            cycles.append((last[often] / times[often]).max())
        # Of a run that is not drawn to its end, nothing is known any later.
        whole = drawn.begin.size < MOST_STRETCHES
        known.append(np.inf if whole else drawn.begin.max() / NANOSECONDS)
    ends = max(drawn.end.max() for drawn in strips) / NANOSECONDS
    few = (CYCLES * max(cycles), MOST_CYCLES * min(cycles)) if cycles else ()
    return min(*few, ends, *known)
