"""Processes of durations that may depend on the worker and on the time.

Random numbers are addressed: a duration depends on (seed, worker, count), and on its start if
speeds change in time, but never on the order of the calls. All waiting rules thus meet the same
draws. Workers' deviations in real clusters are strongly autocorrelated. iid distributions therefore
flatter methods that drop stragglers; processes with a memory do not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from comms.registry import Registry
from stragglers.delays import Law
from stragglers.speed_paths import InTime, Paths, finish
from stragglers.streams import addressed

MOST_SOJOURNS = 1000  # of a markov worker within one mini-batch

Draw = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # worker, start, count -> s
Cost = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, counter -> factor of the time


@dataclass(frozen=True)
class Process:
    """Durations in seconds by worker, start and count; `seeded` binds the process to a seed.

    With `costs`, the duration of a mini-batch is multiplied by the cost of its samples. The counter
    of a mini-batch gives its samples; the count numbers the attempts of a worker.
    """

    name: str
    shortest: float  # s, no duration is below it
    uses_time: bool  # True if a duration depends on its start
    workers: int = field(default=0, kw_only=True)  # fewest workers that its parameters name
    bind: Callable[[int], Draw] = field(repr=False, compare=False)  # seed -> draw
    draw: Draw | None = field(default=None, repr=False, compare=False)
    in_time: Callable[[int], InTime] | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )  # seed -> parts of the durations, if the speeds of workers change in time
    records: tuple[np.ndarray, ...] = field(
        default=(), repr=False, compare=False
    )  # recorded durations that it replays
    names: tuple[str, ...] = field(default=(), compare=False, kw_only=True)  # of recorded workers
    read: str = field(default="", compare=False, kw_only=True)  # facts about its file, on one line
    exchange: float = field(default=0.0, compare=False, kw_only=True)  # s a step, if recorded
    costs: Callable[[int], Cost] | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )  # seed -> cost of mini-batches; None: all are alike
    cost: Cost | None = field(default=None, repr=False, compare=False, kw_only=True)
    seed: int | None = field(default=None, repr=False, compare=False, kw_only=True)

    def seeded(self, seed: int) -> "Process":
        """Return a copy whose durations are a pure function of `seed` and their address."""
        cost = None if self.costs is None else self.costs(seed)
        return replace(self, draw=self.bind(seed), cost=cost, seed=seed)

    def duration(
        self,
        worker: ArrayLike,
        start_time: ArrayLike,
        count: ArrayLike = 0,
        counter: ArrayLike | None = None,
    ) -> np.ndarray:
        """Return the seconds of the `count`-th mini-batch of `worker`, begun at `start_time` s.

        counter: the mini-batch's counter, which gives its samples and their cost; None: the count.
        Arguments are broadcast; all but the start are int. Raises ValueError before `seeded`.
        """
        if self.draw is None:
            raise ValueError(f"{self.name}: has no seed; call .seeded(seed) first")
        if self.cost is None:
            return self.draw(*np.broadcast_arrays(worker, start_time, count))
        counter = count if counter is None else counter
        worker, start, count, counter = np.broadcast_arrays(worker, start_time, count, counter)
        cost = self.cost(worker, counter)
        if self.in_time is None:
            return cost * self.draw(worker, start, count)
        work, paths, slowest, constant = self.in_time(self.seed)
        target = cost * work(worker, count)
        many = int(worker.max(initial=0)) + 1
        path = paths.beyond(many, np.max(start + slowest * target, initial=0.0))
        lasts = finish(path, worker, start, target) - start
        return lasts if constant is None else constant(many)[worker] * lasts

    def costing(self, cost: Cost, least: float) -> "Process":
        """Return a copy whose mini-batches take `cost` times as long; least: the lowest cost."""
        if self.costs is not None:
            raise ValueError(
                f"{self.name}: its durations belong to samples already; take another delay, or "
                "no costs of samples"
            )
        return replace(self, costs=lambda seed: cost, shortest=least * self.shortest)


def as_process(delay: Law | Process) -> Process:
    """Return a process as it is, or the process that draws each duration from a distribution."""
    if not isinstance(delay, Law | Process):
        raise ValueError(
            f"delay: needs a distribution or a process, got {f'{delay!r}'.split()[0]}; write "
            "delays.deterministic(0.1), or delay_processes.replayed('mine', times)"
        )
    return from_law(delay) if isinstance(delay, Law) else delay


def from_law(law: Law) -> Process:
    """Draw durations from the distribution, independently over workers and counts."""

    def bind(seed: int) -> Draw:
        table = addressed(seed, transform=law.quantile)
        return lambda worker, start, count: table(worker, count)

    return Process(str(law), float(law.quantile(0.0)), False, bind)


def persistent(law: Law | Process, factors: ArrayLike | Mapping[int, float]) -> Process:
    """Multiply durations by a factor per worker: an array, or {worker: factor} with 1 elsewhere."""
    process = as_process(law)
    sparse = hasattr(factors, "items")
    values = np.array(list(factors.values() if sparse else factors), np.float64)
    if not (np.isfinite(values) & (values > 0)).all() or (not sparse and not values.size):
        raise ValueError(
            f"persistent: needs positive factors, got {factors}; give each worker's slowness"
        )
    if sparse:
        keys = [int(key) for key in factors]
        if min(keys, default=0) < 0 or any(int(key) != float(key) for key in factors):
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

    # A product of two factors is rounded differently from one constant.
    plain = process.in_time is not None and process.in_time(0).constant is None
    return replace(
        process,
        name=f"persistent({process.name})",
        shortest=process.shortest * float(dense.min()),
        workers=max(dense.size - sparse, process.workers),
        bind=bind,
        draw=None,
        in_time=in_time if plain else None,
        records=(),
    )


def spells(law: Law | Process, mini_batches: int) -> Process:
    """Hold one draw of `law` for `mini_batches` successive mini-batches of a worker.

    A straggler stays slow for the same amount of work, whatever the length of a method's rounds. A
    draw per round lasts for a round instead.
    """
    if not mini_batches >= 1:
        raise ValueError(f"spells: needs mini_batches >= 1, got {mini_batches}; set at least 1")
    process = as_process(law)
    if process.costs is not None:
        raise ValueError(
            f"spells: {process.name} has a cost for every sample, which a spell cannot hold; write "
            "by_sample(spells(...)), so that the rest of the duration is held"
        )

    def bind(seed: int) -> Draw:
        draw = process.seeded(seed).draw
        return lambda worker, start, count: draw(worker, start, count // mini_batches)

    def in_time(seed: int) -> InTime:
        inner = process.in_time(seed)
        return inner._replace(work=lambda worker, count: inner.work(worker, count // mini_batches))

    return replace(
        process,
        name=f"spells({process.name})",
        bind=bind,
        draw=None,
        in_time=in_time if process.in_time is not None else None,
        records=(),
    )


def markov(law: Law, factor: float, mean_normal: float, mean_slow: float) -> Process:
    """Let a worker alternate between normal and `factor` times slower, in time.

    Sojourn times are exponential with means `mean_normal` and `mean_slow` seconds, and start in the
    stationary state. A mini-batch is `law` seconds of work at speed 1 or 1/factor. Its duration
    integrates the speed over the state path exactly.
    """
    check_sojourns(factor, mean_normal, mean_slow)
    work = float(law.quantile(0.5))
    if mean_normal + mean_slow < work / MOST_SOJOURNS:
        raise ValueError(
            f"markov: a mini-batch of {work:.3g} s would see more than {MOST_SOJOURNS} sojourns of "
            f"mean_normal={mean_normal} and mean_slow={mean_slow} s; make them longer, or take "
            "their mean speed as a distribution"
        )

    known: dict[int, InTime] = {}  # paths are drawn once; a cached function has no pickle

    def in_time(seed: int) -> InTime:
        if seed not in known:
            paths = Paths(addressed(seed, 1), factor, mean_normal, mean_slow)
            known[seed] = InTime(addressed(seed, transform=law.quantile), paths, factor)
        return known[seed]

    def bind(seed: int) -> Draw:
        work, paths, _, _ = in_time(seed)

        def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            target = work(worker, count)
            latest = np.max(start + factor * target, initial=0.0)  # in case all of it is slow
            path = paths.beyond(worker.max(initial=0) + 1, latest)
            return finish(path, worker, start, target) - start

        return draw

    shortest = float(law.quantile(0.0))
    return Process(f"markov({law})", shortest, True, bind, in_time=in_time)


def check_sojourns(factor: float, mean_normal: float, mean_slow: float) -> None:
    """Raise ValueError for parameters that no alternation between two speeds can have."""
    if not 1 <= factor < math.inf:
        raise ValueError(f"markov: needs factor >= 1, got {factor}; give how many times slower")
    for key, value in (("mean_normal", mean_normal), ("mean_slow", mean_slow)):
        if not 0 < value < math.inf:
            raise ValueError(f"markov: needs {key} > 0, got {key}={value}; set it in seconds")


def replayed(name: str, records: Sequence[ArrayLike]) -> Process:
    """Replay listed durations [s] per worker in a cycle; further workers reuse the lists in turn.

    Raises ValueError unless every worker has a list of finite, positive numbers.
    """
    records = [np.asarray(row, np.float64) for row in records] or [np.empty(0)]
    for worker, row in enumerate(records):
        if row.ndim != 1 or not row.size or not ((row > 0) & (row < math.inf)).all():
            raise ValueError(
                f"{name}: needs a list of finite, positive seconds per worker, got "
                f"{row.tolist()!r:.80} for worker {worker}; leave out what is no time, as in "
                "replayed('mine', [[0.1, 0.2], [0.3]])"
            )
    lengths = np.array([len(row) for row in records])
    table = np.zeros((len(records), lengths.max()))
    for row, values in zip(table, records, strict=True):
        row[: len(values)] = values

    def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
        row = worker % len(lengths)
        return table[row, count % lengths[row]]

    shortest = min(float(values.min()) for values in records)
    return Process(name, shortest, False, lambda seed: draw, records=tuple(records))


def by_sample(law: Law | Process) -> Process:
    """Let each duration belong to samples: a mini-batch that is begun again takes the same time.

    The cause of a delay is then in the data, as with long texts, and not in the worker. Server
    rules lose the samples of work that they cancel; for rules in rounds see `leftovers`.
    """
    process = as_process(law)
    if process.uses_time or process.costs is not None:
        raise ValueError(
            f"by_sample: durations of {process.name} depend on more than the mini-batch; give a "
            "delay distribution or a trace"
        )

    def costs(seed: int) -> Cost:
        seeded = process.seeded(seed)
        return lambda worker, counter: seeded.duration(worker, 0.0, counter)

    def bind(seed: int) -> Draw:
        return lambda worker, start, count: np.ones(worker.shape)

    name = f"by_sample({process.name})"
    return replace(
        process, name=name, bind=bind, draw=None, costs=costs, in_time=None, records=()
    )


PROCESSES = Registry({
    "persistent": persistent,
    "by_sample": by_sample,
    "spells": spells,
    "markov": markov,
    "trace": "stragglers.traces.files:trace",
    "like": "stragglers.traces.statistics:like",
    "alibaba_job_1": "stragglers.traces.statistics:alibaba_job_1",
    "alibaba_job_2": "stragglers.traces.statistics:alibaba_job_2",
    "alibaba_job_3": "stragglers.traces.statistics:alibaba_job_3",
    "alibaba_job_4": "stragglers.traces.statistics:alibaba_job_4",
    "bytedance_ar": "stragglers.traces.statistics:bytedance_ar",
    "bytedance_se": "stragglers.traces.statistics:bytedance_se",
    "bytedance_st": "stragglers.traces.statistics:bytedance_st",
})

PROCESSES.as_attributes_of(__name__)
