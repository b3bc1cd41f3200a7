"""Compressed methods: conservation, exactness, NaN, bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import (
    powersgd,
    random_k,
    s2_reducer,
    sparse_all_gather,
    top_k,
)
from algorithms.base import AXIS
from comms import cost, hashing
from comms.messages import Row, fallback_bytes, sent_bytes
from runtimes.base import refuse
from stragglers import delays
from tests import planned
from tests.algorithms.compressed import (
    DENSE,
    PARAMS,
    PATHS,
    ROWS,
    SGD,
    UNBIASED,
    WIDTH,
    N,
    built,
    exchange,
    gradients,
    run,
    start,
)
from tests.marks import slow

# --- error feedback ---


# Of top_k and signs: see test_formulas.py.
@pytest.mark.parametrize("name", ["powersgd", slow("random_k"), slow("s2_reducer")])
def test_error_feedback_conserves_sums(name):
    """All that was sent and the weighed residuals of all workers are the sum of the dense means."""
    weights = np.float32([3, 1, 2, 2])  # of which 5 take part in every update
    taking_part = np.array([[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 1, 1], [1, 0, 0, 1]])
    method = built(name)
    wanted, got, states = run(method, 5, taking_part * weights)
    leaves, structure = jax.tree.flatten(got)
    # The last leaf is the one that some methods compress alone: the table.
    first = len(leaves) - len(states.reducers)
    for i, memory in enumerate(states.reducers, first):
        leaves[i] = leaves[i] + np.tensordot(weights / 5.0, memory.residual, 1)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=2e-4),
        jax.tree.unflatten(structure, leaves),
        wanted,
    )


@pytest.mark.slow
def test_memory_is_frozen_where_a_worker_finished_nothing():
    for method in (built("ef_sign"), built("top_k/momentum")):
        given = gradients(), jnp.ones(N), jnp.float32(0)
        _, before = exchange(method.exchange.update, start(method), *given)
        idle = jnp.array([1.0, 0, 1, 1])
        _, after = exchange(method.exchange.update, before, gradients(1), idle, jnp.float32(8))
        for old, new in zip(
            jax.tree.leaves(before.reducers), jax.tree.leaves(after.reducers), strict=True
        ):
            np.testing.assert_array_equal(old[1], new[1])
            assert (np.asarray(old[0]) != new[0]).any()


def test_momentum_correction_by_hand():
    """Of one entry of two that is sent, velocity and residual are cleared; the other grows."""
    method = top_k(SGD, ratio=0.5, momentum=0.5)
    params, gradient = jnp.zeros(2), jnp.array([[4.0, 1.0]])
    state = jax.tree.map(lambda a: a[None], method.exchange.init(params))
    sent = []

    @jax.jit
    def step(gradient, state):
        def one(gradient, state):
            return method.exchange.update(gradient, state, params, samples=0.0, version=0)

        return jax.vmap(one, axis_name=AXIS)(gradient, state)

    for _ in range(3):
        out, state = step(gradient, state)
        sent.append(out[0].tolist())
    # The second entry owes 1, then 1 + 1.5, then 1 + 1.5 + 1.75.
    assert sent == [[4, 0], [4, 0], [0, 4.25]]


@pytest.mark.slow
def test_memory_of_short_floats_is_not_rounded():
    """Three mini-batches of 1 + 2^-7 weigh what bfloat16 cannot hold."""
    method, params = top_k(SGD, ratio=0.5), jnp.zeros(2, jnp.bfloat16)
    state = jax.tree.map(lambda a: a[None], method.exchange.init(params))

    def one(gradient, state):
        given = {"samples": 0.0, "version": 0, "weight": 3.0}
        return method.exchange.update(gradient, state, params, **given)

    gradient = jnp.array([[4.0, 1 + 2.0**-7]], jnp.bfloat16)
    out, state = jax.vmap(one, axis_name=AXIS)(gradient, state)
    assert out.dtype == jnp.bfloat16 and out[0].tolist() == [4, 0]
    assert state.reducers[0].residual[0].tolist() == [0, 1 + 2.0**-7]


# --- warm-up ---


@pytest.mark.slow
def test_warm_up_is_dense_for_so_many_updates():
    method = s2_reducer(SGD, rows=1, budget=10, warmup_updates=2)
    states, equal = start(method), []
    for t in range(3):
        given = gradients(t), jnp.ones(N), jnp.float32(8 * t)
        out, states = exchange(method.exchange.update, states, *given)
        dense, _ = exchange(DENSE, optax.EmptyState(), *given)
        tables = (tree["table"]["embedding"] for tree in (out, dense))
        equal.append(np.array_equal(*tables))
    assert equal == [True, True, False]


@pytest.mark.slow
def test_the_ratio_of_top_k_falls_in_five_stages():
    """From 0.01^(1/5) = 0.4 on; what a worker has just sent it does not owe."""
    method = top_k(SGD, ratio=0.01, warmup_updates=4)
    states, sent = start(method), []
    for t in range(6):
        rng = np.random.default_rng(t)
        given = jax.tree.map(lambda p, rng=rng: rng.normal(size=(N, *p.shape)), PARAMS)
        _, states = exchange(method.exchange.update, states, given, jnp.ones(N), jnp.float32(t))
        sent.append([int((memory.residual[0] == 0).sum()) for memory in states.reducers])
    of_both = [[25, 76], [10, 30], [4, 12], [2, 5], [1, 2], [1, 2]]  # of 64 and 192 entries
    assert sent == of_both
    rule = planned.rule("barrier", delays.deterministic(1.0), N, 1, 0)
    _, schedule = rule.extend(rule.init(), 6)
    counted = sent_bytes(method, PARAMS, schedule)
    np.testing.assert_array_equal(counted, 3 * 8 * np.sum(of_both, axis=1))


# --- exact where it is said ---


def test_exact_variant_is_dense_bit_for_bit_while_the_budget_holds():
    method = built("s2_reducer/exact")
    weights = np.array([[1, 1, 1, 1], [2, 0, 1, 3]], np.float32)
    wanted, got, states = run(method, 2, weights)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    assert method.metrics(states)["fallbacks"] == 0


@pytest.mark.slow
def test_exact_variant_is_visibly_dense_when_the_budget_does_not_hold():
    dense = cost.ring_all_reduce_bytes(ROWS * WIDTH * 4, N)
    rows, lists = cost.ring_all_reduce_bytes(3 * 12, N), 3 * 3 * (4 + 12)
    for method, instead in (
        (s2_reducer(SGD, exact=True, budget=3, sparse=PATHS), rows),
        (sparse_all_gather(SGD, budget=3, sparse=PATHS), lists),
    ):
        wanted, got, states = run(method, 2)
        jax.tree.map(np.testing.assert_array_equal, got, wanted)
        assert method.metrics(states)["fallbacks"] == 2
        found = method.fallbacks(states, PARAMS, N, Row(0))
        assert found.updates == 2
        assert fallback_bytes(found, N) == 2 * (dense - instead)


def test_sparse_all_gather_is_exact():
    method = built("sparse_all_gather")
    wanted, got, states = run(method)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    assert method.metrics(states)["fallbacks"] == 0  # as many rows as fit


@pytest.mark.slow
def test_a_sketch_touches_no_row_outside_the_union_and_leaves_the_rest_exact():
    given = gradients()
    wanted, got, _ = run(built("s2_reducer/unbiased"))
    union = (given["table"]["embedding"] != 0).any((0, 2))
    assert not got["table"]["embedding"][~union].any()
    assert got["table"]["embedding"][union].any()
    np.testing.assert_array_equal(got["matrix"], wanted["matrix"])


# --- unbiased where it is said ---


@pytest.mark.slow
@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_over_updates_is_that_of_the_gradient(name):
    """By a t-test per entry, over the draws of 200 updates; of 256 entries 5 sigma."""
    update, draws = built(name).exchange.update, 200
    state, given, ones = start(built(name)), jax.device_put(gradients()), jnp.ones(N)
    outs = [exchange(update, state, given, ones, np.float32(t))[0] for t in range(draws)]
    seen = jax.tree.map(lambda *of: np.stack(of), *jax.device_get(outs))
    for got, wanted in zip(jax.tree.leaves(seen), jax.tree.leaves(given), strict=True):
        got = np.asarray(got[:, 0], np.float64)
        error = got.mean(0) - wanted.mean(0)
        assert (np.abs(error) <= 5 * got.std(0) / np.sqrt(draws) + 1e-4).all()


# --- NaN ---


LOUD = ("s2_reducer", "top_k/momentum", "powersgd", "sketched_sgd", "sparse_all_gather")


@pytest.mark.parametrize("name", ["ef_sign", *map(slow, LOUD)])
def test_nan_surfaces_unless_its_worker_has_no_weight(name):
    method = built(name)
    given = gradients()
    for leaf in jax.tree.leaves(given):
        leaf[2].flat[np.flatnonzero(leaf[2])[0]] = np.nan

    @jax.jit
    def decoded(out):
        return method.server.update(out, method.server.init(PARAMS), PARAMS, batches=4)[0]

    def step(weights):
        out, _ = exchange(method.exchange.update, start(method), given, weights, jnp.float32(0))
        out = jax.tree.map(lambda a: a[0], out)
        return decoded(out) if name == "sketched_sgd" else out

    seen = [np.isnan(leaf).any() for leaf in jax.tree.leaves(step(jnp.ones(N)))]
    assert any(seen) if name == "sketched_sgd" else all(seen)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(step(jnp.array([1.0, 1, 0, 1]))))


# --- randomness ---


def test_workers_round_apart_and_parameters_are_drawn_apart():
    """Of 3 on all workers natural compression makes 2 or 4, and 3 in the mean of four workers."""
    given = jax.tree.map(lambda p: jnp.full((N, *p.shape), 3.0), PARAMS)
    method = built("natural_compression")
    update = method.exchange.update
    out, _ = exchange(update, start(method), given, jnp.ones(N), jnp.float32(0))
    matrix, table = (leaf[0].ravel() for leaf in jax.tree.leaves(jax.device_get(out)))
    assert {2.5, 3.0, 3.5} <= set(matrix.tolist())
    assert (matrix != table[:64]).any()


ADDRESS = {"samples": 64.0, "version": 3, "first": 12, "worker": 1}
# Of `ALL`: all that round at random draw for themselves alone, `random_k` for all workers alike.
FOLLOWS = {
    "qsgd": ("version", "first", "worker"),
    "random_k": ("samples",),
    "s2_reducer/unbiased": ("samples",),
    "ef_sign": (),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FOLLOWS)
def test_draws_follow_from_what_is_known_where_they_are_made(name):
    """A worker that nobody waits for knows the version that it has read, and its own counters."""
    method, given = built(name), gradients()

    @jax.jit
    def drawn(address):
        def one(updates, state):
            return method.exchange.update(updates, state, PARAMS, weight=1.0, **address)[0]

        return jax.vmap(one, axis_name=AXIS)(given, start(method))

    before = jax.tree.leaves(jax.device_get(drawn(ADDRESS)))
    changed = {}
    for part, value in ADDRESS.items():
        after = jax.tree.leaves(jax.device_get(drawn(ADDRESS | {part: value + 1})))
        changed[part] = any((a != b).any() for a, b in zip(after, before, strict=True))
    assert {part for part, change in changed.items() if change} == set(FOLLOWS[name])


# --- bytes ---


@pytest.mark.parametrize("start", [2**24, 2**32])
def test_shared_draws_do_not_repeat_however_long_the_run(start):
    """From 2^24 on, float32 knows no difference between counts that differ by one."""
    update = random_k(SGD, ratio=0.05, error_feedback=False).exchange

    @jax.jit
    def picked(**known):
        def one(worker):
            given = {"version": 0, "worker": worker, **known}
            return update.update(jnp.ones(200), update.init(jnp.zeros(200)), None, **given)[0]

        return jax.vmap(one, axis_name=AXIS)(jnp.arange(2))[0] != 0

    found = []
    for count in (start, start + 1, start + 2):
        found.append(picked(**hashing.counted(jnp.asarray(hashing.words(count)))))
    assert len({tuple(np.flatnonzero(entries).tolist()) for entries in found}) == 3


def test_payloads_are_those_of_the_messages():
    rule = planned.rule("barrier", delays.deterministic(1.0), N, 1, 0)
    _, schedule = rule.extend(rule.init(), 8)
    table = {"embedding": PARAMS["table"]["embedding"]}
    sent = {
        "sketch": s2_reducer(SGD, rows=1, budget=4),
        "peeled": s2_reducer(SGD, rows=3, budget=4),
        "exact": s2_reducer(SGD, exact=True, budget=8),
        "gather": sparse_all_gather(SGD, budget=4),
        "elements": s2_reducer(SGD, rows=3, budget=40, granularity="element"),
        "warm": s2_reducer(SGD, rows=1, budget=4, warmup_updates=3),
        "factors": powersgd(SGD, rank=2),
    }
    sent = {name: sent_bytes(method, table, schedule) for name, method in sent.items()}
    # Bitmap of 64 bits in 2 words, padded to a word per worker; 12 columns or 8 rows of 12 bytes.
    # A peeled sketch has 3 x 2 buckets for 4 rows, or 3 x 20 for 40 of 192 elements.
    ring = 6 / 4
    assert (sent["sketch"] == ring * (16 + 12 * 12)).all()
    assert (sent["peeled"] == ring * 16 + cost.ring_all_reduce_bytes(6 * 12, N)).all()
    assert (sent["elements"] == ring * (32 + 60 * 4)).all()
    assert (sent["exact"] == ring * (16 + 8 * 12)).all()
    factors = [cost.ring_all_reduce_bytes(4 * 2 * n, N) for n in (ROWS, WIDTH)]
    assert (sent["factors"] == sum(factors)).all()
    assert (sent["gather"] == ring * 16 + 3 * 4 * (4 + 12)).all()
    dense = cost.ring_all_reduce_bytes(ROWS * WIDTH * 4, N)
    np.testing.assert_array_equal(sent["warm"], [dense] * 3 + [ring * (16 + 12 * 12)] * 5)


def test_empty_parameters_send_no_entries():
    rule = planned.rule("barrier", delays.deterministic(1.0), N, 1, 0)
    _, schedule = rule.extend(rule.init(), 1)
    empty = {"embedding": jnp.zeros((0, WIDTH))}
    for method in (top_k(SGD), random_k(SGD), s2_reducer(SGD, exact=True)):
        assert sent_bytes(method, empty, schedule) == 0
    agreement = cost.ring_all_reduce_bytes(4, N)
    assert sent_bytes(sparse_all_gather(SGD), empty, schedule) == agreement


def test_refusals():
    with pytest.raises(ValueError, match="no parameter is said to be row-sparse"):
        s2_reducer(SGD, sparse=())
    with pytest.raises(ValueError, match="both size it"):
        s2_reducer(SGD, ratio=0.5, budget=3)
    with pytest.raises(ValueError, match="needs 1 row of a sketch or more, got 0"):
        s2_reducer(SGD, rows=0)
    with pytest.raises(ValueError, match="leaves nothing out"):
        s2_reducer(SGD, exact=True, error_feedback=True)
    misspelt = s2_reducer(SGD, sparse=("table/embeding",))
    with pytest.raises(ValueError, match=r"has no parameter .table/embeding.* matrix, table/emb"):
        misspelt.exchange.init(PARAMS)
    with pytest.raises(ValueError, match="sparse_all_gather: the model has no parameter"):
        sparse_all_gather(SGD).exchange.init({"matrix": PARAMS["matrix"]})
    with pytest.raises(ValueError, match="0 < ratio <= 1"):
        top_k(SGD, ratio=2.0)
    some = planned.rule("k_async", delays.exponential(1.0), N, 1, 0, k=2).turnout
    with pytest.raises(ValueError, match="its memory must be equal on all workers"):
        refuse(powersgd(SGD), N, some)
    with pytest.raises(ValueError, match="its count of warm-up updates must be equal"):
        refuse(top_k(SGD, warmup_updates=5), N, some)
    refuse(s2_reducer(SGD), N, some)
