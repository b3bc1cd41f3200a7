"""Data sets with their splits, and mixtures of Gaussians against closed forms."""

import io
import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from scipy import stats

from experiments import tasks
from experiments.tasks import data, sources
from tests.experiments.tasks.test_text import prepare

LABELS = np.repeat(np.arange(10), [30, 1, 20, 20, 20, 20, 20, 20, 20, 29])


# --- loaders ---


def test_digits_are_scaled_split_by_class_and_complete():
    dataset = data.digits()
    train, test = dataset.train, dataset.test
    assert train.image.shape == (len(train.label), 8, 8, 1)
    assert train.image.dtype == np.float32 and train.label.dtype == np.int32
    assert train.image.min() == 0 and train.image.max() == 1
    assert len(train.label) + len(test.label) == 1797 and dataset.classes == 10
    share = np.bincount(test.label) / (np.bincount(test.label) + np.bincount(train.label))
    np.testing.assert_allclose(share, 0.2, atol=0.005)


def _png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    file.seek(0)
    return file


def test_tfds_images_reads_what_was_prepared(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 28, 28), dtype=np.uint8)

    features = {
        "image": tfds.features.Image(shape=(28, 28, 1)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    # Files are stored as they are; encoding an array would take TensorFlow.
    rows = [{"image": _png(one), "label": label} for label, one in enumerate(pixels)]
    prepare(tmp_path, "mnist", "3.0.1", {"train": rows[:4], "test": rows[4:]}, features)
    dataset = data.tfds_images("mnist", data_dir=str(tmp_path))
    streamed = pickle.loads(pickle.dumps(dataset.train)).read(np.array([2, 0]))
    dataset = data.Dataset(*map(sources.memory().of, dataset[:2]), classes=dataset.classes)
    np.testing.assert_array_equal(streamed.image, dataset.train.image[[2, 0]])
    assert dataset.train.image.shape == (4, 28, 28, 1) and dataset.train.image.dtype == np.uint8
    assert sorted(dataset.train.label) == [0, 1, 2, 3] and sorted(dataset.test.label) == [4, 5]
    # Preparing shuffles; the label says which image each was.
    np.testing.assert_array_equal(dataset.train.image[..., 0], pixels[dataset.train.label])


# --- synthetic data ---


def test_quadratic_optimum_is_the_loss_at_the_mean():
    (train, test, _), curvature, optimum = data.quadratic(50, 3, 100.0, 2.0, seed=0)
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(curvature, [1, 0.1, 0.01], rtol=1e-6)
    np.testing.assert_allclose(optimum, 0.5 * (train**2 @ curvature).mean(), rtol=1e-5)
    assert train.dtype == np.float32 and test.shape == (12, 3)


@pytest.mark.parametrize("l2", [1e-8, 1e-2, 10.0])
@pytest.mark.parametrize("dimension", [3, 50])  # 40 points in 50 dimensions are separable
def test_logistic_optimum_is_below_its_surroundings(l2, dimension):
    dataset, optimum = data.logistic(40, dimension, seed=1, l2=l2)
    signed = dataset.train.x * (2 * dataset.train.y - 1)[:, None]
    for w in np.random.default_rng(0).normal(size=(100, dimension)) * 3:
        assert optimum <= np.logaddexp(0, -signed @ w).mean() + l2 / 2 * w @ w


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.quadratic(0, 1, 1.0, 0.0, 0), "samples must be at least 1, got 0"),
        (lambda: data.quadratic(1, 1, 0.5, 0.0, 0), "condition must be at least 1, got 0.5"),
        (lambda: data.quadratic(1, 1, 1.0, -1.0, 0), "noise must be at least 0, got -1"),
        (lambda: data.logistic(1, 0, 0, 1.0), "dimension must be at least 1, got 0"),
        (lambda: data.logistic(1, 1, 0, 0.0), "l2 must be at least 1e-08, got 0"),
    ],
)
def test_synthetic_data_refuse_bad_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- splits ---


@pytest.mark.parametrize("workers", [1, 3, 8, 200])
@pytest.mark.parametrize(
    "split",
    [
        lambda labels, workers: data.iid(labels, workers, seed=0),
        lambda labels, workers: data.dirichlet(labels, workers, alpha=1e-3, seed=0),
        lambda labels, workers: data.dirichlet(labels, workers, alpha=1.0, seed=0),
        lambda labels, workers: data.dirichlet(labels, workers, alpha=1e6, seed=0),
    ],
)
def test_splits_are_partitions_without_empty_parts(split, workers):
    shards = split(LABELS, workers)
    assert len(shards) == workers and min(map(len, shards)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(LABELS)))
    assert all(np.array_equal(a, b) for a, b in zip(shards, split(LABELS, workers), strict=True))


def test_dirichlet_alpha_says_how_alike_workers_are():
    labels = np.tile(np.arange(10), 100)

    def classes_seen(alpha):
        shards = data.dirichlet(labels, 10, alpha, seed=0)
        return np.mean([len(set(labels[shard])) for shard in shards])

    assert classes_seen(0.01) < 3 and classes_seen(100.0) == 10
    even = np.stack([np.bincount(labels[s]) for s in data.dirichlet(labels, 10, 1e6, seed=0)])
    assert np.all(abs(even - 10) <= 1)


@pytest.mark.parametrize("workers", [0, 201])
@pytest.mark.parametrize("split", [data.iid, lambda *a: data.dirichlet(*a[:2], 1.0, a[2])])
def test_splits_refuse_workers_without_samples(split, workers):
    with pytest.raises(ValueError, match=f"200 samples among workers={workers}; set workers"):
        split(LABELS, workers, 0)


# --- mixtures ---


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
