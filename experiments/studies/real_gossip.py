"""Nodes that are processes beside their simulation, and beside methods that wait for a slow one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments import premises
from experiments.numbers import Numbers
from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look
from experiments.studies import twins

SECONDS = "seconds_to_target"
CLOSE = 1.1  # times the simulated seconds, which foresee the real ones
COLUMNS = 3  # panels of a row


def claims(arms: Sequence[dict], waiting: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Whether a simulation foresees processes, and whether gossip gains over waiting.

    waiting: the arms whose rounds wait for neighbours, or for everybody.
    """
    places = list(twins.of_kind(arms, "real"))
    for place in places:
        yield (
            f"{place}: processes take at most {CLOSE:g}x the simulated time to the target",
            premises.text(foreseen, arms, place),
        )
    for rival in waiting:
        for place in places:
            if place not in waiting and rival in places:
                yield (
                    f"with one slow process {place} is sooner at the target than {rival}",
                    premises.text(sooner, arms, place, rival),
                )


def foreseen(arms: Sequence[dict], place: str) -> premises.Answer:
    """Seconds of the wall against virtual ones, with the same delays."""
    pair = premises.named(arms, f"real/{place}", f"simulated/{place}")
    return premises.at_most(*pair, SECONDS, CLOSE)


def sooner(arms: Sequence[dict], ours: str, theirs: str) -> premises.Answer:
    """Processes against processes, each at a rate that is the best of its simulated grid."""
    for place in (ours, theirs):
        tried = premises.group(arms, f"tuning/{place}")
        best = premises.best(tried, SECONDS)
        premises.inside(best, tried)
        (arm,) = premises.named(arms, f"real/{place}")
        used, found = (each["config"].optimizer.learning_rate for each in (arm, best))
        if used != found:
            raise premises.CannotTell(f"{place} ran at rate {used:g}, the best is {found:g}")
    return premises.at_most(*premises.named(arms, f"real/{ours}", f"real/{theirs}"), SECONDS)


def numbers(arms: Sequence[dict]) -> Iterator[Numbers]:
    """Seconds to the target and updates per second, real and simulated."""
    kinds = {kind: twins.of_kind(arms, kind) for kind in twins.LINES}
    rows = []
    for place, arm in kinds["real"].items():
        refused = arm["metrics"][0][-1].get("refusals_per_meeting")
        twin = kinds["simulated"].get(place)
        pace = _pace(arm), _pace(twin) if twin else ("", "")
        busy = "" if refused is None else f"{refused:.2f}"
        rows.append((place, *pace[0], *pace[1], busy))
    yield Numbers(
        "processes and their simulation",
        ("method", "real [s]", "updates/s", "simulated [s]", "updates/s", "refusals per meeting"),
        rows,
    )


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


def _pace(arm: dict) -> tuple[str, str]:
    reached = arm[SECONDS]
    when = "never" if reached is None else f"{reached:.1f}"
    return when, f"{arm['updates'] / arm['seconds']:.1f}"
