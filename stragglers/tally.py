"""Points that workers make in a round, and whether they are enough to end it.

The workers of one process share memory, see `Alone`. Workers of several share whatever the program
that has started them offers: `stragglers.inject` only asks for what a `Tally` can do.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class Tally(Protocol):
    """The points of rounds; thread-safe, and in one order for all who add to them."""

    def begin(self, needed: int) -> None:
        """Forget all rounds; from now on a round is over with this many points."""

    def add(self, round_index: int, points: int) -> bool:
        """Add to a round; whether it was not yet over before. Who completes it ends it for all."""

    def over(self, round_index: int) -> bool:
        """Whether a round is over, as far as is known here; does not wait."""

    def close(self, rounds: Iterable[int]) -> None:
        """Forget rounds in which nobody works any more, here or elsewhere."""


class Alone:
    """The tally of workers that all live in this process."""

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
