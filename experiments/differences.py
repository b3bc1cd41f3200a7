"""How far two arms differ, with the deviation over seeds, a t-test and an interval.

Arms of a sweep that have the same seed share its delays, samples and initial parameters, so that
the difference of a seed is less noisy than either of its values. With d_s = a_s - factor * b_s for
each of n seeds, Student's paired test has

    mean = sum d_s / n,   deviation^2 = sum (d_s - mean)^2 / (n - 1),   error = deviation / sqrt(n)

and n - 1 degrees of freedom. Where seeds differ, or only means and deviations are known, it is
Welch's test: error^2 = dev_a^2 / n_a + factor^2 dev_b^2 / n_b, with the degrees of freedom of
Satterthwaite (B. L. Welch, Biometrika 34, 1947). The interval mean +- t error, with t the quantile
of SURE of Student's distribution, holds the expected difference with that probability.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

SURE = 0.95  # probability with which an interval holds what it is about


class Difference(NamedTuple):
    """Ours minus theirs, in the unit of what was compared."""

    mean: float
    error: float  # standard error of the mean difference
    p: float  # of a difference at least as far from 0, if none was to be expected
    low: float
    high: float
    seeds: int
    paired: bool  # by seeds that both arms have


def between(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], field: str, factor: float = 1.0
) -> Difference:
    """`field` of ours minus `factor` times that of theirs, as `aggregates.aggregate` has them.

    Raises ValueError where an arm has one seed only, or no deviation of that field.
    """
    a, b = (arm.get(f"{field}_by_seed") for arm in (ours, theirs))
    if a is not None and b is not None and ours["seeds"] == theirs["seeds"] and len(a) > 1:
        return paired(np.asarray(a) - factor * np.asarray(b))
    (mean, spread, n), (other, noise, m) = (_moments(arm, field) for arm in (ours, theirs))
    parts = spread**2 / n, (factor * noise) ** 2 / m
    freedom = sum(parts) ** 2 / max(parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1), 1e-300)
    return _difference(
        mean - factor * other, math.sqrt(sum(parts)), max(freedom, 1.0), min(n, m), False
    )


def paired(differences: Sequence[float]) -> Difference:
    """What the differences of at least two seeds say of the expected one."""
    values = np.asarray(differences, float)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return _difference(float(values.mean()), error, values.size - 1, values.size, True)


def _difference(mean: float, error: float, freedom: float, seeds: int, paired: bool) -> Difference:
    from scipy import special  # late: it takes a moment to load

    if error == 0:
        return Difference(mean, 0.0, float(mean == 0), mean, mean, seeds, paired)
    p = 2 * float(special.stdtr(freedom, -abs(mean) / error))
    reach = error * float(special.stdtrit(freedom, (1 + SURE) / 2))
    return Difference(mean, error, p, mean - reach, mean + reach, seeds, paired)


def _moments(arm: Mapping[str, Any], field: str) -> tuple[float, float, int]:
    """Mean, sample deviation and number of seeds."""
    seeds, spread = len(arm.get("seeds", ())), arm.get(f"{field}_std")
    values = arm.get(f"{field}_by_seed")
    if values is not None and len(values) > 1:
        spread = float(np.std(values, ddof=1))
    if seeds < 2 or spread is None:
        raise ValueError(f"{arm['name']}: no deviation of {field} over {seeds} seeds")
    return float(arm[field]), float(spread), seeds
