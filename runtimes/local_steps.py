"""The local steps of a node, one contribution after the other."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from comms import hashing
from runtimes.meeting import Programs
from stragglers.pair_log import Entry


class Holding(NamedTuple):
    """All that changes of a node, at one moment between its meetings."""

    params: Any
    work: Any  # state of the method's local steps
    exchange: Any  # state of its exchange
    rule: Any  # state of the waiting rule that the node keeps by itself; ()
    counter: np.ndarray  # [] int64, of its next mini-batch
    meetings: np.ndarray  # [] int64


class Brought(NamedTuple):
    """Local steps that are done."""

    contribution: Any
    work: Any
    entry: Entry  # without the count of meetings
    finite: bool


class LocalSteps:
    """Makes the local steps of worker `me`, each as long as its delay says.

    delay: seconds of a mini-batch as a seeded process, or None; sleep: seconds -> nothing; now: the
    clock [s]. The others as in `runtimes.nodes.Node`.
    """

    def __init__(
        self,
        me: int,
        workers: int,
        programs: Programs,
        sampler,
        delay,
        sleep: Callable[[float], None],
        now: Callable[[], float],
    ):
        self._me, self._workers, self._programs, self._sampler = me, workers, programs, sampler
        self._delay, self._sleep, self._now = delay, sleep, now
        self._since: float | None = None

    def make(self, holding: Holding, batches: int) -> Brought:
        """The contribution of the next `batches` mini-batches."""
        counter, start = int(holding.counter), self._now()
        counters = counter + np.arange(self._programs.mini_batches)
        samples = self._workers * counter * self._sampler.batch_size
        self._since = time.monotonic()
        contribution, work = jax.block_until_ready(
            self._programs.contribute(
                holding.params,
                holding.work,
                self._sampler.indices(np.int64(self._me), counters),
                np.int32(batches),
                hashing.words(samples),
                np.int32(self._me),
            )
        )
        finite = bool(self._programs.finite(contribution))
        self._since = None
        if self._delay is not None:
            ends = start
            for count in range(counter, counter + batches):
                ends += float(self._delay.duration(self._me, ends, count))
            self._sleep(ends - self._now())
        entry = Entry(self._me, -1, batches, counter, samples, start, self._now() - start)
        return Brought(contribution, work, entry, finite)

    def computing(self) -> float:
        """Seconds for which the steps under way are being computed; 0 in a delay."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since
