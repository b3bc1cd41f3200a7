"""Data sets, and splits of their samples among workers."""

import functools
import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.tasks import sources
from stragglers import reading

CHANNELS = (1, 3, 4)  # usual numbers of channels of an image
LARGEST_FLOAT = 10.0  # the largest value of a scaled or standardised image; 255 is above it


class Images(NamedTuple):
    image: np.ndarray  # [N, height, width, channels], uint8, or float32 in 0..1 or standardised
    label: np.ndarray  # [N] int32


class Points(NamedTuple):
    x: np.ndarray  # [N, d] float32
    y: np.ndarray  # [N] float32, 0 or 1


class Dataset(NamedTuple):
    """Training and test examples: pytrees of arrays with leading axis [samples], or sources.

    A source is a `runtimes.data_feed.Source`, such as `sources.Arrays` and `sources.Records`.
    """

    train: Any
    test: Any
    classes: int | None = None


# --- real data ---


def _digits_table() -> np.ndarray:
    """Return every image's pixels from 0 to 16, row by row, and its label: [1797, 65] float64."""
    package = importlib.util.find_spec("sklearn")  # not imported, which takes a second
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():  # in a scikit-learn that keeps it elsewhere
        from sklearn.datasets import load_digits

        return np.column_stack(load_digits(return_X_y=True))
    return np.loadtxt(path, delimiter=",")


@functools.lru_cache(maxsize=2)
def digits(seed: int = 0, test_fraction: float = 0.2) -> Dataset:
    """Return the 1,797 8x8 images of handwritten digits that come with scikit-learn.

    `seed` draws the split into training and test set; every class has `test_fraction` of its
    images in the test set, up to rounding.
    """
    check_fraction("digits", test_fraction)
    table = _digits_table()
    everything = Images(
        (table[:, :-1].reshape(-1, 8, 8, 1) / 16).astype(np.float32), table[:, -1].astype(np.int32)
    )
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(everything.label), bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(everything.label == label))
        held_out[members[: round(test_fraction * len(members))]] = True
    if held_out.all() or not held_out.any():
        raise ValueError(
            f"digits: test_fraction={test_fraction:g} leaves no image to train on or none to test "
            "on; set it nearer to 0.2"
        )
    return Dataset(
        train=Images(*(a[~held_out] for a in everything)),
        test=Images(*(a[held_out] for a in everything)),
        classes=10,
    )


TFDS_IMAGES = {  # classes, the part to test on, the side [pixels] if images differ in size
    "mnist": (10, "test", None), "fashion_mnist": (10, "test", None), "cifar10": (10, "test", None),
    "cifar100": (100, "test", None), "imagenet2012": (1000, "validation", 256),
}  # fmt: skip


def tfds_images(name: str, data_dir: str | None = None, size: int | None = None) -> Dataset:
    """Return an image data set of TensorFlow Datasets with its own split; images are uint8.

    Reading a directory that was prepared in the array_record format needs neither TensorFlow nor
    a network. Preparing it needs both, once: TensorFlow encodes the images.

    data_dir: see `sources.tfds_source`. size: pixels, to which the shorter side is scaled before a
    square is cut out of the middle; None: images as they are, but 256 for ImageNet.
    """
    classes, held_out, own_size = TFDS_IMAGES[name]
    decode = functools.partial(decoded, size=size or own_size)
    train, test = (
        sources.Records(f"{name}/{split}", sources.tfds_source(name, split, data_dir), decode)
        for split in ("train", held_out)
    )
    return Dataset(train, test, classes)


def decoded(record: Mapping[str, Any], size: int | None = None) -> Images:
    """Return a record ("image" [height, width, channels] uint8, "label") as an image of `size`."""
    image = np.asarray(record["image"])
    if size is not None and image.shape[:2] != (size, size):
        from PIL import Image  # here, as few data need it

        shorter = min(image.shape[:2])
        height, width = (max(size, round(side * size / shorter)) for side in image.shape[:2])
        flat = image[..., 0] if image.shape[-1:] == (1,) else image  # Pillow's grey has no axis
        scaled = np.asarray(Image.fromarray(flat).resize((width, height), Image.BILINEAR))
        scaled = scaled.reshape(height, width, *image.shape[2:])
        top, left = (height - size) // 2, (width - size) // 2
        image = scaled[top : top + size, left : left + size]
    return Images(image, np.int32(record["label"]))


def npy_images(folder: str, classes: int | None = None) -> Dataset:
    """Map the images of train_image.npy, train_label.npy, test_image.npy, test_label.npy.

    Images are [N, height, width, channels] uint8 or float32, labels [N] whole numbers from 0 on.
    classes: their number; None: the number of different labels, which must not skip a number.
    """
    axes = {"image": "samples, height, width, channels", "label": "samples"}
    parts = (
        Images(*(
            sources.mapped(Path(folder) / f"{split}_{name}.npy", what)
            for name, what in axes.items()
        ))
        for split in ("train", "test")
    )  # fmt: skip
    return Dataset(*map(sources.Arrays, parts), classes)


def npz_images(path: str, classes: int | None = None) -> Dataset:
    """Read images of a `.npz` file: x_train, y_train, x_test and y_test, as in Keras' mnist.npz.

    Images are [N, height, width, channels], or [N, height, width] without colours; labels are [N]
    or [N, 1]. classes: see `npy_images`.
    """
    try:
        arrays = reading.arrays(Path(path).expanduser())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); give a .npz file") from error
    names = ("x_train", "y_train", "x_test", "y_test")
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(
            f"{path} has no {missing[0]} but {', '.join(sorted(arrays)) or 'nothing'}; name its "
            f"arrays {', '.join(names)}"
        )
    parts = []
    for split in ("train", "test"):
        image, label = arrays[f"x_{split}"], arrays[f"y_{split}"]
        image = image[..., None] if image.ndim == 3 else image
        label = label[:, 0] if label.ndim == 2 and label.shape[1] == 1 else label
        parts.append(sources.Arrays(Images(image, label)))
    return Dataset(*parts, classes)


def classes_of(where: str, train: np.ndarray, test: np.ndarray) -> int:
    """Return the number of classes; ValueError unless training has all labels from 0 on."""
    highest = max(int(train.max()), int(test.max()))
    found = np.unique(train)
    if len(found) <= highest:
        missing = next(i for i, label in enumerate([*found, -1]) if i != label)
        raise ValueError(
            f"{where}: labels reach {highest}, and no training sample has label {missing}; number "
            f"the classes from 0 on without gaps, or give classes={highest + 1}"
        )
    return len(found)


def checked(name: str, dataset: Dataset) -> Dataset:
    """Return a data set with its number of classes; ValueError for unusable images or labels.

    name: of the data in errors. Of records that are decoded when read, at most 16 are checked.
    """
    seen, all_seen = [], True
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        if isinstance(examples, sources.Arrays):
            examples = examples.arrays
        elif hasattr(examples, "read"):
            examples = examples.read(np.unique(np.linspace(0, len(examples) - 1, 16, dtype=int)))
            all_seen = False
        _check_images(f"{name}, {split}", examples, dataset.classes)
        seen.append(examples)
    train, test = seen
    if train.image.shape[1:] != test.image.shape[1:]:
        raise ValueError(
            f"{name}: images to train on are {train.image.shape[1:]} and to test on "
            f"{test.image.shape[1:]}; write them again, in one shape"
        )
    if dataset.classes is not None:
        return dataset
    if not all_seen:
        raise ValueError(f"{name}: the data set has classes=None; give it their number")
    return dataset._replace(classes=classes_of(name, train.label, test.label))


def _check_images(where: str, examples: Images, classes: int | None) -> None:
    image, label = np.asanyarray(examples.image), np.asarray(examples.label)
    whole = label.ndim == 1 and label.dtype.kind in "iu"
    low, high = (label.min(initial=0), label.max(initial=0)) if whole else (0, 0)
    if not whole or low < 0 or (classes is not None and high >= classes):
        found = f"from {low} to {high}" if whole else f"{label.dtype} of shape {label.shape}"
        raise ValueError(
            f"{where}: labels are {found}, and have to be one whole number a sample, from 0 to "
            f"{'classes' if classes is None else classes} - 1; number the classes from 0 on"
        )
    if image.ndim != 4 or (image.shape[-1] not in CHANNELS and image.shape[1] in CHANNELS):
        raise ValueError(
            f"{where}: images have shape {image.shape}, where samples, height, width, channels are "
            "due; move the channels to the last axis"
        )
    if not image.size or len(image) != len(label):
        raise ValueError(
            f"{where}: images have shape {image.shape} and labels {label.shape}, where one label "
            "an image is due; write both again"
        )
    if image.dtype == np.uint8:
        return
    if image.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: images are {image.dtype}, where uint8, or floats from 0 to 1 or "
            "standardised, are due; write them as float32"
        )
    some = sources.some(image)
    low, high = float(some.min()), float(some.max())
    least, most = (0, 255) if image.dtype.kind in "iu" else (-LARGEST_FLOAT, LARGEST_FLOAT)
    if not least <= low <= high <= most:
        raise ValueError(
            f"{where}: images are {image.dtype} from {low:g} to {high:g}, where uint8, or floats "
            "from 0 to 1 or standardised, are due; scale them, or write them as uint8"
        )


def at_least(what: str, bound: float, **values: float) -> None:
    """Raise ValueError for a parameter of `what` that is below its bound, or infinite."""
    for name, value in values.items():
        if not bound <= value < math.inf:
            way = "lower" if value > bound else "raise"
            raise ValueError(
                f"{what}: {name} must be finite and at least {bound}, got {value}; {way} {name}"
            )


def check_fraction(what: str, share: float) -> None:
    """Raise ValueError unless the share of test data is between 0 and 1, both excluded."""
    if not 0 < share < 1:
        raise ValueError(f"{what}: test_fraction must lie between 0 and 1, got {share}; try 0.2")


# --- random images ---


def noise(
    samples: int = 256, size: int = 32, channels: int = 3, classes: int = 10, seed: int = 0
) -> Dataset:
    """Return random images [size, size, channels] uint8 with random labels, `samples` per part.

    They have the shape of a data set, but a model can only memorise them.
    """
    at_least("noise", 1, samples=samples, size=size, classes=classes, channels=channels)
    rng = np.random.default_rng(seed)

    def draw() -> Images:
        shape = (samples, size, size, channels)
        labels = rng.integers(0, classes, samples, dtype=np.int32)
        return Images(rng.integers(0, 256, shape, dtype=np.uint8), labels)

    return Dataset(draw(), draw(), classes)


class Gaussians(NamedTuple):
    """Drawn examples, and the accuracy of the Bayes classifier on them."""

    dataset: Dataset  # train, test: Images [N, 1, 1, d] float32
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
    at_least("gaussians", 1, samples=samples, test=test)
    at_least("gaussians", 2, classes=classes)
    at_least("gaussians", classes, dimension=dimension)  # for means that are orthogonal
    at_least("gaussians", 0, separation=separation)
    at_least("gaussians", 1e-6, noise=noise)
    rng = np.random.default_rng(seed)
    directions, _ = np.linalg.qr(rng.standard_normal((dimension, classes)))
    means = noise * separation / np.sqrt(2) * directions.T

    def draw(count: int) -> Images:
        labels = rng.integers(0, classes, count, dtype=np.int32)
        points = means[labels] + noise * rng.standard_normal((count, dimension))
        return Images(points.astype(np.float32)[:, None, None], labels)

    dataset = Dataset(draw(samples), draw(test), classes)
    # With one covariance, equal shares and means of one norm, the most likely class has the largest
    # product of its mean and the point (T. Hastie, R. Tibshirani, J. Friedman, The Elements of
    # Statistical Learning, 2nd ed., Sec. 4.3).
    points = dataset.test.image[:, 0, 0].astype(np.float64)
    accuracy = float(((points @ means.T).argmax(axis=1) == dataset.test.label).mean())
    return Gaussians(dataset, means, accuracy)


def mixed_images(
    samples: int = 4096, size: int = 32, patches: int = 2, channels: int = 3, classes: int = 10,
    separation: float = 7.0, noise: float = 0.5, test: int = 1024, seed: int = 0,
) -> Dataset:  # fmt: skip
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

    def enlarged(points: Images) -> Images:
        colours = points.image.reshape(-1, patches, patches, channels)
        side = size // patches
        return Images(colours.repeat(side, axis=1).repeat(side, axis=2), points.label)

    return Dataset(enlarged(drawn.train), enlarged(drawn.test), classes)


SOURCES = {
    "digits": digits, "gaussians": mixed_images, "npy": npy_images, "npz": npz_images,
    **{name: functools.partial(tfds_images, name) for name in TFDS_IMAGES},
}  # fmt: skip

# --- splits among workers ---


LARGEST_ALPHA = 1e12  # gives equal shares; above, sums of gamma variates may be infinite


def iid(labels: np.ndarray, workers: int, seed: int) -> list[np.ndarray]:
    """Deal all samples at random to workers, equally up to one sample; labels play no role."""
    _check_workers(labels, workers)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(shard) for shard in np.array_split(order, workers)]


def dirichlet(labels: np.ndarray, workers: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Spread each class over the workers in Dirichlet(alpha) proportions (arXiv 1905.12022).

    With a small alpha each worker sees few classes; a large alpha is like `iid`, but sizes vary. A
    worker left without samples then takes one sample from the worker with the most.
    """
    _check_workers(labels, workers)
    if not alpha > 0:
        raise ValueError(f"dirichlet: alpha must be positive, got {alpha}; try 0.1 to 100")
    rng = np.random.default_rng(seed)
    shards: list[list[int]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        share = rng.dirichlet(np.full(workers, min(float(alpha), LARGEST_ALPHA)))
        cuts = np.rint(np.cumsum(share)[:-1] * len(members)).astype(int)
        for shard, part in zip(shards, np.split(members, cuts), strict=True):
            shard.extend(part)
    for shard in shards:
        if not shard:
            shard.append(max(shards, key=len).pop())
    return [np.sort(shard) for shard in shards]


SPLITS = {"iid": iid, "dirichlet": dirichlet}


def _check_workers(labels: np.ndarray, workers: int):
    if not 1 <= workers <= len(labels):
        raise ValueError(
            f"split: cannot share {len(labels)} samples among workers={workers}; "
            f"set workers between 1 and {len(labels)}"
        )


def check_split(name: str, shards: Sequence[Any], workers: int, samples: int) -> None:
    """Raise ValueError unless a split has one array of sample indices for every worker."""
    if len(shards) != workers:
        raise ValueError(
            f"split {name!r}: the number of arrays that it gives is {len(shards)}, and of workers "
            f"{workers}; let it return one per worker"
        )
    for worker, shard in enumerate(shards):
        indices = np.asarray(shard)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            way = "np.flatnonzero(mask)" if indices.dtype == bool else "indices of samples"
            raise ValueError(
                f"split {name!r}: worker {worker} gets {indices.dtype} {list(indices.shape)}, "
                f"where whole numbers [n] are due; let it return {way}"
            )
        if indices.size and not 0 <= indices.min() <= indices.max() < samples:
            raise ValueError(
                f"split {name!r}: worker {worker} gets indices from {indices.min()} to "
                f"{indices.max()}, and samples are numbered from 0 to {samples - 1}; correct them"
            )
