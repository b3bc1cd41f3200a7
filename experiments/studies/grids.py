"""Where an arm lies in the grid of its sweep, read from the entries of the configs."""

from collections.abc import Sequence
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


def _numbers(arm: dict) -> dict[str, float]:
    flat: dict[str, Any] = records.flat(arm["config"].to_dict())
    return {
        key: value
        for key, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
