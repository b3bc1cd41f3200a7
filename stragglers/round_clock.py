"""Rounds in virtual time: every worker takes up to M mini-batches until a signal stops it.

An update lands at all workers, or at each worker once its neighbours are ready (D-PSGD, 1705.09056;
MATCHA, 1905.09435). A gradient is always taken at the newest version, so the staleness is 0.

A transfer beside the work of a round is waited for only where the work is shorter. With X_i seconds
until worker i is ready, D for the exchange and maxima over i and its neighbours j:

    t_i <- max_j (t_j + X_j) + D           all leaves once a worker is ready
    t_i <- max(t_i + X_i, max_j t_j + D)   all leaves as a round begins
"""

from typing import NamedTuple

import numpy as np

from stragglers import round_parts
from stragglers.processes import as_process
from stragglers.round_parts import Signal
from stragglers.rule import Setting, checked_transfers, hides, one_number, per_round, total_seconds
from stragglers.schedule import Schedule


class ClockState(NamedTuple):
    """State of a schedule between two segments."""

    update: int  # index of the next row
    free: np.ndarray  # [P] s, begin of each worker's next round
    attempts: np.ndarray  # [P] int64, mini-batch durations drawn so far
    consumed: np.ndarray  # [P] int64, the next mini-batch counter
    under_way: tuple[np.ndarray, ...] = ()  # s, earliest landings of the next rounds


UNSENT = -np.inf  # s, landing of a transfer that was never sent
NEVER = np.full((1, 1), np.inf)  # s, signal that never comes
DRAWN_AT_ONCE = 1 << 20  # limit of durations


class Work(NamedTuple):
    """Work of the workers in a round, in seconds."""

    start: np.ndarray  # [P]
    ready: np.ndarray  # [P]
    ends: np.ndarray  # [P, M] of the mini-batches
    done: np.ndarray  # [P] finished mini-batches
    stops: np.ndarray  # [P, 1] or [1, 1], of the signal

    def known(self, leaves: float) -> np.ndarray:
        """Return the times [P] at which messages that leave after this share are known.

        The share is of the last mini-batch. A whole round's last mini-batch is known from the
        start; another one when the signal comes.
        """
        if leaves == 0:
            return self.start
        if leaves == 1:
            return self.ready
        workers, whole = self.ends.shape
        last = _begins(self.start, self.ends)[np.arange(workers), np.maximum(self.done - 1, 0)]
        signal = np.minimum(self.stops[:, 0], self.ready)
        sure = np.where(self.done == whole, last, signal)
        return np.maximum(last + leaves * (self.ready - last), sure)


def _begins(start: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the starts [P, M] s of mini-batches that follow each other."""
    return np.concatenate([start[:, None], ends[:, :-1]], axis=1)


class RoundClock:
    """Plan of rounds: `init()` and `extend(state, updates)` as in `stragglers.rule.Rule`.

    signal: end of a round. The other parameters are as for the rules in
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
        seeded = self._process.seeded(setting.seed)
        self._ends_of = ends(seeded, self.workers, self.mini_batches)
        self._draw = None if by_round or seeded.uses_time else seeded.draw
        self._links = setting.links
        near = round_parts.land_at_neighbours(setting.graph, setting.links, self.workers)
        everywhere = round_parts.land_everywhere
        self._land, self._meet = _choose(
            "landing",
            landing,
            {"neighbours": (near, round_parts.stay), "all": (everywhere, everywhere)},
        )
        self._transfers = checked_transfers("rounds", setting.communication, self.workers)
        self._check(signal)

    def init(self) -> ClockState:
        """Begin the first round of all workers at 0 s."""
        zeros = np.zeros(self.workers, np.int64)
        return ClockState(0, np.zeros(self.workers), zeros, zeros)

    def extend(
        self, state: ClockState, updates: int, *, signal: Signal | None = None
    ) -> tuple[ClockState, Schedule]:
        """Return the next `updates` rounds; signal: another one for this segment alone."""
        if signal is not None:
            self._check(signal)
        signal = signal or self._signal
        shape = (updates, self.workers)
        start, finish, busy, spent = (np.empty(shape) for _ in range(4))
        batches, first = np.empty(shape, np.int32), np.empty(shape, np.int64)
        within = self._whole_rounds(state.attempts, updates, signal)
        active = round_parts.activations(self._links, state.update, updates)
        free, attempts, consumed = state.free, state.attempts, state.consumed
        whole = np.full(self.workers, self.mini_batches)
        under_way = state.under_way
        for row in range(updates):
            t = state.update + row
            if within is None:
                ends = self._ends_of(t, free, attempts)
                stops = np.reshape(signal(free, ends), (-1, 1))
                started = (_begins(free, ends) < stops).sum(axis=1)
                done, ready = self._stop(free, ends, stops, started)
            else:
                ends = free[:, None] + within[row]
                stops, started, done, ready = NEVER, whole, whole, ends[:, -1]
            work = Work(free, ready, ends, done, stops)
            start[row], first[row], batches[row] = free, consumed, done
            spent[row], finish[row], under_way = self._exchange(t, work, active[row], under_way)
            busy[row] = ready - free
            free = finish[row]
            attempts = attempts + started
            consumed = consumed + (done if self.carries else self.mini_batches)
        after = ClockState(state.update + updates, free.copy(), attempts, consumed, under_way)
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

    def _whole_rounds(
        self, attempts: np.ndarray, updates: int, signal: Signal
    ) -> np.ndarray | None:
        """Return [updates, P, M] s from a round's begin to the ends of its mini-batches.

        None unless all of them can be drawn at once: no worker is ever stopped, no duration depends
        on its begin, and they are not too many.
        """
        shape = (updates, self.workers, self.mini_batches)
        if signal is not round_parts.never or self._draw is None or np.prod(shape) > DRAWN_AT_ONCE:
            return None
        rounds, worker, step = np.ogrid[: shape[0], : shape[1], : shape[2]]
        counts = attempts[:, None] + (rounds * self.mini_batches + step)
        within = self._draw(worker, np.zeros((1, 1, 1)), counts).cumsum(axis=2)
        return within if np.isfinite(within[..., -1]).all() else None

    def _exchange(self, t: int, work: Work, active: np.ndarray, under_way: tuple):
        """Return exposed seconds [P] of round t, its landing [P], and later transfers."""
        transfers = self._transfers(t)
        arrived, *later = *under_way, *[UNSENT] * (under_way == ())
        landed, at = work.ready, UNSENT
        for transfer in transfers:
            at = np.maximum(self._land(work.known(transfer.leaves), active), at) + transfer.seconds
            if transfer.late:
                later += [UNSENT] * (transfer.late - len(later))
                later[transfer.late - 1] = np.maximum(later[transfer.late - 1], at)
            else:
                arrived = np.maximum(arrived, at)
                landed = np.maximum(landed, self._meet(work.ready, active))
        seconds = total_seconds(transfers)
        if any(map(hides, transfers)):
            seconds = np.clip(arrived - work.ready, 0.0, seconds)  # the rest hides behind the work
        return seconds, np.maximum(landed, arrived), tuple(later)

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
