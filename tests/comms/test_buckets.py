import doctest

import numpy as np
import pytest

from benchmarks.suite import gaps, random_trace
from comms import buckets, cost
from comms.iteration import googlenet

OTHERS = [name for name in buckets.PLANNERS if name != "optimal"]


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
    """The ring of the authors' simulation, which pays for n steps each way."""
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
    """1,000 traces in whole numbers, so that ties are exact."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        layers = rng.integers(1, 13)
        sizes = rng.integers(0, 20, layers)
        ready = np.cumsum(rng.integers(0, 12, layers))
        affine = cost.AlphaBeta(float(rng.integers(0, 10)), float(rng.integers(0, 3)))
        plan = buckets.optimal(sizes, ready, affine)
        assert (plan.finish, len(plan.buckets)) == brute_force(sizes, ready, affine.seconds)


@pytest.mark.parametrize(
    "draw",
    [
        monotone_table,
        lambda rng: cost.AlphaBeta(rng.exponential(5.0), rng.exponential(1.0)),
        lambda rng: lambda payload: 0.01 * np.asarray(payload) ** 2,
        lambda rng: lambda payload: 3.0,
        lambda rng: lambda payload: np.floor(np.asarray(payload) / 16),
    ],
    ids=["table", "affine", "square", "constant", "steps"],
)
def test_the_optimum_holds_for_any_monotone_cost(draw):
    rng = np.random.default_rng(1)
    for _ in range(60):
        layers = rng.integers(1, 13)
        sizes, ready = rng.uniform(0, 20, layers), np.cumsum(rng.exponential(6.0, layers))
        drawn = draw(rng)
        seconds = getattr(drawn, "seconds", drawn)
        plan = buckets.optimal(sizes, ready, drawn)
        best, _ = brute_force(sizes, ready, seconds)
        assert plan.finish == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("planner", OTHERS)
def test_no_planner_beats_the_optimum(planner):
    gap = gaps(200, planner, seed=2)
    assert gap.shape == (200,) and gap.min() >= 0 and gap.max() > 0


def test_a_thousand_layers():
    sizes, ready, affine = random_trace(np.random.default_rng(3), 1000)
    finish = {name: plan(sizes, ready, affine).finish for name, plan in buckets.PLANNERS.items()}
    assert finish["optimal"] == min(finish.values())


# --- timelines and the other planners ---


@pytest.mark.parametrize("planner", buckets.PLANNERS)
def test_a_plan_is_a_partition_with_the_timeline_of_its_buckets(planner):
    rng = np.random.default_rng(4)
    for layers in (1, 2, 7, 40):
        sizes, ready, affine = random_trace(rng, layers)
        plan = buckets.PLANNERS[planner](sizes, ready, affine)
        assert [layer for bucket in plan.buckets for layer in bucket] == list(range(layers))
        assert all(type(layer) is int for bucket in plan.buckets for layer in bucket)
        again = buckets.evaluate(plan.buckets, sizes, ready, affine)
        for ours, theirs in zip(plan[1:], again[1:], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert again.buckets == plan.buckets
        last = [bucket[-1] for bucket in plan.buckets]
        np.testing.assert_array_equal(plan.ready, ready[last])
        payloads = np.array([sizes[bucket].sum() for bucket in plan.buckets])
        np.testing.assert_allclose(plan.end - plan.start, affine.seconds(payloads))
        assert np.all(plan.start >= plan.ready) and np.all(plan.start[1:] >= plan.end[:-1])
        assert plan.finish == plan.end[-1] and plan.exposed == plan.finish - ready[-1]


def test_a_timeline_by_hand():
    # 2 s and 1 s per byte: 2 layers from second 3 to 3 + 2 + 2, then the channel waits until 9.
    plan = buckets.evaluate([[0, 1], [2]], [1, 1, 4], [1, 3, 9], cost.AlphaBeta(2.0, 1.0))
    assert plan.ready.tolist() == [3, 9] and plan.start.tolist() == [3, 9]
    assert plan.end.tolist() == [7, 15] and (plan.finish, plan.exposed) == (15, 6)


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


def test_greedy_takes_alpha_from_any_cost():
    sizes, ready, affine = random_trace(np.random.default_rng(5), 30)
    assert affine.alpha > 0
    points = np.array([0.0, 1e8])
    for same in (affine.seconds, cost.table(points, affine.seconds(points))):
        plan = buckets.greedy(sizes, ready, same)
        assert plan.buckets == buckets.greedy(sizes, ready, affine).buckets


def test_free_communication_ends_with_the_backward_pass():
    for planner in buckets.PLANNERS.values():
        assert planner([4, 4, 4], [1.0, 2.0, 3.0], lambda payload: 0.0).exposed == 0


def test_the_example_runs():
    assert doctest.testmod(buckets).failed == 0
    assert doctest.testmod(buckets).attempted >= 8


@pytest.mark.parametrize(
    ("sizes", "ready", "words"),
    [
        ([1, 2], [1.0], r"sizes have shape \(2,\) and ready times \(1,\)"),
        ([], [], "at least one layer"),
        ([1, -2], [1.0, 2.0], r"sizes\[1\] = -2.0; they must be finite and 0 or more"),
        ([1, np.nan], [1.0, 2.0], r"sizes\[1\] = nan"),
        ([1, 2], [-1.0, 2.0], r"ready times\[0\] = -1.0"),
        ([1, 2, 3], [1.0, 3.0, 2.0], "fall from 3.0 to 2.0 at layer 2; give layers in backward"),
    ],
)
def test_traces_that_make_no_sense_are_refused(sizes, ready, words):
    for planner in buckets.PLANNERS.values():
        with pytest.raises(ValueError, match=words):
            planner(sizes, ready, cost.AlphaBeta(1.0, 1.0))


@pytest.mark.parametrize(
    "groups", [[[0], [2]], [[1], [0], [2]], [[0, 1, 2], []], [[0, 1, 1, 2]], []]
)
def test_buckets_that_are_no_partition_in_order_are_refused(groups):
    with pytest.raises(ValueError, match="are not the 3 layers in order"):
        buckets.evaluate(groups, [1, 1, 1], [1, 2, 3], cost.AlphaBeta(1.0, 1.0))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda payload: -1.0, "gave -1.0 s; it must be finite and 0 or more"),
        (lambda payload: np.inf * np.ones_like(payload), "must be finite"),
        (lambda payload: np.where(np.asarray(payload) > 3, np.inf, 1.0), "gave inf s"),
        (lambda payload: 1.0 if payload > 3 else 2.0, "write it with NumPy"),
    ],
)
def test_costs_that_make_no_sense_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        buckets.optimal([1, 2, 3], [1, 2, 3], bad)


def test_a_bucket_must_hold_something():
    with pytest.raises(ValueError, match="fixed: needs bytes > 0, got 0"):
        buckets.fixed([1], [1.0], cost.AlphaBeta(1.0, 1.0), bytes=0)
