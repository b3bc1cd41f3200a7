"""The tally of workers that live in several processes, in JAX's coordination service.

A counter per round has its points: whoever's addition completes it sets another key, for which a
thread of every other process waits. No collective is made, as those who compute could not join it,
and a round costs a message per addition and one per process.

Keys carry a number of the start, which all processes count alike, and the round. When nobody works
in a round any more its keys are deleted, by the last process that closes it.
"""

import itertools
import threading
from collections.abc import Iterable

import jax

from experiments import coordination

PLACE = "gossax/rounds"
LISTENING = 60.0  # s of one question; a process that dies ends this one before
_starts = itertools.count()


class SharedTally:
    """A `stragglers.tally.Tally` of all processes, all of which do the same with theirs."""

    def __init__(self):
        self._needed, self._place, self._over, self._threads = 0, "", set(), {}

    def begin(self, needed: int) -> None:
        """Forget all rounds; from now on a round is over with this many points."""
        self._needed, self._place = needed, f"{PLACE}/{next(_starts)}"
        self._over: set[int] = set()
        self._threads: dict[int, threading.Thread] = {}

    def add(self, round_index: int, points: int) -> bool:
        """Add to a round; whether it was not yet over before. Who completes it ends it for all."""
        try:
            total = coordination.add(f"{self._place}/{round_index}/points", points)
            if total - points < self._needed <= total:
                coordination.put(self._key(round_index), "over")
        except jax.errors.JaxRuntimeError:  # process 0 is gone, and soon JAX ends this one, too
            total = self._needed
        if total >= self._needed:
            self._over.add(round_index)
        return total - points < self._needed

    def over(self, round_index: int) -> bool:
        """Whether a round is over, as far as is known here; the first question begins to listen."""
        if round_index not in self._threads:
            thread = threading.Thread(
                target=self._listen, args=(round_index, self._key(round_index)), daemon=True
            )
            if self._threads.setdefault(round_index, thread) is thread:
                thread.start()
        return round_index in self._over

    def close(self, rounds: Iterable[int]) -> None:
        """Forget rounds in which nobody works any more, here or elsewhere."""
        rounds = list(rounds)
        for round_index in rounds:
            thread = self._threads.pop(round_index, None)
            if thread is not None and thread.is_alive():
                coordination.put(self._key(round_index), "closed", again=True)
                thread.join()
            self._over.discard(round_index)
        if coordination.add(f"{self._place}/closed/{rounds[0]}", 1) == coordination.processes():
            for place in (*rounds, f"closed/{rounds[0]}"):
                coordination.remove(f"{self._place}/{place}")

    def _key(self, round_index: int) -> str:
        return f"{self._place}/{round_index}/over"

    def _listen(self, round_index: int, key: str) -> None:
        while True:
            try:
                coordination.get(key, LISTENING)
            except jax.errors.JaxRuntimeError as error:
                if coordination.is_late(error):
                    continue
                return  # the service is gone, as JAX will say
            self._over.add(round_index)
            return
