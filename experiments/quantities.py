"""A measured number in words: with its unit, its deviation over seeds, and beside another one.

Arms are summaries over seeds as `aggregates.aggregate` makes them, or rows of a published record.
"""

import math
from collections.abc import Mapping
from typing import Any

from experiments import differences

# Field: (by what it is multiplied, its unit); all others are shown as they are.
UNITS = {
    "ms": (1.0, " ms"),
    "meeting": (1.0, " s"),
    "seconds": (1.0, " s"),
    "seconds_to_target": (1.0, " s"),
    "communication_seconds_to_target": (1.0, " s"),
    "updates_to_target": (1.0, " updates"),
    "samples_to_target": (1.0, " samples"),
    "test_accuracy": (100.0, " %"),
    "bytes_per_worker": (1e-6, " MB"),
    "bytes_to_target": (1e-6, " MB"),
}
OF_TEST_SAMPLES = ("test_accuracy",)  # shares of the test samples that are right

Arm = Mapping[str, Any]


def against(ours: Arm, theirs: Arm, field: str) -> str:
    """As in "fast 58.9 ± 8.2 s against slow 104.5 ± 13.7 s, 0.56x"."""
    sides = [f"{arm['name']} {shown(arm, field)}" for arm in (ours, theirs)]
    return " against ".join(sides) + _ratio(ours, theirs, field)


def in_brief(ours: Arm, theirs: Arm, field: str) -> str:
    """The same without the names."""
    sides = " against ".join(shown(arm, field) for arm in (ours, theirs))
    return sides + _ratio(ours, theirs, field)


def _ratio(ours: Arm, theirs: Arm, field: str) -> str:
    if not theirs[field]:
        return ""
    ratio = ours[field] / theirs[field]
    return f", {ratio:.2f}x" if ratio >= 0.01 else f", {ratio:.2g}x"


def noise(ours: Arm, theirs: Arm, field: str) -> str:
    """The difference with its standard error and the p-value of the test that fits."""
    found = differences.between(ours, theirs, field)
    scale, unit = UNITS.get(field, (1.0, ""))
    unit = unit.replace("%", "points")
    kind = "paired" if found.paired else "unpaired"
    return (
        f"difference {scale * found.mean:+.3g} ± {scale * found.error:.2g}{unit}, {kind}, "
        f"p = {found.p:.2g}"
    )


def shown(arm: Arm, field: str) -> str:
    """A number with the deviation of its seeds, where there are several, and its unit.

    Beside a test accuracy stands the standard error that its test samples leave, where the arm has
    their number.
    """
    scale, unit = UNITS.get(field, (1.0, ""))
    value, spread = arm[field], arm.get(f"{field}_std")
    values = arm.get(f"{field}_by_seed")
    if values is not None and len(values) > 1:
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    deviation = "" if spread is None else f" ± {scale * spread:.2g}"
    if field in OF_TEST_SAMPLES and arm.get("test_samples"):
        error = scale * sampling_error(value, arm["test_samples"])
        deviation += f" (test samples: ± {error:.2g})"
    return f"{scale * value:.4g}{deviation}{unit}"


def sampling_error(accuracy: float, samples: float) -> float:
    """Standard error sqrt(a (1 - a) / n) of an accuracy a as a share of n test samples, binomial.

    All seeds and arms are tested on the same samples, so that a deviation over seeds lacks it, and
    a difference of two arms has less than both together.
    """
    return math.sqrt(accuracy * (1 - accuracy) / samples)
