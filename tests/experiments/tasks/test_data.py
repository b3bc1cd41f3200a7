"""Data sets with their splits, and mixtures of Gaussians against closed forms."""

import functools
import io
import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from scipy import stats

from experiments import tasks
from experiments.tasks import data, sources

LABELS = np.repeat(np.arange(10), [30, 1, 20, 20, 20, 20, 20, 20, 20, 29])


# --- loaders ---


def prepare(where, name, version, splits, features):
    """Write a data set as `tfds build` would: splits of lists of examples."""

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def split_generators(self, _):
        return {split: self._generate_examples(rows) for split, rows in splits.items()}

    def examples(self, rows):
        yield from enumerate(rows)

    body = {
        # In a package, tfds would look for the code with a library that it does not install.
        "__module__": name,
        "VERSION": tfds.core.Version(version),
        "_info": info,
        "_split_generators": split_generators,
        "_generate_examples": examples,
        "name": name,
    }
    builder = type(name, (tfds.core.GeneratorBasedBuilder,), body, skip_registration=True)
    builder(data_dir=where, file_format="array_record").download_and_prepare()


def test_tfds_images_reads_what_was_prepared(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 28, 28), dtype=np.uint8)

    features = {
        "image": tfds.features.Image(shape=(28, 28, 1)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    # Files are stored as they are; encoding an array would take TensorFlow.
    rows = []
    for label, one in enumerate(pixels):
        Image.fromarray(one).save(file := io.BytesIO(), "PNG")
        rows.append({"image": io.BytesIO(file.getvalue()), "label": label})
    prepare(tmp_path, "mnist", "3.0.1", {"train": rows[:4], "test": rows[4:]}, features)
    dataset = data.tfds_images("mnist", data_dir=str(tmp_path))
    streamed = pickle.loads(pickle.dumps(dataset.train)).read(np.array([2, 0]))
    train, test, _ = sources.read("memory", *dataset[:2])
    dataset = data.Dataset(train, test, classes=dataset.classes)
    np.testing.assert_array_equal(streamed.image, dataset.train.image[[2, 0]])
    assert dataset.train.image.shape == (4, 28, 28, 1) and dataset.train.image.dtype == np.uint8
    assert sorted(dataset.train.label) == [0, 1, 2, 3] and sorted(dataset.test.label) == [4, 5]
    # Preparing shuffles; the label says which image each was.
    np.testing.assert_array_equal(dataset.train.image[..., 0], pixels[dataset.train.label])


# --- splits ---


@pytest.mark.parametrize("alpha", [None, 1e-3, 1.0])
def test_splits_are_partitions_without_empty_parts(alpha):
    split = functools.partial(data.dirichlet, alpha=alpha) if alpha else data.iid
    for workers in (1, 8, 200):
        shards = split(LABELS, workers, seed=0)
        assert len(shards) == workers and min(map(len, shards)) >= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(len(LABELS)))
        again = split(LABELS, workers, seed=0)
        assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    for workers in (0, 201):
        with pytest.raises(ValueError, match=f"200 samples among workers={workers}; set workers"):
            split(LABELS, workers, seed=0)


def test_dirichlet_alpha_says_how_alike_workers_are():
    labels = np.tile(np.arange(10), 100)

    def classes_seen(alpha):
        shards = data.dirichlet(labels, 10, alpha, seed=0)
        return np.mean([len(set(labels[shard])) for shard in shards])

    assert classes_seen(0.01) < 3 and classes_seen(100.0) == 10
    for alpha in (1e6, 1e308):
        shards = data.dirichlet(labels, 10, alpha, seed=0)
        assert np.all(abs(np.stack([np.bincount(labels[s]) for s in shards]) - 10) <= 1)


# --- mixtures ---


def test_examples_lie_around_means_that_are_equally_far_apart():
    made = data.mixture(20_000, 8, 3, 4.0, 0.5, 10_000, seed=1)
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
    """Within four standard errors of the error by quadrature; it takes the nearest mean."""
    made = data.mixture(10, 16, 5, 3.0, 2.0, 10_000, seed=2)
    points, label = made.dataset.test.image[:, 0, 0], made.dataset.test.label
    distance = np.linalg.norm(points[:, None] - made.means[None], axis=-1)
    assert made.bayes_accuracy == (distance.argmin(1) == label).mean()
    # The score of an example's own class is N(3 / sqrt(2), 1), the other four are N(0, 1).
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    right = weights @ stats.norm.cdf(nodes + 3 / np.sqrt(2)) ** 4 / weights.sum()
    error = np.sqrt(right * (1 - right) / 10_000)
    assert made.bayes_accuracy == pytest.approx(right, abs=4 * error)


def test_an_image_shows_the_point_that_was_drawn_in_squares_of_one_colour():
    shown = data.mixed_images(samples=6, size=8, patches=2, classes=4, test=5, seed=3)
    drawn = data.mixture(6, 12, 4, 7.0, 0.5, 5, 3).dataset
    for part, points in ((shown.train, drawn.train), (shown.test, drawn.test)):
        assert part.image.shape == (len(points.label), 8, 8, 3) and part.image.dtype == np.float32
        np.testing.assert_array_equal(part.label, points.label)
        corners = part.image[:, ::4, ::4].reshape(len(points.label), 1, 1, 12)
        np.testing.assert_array_equal(corners, points.image)
        np.testing.assert_array_equal(part.image[:, 3, 4], part.image[:, 0, 7])
    assert shown.classes == 4


def test_parameters_are_finite_and_not_below_their_bounds():
    data.at_least("it", 1, x=1)
    for value, way in ((0.5, "raise"), (np.nan, "raise"), (np.inf, "lower")):
        with pytest.raises(ValueError, match=f"x must be .* at least 1, got {value}; {way} x"):
            data.at_least("it", 1, x=value)


def test_images_of_a_mixture_are_a_source_by_name():
    made = tasks.build("images(source=gaussians(samples=9, size=4, test=5), model=logistic)")
    assert made.train.image.shape == (9, 4, 4, 3) and made.test.label.shape == (5,)
