"""Tasks whose gradients are dense: images, and synthetic problems."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms.hashing import lowbias32
from experiments import registry
from experiments.registry import Kind
from experiments.tasks import Task, data, models, sources, take
from experiments.tasks.models import MODELS


def classification(
    name: str, dataset: data.Dataset, model: str | Mapping, l2: float = 0.0,
    reading: str | Mapping = "memory", augment: str | Mapping | None = None,
    evaluated: int | None = None, compute: str = "float32", micro_batch: int | None = None,
) -> Task:  # fmt: skip
    """Return the task to classify images: softmax cross-entropy plus l2/2 times |params|^2.

    model, reading, augment: keys of MODELS, `sources.READINGS` and AUGMENTATIONS and their
    parameters. evaluated: see `Task`. compute: type of the model's computations, float32 or
    bfloat16; all else is float32. micro_batch: number of images whose activations are in memory at
    a time; None: all images of a mini-batch.
    """
    data.at_least(name, 0, l2=l2)
    module = models.build(MODEL, model, classes=dataset.classes)
    train, test, labels = sources.read(reading, dataset.train, dataset.test)
    changes = Augmentation(None, None) if augment is None else AUGMENT.build(augment)
    functions = models.functions_of(
        module, l2, changes.plain, compute, micro_batch, dataset.classes
    )
    return Task(
        name, train, test, labels, lambda key: functions.init(key, take(train, slice(1))),
        functions.losses, functions.hits, evaluated=evaluated, augment=changes.train,
    )  # fmt: skip


def digits(
    model: str | Mapping, l2: float = 0.0, seed: int = 0, test_fraction: float = 0.2
) -> Task:
    """Classify scikit-learn's 8x8 digits; model: a key of MODELS and its parameters."""
    return classification("digits", data.digits(seed, test_fraction), model, l2)


def images(
    name: str, model: str | Mapping, l2: float = 0.0, data_dir: str | None = None,
    size: int | None = None, reading: str | Mapping = "memory",
    augment: str | Mapping | None = None, evaluated: int | None = None, compute: str = "float32",
    micro_batch: int | None = None,
) -> Task:  # fmt: skip
    """Classify an image data set of TensorFlow Datasets; model: see `digits`.

    data_dir, size: see `data.tfds_images`; all others: see `classification`.
    """
    dataset = data.tfds_images(name, data_dir, size)
    return classification(
        name, dataset, model, l2, reading, augment, evaluated, compute, micro_batch
    )


def labelled_images(
    source: str | Mapping, model: str | Mapping, l2: float = 0.0, reading: str | Mapping = "memory",
    augment: str | Mapping | None = None, evaluated: int | None = None, compute: str = "float32",
    micro_batch: int | None = None,
) -> Task:  # fmt: skip
    """Classify the images of a source of data; model: see `digits`.

    source: a key of `data.SOURCES`, gaussians or noise, and its parameters. Your own source returns
        a `data.Dataset` of `data.Images` or of sources of them. All others: see `classification`.
    """
    dataset = data.checked(registry.text(source), SOURCE.build(source))
    return classification(
        "images", dataset, model, l2, reading, augment, evaluated, compute, micro_batch
    )


def gaussians(
    model: str | Mapping, samples: int = 32_768, dimension: int = 64, classes: int = 10,
    separation: float = 5.0, noise: float = 0.5, test: int = 10_000, seed: int = 0, l2: float = 0.0,
) -> Task:  # fmt: skip
    """Classify points of a mixture of Gaussians; reports `bayes_accuracy` of the same test points.

    `bayes_accuracy` is the test accuracy of the classifier that knows the mixture; no other has a
    higher expected accuracy. model: logistic or mlp, as a point is an image of one pixel. samples,
    test: numbers of examples. separation: distance of any two means in units of `noise`, an entry's
    standard deviation in a class. At 5 the Bayes error of ten classes is 4.1 %. See
    `data.mixture`.
    """
    drawn = data.mixture(samples, dimension, classes, separation, noise, test, seed)
    task = classification("gaussians", drawn.dataset, model, l2)
    return task._replace(metrics=lambda params, means: {"bayes_accuracy": drawn.bayes_accuracy})


def synthetic_quadratic(
    samples: int = 1024, dimension: int = 32, condition: float = 10.0, noise: float = 1.0,
    seed: int = 0,
) -> Task:  # fmt: skip
    """Minimise mean_i 0.5 (w - a_i)' H (w - a_i) from w = (1, ..., 1).

    H is diagonal, its entries in geometric progression from 1 down to 1/condition. The a_i are
    noise * N(0, I). Training a_i are shifted so that their mean, the minimiser, is 0. A sample's
    label is the sign of a_i along the steepest axis, so that a split by label gives workers
    different optima.
    """
    name = "synthetic_quadratic"
    data.at_least(name, 1, samples=samples, dimension=dimension, condition=condition)
    data.at_least(name, 0, noise=noise)
    rng = np.random.default_rng(seed)
    centres = noise * rng.standard_normal((samples, dimension))
    train = np.float32(centres - centres.mean(0))
    test = np.float32(noise * rng.standard_normal((max(1, samples // 4), dimension)))
    curvature = np.geomspace(1, 1 / condition, dimension).astype(np.float32)

    def losses(w, centres):
        return 0.5 * (w[None] - centres) ** 2 @ curvature

    labels = np.int32(train[:, 0] > 0)
    return Task(name, train, test, labels, lambda key: jnp.ones(dimension), losses)


def uneven_lengths(
    samples: int = 4096, dimension: int = 8, sigma: float = 0.5, shift: float = 1.0,
    noise: float = 0.5, seed: int = 0,
) -> Task:  # fmt: skip
    """Find the mean of points whose position along one direction grows with their cost.

    A sample of cost exp(sigma z), z normal, is the point shift z u plus normal noise, with a unit
    vector u. Its loss is half the squared distance. The optimum is the mean of all points. Training
    that keeps a share p(z) of the points ends E[p z] / E[p] shift u away from the optimum.
    """
    data.at_least("uneven_lengths", 10, samples=samples)
    data.at_least("uneven_lengths", 1, dimension=dimension)
    data.at_least("uneven_lengths", 0, sigma=sigma, noise=noise)
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(samples)
    u = rng.standard_normal(dimension)
    points = shift * np.outer(z, u / np.linalg.norm(u))
    points = np.float32(points + noise * rng.standard_normal(points.shape))

    def losses(params, examples):
        return 0.5 * ((examples - params[None]) ** 2).sum(1)

    return Task(
        "uneven_lengths", points, points[: max(1, samples // 8)], np.zeros(samples, np.int64),
        lambda key: jnp.full(dimension, 3.0), losses, cost=np.exp(sigma * z),
    )  # fmt: skip


def synthetic_logistic(
    samples: int = 1024, dimension: int = 16, seed: int = 0, l2: float = 0.01
) -> Task:
    """Fit strongly convex logistic regression to Gaussian points from w = 0.

    Labels are drawn from the model whose weights are drawn from N(0, I).
    """
    data.at_least("synthetic_logistic", 1, samples=samples, dimension=dimension)
    data.at_least("synthetic_logistic", 1e-8, l2=l2)
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(dimension)

    def draw(count):
        x = rng.standard_normal((count, dimension)).astype(np.float32)
        y = rng.random(count) < 1 / (1 + np.exp(-x @ truth))
        return data.Points(x, y.astype(np.float32))

    train, test = draw(samples), draw(max(1, samples // 4))

    def losses(w, points):
        return jax.nn.softplus((1 - 2 * points.y) * (points.x @ w)) + 0.5 * l2 * w @ w

    def correct(w, points):
        return jnp.float32((points.x @ w > 0) == (points.y > 0))

    return Task(
        "synthetic_logistic", train, test, train.y.astype(np.int32),
        lambda key: jnp.zeros(dimension), losses, correct,
    )  # fmt: skip


MODEL = Kind("model", MODELS, models.GIVES, ("classes", "rngs"))
SOURCE = Kind("source", data.SOURCES | {"noise": data.noise}, data.Dataset)
mnist, fashion_mnist, cifar10, cifar100, imagenet2012 = (
    functools.partial(images, name) for name in data.TFDS_IMAGES
)


# --- augmentation ---

# The draw of an example is a function of the seed, the worker, the counter of the mini-batch and
# the place in it. So a run sees the same images, streamed or not, resumed or not.


class Augmentation(NamedTuple):
    """Random changes of training examples, and the fixed change of examples for evaluation."""

    train: Callable[[Any, jax.Array], Any]  # (examples [b], draws [b] uint32) -> examples
    plain: Callable[[Any], Any]  # examples -> examples


def crop_and_flip(padding: int = 4, size: int | None = None, flip: bool = True) -> Augmentation:
    """Cut a random window out of the image, padded by zeros, and mirror it with probability 1/2.

    padding: pixels on every side, 4 for CIFAR (arXiv 1512.03385). size: of a square window; None:
        the image's own. Evaluation takes the window in the middle. flip: whether to mirror.
    """
    if padding < 0 or (size is not None and size < 1):
        raise ValueError(
            f"crop_and_flip: padding must be at least 0 and size at least 1, got {padding} and "
            f"{size}; for CIFAR try padding=4, for ImageNet padding=0 and size=224"
        )

    def sides(image) -> tuple[int, int]:
        height, width = image.shape[-3:-1]
        if size is not None and size > min(height, width):
            raise ValueError(
                f"crop_and_flip: size={size} is more than images of {height}x{width} pixels have; "
                "lower size"
            )
        return (height, width) if size is None else (size, size)

    def one(image, draw):
        height, width = sides(image)
        wide = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        top = _below(draw, 1, wide.shape[0] - height + 1)
        left = _below(draw, 2, wide.shape[1] - width + 1)
        cut = jax.lax.dynamic_slice(wide, (top, left, 0), (height, width, image.shape[2]))
        return jnp.where(_below(draw, 3, 2) == 1, cut[:, ::-1], cut) if flip else cut

    def train(examples, draws):
        return examples._replace(image=jax.vmap(one)(examples.image, draws))

    def plain(examples):
        height, width = sides(examples.image)
        top, left = (examples.image.shape[1] - height) // 2, (examples.image.shape[2] - width) // 2
        return examples._replace(image=examples.image[:, top : top + height, left : left + width])

    return Augmentation(train, plain)


AUGMENTATIONS = {"crop_and_flip": crop_and_flip}
AUGMENT = Kind("augment", AUGMENTATIONS, Augmentation)


def _below(draw, number: int, bound: int) -> jax.Array:
    """Return the `number`-th whole number of a draw, in [0, bound), bound at most 2^16."""
    return ((lowbias32(draw ^ jnp.uint32(number)) >> 16) * bound >> 16).astype(jnp.int32)
