"""Reducers by name and in chains, on arrays small enough to work out by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, local_sgd
from algorithms import reducers as by
from algorithms.base import AXIS
from algorithms.compression import Draw
from comms import sparse
from comms.messages import Payload, Row
from configs import nonblocking
from experiments import prepare, sweep

N = 4
KEY = jax.random.key(3)


@functools.lru_cache
def program(reducer):
    """Return (x [N, ...], states, workers, weights) -> what `reduced` gives, compiled once."""

    def of_worker(x, state, me, weight):
        own = jax.random.fold_in(KEY, me)
        draw = Draw(KEY, own, weight, jnp.float32(3), jax.lax.psum(weight, AXIS), jnp.int32(0))
        return reducer.reduce(x, state, draw)

    return jax.jit(jax.vmap(of_worker, axis_name=AXIS))


def reduced(reducer, x, states=None, weights=(1, 1, 1, 1)):
    """Return (sums, what was sent, states), [N, ...] each, of x [N, ...], weighed, by `vmap`."""
    if states is None:
        states = jax.vmap(reducer.init)(jnp.asarray(x))
    return program(reducer)(jnp.asarray(x), states, jnp.arange(N), jnp.float32(weights))


VALUES = np.float32([[4, 1, 0, -3], [1, 2, 5, 0], [0, -6, 1, 7], [2, 1, 0, 1]])


def test_the_largest_entries_go_as_signs_of_their_own_mean():
    """The mean magnitude is that of the entries which are sent, 3.5, 3.5, 6.5 and 1.5."""
    total, sent, _ = reduced(by.chain(by.top_k(0.5), by.sign()), VALUES)
    expected = [[3.5, 0, 0, -3.5], [0, 3.5, 3.5, 0], [0, -6.5, 0, 6.5], [1.5, 1.5, 0, 0]]
    np.testing.assert_array_equal(sent, np.float32(expected))
    np.testing.assert_array_equal(total[0], np.float32(expected).sum(0))


@pytest.mark.slow
def test_three_in_a_chain_pick_of_what_was_picked():
    x = 2.0 ** np.random.default_rng(0).integers(0, 9, (N, 40)).astype(np.float32)
    total, sent, _ = reduced(by.chain(by.random_k(0.5), by.top_k(0.2), by.natural()), x)
    indices = np.asarray(sparse.random_indices(40, 20, jax.random.fold_in(KEY, 0)))
    for i in range(N):
        largest = indices[np.argsort(-x[i, indices], kind="stable")[:4]]
        np.testing.assert_array_equal(np.flatnonzero(sent[i]), np.sort(largest))
        np.testing.assert_array_equal(sent[i, largest], x[i, largest])
    np.testing.assert_array_equal(total[0], np.asarray(sent).sum(0))


WEIGHTS = np.float32([[1, 3, 2, 1], [3, 0, 1, 1], [0, 2, 1, 3], [2, 1, 0, 1], [1, 3, 3, 0]])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "inner",
    [
        (by.int8(bucket=4),),
        (by.sign(),),
        (by.top_k(0.1),),
        (by.random_k(0.5), by.int8(bucket=4)),
        (by.top_k(0.25), by.fp16()),
    ],
    ids=["int8", "sign", "top_k", "int8 of random_k", "fp16 of top_k"],
)
def test_a_memory_is_of_its_worker_alone_whatever_its_weights_are(inner):
    """Per worker: what was sent, divided by the weight then, and what is owed make up what it had.

    A worker of weight 0 bears the rounding of others with the weight of a full round, 3.
    """
    reducer, states = by.error_feedback(*inner), None
    rng, had, sent = np.random.default_rng(1), np.zeros((N, 40)), np.zeros((N, 40))
    for weights in WEIGHTS:
        x = rng.standard_normal((N, 40)).astype(np.float32) * (weights[:, None] > 0)
        total, became, states = reduced(reducer, weights[:, None] * x, states, weights)
        np.testing.assert_allclose(total[0], np.asarray(became).sum(0), atol=2e-5)
        had += x
        sent += np.asarray(became) / np.where(weights > 0, weights, 3)[:, None]
    np.testing.assert_allclose(sent + states.residual, had, atol=2e-5)
    assert (np.abs(states.residual).max(1) > 1e-3).all()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["bf16", "fp16", "int8", "fp8", "mxfp4", "int4", "ring", "memory"])
def test_a_push_to_a_server_is_one_message_which_is_rounded(name):
    """However many pushes of a matrix an update takes: a server sums what it has read."""
    of = {"ring": lambda: by.ring(by.int8()), "memory": lambda: by.error_feedback(by.int8())}
    reducer = of.get(name, getattr(by, name, None))()
    coder = {"ring": by.int8(), "memory": by.int8()}.get(name, reducer).encoder
    method, leaf = all_reduce(optax.sgd(1.0), exchange=reducer), np.zeros((31, 129), np.float32)
    for k in (1, 2, 3, 8):
        (payload,) = method.messages({"w": leaf}, k, Row(0, pushed=True))
        assert payload.size == coder.payload_bytes(leaf.size)
    x = np.random.default_rng(5).standard_normal((1, *leaf.shape)).astype(np.float32)
    draw = Draw(KEY, KEY, *map(jnp.float32, (1, 1, 1)), jnp.int32(0))
    body = jax.jit(jax.vmap(lambda x, s: reducer.reduce(x, s, draw), axis_name=AXIS))
    total, part, _ = body(x, jax.vmap(reducer.init)(x))
    assert (total != x).any() and np.abs(total - x).max() < np.abs(x).max() / 3
    np.testing.assert_array_equal(total, part)
    column, _, _ = body(x[..., None], jax.vmap(reducer.init)(x[..., None]))  # of any shape
    np.testing.assert_array_equal(column[..., 0], total)


def test_a_memory_refuses_codes_that_may_lose_all():
    """196 equal entries are half a level of 7 each: up or down, as much is lost as there is."""
    x = np.ones((N, 196), np.float32)
    _, sent, _ = reduced(by.quantise(bits=4, bucket=196), x)
    np.testing.assert_allclose(np.abs(x - sent), 1, rtol=1e-5)
    with pytest.raises(ValueError, match=r"bits=5\), or bucket=195"):
        by.error_feedback(by.quantise(bits=4, bucket=196))
    by.error_feedback(by.top_k(0.1), by.quantise(bits=4, bucket=195))


def test_who_is_idle_bears_the_rounding_of_others_with_the_weight_of_a_full_round():
    """Of three mini-batches, which an exchange knows as `nominal`."""
    exchange = all_reduce(optax.sgd(1.0), exchange=by.error_feedback(by.bf16())).exchange
    weights, units = np.float32([0, 3, 1, 2]), np.float32([3, 3, 1, 2])
    x = np.random.default_rng(2).standard_normal((N, 40)).astype(np.float32)
    x[0] = 0

    def of_worker(x, weight, me):
        given = {"weight": weight, "nominal": 3, "worker": me, "version": 0, "samples": 0.0}
        return exchange.update(x, exchange.init(x), x, **given)

    mean, state = jax.jit(jax.vmap(of_worker, axis_name=AXIS))(x, weights, jnp.arange(N))
    owed = np.asarray(state.reducers[0].residual)
    np.testing.assert_allclose(6 * mean[0] + units @ owed, weights @ x, atol=2e-5)
    assert np.abs(owed[0]).max() > 1e-3


def test_bytes_are_those_of_the_last_and_of_indices():
    """Of 1,000 entries; 100 values in 4 bits fill 13 words, with one norm."""
    leaf = jax.ShapeDtypeStruct((10, 100), jnp.float32)
    words = 4 * 13 + 4
    for reducer, expected in (
        (by.chain(by.random_k(0.1), by.quantise(bits=4)), Payload(gathered=(words,))),
        (by.chain(by.top_k(0.1), by.quantise(bits=4)), Payload(gathered=(words + 400,))),
        (by.chain(by.top_k(0.1), by.natural()), Payload(gathered=(104 + 400,))),
        (by.chain(by.random_k(0.1), by.top_k(0.1), by.sign()), Payload(gathered=(4 + 4 + 40,))),
        (by.error_feedback(by.top_k(0.1), by.sign()), Payload(gathered=(16 + 4 + 400,))),
        (by.chain(by.top_k(0.1), by.int8(bucket=25)), Payload(gathered=(100 + 4 * 4 + 400,))),
        (by.fp16(), Payload((2 * (1000 + N),), itemsize=1)),
        (by.error_feedback(by.random_k(0.1), by.bf16()), Payload((200,), itemsize=1)),
    ):
        assert reducer.payload(leaf, N, 0) == expected
    method = local_sgd(optax.sgd(0.1), exchange=by.top_k(0.1))
    (message,) = method.messages({"w": leaf}, N, Row(0))
    assert message == Payload(gathered=(800,), encoded=True)


def test_a_server_by_name_takes_the_mean_progress_for_a_gradient():
    """DiLoCo's outer step by hand: Nesterov with momentum 0.9 on the mean of base - live."""
    method = "local_sgd(server=momentum(decay=0.9, nesterov=true, learning_rate=0.7))"
    small = {"algorithm": method, "task": "digits(model=logistic)", "wait": "barrier"}
    config = sweep.override(nonblocking.get_config("workers=4"), small)
    server = prepare.prepare(config).algorithm.server
    params, state = jnp.zeros(2), server.init(jnp.zeros(2))
    momentum = np.zeros(2)
    for progress in ([1.0, 2.0], [0.5, -1.0]):
        update, state = server.update(jnp.float32(progress), state, params, batches=4, samples=0.0)
        momentum = 0.9 * momentum + progress
        np.testing.assert_allclose(update, -0.7 * (progress + 0.9 * momentum), rtol=1e-6)
