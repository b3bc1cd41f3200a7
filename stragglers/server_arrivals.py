"""Reaction of a server to contributions that arrive at any time, by a protocol.

The same decisions as in `stragglers.event_clock`, for workers whose time is real.
"""

from typing import NamedTuple

import numpy as np

from stragglers.event_clock import Protocol
from stragglers.rule import Arrivals, Reaction


class ServerState(NamedTuple):
    """Knowledge of the server between two arrivals."""

    update: int  # number of updates, the newest version
    version: np.ndarray  # [P] int64, of each worker's contribution in flight
    held: tuple[int, ...]  # the workers whose contributions wait for the next update, in order


class Server:
    """`Arrivals` of a protocol that updates on k contributions.

    mini_batches: [P] of each worker's contribution.
    """

    def __init__(self, protocol: Protocol, k: int, mini_batches: np.ndarray):
        self.protocol, self.k, self._mini_batches = protocol, k, mini_batches

    def face(self) -> Arrivals:
        """Return the reaction as a rule shows it."""
        return Arrivals(self.init, self.on_arrival, self.mini_batches, self.begun)

    def init(self) -> ServerState:
        """Begin a contribution of every worker at version 0."""
        return ServerState(0, np.zeros(self._mini_batches.size, np.int64), ())

    def mini_batches(self, state: ServerState, worker: int) -> int:
        """Return the mini-batches of the worker's next contribution."""
        del state
        return int(self._mini_batches[worker])

    def begun(self, state: ServerState, worker: int, version: int, now: float) -> ServerState:
        """Take the worker's contribution in flight at this version, whatever it did before."""
        del now
        versions = state.version.copy()
        versions[worker] = version
        return state._replace(version=versions)

    def on_arrival(
        self, state: ServerState, worker: int, version: int, now: float, k: int | None = None
    ) -> Reaction:
        """React to a contribution; k: contributions of an update; default: the rule's number."""
        del now  # a server counts contributions, at any time
        if version != state.version[worker]:
            return Reaction(state, counts=False)  # its worker has begun anew in the meantime
        protocol, newest = self.protocol, state.update
        if newest - version >= protocol.limit:
            return self._restarted(state, Reaction(state, counts=False), (worker,))
        held = (*state.held, worker)
        if len(held) < (self.k if k is None else k):
            waiting = Reaction(state._replace(held=held), counts=True)
            if protocol.idle:
                return waiting
            if protocol.cancels:
                return waiting._replace(proceed=(worker,))
            return self._restarted(waiting.state, waiting, (worker,))
        state = state._replace(update=newest + 1, held=())
        free = held if protocol.idle else (worker,)
        if protocol.interrupt:
            old = np.flatnonzero(state.update - state.version >= protocol.limit)
            free = (*free, *old.tolist())
        made = Reaction(state, counts=True, update=held)
        return self._restarted(state, made, tuple(dict.fromkeys(free)))

    def _restarted(self, state: ServerState, reaction: Reaction, workers) -> Reaction:
        """Return the reaction, with these workers sent to the newest version."""
        version = state.version.copy()
        version[list(workers)] = state.update
        return reaction._replace(state=state._replace(version=version), restart=workers)
