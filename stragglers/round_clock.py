"""Rounds in virtual time: every worker takes up to M mini-batches until a signal stops it.

An update lands at all workers, or at each worker once its neighbours are ready (D-PSGD, 1705.09056;
MATCHA, 1905.09435). A gradient is always taken at the newest version, so nothing is stale.
"""

from typing import NamedTuple

import numpy as np

from stragglers import round_parts
from stragglers.processes import as_process
from stragglers.round_parts import Signal
from stragglers.rule import Setting, checked_cost, one_number, per_round
from stragglers.schedule import Schedule


class ClockState(NamedTuple):
    """Where a schedule stands between two segments."""

    update: int  # of the next row
    free: np.ndarray  # [P] s, when each worker can start its next round
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, the next mini-batch counter
    under_way: tuple[np.ndarray, ...] = ()  # [P] s each, when what was sent in a round is there


class RoundClock:
    """The plan of rounds: `init()` and `extend(state, updates)` as in `stragglers.rule.Rule`.

    signal: when a round stops. The other parameters are those of the rules in
    `stragglers.rules.rounds`. Bad values raise ValueError.
    Source: arXiv 2211.00889, the trigger and its in-flight and leftover policies.
    """

    def __init__(
        self, setting: Setting, signal: Signal, landing: str, leftovers: str, in_flight: str
    ):
        self.workers = setting.workers
        self.mini_batches = one_number("rounds", setting)
        self._process = as_process(setting.delay)
        self._signal = signal
        self.cuts, self._stop = _choose("in_flight", in_flight, round_parts.STOPS)
        self.carries = _choose("leftovers", leftovers, round_parts.LEFTOVERS)
        by_round = per_round("rounds", setting.draw)
        ends = round_parts.ends_by_round if by_round else round_parts.ends_by_mini_batch
        self._ends_of = ends(self._process.seeded(setting.seed), self.workers, self.mini_batches)
        self._links = setting.links
        near = round_parts.land_at_neighbours(setting.graph, setting.links, self.workers)
        everywhere = round_parts.land_everywhere
        self._land = _choose("landing", landing, {"neighbours": near, "all": everywhere})
        self._cost = checked_cost("rounds", setting.communication, self.workers)
        self._overlap = 0 if setting.links is None else setting.links.overlap
        self._check(signal)

    def init(self) -> ClockState:
        """Everybody begins its first round at 0 s."""
        zeros = np.zeros(self.workers, np.int64)
        nothing = self._overlap * (np.zeros(self.workers),)
        return ClockState(0, np.zeros(self.workers), zeros, zeros, nothing)

    def extend(
        self, state: ClockState, updates: int, *, signal: Signal | None = None
    ) -> tuple[ClockState, Schedule]:
        """The next `updates` rounds; signal: another one for this segment alone."""
        if signal is not None:
            self._check(signal)
        signal = signal or self._signal
        shape = (updates, self.workers)
        start, finish, busy, spent = (np.empty(shape) for _ in range(4))
        batches, first = np.empty(shape, np.int32), np.empty(shape, np.int64)
        begins = np.empty((self.workers, self.mini_batches))
        active = round_parts.activations(self._links, state.update, updates)
        free, attempts, consumed = state.free, state.attempts, state.consumed
        under_way = state.under_way
        for row in range(updates):
            t = state.update + row
            ends = self._ends_of(t, free, attempts)
            begins[:, 0], begins[:, 1:] = free, ends[:, :-1]
            stops = np.reshape(signal(free, ends), (-1, 1))
            started = (begins < stops).sum(axis=1)
            done, ready = self._stop(free, ends, stops, started)
            seconds = self._cost(t)
            start[row], first[row], batches[row] = free, consumed, done
            landed = self._land(ready, active[row]) + seconds
            if self._overlap:
                arrived, *under_way = *under_way, landed
                landed = np.maximum(ready, arrived)
                seconds = np.minimum(seconds, landed - ready)  # the rest hides behind the work
            busy[row], spent[row], finish[row] = ready - free, seconds, landed
            free = finish[row]
            attempts = attempts + started
            consumed = consumed + (done if self.carries else self.mini_batches)
        after = ClockState(
            state.update + updates, free.copy(), attempts, consumed, tuple(under_way)
        )
        version = np.arange(state.update, after.update, dtype=np.int32)[:, None]
        return after, Schedule(
            time=finish.max(axis=1),
            workers=np.tile(np.arange(self.workers, dtype=np.int32), (updates, 1)),
            start=start,
            finish=finish,
            batches=batches,
            first=first,
            version=np.repeat(version, self.workers, axis=1),
            busy=busy,
            communication=spent,
            matchings=None if self._links is None else active,
            offset=state.update,
        )

    def _check(self, signal: Signal) -> None:
        quickest = self._process.shortest * np.arange(1, self.mini_batches + 1)
        at = np.max(signal(np.zeros(self.workers), np.tile(quickest, (self.workers, 1))))
        if self.cuts and at < self._process.shortest:
            raise ValueError(
                f"rounds: the signal after {at:g} s cuts every mini-batch, the quickest takes "
                f"{self._process.shortest:g} s; set a later deadline or in_flight='finish'"
            )


def _choose(key: str, value: str, choices: dict):
    if value not in choices:
        raise ValueError(f"rounds: unknown {key}={value!r}; choose one of {', '.join(choices)}")
    return choices[value]
