"""Which waiting rule is predicted to be first at the target, and how sure that is.

Without training the prediction uses this and nothing else: the schedule that a rule makes of the
durations, and how noisy a mini-batch's gradient is at the initial parameters. With u updates per
second of B mini-batches whose gradients are tau updates old,

    seconds to target ~ (s(tau) + ratio E[1 / B]) / u

s(tau), about 1 + 1.3 tau, says how many times smaller the largest stable learning rate is for stale
gradients (`stragglers.theory.convergence.stability_limit`); in Birch SGD (arXiv 2505.09218) it is
the tree distance in updates. The second term is the noise, in which updates of few mini-batches
weigh more (`varying_batches_bound`). Their common factor, smoothness times what is to be descended
over the squared gradient that is wanted, is unknown without training, so that seconds are relative
to another rule's. A method's momentum, codec and local steps are not in it, nor how the
noise grows during training: the spread has the ratio at several sizes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments import parts, prepare, waiting
from experiments.advice import grids, play
from experiments.advice.durations import Measured
from stragglers.theory.convergence import stability_limit

RATIOS = (0.25, 1.0, 4.0)  # times the ratio at the initial parameters
SURE = 0.9  # share of the cases in which the first is first
MARGIN = 0.03  # by which the first has to be faster


class Costs(NamedTuple):
    """What a rule pays, in seconds; smaller is better in both."""

    steps: float  # per update as far as it counts: s(tau) / u
    noise: float  # per mini-batch as far as it averages out: E[1 / B] / u

    def total(self, ratio: float) -> float:
        """Seconds to target, up to a factor that all rules share."""
        return self.steps + ratio * self.noise


class Contender(NamedTuple):
    """A rule with a value of its parameter."""

    arm: ConfigDict
    prepared: prepare.Prepared
    played: play.Played  # over the durations as they are
    costs: tuple[Costs, ...]  # over the durations, then over resampled ones

    @property
    def rule(self) -> str:
        """The name of the rule without its parameters."""
        return self.arm.wait.name

    @property
    def name(self) -> str:
        """The rule with its parameters."""
        return self.played.name


def costs(played: play.Played) -> Costs:
    """What a rule pays; an update without any mini-batch counts as time alone."""
    batches = played.schedule.batches.sum(axis=1)
    used = batches > 0
    if not used.any():
        return Costs(np.inf, np.inf)
    rate = played.updates * used.mean()
    slower = stability_limit(0) / stability_limit(played.diagnostics.staleness)
    return Costs(slower / rate, float(np.mean(1 / batches[used])) / rate)


def contenders(
    arms: Sequence[tuple[ConfigDict, prepare.Prepared]], measured: Measured
) -> tuple[list[Contender], list[play.Refused]]:
    """The arms, played over the durations as they are, and those that these durations rule out.

    Of equal schedules there is the first alone.
    """
    found: dict[tuple, Contender] = {}
    refused = []
    for arm, prepared in arms:
        try:
            played = next(play.repeats(arm, prepared, measured, 1))
        except ValueError as error:  # as of a deadline before the end of every mini-batch
            refused.append(play.Refused(parts.text(arm.wait), str(error)))
            continue
        paid = costs(played)
        if not np.isfinite(paid.steps):
            refused.append(play.Refused(played.name, "no update has a mini-batch"))
            continue
        key = (arm.wait.name, round(paid.steps, 9), round(paid.noise, 9))
        found.setdefault(key, Contender(arm, prepared, played, (paid,)))
    return list(found.values()), refused


def best_of_each(found: Sequence[Contender], ratio: float, own: Contender) -> list[Contender]:
    """Every rule at its best parameter, the best rule first; own: as of `ranked`."""
    by_rule: dict[str, Contender] = {}
    for one in ranked(found, ratio, own):
        by_rule.setdefault(one.rule, one)
    return list(by_rule.values())


def ranked(found: Sequence[Contender], ratio: float, own: Contender) -> list[Contender]:
    """The contenders by their predicted seconds; last those with fewer samples/s than `own`.

    These would win by smaller batches alone, and so does a smaller batch_size, for as long as
    gradients have little noise, which grows during training.
    """
    return sorted(found, key=lambda one: (gives_less(one, own), predicted(one, ratio)))


def gives_less(one: Contender, own: Contender) -> bool:
    """Return whether a contender makes use of fewer samples per second than `own`, by a margin."""
    return one.played.samples * (1 + MARGIN) < own.played.samples


def predicted(one: Contender, ratio: float) -> float:
    """Seconds to target over the durations as they are, the geometric mean over RATIOS."""
    totals = [one.costs[0].total(ratio * times) for times in RATIOS]
    return float(np.exp(np.mean(np.log(totals))))


def resampled(one: Contender, measured: Measured) -> Contender:
    """The contender with its costs over resampled durations."""
    again = play.repeats(one.arm, one.prepared, measured, play.REPEATS)
    return one._replace(costs=tuple(costs(played) for played in again))


def cases(one: Contender, ratio: float) -> np.ndarray:
    """Predicted seconds [repeats x RATIOS] of a contender that was resampled."""
    return np.array([[paid.total(ratio * times) for times in RATIOS] for paid in one.costs]).ravel()


def undominated(found: Sequence[Contender]) -> list[Contender]:
    """The contenders that no other one beats in both costs."""

    def beaten(one: Contender) -> bool:
        mine = one.costs[0]
        return any(
            other.costs[0].steps <= mine.steps
            and other.costs[0].noise <= mine.noise
            and other.costs[0] != mine
            for other in found
        )

    return [one for one in found if not beaten(one)]


def is_sure(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the first is faster by a margin in nearly all of the cases, which are pairs."""
    return bool(np.mean(first * (1 + MARGIN) < second) >= SURE)


def curves(found: Sequence[Contender], ratio: float) -> Mapping[str, list[tuple[float, float]]]:
    """Rule -> (value of its parameter, predicted seconds), the other parameters at their best."""
    drawn: dict[str, dict[float, float]] = {}
    for one in found:
        name = grids.parameter(waiting.RULE, one.rule)
        value = one.arm.wait.get(name) if name else None
        if isinstance(value, int | float):
            at = drawn.setdefault(one.rule, {})
            at[value] = min(at.get(value, np.inf), predicted(one, ratio))
    return {rule: sorted(at.items()) for rule, at in drawn.items() if len(at) > 1}
