"""Where an arm lies in the grid of its sweep, read from the entries of the configs."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from experiments import records

RATE = "optimizer.learning_rate"  # comes last
SHORT = {RATE: "rate", "mini_batches": "M"}  # what claims call an entry
OPEN = {"mini_batches"}  # entries whose least value is no end of a grid: one is the fewest


def axes(arms: Sequence[dict]) -> dict[str, list[float]]:
    """The numbers in which the configs of arms differ: dotted entry -> its values, ascending."""
    entries = [_numbers(arm) for arm in arms]
    values = {key: {numbers.get(key) for numbers in entries} for key in entries[0]}
    differing = {key: sorted(found) for key, found in values.items() if len(found) > 1}
    return dict(sorted(differing.items(), key=lambda axis: axis[0] == RATE))


def place(arm: dict, grid: dict[str, list[float]]) -> list[str]:
    """As in ["limit=8", "rate=0.4", "rate at the grid's end"]."""
    numbers = _numbers(arm)
    short = {key: SHORT.get(key, key.rpartition(".")[2]) for key in grid}
    ends = [
        f"{short[key]} at the grid's end"
        for key, values in grid.items()
        if numbers[key] in (values[-1:] if key in OPEN else (values[0], values[-1]))
    ]
    return [*(f"{short[key]}={numbers[key]:g}" for key in grid), *ends]


def members(arms: Iterable[dict], groups: Iterable[str]) -> dict[str, list[dict]]:
    """The arms "group/rate=..." of every group, in order."""
    return {group: [a for a in arms if a["name"].startswith(f"{group}/rate=")] for group in groups}


def best(arms: Iterable[dict], groups: Iterable[str]) -> dict[str, dict]:
    """Of every group that was run the arm that ends lowest."""
    found = members(arms, groups).items()
    return {group: min(those, key=final_loss) for group, those in found if those}


def at_ends(arms: Sequence[dict], groups: Iterable[str]) -> str:
    """Whether the rates that end lowest lie inside of their grids, in words."""
    lowest = best(arms, groups)
    tried = {group: axes(those) for group, those in members(arms, groups).items() if those}
    ends = [
        f"{group}: {arm['config'].optimizer.learning_rate:g}"
        for group, arm in lowest.items()
        if any("end" in words for words in place(arm, tried[group]))
    ]
    return f"no: {', '.join(ends)}" if ends else f"yes: all of {len(lowest)}"


def final_loss(arm: dict) -> float:
    """A mean over the last tenth of the evaluations; infinite if it diverged."""
    loss = arm["final_train_loss"]
    return math.inf if loss is None or not math.isfinite(loss) else loss


def _numbers(arm: dict) -> dict[str, float]:
    flat: dict[str, Any] = records.flat(arm["config"].to_dict())
    return {
        key: value
        for key, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
