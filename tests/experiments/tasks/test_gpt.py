"""The decoder-only transformer, and next-token prediction with it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from experiments import program_costs, tasks
from experiments.tasks import models, text, text_models
from experiments.tasks.text import END

WORDS = "corpus=python(files=40), vocabulary=64, length=12"
SMALL = f"next_token(model=gpt(layers=1, width=16, heads=2), {WORDS})"


@functools.cache
def small(spec=SMALL):
    task = tasks.build(spec)
    return task, task.init(jax.random.key(0))


def examples(task, count=5):
    return jax.tree.map(lambda a: jnp.asarray(a[:count]), task.train)


@functools.cache
def slope(spec=SMALL):
    """(losses, gradient of their mean) of the first five sequences."""
    task, _ = small(spec)
    chosen = examples(task)

    def mean(params):
        losses = task.losses(params, chosen)
        return losses.mean(), losses

    gradient, losses = jax.jit(jax.grad(mean, has_aux=True))(small()[1])
    return losses, gradient


def distance(a, b):
    """The largest difference of two trees, over the largest number of the second."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(b))
    return max(float(jnp.abs(x - y).max()) for x, y in pairs) / largest


# --- positions ---


def test_a_product_depends_on_the_distance_alone():
    rng = np.random.default_rng(0)
    query, key = (np.tile(rng.standard_normal((1, 1, 1, 8), "f4"), (1, 9, 1, 1)) for _ in range(2))
    products = np.einsum("bthd,bshd->ts", text_models.rotated(query), text_models.rotated(key))
    for offset in range(-8, 9):
        diagonal = np.diagonal(products, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    np.testing.assert_allclose(np.diagonal(products), (query * key)[0, 0].sum(), rtol=1e-5)


# --- what a word sees ---


@functools.cache
def states():
    module = text_models.gpt(64, layers=2, width=16, heads=2)
    params = jax.jit(module.init)(jax.random.key(0), np.zeros((1, 8), np.int32))
    params = jax.tree.map(lambda a: 5 * a, params)  # so that attention matters
    return jax.jit(lambda words: module.apply(params, words))


@pytest.mark.slow
def test_a_word_sees_what_stands_before_and_nothing_after():
    words = np.arange(10, 18, dtype=np.int32)[None]
    changed = words.copy()
    changed[0, 5] = 40
    before, after = states()(words), states()(changed)
    np.testing.assert_allclose(before[0, :5], after[0, :5], atol=1e-6)
    assert (np.abs(before[0, 5:] - after[0, 5:]).max(-1) > 1e-3).all()


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ((2, 16, 2), 64 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 64 + 2 * 16) + 16),
        ((10, 256, 8), 8192 * 256 + 10 * (4 * 256**2 + 3 * 256 * 704 + 2 * 256) + 256),
    ],
)
def test_parameter_counts(sizes, parameters):
    layers, width, heads = sizes
    module = text_models.gpt(64 if width == 16 else 8192, layers, width, heads)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"width": 20, "heads": 3}, "width must be a multiple of twice the heads.*try width=18"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
    ],
)
def test_sizes_that_make_no_model(given, words):
    with pytest.raises(ValueError, match=words):
        text_models.gpt(64, **given)


# --- the task ---


@pytest.mark.slow
def test_a_loss_is_that_of_its_documents_alone():
    """A sequence of two documents: the mean over the targets of both, each by itself."""
    task, params = small()
    losses = jax.jit(task.losses)
    lengths = (5, 6)
    words = np.random.default_rng(0).integers(2, 64, sum(lengths) + 2).astype(np.int32)
    words[[lengths[0], -1]] = END
    starts = np.array([0, lengths[0] + 1, len(words)])
    part = text.Documents(("a/0", "a/1"), words, starts)
    together = text.pack(part, 12).tokens
    assert together.shape == (1, 13)
    alone = []
    for begin, end in itertools.pairwise(starts):
        row = np.full((1, 13), END, np.int32)
        row[0, : end - begin] = words[begin:end]
        loss = losses(params, text.Sequences(jnp.asarray(row)))
        alone.append(float(loss[0]) * (end - begin - 1))
    whole = losses(params, text.Sequences(jnp.asarray(together)))
    np.testing.assert_allclose(whole[0], sum(alone) / sum(lengths), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["micro_batch=2", "micro_batch=1", "remat"])
def test_less_memory_gives_the_same_gradient(change):
    """Of five sequences: in parts that divide them or do not, or with blocks computed again."""
    leaner = SMALL.replace("heads=2", "heads=2, remat=true")
    if change != "remat":
        leaner = f"{SMALL[:-1]}, {change})"
    (losses, gradient), (whole, exact) = slope(leaner), slope()
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
    assert distance(gradient, exact) < 1e-5


@pytest.mark.slow
def test_bfloat16_computes_in_it_and_gives_float32_gradients():
    spec = f"{SMALL[:-1]}, compute=bfloat16)"
    short, params = small(spec)
    chosen, (losses, rounded) = examples(short), slope(spec)
    assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {jnp.dtype("float32")}
    assert losses.dtype == jnp.float32
    assert 1e-4 < distance(rounded, slope()[1]) < 0.05
    program = jax.make_jaxpr(jax.grad(lambda p: short.losses(p, chosen).mean()))(params)
    flops = program_costs.of_jaxpr(program.jaxpr).flops
    assert flops["bfloat16"] > 0.9 * flops.total()


@pytest.mark.parametrize("size", [0, -3])
def test_a_micro_batch_of_nothing_is_refused(size):
    with pytest.raises(ValueError, match=f"micro_batch must be at least 1 example, got {size}"):
        models.in_micro_batches(lambda params, examples: examples, size)


def without_a_table(vocabulary):
    return nn.Dense(vocabulary)


def test_a_model_without_a_table_is_refused():
    task = tasks.build(
        SMALL.replace("gpt(", f"{__name__}:without_a_table(").replace(
            "(layers=1, width=16, heads=2)", ""
        )
    )
    with pytest.raises(ValueError, match=r"has no nn\.Embed called 'embedding'"):
        jax.eval_shape(task.init, jax.random.key(0))
