"""Tasks of dense gradients, and the augmentation of their images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import data, dense_tasks
from experiments.tasks.data import Images

TINY = data.Dataset(
    train=data.Images(np.ones((3, 1, 1, 1), np.float32), np.array([0, 1, 1], np.int32)),
    test=data.Images(np.ones((1, 1, 1, 1), np.float32), np.array([1], np.int32)),
    classes=2,
)


def tiny(l2=0.0):
    task = dense_tasks.classification("tiny", TINY, "logistic", l2)
    params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
    return task, params


def test_classification_worked_out_by_hand():
    task, params = tiny()
    np.testing.assert_allclose(task.losses(params, task.train), np.log([2, 2, 2]), rtol=1e-6)
    kernel, bias = sorted(jax.tree.leaves(params), key=jnp.ndim, reverse=True)
    assert kernel.shape == (1, 2) and bias.shape == (2,)
    # Logits (0, log 3): probabilities 1/4 and 3/4.
    params = jax.tree.map(lambda a: jnp.array([0, jnp.log(3)]) if a.ndim == 1 else a, params)
    np.testing.assert_allclose(
        task.losses(params, task.train), np.log([4, 4 / 3, 4 / 3]), rtol=1e-6
    )
    np.testing.assert_array_equal(task.correct(params, task.train), [0, 1, 1])
    decayed, ones = tiny(l2=0.5)[0], jax.tree.map(jnp.ones_like, params)  # four entries
    np.testing.assert_allclose(
        decayed.losses(ones, TINY.train), task.losses(ones, TINY.train) + 1.0, rtol=1e-6
    )


def test_quadratic_reaches_its_optimum_at_0():
    task = tasks.build({"name": "synthetic_quadratic", "samples": 100, "dimension": 4})
    w = task.init(jax.random.key(0))
    assert jnp.linalg.norm(w) == 2
    at_0 = tasks.evaluate(task, jnp.zeros(4))
    optimum = 0.5 * np.geomspace(1, 0.1, 4) @ task.train.astype(np.float64).var(0)
    np.testing.assert_allclose(at_0["train_loss"], optimum, rtol=1e-6)
    assert tasks.evaluate(task, w)["train_loss"] > optimum
    assert at_0["test_accuracy"] is None and task.correct is None
    gradient = jax.grad(lambda w: task.losses(w, task.train).mean())(w)
    np.testing.assert_allclose(gradient, np.geomspace(1, 0.1, 4), rtol=1e-5)


def test_logistic_reaches_its_optimum():
    task = tasks.build("synthetic_logistic(samples=200, l2=0.1)")
    w = task.init(jax.random.key(0))
    np.testing.assert_allclose(task.losses(w, task.train), np.log(2), rtol=1e-6)
    step = jax.jit(lambda w: w - 0.5 * jax.grad(lambda w: task.losses(w, task.train).mean())(w))
    for _ in range(200):
        w = step(w)
    # Newton's step from there, in float64 by hand, is 0.
    x, sign = np.float64(task.train.x), 2 * np.float64(task.train.y) - 1
    wrong = 1 / (1 + np.exp(sign * (x @ w)))
    hessian = (x.T * (wrong * (1 - wrong))) @ x / 200 + 0.1 * np.eye(16)
    gradient = 0.1 * np.float64(w) - x.T @ (sign * wrong) / 200
    np.testing.assert_allclose(np.linalg.solve(hessian, gradient), 0, atol=1e-5)
    assert tasks.evaluate(task, w)["test_accuracy"] > 0.6
    assert set(task.labels) == {0, 1} and task.labels.dtype == np.int32


def test_evaluation_does_not_depend_on_the_chunks():
    task, params = tiny()
    assert tasks.evaluate(task, params, 1) == tasks.evaluate(task, params, 5)
    assert tasks.evaluate(task, params) == pytest.approx(
        {"train_loss": np.log(2), "test_loss": np.log(2), "test_accuracy": 0.0}
    )


# --- augmentation ---


IMAGES = Images(
    np.arange(1, 1 + 12 * 6 * 6 * 2, dtype=np.float32).reshape(12, 6, 6, 2), np.arange(12)
)


def draws(count):
    return np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)


def test_every_crop_is_a_window_of_the_padded_image_mirrored_or_not():
    changed = dense_tasks.crop_and_flip(padding=2).train(IMAGES, draws(12))
    wide = np.pad(IMAGES.image, ((0, 0), (2, 2), (2, 2), (0, 0)))
    for image, padded in zip(np.asarray(changed.image), wide, strict=True):
        windows = [padded[i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        windows += [window[:, ::-1] for window in windows]
        assert sum(np.array_equal(image, window) for window in windows) == 1
    np.testing.assert_array_equal(changed.label, IMAGES.label)


@pytest.mark.slow
def test_places_and_sides_are_uniform():
    """Of 25 windows and two sides, chi-squared per degree of freedom."""
    one = jax.tree.map(lambda a: np.repeat(a[:1], 20_000, 0), IMAGES)
    images = np.asarray(dense_tasks.crop_and_flip(padding=2).train(one, draws(20_000)).image)
    _, counts = np.unique(images.reshape(20_000, -1), axis=0, return_counts=True)
    assert len(counts) == 50
    assert ((counts - 400) ** 2 / 400).sum() / 49 < 1.6


def test_evaluation_takes_the_middle_and_leaves_what_is_cut_alone():
    changes = dense_tasks.crop_and_flip(padding=0, size=4, flip=False)
    np.testing.assert_array_equal(changes.plain(IMAGES).image, IMAGES.image[:, 1:5, 1:5])
    cut = changes.train(IMAGES, draws(12))
    assert cut.image.shape == (12, 4, 4, 2)
    np.testing.assert_array_equal(changes.plain(cut).image, cut.image)
