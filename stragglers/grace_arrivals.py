"""Reaction of a server to contributions where an update waits on after its k-th one.

The same decisions as in `stragglers.event_clock`, for workers whose time is real. The duration of a
contribution runs from the order to its worker until the delivery.
"""

import math
from typing import NamedTuple

import numpy as np

from stragglers.event_clock import Protocol
from stragglers.rule import Arrivals, Reaction


class GraceState(NamedTuple):
    """Knowledge of the server between two events."""

    update: int  # number of updates, the newest version
    version: np.ndarray  # [P] int64, of each worker's contribution in flight
    begun: np.ndarray  # [P] s, begin of this contribution
    held: tuple[int, ...]  # the workers whose contributions are in the next update, in order
    early: tuple[tuple[int, float], ...]  # workers that have delivered again, seconds
    back: float  # s, expected time of the next delivery by the first of `held`
    due: float  # s, of the update; inf as long as its k-th contribution is missing


class GraceServer:
    """`Arrivals` of a protocol whose updates wait for k contributions and then for a grace.

    mini_batches: [P] of each worker's contribution.
    """

    def __init__(self, protocol: Protocol, k: int, mini_batches: np.ndarray):
        self._protocol, self._k, self._mini_batches = protocol, k, mini_batches

    def face(self) -> Arrivals:
        """Return the reaction as a rule shows it."""
        own = self.init, self.on_arrival, self.mini_batches, self.begun
        return Arrivals(*own, due=lambda state: state.due, on_due=self.on_due)

    def init(self) -> GraceState:
        """Begin a contribution of every worker at version 0."""
        workers = self._mini_batches.size
        none = np.zeros(workers, np.int64), np.zeros(workers)
        return GraceState(0, *none, (), (), math.inf, math.inf)

    def mini_batches(self, state: GraceState, worker: int) -> int:
        """Return the mini-batches of the worker's next contribution."""
        del state
        return int(self._mini_batches[worker])

    def begun(self, state: GraceState, worker: int, version: int, now: float) -> GraceState:
        """Begin the worker's contribution now, at this version, whatever it did before."""
        return _sent(state, (worker,), version, now)

    def on_arrival(self, state: GraceState, worker: int, version: int, now: float) -> Reaction:
        """Hold a contribution; `on_due` makes the update, after all arrivals until then."""
        if version != state.version[worker]:
            return Reaction(state, counts=False)  # its worker has begun anew in the meantime
        seconds = now - float(state.begun[worker])
        if worker in state.held:
            # A worker is in an update once. Its return ends the grace, which hides no more time.
            due = now if len(state.held) >= self._k else state.due
            early = (*state.early, (worker, seconds))
            return Reaction(state._replace(early=early, due=due), counts=True)
        state = self._with(state, worker, seconds, now)
        if self._protocol.idle:
            return Reaction(state, counts=True)
        return Reaction(_sent(state, (worker,), state.update, now), True, restart=(worker,))

    def on_due(self, state: GraceState, now: float) -> Reaction:
        """Make the update; workers that were back before it are in the next one."""
        early = tuple(worker for worker, _ in state.early)
        free = state.held if self._protocol.idle else early
        after = state._replace(update=state.update + 1, held=(), early=(), due=math.inf)
        for worker, seconds in state.early:
            after = self._with(after, worker, seconds, now)
        return Reaction(_sent(after, free, after.update, now), False, state.held, free)

    def _with(self, state: GraceState, worker: int, seconds: float, now: float) -> GraceState:
        """Return the state with one more contribution in the next update, and the time of this."""
        held = (*state.held, worker)
        back = state.back if state.held else now + seconds
        due, grace = state.due, self._protocol.grace
        if len(held) == self._k:
            if not self._protocol.idle:
                grace = min(grace, self._protocol.share * max(0.0, back - now))
            due = now if state.early else now + grace
        if len(held) == state.version.size:
            due = now  # no other worker can come along
        return state._replace(held=held, back=back, due=due)


def _sent(state: GraceState, workers: tuple[int, ...], version: int, now: float) -> GraceState:
    """Return the state in which these workers begin at this version."""
    versions, begun = state.version.copy(), state.begun.copy()
    versions[list(workers)], begun[list(workers)] = version, now
    return state._replace(version=versions, begun=begun)
