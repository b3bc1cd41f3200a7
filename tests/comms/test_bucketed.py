"""Means in buckets: equal to plain `pmean`, in as many all-reduces as there are buckets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import collectives, quantise
from comms.buckets import bucketed_weighted_mean

N = 8
_RNG = np.random.default_rng(0)
TREE = {
    "a": _RNG.standard_normal((N, 3, 5)).astype(np.float32),
    "b": _RNG.standard_normal((N, 7)).astype(jnp.bfloat16),
    "c": _RNG.integers(-9, 9, (N, 4)).astype(np.int32),
    "d": _RNG.standard_normal((N, 0)).astype(np.float32),
    "e": _RNG.standard_normal(N).astype(np.float32),
}
PLANS = [[[4], [3], [2], [1], [0]], [[0, 1, 2, 3, 4]], [[2, 4], [1, 3, 0]]]
WEIGHTS = np.arange(N, dtype=np.float32)  # worker 0 does not count


def same(got, expected):
    assert jax.tree.map(lambda a: (a.shape, a.dtype), got) == jax.tree.map(
        lambda a: (a.shape, a.dtype), expected
    )
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.few(3)
@pytest.mark.parametrize("buckets", PLANS)
def test_without_weights_it_is_pmean_bit_for_bit(spmd, buckets):
    got = spmd(functools.partial(bucketed_weighted_mean, buckets=buckets), TREE)
    same(got, spmd(lambda tree: jax.lax.pmean(tree, "workers"), TREE))


@pytest.mark.few(1)
def test_with_weights_it_is_the_weighted_mean(spmd):
    buckets = PLANS[2]
    held = jax.tree.map(np.copy, TREE)
    held["a"][0] = np.nan
    got = spmd(lambda tree, w: bucketed_weighted_mean(tree, buckets, w), held, WEIGHTS)
    same(got, spmd(lambda tree, w: collectives.weighted_mean(tree, w), held, WEIGHTS))
    nothing = spmd(lambda tree, w: bucketed_weighted_mean(tree, buckets, w), held, 0 * WEIGHTS)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(nothing))


@pytest.mark.few(1)
def test_by_a_ring_it_is_the_mean_to_rounding(spmd):
    mean = functools.partial(
        bucketed_weighted_mean, buckets=PLANS[2], reduce=collectives.ring_all_reduce
    )
    got = spmd(lambda tree, weight: mean(tree, weight=weight), TREE, WEIGHTS)
    expected = spmd(collectives.weighted_mean, TREE, WEIGHTS)
    for name, tolerance in (("a", 1e-6), ("b", 0.05), ("c", 1e-6), ("e", 1e-6)):
        np.testing.assert_allclose(
            np.float32(got[name]), np.float32(expected[name]), rtol=tolerance, atol=tolerance
        )


@pytest.mark.few(1)
def test_a_compressed_sum_can_stand_in(spmd):
    """Every entry is off by half a step of the largest magnitude, per rounding."""
    tree = {name: TREE[name] for name in ("a", "e")}

    def reduce(flat, axis):
        return quantise.int8_all_reduce(flat, bucket=8, axis=axis)

    got = spmd(lambda tree: bucketed_weighted_mean(tree, [[1], [0]], reduce=reduce), tree)
    step = max(np.abs(leaf).max() for leaf in tree.values()) / 127
    for name, leaf in tree.items():
        np.testing.assert_allclose(got[name][0], leaf.mean(0), atol=step)
    assert not np.array_equal(got["a"][0], tree["a"].mean(0))


def test_what_an_inexact_sum_makes_of_the_token_goes_no_further(spmd):
    """This one is too large, in scaled units, and its token is in all elements."""
    tree = {name: TREE[name] for name in ("a", "e")}

    def reduce(flat, axis):
        return jax.lax.psum(flat, axis) + 1 + flat[-1]

    got = spmd(lambda tree: bucketed_weighted_mean(tree, [[1], [0]], reduce=reduce), tree)
    for name, leaf in tree.items():
        np.testing.assert_allclose(got[name][0], leaf.mean(0) + 2**16 / N, rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_leaf(spmd):
    held = jax.tree.map(np.copy, TREE)
    held["e"][:] = np.nan
    got = spmd(lambda tree: bucketed_weighted_mean(tree, PLANS[0]), held)
    assert np.isnan(got["e"]).all()
    assert all(np.isfinite(np.float32(got[name])).all() for name in "abc")


@pytest.mark.parametrize("buckets", [[[0, 1]], [[0, 1, 2, 3, 4], [4]], [[0, 1, 2, 3, 5]]])
def test_buckets_that_are_not_the_leaves_are_refused(buckets):
    with pytest.raises(ValueError, match="do not hold each of 5 leaves once; give every index"):
        jax.vmap(lambda tree: bucketed_weighted_mean(tree, buckets), axis_name="workers")(TREE)


@pytest.mark.parametrize(
    ("buckets", "all_reduces"),
    [([[3], [2], [1], [0]], 4), ([[3, 2], [1, 0]], 2), ([[3, 2, 1, 0]], 1)],
)
def test_all_reduces_are_chained_in_the_order_of_the_plan(mesh, buckets, all_reduces):
    """One per bucket in the compiled program, whose sizes tell the order; the token is one more."""
    tree = [np.zeros((N, size), np.float32) for size in (10, 200, 3000, 40000)]

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=jax.P("workers"),
        out_specs=jax.P("workers"),
        check_vma=False,
    )
    def mean(tree):
        return bucketed_weighted_mean(tree, buckets)

    text = jax.jit(mean).lower(tree).compile().as_text()
    lines = [line for line in text.splitlines() if " all-reduce(" in line]
    sizes = [int(line.split("f32[")[1].split("]")[0]) for line in lines]
    assert sizes == [1 + sum(tree[i].shape[1] for i in bucket) for bucket in buckets]
    assert len(sizes) == all_reduces


def test_buffers_hold_one_dtype(mesh):
    """A bucket of mixed dtypes is one all-reduce for each of them."""

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=jax.P("workers"),
        out_specs=jax.P("workers"),
        check_vma=False,
    )
    def mean(tree):
        return bucketed_weighted_mean(tree, [[0, 1], [2]])

    tree = {"a": TREE["a"], "b": TREE["b"], "c": TREE["c"]}
    text = jax.jit(mean).lower(tree).compile().as_text()
    assert text.count(" all-reduce(") == 3
