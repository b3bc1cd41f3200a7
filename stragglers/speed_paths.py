"""Workers whose speed changes in time: the paths of their speed, and the ends of their work.

The duration of a mini-batch is the time that a fixed amount of work takes from its start. The speed
is constant between the switches of a path.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stragglers.streams import parts

SWITCH, DONE, SPEED = range(3)  # of a sojourn: its begin in s, s of work done by then, speed
Uniforms = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, count -> [0, 1)
FIRST_SOJOURNS = 64  # of a worker, or fewer where all workers would have more than MANY_SOJOURNS
MANY_SOJOURNS = 2**21
MANY_SEARCHES = 2**12  # at once; then bisection takes less time than the writing of keys


@dataclasses.dataclass(frozen=True)
class Path:
    """Speed paths of P workers; the last sojourn begins where a path ends, and is not complete."""

    sojourns: np.ndarray  # [P, S + 1, 3]

    @functools.cached_property
    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """(worker, switch) and (worker, done) as complex numbers, ordered, [P (S + 1)] each."""
        worker = np.arange(len(self.sojourns))[:, None]
        return tuple((worker + 1j * self.sojourns[..., of]).ravel() for of in (SWITCH, DONE))


class Paths:
    """Random paths between full speed and 1 / factor of it, drawn as far as they are needed.

    uniforms: of (worker, number); number 0 gives the first state, n the n-th sojourn. Means in s.
    """

    def __init__(self, uniforms: Uniforms, factor: float, mean_normal: float, mean_slow: float):
        self._uniforms, self._factor = uniforms, factor
        self._mean_normal, self._mean_slow = mean_normal, mean_slow
        self._path = self.grown(1, FIRST_SOJOURNS)

    def beyond(self, workers: int, until: float) -> Path:
        """Return a path of `workers` workers or more, known for longer than `until` seconds."""
        known, ends, _ = self._path.sojourns.shape
        if workers > known:
            sojourns = min(ends - 1, MANY_SOJOURNS // workers)
            self._path = self.grown(workers, max(sojourns, self.enough(workers, until)))
        while self._path.sojourns[:, -1, SWITCH].min() <= until:
            known, ends, _ = self._path.sojourns.shape
            sojourns = max(2 * (ends - 1), self.enough(known, until))
            self._path = self.grown(known, sojourns)
        return self._path

    def enough(self, workers: int, until: float) -> int:
        """Return a number of sojourns that hardly any worker ends by `until` s (Chernoff)."""
        rate = np.geomspace(1e-4, 1e4, 200) / (self._mean_normal + self._mean_slow)
        two = np.log1p(rate * self._mean_normal) + np.log1p(rate * self._mean_slow)
        return math.ceil(2 * np.min((np.log(workers) + rate * until) / two)) + 1

    def grown(self, workers: int, sojourns: int) -> Path:
        """Return a path of these workers with this number of complete sojourns."""
        path = np.empty((workers, sojourns + 1, 3))
        for some in parts(workers, sojourns + 1):
            u = self._uniforms(some, np.arange(sojourns + 1))
            slow_first = u[:, :1] < self._mean_slow / (self._mean_normal + self._mean_slow)
            slow = slow_first ^ (np.arange(sojourns + 1) % 2 == 1)
            mean = np.where(slow[:, :-1], self._mean_slow, self._mean_normal)
            sojourn = -np.log1p(-u[:, 1:]) * mean
            of_some = path[some[0, 0] :][: some.size]
            of_some[..., SPEED] = np.where(slow, 1 / self._factor, 1.0)
            of_some[:, 0, :SPEED] = 0.0
            np.cumsum(sojourn, axis=1, out=of_some[:, 1:, SWITCH])
            np.cumsum(sojourn * of_some[:, :-1, SPEED], axis=1, out=of_some[:, 1:, DONE])
        return Path(path)


class InTime(NamedTuple):
    """Parts of durations that depend on their start; the event loops put the parts together."""

    work: Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, count -> s at full speed
    paths: Paths
    slowest: float  # s, the longest time that a second of work takes
    constant: Callable[[int], np.ndarray] | None = None  # workers -> [P], factors of durations


def finish(path: Path, worker: np.ndarray, start: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Return the end of `work` begun at `start`, by inversion of the piecewise linear work done."""
    known = path.sojourns[worker, _last(path, SWITCH, worker, start)]
    total = known[..., DONE] + known[..., SPEED] * (start - known[..., SWITCH])
    total = total + work
    known = path.sojourns[worker, _last(path, DONE, worker, total)]
    return known[..., SWITCH] + (total - known[..., DONE]) / known[..., SPEED]


def speeds(path: Path, worker: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return workers' speeds at times [s]; `worker` and `at` are broadcast."""
    worker, at = np.broadcast_arrays(worker, at)
    return path.sojourns[worker, _last(path, SWITCH, worker, at), SPEED]


def duration(sojourns: np.ndarray, i: int, start: float, work: float) -> float:
    """Return the seconds of `work` of worker i begun at `start`, as `finish`; to be compiled."""
    x = sojourn(sojourns, i, SWITCH, start)
    total = sojourns[i, x, DONE] + sojourns[i, x, SPEED] * (start - sojourns[i, x, SWITCH]) + work
    y = sojourn(sojourns, i, DONE, total)
    end = sojourns[i, y, SWITCH] + (total - sojourns[i, y, DONE]) / sojourns[i, y, SPEED]
    return end - start


def sojourn(sojourns: np.ndarray, i: int, of: int, value: float) -> int:
    """Return the last n with sojourns[i, n, of] <= value."""
    low, high = 0, sojourns.shape[1]
    while high - low > 1:
        middle = (low + high) // 2
        if sojourns[i, middle, of] <= value:
            low = middle
        else:
            high = middle
    return low


def _last(path: Path, of: int, worker: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return every worker's last sojourn whose switch, or work done by then, is at most `value`."""
    stride = path.sojourns.shape[1]
    if worker.size < MANY_SEARCHES:
        # Complex numbers order lexicographically: one search finds the sojourn of every worker.
        at = path.keys[of].searchsorted(worker + 1j * value, side="right")
        return at - 1 - worker * stride
    found, bounds = np.zeros(worker.shape, np.int64), path.sojourns[..., of]
    for power in reversed(range((stride - 1).bit_length())):
        beyond = np.minimum(found + 2**power, stride - 1)
        found = np.where(bounds[worker, beyond] <= value, beyond, found)
    return found
