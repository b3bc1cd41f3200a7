"""Contenders trained on the task of a config, each at several learning rates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments import executors, formats, records, sweep
from experiments.advice import durations, ranking
from experiments.advice.durations import Measured
from experiments.config_files import override
from experiments.executors import Arm

# Of the rate at which the contender's predicted noise and staleness cost as much as the config's.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SEEDS = 2
EVALUATIONS = 200  # within the budget
DURATIONS, ARMS = "durations.csv", "trained"


class Trained(NamedTuple):
    """What training a contender has come to, at its best rate."""

    rate: float
    seconds: tuple[float, ...]  # to target, of every seed; inf: never
    edge: bool  # the best rate is the first or the last of the grid

    @property
    def mean(self) -> float:
        """Mean over the seeds, in seconds."""
        return float(np.mean(self.seconds))

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds, in seconds; nan where one has not arrived."""
        return float(np.std(self.seconds, ddof=1)) if np.isfinite(self.mean) else float("nan")


def place(repeat: int) -> str:
    """The file of the durations of a seed: those that were measured, then resampled ones."""
    return f"durations_{repeat}.csv" if repeat else DURATIONS


def train(
    contenders: Sequence[ranking.Contender],
    reference: ranking.Contender,
    config: ConfigDict,
    measured: Measured,
    ratio: float,
    workdir: Path,
    execute: executors.Executor = executors.here,
) -> dict[str, Trained]:
    """Train every contender below `workdir`; by its name what came out.

    config: with the target, the budget in seconds, and the rate that suits `reference`. Seeds have
    resampled durations. Arms that are finished are not trained again.
    """
    for repeat in range(SEEDS):
        path = workdir / place(repeat)
        if not path.exists():
            durations.write(measured, path, repeat)
    rate = config.optimizer.learning_rate
    arms, places = [], {}
    for number, one in enumerate(contenders):
        centre = rate * per_update(reference, ratio) / per_update(one, ratio)
        for factor in FACTORS:
            own = float(f"{centre * factor:.3g}")
            for repeat in range(SEEDS):
                path = f"{ARMS}/{number}/rate={own:g}/seed_{config.seed + repeat}"
                changes = {
                    "name": f"{one.rule}/{one.name.partition('(')[2].rstrip(')')}/rate={own:g}",
                    "wait": one.arm.wait.to_dict(),
                    "seed": config.seed + repeat,
                    "baseline": None,
                    "delay": {"name": "trace", "path": str(workdir / place(repeat))},
                    "optimizer.learning_rate": own,
                    "stop_at_target": True,
                    "evaluate_every": config.seconds / EVALUATIONS,
                }
                arms.append(Arm(path, override(config, changes)))
                places.setdefault((one.name, own), []).append(path)
    failures = sweep.run(arms, str(workdir), False, True, execute)
    found: dict[str, dict[float, tuple[float, ...]]] = {}
    for (name, own), paths in places.items():
        if not failures.keys() & set(paths):
            seconds = tuple(_to_target(workdir / path) for path in paths)
            found.setdefault(name, {})[own] = seconds
    return {name: _best(rates) for name, rates in found.items()}


def per_update(one: ranking.Contender, ratio: float) -> float:
    """What an update costs of the rate: 1 + tau + ratio E[1 / B]."""
    most = ratio * float(np.exp(np.mean(np.log(ranking.RATIOS))))
    return one.costs[0].total(most) * one.played.updates


def _to_target(place: Path) -> float:
    seconds = records.read_summary(place, formats.WHOLE_SUMMARY)["seconds_to_target"]
    return float("inf") if seconds is None else seconds


def _best(rates: Mapping[float, tuple[float, ...]]) -> Trained:
    chosen = min(rates, key=lambda rate: (np.mean(rates[rate]), rate))
    return Trained(chosen, rates[chosen], chosen in (min(rates), max(rates)))
