"""Checkpoints of state that is divided between devices: each process writes and reads its part.

No host ever has such a state whole. While the run waits, orbax copies to each host what its own
devices keep; while the run goes on, each process writes that to a folder of its own,
`ocdbt.process_N`, and the first one writes what all of them have alike. When every part is on the
disk, the first process adds the digests and gives the folder its number, so that a kill at any
moment leaves this checkpoint or the one before. All processes call each function here, in the same
order.
"""

import contextlib
import functools
import itertools
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import checkpoints, distributed, files, records
from experiments.checkpoints import Checkpoint

PARTS = "parts.json"  # of a checkpoint: names of whole arrays; types and shapes of divided ones
OWN = "ocdbt.process_{}"  # the folder of a process, as orbax calls it

_begun = itertools.count()  # checkpoints of this process so far, the same on all


def is_divided(checkpoint: Checkpoint) -> bool:
    """Whether the runtime has packed arrays that are still on their devices."""
    return any(isinstance(value, jax.Array) for value in checkpoint.packed.values())


class Writing:
    """A checkpoint that is being written while the run goes on."""

    def __init__(self, workdir: str | os.PathLike, checkpoint: Checkpoint):
        """Copy the state to the hosts, and begin; the run may change it from then on.

        Raises NotWritten, with the older checkpoint left alone, where the disk has no room.
        """
        self._workdir, self._evaluation = workdir, checkpoint.evaluation
        self._folder = checkpoints.folder_of(workdir)
        self._unfinished = self._folder / records.UNFINISHED
        self._key = f"gossax/checkpoint/{next(_begun)}"
        self._error: Exception | None = None
        stored = checkpoints.as_arrays(checkpoint)
        self._parts = _described(stored)
        if distributed.is_writer():
            records.remove_unfinished(self._folder)
        checkpoints.make_room(workdir, stored)
        distributed.agreed(None)  # nobody writes before the first process has tidied up
        with contextlib.ExitStack() as opened:
            opened.enter_context(checkpoints.quiet())
            self._store = opened.enter_context(_writer(self._key))
            with self._not_written():
                self._store.save(self._unfinished.absolute(), args=_saved(stored))
            self._opened = opened.pop_all()
        self._thread = threading.Thread(target=self._finish, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what has gone wrong so far, at once."""
        if not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until no kill can take the checkpoint away; raises NotWritten if it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _finish(self) -> None:
        try:
            with self._not_written(), self._opened:
                self._store.wait_until_finished()
                self._seal()
        except Exception as error:
            self._error = error

    def _seal(self) -> None:
        """Make sure of the own part; then the first process names the whole."""
        me, count = distributed.process_id(), distributed.processes()
        own = self._unfinished / OWN.format(me)
        found = {f"{own.name}/{n}": d for n, d in checkpoints.digests(own).items()}
        files.sync_tree(own)
        if not distributed.is_writer():
            distributed.say(f"{self._key}/{me}", json.dumps(found))
            distributed.hear(f"{self._key}/named")
            return
        for other in range(1, count):
            found |= json.loads(distributed.hear(f"{self._key}/{other}"))
        records.write_json(self._unfinished / PARTS, self._parts)
        rest = [name for name in checkpoints.file_names(self._unfinished) if name not in found]
        found |= checkpoints.digests(self._unfinished, rest)
        records.write_json(self._unfinished / checkpoints.DIGESTS, found)
        files.sync_tree(self._unfinished)
        checkpoints.give_number(self._unfinished, self._evaluation)
        checkpoints.keep_only(self._workdir, self._evaluation)
        if count > 1:
            distributed.say(f"{self._key}/named", "")

    @contextlib.contextmanager
    def _not_written(self):
        """Raise NotWritten for what a store raises, unless another process has gone."""
        try:
            yield
        except files.NotWritten:
            raise
        except Exception as error:  # orbax and its store raise many kinds on a full disk
            for reason in (error, error.__cause__):
                if reason is not None and distributed.is_lost(reason):
                    raise reason from None
            if distributed.is_writer():
                records.remove_unfinished(self._folder)
            raise files.NotWritten(self._folder, error) from error


def is_there(workdir: str | os.PathLike, evaluation: int) -> bool:
    """Whether the checkpoint made after an evaluation is of divided state."""
    return (checkpoints.folder_of(workdir) / str(evaluation) / PARTS).exists()


def read(workdir: str | os.PathLike, evaluation: int) -> Checkpoint:
    """The checkpoint made after an evaluation, whose `bring` reads what each process keeps.

    The processes share the comparison of digests. One that cannot be read raises ValueError.
    """
    path = checkpoints.folder_of(workdir) / str(evaluation)
    with checkpoints.readable(path):
        _check_files(path)
        parts = records.read_json(path / PARTS)
        whole = _restored(path, dict.fromkeys(parts["whole"], np.empty(0)))
        checkpoint = checkpoints.from_arrays(evaluation, whole)
    bring = functools.partial(_brought, path, parts["divided"], checkpoint.packed)
    return checkpoint._replace(bring=bring)


def _brought(
    path: Path, divided: dict[str, list], whole: Mapping[str, Any], like: Mapping[str, Any]
) -> dict[str, Any]:
    """See `Checkpoint.bring`: each device gets the part that the array in its place has there."""
    wanted = {}
    for name, (kind, shape) in divided.items():
        short = name.removeprefix(checkpoints.PACKED)
        old = like.get(short)
        there = "nothing" if old is None else f"{old.dtype.name} of shape {old.shape}"
        if old is None or (old.dtype.name, list(old.shape)) != (kind, shape):
            raise ValueError(
                f"checkpoint {path}: {short} is {kind} of shape {tuple(shape)} but the run has "
                f"{there}; resume with the program that began, or start over"
            )
        wanted[name] = old
    with checkpoints.readable(path):
        found = _restored(path, wanted)
    return {**whole, **{n.removeprefix(checkpoints.PACKED): a for n, a in found.items()}}


def _check_files(path: Path) -> None:
    """Compare the digests of this process's share of the files, of which none may be missing."""
    written, names = checkpoints.written_digests(path), checkpoints.file_names(path)
    mine = names[distributed.process_id() :: distributed.processes()]
    found = checkpoints.digests(path, mine)
    if set(names) != set(written) or any(written[name] != found[name] for name in mine):
        raise ValueError(checkpoints.CHANGED)


def _described(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What PARTS says."""
    divided = {name: value for name, value in stored.items() if isinstance(value, jax.Array)}
    return {
        "whole": [name for name in stored if name not in divided],
        "divided": {name: [v.dtype.name, list(v.shape)] for name, v in divided.items()},
    }


def _saved(stored: dict[str, Any]):
    import orbax.checkpoint as ocp  # takes a third of a second, which most runs never need

    return ocp.args.PyTreeSave(stored)


def _writer(key: str):
    """A store of all processes together."""
    import orbax.checkpoint as ocp

    together = ocp.options.MultiprocessingOptions(
        primary_host=0,
        active_processes=set(range(distributed.processes())),
        barrier_sync_key_prefix=key.replace("/", "_"),
    )
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=together),
        multiprocessing_options=together,
        # Made while the run waits, which takes milliseconds: then no process can be too early.
        async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
    )


def _restored(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """Some arrays of a checkpoint, on the devices of these where they are on devices."""
    import orbax.checkpoint as ocp

    def how(array):
        if not isinstance(array, jax.Array):
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(
            sharding=array.sharding, global_shape=array.shape, dtype=array.dtype
        )

    me = distributed.process_id()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    wanted = ocp.args.PyTreeRestore(
        item=dict.fromkeys(like, 0),
        restore_args={name: how(array) for name, array in like.items()},
        partial_restore=True,
    )
    with (
        checkpoints.quiet(),
        ocp.Checkpointer(handler, multiprocessing_options=alone) as store,
    ):
        return store.restore(path.absolute(), args=wanted)
