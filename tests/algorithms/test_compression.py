"""Compressed methods on a small tree: conservation, exactness, NaN, draws, bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms as use
from algorithms.base import AXIS
from comms import cost, hashing
from comms.messages import (
    Row,
    collective_bytes,
    exchange_seconds,
    fallback_bytes,
    fallback_seconds,
    sent_bytes,
)
from runtimes import base
from stragglers import delays
from tests import planned
from tests.algorithms import quadratics
from tests.marks import slow, slow_but

N, ROWS, WIDTH = 4, 64, 3
WHOLE = 4 * ROWS * WIDTH  # bytes of the table
SGD = optax.sgd(0.1)
TABLE = {"embedding": jnp.zeros((ROWS, WIDTH))}
PARAMS = {"matrix": jnp.zeros((8, 8)), "table": TABLE}
PATHS = ("table/embedding",)
DENSE = use.all_reduce(SGD).exchange.update


def gradients(seed=0, occupied=4):
    """Return [N, ...] whole numbers, of the table in `occupied` rows of every worker."""
    rng = np.random.default_rng(seed)
    made = jax.tree.map(lambda p: rng.integers(-9, 10, (N, *p.shape)).astype(np.float32), PARAMS)
    table = made["table"]["embedding"]
    for worker in range(N):
        kept = rng.choice(ROWS, occupied, replace=False)
        table[worker, np.setdiff1d(np.arange(ROWS), kept)] = 0
    return made


@functools.partial(jax.jit, static_argnums=0)
def exchange(update, states, updates, weights, samples):
    """Return (results of all workers, states) of an exchange at version `samples`, stacked."""

    def one(updates, state, weight, worker):
        given = {"samples": samples, "version": samples.astype(jnp.int32), "worker": worker}
        return update(updates, state, PARAMS, weight=weight, **given)

    return jax.vmap(one, axis_name=AXIS)(updates, states, weights, jnp.arange(N))


def start(method):
    state = method.exchange.init(PARAMS)
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (N, *jnp.shape(a))), state)


def run(method, updates=1, weights=None, occupied=4):
    """Return (sum of the dense means, sum of what came out, last states)."""
    weights = np.ones((updates, N), np.float32) if weights is None else weights
    states, totals = start(method), None
    for t in range(updates):
        given = gradients(t, occupied), jnp.asarray(weights[t]), jnp.float32(8 * t)
        out, states = exchange(method.exchange.update, states, *given)
        dense, _ = exchange(DENSE, optax.EmptyState(), *given)
        both = jax.tree.map(lambda a: np.asarray(a[0], np.float64), (dense, out))
        totals = both if totals is None else jax.tree.map(np.add, totals, both)
    return *totals, states


METHODS = {
    "s2_reducer/unbiased": lambda: use.s2_reducer(SGD, rows=1, ratio=0.6, seed=3),
    "random_k/unbiased": lambda: use.random_k(SGD, ratio=0.3, error_feedback=False, seed=3),
    "qsgd": lambda: use.qsgd(SGD, levels=2, seed=3),
    "natural_compression": lambda: use.natural_compression(SGD, seed=3),
    "s2_reducer": lambda: use.s2_reducer(
        SGD, rows=3, budget=16, peel=False, error_feedback=True, warmup_updates=2
    ),
    "random_k": lambda: use.random_k(SGD, ratio=0.1),
    "powersgd": lambda: use.powersgd(SGD, rank=1),
    "ef_sign": lambda: use.ef_sign(SGD),
    "sparse_all_gather": lambda: use.sparse_all_gather(SGD, budget=4),
    "top_k/momentum": lambda: use.top_k(SGD, momentum=0.9),
    "sketched_sgd": lambda: use.sketched_sgd(SGD),
}


@functools.cache
def built(name):
    """Return the method of that name, one object, so that tests share its compiled exchange."""
    return METHODS[name]()


# Of top_k and signs: see test_formulas.py.
@pytest.mark.parametrize("name", ["powersgd", slow("s2_reducer")])
def test_error_feedback_conserves_sums(name):
    """All that was sent and the weighed residuals of all workers are the sum of the dense means."""
    weights = np.float32([3, 1, 2, 2])  # of which 5 take part in every update
    taking_part = np.array([[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 1, 1], [1, 0, 0, 1]])
    wanted, got, states = run(built(name), 5, taking_part * weights)
    found, wanted = jax.tree.leaves(got), jax.tree.leaves(wanted)
    # The last leaf is the one that some methods compress alone: the table.
    for i, memory in enumerate(states.reducers, len(found) - len(states.reducers)):
        found[i] = found[i] + np.tensordot(weights / 5.0, memory.residual, 1)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


@functools.partial(jax.jit, static_argnums=0)
def alone(update, gradient, state, weight=None):
    """Return (the mean over one worker, its state)."""

    def one(gradient, state):
        return update(gradient, state, samples=0.0, version=0, weight=weight)

    return jax.vmap(one, axis_name=AXIS)(gradient, state)


def test_momentum_correction_by_hand():
    """Of one entry of two that is sent, velocity and residual are cleared; the other grows."""
    method = use.top_k(SGD, ratio=0.5, momentum=0.5)
    state = jax.tree.map(lambda a: a[None], method.exchange.init(jnp.zeros(2)))
    sent = []
    for _ in range(3):
        out, state = alone(method.exchange.update, jnp.array([[4.0, 1.0]]), state)
        sent.append(out[0].tolist())
    # The second entry owes 1, then 1 + 1.5, then 1 + 1.5 + 1.75.
    assert sent == [[4, 0], [4, 0], [0, 4.25]]
    out, after = alone(method.exchange.update, jnp.array([[9.0, 9.0]]), state, 0.0)
    assert out[0].tolist() == [0, 0]  # of a worker that has finished nothing
    jax.tree.map(np.testing.assert_array_equal, after.reducers, state.reducers)


@pytest.mark.slow
def test_memory_of_short_floats_is_not_rounded():
    """Three mini-batches of 1 + 2^-7 weigh what bfloat16 cannot hold."""
    method, gradient = use.top_k(SGD, ratio=0.5), jnp.array([[4.0, 1 + 2.0**-7]], jnp.bfloat16)
    state = jax.tree.map(lambda a: a[None], method.exchange.init(gradient[0]))
    out, state = alone(method.exchange.update, gradient, state, 3.0)
    assert out.dtype == jnp.bfloat16 and out[0].tolist() == [4, 0]
    assert state.reducers[0].residual[0].tolist() == [0, 1 + 2.0**-7]


@pytest.mark.slow
def test_warm_up_is_dense_for_so_many_updates():
    method = use.powersgd(SGD, rank=1, warmup_updates=2)
    states, equal = start(method), []
    for t in range(3):
        given = gradients(t), jnp.ones(N), jnp.float32(8 * t)
        out, states = exchange(method.exchange.update, states, *given)
        dense, _ = exchange(DENSE, optax.EmptyState(), *given)
        equal.append(np.array_equal(*(tree["table"]["embedding"] for tree in (out, dense))))
    assert equal == [True, True, False]


def test_a_worker_may_deliver_twice_to_a_codec_that_keeps_nothing_of_it():
    """All entries are sent here, by hand. Counters of fallbacks are no memory either."""
    law = delays.exponential(1.0)
    sent = use.random_k(SGD, ratio=1.0, error_feedback=False)
    (found,), schedule = quadratics.simulated(sent, "k_batch_async", law, 20, k=6)
    assert schedule.twice.any()
    versions = [np.zeros(quadratics.D)]
    for who, read in zip(schedule.workers, schedule.version, strict=True):
        apart = np.array(versions)[read] - quadratics.CENTRE[who]
        versions.append(versions[-1] - 0.1 * (quadratics.CURVATURE[who] * apart).mean(0))
    np.testing.assert_allclose(found, versions[-1], rtol=1e-5, atol=1e-6)
    twice = planned.rule("k_batch_async", law, N, k=3).turnout
    assert base.misfit(use.sparcml(SGD), N, twice, PARAMS) is None
    assert "keeps memory per worker" in base.misfit(use.top_k(SGD), N, twice, PARAMS)


def barrier(updates):
    return planned.plan("barrier", delays.deterministic(1.0), N, updates)


@pytest.mark.slow
def test_the_ratio_of_top_k_falls_in_five_stages():
    """From 0.01^(1/5) = 0.4 on; what a worker has just sent it does not owe."""
    method = use.top_k(SGD, ratio=0.01, warmup_updates=4)
    states, sent = start(method), []
    for t in range(6):
        rng = np.random.default_rng(t)
        given = jax.tree.map(lambda p, rng=rng: rng.normal(size=(N, *p.shape)), PARAMS)
        _, states = exchange(method.exchange.update, states, given, jnp.ones(N), jnp.float32(t))
        sent.append([int((memory.residual[0] == 0).sum()) for memory in states.reducers])
    of_both = [[25, 76], [10, 30], [4, 12], [2, 5], [1, 2], [1, 2]]  # of 64 and 192 entries
    assert sent == of_both
    counted = sent_bytes(method, PARAMS, barrier(6))
    np.testing.assert_array_equal(counted, 3 * 8 * np.sum(of_both, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s2_reducer/unbiased", "random_k/unbiased"])
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


@pytest.mark.parametrize("name", ["ef_sign", slow("s2_reducer"), slow("sketched_sgd")])
def test_nan_surfaces_unless_its_worker_has_no_weight(name):
    method, given = built(name), gradients()
    for leaf in jax.tree.leaves(given):
        leaf[2].flat[np.flatnonzero(leaf[2])[0]] = np.nan

    def step(weights):
        out, _ = exchange(method.exchange.update, start(method), given, weights, jnp.float32(0))
        out = jax.tree.map(lambda a: a[0], out)
        if name != "sketched_sgd":
            return jax.tree.leaves(out)
        served = jax.jit(method.server.update)(out, method.server.init(PARAMS), PARAMS, batches=4)
        return jax.tree.leaves(served[0])

    seen = [np.isnan(leaf).any() for leaf in step(jnp.ones(N))]
    assert any(seen) if name == "sketched_sgd" else all(seen)
    assert all(np.isfinite(a).all() for a in step(jnp.array([1.0, 1, 0, 1])))


def test_workers_round_apart_and_parameters_are_drawn_apart():
    """Of 3 on all workers natural compression makes 2 or 4, and 3 in the mean of four workers."""
    given = jax.tree.map(lambda p: jnp.full((N, *p.shape), 3.0), PARAMS)
    method = built("natural_compression")
    out, _ = exchange(method.exchange.update, start(method), given, jnp.ones(N), jnp.float32(0))
    matrix, table = (leaf[0].ravel() for leaf in jax.tree.leaves(jax.device_get(out)))
    assert {2.5, 3.0, 3.5} <= set(matrix.tolist())
    assert (matrix != table[:64]).any()


ADDRESS = {"samples": 64.0, "version": 3, "first": 12, "worker": 1}
# All that round at random draw for themselves alone, `random_k` for all workers alike.
FOLLOWS = {"qsgd": ("version", "first", "worker"), "random_k": ("samples",)}


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


def test_shared_draws_do_not_repeat_however_long_the_run():
    """From 2^24 on, float32 knows no difference between counts that differ by one."""
    update = use.random_k(SGD, ratio=0.05, error_feedback=False).exchange

    @jax.jit
    def picked(**known):
        def one(worker):
            given = {"version": 0, "worker": worker, **known}
            return update.update(jnp.ones(200), update.init(jnp.zeros(200)), None, **given)[0]

        return jax.vmap(one, axis_name=AXIS)(jnp.arange(2))[0] != 0

    counts = [start + later for start in (2**24, 2**32) for later in range(3)]
    found = [picked(**hashing.counted(jnp.asarray(hashing.words(count)))) for count in counts]
    assert len({tuple(np.flatnonzero(entries).tolist()) for entries in found}) == len(counts)


def test_payloads_are_those_of_the_messages():
    """Bitmap of 64 bits in 2 words, padded to a word per worker; 12 columns or 8 rows of 12 bytes.

    A peeled sketch has 3 x 2 buckets for 4 rows, or 3 x 20 for 40 of 192 elements.
    """
    ring, dense = 6 / 4, cost.ring_all_reduce_bytes(WHOLE, N)
    for method, expected in (
        (use.s2_reducer(SGD, rows=1, budget=4), ring * (16 + 12 * 12)),
        (use.s2_reducer(SGD, rows=3, budget=4),
         ring * 16 + cost.ring_all_reduce_bytes(6 * 12, N)),
        (use.s2_reducer(SGD, rows=3, budget=40, granularity="element"), ring * (32 + 60 * 4)),
        (use.s2_reducer(SGD, exact=True, budget=8), ring * (16 + 8 * 12)),
        (use.s2_reducer(SGD, rows=1, budget=4, warmup_updates=3),
         [dense] * 3 + [ring * (16 + 12 * 12)] * 5),
    ):  # fmt: skip
        np.testing.assert_array_equal(sent_bytes(method, TABLE, barrier(8)) - expected, 0)
    empty = {"embedding": jnp.zeros((0, WIDTH))}
    for method in (use.top_k(SGD), use.random_k(SGD), use.s2_reducer(SGD, exact=True)):
        assert sent_bytes(method, empty, barrier(1)) == 0
    agreement = cost.ring_all_reduce_bytes(4, N)
    assert sent_bytes(use.sparse_all_gather(SGD), empty, barrier(1)) == agreement


# Exact sparse reducers: the dense mean to rounding, whatever fits, and what they send in order.
SPARSE = {"sparse": PATHS}
RIVALS = {
    "sparcml": lambda budget: use.sparcml(SGD, **SPARSE, budget=budget),
    "omnireduce of blocks": lambda budget: use.omnireduce(SGD, **SPARSE, block=7, budget=budget),
    "parallax": lambda budget: use.parallax(SGD, **SPARSE, budget=budget),
    "sparse_all_gather": lambda budget: use.sparse_all_gather(SGD, **SPARSE, budget=budget),
    "s2_reducer, exact": lambda budget: use.s2_reducer(
        SGD, **SPARSE, exact=True, budget=N * budget
    ),
    "s2_reducer of elements": lambda budget: use.s2_reducer(
        SGD, **SPARSE, granularity="element", budget=N * WIDTH * budget
    ),
}


@pytest.mark.parametrize("name", slow_but(("sparse_all_gather",), RIVALS))
def test_the_dense_mean_whether_or_not_it_fits(name):
    """Weights are whole numbers, so that sums are exact; a sketch's are to rounding."""
    weights = np.array([[1, 1, 1, 1], [2, 0, 1, 3]], np.float32)
    for budget, fits in ((4, True), (1, False)):
        method = RIVALS[name](4 * budget if "blocks" in name else budget)
        wanted, got, states = run(method, 2, weights, occupied=4 if fits else 16)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), got, wanted)
        counts = method.metrics(states)
        assert counts["fallbacks"] == (0 if fits else 2)
        assert (counts["unresolved"] > 0) == (not fits)


def test_sparcml_sends_a_list_to_each_partner_and_then_the_array():
    """Lists of 16 and 32 rows of 16 bytes, of 64 rows of 12 bytes: 256 and 512 of 768 bytes."""
    method = use.sparcml(SGD, budget=16)
    agreement, *lists = method.messages(TABLE, N, Row(0))
    assert agreement.reduced == (4,)
    assert [payload.exchanged for payload in lists] == [256, 512]
    assert [collective_bytes(payload, N) for payload in lists] == [256, 512]
    *_, last = use.sparcml(SGD, budget=30).messages(TABLE, N, Row(0))
    assert last.exchanged == WHOLE
    # Two tables travel together, step by step.
    both = method.messages({"embedding": TABLE, "embeddings": TABLE}, N, Row(0))
    assert [payload.exchanged for payload in both] == [0, 512, 1024]
    # An hour to start, a second per byte: a step is a message, the agreement a ring of 6.
    network = cost.uniform_network(3600.0, 1.0, workers=N)
    assert exchange_seconds(method, TABLE, N, network)(0) == 3600 * (2 + 6) + 256 + 512 + 6 * 1


def test_owners_get_own_rows_and_send_sums():
    """Room for 4 + 4 sigma = 11 of 16 own rows, and for all 16 that an owner has."""
    method = use.parallax(SGD, budget=16)
    _, push, pull = method.messages(TABLE, N, Row(0))
    assert (push.gathered, pull.gathered) == ((11 * 16,), (16 * 16,))
    _, _, pull = use.parallax(SGD, budget=16, union_ratio=0.25).messages(TABLE, N, Row(0))
    assert pull.gathered == (11 * 16,)
    for pushing in (method, use.sparcml(SGD, budget=16)):
        (pushed,) = pushing.messages(TABLE, N, Row(0, pushed=True))
        assert pushed.size == 16 * 16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparcml", "sparse_all_gather"])
def test_bytes_and_seconds_of_fallbacks_are_those_of_what_was_sent(name):
    """The planned messages are not sent then, except the one that shows that they do not fit."""
    method = RIVALS[name](1)
    _, _, states = run(method, 2, occupied=16)
    found = method.fallbacks(states, PARAMS, N, Row(0))
    assert found.updates == 2 and sum(a.times for a in found.alternatives) == 2
    network = cost.uniform_network(0.0, 1.0, workers=N)
    planned = 2 * exchange_seconds(method, PARAMS, N, network)(0)
    more = fallback_bytes(found, N)
    assert more > 0
    # Without start-up costs a ring, and each of these steps, takes a second per byte sent.
    assert fallback_seconds(found, N, network) == pytest.approx(more, rel=0.05, abs=16)
    dense = cost.ring_all_reduce_bytes(4 * 64, N) + cost.ring_all_reduce_bytes(WHOLE, N)
    assert planned + more == pytest.approx(2 * dense, rel=0.1)


@pytest.mark.slow
def test_a_pull_that_does_not_fit_has_cost_the_push():
    method = use.parallax(SGD, sparse=PATHS, budget=16, union_ratio=0.02)
    _, _, states = run(method, 1, occupied=12)
    found = method.fallbacks(states, PARAMS, N, Row(0))
    assert [alternative.times for alternative in found.alternatives] == [0, 1]
    _, _, pull, _ = method.messages(PARAMS, N, Row(0))
    more = cost.ring_all_reduce_bytes(WHOLE, N) - collective_bytes(pull, N)
    assert fallback_bytes(found, N) == more
