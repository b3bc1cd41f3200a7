import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tasks.models import MODELS, cnn, logistic, mlp, product_of_patches, resnet18

SMALL = {"resnet18": {"width": 16}}


def count(model, shape):
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *shape)))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (logistic(10), (8, 8, 1), 64 * 10 + 10),
        (mlp(10), (8, 8, 1), 64 * 128 + 128 + 128 * 10 + 10),
        (mlp(3, hidden=(5, 4)), (2, 2, 1), 4 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3),
        (cnn(10), (28, 28, 1), 9 * 32 + 64 + 9 * 32 * 64 + 128 + 64 * 10 + 10),
        # The count of the usual CIFAR ResNet-18: GroupNorm has BatchNorm's scales and biases.
        (resnet18(10), (32, 32, 3), 11_173_962),
    ],
)
def test_parameter_counts(model, shape, parameters):
    assert count(model, shape) == parameters


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_an_image_do_not_depend_on_its_batch(name):
    model = MODELS[name](10, **SMALL.get(name, {}))
    rng = np.random.default_rng(0)
    images = rng.random((2, 8, 8, 1), np.float32)
    other = np.stack([images[0], rng.random((8, 8, 1), np.float32)])
    # Any parameters will do, and compiling a deep model's initialisation takes long.
    params = jax.tree.map(
        lambda leaf: rng.normal(scale=0.1, size=leaf.shape).astype(np.float32),
        jax.eval_shape(model.init, jax.random.key(0), images),
    )
    apply = jax.jit(model.apply)
    logits, among_others = apply(params, images), apply(params, other)
    assert logits.shape == (2, 10) and logits.dtype == jnp.float32
    np.testing.assert_allclose(logits[0], among_others[0], atol=1e-5)
    assert not np.allclose(logits[1], among_others[1], atol=1e-3)


@pytest.mark.parametrize("build", [lambda: cnn(10, channels=(8,)), lambda: resnet18(10, width=20)])
def test_channels_that_do_not_form_groups(build):
    with pytest.raises(ValueError, match="needs a multiple of 16 channels"):
        build()


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize("side", [8, 7])
def test_a_product_of_patches_is_the_convolution(size, stride, side):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, side, side, 3), np.float32)
    kernel = rng.standard_normal((size, size, 3, 5), np.float32)
    expected = jax.lax.conv_general_dilated(
        images, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = product_of_patches(images, kernel, (stride, stride), "SAME")
    np.testing.assert_allclose(found, expected, atol=1e-4)
