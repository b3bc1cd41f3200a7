"""Deadline that follows recent durations, in place of a fixed number of seconds.

The user of a timeout has to guess. Here the guess is M times (median + c MAD) of the seconds of a
mini-batch, over all workers in the last rounds; MAD, the median absolute deviation from the median,
is not moved by stragglers as a standard deviation is. The schedule has all that the rule looks at,
`busy / batches` of every worker in a round, so that a replayed run has the same deadlines.

Of the duration of a cut worker only a lower bound is known, `busy / (batches + 1)`. As it is not
below the median, the median is that of the whole durations while less than half of them are cut;
the MAD is too small then.
"""

import math
from typing import NamedTuple

import numpy as np

from stragglers import round_parts
from stragglers.round_clock import ClockState, RoundClock
from stragglers.rule import Rule, Setting, Sight, Trigger
from stragglers.rules.rounds import DATA
from stragglers.schedule import Schedule, concatenate


class AdaptiveState(NamedTuple):
    """State of the rounds, and the durations behind the deadline."""

    clock: ClockState
    past: np.ndarray  # [n, P] s of a mini-batch in each of the last rounds or more, or nan

    @property
    def update(self) -> int:
        """Index of the next row."""
        return self.clock.update


def round_deadline(past: np.ndarray, c: float, mini_batches: int) -> float:
    """Return the seconds of a round, M (median + c MAD) of `past` [n, P]; inf without durations."""
    seen = past[~np.isnan(past)]
    if not seen.size:
        return math.inf
    median = np.median(seen)
    return float(mini_batches * (median + c * np.median(np.abs(seen - median))))


def adaptive_deadline(
    setting: Setting,
    *,
    c: float = 3.0,
    window: int = 20,
    landing: str = "neighbours",
    leftovers: str = "carry",
    in_flight: str = "finish",
) -> Rule:
    """Let all compute for M (median + c MAD) of the durations in the last `window` rounds.

    No worker is stopped in the first round. Durations are pooled over workers: a worker that is
    always slow is stopped in every round, while less than half of the workers are slow.
    """
    if not 0 <= c < math.inf:
        raise ValueError(f"adaptive_deadline: needs c >= 0, got {c}; 0 is the median itself")
    if window < 1:
        raise ValueError(f"adaptive_deadline: needs window >= 1 rounds, got {window}; set more")
    clock = RoundClock(setting, round_parts.never, landing, leftovers, in_flight)
    whole = clock.mini_batches

    def init() -> AdaptiveState:
        return AdaptiveState(clock.init(), np.empty((0, clock.workers)))

    def extend(state: AdaptiveState, updates: int) -> tuple[AdaptiveState, Schedule]:
        now, past = state
        rows = []
        for _ in range(updates):
            seconds = round_deadline(past, c, whole)
            signal = round_parts.until_deadline(seconds * (1 + 1e-9)) if past.size else None
            now, row = clock.extend(now, 1, signal=signal)
            rows.append(row)
            each = round_parts.seconds_each(row.busy, row.batches, whole, clock.cuts)
            past = np.concatenate([past, each])[-window:]
        return AdaptiveState(now, past), concatenate(rows) if rows else clock.extend(now, 0)[1]

    def stop(sight: Sight) -> bool:
        return sight.elapsed >= round_deadline(sight.past, c, whole)

    trigger = Trigger(stop, whole, clock.cuts, clock.carries, remembers=window)
    return Rule(clock.workers, init, extend, trigger=trigger, data=(*DATA, "c", "window"))
