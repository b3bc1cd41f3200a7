"""Whom a node meets: what a waiting rule's reaction to its arrival means for the two."""

import threading
from collections.abc import Callable
from typing import Any

from runtimes.nodes import Step
from stragglers.rule import Arrivals, Reaction


def by_itself(arrivals: Arrivals, me: int) -> Callable[[Any, float], Step]:
    """What a node asks, where its arrivals are all that matters: (state of the rule, s) -> Step."""

    def arrive(state: Any, now: float) -> Step:
        reaction = arrivals.on_arrival(state, me, 0, now)
        return _steps(arrivals, reaction)[me]._replace(rule=reaction.state)

    return arrive


class Matchmaker:
    """The common place of a rule whose nodes wait for each other; thread-safe.

    tell: (node, Step), called for both nodes of a meeting once both have arrived.
    """

    def __init__(self, arrivals: Arrivals, tell: Callable[[int, Step], None]):
        self._arrivals, self._tell = arrivals, tell
        self._state, self._lock = arrivals.init(), threading.Lock()

    def arrived(self, worker: int, now: float) -> None:
        """The node has done its local steps, and waits for a Step."""
        with self._lock:
            reaction = self._arrivals.on_arrival(self._state, worker, 0, now)
            self._state = reaction.state
            steps = _steps(self._arrivals, reaction)
        for node, step in steps.items():
            self._tell(node, step)

    def batches(self, worker: int) -> int:
        """Mini-batches of the local steps that the node does next."""
        with self._lock:
            return self._arrivals.mini_batches(self._state, worker)

    def anew(self, worker: int, now: float) -> None:
        """The node has begun its local steps once more, and waits for nobody."""
        with self._lock:
            self._state = self._arrivals.begun(self._state, worker, 0, now)


def _steps(arrivals: Arrivals, reaction: Reaction) -> dict[int, Step]:
    """Of each node that begins anew after this reaction, what it does before."""
    met = reaction.update
    partners = {} if len(met) < 2 else dict(zip(met, met[::-1], strict=True))
    return {
        node: Step(partners.get(node), node == met[0], arrivals.mini_batches(reaction.state, node))
        for node in reaction.restart
    }
