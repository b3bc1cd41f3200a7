"""Waiting rules in rounds, in which every worker takes up to M mini-batches.

Non-blocking SGD, arXiv 2211.00889; Anytime Minibatch, 2006.05752; DropCompute, 2306.10598.

Each rule takes some of these parameters:

    landing     "neighbours": at each worker once it is ready and has its neighbours' messages
                (max-plus recursion); "all": at all workers once all are ready. `setting.graph` or
                `setting.links` gives the neighbours; without both, all workers are neighbours
    leftovers   "carry" unfinished mini-batches on into the next round, or "drop" them
    in_flight   "finish" the mini-batch in flight at the signal, or "cut" it; a cut mini-batch that
                is carried on is redone in the next round, with a new duration

`setting.communication` is the seconds per round after the work, scalar or [workers]; or a tuple of
`Transfer`, some of which travel beside the work; or a function from the round to either.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from stragglers import round_clock
from stragglers.round_clock import ClockState, Learning, RoundClock, Signal
from stragglers.rule import Calibration, Goal, RoundView, Rule, Setting, Trigger, Unfit
from stragglers.schedule import Schedule, concatenate

# No parameter of a rule in rounds, not even the rule's name, is a constant of a compiled program.
DATA = ("name", "seconds", "k", "gamma", "calibration", "landing", "leftovers", "in_flight")


def _rule(
    clock: RoundClock,
    stop: Callable[[RoundView], bool] | None = None,
    goal: Goal | None = None,
    sees_all: bool = False,
) -> Rule:
    """Return the rule with this clock; stop, goal, sees_all: of its trigger."""
    trigger = _trigger(clock)._replace(stop=stop, goal=goal, sees_all=sees_all)
    return Rule(clock.workers, clock.init, clock.extend, trigger=trigger, data=DATA)


def _trigger(clock: RoundClock) -> Trigger:
    """Return a trigger that stops no worker."""
    return Trigger(
        None,
        clock.mini_batches,
        clock.cuts,
        clock.carries,
        sees_all=False,
        everywhere=clock.everywhere,
    )


def barrier(setting: Setting) -> Rule:
    """Wait for M mini-batches of every worker."""
    clock = RoundClock(setting, round_clock.never, "all", "carry", "finish")
    return _rule(clock)


def neighbour_barrier(setting: Setting) -> Rule:
    """Let each worker wait for its neighbours' M mini-batches (1705.09056)."""
    if setting.graph is None and setting.links is None:
        raise Unfit(
            "neighbour_barrier", "got neither graph nor links", "pass the graph, or use barrier"
        )
    clock = RoundClock(setting, round_clock.never, "neighbours", "carry", "finish")
    return _rule(clock)


def first_finisher(
    setting: Setting,
    *,
    landing: str = "neighbours",
    leftovers: str = "carry",
    in_flight: str = "finish",
) -> Rule:
    """Let the first worker with M mini-batches stop the others (2211.00889)."""
    clock = RoundClock(setting, round_clock.at_first_finisher, landing, leftovers, in_flight)
    return _rule(clock, goal=Goal(lambda finished: finished >= clock.mini_batches, 1))


def deadline(
    setting: Setting,
    *,
    seconds: float,
    landing: str = "neighbours",
    leftovers: str = "carry",
    in_flight: str = "finish",
) -> Rule:
    """Let all workers compute for `seconds`, at most M mini-batches."""
    clock = RoundClock(setting, round_clock.until_deadline(seconds), landing, leftovers, in_flight)
    return _rule(clock, lambda view: view.elapsed >= seconds)


def quorum(
    setting: Setting,
    *,
    k: int,
    landing: str = "neighbours",
    leftovers: str = "carry",
    in_flight: str = "finish",
) -> Rule:
    """Stop all workers at the k-th finished mini-batch of a round."""
    clock = RoundClock(setting, round_clock.until_quorum(k), landing, leftovers, in_flight)
    return _rule(clock, goal=Goal(lambda finished: finished, k))


def quorum_grace(
    setting: Setting,
    *,
    k: int,
    gamma: float = 0.25,
    landing: str = "neighbours",
    leftovers: str = "carry",
    in_flight: str = "finish",
) -> Rule:
    """Wait for k workers with all M mini-batches, then `gamma` times as long again for the others.

    If k workers have M mini-batches after q seconds, all workers stop gamma q seconds later, with
    the mini-batches that they have finished by then. Each worker counts q from its own beginning of
    the round. A grace after a quorum is an idea of Decoupled DiLoCo (2604.21428), where no worker
    is stopped, as in `quorum_async`. Here the grace is a share of the seconds of the quorum.
    """
    if not 1 <= k <= setting.workers:
        raise ValueError(
            f"quorum_grace: needs 1 <= k <= {setting.workers} workers, got k={k}; set k in it"
        )
    if not 0 <= gamma < np.inf:
        raise ValueError(f"quorum_grace: needs gamma >= 0, got {gamma}; 0 grants no grace")
    signal = round_clock.until_grace(k, gamma)
    clock = RoundClock(setting, signal, landing, leftovers, in_flight)

    def stop(view: RoundView) -> bool:
        full = view.ready[view.finished >= clock.mini_batches]
        if full.size < k:
            return False
        reached = np.partition(full, k - 1)[k - 1]
        return bool(view.elapsed >= reached + gamma * max(reached, 0.0))

    return _rule(clock, stop, sees_all=True)


def anytime(setting: Setting, *, seconds: float, landing: str = "neighbours") -> Rule:
    """Let all workers compute for `seconds`; unfinished mini-batches are lost (2006.05752)."""
    return deadline(setting, seconds=seconds, landing=landing, leftovers="drop", in_flight="cut")


def equal_work(setting: Setting, *, cost: float, landing: str = "neighbours") -> Rule:
    """Wait for mini-batches of total cost `cost` from every worker, at most M mini-batches each.

    A worker's round ends with the mini-batch that reaches the cost; no work is cut or lost. The
    cost of a mini-batch has mean 1 under `sample_cost`, is the seconds of its samples under
    `by_sample`, and is 1 if delays do not belong to samples.
    """
    if not 0 < cost < math.inf:
        raise ValueError(f"equal_work: needs a finite cost > 0, got {cost}; 8.0 is 8 mini-batches")
    clock = RoundClock(setting, round_clock.never, landing, "carry", "finish")
    costs = clock.seeded.cost
    everyone, steps = np.arange(clock.workers), np.arange(clock.mini_batches)

    def quota(workers: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the mini-batches [n] of workers [n] in a round that begins at counters [n]."""
        at = np.broadcast_arrays(workers[:, None], first[:, None] + steps)
        each = np.ones(at[0].shape) if costs is None else costs(*at)
        return np.minimum(1 + (each.cumsum(axis=1) < cost).sum(axis=1), clock.mini_batches)

    def signal_of(state: Learning) -> Signal:
        last = quota(everyone, state.clock.consumed) - 1
        return lambda begin, ends: ends[everyone, last]

    init, extend = clock.learning((), signal_of, lambda known, row: known)
    trigger = _trigger(clock)._replace(quota=quota)
    return Rule(clock.workers, init, extend, trigger=trigger, data=(*DATA, "cost"))


def drop_compute(
    setting: Setting,
    *,
    calibration: int = 50,
    landing: str = "neighbours",
    in_flight: str = "cut",
) -> Rule:
    """Run `calibration` blocking rounds, then stop at their best deadline (2306.10598).

    Mini-batches unfinished at the end of a round are lost. The deadline is chosen for work that is
    cut there, as in the paper. It is a pure function of the delays in the first rounds, so that any
    segment can compute it. On devices the deadline follows from the real durations of these rounds,
    and holds from the next dispatch on.
    """
    if calibration < 1:
        raise ValueError(
            f"drop_compute: needs calibration >= 1 rounds, got {calibration}; set at least 1"
        )
    clock = RoundClock(setting, round_clock.never, landing, "drop", in_flight)

    def choose(durations: np.ndarray, communication: np.ndarray) -> float:
        # A mini-batch that ends exactly at the threshold shall count.
        return drop_compute_threshold(durations, communication) * (1 + 1e-9)

    @functools.cache
    def calibrated() -> Signal:
        seen = []

        def watch(begin: np.ndarray, ends: np.ndarray) -> float:
            seen.append(np.diff(ends, axis=1, prepend=begin[:, None]))
            return np.inf

        _, schedule = clock.extend(clock.init(), calibration, signal=watch)
        durations = np.stack(seen[-calibration:])  # a signal is called once before the first round
        return round_clock.until_deadline(choose(durations, schedule.communication.max(axis=1)))

    def extend(state: ClockState, updates: int) -> tuple[ClockState, Schedule]:
        if state.update >= calibration:
            return clock.extend(state, updates, signal=calibrated())
        before = min(calibration - state.update, updates)
        state, schedule = clock.extend(state, before)
        if before == updates:
            return state, schedule
        state, rest = extend(state, updates - before)
        return state, concatenate([schedule, rest])

    trigger = _trigger(clock)._replace(calibration=Calibration(calibration, choose))
    return Rule(clock.workers, clock.init, extend, trigger=trigger, data=DATA)


def drop_compute_threshold(
    durations: ArrayLike, communication: ArrayLike = 0.0, candidates: int = 200
) -> float:
    """Return DropCompute's tau, the computing seconds per round of highest throughput (2306.10598).

    durations: [rounds, workers, M] s of every mini-batch, from rounds without a stop.
    communication: s of a round, scalar or [rounds]. A threshold ends a round, and keeps the
    mini-batches that have ended by then. The thresholds are `candidates` even quantiles of the
    measured ends. tau gives the most mini-batches per second, and is the latest with that rate.
    Missing or negative numbers raise ValueError.
    """
    durations = np.asarray(durations, np.float64)
    if durations.ndim != 3 or not durations.size or not (durations > 0).all():
        raise ValueError(
            f"drop_compute_threshold: needs positive durations [rounds, workers, mini-batches], "
            f"got shape {durations.shape}; measure at least one round"
        )
    if candidates < 1 or not np.min(communication) >= 0:
        raise ValueError(
            f"drop_compute_threshold: needs candidates >= 1 and communication >= 0 s, got "
            f"{candidates} and {communication}; set both"
        )
    ends = durations.cumsum(axis=2)
    # A threshold between two ends gains nothing; the first candidate keeps everything.
    taus = np.quantile(ends, np.linspace(1, 0, candidates), method="lower")
    kept = np.searchsorted(np.sort(ends, axis=None), taus, side="right")
    full = ends.max(axis=(1, 2))
    seconds = np.minimum(taus[:, None], full).mean(axis=1) + np.mean(communication)
    rate = kept / seconds
    # At equal throughput more samples are better, and equal rates differ by rounding.
    return float(taus[np.argmax(rate >= rate.max() * (1 - 1e-9))])


def round_deadline(past: np.ndarray, c: float, mini_batches: int) -> float:
    """Return a round's deadline in s, M (median + c MAD) of `past` [n, P]; inf if all are nan."""
    seen = past[~np.isnan(past)]
    if not seen.size:
        return math.inf
    median = np.median(seen)
    return float(mini_batches * (median + c * np.median(np.abs(seen - median))))


def adaptive_deadline(
    setting: Setting,
    *,
    c: float = 3.0,
    window: int = 20,
    landing: str = "neighbours",
    leftovers: str = "carry",
    in_flight: str = "finish",
) -> Rule:
    """Let all workers compute for M (median + c MAD) of the durations in the last `window` rounds.

    MAD: median absolute deviation. Durations are pooled over workers. The first round stops no
    worker. While fewer than half are slow, a worker that is always slow is stopped in every round.
    """
    if not 0 <= c < math.inf:
        raise ValueError(f"adaptive_deadline: needs c >= 0, got {c}; 0 is the median itself")
    if window < 1:
        raise ValueError(f"adaptive_deadline: needs window >= 1 rounds, got {window}; set more")
    clock = RoundClock(setting, round_clock.never, landing, leftovers, in_flight)
    whole = clock.mini_batches

    def signal_of(state: Learning) -> Signal | None:
        seconds = round_deadline(state.known, c, whole)
        return round_clock.until_deadline(seconds * (1 + 1e-9)) if state.known.size else None

    def learnt(past: np.ndarray, row: Schedule) -> np.ndarray:
        """Return [n, P] s per mini-batch in the last n rounds."""
        each = round_clock.seconds_each(row.busy, row.batches, whole, clock.cuts)
        return np.concatenate([past, each])[-window:]

    def stop(view: RoundView) -> bool:
        return view.elapsed >= round_deadline(view.past, c, whole)

    init, extend = clock.learning(np.empty((0, clock.workers)), signal_of, learnt)
    trigger = _trigger(clock)._replace(stop=stop, sees_all=True, remembers=window)
    return Rule(clock.workers, init, extend, trigger=trigger, data=(*DATA, "c", "window"))
