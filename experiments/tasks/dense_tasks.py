"""Tasks whose gradients are dense: images, and synthetic problems with a known optimum."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from experiments.kinds import Kind
from experiments.tasks import data, lean
from experiments.tasks.base import Task
from experiments.tasks.models import MODELS, scaled


def classification(
    name: str,
    dataset: data.Dataset,
    model: nn.Module,
    l2: float = 0.0,
    compute: str = "float32",
    micro_batch: int | None = None,
) -> Task:
    """Softmax cross-entropy of `model` on images, plus l2/2 times the squared parameters.

    compute: what the model computes in, float32 or bfloat16; the rest is in float32.
    micro_batch: images whose activations are in memory at a time; None: the whole mini-batch's.
    """
    dtype = lean.compute_type(compute)

    def init(key):
        return jax.jit(model.init)(key, dataset.train.image[:1])["params"]

    def logits(params, examples):
        images = lean.cast(scaled(examples.image), dtype)
        return model.apply({"params": lean.cast(params, dtype)}, images).astype(jnp.float32)

    def fit(params, examples):
        return optax.softmax_cross_entropy_with_integer_labels(
            logits(params, examples), examples.label
        )

    def hits(params, examples):
        return jnp.float32(logits(params, examples).argmax(-1) == examples.label)

    in_parts = lean.in_micro_batches(fit, micro_batch)

    def losses(params, examples):
        found = in_parts(params, examples)
        return found + 0.5 * l2 * optax.tree.norm(params, squared=True) if l2 else found

    correct = lean.in_micro_batches(hits, micro_batch)
    return Task(name, dataset.train, dataset.test, dataset.train.label, init, losses, correct)


def digits(
    model: str | Mapping, l2: float = 0.0, seed: int = 0, test_fraction: float = 0.2
) -> Task:
    """Classify scikit-learn's 8x8 digits; model: a key of MODELS and its parameters."""
    dataset = data.digits(seed, test_fraction)
    return classification("digits", dataset, _model(model, dataset.classes), l2)


def images(
    name: str,
    model: str | Mapping,
    l2: float = 0.0,
    data_dir: str | None = None,
    compute: str = "float32",
    micro_batch: int | None = None,
) -> Task:
    """Classify an image data set of TensorFlow Datasets; model: see `digits`."""
    built = _model(model, data.IMAGE_CLASSES[name])  # before any reading of data
    return classification(name, data.tfds_images(name, data_dir), built, l2, compute, micro_batch)


def labelled_images(
    source: str | Mapping,
    model: str | Mapping,
    l2: float = 0.0,
    compute: str = "float32",
    micro_batch: int | None = None,
) -> Task:
    """Classify the images of a source of data; model: see `digits`.

    source: a key of `data.SOURCES` and its parameters. A source of your own gives a `data.Dataset`
        whose examples are `data.Images`. compute, micro_batch: see `classification`.
    """
    dataset = SOURCE.build(source)
    model = _model(model, dataset.classes)
    return classification("images", dataset, model, l2, compute, micro_batch)


def noise(
    samples: int = 256, size: int = 32, channels: int = 3, classes: int = 10, seed: int = 0
) -> data.Dataset:
    """Random images of [size, size, channels] bytes with random labels, as many for the test.

    They have the shape of a data set, and nothing can be learnt from them but themselves.
    """
    rng = np.random.default_rng(seed)

    def draw() -> data.Images:
        shape = (samples, size, size, channels)
        labels = rng.integers(0, classes, samples, dtype=np.int32)
        return data.Images(rng.integers(0, 256, shape, dtype=np.uint8), labels)

    return data.Dataset(draw(), draw(), classes)


def _model(model: str | Mapping, classes: int) -> nn.Module:
    return MODEL.build(model, classes=classes)


def synthetic_quadratic(
    samples: int = 1024,
    dimension: int = 32,
    condition: float = 10.0,
    noise: float = 1.0,
    seed: int = 0,
) -> Task:
    """f(w) = mean_i 0.5 (w - a_i)' H (w - a_i) from w = (1, ..., 1); see `data.quadratic`.

    A sample's label is the sign of a_i along the steepest axis, so that a split by label gives
    workers different optima.
    """
    dataset, curvature, optimum = data.quadratic(samples, dimension, condition, noise, seed)

    def losses(w, centres):
        return 0.5 * (w[None] - centres) ** 2 @ curvature

    labels = np.int32(dataset.train[:, 0] > 0)
    return Task(
        "synthetic_quadratic",
        dataset.train,
        dataset.test,
        labels,
        init=lambda key: jnp.ones(dimension),
        losses=losses,
        optimum=optimum,
    )


def synthetic_logistic(
    samples: int = 1024, dimension: int = 16, seed: int = 0, l2: float = 0.01
) -> Task:
    """Strongly convex logistic regression on Gaussian points from w = 0; see `data.logistic`."""
    dataset, optimum = data.logistic(samples, dimension, seed, l2)

    def losses(w, points):
        return jax.nn.softplus((1 - 2 * points.y) * (points.x @ w)) + 0.5 * l2 * w @ w

    def correct(w, points):
        return jnp.float32((points.x @ w > 0) == (points.y > 0))

    return Task(
        "synthetic_logistic",
        dataset.train,
        dataset.test,
        dataset.train.y.astype(np.int32),
        init=lambda key: jnp.zeros(dimension),
        losses=losses,
        correct=correct,
        optimum=optimum,
    )


MODEL = Kind("model", MODELS, nn.Module, ("classes",))
SOURCE = Kind("source", data.SOURCES | {"noise": noise}, data.Dataset)
TASKS = {
    "images": labelled_images,
    "digits": digits,
    "synthetic_quadratic": synthetic_quadratic,
    "synthetic_logistic": synthetic_logistic,
    **{name: functools.partial(images, name) for name in data.IMAGE_CLASSES},
}
