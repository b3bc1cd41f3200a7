"""Means and sums over the workers: by NumPy and by hand, and the messages of their programs."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import collectives
from comms.buckets import bucketed_weighted_mean, buffers
from comms.cost import payload_bytes, ring_all_reduce_bytes

MEANS = [collectives.weighted_mean, collectives.ring_weighted_mean]


def tree(workers, seed=0):
    """Leaves of several shapes and dtypes, stacked over the workers."""
    rng = np.random.default_rng(seed)
    return {
        "matrix": rng.normal(size=(workers, 3, 5)).astype(np.float32),
        "vector": rng.normal(size=(workers, 7)).astype(np.float32),
        "scalar": rng.normal(size=workers).astype(np.float32),
        "half": jnp.asarray(rng.normal(size=(workers, 4)), jnp.bfloat16),
        "empty": np.zeros((workers, 0), np.float32),
    }


@pytest.mark.few(2)
@pytest.mark.parametrize("mean", MEANS)
def test_equal_and_other_weights(spmd, mean):
    """All workers hold the same bits, close to the mean in float64."""
    workers = 5
    x = tree(workers)
    weight = np.arange(workers, dtype=np.int32)  # worker 0 weighs 0
    means = spmd(lambda x, weight: (mean(x), mean(x, weight)), x, weight)
    every = np.full(workers, 1 / workers), weight / weight.sum()
    for of_all, shares in zip(means, every, strict=True):
        for found, leaf in zip(jax.tree.leaves(of_all), jax.tree.leaves(x), strict=True):
            assert (found.shape, found.dtype) == (leaf.shape, leaf.dtype)
            found, tolerance = np.asarray(found), 1e-6 if found.dtype == np.float32 else 4e-2
            np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
            expected = np.tensordot(shares, np.asarray(leaf, np.float64), 1)
            found = found[0].astype(np.float64)
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mean", MEANS)
def test_means_by_hand(spmd, mean):
    """A worker without weight does not count whatever it holds; integers come back as floats."""
    weight = np.array([2.0, 0.0, 6.0], np.float32)
    poisoned = np.array([[1.0, 2.0], [np.nan, np.inf], [5.0, 6.0]], np.float32)

    def means(x, poisoned, integers, weight):
        return [
            mean(x, weight), mean(poisoned, weight > 0), mean(poisoned, 0 * weight),
            mean(poisoned, weight + 1), mean(integers), mean(integers, weight), mean(x, 2.0),
        ]  # fmt: skip

    found = spmd(means, np.float32([1, 10, 100]), poisoned, np.array([1, 2, 6], np.int32), weight)
    assert {one.dtype for one in found} == {jnp.dtype("float32")}
    expected = 75.25, [3, 4], [0, 0], [np.nan, np.nan], 3, 4.75, 37
    for one, values in zip(found, expected, strict=True):
        one = np.where(np.isfinite(one), one, np.nan)
        np.testing.assert_array_equal(one, np.broadcast_to(np.float32(values), one.shape))


def test_runtimes_agree_bit_for_bit_with_a_ring_by_hand(spmd):
    workers = 5
    x = np.random.default_rng(1).normal(size=(workers, 2 * workers)).astype(np.float32)
    whole = np.random.default_rng(0).integers(-99, 99, (workers, 13)).astype(np.float32)
    found, padded = spmd(lambda *x: [collectives.ring_all_reduce(one) for one in x], x, whole)
    np.testing.assert_array_equal(padded, np.broadcast_to(whole.sum(0), whole.shape))
    for chunk in range(workers):
        part = slice(2 * chunk, 2 * chunk + 2)
        total = x[chunk, part]
        for hop in range(1, workers):
            total = total + x[(chunk + hop) % workers, part]
        np.testing.assert_array_equal(found[:, part], np.broadcast_to(total[None], (workers, 2)))


COLLECTIVES = ("ppermute", "psum", "psum_invariant", "all_gather", "all_to_all")


def collective_calls(jaxpr):
    """(primitive, bytes) of every collective in a jaxpr and its inner ones, with counts."""
    counts = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name in COLLECTIVES:
            size = payload_bytes([operand.aval for operand in equation.invars])
            counts[equation.primitive.name, size] += 1
        for parameter in jax.tree.leaves(equation.params):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                counts += collective_calls(inner)
    return counts


def test_ring_sends_what_its_cost_says():
    """The mean has one buffer per dtype, and the weight apart."""
    for workers, size in ((2, 13), (5, 1), (8, 64), (4, 0)):
        traced = jax.make_jaxpr(collectives.ring_all_reduce, axis_env=[("workers", workers)])
        counts = collective_calls(traced(jnp.zeros(size)).jaxpr)
        expected = {("ppermute", 4 * -(-size // workers)): 2 * (workers - 1)} if size else {}
        assert counts == expected
        sent = sum(chunk * times for (_, chunk), times in counts.items())
        assert sent == ring_all_reduce_bytes(4 * size, workers)
    traced = jax.make_jaxpr(collectives.ring_weighted_mean, axis_env=[("workers", 4)])
    x = {"a": jnp.zeros((3, 5)), "b": jnp.zeros(8), "half": jnp.zeros(4, jnp.bfloat16)}
    assert collective_calls(traced(x, jnp.ones(())).jaxpr) == {
        ("ppermute", 4 * 6): 6,  # (15 + 8) / 4, rounded up
        ("ppermute", 2 * 1): 6,  # 4 / 4
        ("psum", 4): 1,
    }


def test_many_weights_in_a_short_dtype_add_up(spmd):
    """256 + 1 is 256 in bfloat16: the sum of weights must not travel in the buffer's dtype."""
    x = jnp.ones((8, 4), jnp.bfloat16)
    weight = jnp.array([256.0, *[1.0] * 7])
    mean = spmd(collectives.ring_weighted_mean, x, weight)
    np.testing.assert_allclose(np.asarray(mean, np.float32), 1.0, atol=0.03)


def test_a_weighted_mean_can_be_differentiated():
    def loss(x, weight):
        return collectives.weighted_mean(x**2, weight, axis="replicas")

    x, weight = jnp.array([3.0, jnp.inf]), jnp.array([2.0, 0.0])
    total = jax.grad(lambda x: jax.vmap(loss, axis_name="replicas")(x, weight)[0])
    np.testing.assert_array_equal(jax.jit(total)(x)[0], 6.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("weights", [None, [1, 0, 3, 7]])
def test_a_mean_of_large_values_is_finite(spmd, weights):
    x = {
        dtype: jnp.full((4, 3), 0.99 * jnp.finfo(dtype).max, dtype)
        * jnp.array([1, -1, 0.5], dtype)[None]  # the terms of float16 are rounded
        for dtype in ("float32", "float16", "bfloat16")
    }
    means = [*MEANS, lambda x, weight: bucketed_weighted_mean(x, buffers(x, [[0], [1, 2]]), weight)]
    given = () if weights is None else (jnp.array(weights),)
    found = spmd(lambda x, *w: [mean(x, weight=w[0] if w else None) for mean in means], x, *given)
    for of_mean in found:
        for dtype, values in of_mean.items():
            eps = float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(np.float64(values), np.float64(x[dtype]), rtol=eps)


def test_a_mean_has_the_bits_of_the_plain_sum():
    x = np.random.default_rng(2).normal(size=(5, 1000)).astype(np.float32)
    w = np.float32([1, 0, 3, 7, 2])
    mean = jax.vmap(collectives.weighted_mean, axis_name="workers")
    plain = jax.vmap(
        lambda x, w: (
            jax.lax.psum(jnp.where(w > 0, w * x, 0), "workers") / jax.lax.psum(w, "workers")
        ),
        axis_name="workers",
    )
    for given, weights in (((), np.ones(5, np.float32)), ((w,), w)):
        np.testing.assert_array_equal(jax.jit(mean)(x, *given), jax.jit(plain)(x, weights))
