"""Robust means against NumPy, and training with one worker of eight that sends nonsense."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import centred_clipping, coordinate_median, krum, trimmed_mean
from algorithms.base import AXIS

N, D = 8, 5
RNG = np.random.default_rng(0)
SENT = RNG.standard_normal((N, D)).astype(np.float32)
SENT[2] = (1e6, -np.inf, np.nan, -1e6, 3.0)  # the faulty one
BUSY = np.array([1, 1, 1, 0, 1, 1, 1, 1], np.int32)  # worker 3 finished nothing


def aggregated(method, sent, busy=BUSY):
    """Return what every worker gets [D] of a tree of two leaves."""

    def one(x, count):
        tree = {"a": x[:2], "b": x[2:].reshape(3, 1)}
        state = method.exchange.init(tree)
        found, _ = method.exchange.update(tree, state, weight=method.weight(count), batches=count)
        return jnp.concatenate([found["a"], found["b"].ravel()])

    sent = np.where(busy[:, None] > 0, sent, 0)
    found = np.asarray(jax.jit(jax.vmap(one, axis_name=AXIS))(sent, busy))
    assert (found == found[:1]).all()
    return found[0]


def test_without_weights_all_count():
    """As in rounds of a mesh that nobody watches."""
    method = coordinate_median(optax.sgd(1.0))

    def one(x):
        return method.exchange.update(x, method.exchange.init(x), batches=1)[0]

    found = jax.jit(jax.vmap(one, axis_name=AXIS))(SENT)
    expected = aggregated(method, SENT, np.ones(N, np.int32))
    np.testing.assert_array_equal(found, np.tile(expected, (N, 1)))


def counted(busy=BUSY):
    """Return the contributions that count, infinity in place of what is no number."""
    return np.where(np.isnan(SENT), np.inf, SENT)[busy > 0]


@pytest.mark.parametrize("busy", [BUSY, np.ones(N, np.int32)], ids=["seven", "eight"])
def test_medians_and_trimmed_means(busy):
    found = aggregated(coordinate_median(optax.sgd(1.0)), SENT, busy)
    np.testing.assert_allclose(found, np.median(counted(busy), axis=0), rtol=1e-6)
    for trim in (1, 2):
        found = aggregated(trimmed_mean(optax.sgd(1.0), trim=trim), SENT, busy)
        expected = np.sort(counted(busy), axis=0)[trim:-trim].mean(0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("keep", [1, 3])
def test_krum_keeps_those_with_the_nearest_neighbours(keep):
    honest = counted().astype(float)
    scores = []
    for i, x in enumerate(honest):
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            apart = [((x - y) ** 2).sum() for j, y in enumerate(honest) if j != i]
        scores.append(np.sort(np.nan_to_num(apart, nan=np.inf))[: len(honest) - 1 - 2].sum())
    expected = honest[np.argsort(scores)[:keep]].mean(0)
    np.testing.assert_allclose(
        aggregated(krum(optax.sgd(1.0), keep=keep), SENT), expected, rtol=1e-6
    )


def test_krum_and_the_median_of_a_single_worker_are_its_contribution():
    alone = np.eye(N, dtype=np.int32)[5]
    for method in (krum(optax.sgd(1.0)), coordinate_median(optax.sgd(1.0))):
        np.testing.assert_allclose(aggregated(method, SENT, alone), SENT[5], rtol=1e-6)


def test_where_nobody_finished_anything_there_is_nothing():
    nobody = np.zeros(N, np.int32)
    for method in (coordinate_median, trimmed_mean, krum):
        assert not aggregated(method(optax.sgd(1.0)), SENT, nobody).any()


def test_nobody_pulls_the_centre_farther_than_the_radius():
    """Two iterations; what is not finite does not pull at all, but counts as one of the workers."""
    sent = SENT.copy()
    sent[6] *= 1e4
    centre = np.zeros(D)
    for _ in range(2):
        pulls = [sent[i] - centre for i in np.flatnonzero(BUSY) if np.isfinite(sent[i]).all()]
        scaled = [pull * min(1, 2.0 / np.linalg.norm(pull)) for pull in pulls]
        centre = centre + np.sum(scaled, axis=0) / BUSY.sum()
    method = centred_clipping(optax.sgd(1.0), radius=2.0, iterations=2)
    np.testing.assert_allclose(aggregated(method, sent), centre, rtol=1e-5)
