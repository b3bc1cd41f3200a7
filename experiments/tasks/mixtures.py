"""Mixtures of Gaussians, for which the best accuracy of any classifier is known."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from experiments.tasks import Task, data, models
from experiments.tasks.dense_tasks import MODEL, classification


def gaussians(
    model: str | Mapping, samples: int = 32_768, dimension: int = 64, classes: int = 10,
    separation: float = 5.0, noise: float = 0.5, test: int = 10_000, seed: int = 0, l2: float = 0.0,
) -> Task:  # fmt: skip
    """Classify points of a mixture of Gaussians; reports `bayes_accuracy` of the same test points.

    `bayes_accuracy` is the test accuracy of the classifier that knows the mixture; no other has a
    higher expected accuracy. model: logistic or mlp, as a point is an image of one pixel. samples,
    test: numbers of examples. separation: distance of any two means in units of `noise`, an entry's
    standard deviation in a class. At 5 the Bayes error of ten classes is 4.1 %. See `mixture`.
    """
    drawn = mixture(samples, dimension, classes, separation, noise, test, seed)
    built = models.build(MODEL, model, classes=classes)
    task = classification("gaussians", drawn.dataset, built, l2)
    return task._replace(metrics=lambda params, means: {"bayes_accuracy": drawn.bayes_accuracy})


class Gaussians(NamedTuple):
    """Drawn examples, and the accuracy of the Bayes classifier on them."""

    dataset: data.Dataset  # train, test: Images [N, 1, 1, d] float32
    means: np.ndarray  # [classes, d] float64
    bayes_accuracy: float  # of the Bayes classifier on exactly these test examples


@functools.lru_cache(maxsize=2)
def mixture(
    samples: int, dimension: int, classes: int, separation: float, noise: float, test: int,
    seed: int,
) -> Gaussians:  # fmt: skip
    """Draw x ~ N(mu_y, noise^2 I), with equally likely classes y.

    The means are orthogonal and of one length, such that any two of them are `separation` times
    `noise` apart. samples, test: numbers of examples.
    """
    data.at_least("gaussians", 1, samples=samples, test=test)
    data.at_least("gaussians", 2, classes=classes)
    data.at_least("gaussians", classes, dimension=dimension)  # for means that are orthogonal
    data.at_least("gaussians", 0, separation=separation)
    data.at_least("gaussians", 1e-6, noise=noise)
    rng = np.random.default_rng(seed)
    directions, _ = np.linalg.qr(rng.standard_normal((dimension, classes)))
    means = noise * separation / np.sqrt(2) * directions.T

    def draw(count: int) -> data.Images:
        labels = rng.integers(0, classes, count, dtype=np.int32)
        points = means[labels] + noise * rng.standard_normal((count, dimension))
        return data.Images(points.astype(np.float32)[:, None, None], labels)

    dataset = data.Dataset(draw(samples), draw(test), classes)
    # With one covariance, equal shares and means of one norm, the most likely class has the largest
    # product of its mean and the point (T. Hastie, R. Tibshirani, J. Friedman, The Elements of
    # Statistical Learning, 2nd ed., Sec. 4.3).
    points = dataset.test.image[:, 0, 0].astype(np.float64)
    accuracy = float(((points @ means.T).argmax(axis=1) == dataset.test.label).mean())
    return Gaussians(dataset, means, accuracy)


def images(
    samples: int = 4096, size: int = 32, patches: int = 2, channels: int = 3, classes: int = 10,
    separation: float = 7.0, noise: float = 0.5, test: int = 1024, seed: int = 0,
) -> data.Dataset:  # fmt: skip
    """Return square images of patches, one colour in each patch, with colours from `mixture`.

    size: pixels of a side. patches: per side, each a square of size / patches pixels. A point of
    the mixture is a colour per patch, so that its dimension is patches^2 * channels. Images have
    the mixture's Bayes error, since an image shows its point and nothing else.
    """
    if patches < 1 or size < patches or size % patches:
        raise ValueError(
            f"gaussians: size must be a multiple of patches, got size={size} and "
            f"patches={patches}; set size"
        )
    drawn = mixture(
        samples, patches * patches * channels, classes, separation, noise, test, seed
    ).dataset

    def enlarged(points: data.Images) -> data.Images:
        colours = points.image.reshape(-1, patches, patches, channels)
        side = size // patches
        return data.Images(colours.repeat(side, axis=1).repeat(side, axis=2), points.label)

    return data.Dataset(enlarged(drawn.train), enlarged(drawn.test), classes)
