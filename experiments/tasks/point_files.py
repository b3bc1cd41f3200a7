"""Tasks on points of a file: rows of numbers with a class or a number to predict."""

import importlib
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments import registry
from experiments.tasks import Task, data, models, take
from experiments.tasks.dense_tasks import MODEL, classification
from stragglers import reading

MOST_BYTES = 2**33  # of features in float32
MOST_CLASSES = 2**20

Read = tuple[np.ndarray, np.ndarray]  # features [n, d], targets [n]
Named = tuple[np.ndarray, np.ndarray, list[str] | None]  # as Read, with the names of features


def points(
    path: str, model: str | Mapping = "logistic", regression: bool = False, target: str = "y",
    test: str | None = None, test_fraction: float = 0.2, classes: int | None = None,
    standardise: bool = False, l2: float = 0.0, seed: int = 0,
) -> Task:  # fmt: skip
    """Classify points of a file, or predict their numbers; the loss is then half the squared error.

    path: `.npz` with arrays x [n, d] and `target` [n]; `.csv`, `.tsv` or `.parquet` with a column
        `target` and features in all others; anything else is svmlight, LIBSVM's format.
    model: a key of MODELS; a point is an image [1, d, 1]; logistic is linear. regression: False:
        targets are classes from 0 on, or -1 and 1. classes: their number, if not all occur.
    test: another file; None: `test_fraction` of the points, drawn by `seed`.
    standardise: shift and scale every feature to mean 0 and variance 1 over the training points.
    """
    if test is None:
        data.check_fraction("points", test_fraction)
    if regression and classes is not None:
        raise ValueError(
            f"points: regression predicts numbers, which have no classes={classes}; leave one out"
        )
    files = [path] if test is None else [path, test]
    kind = np.float64 if standardise else np.float32  # float32 has few digits beside a large mean
    found = zip(files, _read(files, target, kind), strict=True)
    parts = [_checked(file, *read, kind) for file, read in found]
    if test is None:
        (x, y), rng = parts[0], np.random.default_rng(seed)
        held_out = np.arange(len(y)) < max(1, round(test_fraction * len(y)))
        rng.shuffle(held_out)
        parts = [(x[~held_out], y[~held_out]), (x[held_out], y[held_out])]
    (x, y), (test_x, test_y) = parts
    if not len(y) or x.shape[1] != test_x.shape[1]:
        raise ValueError(
            f"points: {len(y)} points of {x.shape[1]} features are left to train and {len(test_y)} "
            f"of {test_x.shape[1]} to test; give more points, of as many features"
        )
    if standardise:
        mean, deviation = (f(x, axis=0, dtype=np.float64) for f in (np.mean, np.std))
        # A feature that is constant may have a mean that differs from it by rounding.
        deviation[(deviation == 0) | (np.ptp(x, axis=0) == 0)] = 1
        x, test_x = (((part - mean) / deviation).astype(np.float32) for part in (x, test_x))
    if regression:
        return _regression(_as_images(x, y), _as_images(test_x, test_y), model, l2)
    found = np.unique(np.concatenate([y, test_y]))
    if np.array_equal(found, [-1, 1]):
        y, test_y, found = (y + 1) / 2, (test_y + 1) / 2, np.arange(2)
    most = MOST_CLASSES if classes is None else classes
    if found[0] < 0 or (found % 1).any() or found[-1] >= most:
        raise ValueError(
            f"points: the targets of {path} are from {found[0]:g} to {found[-1]:g}, where classes "
            f"from 0 to {'their number' if classes is None else classes} - 1 are due; number them, "
            "or write regression=True"
        )
    if len(found) == 1:
        raise ValueError(
            f"points: all targets of {path} are {found[0]:g}, so that there is nothing to tell "
            "apart; give points of two classes or more"
        )
    labels = np.concatenate([y, test_y]) if test is None else y
    classes = classes or data.classes_of(path, labels.astype(np.int32), test_y.astype(np.int32))
    y, test_y = y.astype(np.int32), test_y.astype(np.int32)
    dataset = data.Dataset(_as_images(x, y), _as_images(test_x, test_y), classes)
    return classification("points", dataset, model, l2)


def _as_images(x: np.ndarray, y: np.ndarray) -> data.Images:
    return data.Images(x[:, None, :, None], y)


def _regression(train: data.Images, test: data.Images, model: str | Mapping, l2: float) -> Task:
    data.at_least("points", 0, l2=l2)
    module = models.build(MODEL, model, classes=1)
    functions = models.functions_of(module, l2, outputs=1, fit=models.half_square)
    halves = np.int32(train.label > np.median(train.label))  # for splits that go by label
    return Task(
        "points", train, test, halves, lambda key: functions.init(key, take(train, slice(1))),
        functions.losses,
    )  # fmt: skip


def _read(files: list[str], target: str, kind: type) -> list[Read]:
    """Return features and targets of files of one format; kind: float32 or float64."""
    suffix = Path(files[0]).suffix.lower()
    readers: dict[str, Callable[[Path, str], Named]] = {
        ".npz": _npz, ".csv": _text, ".tsv": _text, ".parquet": _parquet,
    }  # fmt: skip
    try:
        places = [Path(file).expanduser() for file in files]
        for place in places:
            reading.opened(place).close()
        if suffix in readers:
            return _in_one_order([readers[suffix](place, target) for place in places])
        return _svmlight(places, kind)
    except _NoTarget as error:
        raise ValueError(f"points: {' or '.join(files)} {error}") from None
    except Exception as error:  # of three libraries, which raise any kinds
        reason = getattr(error, "strerror", None) or registry.brief(error)
        raise ValueError(
            f"points: {' or '.join(files)} cannot be read ({reason}); give .npz, .csv, .tsv, "
            ".parquet or svmlight, in which all are numbers, classes as well"
        ) from error


class _NoTarget(ValueError):
    """Error of a file without the named target, or without names."""


def _in_one_order(parts: Sequence[Named]) -> list[Read]:
    """Return every part with features in the first part's order; ValueError for other names."""
    first = parts[0][2]
    found = []
    for x, y, names in parts:
        if names is not None and sorted(names) != sorted(first):
            only = ", ".join(sorted(set(names) ^ set(first))[:8])
            raise ValueError(f"they have other columns than each other: {only}")
        if names != first and len(set(names)) < len(names):
            raise ValueError("two of their columns have one name, and their orders differ")
        found.append((x if names == first else x[:, [names.index(n) for n in first]], y))
    return found


def _npz(path: Path, target: str) -> Named:
    arrays = reading.arrays(path)
    if "x" not in arrays:
        raise ValueError(f"it has no 'x' but {', '.join(arrays) or 'nothing'}")
    if target not in arrays:
        raise _NoTarget(f"has no array {target!r}; give target='...' of {', '.join(arrays)}")
    return arrays["x"], arrays[target], None


def _text(path: Path, target: str) -> Named:
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
        if "\0" in header:
            raise ValueError("it has zero bytes, as UTF-16 has; save it as UTF-8")
        delimiter = max(",;\t", key=header.count)
        columns = [name.strip(' "\n') for name in header.split(delimiter)]
        if all(map(_is_finite, columns)):
            raise _NoTarget(f"has numbers in its first line ({registry.listed(columns)}) and no "
                            "names; put a line of names above")  # fmt: skip
        if len(columns) < 2:
            raise _NoTarget(f"has {registry.brief(header)!r} as its first line; put the names of "
                            "the target and of features there, with commas between")  # fmt: skip
        which = _column(columns, target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a table without rows, which is refused
            table = np.loadtxt(file, delimiter=delimiter, quotechar='"', ndmin=2)
    if not table.size:
        raise ValueError("it has names and no points")
    if table.shape[1] != len(columns):
        raise ValueError(f"it has {table.shape[1]} columns below {len(columns)} names")
    names = columns[:which] + columns[which + 1 :]
    return np.delete(table, which, axis=1), table[:, which], names


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _parquet(path: Path, target: str) -> Named:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ValueError("run pip install pyarrow to read it") from error
    table = parquet.read_table(path)
    which = _column(table.column_names, target)
    values = [column.to_numpy() for column in table.columns]
    for name, column in zip(table.column_names, values, strict=True):
        if column.dtype.kind in "mM":  # as floats they would be nanoseconds
            raise ValueError(f"its column {name!r} has times")
    columns = [np.asarray(column, np.float64) for column in values]
    features, names = columns[:which] + columns[which + 1 :], list(table.column_names)
    return np.stack(features, axis=1), columns[which], names[:which] + names[which + 1 :]


def _column(columns: list[str], target: str) -> int:
    if columns.count(target) != 1 or len(columns) < 2:
        shown = ", ".join([*columns[:12], *(["..."] if columns[12:] else [])])
        count = "one column" if len(columns) < 2 else f"{columns.count(target)} columns {target!r}"
        raise _NoTarget(f"has {count}, but one and features are due; give target='...' of {shown}")
    rows = [name for name in columns if not name or re.fullmatch(r"__index_level_\d+__", name)]
    if rows:
        raise _NoTarget(f"has a column {rows[0]!r}, the number of the row as pandas writes it; "
                        "write it with index=False, or name the column")  # fmt: skip
    return columns.index(target)


def _svmlight(paths: list[Path], kind: type) -> list[Read]:
    datasets = importlib.import_module("sklearn.datasets")  # late: it takes a second
    found = datasets.load_svmlight_files([str(path) for path in paths], dtype=kind)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    for x, _ in pairs:
        if not x.nnz:
            raise ValueError("no point of it has a feature other than 0")
        if x.shape[0] * x.shape[1] * 4 > MOST_BYTES:
            raise ValueError(f"{x.shape[0]} points of {x.shape[1]} features fill the memory")
    return [(x.toarray(), y) for x, y in pairs]


def _checked(path: str, x: np.ndarray, y: np.ndarray, kind: type) -> Read:
    """Return features of dtype `kind` and float32 targets; ValueError unless all are finite."""
    kinds = {x.dtype.kind, y.dtype.kind} - set("biuf")
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.size or kinds:
        raise ValueError(
            f"points: {path} has features {x.dtype} {list(x.shape)} and targets {y.dtype} "
            f"{list(y.shape)}, where numbers [n, d] and [n] are due; write it again"
        )
    with np.errstate(over="ignore"):
        short, y = x.astype(np.float32), y.astype(np.float32)
    bad = np.flatnonzero(~(np.isfinite(short).all(axis=1) & np.isfinite(y)))
    if bad.size:
        raise ValueError(
            f"points: {path} has a value that is not finite in point {bad[0]} from 0 on, of "
            f"{bad.size} such points; leave them out"
        )
    return (short if kind is np.float32 else x.astype(kind)), y
