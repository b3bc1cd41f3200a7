"""Reaction to a node that works at its own speed and has done its local steps.

The same meetings as in `stragglers.pair_clock`, for nodes whose time is real. The duration of a
meeting is then real as well, and its nodes begin their next local steps when it has landed.
"""

from typing import NamedTuple

import numpy as np

from stragglers.pair_clock import PairClock
from stragglers.rule import Arrivals, Reaction


class MeetingState(NamedTuple):
    """Knowledge between two arrivals."""

    rounds: np.ndarray  # [P] int64, finished rounds of local steps of each node
    waits: np.ndarray  # [P] int64, the node that each waits for, or -1
    since: np.ndarray  # [P] s, from which on it waits


class Meetings:
    """`Arrivals` of nodes that meet in pairs; an update lists the node that asked and its partner.

    A node that meets itself is alone in its update. The version of an arrival does not matter, as
    every node works on its own copy.
    """

    def __init__(self, clock: PairClock):
        self._clock = clock

    def face(self) -> Arrivals:
        """Return the reaction as a rule shows it."""
        apart = not self._clock.blocking
        return Arrivals(self.init, self.on_arrival, self.mini_batches, self.begun, apart=apart)

    def init(self) -> MeetingState:
        """Begin the first local steps of all nodes."""
        workers = self._clock.workers
        zeros = np.zeros(workers, np.int64)
        return MeetingState(zeros, np.full(workers, -1), np.zeros(workers))

    def mini_batches(self, state: MeetingState, worker: int) -> int:
        """Return the local steps that the node is about to do."""
        return int(self._clock.steps(worker, state.rounds[worker]))

    def begun(self, state: MeetingState, worker: int, version: int, now: float) -> MeetingState:
        """Let the node do its local steps once more, and wait for none meanwhile."""
        del version, now
        waits = state.waits.copy()
        waits[worker] = -1
        return state._replace(waits=waits)

    def on_arrival(self, state: MeetingState, worker: int, version: int, now: float) -> Reaction:
        """Let the node meet its partner, or wait for it if both have to stop."""
        del version
        partner = int(self._clock.partner(worker, state.rounds[worker]))
        if not self._clock.blocking:
            met = (worker,) if partner == worker else (worker, partner)
            return Reaction(self._done(state, (worker,)), True, met, (worker,))
        waiting = np.flatnonzero(state.waits == worker)
        if waiting.size:  # the node that has waited longest, ties by node
            first = int(waiting[np.argmin(state.since[waiting])])
            met = (first, worker)
        elif state.waits[partner] >= 0:
            met = (worker, partner)
        else:
            waits, since = state.waits.copy(), state.since.copy()
            waits[worker], since[worker] = partner, now
            return Reaction(state._replace(waits=waits, since=since), counts=True)
        return Reaction(self._done(state, met), True, met, met)

    def _done(self, state: MeetingState, nodes: tuple[int, ...]) -> MeetingState:
        """Return the state after these nodes have met and begin their next local steps."""
        rounds, waits = state.rounds.copy(), state.waits.copy()
        rounds[list(nodes)] += 1
        waits[list(nodes)] = -1
        return state._replace(rounds=rounds, waits=waits)
