"""S2 Reducer under any load: never worse than sending nothing, and what it sends instead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import row_sparse, s2_reducer
from algorithms.base import AXIS
from comms.messages import Row, collective_bytes, fallback_bytes

SGD = optax.sgd(0.1)
EXACT = s2_reducer(SGD, ratio=0.18)
N, SIZE, WIDTH = 2, 500, 4
TABLE = {"embedding": jnp.zeros((SIZE, WIDTH))}
LOADS = (0.1, 0.5, 0.7, 0.9, 1.5, 3.0)


@pytest.mark.parametrize(
    "reducer",
    [
        row_sparse.sketched(3, lambda n: 50, False, row_sparse.capacities_dense),
        row_sparse.compacted(lambda n: 4),
    ],
)
def test_a_fallback_counts_the_bitmap_of_its_rows_by_hand(reducer):
    """500 rows are 16 words of 4 bytes, and a row of 4 numbers is 16 bytes."""
    ways = reducer.instead(TABLE["embedding"], N)
    sizes = [payload.reduced for way in ways for payload in way]
    assert {agreement for agreement, _ in sizes} == {64}
    assert max(rows for _, rows in sizes) == 500 * 16


def split_over_workers(total, seed):
    """Return contributions [N, ...] with the mean `total`: rows of one worker, or of several."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(N), size=len(total)).T * (total != 0).any(1)
    return np.float32(N * shares[:, :, None] * total[None])


def with_rows(count, seed):
    rng = np.random.default_rng(seed)
    x = np.zeros((SIZE, WIDTH), np.float32)
    x[rng.choice(SIZE, count, replace=False)] = rng.normal(size=(count, WIDTH))
    return x


@functools.lru_cache
def reduced_by(method):
    """Return (contributions, samples) -> (mean that comes out, exchange states), compiled once."""

    @jax.jit
    def run(x, samples):
        states = jax.vmap(lambda _: method.exchange.init(TABLE))(jnp.arange(N))

        def one(x, state):
            given = {"samples": samples, "version": 0}
            return method.exchange.update({"embedding": x}, state, TABLE, **given)

        out, states = jax.vmap(one, axis_name=AXIS)(x, states)
        return out["embedding"][0], states

    return run


def outcome(method, total, seed):
    """Return (relative error, True if it fell back, bytes over a dense all-reduce)."""
    found, states = reduced_by(method)(split_over_workers(total, seed), 8.0 * seed)
    fell = method.fallbacks(states, TABLE, N, Row(0))
    sent = sum(collective_bytes(p, N) for p in method.messages(TABLE, N, Row(0)))
    sent += fallback_bytes(fell, N)
    error = np.linalg.norm(found - total) / np.linalg.norm(total)
    return float(error), bool(fell.updates), sent / (2 * (N - 1) / N * total.nbytes)


DENSE = s2_reducer(SGD, ratio=0.18, fallback="dense")


@pytest.mark.few(1)
@pytest.mark.parametrize(("fallback", "method"), [("exact", EXACT), ("dense", DENSE)])
def test_peeling_is_exact_and_falls_back_only_beyond_its_load(fallback, method):
    for load in LOADS:
        for seed in range(2):
            total = with_rows(int(load * 90), seed)
            error, fell, sent = outcome(method, total, seed)
            assert error <= 1e-4
            assert fell == (load > 0.82)
            bitmap = 1 / (32 * WIDTH) + 0.01
            if not fell:
                assert sent <= 0.18 + bitmap
            elif fallback == "exact":  # room for at most twice the union, or everything
                assert sent <= min(2 * max(load, 1) * 0.18, 1) + bitmap
            else:
                assert 1 < sent <= 1 + bitmap


@pytest.mark.slow
def test_estimates_are_in_the_mean_never_worse_than_nothing():
    """Of the paper's decoder; an update whose estimates would be mostly noise is exact."""
    method = s2_reducer(SGD, ratio=0.18, rows=1, peel=False)
    for load in LOADS:
        found = [outcome(method, with_rows(int(load * 90), seed), seed) for seed in range(8)]
        squares = [error**2 for error, *_ in found]
        assert np.mean(squares) < 0.7
        assert all(fell == (load > 0.51) for _, fell, _ in found)
        assert max(squares) < 1e-8 or load < 0.51
