"""Samplers of mini-batches, which compute indices from (worker, counter) and keep no position.

In every epoch a worker visits its shard in a new random order. The order is not stored: a bijection
of 0 .. n-1 is evaluated where it is needed. The bijection is an alternating Feistel network over
Z_a x Z_b with a b >= n, repeated until its value is below n (J. Black, P. Rogaway, *Ciphers with
Arbitrary Finite Domains*, CT-RSA 2002).
"""

import contextlib
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from comms.hashing import lowbias32

ROUNDS = 6  # of the Feistel network, which change its two coordinates in turn


class Sampler:
    """Sampler in which (seed, i, c) determines the samples of worker i's c-th mini-batch.

    There is no gap between epochs: a mini-batch may end one epoch and begin the next.

    shards: every worker's indices into the training set, at least one each.
    """

    def __init__(self, shards: Sequence[np.ndarray], batch_size: int, seed: int):
        if batch_size < 1:
            raise ValueError(f"Sampler: batch_size must be at least 1, got {batch_size}; raise it")
        empty = [worker for worker, shard in enumerate(shards) if not len(shard)]
        if empty:
            raise ValueError(
                f"Sampler: workers {empty} have no samples; use fewer workers or another split"
            )
        self.batch_size = batch_size
        self.sizes = np.array([len(shard) for shard in shards], np.int64)
        self._shards = [np.asarray(shard, np.int32) for shard in shards]
        self._seed = seed & 0xFFFFFFFF

    @functools.cached_property
    def _data(self):
        # Data, not constants, so that runs with other seeds and splits share a program.
        starts = np.cumsum([0, *self.sizes[:-1]])
        flat = np.concatenate(self._shards)
        return jax.device_put(
            (np.uint32(self._seed), self.sizes.astype(np.uint32), starts.astype(np.uint32), flat)
        )

    def indices(self, workers, counters) -> jax.Array:
        """Return indices [..., batch_size] int32 of mini-batches counters[...] of workers[...].

        workers, counters: integer arrays that broadcast; counters start at 0.
        """
        workers, counters = np.broadcast_arrays(workers, np.asarray(counters, np.int64))
        # In 64 bits here, since the device has 32: a long run passes 2^31 samples.
        epoch, offset = np.divmod(counters * self.batch_size, self.sizes[workers])
        address = workers.astype(np.int32), epoch.astype(np.uint32), offset.astype(np.uint32)
        return _look_up(self._data, *address, self.batch_size)

    def draws(self, workers, counters) -> jax.Array:
        """Return a random number for every sample of `indices`, [..., batch_size] uint32."""
        workers, counters = np.broadcast_arrays(workers, np.asarray(counters, np.int64))
        far, near = np.divmod(counters, 2**32)
        words = (part.astype(np.uint32) for part in (workers, far, near))
        return _drawn(np.uint32(self._seed), *words, self.batch_size)

    def on_host(self, workers: np.ndarray, counters: np.ndarray) -> np.ndarray:
        """Return `indices` [n, batch_size] for arguments [n] in NumPy, computed on the CPU."""
        count = len(workers)
        missing = (1 << (count - 1).bit_length()) - count  # few shapes to compile
        with jax.default_device(_processor()):
            indices = self.indices(np.pad(workers, (0, missing)), np.pad(counters, (0, missing)))
            return np.asarray(indices)[:count]


class Balanced:
    """Sampler that redistributes the samples of a round, so that all workers get similar cost.

    Samples are dealt to the workers by falling cost, in alternating direction. Every worker deals
    its samples to its mini-batches in the same way. Each round rotates mini-batches by one place.
    Samples are taken as often as before, but by any worker: a split by label is lost.

    cost: [samples] relative times; workers: their number; mini_batches: per worker and round.
    """

    def __init__(self, sampler: Sampler, cost: np.ndarray, workers: int, mini_batches: int):
        self._sampler, self._cost = sampler, np.asarray(cost, np.float64)
        self._workers, self._mini_batches = workers, mini_batches
        self.batch_size, self.sizes = sampler.batch_size, sampler.sizes
        self.draws = sampler.draws

    def indices(self, workers, counters) -> jax.Array:
        """Return [..., batch_size] int32 indices, as `Sampler.indices` does."""
        return jnp.asarray(self.on_host(workers, counters))

    def on_host(self, workers: np.ndarray, counters: np.ndarray) -> np.ndarray:
        """Return `indices` as a NumPy array."""
        workers, counters = np.broadcast_arrays(workers, np.asarray(counters, np.int64))
        rounds, at = np.unique(counters // self._mini_batches, return_inverse=True)
        step = (counters + counters // self._mini_batches) % self._mini_batches
        return self._dealt(rounds)[at.reshape(workers.shape), workers, step]

    def _dealt(self, rounds: np.ndarray) -> np.ndarray:
        """Return the samples of these rounds, [rounds, workers, mini-batches, batch_size]."""
        addresses = np.meshgrid(np.arange(self._workers), np.arange(self._mini_batches))
        workers, steps = (np.tile(address.ravel(), len(rounds)) for address in addresses)
        counters = np.repeat(rounds, workers.size // len(rounds)) * self._mini_batches + steps
        own = self._sampler.on_host(workers, counters).reshape(len(rounds), -1)
        order = np.argsort(-self._cost[own], axis=1, kind="stable")
        of_workers = _in_turn(np.take_along_axis(own, order, axis=1), self._workers)
        return _in_turn(of_workers, self._mini_batches)


def _in_turn(dealt: np.ndarray, hands: int) -> np.ndarray:
    """Deal the last axis in alternating direction: [..., n] -> [..., hands, n / hands]."""
    laps = dealt.reshape(*dealt.shape[:-1], -1, hands).copy()
    laps[..., 1::2, :] = laps[..., 1::2, ::-1]
    return laps.swapaxes(-1, -2)


def costs_of(sampler: Sampler, cost: np.ndarray, packing: str) -> tuple[Callable, float]:
    """Return (costs, least time of a sample); `costs(worker, counter)` is a mini-batch's time.

    Times are relative to the mean over all samples. cost: [samples], relative time of each.
    packing: "packed": the mean of the samples' times; "padded": the time of the longest sample.
    """
    cost = np.asarray(cost, np.float64)
    cost, of_batch = cost / cost.mean(), np.max if packing == "padded" else np.mean

    def costs(worker: np.ndarray, counter: np.ndarray) -> np.ndarray:
        indices = sampler.on_host(np.ravel(worker), np.ravel(counter))
        return of_batch(cost[indices], axis=-1).reshape(np.shape(worker))

    return costs, float(cost.min())


def _processor() -> jax.Device | None:
    """Return the CPU as a device of JAX; None where JAX has been started without it."""
    with contextlib.suppress(RuntimeError):
        return jax.local_devices(backend="cpu")[0]
    return None


@functools.partial(jax.jit, static_argnums=4)
def _look_up(data, worker, epoch, offset, batch_size: int):
    seed, sizes, starts, flat = data
    size = sizes[worker][..., None]
    shape = (*worker.shape, batch_size)
    position = offset[..., None] + jax.lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1)
    laps = position // size
    # Hashed one after the other, or worker 1 in epoch 2 would have worker 2's order of epoch 1.
    key = lowbias32(lowbias32(seed) + worker.astype(jnp.uint32))[..., None]
    key = lowbias32(key + epoch[..., None] + laps)
    place = permute(position - laps * size, jnp.broadcast_to(size, shape), key)
    return flat[starts[worker][..., None] + place]


@functools.partial(jax.jit, static_argnums=4)
def _drawn(seed, worker, far, near, batch_size: int):
    key = lowbias32(seed ^ np.uint32(0x61C88647))  # another chain of hashes than in `_look_up`
    for word in (worker, far, near):
        key = lowbias32(key + word)
    place = jax.lax.broadcasted_iota(jnp.uint32, (*worker.shape, batch_size), worker.ndim)
    return lowbias32(key[..., None] + place)


def permute(index, size, key) -> jax.Array:
    """Return the place of `index` in the random order `key` of 0 .. size-1; uint32 arrays.

    For every (size, key) this is a bijection of `index`; size is at least 1.
    """
    rows = jnp.ceil(jnp.sqrt(size.astype(jnp.float32))).astype(jnp.uint32)
    columns = (size + rows - 1) // rows

    def step(place):
        return jnp.where(place < size, place, _feistel(place, rows, columns, key))

    return jax.lax.while_loop(
        lambda place: jnp.any(place >= size), step, _feistel(index, rows, columns, key)
    )


def _feistel(x, rows, columns, key):
    left = x // columns
    right = x - left * columns
    for number in range(1, ROUNDS, 2):
        left = _add(left, right, key, number, rows)
        right = _add(right, left, key, number + 1, columns)
    return left * columns + right


def _add(moved, fixed, key, number, modulus):
    """Return moved + hash(fixed, key, number) mod `modulus` (at most 2^16), without a division."""
    key = key + np.uint32(number * 0x9E3779B9 & 0xFFFFFFFF)
    step = moved + ((lowbias32(fixed ^ key) >> 16) * modulus >> 16)
    return jnp.where(step >= modulus, step - modulus, step)
