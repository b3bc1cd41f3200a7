"""Addressed sampling: bijections, epochs, and independence of everything but the address."""

import jax
import numpy as np

from experiments.tasks import sampling

SHARDS = [np.arange(7), np.arange(10, 13), np.array([20])]


def test_every_epoch_uses_each_sample_once():
    sampler = sampling.Sampler(SHARDS, batch_size=2, seed=0)
    for worker, shard in enumerate(SHARDS):
        epochs = np.asarray(sampler.indices(worker, np.arange(105))).reshape(-1, len(shard))
        np.testing.assert_array_equal(np.sort(epochs, 1), np.tile(shard, (len(epochs), 1)))
        assert len({*map(tuple, epochs.tolist())}) >= min(len(shard), 6)


def test_indices_depend_on_the_address_only():
    workers, counters = np.meshgrid(np.arange(3), np.arange(15), indexing="ij")
    sampler = sampling.Sampler(SHARDS, batch_size=4, seed=0)
    together = sampler.indices(workers, counters)
    assert together.shape == (3, 15, 4) and together.dtype == np.int32
    order = np.random.default_rng(0).permutation(45)
    fresh = sampling.Sampler(SHARDS, batch_size=4, seed=0)
    for i in order:
        worker, counter = workers.flat[i], counters.flat[i]
        np.testing.assert_array_equal(fresh.indices(worker, counter), together[worker, counter])
    other = sampling.Sampler(SHARDS, batch_size=4, seed=1)
    assert not np.array_equal(other.indices(workers, counters), together)
    drawn = np.asarray(sampler.draws(workers, counters))
    assert drawn.shape == (3, 15, 4) and len(np.unique(drawn)) == drawn.size
    np.testing.assert_array_equal(fresh.draws(2, 7), drawn[2, 7])
    assert not np.isin(other.draws(workers, counters), drawn).any()
    assert not np.array_equal(sampler.draws(0, 2**32), drawn[0, 0])


def test_costs_of_mini_batches():
    """The mean over all samples is 1; padded samples all take as long as the longest."""
    cost = np.arange(1.0, 22.0)
    sampler = sampling.Sampler(SHARDS, batch_size=3, seed=0)
    workers, counters = np.arange(3)[:, None], np.arange(5)
    own = cost[np.asarray(sampler.indices(workers, counters))] / 11.0
    for packing, expected in (("packed", own.mean(-1)), ("padded", own.max(-1))):
        costs, least = sampling.costs_of(sampler, cost, packing)
        np.testing.assert_allclose(costs(*np.broadcast_arrays(workers, counters)), expected)
        assert least == 1 / 11


def test_a_balanced_round_has_the_samples_of_all_and_equal_work():
    P, M, B = 4, 6, 2
    cost = np.random.default_rng(3).lognormal(0.0, 0.5, 960)
    plain = sampling.Sampler(np.split(np.arange(960), P), B, seed=5)
    balanced = sampling.Balanced(plain, cost, P, M)
    address = np.arange(P)[:, None], np.arange(20 * M)
    ours, before = (np.asarray(one.indices(*address)) for one in (balanced, plain))
    rounds = [taken.reshape(P, 20, M * B).swapaxes(0, 1) for taken in (ours, before)]
    for dealt, own in zip(*rounds, strict=True):
        np.testing.assert_array_equal(np.sort(dealt, axis=None), np.sort(own, axis=None))
    work = [cost[taken].sum(-1) for taken in rounds]
    assert np.ptp(work[0], axis=1).mean() < 0.3 * np.ptp(work[1], axis=1).mean()
    places = cost[ours].reshape(P, 20, M, B).sum(-1).mean((0, 1))
    assert np.ptp(places) < 0.3 * places.mean()  # no place of a round has the long ones
    np.testing.assert_array_equal(balanced.indices(2, 7), ours[2, 7])
    np.testing.assert_array_equal(balanced.on_host(np.array([3]), np.array([11])), ours[3, 11:12])


def test_every_key_gives_a_bijection():
    cases = [(n, key) for n in (1, 2, 3, 5, 16, 17, 97, 1437) for key in (0, 2**32 - 1)]
    counts = [n for n, _ in cases]
    index = np.concatenate([np.arange(n, dtype=np.uint32) for n in counts])
    sizes, keys = (np.repeat(column, counts) for column in np.array(cases, np.uint32).T)
    shuffled = np.asarray(jax.jit(sampling.permute)(index, sizes, keys))
    ends = np.cumsum(counts)
    for (n, _), order in zip(cases, np.split(shuffled, ends[:-1]), strict=True):
        np.testing.assert_array_equal(np.sort(order), np.arange(n))


def test_orders_are_uniform():
    """Chi-squared per degree of freedom of each element's place, and of neighbouring pairs."""
    size, epochs = 22, 20_000
    keys = np.random.default_rng(0).integers(0, 2**32, epochs, dtype=np.uint32)
    index = np.tile(np.arange(size, dtype=np.uint32), epochs)
    sizes = np.full_like(index, size)
    orders = np.asarray(jax.jit(sampling.permute)(index, sizes, np.repeat(keys, size)))
    orders = orders.reshape(epochs, size).astype(np.int64)
    expected = epochs / size
    places = np.array([np.bincount(orders[:, j], minlength=size) for j in range(size)])
    assert ((places - expected) ** 2 / expected).sum() / (size - 1) ** 2 < 1.1
    pairs = np.bincount(orders[:, 0] * size + orders[:, 1], minlength=size**2)
    pairs = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
    expected = epochs / pairs.size
    assert ((pairs - expected) ** 2 / expected).sum() / (pairs.size - 1) < 1.4
