import io
import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from experiments.tasks import data, sources

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

    class Mnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        # In a package, tfds would look for the code with a library that it does not install.
        __module__ = "mnist"
        VERSION = tfds.core.Version("3.0.1")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(28, 28, 1)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, _):
            return {
                "train": self._generate_examples(range(4)),
                "test": self._generate_examples(range(4, 6)),
            }

        def _generate_examples(self, labels):
            for label in labels:
                # Files are stored as they are; encoding an array would take TensorFlow.
                yield label, {"image": _png(pixels[label]), "label": label}

    Mnist(data_dir=tmp_path, file_format="array_record").download_and_prepare()
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
