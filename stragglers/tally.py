"""Points of workers in a round, and the end of the round by them.

The workers of one process share memory, see `Alone`. Workers of several processes share a counter
of the program that has started them: `stragglers.inject` only uses the methods of a `Tally`.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class Tally(Protocol):
    """Points of rounds; thread-safe, and in one order for all workers."""

    def begin(self, needed: int) -> None:
        """Forget all rounds; from now on this many points end a round."""

    def add(self, round_index: int, points: int) -> bool:
        """Add to a round; return True if it was not over before. The last point ends it for all."""

    def over(self, round_index: int) -> bool:
        """Return True if a round is over, as far as is known here; does not wait."""

    def close(self, rounds: Iterable[int]) -> None:
        """Forget rounds in which no worker works any more, here or elsewhere."""


class Alone:
    """Tally of workers that all live in this process."""

    def __init__(self):
        self._lock = threading.Lock()
        self._needed, self._points = 0, Counter()

    def begin(self, needed: int) -> None:
        self._needed, self._points = needed, Counter()

    def add(self, round_index: int, points: int) -> bool:
        with self._lock:
            before = self._points[round_index]
            self._points[round_index] = before + points
        return before < self._needed

    def over(self, round_index: int) -> bool:
        return self._points[round_index] >= self._needed

    def close(self, rounds: Iterable[int]) -> None:
        for round_index in rounds:
            self._points.pop(round_index, None)
