"""Several processes of one run are one run only if all of them were asked for the same.

Each says what it is going to do, entry by entry, before anything is compiled or computed: the arms
and their configs, the flags that change what happens, the code, the versions of what it stands on,
and the files that configs name. Each compares with process 0; all of them refuse a difference. It
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

VISIBLE = 40.0  # s until a file shows on another machine, as NFS remembers what was not there
CODE = ("launch", "experiments", "runtimes", "algorithms", "stragglers", "comms")
# What of JAX's own settings changes numbers.
SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_threefry_partitionable", "jax_platforms",
)  # fmt: skip


def entries(arms: Sequence[Arm], flags: Mapping[str, Any]) -> dict[str, str]:
    """Return what this process is going to do, as texts by the names that a user knows."""
    said = {f"--{name}": str(value) for name, value in flags.items()}
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in provenance.LIBRARIES}
    said |= {f"the version of {name}": version for name, version in versions.items()}
    said |= {name: str(getattr(jax.config, name, None)) for name in SETTINGS}
    said["the commit"] = str(provenance.commit())
    # A digest of our own files, as a commit does not say what was changed since.
    root, code = Path(__file__).parents[1], hashlib.sha256()
    for name in CODE:
        for path in sorted((root / name).rglob("*.py")) or [root / f"{name}.py"]:
            code.update(f"{path.relative_to(root)}\0{_digest(path)}\0".encode())
    said["the code"] = code.hexdigest()[:16]
    said["the arms"] = ", ".join(arm.path or arm.config.name for arm in arms)
    for arm in arms:
        where = f"{arm.path}: " if arm.path else ""
        for key, value in _flat(registry.canonical(arm.config)):
            said[f"{where}config.{key}"] = repr(value)
            if isinstance(value, str) and os.path.isfile(value):
                said[f"{where}the file {value} of config.{key}"] = _digest(Path(value))
    return said


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, ConfigDict | dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check(said: Mapping[str, str]) -> None:
    """Raise ValueError, on all processes, for the first entry on which they do not agree.

    said: see `entries`. All processes call this together.
    """
    text = json.dumps(said).encode()
    if len(set(distributed.gathered(hashlib.sha256(text).hexdigest()))) == 1:
        return
    first = json.loads(
        zlib.decompress(b64decode(distributed.agreed(b64encode(zlib.compress(text)).decode())))
    )
    reasons = distributed.gathered(difference(first, said, distributed.process_id()))
    raise ValueError(next(filter(None, reasons)))


def difference(first: Mapping[str, str], said: Mapping[str, str], process: int) -> str | None:
    """Return the sentence about the first entry in which a process differs from process 0."""
    for name in {**first, **said}:
        mine, its = (
            text if len(text := entries.get(name, "absent")) <= 200 else f"{text[:200]} ..."
            for entries in (first, said)
        )
        if first.get(name) != said.get(name):
            return (
                f"several processes: they differ in {name}, which is {mine} in process 0 and {its} "
                f"in process {process}; start all of them with the same command and the same code, "
                "so that they train the same model"
            )
    return None


def check_workdir(workdir: str | os.PathLike) -> None:
    """Raise ValueError, on all processes, unless all see the workdir that process 0 writes.

    Process 0 puts a file there that the others look for. On one machine that is there at once; on
    another one a file system may take a while to show it. Nothing of it is left.
    """
    root, here = Path(workdir), platform.node()
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
        found = distributed.gathered([(root / probe).exists(), str(workdir)])
    finally:
        if distributed.is_writer():
            with contextlib.suppress(OSError, ValueError):
                files.remove(root / probe)
                for place in made:
                    place.rmdir()
    elsewhere = [f"{place!r} of process {n}" for n, (same, place) in enumerate(found) if not same]
    if elsewhere and found[0][0]:
        raise ValueError(
            f"several processes: the workdir {elsewhere[0]} is not the one that process 0 writes; "
            "give all of them a directory that they share"
        )
