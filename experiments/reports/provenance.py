"""What the records of runs do not tell: the command, the versions and the claims of a launch."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from experiments import records

NOTE = "report.json"
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "flax")


def begin(root: str | os.PathLike, command: str) -> None:
    """Write down what runs now: the command that repeats it, the versions and the date."""
    versions = {"python": platform.python_version()}
    versions |= {library: importlib.metadata.version(library) for library in LIBRARIES}
    ours = commit()
    note = {
        "claims": [],
        "command": command,
        "versions": versions | ({"gossax": ours} if ours else {}),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    records.write_json(Path(root) / NOTE, note)


def claim(root: str | os.PathLike, claims: Iterable[tuple[str, str]]) -> None:
    """Add to the note what a paper claims and what was measured, in place of older claims."""
    path = Path(root) / NOTE
    records.write_json(path, read(root) | {"claims": [list(claim) for claim in claims]})


def read(root: str | os.PathLike) -> dict:
    """The note, {} where nothing has been noted; ValueError where it cannot be read."""
    path = Path(root) / NOTE
    return records.read_json(path) if path.exists() else {}


def commit() -> str | None:
    """The commit of this code, "-dirty" if files differ from it; None outside of a checkout."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(
            asked,
            cwd=Path(__file__).parent,
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
