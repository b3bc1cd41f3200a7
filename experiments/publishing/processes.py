"""The picture of the protocols with real processes: seconds of an update beside their theory.

It is drawn from the record of `configs/slow_and_stale_real.py`: every real arm has a simulated one
of the same delays, and theory is that of arXiv 1803.01113, Section 3, as the sweep's own table has
it. The picture is on the page of `publishing.gallery`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.publishing import published, quoted
from experiments.reports import figure

RECORD = "slow_and_stale_real"
TABLE = "seconds per update, then staleness"
TEXT = """\
## Protocols with real processes
![Seconds of an update against K, of four protocols](gallery/processes.png)

Four processes sleep for the delays that the simulation has. What an update takes beside is the way
of a gradient to the server, the update and the way back; where a process is stopped early,
stopping it takes time as well.

```
{}
```
"""
KINDS = {"simulated": "o", "real": "x"}
ASIDE = 1.07  # by what the protocols of one K are drawn apart


class Place(NamedTuple):
    """A protocol with a K under a law of delays: seconds of an update."""

    law: str
    protocol: str
    k: int
    theory: tuple[float, float]  # its bounds, equal where it is known
    by_seed: dict[str, list[float]]  # of either kind


def read() -> dict[str, Any]:
    """The record."""
    return published.record(RECORD)


def commands() -> list[str]:
    """What made the record."""
    return [read()["command"]]


def places(record: Mapping[str, Any]) -> list[Place]:
    """Every place of the sweep's table, as its arms and its theory have it."""
    arms = quoted.arms(record)
    (table,) = (table for table in record["numbers"] if table["title"] == TABLE)
    found = []
    for name, _, _, theory, *_ in table["rows"]:
        law, protocol, k = name.split("/")
        bounds = [float(bound) for bound in theory.split(" to ")]
        by_seed = {kind: _seconds(arms[f"{kind}/{name}"]) for kind in KINDS}
        found.append(
            Place(law, protocol, int(k.removeprefix("K=")), (bounds[0], bounds[-1]), by_seed)
        )
    return found


def _seconds(arm: Mapping[str, Any]) -> list[float]:
    """Of an update, a number for each seed."""
    return [arm["seconds"] / updates for updates in arm.get("updates_by_seed") or [arm["updates"]]]


def draw(record: Mapping[str, Any]) -> Figure:
    """A picture of 1500 pixels' width: a panel for every law."""
    found = places(record)
    laws = list(dict.fromkeys(place.law for place in found))
    protocols = list(dict.fromkeys(place.protocol for place in found))
    colours = dict(zip(protocols, figure.COLOURS, strict=False))
    canvas = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    panels = canvas.subplots(1, len(laws), squeeze=False, sharey=True)[0]
    for axes, law in zip(panels, laws, strict=True):
        for place in (place for place in found if place.law == law):
            turn = protocols.index(place.protocol) - (len(protocols) - 1) / 2
            x, colour = place.k * ASIDE**turn, colours[place.protocol]
            axes.plot([x / 1.02, x * 1.02], [place.theory[0]] * 2, color=colour, linewidth=2)
            axes.vlines(x, *place.theory, color=colour, linewidth=2)
            for kind, marker in KINDS.items():
                seconds = place.by_seed[kind]
                axes.plot([x] * len(seconds), seconds, marker, color=colour, markersize=5,
                          markerfacecolor="none")  # fmt: skip
        axes.set_title(law.replace("_", " "), fontsize=10)
        figure.logarithmic(axes)
        axes.set_xscale("log")
        ks = sorted({place.k for place in found})
        axes.set_xlim(ks[0] / 1.4, ks[-1] * 1.4)
        axes.xaxis.set_major_locator(FixedLocator(ks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{k}" for k in ks])
    panels[0].set_ylabel("seconds of an update", fontsize=9)
    worst = max(found, key=_over)
    canvas.supxlabel(
        "gradients of an update K\n"
        f"A mark is one seed. A line is theory, or reaches from one of its bounds to the other. "
        f"The furthest from its simulation is {figure.literal(worst.protocol)}, K = {worst.k}, "
        f"{worst.law.replace('_', ' ')}, {_over(worst):.2f}x.",
        fontsize=8,
    )
    handles = [Line2D([], [], color=colour, label=figure.literal(protocol))
               for protocol, colour in colours.items()]  # fmt: skip
    handles += [
        Line2D([], [], color="0.2", linestyle="", marker=marker, markerfacecolor="none",
               label={"real": "processes"}.get(kind, kind))
        for kind, marker in KINDS.items()
    ]  # fmt: skip
    canvas.legend(handles=handles, loc="outside upper center", ncols=6, fontsize=8, frameon=False)
    return canvas


def _over(place: Place) -> float:
    """The mean of the processes over that of the simulation."""
    return float(np.mean(place.by_seed["real"]) / np.mean(place.by_seed["simulated"]))
