"""Where the examples of a simulated dispatch come from: all of them on the device, or as needed.

A compiled program takes examples and, for every sample of every mini-batch, its place among them.
It does not notice whether these are the whole training set or what a dispatch needs of it.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from runtimes import feeding
from runtimes.feeding import Feed, Streamed
from runtimes.planning import INDICES_PER_DISPATCH, Addresses


class Whole:
    """The whole training set on the devices."""

    alike = True  # the same examples in every dispatch, and for runs that differ in their seeds

    def __init__(self, examples: Any, sampler):
        """examples: a pytree of arrays [samples, ...]; sampler: `indices(workers, counters)`."""
        self._examples, self._sampler, self._placed = examples, sampler, None

    def most(self, samples: int) -> int:
        """How many updates a dispatch may have, from the samples of one."""
        return max(1, INDICES_PER_DISPATCH // samples)

    def start(self, place: Callable[[Any], Any]) -> None:
        """Bring the training set to where `place` brings arrays, unless it is there."""
        if self._placed is None:
            self._placed = place(self._examples)

    def take(self, addresses: Addresses, after: Any) -> tuple[Any, jax.Array]:
        """(examples, the places among them of the samples that `addresses` name)."""
        del after
        return self._placed, self._sampler.indices(addresses.worker[..., None], addresses.counter)

    def settle(self) -> None:
        """Nothing is read ahead."""

    def measured(self) -> dict[str, float]:
        """Nothing: nobody waits."""
        return {}

    def close(self) -> None:
        """Nothing is left to end."""


class Read:
    """What a dispatch needs, read from a source while the devices work on the dispatch before."""

    alike = False

    def __init__(self, examples: Streamed, sampler):
        """sampler: `on_host(workers, counters)`, see `runtimes.feeding.Feed`."""
        self._streamed, self._batch_size = examples, sampler.batch_size
        self._feed = Feed(examples, sampler)

    def most(self, samples: int) -> int:
        """How many updates a dispatch may have, from the samples of one."""
        return feeding.most_updates(self._streamed.sample_bytes, samples)

    def start(self, place: Callable[[Any], Any]) -> None:
        """Remember where `place` brings arrays."""
        self._place = place

    def take(self, addresses: Addresses, after: Any) -> tuple[Any, np.ndarray]:
        """As `Whole.take`; returns when the arrays of `after` are there, or one table waits."""

        def computing() -> bool:
            return not all(leaf.is_ready() for leaf in jax.tree.leaves(after))

        done = addresses.schedule
        real = addresses.counter[: done.updates]
        workers = addresses.worker[: done.updates, :, None]
        taken, places = feeding.unique_addresses(workers, real)
        self._feed.ask(taken)
        needed = np.zeros(addresses.workers + 1, np.int64)  # the last stands for nobody
        np.maximum.at(needed, done.workers, done.first + done.batches)
        self._feed.ask(feeding.following(taken, needed))
        table = self._feed.table(taken, addresses.counter.size, computing)
        self._feed.drop(needed)
        with self._feed.waiting(computing):
            table = jax.block_until_ready(self._place(table))
        jax.block_until_ready(after)  # so that no more than two tables are on the devices
        slot = np.zeros(addresses.counter.shape, np.int32)
        slot[: done.updates] = places
        return table, slot[..., None] * self._batch_size + np.arange(self._batch_size, dtype="i4")

    def settle(self) -> None:
        """Wait until what is read ahead has been read, so that a measurement can end."""
        self._feed.settle()

    def measured(self) -> dict[str, float]:
        """Seconds for which the devices had nothing to do because of the input."""
        return {"input_wait_seconds": self._feed.waited}

    def close(self) -> None:
        """End the readers."""
        self._feed.close()


def of(examples: Any, sampler) -> Whole | Read:
    """The input of a run on these examples, a pytree of arrays or `feeding.Streamed`."""
    return (Read if isinstance(examples, Streamed) else Whole)(examples, sampler)
