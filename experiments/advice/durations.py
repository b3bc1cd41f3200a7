"""Seconds of a mini-batch, worker by worker: from a recorded schedule, from a trace or from a law.

A schedule has `busy` seconds for `batches` mini-batches, of which each is taken to have lasted as
long as the others of its row. Where a rule cut work short a duration is *censored*: only a lower
bound is known. Leaving it out would hide the stragglers. It is completed by a draw from the
worker's own Kaplan-Meier estimate (JASA 1958) beyond the bound; where the worker was never seen to
take longer, from the pooled estimate in units of each worker's median; and where nobody was, by the
bound itself. Too few durations, or too many censored ones, are refused.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from experiments import files
from stragglers.delays import Law
from stragglers.processes import Process, as_process, replayed
from stragglers.rule import Trigger
from stragglers.schedule import Schedule

LEAST = 50  # durations of all workers together
MOST_CENSORED = 0.5  # of them
MOST_GAPS = 0.05  # of the time of an asynchronous schedule
DRAWN = 1000  # per worker, of a law


class Measured(NamedTuple):
    """Seconds of a mini-batch of every worker, in the order in which they were measured."""

    seconds: tuple[np.ndarray, ...]
    source: str  # what a reader calls them
    censored: float = 0.0  # share that was completed
    read: str = ""  # what a trace says of itself, on one line
    names: tuple[str, ...] = ()  # of the workers of a trace

    @property
    def workers(self) -> int:
        """How many workers were measured."""
        return len(self.seconds)

    @property
    def digest(self) -> str:
        """Tells these durations from others."""
        return hashlib.sha256(b"".join(values.tobytes() for values in self.seconds)).hexdigest()

    def name(self, worker: int) -> str:
        """Return the name by which a reader knows a worker."""
        return self.names[worker] if self.names else f"{worker}"

    def process(self, repeat: int = 0) -> Process:
        """The durations as they were for repeat 0, otherwise resampled.

        A resample joins blocks of about the square root of a worker's record, so that slow spells
        stay together, drawn at the same places for all workers (Politis, Romano, 1992).
        """
        if repeat == 0:
            return replayed(self.source, self.seconds)
        rng = np.random.default_rng(np.random.SeedSequence(repeat))
        places = rng.random(max(map(len, self.seconds)))
        again = replayed(self.source, [_blocks(values, places) for values in self.seconds])
        shortest = min(float(values.min()) for values in self.seconds)
        return replace(again, shortest=shortest)  # so that a rule is refused for all or for none


def _blocks(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    length = max(1, round(values.size**0.5))
    begins = (places[: -(-values.size // length)] * values.size).astype(int)
    at = (begins[:, None] + np.arange(length)).ravel()[: values.size]
    return values[at % values.size]


def checked(measured: Measured) -> Measured:
    """The same; ValueError where there is too little to play rules over."""
    count = sum(map(len, measured.seconds))
    if measured.workers < 2:
        raise ValueError(
            f"{measured.source}: has the durations of one worker, and a waiting rule is about "
            "several; record a run of at least 2 workers"
        )
    if count < LEAST:
        raise ValueError(
            f"{measured.source}: has {count} durations, and fewer than {LEAST} say little about "
            "stragglers; record a longer run"
        )
    return measured


def of_delay(delay: Law | Process, workers: int, seed: int, source: str) -> Measured:
    """What a trace lists, or what `workers` draw from a law or a process, back to back."""
    process = as_process(delay).seeded(seed)
    if process.records:
        return checked(Measured(process.records, source, read=process.read, names=process.names))
    worker, now = np.arange(workers), np.zeros(workers)
    drawn = np.empty((workers, DRAWN))
    for count in range(DRAWN):
        drawn[:, count] = process.duration(worker, now, count)
        now = now + drawn[:, count]
    return checked(Measured(tuple(drawn), source, read=process.read, names=process.names))


def of_schedule(
    schedule: Schedule, source: str, trigger: Trigger | None = None, seed: int = 0
) -> Measured:
    """The durations behind a recorded schedule, its censored ones completed.

    trigger: of the rule that made it; None: a rule without one, or an unknown rule, which is taken
    to cut if any row has a worker that was busy and finished nothing.
    """
    workers = schedule.all_workers
    _refuse(schedule, source, trigger, workers)
    real = schedule.batches > 0
    cuts = bool(((schedule.busy > 0) & ~real).any()) if trigger is None else trigger.cuts
    full = np.broadcast_to(int(schedule.batches.max(initial=1)), workers)
    if trigger is not None:
        full = np.broadcast_to(
            trigger.mini_batches if trigger.whole is None else trigger.whole, workers
        )
    seen: list[list[tuple[float, float, int, bool]]] = [[] for _ in range(workers)]
    for row, position in np.argwhere((schedule.busy > 0) & (schedule.workers < workers)):
        i, batches = schedule.workers[row, position], int(schedule.batches[row, position])
        busy, start = schedule.busy[row, position], schedule.start[row, position]
        cut = cuts and batches < full[i]
        if batches or cut:
            seen[i].append((start, busy / (batches + cut), batches + cut, not cut))
    for i, start, lasted in _cancelled(schedule, workers):
        seen[i].append((start, lasted / full[i], int(full[i]), False))
    values, observed = [], []
    for each in seen:
        ordered = sorted(each)
        counts = [count for _, _, count, _ in ordered]
        values.append(np.repeat([seconds for _, seconds, _, _ in ordered], counts))
        observed.append(np.repeat([whole for *_, whole in ordered], counts).astype(bool))
    return _completed(values, observed, source, seed)


def _refuse(schedule: Schedule, source: str, trigger: Trigger | None, workers: int) -> None:
    """Raise ValueError for a schedule that does not give durations."""
    several = trigger is not None and trigger.whole is not None
    if several and (np.asarray(trigger.mini_batches) > trigger.whole).any():
        raise ValueError(
            f"{source}: its rule lets a worker go on after a push until an update cuts it, and the "
            "schedule does not say when it pushed; record a run with barrier or k_async"
        )
    if not schedule.staleness[schedule.batches > 0].any():
        return
    present = schedule.workers < workers
    spans = np.bincount(
        schedule.workers[present], (schedule.finish - schedule.start)[present], workers
    )
    lost = [event.worker for event in schedule.events]
    for i in np.setdiff1d(np.arange(workers), lost):
        mine = present & (schedule.workers == i)
        if not mine.any():
            raise ValueError(
                f"{source}: worker {i} is in none of its updates; record a run in which every "
                "worker takes part"
            )
        whole = schedule.finish[mine].max() - schedule.start[mine].min()
        if spans[i] < (1 - MOST_GAPS) * whole:
            raise ValueError(
                f"{source}: {1 - spans[i] / whole:.0%} of the time of worker {i} went into work "
                "that was ignored or interrupted, of which the schedule has no row; record a run "
                "with barrier or k_async"
            )


def _cancelled(schedule: Schedule, workers: int) -> list[tuple[int, float, float]]:
    """(worker, start, s) of work that an update cancelled: nobody is stale, and a row lacks it."""
    if (
        schedule.staleness.any()
        or schedule.workers.shape[1] >= workers
        or schedule.partner is not None
    ):
        return []
    pushed = (schedule.start + schedule.busy).max(axis=1)
    landed = np.concatenate(
        [schedule.start[0].min(keepdims=True), schedule.finish.max(axis=1)[:-1]]
    )
    absent = np.ones((schedule.updates, workers), bool)
    rows, positions = np.nonzero(schedule.workers < workers)
    absent[rows, schedule.workers[rows, positions]] = False
    lasted = np.maximum(pushed - landed, 0.0)
    return [(int(i), landed[t], lasted[t]) for t, i in np.argwhere(absent) if lasted[t] > 0]


def _completed(
    values: Sequence[np.ndarray], observed: Sequence[np.ndarray], source: str, seed: int
) -> Measured:
    """The durations with censored ones completed; ValueError where too many are."""
    count = sum(map(len, values))
    seen = sum(int(whole.sum()) for whole in observed)
    never = [i for i, whole in enumerate(observed) if not whole.any()]
    if not seen:
        raise ValueError(
            f"{source}: not one mini-batch was finished before its rule cut it; record a run with "
            "barrier or k_async"
        )
    share = 1 - seen / count
    if share > MOST_CENSORED:
        raise ValueError(
            f"{source}: its rule cut {share:.0%} of the durations, and more than "
            f"{MOST_CENSORED:.0%} leave the stragglers unknown; record a run with barrier or "
            "k_async"
        )
    if never:
        raise ValueError(
            f"{source}: worker {never[0]} never finished a mini-batch, so that nobody knows how "
            "slow it is; record a run with barrier or k_async"
        )
    whole = Measured(tuple(v[w] for v, w in zip(values, observed, strict=True)), source)
    checked(whole)
    if share == 0:
        return whole
    medians = [np.median(v[w]) for v, w in zip(values, observed, strict=True)]
    scaled = [v / m for v, m in zip(values, medians, strict=True)]
    pooled = kaplan_meier(np.concatenate(scaled), np.concatenate(observed))
    completed = []
    for i, (mine, finished) in enumerate(zip(values, observed, strict=True)):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i,)))
        own = kaplan_meier(mine, finished)
        others = (pooled[0] * medians[i], pooled[1])
        completed.append(
            np.array(
                [
                    seconds if done else _beyond(seconds, (own, others), rng)
                    for seconds, done in zip(mine.tolist(), finished.tolist(), strict=True)
                ]
            )
        )
    return Measured(tuple(completed), source, share)


def kaplan_meier(seconds: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The durations that were observed, in order, and the probability of each of them.

    What is left of the probability, as the longest were censored, belongs to longer durations.
    """
    order = np.lexsort((~observed, seconds))  # of equal ones the censored last
    seconds, observed = seconds[order], observed[order]
    at_risk = seconds.size - np.arange(seconds.size)
    surviving = np.cumprod(1 - observed / at_risk)
    mass = np.concatenate([[1.0], surviving[:-1]]) - surviving
    return seconds[observed], mass[observed]


def _beyond(bound: float, laws: Sequence[tuple], rng: np.random.Generator) -> float:
    """A draw from the first of the laws that has anything beyond the bound, or the bound."""
    u = rng.random()  # one for every censored duration, whichever law it goes to
    for seconds, mass in laws:
        later = (seconds > bound) & (mass > 0)
        if later.any():
            total = np.cumsum(mass[later])
            return float(seconds[later][np.searchsorted(total, u * total[-1], side="right")])
    return bound


def write(measured: Measured, path: str, repeat: int = 0) -> None:
    """Write them as a CSV file that the delay `trace` reads."""
    out = io.StringIO()
    out.write("worker,time,batch_time\n")
    for i, values in enumerate(measured.process(repeat).records):
        for count, seconds in enumerate(values.tolist()):
            out.write(f"{i},{count},{seconds!r}\n")
    files.write(path, out.getvalue(), durable=False)
