"""Nodes that are made to stand still together, until the log of their meetings has caught up."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtimes.base import WorkersLost
from runtimes.overseer import LOOK, Options, Overseer
from stragglers.pair_log import PairLog

CATCHING_UP = 30.0  # s that the log may be behind nodes that have stopped to meet
_FORGOTTEN = "several workers have gone at once, with what they had said to each other"


class Standstill(Overseer):
    """The nodes of a run, which stop to meet where this is asked for, and go on after it.

    A node is `missing` that has gone, until its new beginning stands in the log.
    """

    def __init__(self, workers: int, options: Options, log: PairLog):
        super().__init__(workers, options)
        self.log = log
        self._missing: set[int] = set()
        self._freezing = threading.Lock()  # of all nodes together: for a cut, or to mend

    def _asked(self, nodes: Sequence[int], what: str, *arguments: Any) -> list:
        import ray

        return ray.get([self._crew.call(node, what, *arguments) for node in nodes])

    @contextlib.contextmanager
    def _frozen(self, nodes: Sequence[int]):
        """The meetings of these nodes, which have none meanwhile; None if one of them is gone."""
        import ray

        asked = {node: self._crew.call(node, "freeze") for node in nodes}
        counts = {}
        for node, reference in asked.items():
            with contextlib.suppress(ray.exceptions.RayActorError):
                counts[node] = ray.get(reference)
        try:
            yield counts if len(counts) == len(asked) else None
        finally:
            for node in counts:
                self._crew.call(node, "thaw")

    def _caught_up(self, counts: Mapping[int, int]) -> bool:
        known = self.log.counts()
        return all(known[node] == count for node, count in counts.items())

    def _catch_up(self, counts: Mapping[int, int], gone: Sequence[int]) -> bool:
        """Wait, under `turn`, for the rows of nodes that are frozen; False if somebody is lost.

        What a process that dies meanwhile has not reported never comes. gone: who is known to be.
        """
        known = set(gone)
        self._wait(
            lambda: self._missing - known or self._caught_up(counts), CATCHING_UP, _FORGOTTEN
        )
        return not self._missing - known

    def _wait(self, until: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Wait under `turn`, or raise what has gone wrong meanwhile."""
        end = time.monotonic() + seconds
        while not until():
            if self.error is not None:
                raise self.error
            if time.monotonic() > end:
                raise WorkersLost(f"{otherwise}; give the same command again to go on")
            self.turn.wait(LOOK)
