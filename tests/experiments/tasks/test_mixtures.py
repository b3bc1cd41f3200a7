"""Mixtures of Gaussians against closed forms, and the task that is made of them."""

import numpy as np
import pytest
from scipy import stats

from experiments import tasks
from experiments.tasks import data


@pytest.mark.parametrize("separation", [0.0, 1.0, 5.0])
def test_the_error_of_two_classes_is_that_of_the_nearer_mean(separation):
    expected = stats.norm.cdf(-separation / 2)
    assert data.bayes_error(2, separation) == pytest.approx(expected, abs=1e-8)


def test_the_error_of_many_classes_is_that_of_drawn_scores():
    """A class's own score is N(a, 1), all others N(0, 1); with no separation all is guessed."""
    assert data.bayes_error(10, 0.0) == pytest.approx(0.9)
    scores = np.random.default_rng(0).standard_normal((200_000, 10))
    scores[:, 0] += 3.0 / np.sqrt(2)
    drawn = (scores.argmax(1) != 0).mean()
    assert data.bayes_error(10, 3.0) == pytest.approx(drawn, abs=0.004)


def test_examples_lie_around_means_that_are_equally_far_apart():
    made = data.gaussians(20_000, 8, 3, 4.0, 0.5, 10_000, seed=1)
    train, test, classes = made.dataset
    assert train.image.shape == (20_000, 1, 1, 8) and train.image.dtype == np.float32
    assert test.label.shape == (10_000,) and test.label.dtype == np.int32 and classes == 3
    apart = np.linalg.norm(made.means[:, None] - made.means[None], axis=-1)
    np.testing.assert_allclose(apart, 4.0 * 0.5 * (1 - np.eye(3)), atol=1e-12)
    inside = train.image[:, 0, 0] - made.means[train.label]
    np.testing.assert_allclose(np.cov(inside.T), 0.25 * np.eye(8), atol=0.02)
    np.testing.assert_allclose(np.bincount(train.label) / 20_000, 1 / 3, atol=0.02)
    assert not np.array_equal(train.image[:10_000], test.image)


def test_the_bayes_classifier_is_as_good_on_the_test_points_as_it_is_expected_to_be():
    """Within four standard errors; the nearest mean is another way to say it."""
    made = data.gaussians(10, 16, 5, 3.0, 2.0, 10_000, seed=2)
    points, label = made.dataset.test.image[:, 0, 0], made.dataset.test.label
    distance = np.linalg.norm(points[:, None] - made.means[None], axis=-1)
    assert made.bayes_accuracy == (distance.argmin(1) == label).mean()
    error = np.sqrt(made.bayes_error * (1 - made.bayes_error) / 10_000)
    assert made.bayes_accuracy == pytest.approx(1 - made.bayes_error, abs=4 * error)


def test_only_as_many_test_examples_count_as_are_evaluated():
    task = tasks.build("digits(model=logistic)")
    assert tasks.tested(task) == 359
    assert tasks.tested(task._replace(evaluated=100)) == 100
    assert tasks.tested(task._replace(evaluated=1000)) == 359
    assert tasks.tested(tasks.build("synthetic_quadratic")) is None


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("dimension=4", "gaussians: dimension must be at least 10, got 4; raise dimension"),
        ("classes=1", "classes must be at least 2, got 1"),
        ("test=0", "test must be at least 1, got 0"),
        ("noise=0", "noise must be at least 1e-06, got 0"),
        ("separation=-1", "separation must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(parameters, words):
    with pytest.raises(ValueError, match=words):
        tasks.build(f"gaussians(model=logistic, {parameters})")


def test_an_image_shows_the_point_that_was_drawn_in_squares_of_one_colour():
    shown = data.images(samples=6, size=8, patches=2, classes=4, test=5, seed=3)
    drawn = data.gaussians(6, 12, 4, 7.0, 0.5, 5, 3).dataset
    for part, points in ((shown.train, drawn.train), (shown.test, drawn.test)):
        assert part.image.shape == (len(points.label), 8, 8, 3) and part.image.dtype == np.float32
        np.testing.assert_array_equal(part.label, points.label)
        corners = part.image[:, ::4, ::4].reshape(len(points.label), 1, 1, 12)
        np.testing.assert_array_equal(corners, points.image)
        np.testing.assert_array_equal(part.image[:, 3, 4], part.image[:, 0, 7])
    assert shown.classes == 4
