"""Nodes that are processes beside their simulation, and beside methods that wait for a slow one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look
from experiments.studies import twins

COLUMNS = 3  # panels of a row


def claims(arms: Sequence[dict], waiting: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Seconds to the target and updates per second, real and simulated; gains over waiting.

    waiting: the arms whose rounds wait for neighbours, or for everybody.
    """
    kinds = {kind: twins.of_kind(arms, kind) for kind in twins.LINES}
    lines = []
    for place, arm in kinds["real"].items():
        own, twin = (_pace(found[place]) for found in kinds.values())
        refused = arm["metrics"][0][-1].get("refusals_per_meeting")
        busy = "" if refused is None else f"; {refused:.2f} refusals per meeting"
        lines.append(f"{place}: {own}, simulated {twin}{busy}")
    yield (
        "a simulation with the same delays says how long processes take to the target",
        "\n".join(lines),
    )
    lines = [
        _tuned(place, arm, twins.of_kind(arms, f"tuning/{place}"))
        for place, arm in kinds["real"].items()
    ]
    yield "each learning rate is the best of those that were tried", "\n".join(lines)
    for rival in waiting:
        lines = []
        for place in kinds["real"]:
            if place in waiting or rival not in kinds["real"]:
                continue
            gains = [_gain(found[place], found[rival]) for found in kinds.values()]
            lines.append(f"{place}: {gains[0]}, simulated {gains[1]}")
        if lines:
            yield f"with one slow process gossip is quicker than {rival}", "\n".join(lines)


def figures(workdir: str | Path) -> None:
    """Write curves.png, training loss against seconds, a panel for each method."""
    workdir = Path(workdir)
    kinds = dict(zip(twins.LINES, twins.read(workdir), strict=True))
    places = list(dict.fromkeys(place for found in kinds.values() for place in found))
    rows = -(-len(places) // COLUMNS)
    canvas = Figure(figsize=(10, 2.7 * rows + 0.6), dpi=150, layout="constrained")
    panels = canvas.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, place in zip(panels, places, strict=False):
        twins.draw(axes, workdir, place, COLOURS[0], kinds)
        axes.set_title(place, fontsize=9)
        axes.set_yscale("log")
        look.logarithmic(axes)
    for axes in panels[len(places) :]:
        axes.set_visible(False)
    canvas.supxlabel("seconds, of the wall or virtual", fontsize=9)
    canvas.supylabel("training loss", fontsize=9)
    canvas.legend(handles=twins.handles(), loc="outside upper center", ncols=2, fontsize=8,
                  frameon=False)  # fmt: skip
    save(canvas, workdir / "curves.png")


def _tuned(place: str, arm: dict, tried: dict[str, dict]) -> str:
    """Whether the rate of a real arm reaches the target first in simulation, inside the grid."""
    reached = {each["config"].optimizer.learning_rate: each["seconds_to_target"]
               for each in tried.values()}  # fmt: skip
    there = {rate: seconds for rate, seconds in reached.items() if seconds is not None}
    if not there:
        return f"{place}: no rate reaches the target"
    best = min(there, key=there.get)
    used = arm["config"].optimizer.learning_rate
    end = " at the grid's end" if best in (min(reached), max(reached)) else ""
    return f"{place}: {used:g}; the best is {best:g}{end}, {there[best]:.1f} s"


def _pace(arm: dict) -> str:
    rate = arm["updates"] / arm["seconds"]
    reached = arm["seconds_to_target"]
    when = "never there" if reached is None else f"{reached:.1f} s"
    return f"{when} ({rate:.1f} updates/s)"


def _gain(ours: dict, theirs: dict) -> str:
    seconds = [arm["seconds_to_target"] for arm in (ours, theirs)]
    if None in seconds:
        return "a target was not reached"
    return f"{seconds[1] / seconds[0]:.2f} times as quick"
