"""Robust means against NumPy, and training with one worker of eight that sends nonsense."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, centred_clipping, coordinate_median, krum, trimmed_mean
from algorithms.base import AXIS
from stragglers import delays
from tests.algorithms import quadratics
from tests.algorithms.quadratics import distance, in_step

N, D = 8, 5
RNG = np.random.default_rng(0)
SENT = RNG.standard_normal((N, D)).astype(np.float32)
SENT[2] = (1e6, -np.inf, np.nan, -1e6, 3.0)  # the faulty one
BUSY = np.array([1, 1, 1, 0, 1, 1, 1, 1], np.int32)  # worker 3 finished nothing


def aggregated(method, sent, busy=BUSY):
    """[D] what every worker gets, as a tree of two leaves."""

    def one(x, count):
        tree = {"a": x[:2], "b": x[2:].reshape(3, 1)}
        state = method.exchange.init(tree)
        found, _ = method.exchange.update(tree, state, weight=method.weight(count), batches=count)
        return jnp.concatenate([found["a"], found["b"].ravel()])

    sent = np.where(busy[:, None] > 0, sent, 0)
    found = np.asarray(jax.vmap(one, axis_name=AXIS)(jnp.asarray(sent), jnp.asarray(busy)))
    assert (found == found[:1]).all()
    return found[0]


def test_without_weights_all_count():
    """As in rounds of a mesh that nobody watches."""
    method = coordinate_median(optax.sgd(1.0))

    def one(x):
        return method.exchange.update(x, method.exchange.init(x), batches=1)[0]

    found = jax.vmap(one, axis_name=AXIS)(jnp.asarray(SENT))
    expected = aggregated(method, SENT, np.ones(N, np.int32))
    np.testing.assert_array_equal(found, np.tile(expected, (N, 1)))


def counted(busy=BUSY):
    """The contributions that count, the largest in place of what is no number."""
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


METHODS = {
    "median": lambda: coordinate_median(optax.sgd(0.1)),
    "trimmed": lambda: trimmed_mean(optax.sgd(0.1)),
    "krum": lambda: krum(optax.sgd(0.1)),
    "multi_krum": lambda: krum(optax.sgd(0.1), keep=4),
    "clipping": lambda: centred_clipping(optax.sgd(0.1), radius=0.5),
    "mean": lambda: all_reduce(optax.sgd(0.1)),
}
TARGET = np.arange(1.0, 1 + D, dtype=np.float32)


def opposite(gradient, key):
    return -10 * gradient


def noise(gradient, key):
    return 100 * jax.random.normal(key, gradient.shape)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "fault"), zip(METHODS, [opposite, noise] * 3, strict=True))
def test_one_worker_of_eight_sends_nonsense(name, fault):
    """Gradients x - TARGET with noise .1 of seven workers; the mean gets nowhere near."""
    method = METHODS[name]()

    def whole(me):
        x = jnp.zeros(D)
        carry = x, method.exchange.init(x), method.server.init(x)

        def update(carry, t):
            x, state, server = carry
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), t), me)
            gradient = x - TARGET + 0.1 * jax.random.normal(key, (D,))
            sent = jnp.where(me == 3, fault(gradient, key), gradient)
            found, state = method.exchange.update(sent, state, x, weight=jnp.float32(1))
            moved, server = method.server.update(found, server, x, batches=N)
            return (optax.apply_updates(x, moved), state, server), None

        return jax.lax.scan(update, carry, jnp.arange(300))[0][0]

    found = np.asarray(jax.jit(jax.vmap(whole, axis_name=AXIS))(jnp.arange(N)))
    off = np.abs(found - TARGET).max()
    if name == "mean":
        assert not off < 1
    else:
        assert off < 0.1


@pytest.mark.slow
def test_on_uneven_data_honest_workers_are_mistaken_for_faulty_ones():
    """No fault at all: the median and Krum rest beside the optimum, which the mean reaches."""
    assert distance(in_step(all_reduce(optax.sgd(0.1)), 300)) < 1e-5
    assert distance(in_step(coordinate_median(optax.sgd(0.1)), 300)) > 0.05
    assert distance(in_step(krum(optax.sgd(0.1)), 300)) > 0.05


def test_bad_parameters_are_refused():
    sgd = optax.sgd(0.1)
    for make, words in (
        (lambda: trimmed_mean(sgd, trim=-1), "trimmed_mean: needs trim >= 0 workers, got -1"),
        (lambda: krum(sgd, keep=0), "krum: needs faulty >= 0 and keep >= 1 workers, got 1 and 0"),
        (lambda: centred_clipping(sgd, radius=0.0), "centred_clipping: needs radius > 0 and"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(
        ValueError, match="all workers keep the same centre, but an update may have only 2 of 8"
    ):
        method = centred_clipping(sgd, radius=1.0)
        quadratics.simulated(method, "k_async", delays.exponential(1.0), 4, k=2)
