"""Waiting rules played forward over measured durations, without any training."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments import parts, prepare, waiting
from experiments.advice import grids
from experiments.advice.durations import Measured
from experiments.config_files import override
from stragglers.diagnostics import Diagnostics, diagnose
from stragglers.rule import Rule, most_mini_batches
from stragglers.schedule import Schedule, concatenate

ROUNDS = 100  # that the slowest worker takes in the time that is played
MOST_UPDATES = 20_000
SEGMENT = 64  # updates
REPEATS = 5  # resampled durations, over which predictions are spread


class Played(NamedTuple):
    """What a rule makes of the durations; rates are per second of the clock."""

    wait: Mapping[str, Any]  # the rule as a config names it
    updates: float  # per s
    samples: float  # per s
    idle: float  # share of the workers' time
    diagnostics: Diagnostics
    schedule: Schedule

    @property
    def mini_batches(self) -> float:
        """Of an update, on average."""
        return self.schedule.batches.sum() / self.schedule.updates

    @property
    def name(self) -> str:
        """The rule with its parameters, as on the command line."""
        return parts.text(self.wait)


class Refused(NamedTuple):
    """A rule that is not weighed, and why."""

    wait: str
    reason: str


def horizon(measured: Measured, config: ConfigDict) -> float:
    """Seconds to play: the slowest worker takes ROUNDS rounds in them, or the budget is over."""
    slowest = max(float(values.mean()) for values in measured.seconds)
    return min(ROUNDS * most_mini_batches(config.mini_batches) * slowest, config.seconds)


def rules(
    config: ConfigDict, named: Sequence[parts.Part], scale: grids.Scale
) -> tuple[list[tuple[ConfigDict, prepare.Prepared]], list[Refused]]:
    """The arms to play, one per rule and value of its parameter, and the rules that cannot run.

    config: of an arm that the simulator runs; named: rules to weigh beside all of the registry.
    """
    given = [parts.spec(wait) for wait in named]
    known = {spec["name"] for spec in given}
    specs = [*given, *({"name": name} for name in waiting.RULE.factories if name not in known)]
    arms, refused = [], []
    for spec in specs:
        found, reason = [], None
        try:
            for wait in grids.candidates(waiting.RULE, spec, scale):
                arm = override(config, {"wait": wait})
                try:
                    prepared = found[0][1] if found else prepare.prepare(arm)
                    rule = prepare.rule(arm, prepared)
                    if rule.observe is not None:
                        raise ValueError("it follows the training loss; train it to compare it")
                except ValueError as error:
                    reason = reason or str(error)
                else:
                    found.append((arm, prepared))
        except ValueError as error:
            reason = str(error)
        if not found:
            refused.append(Refused(parts.text(spec), reason or "its grid is empty"))
        arms += found
    return arms, refused


def played(config: ConfigDict, rule: Rule, seconds: float) -> Played:
    """Play the rule of an arm for this number of seconds, or until MOST_UPDATES."""
    state, pieces, until, updates = rule.init(), [], 0.0, 0
    while until < seconds and updates < MOST_UPDATES:
        state, piece = rule.extend(state, SEGMENT)
        pieces.append(piece)
        until, updates = float(piece.time[-1]), updates + piece.updates
    schedule = concatenate(pieces)
    landed = int(np.searchsorted(schedule.time, seconds, side="right"))
    schedule = schedule.slice(0, max(landed, 1))
    lasted = float(schedule.time[-1])
    batches = int(schedule.batches.sum())
    return Played(
        config.wait.to_dict(),
        schedule.updates / lasted,
        batches * config.batch_size / lasted,
        schedule.idle_fraction,
        diagnose(schedule, rule.workers),
        schedule,
    )


def repeats(
    arm: ConfigDict, prepared: prepare.Prepared, measured: Measured, count: int = REPEATS
) -> Iterator[Played]:
    """The arm's rule over the durations, then over resampled ones."""
    seconds = horizon(measured, arm)
    for repeat in range(count):
        rule = prepare.rule(arm, prepared, measured.process(repeat))
        yield played(arm, rule, seconds)
