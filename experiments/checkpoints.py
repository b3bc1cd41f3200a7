"""Checkpoints of an unfinished run: `checkpoint/<evaluation>` below its workdir, by orbax.

A checkpoint is written beside the older one, renamed when it is complete, and only then is the
older one removed, so that a kill at any moment leaves one of the two.

Here one process writes what all of them have whole; see `divided_checkpoints` for state that no
host has whole.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from experiments import files, records, texts
from stragglers.schedule import Schedule, load

DIGESTS = "digests.json"  # of all other files of a checkpoint; older ones have none
CHANGED = "its files are not those that were written"
BLOCK = 4096  # bytes that a small file takes, of which the store writes some per array
PACKED = "run/"  # prefix of what the runtime has packed
EMPTY = "empty"  # arrays without elements, which the store refuses: their types and shapes


class Checkpoint(NamedTuple):
    """A run between two evaluations."""

    evaluation: int  # evaluations made, that at the start not counted
    records: int  # lines of metrics
    wall_seconds: float  # spent so far
    packed: Mapping[str, np.ndarray | jax.Array]  # by the runtime
    schedule: Schedule | None  # what happened; None: nothing yet, or the clock can tell it again
    # `packed` with what is on the disk in parts, from what the runtime packs of a run that has just
    # been started; None: all is in `packed`.
    bring: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


def save(workdir: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Add a checkpoint to a run's; when it returns, no kill can take it away."""
    unfinished = folder_of(workdir) / records.UNFINISHED
    files.remove_tree(unfinished)
    stored = as_arrays(checkpoint)
    make_room(workdir, stored)
    try:
        with _checkpointer() as checkpointer:
            checkpointer.save(unfinished.absolute(), stored)
            checkpointer.wait_until_finished()
        records.write_json(unfinished / DIGESTS, digests(unfinished))
        files.sync_tree(unfinished)
    except Exception as error:  # orbax and its store raise many kinds on a full disk
        files.remove_tree(unfinished)
        raise files.NotWritten(folder_of(workdir), error) from error
    files.move(unfinished, folder_of(workdir) / str(checkpoint.evaluation))


def read(workdir: str | os.PathLike, evaluation: int) -> Checkpoint:
    """The checkpoint made after an evaluation; one that cannot be read raises ValueError."""
    path = folder_of(workdir) / str(evaluation)
    with readable(path):
        # Before the store sees it, which goes on reading for a while after it has found an error.
        if (path / DIGESTS).exists() and records.read_json(path / DIGESTS) != digests(path):
            raise ValueError(CHANGED)
        with _checkpointer() as checkpointer:
            return from_arrays(evaluation, checkpointer.restore(path.absolute()))


def as_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray | jax.Array]:
    """All of a checkpoint but its number, as a store takes it."""
    stored = {PACKED + name: value for name, value in checkpoint.packed.items()}
    stored["records"] = np.array([checkpoint.records])
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
    return Checkpoint(
        evaluation,
        int(stored["records"][0]),
        float(stored["wall_seconds"][0]),
        {n.removeprefix(PACKED): v for n, v in stored.items() if n.startswith(PACKED)},
        schedule,
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
    """Turn whatever goes wrong while a checkpoint is read into a ValueError of one sentence."""
    try:
        yield
    except Exception as error:  # orbax and its store raise many kinds
        reason = texts.brief(error)
        raise ValueError(
            f"checkpoint {path} cannot be read ({type(error).__name__}: {reason}); "
            f"remove {path.parent}, and the same command starts this run over"
        ) from error


def resumable(workdirs: Sequence[str | os.PathLike]) -> list[int | None]:
    """The evaluation from which each of some runs that train together can go on; None: its start.

    All from the same one if they can, the latest such; otherwise each from its own latest.
    """
    complete = [_complete(workdir) for workdir in workdirs]
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


def file_names(folder: Path) -> list[str]:
    """The files of a checkpoint in their order, but for that of their digests."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != DIGESTS)
    return [path.relative_to(folder).as_posix() for path in paths]


def _complete(workdir) -> set[int]:
    return {int(name) for name in records.checkpoints_in(folder_of(workdir))}


@contextlib.contextmanager
def _checkpointer() -> Iterator:
    """Of this process alone: values are whole on every process, and only one of them writes."""
    import orbax.checkpoint as ocp  # takes a third of a second, which most runs never need

    me = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )
    with quiet(), ocp.StandardCheckpointer(multiprocessing_options=options) as checkpointer:
        yield checkpointer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the store from telling of every step, and of what its threads throw.

    It raises here what they throw.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
