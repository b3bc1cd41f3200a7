"""1-bit Adam: Adam first, then momentum in signs with memories on both sides."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, one_bit_adam
from algorithms.base import AXIS, scale_by_samples
from tests.marks import slow

N, WARM = 4, 6
RATE = 0.1
SHAPES = {"w": (40, 16), "b": (3,)}


def gradients(update, scale=1.0):
    """Return gradients [N, ...] of every worker, about a common one."""
    rng = np.random.default_rng(update)
    return {
        name: np.float32(
            scale * (rng.standard_normal(shape) + 0.3 * rng.standard_normal((N, *shape)))
        )
        for name, shape in SHAPES.items()
    }


def start(method):
    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    state = method.exchange.init(params)
    stacked = jax.tree.map(lambda a: jnp.broadcast_to(a, (N, *jnp.shape(a))), state)
    return params, stacked, method.server.init(params)


@functools.lru_cache
def program(method):
    def of_worker(gradient, state, weight, samples):
        given = {"samples": samples, "version": 0, "weight": weight}
        return method.exchange.update(gradient, state, **given)

    return jax.jit(jax.vmap(of_worker, in_axes=(0, 0, 0, None), axis_name=AXIS))


@functools.lru_cache
def served(method):
    return jax.jit(method.server.update)


def exchange(method, gradient, state, weights=None, samples=0.0):
    """Return (direction [N, ...], states) of an update."""
    weights = jnp.ones(N) if weights is None else jnp.asarray(weights, jnp.float32)
    return program(method)(gradient, state, weights, samples)


def step(method, params, state, server, gradient, weights=None):
    direction, state = exchange(method, gradient, state, weights)
    mine = jax.tree.map(lambda a: a[0], direction)
    batches = N if weights is None else int(np.sum(weights))
    updates, server = served(method)(mine, server, params, batches=batches, samples=0.0)
    return optax.apply_updates(params, updates), state, server


def test_the_warm_up_is_adam():
    """To the rounding of float32: multiplications and additions may be fused in one of the two."""
    ours = one_bit_adam(scale_by_samples(RATE), N, warmup_updates=WARM)
    adam = all_reduce(optax.chain(optax.scale_by_adam(), scale_by_samples(RATE)))
    one, other = start(ours), start(adam)
    for update in range(WARM):
        one = step(ours, *one, gradients(update))
        other = step(adam, *other, gradients(update))
        moments = jax.tree.map(lambda a: a[0], one[1].adam)
        near = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-7)
        jax.tree.map(near, (one[0], moments), (other[0], other[2][0]))
    one, other = step(ours, *one, gradients(WARM)), step(adam, *other, gradients(WARM))
    assert not np.allclose(one[0]["w"], other[0]["w"], rtol=1e-3)


def signs(x):
    """Return signs times mean magnitude of every chunk [..., m]; a zero counts as positive."""
    return np.where(x < 0, -1, 1) * np.abs(x).mean(axis=-1, keepdims=True)


def test_after_it_both_sides_remember_what_signs_leave_out():
    """The paper's Algorithm 1 in NumPy, chunk by chunk, on three weights that differ."""
    method = one_bit_adam(scale_by_samples(RATE), N, warmup_updates=WARM)
    _, state, _ = start(method)
    weights = np.float32([1, 2, 3, 0])
    for update in range(WARM):
        _, state = exchange(method, gradients(update), state)
    momentum, variance = (
        np.array(part["w"][0], np.float64).reshape(N, -1) for part in state.adam[1:]
    )
    corrected = np.sqrt(variance / (1 - 0.999**WARM)) + 1e-8
    of_workers, of_sums = np.zeros((N, *momentum.shape)), np.zeros(momentum.shape)
    for update in range(WARM, WARM + 8):
        given = gradients(update)
        direction, state = exchange(method, given, state, weights)
        local = 0.9 * momentum + 0.1 * given["w"].reshape(N, N, -1)
        owed = local + of_workers
        sent = signs(owed)  # of an entry, whatever weight its worker has
        of_workers = np.where(weights[:, None, None] > 0, owed - sent, of_workers)
        total = np.tensordot(weights / weights.sum(), sent, 1) + of_sums
        momentum = signs(total)
        of_sums = total - momentum
        found = np.asarray(direction["w"])
        np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
        np.testing.assert_allclose(found[0].reshape(N, -1), momentum / corrected, rtol=2e-4)
        np.testing.assert_array_equal(np.asarray(state.adam.nu["w"][0]).reshape(N, -1), variance)
        memory = state.reducers[-1]
        np.testing.assert_allclose(
            np.asarray(memory.residual).reshape(of_workers.shape), of_workers, atol=1e-5
        )
        np.testing.assert_allclose(memory.inner, of_sums, atol=1e-5)
    assert np.abs(of_workers).max() > 0.01 and np.abs(of_sums).max() > 0.01


@pytest.mark.parametrize(
    ("rows", "early"), [([5], 0.0), slow([5], 1e-12), ([*range(6), *range(7, 40)], 0.0)]
)
def test_what_has_no_gradient_in_the_warm_up_trains_after_it(rows, early):
    """By its parameter's mean variance, or by that of all parameters; its own sets no bounds."""
    method = one_bit_adam(scale_by_samples(RATE), N, warmup_updates=WARM)
    params, state, server = start(method)
    for update in range(WARM + 40):
        given = gradients(update)
        given["w"][:, rows] = 1.0 if update >= WARM else early
        given["w"][:, 6] = 0
        params, state, server = step(method, params, state, server, given)
        found = method.metrics(state)["entries_without_variance"]
        assert found == (len(rows) + 1) * SHAPES["w"][1]
    moved = np.asarray(params["w"])
    assert (moved[rows] < -5 * RATE).all() and np.abs(moved).max() < 100 * RATE
    assert np.abs(moved[6]).max() < 5 * RATE  # what never has a gradient stays about where it is


@pytest.mark.parametrize("update", [2, WARM + 2])
def test_an_update_without_anybody_changes_nothing_but_the_count(update):
    method = one_bit_adam(scale_by_samples(RATE), N, warmup_updates=WARM)
    given = start(method)
    for earlier in range(update):
        given = step(method, *given, gradients(earlier))
    after = step(method, *given, gradients(99), np.zeros(N))
    assert (np.asarray(after[1].update) == update + 1).all()
    same = given[1]._replace(update=after[1].update)
    jax.tree.map(np.testing.assert_array_equal, (given[0], same), after[:2])


def test_squares_of_short_floats_do_not_overflow():
    """Adam's first step has length `rate`, as in float32; 3000 squared is beyond float16."""
    method = one_bit_adam(scale_by_samples(RATE), N, warmup_updates=WARM)
    params = jnp.zeros(2, jnp.float16)
    state = jax.tree.map(lambda a: jnp.stack([a] * N), method.exchange.init(params))
    found, _ = exchange(method, jnp.full((N, 2), jnp.float16([3000, 0])), state)
    np.testing.assert_allclose(np.float32(found[0]), [1, 0], rtol=1e-3)
