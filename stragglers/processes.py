"""Processes of durations that may depend on the worker and on the time: slow machines.

Randomness is addressed: a duration depends on (seed, worker, count) and, where the process has
a state in time, on the start; never on the order of the calls. Every waiting rule therefore
meets the same draws. Worker residuals of real clusters are strongly autocorrelated, so iid
laws flatter methods that drop stragglers; the processes here do not.
"""

import csv
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from stragglers import reading
from stragglers.delays import Law
from stragglers.speed_paths import InTime, Paths, finish
from stragglers.streams import addressed

MOST_SOJOURNS = 1000  # of a markov worker within one mini-batch

Draw = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # worker, start, count -> s


@dataclass(frozen=True)
class Process:
    """Durations in seconds by worker, start and count; `seeded` binds it to its random numbers."""

    name: str
    shortest: float  # s, no duration is below it
    uses_time: bool  # whether a duration depends on when it starts
    workers: int = field(default=0, kw_only=True)  # there have to be, as it names them
    bind: Callable[[int], Draw] = field(repr=False, compare=False)  # seed -> draw
    draw: Draw | None = field(default=None, repr=False, compare=False)
    in_time: Callable[[int], InTime] | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )  # seed -> what the durations are made of, if they are the work that a changing speed does
    records: tuple[np.ndarray, ...] = field(
        default=(), repr=False, compare=False
    )  # that it replays

    def seeded(self, seed: int) -> "Process":
        """A copy whose durations are a pure function of `seed` and their address."""
        return replace(self, draw=self.bind(seed))

    def duration(
        self, worker: ArrayLike, start_time: ArrayLike, count: ArrayLike = 0
    ) -> np.ndarray:
        """Seconds that the `count`-th mini-batch of `worker` takes if begun at `start_time`.

        The three broadcast against each other: int, seconds (float), int.
        """
        if self.draw is None:
            raise ValueError(f"{self.name}: has no seed; call .seeded(seed) first")
        return self.draw(*np.broadcast_arrays(worker, start_time, count))


def as_process(delay: Law | Process) -> Process:
    """The delay itself, or the process that draws a law anew for every mini-batch."""
    return from_law(delay) if isinstance(delay, Law) else delay


def from_law(law: Law) -> Process:
    """Durations of the law, independent over workers and counts."""

    def bind(seed: int) -> Draw:
        table = addressed(seed, transform=law.quantile)
        return lambda worker, start, count: table(worker, count)

    return Process(str(law), float(law.quantile(0.0)), False, bind)


def persistent(law: Law | Process, factors: ArrayLike | Mapping[int, float]) -> Process:
    """Durations of `law` times a constant per worker: an array, or {worker: factor}, else 1."""
    process = as_process(law)
    sparse = hasattr(factors, "items")
    values = np.array(list(factors.values() if sparse else factors), np.float64)
    if not (np.isfinite(values) & (values > 0)).all() or (not sparse and not values.size):
        raise ValueError(
            f"persistent: needs positive factors, got {factors}; give each worker's slowness"
        )
    if sparse:
        keys = [int(key) for key in factors]
        if min(keys, default=0) < 0:
            raise ValueError(
                f"persistent: needs workers 0, 1, ..., got {factors}; count from the first worker"
            )
        dense = np.ones(max(keys, default=-1) + 2)  # the last entry stands for all other workers
        dense[keys] = values
    else:
        dense = values

    def bind(seed: int) -> Draw:
        draw = process.seeded(seed).draw

        def factored(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            if sparse:
                return dense[np.minimum(worker, dense.size - 1)] * draw(worker, start, count)
            if worker.max(initial=0) >= dense.size:
                raise ValueError(
                    f"persistent: {dense.size} factors, but worker {worker.max()}; give one each"
                )
            return dense[worker] * draw(worker, start, count)

        return factored

    def in_time(seed: int) -> InTime:
        def of(workers: int) -> np.ndarray:
            return dense[np.minimum(np.arange(workers), dense.size - 1)]

        return process.in_time(seed)._replace(constant=of)

    shortest = process.shortest * float(dense.min())
    named = max(dense.size - sparse, process.workers)
    # Factors of factors are rounded one after the other, which one constant is not.
    plain = process.in_time is not None and process.in_time(0).constant is None
    return Process(
        f"persistent({process.name})",
        shortest,
        process.uses_time,
        bind,
        workers=named,
        in_time=in_time if plain else None,
    )


def spells(law: Law | Process, mini_batches: int) -> Process:
    """One draw of `law` holds for `mini_batches` successive mini-batches of a worker.

    Like a draw per round, but however long the rounds of a method are, its stragglers stay slow
    for the same amount of work.
    """
    if not mini_batches >= 1:
        raise ValueError(f"spells: needs mini_batches >= 1, got {mini_batches}; set at least 1")
    process = as_process(law)

    def bind(seed: int) -> Draw:
        draw = process.seeded(seed).draw
        return lambda worker, start, count: draw(worker, start, count // mini_batches)

    def in_time(seed: int) -> InTime:
        inner = process.in_time(seed)
        return inner._replace(work=lambda worker, count: inner.work(worker, count // mini_batches))

    return Process(
        f"spells({process.name})",
        process.shortest,
        process.uses_time,
        bind,
        workers=process.workers,
        in_time=in_time if process.in_time is not None else None,
    )


def markov(law: Law, factor: float, mean_normal: float, mean_slow: float) -> Process:
    """A worker alternates between normal and `factor` times slower, in time.

    Sojourns are exponential with means `mean_normal` and `mean_slow` seconds and start in the
    stationary state. A mini-batch is `law` seconds of work at speed 1 or 1/factor; its duration
    integrates the speed over the state path exactly.
    """
    if not 1 <= factor < math.inf:
        raise ValueError(f"markov: needs factor >= 1, got {factor}; give how many times slower")
    for key, value in (("mean_normal", mean_normal), ("mean_slow", mean_slow)):
        if not 0 < value < math.inf:
            raise ValueError(f"markov: needs {key} > 0, got {key}={value}; set it in seconds")
    work = float(law.quantile(0.5))
    if mean_normal + mean_slow < work / MOST_SOJOURNS:
        raise ValueError(
            f"markov: a mini-batch of {work:.3g} s would see more than {MOST_SOJOURNS} sojourns of "
            f"mean_normal={mean_normal} and mean_slow={mean_slow} s; make them longer, or take "
            "their mean speed as a law"
        )

    known: dict[int, InTime] = {}  # so that paths are drawn once; a cached function has no pickle

    def in_time(seed: int) -> InTime:
        if seed not in known:
            paths = Paths(addressed(seed, 1), factor, mean_normal, mean_slow)
            known[seed] = InTime(addressed(seed, transform=law.quantile), paths, factor)
        return known[seed]

    def bind(seed: int) -> Draw:
        work, paths, _, _ = in_time(seed)

        def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            target = work(worker, count)
            latest = np.max(start + factor * target, initial=0.0)  # if all of it is slow
            path = paths.beyond(worker.max(initial=0) + 1, latest)
            return finish(path, worker, start, target) - start

        return draw

    shortest = float(law.quantile(0.0))
    return Process(f"markov({law})", shortest, True, bind, in_time=in_time)


def trace(
    path: str,
    *,
    worker: str = "worker",
    time: str = "time",
    duration: str = "batch_time",
    scale: float = 1.0,
    mean: float | None = None,
) -> Process:
    """Replay of recorded durations from a CSV file, per worker in the order of `time`, cyclic.

    `worker`, `time` and `duration` name the columns. Recorded numbers times `scale` are
    seconds; `mean` scales them instead so that they have this mean. Workers beyond the file's
    reuse its workers in turn; the seed has no effect. Unreadable files raise ValueError.
    """
    if not scale > 0 or (mean is not None and not mean > 0):
        raise ValueError(
            f"trace: needs scale > 0 and mean > 0, got scale={scale}, mean={mean}; set seconds"
        )
    if mean is not None and scale != 1:
        raise ValueError(f"trace: scale={scale} and mean={mean} exclude each other; give one")
    records = _read_trace(path, worker, time, duration)
    scale = scale if mean is None else mean / np.mean(list(itertools.chain(*records)))
    return replayed(f"trace({path})", [scale * np.asarray(values) for values in records])


def replayed(name: str, records: Sequence[np.ndarray]) -> Process:
    """Durations [s] per worker as they are listed, cyclic; workers beyond reuse them in turn."""
    lengths = np.array([len(row) for row in records])
    table = np.zeros((len(records), lengths.max()))
    for row, values in zip(table, records, strict=True):
        row[: len(values)] = values

    def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
        row = worker % len(lengths)
        return table[row, count % lengths[row]]

    shortest = min(float(values.min()) for values in records)
    return Process(name, shortest, False, lambda seed: draw, records=tuple(records))


PROCESSES: dict[str, Callable[..., Process]] = {
    factory.__name__: factory for factory in (persistent, spells, markov, trace)
}


def _read_trace(path: str, worker: str, time: str, duration: str) -> list[list[float]]:
    """Recorded durations per worker, workers by number (or by name), records by time."""
    try:
        with io.TextIOWrapper(reading.opened(path), "utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(
            f"trace: cannot read {path} ({error}); give the path of a CSV file"
        ) from error
    found = " ".join(", ".join(columns).split())[:200]  # of any file, on one line
    for column in (worker, time, duration):
        if column not in columns:
            raise ValueError(f"trace: {path} has no column {column!r}; it has {found or 'none'}")
    if not rows:
        raise ValueError(f"trace: {path} has no records; give a file with at least one")
    observed: dict[str, list[tuple[float, float]]] = {}
    for line, row in enumerate(rows, start=2):
        when, seconds = _number(row[time]), _number(row[duration])
        if not (math.isfinite(when) and 0 < seconds < math.inf):
            raise ValueError(
                f"trace: {path} line {line} has {time}={row[time]!r:.200}, "
                f"{duration}={row[duration]!r:.200}; keep numbers and positive durations only"
            )
        observed.setdefault(row[worker], []).append((when, seconds))
    numbered = all(math.isfinite(_number(name)) for name in observed)
    names = sorted(observed, key=_number if numbered else str)
    by_time = [sorted(observed[name], key=itemgetter(0)) for name in names]
    return [[seconds for _, seconds in records] for records in by_time]


def _number(text: str | None) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan
