"""Checkpoints of a run: `checkpoint/<evaluation>` below its workdir, that of its end as well.

A checkpoint is written beside the older one, renamed when it is complete, and only then is the
older one removed, so that a kill at any moment leaves one of the two. From that of its end a run
can be trained longer.

Here one process writes what all of them have whole; see `divided_checkpoints` for state that no
host has whole.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from experiments import files, records, texts
from stragglers.schedule import Schedule, load

STATE = "state.npz"  # all of a checkpoint but its digests
TYPES = "types"  # names -> types that NumPy's files do not know, as bfloat16
DIGESTS = "digests.json"  # of all other files of a checkpoint; older ones have none
CHANGED = "its files are not those that were written"
HALF = "it is not complete"
BLOCK = 4096  # bytes that a small file takes, of which the store writes some per array
PACKED = "run/"  # prefix of what the runtime has packed
EMPTY = "empty"  # arrays without elements, which the store refuses: their types and shapes


class Checkpoint(NamedTuple):
    """A run between two evaluations."""

    evaluation: int  # the number of the last one that was made; the start has 0
    records: int  # lines of metrics
    wall_seconds: float  # spent so far
    packed: Mapping[str, np.ndarray | jax.Array]  # by the runtime
    schedule: Schedule | None  # what happened; None: nothing yet, or the clock can tell it again
    # `packed` with what is on the disk in parts, from what the runtime packs of a run that has just
    # been started; None: all is in `packed`.
    bring: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    # The last evaluation was that of an end, where a longer run has none: it is to be made again.
    between: bool = False


class Unreadable(ValueError):
    """A checkpoint that no run can go on from."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{why}; remove {path}, and the same command starts this run over")
        self.path, self.why = path, why


def save(workdir: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Add a checkpoint to a run's; when it returns, no kill can take it away."""
    unfinished = folder_of(workdir) / records.UNFINISHED
    files.remove_tree(unfinished)
    stored = as_arrays(checkpoint)
    types = {name: value.dtype.name for name, value in stored.items() if value.dtype.kind == "V"}
    stored[TYPES] = np.frombuffer(json.dumps(types).encode(), np.uint8)
    make_room(workdir, stored)
    try:
        files.make(unfinished)
        with files.replacing(unfinished / STATE) as file:
            np.savez(file, **stored)
        records.write_json(unfinished / DIGESTS, digests(unfinished))
        files.sync_tree(unfinished)
    except (OSError, files.NotWritten) as error:
        files.remove_tree(unfinished)
        raise files.NotWritten(folder_of(workdir), error) from error
    give_number(unfinished, checkpoint.evaluation)


def give_number(unfinished: Path, evaluation: int) -> None:
    """Make a checkpoint of what has been written; an older one of its number gets one less.

    Only the end of a run that is trained longer has such an older one, and only that.
    """
    path = unfinished.with_name(str(evaluation))
    if path.exists():
        files.move(path, unfinished.with_name(str(evaluation - 1)))
    files.move(unfinished, path)


def read(workdir: str | os.PathLike, evaluation: int) -> Checkpoint:
    """The checkpoint made after an evaluation; one that cannot be read raises Unreadable."""
    path = folder_of(workdir) / str(evaluation)
    with readable(path):
        if written_digests(path) != digests(path):
            raise ValueError(CHANGED)
        with np.load(path / STATE) as file:
            stored = dict(file)
        for name, kind in json.loads(stored.pop(TYPES).tobytes()).items():
            stored[name] = stored[name].view(np.dtype(kind))
        return from_arrays(evaluation, stored)


def as_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray | jax.Array]:
    """All of a checkpoint but its number, as a store takes it."""
    stored = {PACKED + name: value for name, value in checkpoint.packed.items()}
    stored["records"] = np.array([checkpoint.records])
    made = [checkpoint.evaluation, checkpoint.between]  # whatever its folder is called later
    stored["evaluation"] = np.array(made, np.int64)
    stored["wall_seconds"] = np.array([checkpoint.wall_seconds])
    if checkpoint.schedule is not None:
        file = io.BytesIO()
        checkpoint.schedule.save(file)
        stored["schedule"] = np.frombuffer(file.getvalue(), np.uint8)
    hollow = {name: value for name, value in stored.items() if not value.size}
    if hollow:
        stored = {name: value for name, value in stored.items() if name not in hollow}
        described = {name: [value.dtype.name, value.shape] for name, value in hollow.items()}
        stored[EMPTY] = np.frombuffer(json.dumps(described).encode(), np.uint8)
    return stored


def from_arrays(evaluation: int, stored: dict[str, np.ndarray]) -> Checkpoint:
    """The checkpoint that `as_arrays` has taken apart."""
    if EMPTY in stored:
        described = json.loads(stored.pop(EMPTY).tobytes())
        stored |= {name: np.zeros(shape, kind) for name, (kind, shape) in described.items()}
    schedule = None
    if "schedule" in stored:
        schedule = load(io.BytesIO(stored["schedule"].tobytes()))
    evaluation, between = stored.get("evaluation", [evaluation, 0])
    return Checkpoint(
        int(evaluation),
        int(stored["records"][0]),
        float(stored["wall_seconds"][0]),
        {n.removeprefix(PACKED): v for n, v in stored.items() if n.startswith(PACKED)},
        schedule,
        between=bool(between),
    )


def make_room(workdir: str | os.PathLike, stored: Mapping[str, np.ndarray | jax.Array]) -> None:
    """Make the directory of a run's checkpoints; NotWritten where the disk is too full for one.

    Asked before: where the disk is full the store's own threads print what they meet.
    """
    size = sum(value.nbytes for value in stored.values())
    files.make(folder_of(workdir))
    files.check_room(folder_of(workdir), size + BLOCK * (2 * len(stored) + 8))


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a checkpoint is read into an Unreadable."""
    try:
        yield
    except Exception as error:  # orbax and its store raise many kinds
        reason = f"{type(error).__name__}: {texts.brief(error)}"
        raise Unreadable(path, f"checkpoint {path} cannot be read ({reason})") from error


def resumable(
    workdirs: Sequence[str | os.PathLike], unreadable: Collection[Path] = ()
) -> list[int | None]:
    """The evaluation from which each of some runs that train together can go on; None: its start.

    All from the same one if they can, the latest such; otherwise each from its own latest.
    unreadable: checkpoints that are passed over.
    """
    folders = [folder_of(workdir) for workdir in workdirs]
    complete = [
        {int(n) for n in records.checkpoints_in(folder) if folder / n not in unreadable}
        for folder in folders
    ]
    common = set.intersection(*complete)
    return [max(common or own, default=None) for own in complete]


def keep_only(workdir: str | os.PathLike, evaluation: int) -> None:
    """Remove all checkpoints of a run but the one made after `evaluation`."""
    records.remove_checkpoints(workdir, keep=frozenset([str(evaluation)]))


def remove(workdir: str | os.PathLike) -> None:
    """Remove all checkpoints of a run, if there are any, and nothing else."""
    records.remove_checkpoints(workdir)


def folder_of(workdir: str | os.PathLike) -> Path:
    """Where the checkpoints of a run lie."""
    return Path(workdir) / records.CHECKPOINT


def digests(folder: Path, names: Sequence[str] | None = None) -> dict[str, str]:
    """The files of a checkpoint by their names -> SHA-256; names: of these files alone."""
    found = {}
    for name in file_names(folder) if names is None else names:
        with files.opened(folder / name) as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def written_digests(folder: Path) -> dict[str, str]:
    """The digests that a checkpoint was completed with."""
    if not (folder / DIGESTS).exists():
        raise ValueError(HALF)
    return records.read_json(folder / DIGESTS)


def file_names(folder: Path) -> list[str]:
    """The files of a checkpoint in their order, but for that of their digests."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != DIGESTS)
    return [path.relative_to(folder).as_posix() for path in paths]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep orbax from telling of every step, and of what its threads throw.

    It raises here what they throw.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
