"""Data sets on disk: memory maps and records, read at once or as they are needed.

A source gives any of its examples in any order, see `runtimes.data_feed.Source`. A task's parameter
`reading` decides whether a run holds all examples in memory or streams them, with equal results.
"""

import functools
import importlib.util
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.registry import Kind, Part, brief
from runtimes.data_feed import Readers, Streamed

MOST_READERS = 256
LOOKED_AT = 1 << 25  # values of an array that are checked

NOT_READ = (
    "split: the labels of streamed records are not known before all are read; use split=iid, "
    "reading=memory, or a source of .npy files, whose labels are a file"
)


class Unlabelled:
    """Placeholder for labels that do not exist, or would take a reading of all examples."""

    def __init__(self, samples: int, reason: str = NOT_READ):
        self._samples, self._reason = samples, reason

    def __len__(self) -> int:
        return self._samples

    def __array__(self, dtype=None, copy=None):
        raise ValueError(self._reason)


class Arrays:
    """A pytree of arrays or memory maps [samples, ...] as a source."""

    def __init__(self, arrays: Any):
        self.arrays = arrays
        self.example = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(
                a.shape[1:], jax.dtypes.canonicalize_dtype(a.dtype.newbyteorder("="))
            ),
            arrays,
        )

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.arrays)[0])

    def read(self, indices: np.ndarray) -> Any:
        """Return the examples at `indices`, see `runtimes.data_feed.Source`."""
        return jax.tree.map(
            lambda a, one: np.asarray(a[indices], one.dtype), self.arrays, self.example
        )

    def __reduce__(self):
        # Pickle would copy the contents of a memory map.
        return _mapped_again, (jax.tree.map(_described, self.arrays),)


def _described(array: np.ndarray) -> np.ndarray | functools.partial:
    """Return the call that opens a memory map in another process; return other arrays as is."""
    if isinstance(array, np.memmap) and array.filename is not None:
        name, offset = str(array.filename), array.offset
        return functools.partial(np.memmap, name, array.dtype, "r", offset, array.shape)
    return array


def _mapped_again(described: Any) -> Arrays:
    def leaf(one):
        return _at_random(one()) if isinstance(one, functools.partial) else one

    return Arrays(jax.tree.map(leaf, described))


class Records:
    """A random-access sequence of records, each decoded when it is read.

    The sequence has a length, and gives a record by its index or, by `__getitems__`, several at a
    time, as `tfds.data_source`, `grain.sources.ArrayRecordDataSource` and `grain.MapDataset` do.
    """

    def __init__(self, name: str, records: Sequence, decode: Callable[[Any], Any]):
        """Take records and their decoder; raise ValueError for an empty sequence.

        decode: a record -> a pytree of arrays, all of equal shapes. name: of the data in errors.
        """
        self._name, self._records, self._decode = name, records, decode
        if not len(records):
            raise ValueError(f"{name}: there are no records to read; prepare the data again")
        self.example = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), self.read(np.array([0]))
        )

    def __len__(self) -> int:
        return len(self._records)

    def read(self, indices: np.ndarray) -> Any:
        """Return the examples at `indices`; ValueError if a record cannot be read or decoded."""
        places = [int(index) for index in indices]
        several = getattr(self._records, "__getitems__", None)
        try:
            records = several(places) if several else [self._records[i] for i in places]
            decoded = [self._decode(record) for record in records]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *decoded)
        except Exception as error:  # files of others, and libraries that raise many kinds
            raise ValueError(
                f"{self._name}: records such as number {places[0]} cannot be read or decoded "
                f"({brief(error) or type(error).__name__}); prepare the data again"
            ) from error


def memory() -> None:
    """Read all examples before the run, and keep them in memory on every device."""


def stream(threads: int = 4, processes: int = 0) -> Readers:
    """Read examples as they are needed, ahead of the devices.

    threads: number of threads that read. processes: number of processes that read in their place,
    for slow Python decoders.
    """
    if not (1 <= threads <= MOST_READERS and 0 <= processes <= MOST_READERS):
        raise ValueError(
            f"stream: from 1 to {MOST_READERS} threads or at most as many processes read, got "
            f"threads={threads} and processes={processes}; try threads=4"
        )
    return Readers(threads, processes)


READINGS = {"memory": memory, "stream": stream}  # factories of Readers, or None: all is in memory
READING = Kind("reading", READINGS, (Readers, type(None)))


def read(reading: Part, *parts: Any) -> list[Any]:
    """Return the parts as `Task` takes them, then the labels of the first part, [samples] int.

    reading: a key of READINGS and its parameters. parts: sources or arrays. Labels in memory may be
    None.
    """
    readers, found = READING.build(reading), []
    for part in parts:
        is_source = hasattr(part, "read") and hasattr(part, "example")
        if readers is not None:
            found.append(Streamed(part if is_source else Arrays(part), readers))
        else:
            found.append(part.read(np.arange(len(part))) if is_source else part)
    if readers is None:
        return [*found, getattr(found[0], "label", None)]
    label = getattr(getattr(found[0].source, "arrays", None), "label", None)
    return [*found, Unlabelled(len(found[0])) if label is None else np.asarray(label)]


def some(array: np.ndarray) -> np.ndarray:
    """Return an array, or evenly spread samples of a large one, for checks of about a second."""
    return array[:: max(1, array.size // LOOKED_AT)]


def mapped(path: str | os.PathLike, axes: str) -> np.memmap:
    """Return a `.npy` file as a memory map; ValueError unless it has samples and the named axes."""
    path = Path(path).expanduser()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: there is no such file; prepare the data, or give the folder where it lies"
        ) from error
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be mapped as an array ({brief(error) or type(error).__name__}); it is "
            "cut off or damaged, so write it again"
        ) from error
    count = axes.count(",") + 1
    if not isinstance(array, np.memmap) or array.ndim != count or not len(array):
        raise ValueError(
            f"{path} holds an array of shape {array.shape}, where {count} axes ({axes}) and at "
            "least one sample are due; write it again"
        )
    return _at_random(array)


def tfds_source(name: str, split: str, data_dir: str | None = None) -> Sequence:
    """Return a split of a data set of TensorFlow Datasets, a random-access sequence of examples.

    A directory that was prepared in the array_record format is read without a network.

    data_dir: default `$TFDS_DATA_DIR`, or `~/tensorflow_datasets`.
    """
    import tensorflow_datasets as tfds  # here, since it takes a second to import

    where = os.path.expanduser(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )
    can_prepare = importlib.util.find_spec("tensorflow") is not None
    try:
        return tfds.data_source(name, split=split, data_dir=where, download=can_prepare)
    except Exception as error:  # one cause, for which libraries raise dozens of types
        reason = str(error).partition("\n")[0] if can_prepare else "tensorflow is not installed"
        raise ValueError(
            f"{name}: no array_record copy in data_dir={where} and none can be prepared there "
            f"({reason}); on any computer with a network run `pip install tensorflow-datasets "
            f"tensorflow importlib_resources` and `tfds build {name} --file_format=array_record "
            f"--data_dir=DIR`, then set data_dir to DIR"
        ) from error


def _at_random(array: np.memmap) -> np.memmap:
    """Return the same map, without read-ahead by the operating system."""
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        array.base.madvise(mmap.MADV_RANDOM)
    return array
