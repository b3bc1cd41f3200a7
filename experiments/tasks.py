"""Tasks: what is minimised, on which examples, and how well a model does."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from experiments import data, parts
from experiments.models import MODELS


class Task(NamedTuple):
    """An empirical risk and its data; arrays are NumPy's, a runtime moves them where it wants.

    train, test: pytrees of arrays with leading axis [samples]. `examples` below are such pytrees
    with leading axis [b].
    labels: one per training sample, for splits that go by label.
    losses: float32 [b], each example's share of the mean loss, the l2 term included.
    correct: float32 [b], 1 where the prediction is right; None: there is nothing to predict.
    optimum: the lowest mean training loss, if it is known.
    shared_draw: `losses` draws at random, the same for all workers of an update. It then takes a
        third argument, the samples that all workers had seen before the update, float32 [].
    eval_losses: what `evaluate` reports instead of `losses`; of (params, examples) alone.
    metrics: what else to report, from the parameters and the losses that `evaluate` found.
    sparse: paths, "a/b/c", of the parameters whose gradients are row-sparse: zero but in the rows
        of what is in the mini-batch.
    evaluated: `evaluate` takes so many training and test examples, evenly spread; None: all.
    """

    name: str
    train: Any
    test: Any
    labels: np.ndarray  # [samples] int
    init: Callable[[jax.Array], Any]  # key -> params
    losses: Callable[..., jax.Array]
    correct: Callable[[Any, Any], jax.Array] | None = None
    optimum: float | None = None
    shared_draw: bool = False
    eval_losses: Callable[[Any, Any], jax.Array] | None = None
    metrics: Callable[[Any, dict[str, float | None]], dict[str, float]] | None = None
    sparse: tuple[str, ...] = ()
    evaluated: int | None = None


def row_sparse(task: Task, path: tuple) -> bool:
    """Whether the parameter at this key path (jax.tree_util) has a row-sparse gradient."""
    return jax.tree_util.keystr(path, simple=True, separator="/") in task.sparse


def classification(name: str, dataset: data.Dataset, model: nn.Module, l2: float = 0.0) -> Task:
    """Softmax cross-entropy of `model` on images, plus l2/2 times the squared parameters."""

    def init(key):
        return jax.jit(model.init)(key, dataset.train.image[:1])["params"]

    def logits(params, examples):
        return model.apply({"params": params}, examples.image)

    def losses(params, examples):
        fit = optax.softmax_cross_entropy_with_integer_labels(
            logits(params, examples), examples.label
        )
        return fit + 0.5 * l2 * optax.tree.norm(params, squared=True) if l2 else fit

    def correct(params, examples):
        return jnp.float32(logits(params, examples).argmax(-1) == examples.label)

    return Task(name, dataset.train, dataset.test, dataset.train.label, init, losses, correct)


def digits(
    model: str | Mapping, l2: float = 0.0, seed: int = 0, test_fraction: float = 0.2
) -> Task:
    """Classify scikit-learn's 8x8 digits; model: a key of MODELS and its parameters."""
    dataset = data.digits(seed, test_fraction)
    return classification("digits", dataset, _model(model, dataset.classes), l2)


def images(name: str, model: str | Mapping, l2: float = 0.0, data_dir: str | None = None) -> Task:
    """Classify an image data set of TensorFlow Datasets; model: see `digits`."""
    built = _model(model, data.IMAGE_CLASSES[name])  # before any reading of data
    return classification(name, data.tfds_images(name, data_dir), built, l2)


def _model(model: str | Mapping, classes: int) -> nn.Module:
    return parts.build("model", MODELS, model, classes=classes)


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


TASKS = {
    "digits": digits,
    "synthetic_quadratic": synthetic_quadratic,
    "synthetic_logistic": synthetic_logistic,
    **{name: functools.partial(images, name) for name in data.IMAGE_CLASSES},
}


def build(spec: str | Mapping) -> Task:
    """The task that `spec` describes: {"name": a key of TASKS, its parameters}, or as a call.

    Unknown names and parameters are errors that list the known ones.
    """
    return parts.build("task", TASKS, spec)


def evaluate(task: Task, params, batch: int = 2048) -> dict[str, float | None]:
    """Mean `train_loss` and `test_loss`, and `test_accuracy` (0..1; None: nothing is predicted).

    The task's own metrics follow. At most `batch` examples are on the device at a time, unless
    the task's arrays live there.
    """
    train_loss, _ = _means(task, params, task.train, batch)
    test_loss, test_accuracy = _means(task, params, task.test, batch)
    means = {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": test_accuracy}
    return means if task.metrics is None else {**means, **task.metrics(params, means)}


def _means(task: Task, params, examples, batch: int) -> tuple[float, float | None]:
    samples = jax.tree.leaves(examples)[0].shape[0]
    if task.evaluated is not None and task.evaluated < samples:
        spread = np.arange(task.evaluated) * samples // task.evaluated
        samples = task.evaluated
        examples = jax.tree.map(lambda a: a[spread], examples)
    losses = task.losses if task.eval_losses is None else task.eval_losses
    totals = []
    for start in range(0, samples, batch):
        chunk = jax.tree.map(lambda a, start=start: a[start : start + batch], examples)
        totals.append(_totals(losses, task.correct, params, chunk))
    loss, hits = np.sum(np.asarray(totals, np.float64), axis=0) / samples
    return float(loss), None if task.correct is None else float(hits)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _totals(losses, correct, params, examples):
    hits = jnp.zeros(()) if correct is None else correct(params, examples).sum()
    return jnp.stack([losses(params, examples).sum(), hits])
