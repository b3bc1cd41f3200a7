"""Data on a disk: the run that streams it is the run that holds it in memory."""

import os
import pickle

import grain
import jax
import numpy as np
import pytest
from array_record.python import array_record_module

from configs import nonblocking
from experiments import records, sweep, tasks, train
from experiments.tasks import data, sources
from tests.experiments.test_checkpoints import killed

N = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of two kinds in memory maps, as a small CIFAR."""
    place = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, samples in (("train", N), ("test", 32)):
        label = rng.integers(0, 2, samples)
        image = rng.integers(0, 128, (samples, 8, 8, 3)) + 127 * label[:, None, None, None]
        np.save(place / f"{split}_image.npy", image.astype(np.uint8))
        np.save(place / f"{split}_label.npy", label.astype(np.int64))
    return place


def arm(folder, reading, **changes):
    task = f"images(source=npy(folder='{folder}'), model=mlp(hidden=[4]), reading={reading}"
    entries = {
        "task": f"{task}, augment=crop_and_flip(padding=1), evaluated=24)",
        "name": "tiny",
        "workers": 4,
        "batch_size": 4,
        "mini_batches": 2,
        "seconds": 1.0,
        "evaluate_every": 0.25,
        "wait": "barrier",
        "delay": "deterministic(value=0.05)",  # as many updates before every evaluation
        "communication": 0.01,
        "target_loss": None,
        "optimizer.learning_rate": 0.1,
    }
    return sweep.override(nonblocking.get_config(), entries | changes)


def comparable(record):
    return {k: v for k, v in record.items() if k not in ("wall_seconds", "input_wait_seconds")}


@pytest.mark.slow
def test_a_streamed_run_is_the_run_in_memory_and_resumes(folder, tmp_path):
    """To the last bit of its records, killed in the middle or not."""
    ours, theirs = arm(folder, "stream(threads=2)"), arm(folder, "memory")
    train.run(theirs, tmp_path / "memory")
    killed(ours, tmp_path / "stream", 3)
    summary = train.run(ours, tmp_path / "stream", checkpoint_seconds=0)
    found, expected = (records.read_metrics(tmp_path / way) for way in ("stream", "memory"))
    assert list(map(comparable, found)) == list(map(comparable, expected))
    assert summary["input_wait_seconds"] > 0 and "input_wait_seconds" not in expected[-1]
    assert summary["train_loss"] < expected[0]["train_loss"]
    ours, theirs = (np.load(tmp_path / way / "parameters.npz") for way in ("stream", "memory"))
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


def decode(record):
    return data.decoded(record)


class Blocks:
    """A sequence of your own, which gives several records at a time."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.__getitems__([i])[0]

    def __getitems__(self, indices):
        return [{"image": np.full((2, 2, 1), i, np.uint8), "label": i % 2} for i in indices]


def brought():
    """Return a source as configs bring it along."""
    records = sources.Records("blocks", Blocks(), decode)
    return data.Dataset(records, records, classes=2)


def test_a_source_of_your_own_is_streamed_by_processes():
    spec = {"name": "images", "source": f"{__name__}:brought", "model": "logistic"}
    task = tasks.build(spec | {"reading": "stream(processes=2)", "evaluated": 4})
    assert tasks.streams(spec | {"reading": "stream"}) and not tasks.streams(spec)
    np.testing.assert_array_equal(tasks.take(task.train, slice(3, 5)).image[:, 0, 0, 0], [3, 4])
    pieces = [piece.image[:, 0, 0, 0] for piece, _ in tasks.in_pieces(task, task.train, batch=3)]
    np.testing.assert_array_equal(np.concatenate(pieces), [0, 10, 20, 30])


class Own:
    """A source that is neither arrays nor records."""

    example = data.Images(jax.ShapeDtypeStruct((2, 2, 1), "u1"), jax.ShapeDtypeStruct((), "i4"))

    def __len__(self):
        return 40

    def read(self, indices):
        image = np.zeros((len(indices), 2, 2, 1), np.uint8) + indices[:, None, None, None]
        return data.Images(image.astype(np.uint8), np.int32(indices % 2))


def own():
    return data.Dataset(Own(), Own(), classes=2)


def test_a_source_without_known_labels_is_streamed_and_split_at_random():
    spec = {"name": "images", "source": f"{__name__}:own", "model": "logistic"}
    task = tasks.build(spec | {"reading": "stream"})
    tasks.check(task, jax.eval_shape(task.init, jax.random.key(0)))
    assert len(task.labels) == 40 and len(data.iid(task.labels, 4, seed=0)) == 4
    with pytest.raises(ValueError, match=r"labels of streamed .* split=iid"):
        data.dirichlet(task.labels, 4, 1.0, seed=0)


def unpickled(record):
    return data.decoded(pickle.loads(record))


def test_a_shard_that_is_cut_off_under_a_run_is_one_sentence(tmp_path):
    """Grain gives nothing for a record that is gone."""
    path = tmp_path / "images.array_record"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    images = np.random.default_rng(0).integers(0, 256, (50, 16, 16, 3), np.uint8)
    for label, image in enumerate(images):
        writer.write(pickle.dumps({"image": image, "label": label}))
    writer.close()
    shard = grain.sources.ArrayRecordDataSource(str(path))
    records = sources.Records("shard", shard, unpickled)
    again = pickle.loads(pickle.dumps(records)).read(np.array([49, 3]))
    np.testing.assert_array_equal(again.label, [49, 3])
    np.testing.assert_array_equal(again.image, images[[49, 3]])
    os.truncate(path, 20_000)
    with pytest.raises(ValueError, match="shard: records such as number 45 cannot be read or deco"):
        records.read(np.array([45]))


def write(folder, name, array):
    np.save(folder / f"{name}.npy", array)


def test_what_is_not_there_or_damaged_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"train_image.npy: there is no such file; prepare the"):
        data.npy_images(str(tmp_path))
    for split in ("train", "test"):
        write(tmp_path, f"{split}_image", np.zeros((6, 4, 4, 3), np.uint8))
        write(tmp_path, f"{split}_label", np.zeros(5, int))
    source = f"npy(folder='{tmp_path}')"
    with pytest.raises(ValueError, match=r"images have shape \(6, 4, 4, 3\) and labels \(5,\), wh"):
        tasks.build({"name": "images", "source": source, "model": "logistic"})
    os.truncate(tmp_path / "train_image.npy", 200)
    with pytest.raises(ValueError, match=r"cannot be mapped .* it is cut off or damaged"):
        data.npy_images(str(tmp_path))
    write(tmp_path, "train_image", np.zeros((6, 4)))
    with pytest.raises(ValueError, match=r"holds an array of shape \(6, 4\), where 4 axes"):
        data.npy_images(str(tmp_path))
    with pytest.raises(ValueError, match="mine: there are no records to read"):
        sources.Records("mine", [], decode)
    with pytest.raises(ValueError, match=r"mine: records such as number 0 cannot be read .*label"):
        sources.Records("mine", [{"image": np.zeros((2, 2, 1), "u1")}], decode)
    with pytest.raises(ValueError, match="got threads=0 and processes=0; try threads=4"):
        sources.stream(threads=0)


def in_memory(change, label=(0, 1, 1, 0)):
    image = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    part = data.Images(change(image), np.asarray(label))
    return data.Dataset(part, part, 2)


@pytest.mark.parametrize(
    "change, label, words",
    [
        (None, (-1, 1, 1, -1), r"x, train: labels are from -1 to 1, .* from 0 to 2 - 1; number"),
        (None, (0.0, 1.0, 1.0, 0.0), r"labels are float64 of shape \(4,\)"),
        (lambda x: x.transpose(0, 3, 1, 2), (0, 1, 1, 0), r"shape \(4, 3, 8, 8\), .* last axis"),
        (lambda x: np.float32(x), (0, 1, 1, 0), r"float32 from 0 to 255, .*; scale them"),
        (lambda x: np.where(x > 99, np.nan, x / 255), (0, 1, 1, 0), "float64 from nan to nan"),
    ],
)
def test_images_that_teach_something_else_are_refused(change, label, words):
    wrong = in_memory(change or (lambda image: image), label)
    with pytest.raises(ValueError, match=words):
        data.checked("x", wrong)
    with pytest.raises(ValueError, match=words):
        data.checked("x", data.Dataset(*map(sources.Arrays, wrong[:2]), 2))
