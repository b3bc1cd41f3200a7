"""Contenders trained on the task of a config, each at several learning rates."""

import functools
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

# Of the rate at which the contender's predicted noise and staleness cost as much as the config's,
# and of the best of these.
COARSE, FINE = (0.35, 0.7, 1.4, 2.8), (0.7, 1.0, 1.4)
SEEDS = 2
EVALUATIONS = 60  # within the budget
CHECKPOINT_SECONDS = 600.0  # a run is short, and there are many
PATIENCE = 1.5  # times the reference's time to target, which the others have
DURATIONS, ARMS = "durations.csv", "trained"


class Trained(NamedTuple):
    """What training a contender has come to, at its best rate."""

    rate: float
    seconds: tuple[float, ...]  # to target, of every seed; inf: never
    edge: bool  # the best rate is the first or the last that was tried around the best coarse one

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
) -> dict[str, Trained]:
    """Train the reference and every contender below `workdir`; by its name what came out.

    config: with the target, the budget in seconds, and the rate that suits `reference`. The first
    seed finds each one's rate among COARSE, then all seeds among FINE around it; resampled
    durations belong to a seed. Once the reference has arrived, the others have PATIENCE times as
    long. Arms that are finished are not trained again.
    """
    for repeat in range(SEEDS):
        path = workdir / place(repeat)
        if not path.exists():
            durations.write(measured, path, repeat)
    centre = config.optimizer.learning_rate * per_update(reference, ratio)
    others = [one for one in contenders if one.name != reference.name]
    best: dict[str, float] = {}
    for group in ([reference], others):
        rates = {one.name: _rates(centre / per_update(one, ratio), COARSE) for one in group}
        seconds = _trained(group, rates, 1, config, workdir)
        best |= {name: _best(found).rate for name, found in seconds.items()}
        if group[0] is reference and reference.name in seconds:
            arrived = _best(seconds[reference.name]).mean
            config = override(config, {"seconds": min(config.seconds, PATIENCE * arrived)})
    group = [one for one in (reference, *others) if one.name in best]
    rates = {one.name: _rates(best[one.name], FINE) for one in group}
    seconds = _trained(group, rates, SEEDS, config, workdir)
    return {name: _best(found) for name, found in seconds.items()}


def _trained(
    group: Sequence[ranking.Contender],
    rates: Mapping[str, Sequence[float]],
    seeds: int,
    config: ConfigDict,
    workdir: Path,
) -> dict[str, dict[float, tuple[float, ...]]]:
    """By the name of a contender and its rates, the seconds to target of every seed."""
    arms, places = [], {}
    budget = f"{config.seconds:.4g}s"
    for one in group:
        for rate in rates[one.name]:
            for repeat in range(seeds):
                seed = config.seed + repeat
                path = f"{ARMS}/{one.name}/{budget}/rate={rate:g}/seed_{seed}"
                delay = {"name": "trace", "path": str(workdir / place(repeat)), "scale": 1.0}
                arms.append(Arm(path, _config(one, config, delay, rate, seed)))
                places.setdefault((one.name, rate), []).append(path)
    execute = functools.partial(executors.here, checkpoint_seconds=CHECKPOINT_SECONDS)
    failures = sweep.run(arms, str(workdir), False, True, execute) if arms else {}
    found: dict[str, dict[float, tuple[float, ...]]] = {}
    for (name, rate), paths in places.items():
        if not failures.keys() & set(paths):
            seconds = tuple(_to_target(workdir / path) for path in paths)
            found.setdefault(name, {})[rate] = seconds
    return found


def _rates(centre: float, factors: Sequence[float]) -> list[float]:
    return [float(f"{centre * factor:.3g}") for factor in factors]


def _config(
    one: ranking.Contender, config: ConfigDict, delay: Mapping, rate: float, seed: int
) -> ConfigDict:
    """The arm of a contender with these durations, rate and seed."""
    changes = {
        "name": f"{one.name}/rate={rate:g}",
        "wait": one.arm.wait.to_dict(),
        "seed": seed,
        "baseline": None,
        "delay": delay,
        "optimizer.learning_rate": rate,
        "stop_at_target": True,
        "evaluate_every": config.seconds / EVALUATIONS,
    }
    return override(config, changes)


def per_update(one: ranking.Contender, ratio: float) -> float:
    """What an update costs of the rate: s(tau) + ratio E[1 / B], see `ranking`."""
    return one.costs[0].total(ratio) * one.played.updates


def _to_target(place: Path) -> float:
    seconds = records.read_summary(place, formats.WHOLE_SUMMARY)["seconds_to_target"]
    return float("inf") if seconds is None else seconds


def _best(rates: Mapping[float, tuple[float, ...]]) -> Trained:
    chosen = min(rates, key=lambda rate: (np.mean(rates[rate]), rate))
    return Trained(chosen, rates[chosen], chosen in (min(rates), max(rates)))
