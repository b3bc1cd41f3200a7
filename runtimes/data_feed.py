"""Input from a training set that does not fit into memory: mini-batches are read ahead.

A mini-batch has an address, (worker, counter), and the counters of a worker only grow. The next
mini-batches of a dispatch's workers are therefore read while the devices work on the dispatch,
under any waiting rule. Mini-batches that are not needed are dropped, and unforeseen ones are read
on request. Loaders such as Grain's need the order of all reads in advance, but the order of
deliveries is not known then.
"""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from runtimes import phases

TABLE_BYTES = 1 << 26  # bound on the examples of a dispatch of several updates: 64 MiB
LOOK = 1e-3  # s between two looks at devices that work while a mini-batch is read


class Source(Protocol):
    """Training set with random access to its examples."""

    example: Any  # pytree of `jax.ShapeDtypeStruct`: one example without an axis of samples

    def __len__(self) -> int:
        """Return the number of examples."""

    def read(self, indices: np.ndarray) -> Any:
        """Return the examples at `indices` [n], arrays [n, ...]; readers call it concurrently."""


class Readers(NamedTuple):
    """Numbers of readers: threads of this process, or processes that get a pickled source."""

    threads: int = 4
    processes: int = 0  # 0: threads read


DEFAULT = Readers()


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Training set that is not in memory: a runtime reads the examples of each dispatch."""

    source: Source
    readers: Readers = DEFAULT

    def __len__(self) -> int:
        return len(self.source)

    @property
    def sample_bytes(self) -> int:
        """Bytes of one example."""
        leaves = jax.tree.leaves(self.source.example)
        return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


class Unreadable(ValueError):
    """Error for examples that a run needs and cannot read."""


class Feed:
    """Reader of the mini-batches of one run, ahead of their use; `close` ends its readers."""

    def __init__(self, streamed: Streamed, sampler):
        """Take a sampler whose `on_host(workers, counters)` returns indices as a NumPy array."""
        self._streamed, self._sampler = streamed, sampler
        self._pool: Executor | None = None
        self._asked: dict[tuple[int, int], Future] = {}
        self.waited = 0.0  # s in which the devices waited for the input

    def ask(self, addresses: np.ndarray) -> None:
        """Request these mini-batches from the readers, [n, 2] int64 of (worker, counter).

        Raises Unreadable if a reader process has ended.
        """
        new = [a for a in map(tuple, addresses.tolist()) if a not in self._asked]
        if not new:
            return
        if self._pool is None:
            self._pool = _pool(self._streamed)
        workers, counters = np.array(new).T
        read = _read if self._streamed.readers.processes else self._streamed.source.read
        try:
            for address, indices in zip(new, self._sampler.on_host(workers, counters), strict=True):
                self._asked[address] = self._pool.submit(read, indices)
        except BrokenProcessPool as error:
            raise self._without_a_reader() from error

    def table(
        self,
        addresses: np.ndarray,
        slots: int,
        computing: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Return the examples of these mini-batches, [slots * batch_size, ...], padded with zeros.

        addresses: as for `ask`, distinct, at most `slots`. computing: returns True while devices
        work; reading time does not count as waiting then.
        Raises Unreadable.
        """
        with self.waiting(computing):
            self.ask(addresses)
        size = self._sampler.batch_size
        table = jax.tree.map(
            lambda one: np.zeros((slots * size, *one.shape), one.dtype),
            self._streamed.source.example,
        )
        for slot, address in enumerate(map(tuple, addresses.tolist())):
            examples = self._result(address, computing)
            with self.waiting(computing):
                place = slice(slot * size, (slot + 1) * size)
                for a, read in zip(*map(jax.tree.leaves, (table, examples)), strict=True):
                    a[place] = read
        return table

    def drop(self, needed: np.ndarray) -> None:
        """Forget mini-batches whose counters lie below their worker's entry in `needed`."""
        for address in [a for a in self._asked if a[1] < needed[a[0]]]:
            self._asked.pop(address).cancel()

    @contextlib.contextmanager
    def waiting(self, computing: Callable[[], bool]) -> Iterator[None]:
        """Count the block's seconds as waiting, unless devices are computing as it begins."""
        idle, began = not computing(), time.monotonic()
        yield
        if idle:
            self.waited += time.monotonic() - began

    def settle(self) -> None:
        """Wait until all requested mini-batches have been read."""
        with phases.within(phases.INPUT):
            concurrent.futures.wait(self._asked.values())

    def close(self) -> None:
        """End the readers; the next request starts new ones."""
        self._asked.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _result(self, address: tuple[int, int], computing: Callable[[], bool]) -> Any:
        asked = self._asked[address]
        try:
            with phases.within(phases.INPUT):
                while computing() and not asked.done():  # the devices may end before the reader
                    concurrent.futures.wait([asked], LOOK)
                with self.waiting(computing):
                    return asked.result()
        except BrokenProcessPool as error:
            raise self._without_a_reader() from error
        except Exception as error:  # a source is foreign code, which can raise any exception
            self.close()
            worker, counter = address
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise Unreadable(
                f"input: mini-batch {counter} of worker {worker} cannot be read ({reason}); mend "
                "the source, and the same command goes on from the last checkpoint"
            ) from error

    def _without_a_reader(self) -> Unreadable:
        self.close()
        return Unreadable(
            "input: a process that reads examples has ended, killed or out of memory; repeat "
            "the command, which goes on from the last checkpoint, or let threads read"
        )


class Input:
    """Input side of a runtime: it brings examples to the devices, read ahead if it has a feed."""

    _feed: Feed | None = None  # None: the training set is in memory, without any waiting

    def settle(self) -> None:
        """Wait until all reading ahead has ended, so that a measurement can end."""
        if self._feed is not None:
            self._feed.settle()

    def measured(self) -> dict[str, float]:
        """Return the seconds in which the devices waited for a feed; {} without a feed."""
        return {} if self._feed is None else {"input_wait_seconds": self._feed.waited}

    def close(self) -> None:
        """End the readers."""
        if self._feed is not None:
            self._feed.close()


def unique_addresses(workers: np.ndarray, counters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct addresses, [n, 2] int64, and each given address's index among them."""
    both = np.stack(np.broadcast_arrays(workers, counters), axis=-1).astype(np.int64)
    unique, place = np.unique(both.reshape(-1, 2), axis=0, return_inverse=True)
    return unique, place.reshape(both.shape[:-1])


def following(addresses: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return as many next mini-batches of each worker as there are in `addresses`.

    needed: [workers] int64, the lowest counter that each worker can still need.
    """
    workers, counts = np.unique(addresses[:, 0], return_counts=True)
    counters = [needed[w] + np.arange(count) for w, count in zip(workers, counts, strict=True)]
    return np.stack([np.repeat(workers, counts), np.concatenate(counters)], axis=1)


def most_updates(sample_bytes: int, samples: int) -> int:
    """Return the most updates in a dispatch, a power of two; samples: of one update."""
    most = TABLE_BYTES // max(1, sample_bytes * samples)
    return 1 << max(0, most.bit_length() - 1)


_OF_PROCESS: list[Source] = []  # the source of a reader process


def _pool(streamed: Streamed) -> Executor:
    readers = streamed.readers
    if not readers.processes:
        return ThreadPoolExecutor(readers.threads, thread_name_prefix="reader")
    return ProcessPoolExecutor(
        readers.processes,
        mp_context=multiprocessing.get_context("spawn"),  # a fork would copy JAX's locks
        initializer=_open,
        initargs=(streamed.source,),
    )


def _open(source: Source) -> None:
    """Store the source of this reader process, which ends when its parent process ends."""
    _OF_PROCESS[:] = [source]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the parent, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGKILL)


def _read(indices: np.ndarray) -> Any:
    return _OF_PROCESS[0].read(indices)
