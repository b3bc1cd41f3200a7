"""Whether processes that have not answered for long still live."""

import statistics
from collections import deque
from collections.abc import Mapping

SILENCE = 10.0  # s without an answer after which a process is asked, at least
TIMES_MEDIAN = 5  # of the time that an answer takes, by which it may be late


class Pulse:
    """Who has to be asked whether it lives, and who has not answered that either.

    A delay that is slept for may be long, so that being late is no reason to end a process: it is
    asked from aside for how long it has been computing. All times are seconds on one clock.
    """

    def __init__(self):
        self._durations: deque[float] = deque(maxlen=100)
        self._heard: dict[int, float] = {}  # when it has said that it lives
        self._asked: dict[int, float] = {}  # since when it owes an answer to that

    @property
    def patience(self) -> float:
        """Seconds without an answer after which a process is asked."""
        if not self._durations:
            return SILENCE
        return max(SILENCE, TIMES_MEDIAN * statistics.median(self._durations))

    def delivered(self, seconds: float) -> None:
        """Note how long somebody took."""
        self._durations.append(seconds)

    def answered(self, who: int, computing: float, now: float) -> bool:
        """Note an answer; whether the process lives, as its device answers, too."""
        self._asked.pop(who, None)
        self._heard[who] = now
        return computing <= self.patience

    def forget(self, who: int) -> None:
        """Begin anew with a process that has been replaced."""
        self._asked.pop(who, None)
        self._heard.pop(who, None)

    def look(self, since: Mapping[int, float], now: float) -> tuple[list[int], list[int]]:
        """(who is to be asked now, who has not answered for too long).

        since: when everybody who owes something was sent to work.
        """
        silent = [w for w, asked in self._asked.items() if now - asked > SILENCE]
        late = [
            who
            for who, begun in since.items()
            if who not in self._asked
            and now - max(begun, self._heard.get(who, 0.0)) > self.patience
        ]
        self._asked |= dict.fromkeys(late, now)
        for who in silent:
            self.forget(who)
        return late, silent
