"""The gallery of results, docs/gallery.md: of each a picture, a sentence and its command.

python -m experiments.publishing.gallery  # draw the pictures from docs/results and write the page
"""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from experiments import files, premises, texts
from experiments.publishing import (
    compensated,
    failures,
    graphs,
    labels,
    noise_levels,
    processes,
    published,
    quoted,
    slow_worker,
    sparse,
)
from experiments.reports import figure, telling

PAGE = published.FOLDER.parent / "gallery.md"
PICTURES = published.FOLDER.parent / "gallery"
OPENING = """\
# Gallery

Each entry has a picture, a sentence and the command of its sweep. Every picture is drawn from the
records of its sweeps by `experiments/publishing/gallery.py`. Arms that were run at several rates
are shown at their best one. [Findings](findings.md) has the numbers, [results](results.md) has all
claims.

## One slow worker under four waiting rules
![What eight workers do in the first seconds](strip.png)

With a barrier seven workers wait for the slow one; under the other three rules they wait less.
[Concepts](concepts.md) draws this strip in twenty lines.
"""


class Measure(NamedTuple):
    """A column of a record as an axis."""

    column: str
    label: str
    unit: str = ""


TO_TARGET = Measure("seconds_to_target", "seconds to the target loss", "s")
SENT = Measure("bytes_per_worker", "bytes sent per worker", "B")
LOSS = Measure("final_train_loss", "training loss at the end")


class Exhibit(NamedTuple):
    """A result: its record, what is drawn of it, and what one sees."""

    record: str
    heading: str
    sentence: str
    across: Measure
    up: Measure | None = None  # points instead of bars
    best: Measure | None = None  # whose least is the best rate; None: across
    control: str = ""  # an arm that only shows the noise, and is not drawn


EXHIBITS = (
    Exhibit(
        "demo", "Non-blocking SGD, the demo",
        "Where one worker is slow, stopping rounds early or making them smaller beats waiting.",
        TO_TARGET,
    ),
    Exhibit(
        "nonblocking_slow4", "Non-blocking SGD, three methods, one slow worker",
        "With equal rounds all methods gain, D-PSGD most; smaller rounds gain more on average.",
        TO_TARGET,
    ),
    Exhibit(
        "matcha", "MATCHA",
        "Random matchings reach the same loss in less time, each method at its best rate.",
        TO_TARGET,
    ),
    Exhibit(
        "adasync", "AdaSync",
        "At their best rates, growing numbers of workers are not seen to beat a fixed one to this "
        "loss.",
        TO_TARGET,
    ),
    Exhibit(
        "swarm", "SwarmSGD among equal nodes",
        "With two local steps pairs are about as fast as rounds; a codec saves most bytes.",
        TO_TARGET, SENT,
    ),
    Exhibit(
        "swarm_slow4", "SwarmSGD with one slow node",
        "Gossip in pairs loses little time to the slow node, and all other methods lose much.",
        TO_TARGET, SENT,
    ),
    Exhibit(
        "s2_hashed_logistic", "Sparse gradients",
        "Exact sparse exchanges send less than a sketch where gradients are sparse enough.",
        SENT, control="dense/reordered",
    ),
    Exhibit(
        "local_training", "Local steps on a small GPT",
        "Local steps send far less and end higher. With Muon they end below AdamW that sends all.",
        SENT, LOSS, best=LOSS,
    ),
)  # fmt: skip


# Pictures with a module of their own, each with a TEXT, `commands`, `read` and `draw`.
MODULES = {
    "graphs": graphs,
    "slow_worker": slow_worker,
    "compensated": compensated,
    "processes": processes,
    "noise_levels": noise_levels,
    "failures": failures,
    "sparse": sparse,
}


def at_best_rates(arms: Mapping[str, Mapping], column: str) -> dict[str, Mapping]:
    """Where arms differ by their rates alone, the one whose `column` is least in every seed."""
    groups: dict[str, list[Mapping]] = {}
    for name, arm in arms.items():
        groups.setdefault(re.split("/(?:outer|rate)=", name)[0], []).append(arm)
    chosen = {}
    for name, members in groups.items():
        try:
            chosen[name] = premises.best(members, column)
        except premises.CannotTell:  # of these, draw says how many there are
            chosen[name] = {**members[0], column: None}
    return chosen


def draw(exhibit: Exhibit, arms: Mapping[str, Mapping]) -> Figure:
    """A picture of 1000 pixels' width: bars, or points where there are two measures."""
    arms = {name: arm for name, arm in arms.items() if name != exhibit.control}
    arms = at_best_rates(arms, (exhibit.best or exhibit.across).column)
    if exhibit.across is TO_TARGET:
        exhibit = exhibit._replace(across=_to_loss(arms.values()))
    shown = {name: arm for name, arm in arms.items() if arm[exhibit.across.column] is not None}
    if exhibit.up is not None:
        shown = {name: arm for name, arm in shown.items() if arm[exhibit.up.column] is not None}
        return _points(exhibit, shown)
    return _bars(exhibit, shown, left_out=len(arms) - len(shown))


def _to_loss(arms: Iterable[Mapping]) -> Measure:
    """TO_TARGET with the loss, where all arms have the same target."""
    targets = {arm["target_loss"] for arm in arms}
    if len(targets) > 1:
        return TO_TARGET
    return TO_TARGET._replace(label=f"seconds to training loss {targets.pop():.3g}")


def _colours(names) -> dict[str, str]:
    methods = list(dict.fromkeys(map(telling.method, names)))
    return {
        name: figure.COLOURS[methods.index(telling.method(name)) % len(figure.COLOURS)]
        for name in names
    }


def _bars(exhibit: Exhibit, arms: Mapping[str, Mapping], left_out: int) -> Figure:
    canvas = Figure(figsize=(6.7, 0.75 + 0.24 * len(arms)), dpi=150, layout="constrained")
    axes = canvas.subplots()
    column, colours = exhibit.across.column, _colours(arms)
    values = [arm[column] for arm in arms.values()]
    spreads = [arm.get(f"{column}_std") or 0.0 for arm in arms.values()]
    places = np.arange(len(arms))
    axes.barh(
        places, values, 0.72, xerr=spreads if any(spreads) else None, color=list(colours.values()),
        error_kw={"elinewidth": 1, "ecolor": "0.3"},
    )  # fmt: skip
    axes.set_yticks(places, [figure.literal(name) for name in arms], fontsize=8)
    axes.invert_yaxis()
    everybody = left_out + len(arms)
    missing = f"; {left_out} of {everybody} arms did not get there in every seed"
    _label(axes.xaxis, exhibit.across, missing if left_out else "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=2)
    return canvas


def _points(exhibit: Exhibit, arms: Mapping[str, Mapping]) -> Figure:
    canvas = Figure(figsize=(6.7, 0.9 + max(3.4, 0.2 * len(arms))), dpi=150, layout="constrained")
    axes = canvas.subplots()
    across, up, looks = exhibit.across, exhibit.up, _looks(arms)
    numbers = {name: str(place) for place, name in enumerate(arms, 1)}
    dots = []
    for name, arm in arms.items():
        (colour, marker), x, y = looks[name], arm[across.column], arm[up.column]
        label = f"{numbers[name]}  {figure.literal(name)}"
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.5}  # some lie on others
        axes.plot(x, y, marker, color=colour, markersize=6.5, label=label, linestyle="", **edge)
        if seeds := arm.get(f"{up.column}_by_seed"):
            axes.plot([x] * len(seeds), seeds, ".", color=colour, markersize=2, alpha=0.6)
            dots += [(x, seed) for seed in seeds]
    axes.set_xscale("log")
    axes.set_yscale("log" if up.unit else "linear")  # losses at the end are close together
    for axis, measure in ((axes.xaxis, across), (axes.yaxis, up)):
        if axis.get_scale() == "log":
            values = [arm[measure.column] for arm in arms.values()]
            axis.set_major_locator(LogLocator(subs=_ticks(max(values) / min(values))))
            axis.set_minor_locator(NullLocator())
        _label(axis, measure)
    axes.grid(color="0.92", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    canvas.legend(loc="outside right upper", fontsize=7, frameon=False, handletextpad=0.2)
    places = [(arm[across.column], arm[up.column]) for arm in arms.values()]
    colours = [colour for colour, _ in looks.values()]
    labels.beside(axes, places, list(numbers.values()), colours, dots)
    return canvas


def _ticks(ratio: float) -> tuple[float, ...]:
    """Which parts of a decade have numbers where an axis covers this ratio."""
    if ratio > 100:
        return (1,)
    return (1, 2, 5) if ratio > 5 else (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8)


def _looks(names) -> dict[str, tuple[str, str]]:
    """Colour and marker of every arm: methods have colours, and no two arms are alike."""
    given, taken = {}, set()
    for name, colour in _colours(names).items():
        free = [look for marker in figure.MARKERS if (look := (colour, marker)) not in taken]
        given[name] = free[0] if free else (colour, figure.MARKERS[0])
        taken.add(given[name])
    return given


def _label(axis, measure: Measure, more: str = "") -> None:
    axis.set_label_text(f"{measure.label}{more}", fontsize=8)
    if measure.unit:
        axis.set_major_formatter(EngFormatter(measure.unit))


def page() -> str:
    """The gallery in Markdown."""
    sections = [
        f"## {exhibit.heading}\n![{exhibit.across.label} of every arm]"
        f"(gallery/{exhibit.record}.png)\n\n{exhibit.sentence}\n\n"
        f"```\n{published.record(exhibit.record)['command']}\n```\n"
        for exhibit in EXHIBITS
    ]
    several = [module.TEXT.format("\n".join(module.commands())) for module in MODULES.values()]
    return "\n".join([OPENING, *sections, *several])


def write() -> None:
    """Draw the pictures and write the page."""
    files.make(PICTURES)
    for exhibit in EXHIBITS:
        picture = draw(exhibit, quoted.arms(published.record(exhibit.record)))
        figure.save(picture, PICTURES / f"{exhibit.record}.png")
    for name, module in MODULES.items():
        figure.save(module.draw(module.read()), PICTURES / f"{name}.png")
    files.write(PAGE, page())


def main() -> None:
    """Write all, and say where."""
    try:
        write()
        print(PAGE)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {texts.sentence(error)}")


if __name__ == "__main__":
    main()
