"""What a program takes over another that took turns with it, as fields of a point."""

from collections.abc import Sequence

import numpy as np

from experiments.stopwatch import faster_half


def over(name: str, times: Sequence[float], floor: Sequence[float]) -> dict[str, float]:
    """The ratio of the faster halves of both, and how far the ratio spreads from turn to turn."""
    ratio = faster_half(times) / faster_half(floor)
    return {f"over_{name}": ratio, **spread(f"over_{name}", np.divide(times, floor))}


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest of what was measured several times."""
    found = {"median": np.median(values), "least": np.min(values), "greatest": np.max(values)}
    return {f"{name}_{which}": float(value) for which, value in found.items()}


def as_text(ratio: dict[str, float]) -> str:
    """A ratio of `over` for a table."""
    ours, median, least, greatest = ratio.values()
    return f"{ours:.2f}, median {median:.2f} ({least:.2f} - {greatest:.2f})"
