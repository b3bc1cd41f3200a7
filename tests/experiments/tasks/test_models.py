"""Models: sizes, batches, and modules of both of flax's interfaces that are brought along."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import nonblocking
from experiments import sweep, tasks, train
from experiments.tasks.models import MODELS, product_of_patches
from tests.experiments.test_checkpoints import left
from tests.marks import slow
from tests.refusals import sentence


@pytest.mark.parametrize(("name", "given"), [("cnn", {}), slow("resnet18", {"width": 16})])
def test_logits_of_an_image_do_not_depend_on_its_batch(name, given):
    model = MODELS[name](10, **given)
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


@pytest.mark.parametrize(("size", "stride", "side"), [(3, 1, 8), (3, 2, 7), (1, 2, 8)])
def test_a_product_of_patches_is_the_convolution(size, stride, side):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, side, side, 3), np.float32)
    kernel = rng.standard_normal((size, size, 3, 5), np.float32)
    expected = jax.lax.conv_general_dilated(
        images, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = product_of_patches(images, kernel, (stride, stride), "SAME")
    np.testing.assert_allclose(found, expected, atol=1e-4)


MODULE = '''
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx


def waves(key, shape, dtype=jnp.float32, out_sharding=None):
    """Weights that no key changes."""
    return jnp.sin(jnp.arange(np.prod(shape), dtype=dtype)).reshape(shape)


def plain(classes: int, width: int = 8):
    hidden = linen.Dense(width, kernel_init=waves)
    last = linen.Dense(classes, kernel_init=waves)
    return linen.Sequential([flat, hidden, linen.relu, last])


class Plain(nnx.Module):
    def __init__(self, classes: int, width: int = 8, drawn: bool = False, *, rngs: nnx.Rngs):
        given = {} if drawn else {"kernel_init": waves}
        sizes = ((64, width), (width, classes))
        self.layers = nnx.List([nnx.Linear(*size, rngs=rngs, **given) for size in sizes])
        self.scale = jnp.ones(64)

    def __call__(self, images):
        hidden, last = self.layers
        return last(nnx.relu(hidden(flat(images) * self.scale[None])))


def fixed(classes: int):
    return Plain(classes, drawn=True, rngs=nnx.Rngs(7))


class Dropping(nnx.Module):
    def __init__(self, classes: int, *, rngs: nnx.Rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, images):
        return self.last(self.drop(flat(images)))


def normed(classes: int):
    return linen.Sequential([flat, linen.BatchNorm(False), linen.Dense(classes)])


class dropping(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, images, train=False):
        dropped = linen.Dropout(0.5, deterministic=not train)(flat(images))
        return linen.Dense(self.classes)(dropped)


def flat(images):
    return images.reshape(len(images), -1)
'''

CHANGES = {
    "workers": 4, "batch_size": 8, "mini_batches": 1, "algorithm": "dpsgd", "seconds": 1.0,
    "wait": "neighbour_barrier", "delay": "exponential(scale=0.05)", "evaluate_every": 0.25,
    "communication": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Return the name of a module that is not of this project."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "own_models.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "own_models"


def configured(model, **changes):
    task = {"task": f"digits(model={model})"}
    return sweep.override(nonblocking.get_config(), CHANGES | task | changes)


def stored(workdir):
    with np.load(workdir / "parameters.npz") as file:
        return {name.removeprefix("params/"): value for name, value in file.items()}


@pytest.mark.slow
def test_a_module_of_nnx_trains_as_its_twin_of_linen(mine, tmp_path):
    for name in ("Plain", "plain"):
        train.run(configured(f"{mine}:{name}"), tmp_path / name)
    ours, twins = left(tmp_path / "Plain")[1], left(tmp_path / "plain")[1]
    for record, twin in zip(ours, twins, strict=True):
        assert record == pytest.approx(twin, rel=1e-6)
    assert len(ours) > 3 and ours[-1]["train_loss"] < 0.8 * ours[0]["train_loss"]
    ours, twins = stored(tmp_path / "Plain"), stored(tmp_path / "plain")
    for number, layer in enumerate(("layers_1", "layers_3")):
        for name in ("kernel", "bias"):
            np.testing.assert_allclose(
                ours[f"layers/{number}/{name}"], twins[f"{layer}/{name}"], rtol=1e-5, atol=1e-6
            )


def test_weights_are_the_seeds_where_a_factory_takes_rngs(mine):
    def kernels(model):
        init = tasks.build(f"digits(model={mine}:{model})").init
        return [init(jax.random.key(seed))["layers"][0]["kernel"] for seed in (0, 1)]

    drawn, kept = kernels("Plain(drawn=true)"), kernels("fixed")
    assert np.abs(drawn[0] - drawn[1]).max() > 0.1
    np.testing.assert_array_equal(*kept)
    own = importlib.import_module(mine).fixed(10).layers[0].kernel
    np.testing.assert_array_equal(own[...], kept[0])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("normed", "the model keeps batch_stats beside its parameters, as BatchNorm does, and"),
        ("dropping", "the model has random layers, as Dropout, and gets no keys for them; leave"),
        ("Dropping", "the model has random layers"),
    ],
)
def test_what_is_more_than_parameters_is_refused_before_anything_is_written(
    mine, tmp_path, model, words
):
    with sentence(words):
        train.run(configured(f"{mine}:{model}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
