import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import collectives
from comms.buckets import bucketed_weighted_mean
from comms.cost import ring_all_reduce_bytes

WORKERS = [1, 5, 8]
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


def assert_everyone_has(stacked, expected):
    """All workers hold the same bits, close to `expected`."""
    for found, want in zip(jax.tree.leaves(stacked), jax.tree.leaves(expected), strict=True):
        found = np.asarray(found)
        np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
        rtol = 1e-6 if found.dtype == np.float32 else 4e-2
        np.testing.assert_allclose(found[0].astype(np.float64), want, rtol=rtol, atol=rtol)


@pytest.mark.few(3)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("workers", WORKERS)
def test_equal_and_other_weights(spmd, mean, workers):
    x = tree(workers)
    weight = np.arange(workers, dtype=np.int32) + (workers == 1)  # worker 0 of several weighs 0
    plain, weighed = spmd(lambda x, weight: (mean(x), mean(x, weight)), x, weight)
    shapes = jax.tree.map(lambda a: (a.shape, a.dtype), x)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), plain) == shapes
    for found, shares in ((plain, np.full(workers, 1 / workers)), (weighed, weight / weight.sum())):
        expected = jax.tree.map(
            lambda a, w=shares: np.tensordot(w, np.asarray(a, np.float64), 1), x
        )
        assert_everyone_has(found, expected)


def test_pmap_runs_them():
    """As it is `shard_map` in JAX, nothing else is asked of it."""
    x, weight = np.array([1.0, 10.0, 100.0], np.float32), np.array([2.0, 0.0, 6.0], np.float32)
    for mean in MEANS:
        found = jax.pmap(mean, axis_name="workers")(x, weight)
        np.testing.assert_array_equal(found, [75.25] * 3)


@pytest.mark.parametrize("mean", MEANS)
def test_by_hand(spmd, mean):
    x, weight = np.array([1.0, 10.0, 100.0], np.float32), np.array([2.0, 0.0, 6.0], np.float32)
    np.testing.assert_array_equal(spmd(mean, x, weight), [75.25] * 3)


@pytest.mark.parametrize("mean", MEANS)
def test_one_constant_for_all_is_no_weight(spmd, mean):
    x = np.array([[1.0], [4.0], [7.0]], np.float32)
    np.testing.assert_array_equal(spmd(lambda x: mean(x, 2.0), x), [[4.0]] * 3)


@pytest.mark.parametrize("mean", MEANS)
def test_nobody_takes_part(spmd, mean):
    x = np.array([[1.0, np.nan], [np.inf, 2.0]], np.float32)
    np.testing.assert_array_equal(spmd(mean, x, np.zeros(2, np.float32)), np.zeros((2, 2)))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_worker_without_weight_does_not_count_whatever_it_holds(spmd, mean, poison):
    x = np.array([[1.0, 2.0], [poison, poison], [5.0, 6.0]], np.float32)
    mask = np.array([True, False, True])
    np.testing.assert_array_equal(spmd(mean, x, mask), [[3.0, 4.0]] * 3)


@pytest.mark.parametrize("mean", MEANS)
def test_a_worker_with_weight_shows_its_nan(spmd, mean):
    x = np.array([1.0, np.nan], np.float32)
    assert np.isnan(spmd(mean, x, np.ones(2, np.float32))).all()


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("weighted", [False, True])
def test_integers_come_back_as_floats(spmd, mean, weighted):
    x = np.array([1, 2], np.int32)
    weights = (np.array([0.5, 1.5], np.float32),) if weighted else ()
    found = spmd(mean, x, *weights)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, [1.75 if weighted else 1.5] * 2)


@pytest.mark.parametrize("mean", MEANS)
def test_empty_tree(mean):
    body = jax.vmap(lambda weight: mean({}, weight), axis_name="workers")
    assert body(jnp.ones(3)) == {}


@pytest.mark.few(3)
@pytest.mark.parametrize("workers", WORKERS)
def test_ring_is_the_sum(spmd, workers):
    # Whole numbers: every order of summation gives the same bits.
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-99, 99, (workers, *shape)).astype(np.float32)
        for shape in ((), (1,), (8,), (13,), (4, 5))
    ]
    rings = functools.partial(jax.tree.map, collectives.ring_all_reduce)
    for x, found in zip(arrays, spmd(rings, arrays), strict=True):
        np.testing.assert_array_equal(found, np.broadcast_to(x.sum(axis=0, keepdims=True), x.shape))


def test_ring_sends_nothing_for_an_empty_array():
    traced = jax.make_jaxpr(collectives.ring_all_reduce, axis_env=[("workers", 4)])
    jaxpr = traced(jnp.zeros((3, 0))).jaxpr
    assert not jaxpr.eqns
    assert [v.aval.shape for v in jaxpr.outvars] == [(3, 0)]


@pytest.mark.parametrize("workers", [7, 16, 33])
def test_ring_of_many_simulated_workers(workers):
    x = np.random.default_rng(0).integers(-99, 99, (workers, 20)).astype(np.int32)
    found = jax.jit(jax.vmap(collectives.ring_all_reduce, axis_name="workers"))(x)
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(axis=0, keepdims=True), x.shape))


@pytest.mark.few(3)
@pytest.mark.parametrize("workers", WORKERS)
def test_runtimes_agree_bit_for_bit_with_a_ring_by_hand(spmd, workers):
    x = np.random.default_rng(1).normal(size=(workers, 2 * workers)).astype(np.float32)
    found = spmd(collectives.ring_all_reduce, x)
    for chunk in range(workers):
        part = slice(2 * chunk, 2 * chunk + 2)
        total = x[chunk, part]
        for hop in range(1, workers):
            total = total + x[(chunk + hop) % workers, part]
        np.testing.assert_array_equal(found[:, part], np.broadcast_to(total[None], (workers, 2)))


def collective_calls(jaxpr):
    """(primitive, elements) of every collective in a jaxpr and its inner ones, with counts."""
    counts = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("ppermute", "psum", "all_gather"):
            counts[equation.primitive.name, equation.invars[0].aval.size] += 1
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                counts += collective_calls(inner)
    return counts


@pytest.mark.parametrize("size", [1, 13, 64])
@pytest.mark.parametrize("workers", [2, 5, 8])
def test_ring_sends_what_its_cost_says(workers, size):
    traced = jax.make_jaxpr(collectives.ring_all_reduce, axis_env=[("workers", workers)])
    counts = collective_calls(traced(jnp.zeros(size)).jaxpr)
    assert counts == {("ppermute", -(-size // workers)): 2 * (workers - 1)}
    sent = sum(4 * elements * times for (_, elements), times in counts.items())
    assert sent == ring_all_reduce_bytes(4 * size, workers)


def test_ring_mean_sends_one_buffer_per_dtype_and_the_weight_apart():
    traced = jax.make_jaxpr(collectives.ring_weighted_mean, axis_env=[("workers", 4)])
    x = {"a": jnp.zeros((3, 5)), "b": jnp.zeros(8), "half": jnp.zeros(4, jnp.bfloat16)}
    assert collective_calls(traced(x, jnp.ones(())).jaxpr) == {
        ("ppermute", 6): 6,  # (15 + 8) / 4, rounded up
        ("ppermute", 1): 6,  # 4 / 4
        ("psum", 1): 1,
    }


def test_many_weights_in_a_short_dtype_add_up(spmd):
    """256 + 1 is 256 in bfloat16: the sum of weights must not travel in the buffer's dtype."""
    x = jnp.ones((8, 4), jnp.bfloat16)
    weight = jnp.array([256.0, *[1.0] * 7])
    mean = spmd(collectives.ring_weighted_mean, x, weight)
    np.testing.assert_allclose(np.asarray(mean, np.float32), 1.0, atol=0.03)


def test_a_weighted_mean_can_be_differentiated():
    def loss(x, weight):
        return collectives.weighted_mean(x**2, weight)

    x, weight = jnp.array([3.0, jnp.inf]), jnp.array([2.0, 0.0])
    total = jax.grad(lambda x: jax.vmap(loss, axis_name="workers")(x, weight)[0])
    np.testing.assert_array_equal(total(x)[0], 6.0)


def test_another_axis_name():
    x = jnp.arange(4.0)
    for mean in MEANS:
        found = jax.vmap(lambda x, mean=mean: mean(x, axis="replicas"), axis_name="replicas")(x)
        np.testing.assert_array_equal(found, [1.5] * 4)


@pytest.mark.few(2)
@pytest.mark.parametrize("weights", [None, [4, 4, 4, 4], [1, 0, 3, 7]])
def test_a_mean_of_large_values_is_finite(spmd, weights):
    x = {
        dtype: jnp.full((4, 3), 0.99 * jnp.finfo(dtype).max, dtype)
        * jnp.array([1, -1, 0.5], dtype)[None]  # the terms of float16 are rounded
        for dtype in ("float32", "float16", "bfloat16")
    }
    means = [*MEANS, functools.partial(bucketed_weighted_mean, buckets=[[0], [1, 2]])]
    given = () if weights is None else (jnp.array(weights),)
    found = spmd(lambda x, *w: [mean(x, weight=w[0] if w else None) for mean in means], x, *given)
    for of_mean in found:
        for dtype, values in of_mean.items():
            eps = float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(np.float64(values), np.float64(x[dtype]), rtol=eps)


@pytest.mark.parametrize("weights", [None, [1, 0, 3, 7, 2], [0.1, 0.2, 0.3, 0.4, 0.5]])
def test_a_mean_has_the_bits_of_the_plain_sum(weights):
    x = np.random.default_rng(2).normal(size=(5, 1000)).astype(np.float32)
    w = np.ones(5, np.float32) if weights is None else np.float32(weights)
    given = () if weights is None else (w,)
    mean = jax.vmap(collectives.weighted_mean, axis_name="workers")
    plain = jax.vmap(
        lambda x, w: (
            jax.lax.psum(jnp.where(w > 0, w * x, 0), "workers") / jax.lax.psum(w, "workers")
        ),
        axis_name="workers",
    )
    np.testing.assert_array_equal(jax.jit(mean)(x, *given), jax.jit(plain)(x, w))
