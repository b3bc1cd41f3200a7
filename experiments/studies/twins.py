"""Arms that exist twice: with processes on the wall's clock, and simulated with the same delays.

An arm is named `real/PLACE` or `simulated/PLACE`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments import records

LINES = {"real": "-", "simulated": ":"}


def of_kind(arms: Sequence[dict], kind: str) -> dict[str, dict]:
    """The arms of one kind by their place."""
    own = [arm for arm in arms if arm["name"].startswith(f"{kind}/")]
    return {arm["name"].removeprefix(f"{kind}/"): arm for arm in own}


def read(workdir: Path) -> tuple[dict[str, dict], dict[str, dict]]:
    """(real arms, simulated arms) of a sweep, each by place and with its config."""
    arms = [
        arm | {"config": records.read_config(next((workdir / arm["name"]).rglob(records.CONFIG)))}
        for arm in records.read_json(workdir / records.SUMMARY)["arms"]
    ]
    return of_kind(arms, "real"), of_kind(arms, "simulated")


def draw(axes: Axes, workdir: Path, place: str, colour: str, kinds: Mapping[str, dict]) -> None:
    """Draw training loss against seconds, a line for each seed of each kind that has the place."""
    for kind, found in kinds.items():
        if place not in found:
            continue
        seeds = sorted((workdir / kind / place).rglob(records.METRICS))
        for path in seeds:
            entries = records.read_metrics(path.parent)
            points = [(entry["seconds"], entry["train_loss"]) for entry in entries]
            width = 1.4 if len(seeds) == 1 else 0.8
            axes.plot(*zip(*points, strict=True), LINES[kind], color=colour, linewidth=width)


def handles() -> list[Line2D]:
    """What the lines of `draw` mean, for a legend."""
    return [Line2D([], [], color="0.2", linestyle=line, label=kind) for kind, line in LINES.items()]
