"""What every waiting rule is: a function from a state to the next segment of a Schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stragglers.schedule import Schedule

Cost = float | Callable[[int], float | np.ndarray]  # s, or round -> s, scalar or [P]


class Rule(NamedTuple):
    """A waiting rule: `extend(state, updates, **knobs) -> (state, Schedule)` from `init()` on.

    Extending twice equals extending once.  A state is a NamedTuple of arrays that tells `update`,
    the index of the next row.  A rule that follows the training has `observe(state, seconds, loss)
    -> state`, called with the training loss at some times; it may change what comes after them.
    """

    workers: int
    init: Callable[[], Any]
    extend: Callable[..., tuple[Any, Schedule]]
    asynchronous: bool = False  # contributions may be taken at older versions
    observe: Callable[[Any, float, float], Any] | None = None


def whole(rule: Rule, updates: int) -> Schedule:
    """The first `updates` rows of a rule, as one segment."""
    return rule.extend(rule.init(), updates)[1]


def checked_cost(name: str, communication: Cost) -> Callable[[int], float | np.ndarray]:
    """The cost as a function of the round; negative seconds raise ValueError in the `name` of."""

    def cost(t: int) -> float | np.ndarray:
        seconds = communication(t) if callable(communication) else communication
        if not np.min(seconds) >= 0:
            raise ValueError(f"{name}: needs communication >= 0, got {seconds}; set it in seconds")
        return seconds

    cost(0)  # refuse a bad constant before the first segment
    return cost
