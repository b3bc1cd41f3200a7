"""Augmentation by address: what it does to an image, and that only the address decides."""

import jax
import numpy as np
import pytest

from experiments.tasks import dense_tasks, sampling
from experiments.tasks.data import Images

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


def test_draws_are_a_function_of_the_address():
    shards = np.array_split(np.arange(40), 4)
    sampler = sampling.Sampler(shards, batch_size=3, seed=1)
    workers, counters = np.meshgrid(np.arange(4), np.arange(50), indexing="ij")
    together = np.asarray(sampler.draws(workers, counters))
    assert together.shape == (4, 50, 3) and together.dtype == np.uint32
    assert len(np.unique(together)) == together.size
    for worker_, counter in ((0, 0), (3, 49), (2, 7)):
        np.testing.assert_array_equal(
            sampler.draws(np.int64(worker_), np.int64(counter)), together[worker_, counter]
        )
    assert not np.array_equal(
        sampling.Sampler(shards, 3, seed=2).draws(workers, counters), together
    )
    far = sampler.draws(np.int64(0), np.int64(2**32))
    assert not np.array_equal(far, sampler.draws(np.int64(0), np.int64(0)))


def test_what_does_not_fit_is_one_sentence():
    with pytest.raises(ValueError, match="size=7 is more than images of 6x6 pixels have"):
        dense_tasks.crop_and_flip(size=7).plain(IMAGES)
    with pytest.raises(ValueError, match="padding must be at least 0 and size at least 1, got -1"):
        dense_tasks.crop_and_flip(padding=-1)
