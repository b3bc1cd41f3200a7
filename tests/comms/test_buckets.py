"""Plans of buckets against brute force and by hand, and means in buckets against plain ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import buckets, collectives, cost
from comms.buckets import bucketed_weighted_mean
from comms.iteration import googlenet
from tests.refusals import refused


def brute_force(sizes, ready, seconds):
    """(earliest finish, fewest buckets that reach it) over all 2^(L-1) bucketings."""
    layers = len(sizes)
    cuts = np.arange(2 ** (layers - 1))
    free, held, count = np.zeros(len(cuts)), np.zeros(len(cuts)), np.ones(len(cuts), int)
    for layer in range(layers):
        held = held + sizes[layer]
        last = (cuts >> layer & 1 == 1) | (layer == layers - 1)
        free = np.where(last, np.maximum(free, ready[layer]) + seconds(held), free)
        held = np.where(last, 0, held)
        count += last & (layer < layers - 1)
    return free.min(), count[free == free.min()].min()


def monotone_table(rng):
    sizes = np.cumsum(rng.uniform(1, 30, 6))
    return cost.table(sizes, np.cumsum(rng.exponential(3.0, 6)))


# --- published and computed numbers ---


def bcaffe(workers):
    """Return the ring of the authors' simulation, which pays for n steps each way."""
    ring = cost.ring(workers, 0.0, beta=1.2 / (9.0 * 2**30 / 8), gamma=160 / (16e9 * 4))
    return ring._replace(alpha=2 * workers * 45.25e-6)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (8, {"wfbp": (256.9, 64), "single": (412.4, 1), "fixed": (294.5, 2),
             "greedy": (215.4, 6), "optimal": (214.9, 6)}),
        (64, {"wfbp": (607.5, 64), "single": (443.7, 1), "fixed": (311.1, 2),
              "greedy": (303.1, 3), "optimal": (265.8, 5)}),
        (256, {"wfbp": (1722.4, 64), "single": (463.9, 1), "fixed": (338.4, 2),
               "greedy": (463.9, 1), "optimal": (319.2, 3)}),
    ],
)  # fmt: skip
def test_googlenet_on_the_authors_ring(workers, expected):
    trace = googlenet().backward_order()
    for name, (milliseconds, count) in expected.items():
        plan = buckets.PLANNERS[name](*trace, bcaffe(workers))
        assert 1e3 * plan.finish == pytest.approx(milliseconds, abs=0.1), name
        assert len(plan.buckets) == count, name
        assert plan.exposed == pytest.approx(plan.finish - 0.20153192599999997)


# --- the optimum ---


def test_the_optimum_is_that_of_brute_force_with_the_fewest_buckets():
    """400 traces in whole numbers, so that ties are exact."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        layers = rng.integers(1, 13)
        sizes = rng.integers(0, 20, layers)
        ready = np.cumsum(rng.integers(0, 12, layers))
        affine = cost.AlphaBeta(float(rng.integers(0, 10)), float(rng.integers(0, 3)))
        plan = buckets.optimal(sizes, ready, affine)
        assert (plan.finish, len(plan.buckets)) == brute_force(sizes, ready, affine.seconds)


def test_the_optimum_holds_for_any_monotone_cost():
    rng = np.random.default_rng(1)
    for turn in range(120):
        layers = rng.integers(1, 13)
        sizes, ready = rng.uniform(0, 20, layers), np.cumsum(rng.exponential(6.0, layers))
        drawn = (
            monotone_table(rng),
            lambda payload: 0.01 * np.asarray(payload) ** 2,
            lambda payload: np.floor(np.asarray(payload) / 16),
        )[turn % 3]
        seconds = getattr(drawn, "seconds", drawn)
        plan = buckets.optimal(sizes, ready, drawn)
        best, _ = brute_force(sizes, ready, seconds)
        assert plan.finish == pytest.approx(best, rel=1e-12)


# --- timelines and the other planners ---


def test_a_timeline_by_hand():
    # 2 s and 1 s per byte: 2 layers from second 3 to 3 + 2 + 2, then the channel waits until 9.
    plan = buckets.evaluate([[0, 1], [2]], [1, 1, 4], [1, 3, 9], cost.AlphaBeta(2.0, 1.0))
    assert plan.ready.tolist() == [3, 9] and plan.start.tolist() == [3, 9]
    assert plan.end.tolist() == [7, 15] and (plan.finish, plan.exposed) == (15, 6)


def test_parts_by_hand():
    # Half of layer 0 from 1 to 3, then layer 1, which has come meanwhile, then the other half.
    plan = buckets.byte_scheduler([4, 2], [1, 3], cost.AlphaBeta(0.0, 1.0), bytes=2)
    assert plan.order == [0, 1, 0] and plan.buckets == [[0], [1]] and plan.ready.tolist() == [1, 3]
    assert plan.start.tolist() == [1, 3, 5] and plan.end.tolist() == [3, 5, 7]
    assert (plan.finish, plan.exposed, plan.bytes) == (7, 4, 2)


def test_parts_travel_as_in_a_loop_over_seconds():
    """The loop looks in every second for the first layer of all; 200 traces in whole numbers."""
    rng = np.random.default_rng(2)
    interrupted = 0
    for _ in range(200):
        layers, size = rng.integers(1, 9), int(rng.integers(1, 9))
        sizes, ready = rng.integers(0, 30, layers), np.cumsum(rng.integers(0, 12, layers))
        alpha, beta = (int(x) for x in rng.integers(0, 4, 2))
        left = [[min(size, n - i) for i in range(0, n, size)] or [0] for n in sizes.tolist()]
        order, start, end, now = [], [], [], 0
        while any(left):
            able = [layer for layer in range(layers) if left[layer] and ready[layer] <= now]
            if not able:
                now += 1
                continue
            order.append(max(able))  # in backward order the model's first layer is the last one
            start.append(now)
            now += alpha + beta * left[order[-1]].pop(0)
            end.append(now)
        plan = buckets.byte_scheduler(sizes, ready, cost.AlphaBeta(alpha, beta), size)
        assert plan.order == order
        assert plan.start.tolist() == start and plan.end.tolist() == end
        interrupted += sum(order[i] in order[: i - 1] and order[i] != order[i - 1]
                           for i in range(1, len(order)))  # fmt: skip
    assert interrupted > 100


def test_groups_by_hand():
    sizes, ready, affine = [1, 1, 1, 1, 1], [0, 1, 2, 3, 9], cost.AlphaBeta(2.0, 1.0)
    # The channel is busy until 3, then with layers 1 to 3 until 8; layer 4 comes at 9.
    assert buckets.asc(sizes, ready, affine).buckets == [[0], [1, 2, 3], [4]]
    # Layers 1 and 2 come less than alpha = 2 s after 0 could start; each merge delays the start.
    assert buckets.greedy(sizes, ready, affine).buckets == [[0, 1, 2, 3], [4]]
    assert buckets.greedy([1, 1], [0, 2], affine).buckets == [[0], [1]]  # not less than alpha
    assert buckets.fixed([3, 2, 1, 9, 4], ready, affine, bytes=5).buckets == [[0, 1], [2, 3], [4]]
    assert buckets.fixed([25e6, 9e5, 4e5, 1], [0, 1, 2, 3], affine).buckets == [[0, 1, 2], [3]]
    assert buckets.wfbp(sizes, ready, affine).buckets == [[0], [1], [2], [3], [4]]
    assert buckets.single(sizes, ready, affine).buckets == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("sizes", "ready", "words"),
    [
        ([1, 2], [1.0], r"sizes have shape \(2,\) and ready times \(1,\)"),
        ([1, -2], [1.0, 2.0], r"sizes\[1\] = -2.0; they must be finite and 0 or more"),
        ([1, 2], [-1.0, 2.0], r"ready times\[0\] = -1.0"),
        ([1, 2, 3], [1.0, 3.0, 2.0], "fall from 3.0 to 2.0 at layer 2; give layers in backward"),
    ],
)
def test_traces_that_make_no_sense_are_refused(sizes, ready, words):
    for planner in buckets.PLANNERS.values():
        with pytest.raises(ValueError, match=words):
            planner(sizes, ready, cost.AlphaBeta(1.0, 1.0))


test_costs_and_buckets_that_make_no_sense_are_refused = refused(
    (lambda payload: -1.0, "gave -1.0 s; it must be finite and 0 or more"),
    (lambda payload: np.where(np.asarray(payload) > 3, np.inf, 1.0), "gave inf s"),
    (lambda payload: 1.0 if payload > 3 else 2.0, "write it with NumPy"),
    by=lambda cost: buckets.optimal([1, 2, 3], [1, 2, 3], cost),
)
test_groups_of_other_layers_are_refused = refused(
    *((groups, "are not the 3 layers in order") for groups in (
        [[0], [2]], [[1], [0], [2]], [[0, 1, 2], []], [[0, 1, 1, 2]], [],
    )),
    by=lambda groups: buckets.evaluate(groups, [1, 1, 1], [1, 2, 3], lambda payload: 1.0),
)  # fmt: skip


# --- means in buckets ---

N = 8
_RNG = np.random.default_rng(0)
TREE = {
    "a": _RNG.standard_normal((N, 3, 5)).astype(np.float32),
    "b": _RNG.standard_normal((N, 7)).astype(jnp.bfloat16),
    "c": _RNG.integers(-9, 9, (N, 4)).astype(np.int32),
    "d": _RNG.standard_normal((N, 0)).astype(np.float32),
    "e": _RNG.standard_normal(N).astype(np.float32),
}
PLAN = [[2, 4], [1, 3, 0]]
WEIGHTS = np.arange(N, dtype=np.float32)  # worker 0 does not count


def same(got, expected):
    for found, wanted in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted, strict=True)


def mean_in(tree, plan, parts=(), weight=None, **own):
    """Return the mean in buckets; parts: order and bytes of messages."""
    return bucketed_weighted_mean(tree, buckets.buffers(tree, plan, *parts), weight, **own)


def test_without_weights_it_is_pmean_bit_for_bit(spmd):
    """NaN stays in its leaf."""
    held = TREE | {"e": np.full(N, np.nan, np.float32)}
    expected = spmd(lambda tree: jax.lax.pmean(tree, "workers"), held)
    for parts in ((), ([1, 0, 1, 0, 1], 20)):
        same(spmd(lambda tree, parts=parts: mean_in(tree, PLAN, parts), held), expected)


@pytest.mark.few(1)
def test_with_weights_it_is_the_weighted_mean(spmd):
    """By another sum to rounding; where nobody counts, 0."""
    held = jax.tree.map(np.copy, TREE)
    held["a"][0] = np.nan

    def means(tree, weight):
        mean = functools.partial(mean_in, tree, PLAN, ())
        ring = mean(weight, reduce=collectives.ring_all_reduce)
        return mean(weight), mean(0 * weight), ring, collectives.weighted_mean(tree, weight)

    got, nothing, ring, expected = spmd(means, held, WEIGHTS)
    same(got, expected)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(nothing))
    for name, tolerance in (("a", 1e-6), ("b", 0.05), ("c", 1e-6), ("e", 1e-6)):
        found, wanted = np.float32(ring[name]), np.float32(expected[name])
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_buckets_that_are_not_the_leaves_are_refused():
    for plan in ([[0, 1]], [[0, 1, 2, 3, 4], [4]], [[0, 1, 2, 3, 5]]):
        mean = functools.partial(mean_in, plan=plan)
        with pytest.raises(ValueError, match="do not hold each of 5 leaves once; give every index"):
            jax.vmap(mean, axis_name="workers")(TREE)


def test_parts_are_bytes_in_a_row_and_the_last_one_has_the_rest():
    """Of 74 bytes in 20, 20 and the rest, bfloat16 first; of 20 bytes nothing is left."""
    shapes = jax.tree.map(lambda a: a[0], TREE)
    made = buckets.buffers(shapes, PLAN, [1, 0, 1, 0, 1], 20)
    assert [(b.bucket, b.leaves, b.first, b.elements) for b in made] == [
        (1, [1], 0, 7), (1, [3, 0], 0, 2), (0, [2, 4], 0, 5), (1, [3, 0], 2, 5), (1, [3, 0], 7, 8),
    ]  # fmt: skip
    assert buckets.groups(made) == [[2], [0], [1, 3, 4]]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((), [40001, 3201, 11]), (([0, 1, 0, 2, 0], 64e3), [16001, 3201, 16001, 11, 8001])],
)
def test_all_reduces_are_chained_in_the_order_of_the_plan(mesh, parts, expected):
    """One per message in the compiled program; the sizes tell the order, the token is one more."""
    plan = [[3], [2, 1], [0]]
    tree = [np.zeros((N, size), np.float32) for size in (10, 200, 3000, 40000)]
    of = jax.P("workers")
    mean = jax.shard_map(
        functools.partial(mean_in, plan=plan, parts=parts),
        mesh=mesh, in_specs=of, out_specs=of, check_vma=False,
    )  # fmt: skip
    text = jax.jit(mean).lower(tree).compile().as_text()
    lines = [line for line in text.splitlines() if " all-reduce(" in line]
    assert [int(line.split("f32[")[1].split("]")[0]) for line in lines] == expected
