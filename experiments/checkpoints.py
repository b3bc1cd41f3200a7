"""Checkpoints of a run: `checkpoint/<evaluation>` below its workdir, also at its end.

A checkpoint is written beside the older one, gets its number when it is complete, and only then the
older one is removed: a kill at any moment leaves one of the two. A checkpoint carries the SHA-256
of each of its files, which `read` compares first. The first process writes the arrays that every
host has whole to `state.npz`. Arrays that are divided between devices, as with `sharding=fsdp`, are
whole on no host: each process writes the parts on its devices to a file of its own, `part_N.npz`.
"""

import contextlib
import functools
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import distributed, files, registry
from stragglers.schedule import Schedule, load

CHECKPOINT = "checkpoint"
UNFINISHED = "unfinished"  # a checkpoint that is being written or removed
STATE, PART, DIGESTS = "state.npz", "part_{}.npz", "digests.json"
TYPES = "types"  # names -> types that NumPy's files do not know, as bfloat16
DIVIDED = "divided"  # names -> types and shapes of arrays that lie in parts
PACKED = "run/"  # prefix of what the runtime has packed
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class Checkpoint(NamedTuple):
    """The state of a run between two evaluations."""

    evaluation: int  # the number of the last evaluation; the start has 0
    records: int  # lines of metrics
    wall_seconds: float  # spent so far
    packed: Mapping[str, np.ndarray | jax.Array]  # by the runtime; divided arrays stay on devices
    schedule: Schedule | None  # the past; None: nothing yet, or the clock can replay it
    # Function from the packed state of a run that has just been started to the whole `packed`, with
    # the divided arrays from the disk; None: all arrays are in `packed`.
    bring: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    # The last evaluation was at a run's end; a longer run has none there and uses its number again.
    between: bool = False
    metrics: str = ""  # SHA-256 of the lines of metrics, which a run that goes on relies on


class Unreadable(ValueError):
    """A checkpoint that no run can go on from."""

    def __init__(self, path: Path | str, why: str, finished: bool = False):
        way = "--overwrite starts this run over"
        if not finished:  # a finished run that is trained longer needs its checkpoint
            way = f"remove {path}, and the same command starts this run over"
        super().__init__(f"{why}; {way}")
        self.path, self.why = path, why


# --- writing ---


def write(workdir: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, which survives a kill when this returns; the older one stays.

    If state is divided, all processes call this, and each writes the parts on its devices; else the
    first process alone calls it. Raises NotWritten if the disk has no room.
    """
    folder, found = folder_of(workdir), {}
    unfinished, path = folder / UNFINISHED, folder / str(checkpoint.evaluation)
    stored, own = _taken_apart(checkpoint)
    try:
        if distributed.is_writer():
            files.remove_tree(unfinished)
        if own is not None:
            distributed.agreed(None)  # nobody writes before the first process has tidied up
            part = unfinished / PART.format(distributed.process_id())
            files.make(unfinished)
            files.write_arrays(part, own)
            for one in distributed.gathered({part.name: files.digest(part)}):
                found |= one
        if distributed.is_writer():
            files.make(unfinished)
            files.write_arrays(unfinished / STATE, stored)
            found[STATE] = files.digest(unfinished / STATE)
            files.write(unfinished / DIGESTS, json.dumps(found))
            if path.exists():  # a run trained on from its end: the end's checkpoint gets one less
                files.move(path, path.with_name(str(checkpoint.evaluation - 1)))
            files.move(unfinished, path)
        if own is not None:
            distributed.agreed(None)  # it is complete
    except (OSError, files.NotWritten) as error:
        if distributed.is_writer():
            files.remove_tree(unfinished)
        raise files.NotWritten(folder, error.__cause__ or error) from error


def is_divided(checkpoint: Checkpoint) -> bool:
    """Return whether the runtime has packed arrays that are still on their devices."""
    return any(isinstance(value, jax.Array) for value in checkpoint.packed.values())


def _json(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _taken_apart(checkpoint: Checkpoint) -> tuple[dict[str, np.ndarray], dict | None]:
    """Return the arrays that the first process writes, and this process's parts of divided ones.

    A part is named after its array and its place in it, its start and end along each axis. None:
    nothing is divided.
    """
    packed = {PACKED + name: value for name, value in checkpoint.packed.items()}
    divided = {name: value for name, value in packed.items() if isinstance(value, jax.Array)}
    stored = {name: value for name, value in packed.items() if name not in divided}
    types = {name: value.dtype.name for name, value in stored.items() if value.dtype.kind == "V"}
    stored["records"] = np.array([checkpoint.records])
    made = [checkpoint.evaluation, checkpoint.between]  # whatever its folder is called later
    stored["evaluation"] = np.array(made, np.int64)
    stored["wall_seconds"] = np.array([checkpoint.wall_seconds])
    stored["metrics"] = _json(checkpoint.metrics)
    stored[TYPES] = _json(types)
    if checkpoint.schedule is not None:
        file = io.BytesIO()
        checkpoint.schedule.save(file)
        stored["schedule"] = np.frombuffer(file.getvalue(), np.uint8)
    if not divided:
        return stored, None
    stored[DIVIDED] = _json({n: [v.dtype.name, list(v.shape)] for n, v in divided.items()})
    return stored, {
        f"{name}|{_ends(shard.index, value.shape)}": shard.data
        for name, value in divided.items()
        for shard in value.addressable_shards
        if shard.replica_id == 0
    }


def _ends(index: tuple[slice, ...], shape: Sequence[int]) -> list[list[int]]:
    """Return the start and end of a part along each axis; the `str` of this list is JSON."""
    return [[*part.indices(size)[:2]] for part, size in zip(index, shape, strict=True)]


# --- reading ---


def read(workdir: str | os.PathLike, evaluation: int) -> Checkpoint:
    """Return the checkpoint made after an evaluation; one that cannot be read raises Unreadable.

    If state is divided, each process compares a share of the digests, and `bring` reads the parts.
    """
    path = folder_of(workdir) / str(evaluation)
    with _readable(path):
        _compare_digests(path)
        with np.load(path / STATE) as file:
            stored = dict(file)
        for name, kind in json.loads(stored.pop(TYPES).tobytes()).items():
            stored[name] = stored[name].view(np.dtype(kind))
        # Up to version 0.3 arrays without elements were kept by their types and shapes.
        for name, (kind, shape) in json.loads(stored.get("empty", _json({})).tobytes()).items():
            stored[name] = np.zeros(shape, kind)
        packed = {n.removeprefix(PACKED): v for n, v in stored.items() if n.startswith(PACKED)}
        bring = schedule = None
        if DIVIDED in stored:
            bring = functools.partial(_brought, path, json.loads(stored[DIVIDED].tobytes()), packed)
        if "schedule" in stored:
            schedule = load(io.BytesIO(stored["schedule"].tobytes()))
        number, between = stored.get("evaluation", [evaluation, 0])
        lines, seconds = int(stored["records"][0]), float(stored["wall_seconds"][0])
        metrics = json.loads(stored.get("metrics", _json("")).tobytes())
        made = Checkpoint(int(number), lines, seconds, packed, schedule, bring)
        return made._replace(between=bool(between), metrics=metrics)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn any error while a checkpoint is read into an Unreadable."""
    try:
        yield
    except Exception as error:  # zip, JSON and NumPy raise many kinds
        reason = f"{type(error).__name__}: {registry.brief(error)}"
        raise Unreadable(path, f"checkpoint {path} cannot be read ({reason})") from error


def _compare_digests(path: Path) -> None:
    """Raise ValueError unless a checkpoint has exactly the files that were written."""
    if not (path / DIGESTS).exists():
        raise ValueError("it is not complete")
    written = json.loads(files.read(path / DIGESTS))
    if "parts.json" in written:
        raise ValueError("version 0.3 or older has divided it; go on with that version")
    names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if not p.is_dir())
    shared = len(written) > 1
    me, count = (distributed.process_id(), distributed.processes()) if shared else (0, 1)
    names.remove(DIGESTS)
    changed = set(names) != set(written)
    if changed or any(written[name] != files.digest(path / name) for name in names[me::count]):
        raise ValueError("its files are not those that were written")


def _brought(
    path: Path,
    divided: Mapping[str, tuple[str, list[int]]],
    whole: Mapping[str, Any],
    like: Mapping[str, Any],
) -> dict[str, Any]:
    """Return all packed arrays, as `Checkpoint.bring` does, divided as the arrays of `like` are."""
    found = dict(whole)
    for name, (kind, shape) in divided.items():
        short = name.removeprefix(PACKED)
        old = like.get(short)
        there = "nothing" if old is None else f"{old.dtype.name} of shape {old.shape}"
        if old is None or (old.dtype.name, list(old.shape)) != (kind, shape):
            raise ValueError(
                f"checkpoint {path}: {short} is {kind} of shape {tuple(shape)} but the run has "
                f"{there}; resume with the program that began, or start over"
            )
    with _readable(path), contextlib.ExitStack() as opened:
        archives = [opened.enter_context(np.load(p)) for p in path.glob(PART.format("*"))]
        holder = {member: archive for archive in archives for member in archive.files}
        parts: dict[str, list[str]] = {}
        for member in holder:
            parts.setdefault(member.rpartition("|")[0], []).append(member)

        @functools.lru_cache(maxsize=1)  # devices side by side may want pieces of one part
        def part(member: str) -> np.ndarray:
            return holder[member][member]

        def piece(name: str, index: tuple[slice, ...]) -> np.ndarray:
            """Return a piece of an array from the parts that overlap it."""
            kind, shape = divided[name]
            wanted = _ends(index, shape)
            made = np.empty([end - begin for begin, end in wanted], np.dtype(kind))
            for member in parts[name]:
                ends = json.loads(member.rpartition("|")[2])
                both = [(max(a, b), min(c, d)) for (a, c), (b, d) in zip(wanted, ends, strict=True)]
                if all(begin < end for begin, end in both):
                    to, of = (
                        tuple(slice(b - o, e - o) for (b, e), (o, _) in zip(both, at, strict=True))
                        for at in (wanted, ends)
                    )
                    made[to] = part(member).view(made.dtype)[of]
            return made

        for name, (_, shape) in divided.items():
            short = name.removeprefix(PACKED)
            found[short] = jax.make_array_from_callback(
                tuple(shape), like[short].sharding, functools.partial(piece, name)
            )
    return found


# --- the folder ---


def folder_of(workdir: str | os.PathLike) -> Path:
    """Return the folder of a run's checkpoints."""
    return Path(workdir) / CHECKPOINT


def numbers(workdir: str | os.PathLike) -> set[int]:
    """Return the evaluations of a run's checkpoints, complete ones or not."""
    folder = folder_of(workdir)
    if folder.is_symlink() or not folder.is_dir():
        return set()
    named = (path for path in folder.iterdir() if _NUMBER.fullmatch(path.name))
    return {int(path.name) for path in named if path.is_dir() and not path.is_symlink()}


def resumable(usable: Sequence[set[int]]) -> list[int | None]:
    """Return the evaluation from which each of several runs that train together resumes, or None.

    All runs resume from the latest usable checkpoint that they share, or else each from its own
    latest one.
    """
    common = set.intersection(*usable) if usable else set()
    return [max(common or own, default=None) for own in usable]


def keep_only(workdir: str | os.PathLike, evaluation: int | None) -> None:
    """Remove a run's checkpoints except one (None: all), and the remains of a killed process."""
    folder = folder_of(workdir)
    if folder.is_symlink():
        return
    files.remove_tree(folder / UNFINISHED)
    for number in numbers(workdir) - {evaluation}:
        # Renamed first, so that a half-removed folder never counts as a checkpoint.
        files.move(folder / str(number), folder / UNFINISHED)
        files.remove_tree(folder / UNFINISHED)
    if evaluation is None:
        with contextlib.suppress(OSError):  # there is none, or somebody else has put a file there
            folder.rmdir()
