"""The gradient of one worker, whose narrow matrices are transposed on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtimes import worker

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
    return worker.gradient(losses, params, examples, jnp.full(7, 1 / 7), None)


@pytest.mark.parametrize("workers", [(), (4,)])
def test_a_gradient_has_the_values_and_the_shapes_of_a_plain_one(workers):
    given = made(0, workers)
    expected, found = (jax.vmap(f) if workers else f for f in (plain, ours))
    for got, known in zip(
        *(jax.tree.leaves(jax.jit(f)(*given)) for f in (found, expected)), strict=True
    ):
        assert got.shape == known.shape
        np.testing.assert_allclose(got, known, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_narrow_matrix_alone_is_kept_transposed():
    """Behind a barrier, without which XLA merges the transpose into the slower product again."""
    jaxpr = jax.make_jaxpr(ours)(*made(0)).jaxpr
    held = [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    assert [e.outvars[0].aval.shape for e in held] == [SHAPES["narrow"][::-1]]
