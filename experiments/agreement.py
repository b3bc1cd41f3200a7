"""Several processes of one run are one run only if all of them were asked for the same.

Each says what it is going to do, entry by entry, before anything is compiled or computed: the arms
and their configs, the flags that change what happens, the code, the versions of what it stands on,
and the files that configs name. Process 0 compares; a difference is refused by all of them. It
travels through the key-value store of JAX's coordination service, which needs no device.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import secrets
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from experiments import distributed, files, provenance, registry
from experiments.executors import Arm

PIECE = 1_000_000  # characters of one value of the store
VISIBLE = 40.0  # s until a file shows on another machine, as NFS remembers what was not there
CODE = ("launch", "experiments", "runtimes", "algorithms", "stragglers", "comms")
# What of JAX's own settings changes numbers.
SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_threefry_partitionable", "jax_platforms",
)  # fmt: skip


def entries(arms: Sequence[Arm], flags: Mapping[str, Any]) -> dict[str, str]:
    """What this process is going to do, as texts by the names that a user knows."""
    said = {f"--{name}": str(value) for name, value in flags.items()}
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in provenance.LIBRARIES}
    said |= {f"the version of {name}": version for name, version in versions.items()}
    said |= {name: str(getattr(jax.config, name, None)) for name in SETTINGS}
    said["the commit"] = str(provenance.commit())
    said["the code"] = _code()
    said["the arms"] = ", ".join(arm.path or arm.config.name for arm in arms)
    for arm in arms:
        where = f"{arm.path}: " if arm.path else ""
        for key, value in _flat(registry.canonical(arm.config)):
            said[f"{where}config.{key}"] = repr(value)
            if isinstance(value, str) and os.path.isfile(value):
                said[f"{where}the file {value} of config.{key}"] = _digest(Path(value))
    return said


def check(said: Mapping[str, str]) -> None:
    """Raise ValueError, on all processes, for the first entry on which they do not agree.

    said: see `entries`. All processes call this together; alone there is nothing to compare.
    """
    count = distributed.processes()
    if count == 1:
        return
    text = json.dumps(said)
    digest = hashlib.sha256(text.encode()).hexdigest()
    me = distributed.process_id()
    distributed.say(f"gossax/digest/{me}", digest)
    other = None
    if distributed.is_writer():
        digests = [distributed.hear(f"gossax/digest/{process}") for process in range(count)]
        other = next((process for process in range(count) if digests[process] != digest), None)
    other = distributed.agreed(other)
    if other is None:
        return
    if me == other:
        _send(text)
    reason = _difference(said, json.loads(_receive()), other) if distributed.is_writer() else None
    raise ValueError(distributed.agreed(reason))


def _difference(mine: Mapping[str, str], its: Mapping[str, str], process: int) -> str:
    """The sentence about the first entry that differs."""
    name = next(name for name in {**mine, **its} if mine.get(name) != its.get(name))
    texts = [_cut(said.get(name, "absent")) for said in (mine, its)]
    return (
        f"several processes: they differ in {name}, which is {texts[0]} in process 0 and "
        f"{texts[1]} in process {process}; start all of them with the same command and the same "
        "code, so that they train the same model"
    )


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _send(text: str) -> None:
    packed = b64encode(zlib.compress(text.encode())).decode()
    pieces = [packed[at : at + PIECE] for at in range(0, len(packed), PIECE)]
    distributed.say("gossax/entries", str(len(pieces)))
    for number, piece in enumerate(pieces):
        distributed.say(f"gossax/entries/{number}", piece)


def _receive() -> str:
    count = int(distributed.hear("gossax/entries"))
    packed = "".join(distributed.hear(f"gossax/entries/{number}") for number in range(count))
    return zlib.decompress(b64decode(packed)).decode()


def check_workdir(workdir: str | os.PathLike) -> None:
    """Raise ValueError, on all processes, unless all see the workdir that process 0 writes.

    Process 0 puts a file there that the others look for. On one machine that is there at once; on
    another one a file system may take a while to show it. Nothing of it is left.
    """
    if distributed.processes() == 1:
        return
    root, here, me = Path(workdir), platform.node(), distributed.process_id()
    probe = f"{secrets.token_hex(8)}.probe"
    made = [place for place in (root, *root.parents) if not place.exists()]
    try:
        if distributed.is_writer():
            with contextlib.suppress(OSError, ValueError):  # refused later, in its own words
                files.make(root)
                files.write(root / probe, "")
        node, probe = distributed.agreed([here, probe])
        until = time.monotonic() + (0.0 if node == here else VISIBLE)
        while not (root / probe).exists() and time.monotonic() < until:
            time.sleep(0.5)
        distributed.say(f"gossax/workdir/{me}", json.dumps([(root / probe).exists(), str(workdir)]))
        elsewhere = None
        if distributed.is_writer():
            found = [
                json.loads(distributed.hear(f"gossax/workdir/{process}"))
                for process in range(distributed.processes())
            ]
            strange = [
                f"{place!r} of process {n}" for n, (same, place) in enumerate(found) if not same
            ]
            elsewhere = strange[0] if found[0][0] and strange else None
        elsewhere = distributed.agreed(elsewhere)
    finally:
        if distributed.is_writer():
            with contextlib.suppress(OSError, ValueError):
                files.remove(root / probe)
                for place in made:
                    place.rmdir()
    if elsewhere is not None:
        raise ValueError(
            f"several processes: the workdir {elsewhere} is not the one that process 0 writes; "
            "give all of them a directory that they share"
        )


def _flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, ConfigDict | dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _code() -> str:
    """A digest of our own files, as a commit does not say what was changed since."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for name in CODE:
        for path in sorted((root / name).rglob("*.py")) or [root / f"{name}.py"]:
            found.update(f"{path.relative_to(root)}\0{_digest(path)}\0".encode())
    return found.hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
