"""Summaries of several records: the time of a run at its target, and means over seeds."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments import registry
from experiments.formats import BY_SEED
from experiments.records import plain

WITH_SPREAD = ("seconds_to_target", "train_loss", "test_loss", "test_accuracy", "wall_seconds")


def common(summaries: Sequence[Mapping]) -> tuple[float | None, str]:
    """Return the target loss of all arms, or None if targets differ, and a text of their clocks."""
    targets = {summary["target_loss"] for summary in summaries}
    clocks = sorted({summary["clock"] for summary in summaries})
    return targets.pop() if len(targets) == 1 else None, " or ".join(clocks)


def at_target(
    records: Sequence[Mapping], target_loss: float | None, column: str = "seconds"
) -> float | None:
    """Return the value of `column` where the loss first is at most `target_loss`; None: nowhere.

    Between two evaluations log(train_loss) is taken to be linear in the column. Nothing is
    interpolated at the first record, after a loss that is not finite, or at a loss of 0.
    """
    if target_loss is None:
        return None
    before = None
    for record in records:
        loss, value = record["train_loss"], record[column]
        loss = math.nan if loss is None else loss
        if loss <= target_loss:
            if before is None or loss <= 0:  # nothing to interpolate, or no logarithm
                return value
            drop = math.log(before[0] / target_loss) / math.log(before[0] / loss)
            return before[1] + drop * (value - before[1])
        before = (loss, value) if math.isfinite(loss) else None
    return None


def aggregate(summaries: Sequence[Mapping]) -> dict:
    """Return one summary of an arm from the summaries of its seeds.

    Numbers that differ are averaged; the mean is null if any seed has null. `<field>_std` is the
    sample standard deviation of a field of WITH_SPREAD, null for a single seed. `<field>_by_seed`
    lists a field of BY_SEED over several seeds. `seeds` lists the seeds, and `reached` is "k/n" if
    k of n seeds came to the target. `stopped` comes from the first seed that has this field. All
    other fields, `seed` included, are the first seed's.
    """
    summaries = plain(summaries)
    merged = {}
    for field, first in summaries[0].items():
        values = [summary.get(field) for summary in summaries]
        merged[field] = _mean(values) if any(map(registry.is_number, values)) else first
        if field in WITH_SPREAD:
            spread = None if None in values or len(values) < 2 else float(np.std(values, ddof=1))
            merged[f"{field}_std"] = spread
        if field in BY_SEED and len(values) > 1:
            merged[f"{field}_by_seed"] = values
    reached = sum(summary["seconds_to_target"] is not None for summary in summaries)
    return merged | {
        "stopped": next(filter(None, (summary.get("stopped") for summary in summaries)), None),
        "seed": summaries[0]["seed"],
        "seeds": [summary["seed"] for summary in summaries],
        "reached": f"{reached}/{len(summaries)}",
    }


def _mean(values: list):
    if None in values:
        return None
    # Equal values stay what they are: 8 workers, not 8.0.
    return values[0] if len(set(values)) == 1 else float(np.mean(values))
