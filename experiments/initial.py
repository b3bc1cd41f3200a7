"""Given parameters that a run starts from, instead of those that its task draws.

`config.initial` names the parameters.npz of a run, a file of safetensors, a msgpack file of Flax or
a checkpoint folder of orbax. Its arrays have the names of the model's parameters, joined by "/" or
".". If names begin with "params/", only these count, without that prefix: the rest is an
optimizer's.
"""

import functools
import hashlib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from comms.trees import named_leaves
from experiments import files, registry

KINDS = "a .npz, .safetensors or .msgpack file, or a checkpoint folder of orbax"
PARAMS = "params"
SHOWN = 3  # names in a sentence

Arrays = Mapping[str, np.ndarray]


class Given:
    """An `init` of a task that returns given parameters, whatever the key.

    own: the task's own `init`, which draws parameters.
    """

    def __init__(self, own: Callable[[jax.Array], Any], params: Any):
        self.own, self._params = own, params

    def __call__(self, key: jax.Array) -> Any:
        del key
        return jax.tree.map(jnp.asarray, self._params)


def read(path: str, shapes: Any) -> Any:
    """Return the parameters in a file or folder, in the structure of `shapes`.

    Raises ValueError in a sentence for what cannot be read, and for names, shapes and types
    that differ from `shapes`.
    """
    check(path)
    try:
        found = _reader(path)(path)
    except Exception as error:  # any bytes may be in a file
        why = f"{type(error).__name__}: {registry.brief(error)}"
        raise ValueError(f"initial {path} cannot be read ({why}); give {KINDS}") from error
    wanted = dict(named_leaves(shapes))
    found = _matching(found, wanted)
    missing, more = (sorted(a.keys() - b.keys()) for a, b in ((wanted, found), (found, wanted)))
    if missing or more:
        wrong = [f"has no {_some(missing)}"] if missing else []
        wrong += [f"has {_some(more)}, which the model has not"] if more else []
        raise ValueError(f"initial {path} {' and '.join(wrong)}; give parameters of this model")
    arrays = []
    for name, like in wanted.items():
        array = np.asarray(found[name])
        if array.dtype.kind == np.dtype(like.dtype).kind == "V":
            array = array.view(like.dtype)  # of a type that NumPy's files do not know
        if (array.shape, array.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"initial {path}: {name} is {array.dtype} of shape {array.shape}, and the model "
                f"has {like.dtype} of shape {like.shape}; give parameters of this model"
            )
        arrays.append(array)
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)


def check(path: str) -> None:
    """Raise ValueError unless a path has a file or folder of a kind that can be read."""
    if not Path(path).exists():
        raise ValueError(f"initial: there is no file or folder {path!r}; give {KINDS}")
    if _reader(path) is None:
        raise ValueError(f"initial {path} is of another kind; give {KINDS}")


def digest(path: str) -> str:
    """Return the SHA-256 of a file, or of the names and digests of all files of a folder."""
    within = [p for p in sorted(Path(path).rglob("*")) if p.is_file()]
    stats = [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in within or [Path(path)]]
    return _digest(path, tuple(stats))


@functools.lru_cache(maxsize=16)  # arms of a sweep ask for the same one
def _digest(path: str, stats: tuple[tuple[str, int, int], ...]) -> str:
    found = {name: files.digest(name) for name, *_ in stats}
    if not Path(path).is_dir():
        return next(iter(found.values()))
    lines = (f"{d}  {Path(name).relative_to(path).as_posix()}\n" for name, d in found.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _reader(path: str) -> Callable[[str], Arrays] | None:
    readers = {".npz": _npz, ".safetensors": _safetensors, ".msgpack": _msgpack}
    return _orbax if Path(path).is_dir() else readers.get(Path(path).suffix)


def _npz(path: str) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _safetensors(path: str) -> Arrays:
    try:
        reader = importlib.import_module("safetensors.numpy")
    except ModuleNotFoundError as error:
        raise ValueError("run pip install 'gossax[safetensors]' to read it") from error
    return reader.load_file(path)


def _msgpack(path: str) -> Arrays:
    from flax import serialization

    return dict(named_leaves(serialization.msgpack_restore(Path(path).read_bytes())))


def _orbax(path: str) -> Arrays:
    import orbax.checkpoint as ocp
    from absl import logging

    folder = Path(path).absolute()
    if (folder / "default").is_dir():  # of a manager's step
        folder = folder / "default"
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)  # it tells of every step
    try:
        with ocp.PyTreeCheckpointer() as store:
            found = store.metadata(folder).item_metadata
            if found is None:
                raise ValueError("orbax has left nothing there; a run leaves parameters.npz")
            on_host = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), found.tree)
            return dict(named_leaves(store.restore(folder, restore_args=on_host)))
    finally:
        logging.set_verbosity(verbosity)


def _matching(found: Arrays, wanted: Mapping[str, Any]) -> Arrays:
    """Return the arrays, named so that they fit the wanted names best."""
    tried = [found, {name.replace(".", "/"): array for name, array in found.items()}]
    for arrays in tried:  # the loop adds to `tried`
        paths = {tuple(name.split("/")): array for name, array in arrays.items()}
        inside = {"/".join(path[1:]): a for path, a in paths.items() if path[0] == PARAMS}
        tried += [inside] if inside else []
    return min(tried, key=lambda arrays: len(wanted.keys() ^ arrays.keys()))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name or "array without a name" for name in names[:SHOWN]) + more
