"""The gradient of one worker: narrow matrices are transposed, unfinished samples left out."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, local_sgd
from runtimes import simulate, worker
from stragglers import delays
from stragglers.rules.replay import recorded
from tests import planned

SHAPES = {"narrow": (40, 3), "wide": (3, 40), "bias": (3,), "scale": ()}


def losses(params, examples):
    hidden = jnp.tanh(examples @ params["narrow"] + params["bias"][None])
    return (params["scale"] * (hidden @ params["wide"])[:, 0] - 1) ** 2


def made(seed, leading=()):
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=leading + shape).astype(np.float32)
              for name, shape in SHAPES.items()}  # fmt: skip
    return params, rng.normal(size=(*leading, 7, 40)).astype(np.float32)


def plain(params, examples):
    return jax.grad(lambda p: losses(p, examples).mean())(params)


def ours(params, examples):
    return worker.gradient(losses, params, examples, jnp.full(7, 1 / 7))


@pytest.mark.parametrize("workers", [(), (4,)])
def test_a_gradient_has_the_values_and_the_shapes_of_a_plain_one(workers):
    given = made(0, workers)
    expected, found = (jax.vmap(f) if workers else f for f in (plain, ours))
    for got, known in zip(
        *(jax.tree.leaves(jax.jit(f)(*given)) for f in (found, expected)), strict=True
    ):
        assert got.shape == known.shape
        np.testing.assert_allclose(got, known, rtol=1e-5, atol=1e-6)


class Apart:
    """A sampler that gives every mini-batch (worker, counter) samples of its own."""

    batch_size = 2

    def indices(self, workers, counters):
        place = 4 * np.asarray(workers)[..., None] + np.asarray(counters)[..., None]
        return (2 * place + np.arange(2)).astype(np.int32)


@pytest.mark.parametrize("method", [all_reduce, local_sgd])
def test_a_simulated_update_reads_nothing_of_what_was_not_finished(method):
    """A weight of 0 would not keep a NaN out; one worker is idle."""
    batches = np.array([[4, 2, 0]], np.int32)
    rule = planned.rule("barrier", delays.deterministic(1.0), 3, 4)
    schedule = replace(rule.extend(rule.init(), 1)[1], batches=batches)
    rng = np.random.default_rng(0)
    clean = {name: rng.normal(size=(24, *shape)).astype(np.float32)
             for name, shape in (("x", (5,)), ("y", ()))}  # fmt: skip
    unfinished = np.repeat(np.arange(4) >= batches[0][:, None], 2)
    poisoned = {name: a.copy() for name, a in clean.items()}
    poisoned["x"][unfinished], poisoned["y"][unfinished] = np.nan, np.inf

    def trained(examples):
        runtime = simulate.Simulator(
            method(optax.sgd(0.1)), lambda w, e: (e["x"] @ w - e["y"]) ** 2, examples, Apart(),
            recorded(schedule), mini_batches=4,
        )  # fmt: skip
        state, _ = runtime.advance(runtime.start(np.ones(5, np.float32)), np.inf, 1)
        return np.asarray(runtime.models(state))

    expected = trained(clean)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(trained(poisoned), expected)
