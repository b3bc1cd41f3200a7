"""Programs whose convolutions are brought into the layout of fast code: their values are equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtimes import equations, worker
from tests.marks import slow

KERNELS = [jax.random.normal(jax.random.key(i), (3, 3, *ends)) for i, ends in
           enumerate([(4, 8), (4, 8), (8, 8)])]  # fmt: skip
IMAGES = jax.random.normal(jax.random.key(9), (2, 8, 8, 4))
LAST = ("NHWC", "HWIO", "NHWC")


def plain(kernels, images):
    """Return a loss of a strided convolution, a grouped one with holes, and one in a loop."""
    first, grouped, repeated = kernels
    x = jax.lax.conv_general_dilated(images, first, (2, 2), "SAME", dimension_numbers=LAST)
    x = jnp.tanh(x)
    x = jax.lax.conv_general_dilated(
        x, grouped, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=LAST,
        feature_group_count=2,
    )  # fmt: skip

    def body(x, _):
        return jnp.tanh(jax.lax.conv_general_dilated(
            x, repeated, (1, 1), "SAME", dimension_numbers=LAST)), None  # fmt: skip

    return (jax.lax.scan(jax.checkpoint(body), x, None, length=2)[0] ** 2).sum()


def channels_first(kernels, images):
    x = jax.lax.conv(images.transpose(0, 3, 1, 2), kernels[0].transpose(3, 2, 0, 1), (1, 1), "SAME")
    return (x**2).sum()


@pytest.mark.parametrize(("loss", "workers"), [(plain, 3), slow(plain, 0), (channels_first, 0)])
def test_convolutions_have_their_channels_last_and_values_stay(loss, workers):
    def of_one(factor):
        gradient = jax.grad(loss)
        return gradient(jax.tree.map(lambda a: a * factor, KERNELS), IMAGES)

    def last(factor):
        gradient = equations.channels_last(jax.grad(loss))
        return gradient(jax.tree.map(lambda a: a * factor, KERNELS), IMAGES)

    factor = jnp.float32(0.1)
    if workers:
        of_one, last, factor = jax.vmap(of_one), jax.vmap(last), 0.1 * jnp.arange(1.0, 1 + workers)
    found, wanted = jax.jit(last)(factor), jax.jit(of_one)(factor)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * float(jnp.abs(b).max()))
    assert {e.params["dimension_numbers"].lhs_spec for e in convolutions(last, factor)} == {
        (0, 3, 1, 2)
    }


def test_gradients_of_all_runtimes_are_taken_so():
    def losses(kernels, images):
        return jax.vmap(lambda image: plain(kernels, image[None]))(images)

    weights = jnp.ones(len(IMAGES))
    found = convolutions(lambda k: worker.gradient(losses, k, IMAGES, weights), KERNELS)
    assert len(found) > 3
    assert all(e.params["dimension_numbers"].lhs_spec == (0, 3, 1, 2) for e in found)


def convolutions(function, *arguments):
    def within(jaxpr):
        for e in jaxpr.eqns:
            if e.primitive.name == "conv_general_dilated":
                yield e
            for program in equations.programs_in(e):
                yield from within(program.jaxpr)

    return list(within(jax.make_jaxpr(function)(*arguments).jaxpr))
