"""Where the examples of a mesh come from: all of them on every device, or each device its own.

As in `runtimes.inputs`, the program does not notice which. A process reads only what the workers on
its devices take.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from runtimes import feeding, placement, slices
from runtimes.feeding import Feed, Streamed
from runtimes.rounds import Table


class _Input:
    """What both have in common."""

    def __init__(
        self,
        examples: Any,
        sampler,
        devices: jax.sharding.Mesh,
        team: slices.Alone,
        rounds: int,
        most: int,
        draws: bool = False,
    ):
        """examples: of the training set; sampler: `indices(workers, counters)` and `draws`.

        devices, team: of all workers, and of one; rounds, most: of a dispatch, and the
        mini-batches of one; draws: whether examples are augmented.
        """
        self._examples, self._sampler, self._draws = examples, sampler, draws
        self._workers, self.rounds, self._most = devices.shape[AXIS], rounds, most
        self._devices, self._team = devices, team
        self.waited = 0.0  # s for the input of the last `take`

    def _table(self, consumed: np.ndarray, places: Callable[..., Any]) -> Table:
        """The table of a dispatch on the devices; places: of (workers, counters)."""
        counters = consumed[:, None] + np.arange(self.rounds * self._most)
        ids = np.broadcast_to(np.arange(self._workers)[:, None], counters.shape)
        draws = self._sampler.draws(ids, counters) if self._draws else None
        table = Table(places(ids, counters), consumed.astype(np.int32), draws)
        specs = Table(self._team.batches, P(AXIS), self._team.batches)
        return Table(*map(self._place, table, specs))

    def _place(self, tree: Any, spec: P) -> Any:
        return placement.place(tree, NamedSharding(self._devices, spec))


class Whole(_Input):
    """The whole training set on every device, a pytree of arrays [samples, ...]."""

    spec = P()  # of the examples in a program
    _placed = None

    def start(self) -> None:
        """Bring the training set to the devices, unless it is there."""
        if self._placed is None:
            examples = jax.tree.map(np.asarray, self._examples)
            self._placed = self._place(examples, P())

    def take(self, consumed: np.ndarray, used: int | None) -> tuple[Any, Table]:
        """(the examples, the next mini-batches of all workers), as many as a dispatch can take.

        consumed: [workers], the counter of each worker's next mini-batch. used: how many of them
        each worker takes, None where nobody knows before.
        """
        del used
        return self._placed, self._table(consumed, self._sampler.indices)

    def stage(self, after: Any) -> None:
        """Nothing is left to do while the devices work."""
        del after

    def measured(self) -> dict[str, float]:
        """Nothing: nobody waits."""
        return {}

    def close(self) -> None:
        """Nothing is left to end."""


class Read(_Input):
    """On every device what it takes in a dispatch, read while the last one is under way.

    sampler: also `on_host(workers, counters)`, see `runtimes.feeding.Feed`.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.spec = self._team.seen_examples
        self._size = self._sampler.batch_size
        samples = self._most * self._size
        bounded = feeding.most_updates(self._examples.sample_bytes, samples)
        self.rounds = min(self.rounds, bounded)
        self._slots = self.rounds * self._most  # mini-batches of a worker in a dispatch
        me = jax.process_index()
        of_worker = self._devices.devices.reshape(self._workers, -1)
        owners = np.vectorize(lambda device: device.process_index)(of_worker)
        self._here = np.flatnonzero((owners == me).any(1))
        self._feed = Feed(self._examples, self._sampler)
        self._next: np.ndarray | None = None  # what the next dispatch begins with, if known
        self._staged: tuple[np.ndarray, Any] | None = None

    def start(self) -> None:
        """Forget what an earlier run has left on the devices."""
        self._next = self._staged = None

    def take(self, consumed: np.ndarray, used: int | None) -> tuple[Any, Table]:
        """As `Whole.take`; what `stage` has brought to the devices is not read again."""
        before = self._feed.waited
        self._next = None if used is None else consumed + used
        self._feed.ask(self._addresses(consumed))
        self._feed.ask(self._addresses(consumed + self._slots if used is None else self._next))
        if self._staged is None or not np.array_equal(self._staged[0], consumed):
            self._staged = consumed, self._on_devices(consumed)
        (_, examples), self._staged = self._staged, None
        self._feed.drop(consumed if used is None else self._next)
        self.waited = self._feed.waited - before
        return examples, self._table(consumed, self._places)

    def stage(self, after: Any) -> None:
        """Bring the examples of the next dispatch to the devices, where that one is known.

        after: arrays that are there when the devices have ended the dispatch under way.
        """
        if self._next is not None:
            self._staged = (
                self._next,
                self._on_devices(
                    self._next, lambda: not all(leaf.is_ready() for leaf in jax.tree.leaves(after))
                ),
            )

    def measured(self) -> dict[str, float]:
        """Seconds for which the devices of this process had nothing to do because of the input."""
        return {"input_wait_seconds": self._feed.waited}

    def close(self) -> None:
        """End the readers."""
        self._feed.close()

    def _places(self, workers: np.ndarray, counters: np.ndarray) -> np.ndarray:
        """Where a device has its samples of its worker's mini-batches, one after the other."""
        del counters
        part = self._size // self._team.size
        places = np.arange(self._slots * part, dtype=np.int32).reshape(-1, part)
        places = np.tile(places, self._team.size)  # each device counts its own
        return np.broadcast_to(places, (*workers.shape, self._size))

    def _addresses(self, consumed: np.ndarray) -> np.ndarray:
        """The mini-batches of a dispatch for the workers of this process, [n, 2]."""
        counters = consumed[self._here][:, None] + np.arange(self._slots)
        ids = np.broadcast_to(self._here[:, None], counters.shape)
        return np.stack([ids, counters], axis=-1).reshape(-1, 2)

    def _on_devices(
        self, consumed: np.ndarray, computing: Callable[[], bool] = lambda: False
    ) -> Any:
        addresses = self._addresses(consumed)
        table = self._feed.table(addresses, len(addresses), computing)
        workers, devices, slots = len(self._here), self._team.size, self._slots
        sharding = NamedSharding(self._devices, self._team.examples)

        def place(array: np.ndarray) -> jax.Array:
            one = array.shape[1:]
            parts = array.reshape(workers, slots, devices, -1, *one).swapaxes(1, 2)
            own = parts.reshape(workers, slots * self._size, *one)

            def of_device(part: tuple[slice, ...]) -> np.ndarray:
                row = np.searchsorted(self._here, part[0].start or 0)
                return own[row : row + 1, *part[1:]]

            whole = (self._workers, *own.shape[1:])
            return jax.make_array_from_callback(whole, sharding, of_device)

        with self._feed.waiting(computing):
            return jax.block_until_ready(jax.tree.map(place, table))


def of(examples: Any, *others: Any) -> Whole | Read:
    """The input of a mesh on these examples, a pytree of arrays or `feeding.Streamed`."""
    return (Read if isinstance(examples, Streamed) else Whole)(examples, *others)
