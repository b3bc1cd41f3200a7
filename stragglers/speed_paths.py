"""Workers whose speed changes in time: the paths of their speed, and when some work is done.

A duration is the time that a fixed amount of work takes from its start, at a speed that is constant
between the switches of a path.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Uniforms = Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, count -> [0, 1)
FIRST_SOJOURNS = 64  # of a worker, or fewer where all workers together would have more than
MANY_SOJOURNS = 2**21


@dataclasses.dataclass(frozen=True)
class Path:
    """State paths of P workers: the speed between switches, and the work done until each."""

    switch: np.ndarray  # [P, S + 1] s, from 0
    done: np.ndarray  # [P, S + 1] s of work at full speed
    speed: np.ndarray  # [P, S]

    @functools.cached_property
    def switch_keys(self) -> np.ndarray:
        """(worker, switch) as complex numbers, ordered, [P (S + 1)]."""
        return _keys(self.switch)

    @functools.cached_property
    def done_keys(self) -> np.ndarray:
        """(worker, done) as complex numbers, ordered, [P (S + 1)]."""
        return _keys(self.done)


def _keys(values: np.ndarray) -> np.ndarray:
    return (np.arange(len(values))[:, None] + 1j * values).ravel()


class Paths:
    """Paths between full speed and 1 / factor of it, as long as they are needed.

    uniforms: of (worker, sojourn), 0 for the state in the beginning; the means are in seconds.
    """

    def __init__(self, uniforms: Uniforms, factor: float, mean_normal: float, mean_slow: float):
        self._uniforms, self._factor = uniforms, factor
        self._mean_normal, self._mean_slow = mean_normal, mean_slow
        self._path = self._grown(1, FIRST_SOJOURNS)

    def beyond(self, workers: int, until: float) -> Path:
        """A path of `workers` workers or more, for longer than `until` seconds."""
        known, sojourns = self._path.speed.shape
        if workers > known:
            sojourns = max(1, min(sojourns, MANY_SOJOURNS // workers))
            self._path = self._grown(workers, sojourns)
        while self._path.switch[:, -1].min() <= until:
            sojourns *= 2
            self._path = self._grown(max(workers, known), sojourns)
        return self._path

    def _grown(self, workers: int, sojourns: int) -> Path:
        u = self._uniforms(np.arange(workers)[:, None], np.arange(sojourns + 1))
        slow_first = u[:, :1] < self._mean_slow / (self._mean_normal + self._mean_slow)
        slow = slow_first ^ (np.arange(sojourns) % 2 == 1)
        sojourn = -np.log1p(-u[:, 1:]) * np.where(slow, self._mean_slow, self._mean_normal)
        speed = np.where(slow, 1 / self._factor, 1.0)
        origin = np.zeros((workers, 1))
        switch = np.concatenate([origin, np.cumsum(sojourn, axis=1)], axis=1)
        done = np.concatenate([origin, np.cumsum(sojourn * speed, axis=1)], axis=1)
        return Path(switch, done, speed)


class InTime(NamedTuple):
    """What durations are made of that depend on the start, for loops that put them together."""

    work: Callable[[np.ndarray, np.ndarray], np.ndarray]  # worker, count -> s at full speed
    paths: Paths
    slowest: float  # s that a second of work takes at most
    constant: Callable[[int], np.ndarray] | None = None  # workers -> [P] that multiply durations


def finish(path: Path, worker: np.ndarray, start: np.ndarray, work: np.ndarray) -> np.ndarray:
    """When `work` begun at `start` is done: invert the piecewise linear work done by then."""
    # Complex numbers order lexicographically: one search finds the sojourn of every worker.
    stride = path.switch.shape[1]
    at = path.switch_keys.searchsorted(worker + 1j * start, side="right") - 1 - worker * stride
    total = path.done[worker, at] + path.speed[worker, at] * (start - path.switch[worker, at])
    total = total + work
    to = path.done_keys.searchsorted(worker + 1j * total, side="right") - 1 - worker * stride
    return path.switch[worker, to] + (total - path.done[worker, to]) / path.speed[worker, to]
