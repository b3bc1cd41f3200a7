"""Models that are brought along: both of flax's interfaces train, if they are parameters alone."""

import importlib

import jax
import numpy as np
import pytest

from configs import nonblocking
from experiments import sweep, tasks, train
from tests.experiments.test_checkpoints import left

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


class Words(nnx.Module):
    def __init__(self, vocabulary: int, *, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(vocabulary, 4, rngs=rngs)

    def __call__(self, words):
        return self.embedding(words)


class Normed(nnx.Module):
    def __init__(self, classes: int, *, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.last = nnx.Linear(64, classes, rngs=rngs)

    def __call__(self, images):
        return self.last(self.norm(flat(images)))


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


def attending(classes: int):
    attention = linen.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=False)
    return linen.Sequential([lambda x: x[..., 0], attention, flat, linen.Dense(classes)])


class twice(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, images):
        hidden = linen.Dense(8, name="layer")(flat(images))
        return linen.Dense(self.classes, name="layer")(hidden)


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
    """The name of a module that is not of this project."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "own_models.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "own_models"


@pytest.fixture(scope="module")
def trained(mine, tmp_path_factory):
    """A run with a module of nnx: its workdir and its summary."""
    workdir = tmp_path_factory.mktemp("runs") / "trained"
    return workdir, train.run(configured(f"{mine}:Plain"), workdir)


def configured(model, **changes):
    task = {"task": f"digits(model={model})"}
    return sweep.override(nonblocking.get_config(), CHANGES | task | changes)


def stored(workdir):
    with np.load(workdir / "parameters.npz") as file:
        return {name.removeprefix("params/"): value for name, value in file.items()}


@pytest.mark.slow
def test_a_module_of_nnx_trains_as_its_twin_of_linen(mine, trained, tmp_path):
    train.run(configured(f"{mine}:plain"), tmp_path)
    ours, twins = left(trained[0])[1], left(tmp_path)[1]
    for record, twin in zip(ours, twins, strict=True):
        assert record == pytest.approx(twin, rel=1e-6)
    assert len(ours) > 3 and ours[-1]["train_loss"] < 0.8 * ours[0]["train_loss"]
    ours, twins = stored(trained[0]), stored(tmp_path)
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


@pytest.mark.slow
@pytest.mark.parametrize("task", ["next_token", "language_model"])
def test_words_can_have_a_module_of_nnx(mine, task):
    words = "vocabulary=64, corpus=python(files=40)"
    built = tasks.build(f"{task}(model={mine}:Words, {words})")
    params = built.init(jax.random.key(0))
    losses = built.eval_losses(params, tasks.take(built.train, slice(4)))
    assert losses.shape == (4,) and np.isfinite(losses).all()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("normed", "the model keeps batch_stats beside its parameters, as BatchNorm does, and"),
        ("Normed", "the model keeps BatchStat beside its parameters, as BatchNorm does, and"),
        ("dropping", "the model has random layers, as Dropout, and gets no keys for them; leave"),
        ("Dropping", "the model has random layers, as Dropout, and gets no keys for them; leave"),
        ("attending", "the model has random layers, as Dropout, and gets no keys for them; leave"),
        ("twice", "the model cannot be built (Could not create submodule"),
        ("Plain(size=3)", "unknown parameter 'size'; it takes: width, drawn"),
    ],
)
def test_what_is_more_than_parameters_is_refused_before_anything_is_written(
    mine, tmp_path, model, words
):
    with pytest.raises(ValueError) as caught:
        train.run(configured(f"{mine}:{model}"), tmp_path / "run")
    assert words in str(caught.value) and not (tmp_path / "run").exists()
