"""Notes beside the records of runs: the command, the versions and the claims of a launch."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from experiments import formats, records, registry
from experiments.stats import Numbers

NOTE = "report.json"
ROOT = Path(__file__).parents[1]
_CODE = (".", ":(exclude)docs", ":(exclude)tests", ":(exclude)*.md")  # of all below the root
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "flax")


def begin(root: str | os.PathLike, command: str, about: str | None = None) -> None:
    """Write down what runs now: its command, the versions, the date and what it is about."""
    versions = {"python": platform.python_version()}
    versions |= {library: importlib.metadata.version(library) for library in LIBRARIES}
    if (code := commit()) is None:
        from gossax import __version__ as code  # late: it loads the whole library
    note = {
        "about": about or "",
        "claims": [],
        "command": command,
        "versions": versions | {"gossax": code},
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    records.write_json(Path(root) / NOTE, note)


def claim(
    root: str | os.PathLike, claims: Iterable[tuple[str, str]], numbers: Iterable[Numbers] = ()
) -> None:
    """Add (claim, measured) pairs of a paper, and tables, to the note, in place of older ones."""
    pairs, tables = [[*map(str, pair)] for pair in claims], [table._asdict() for table in numbers]
    found = {"claims": pairs, "numbers": tables}
    records.write_json(Path(root) / NOTE, read(root) | found)


def read(root: str | os.PathLike) -> dict:
    """Return the note, {} where nothing has been noted; formats.Damaged for an unreadable one."""
    path = Path(root) / NOTE
    return formats.read(path, formats.NOTE) if path.exists() else {}


def known(root: str | os.PathLike) -> dict:
    """Return the note, {} where there is none to be read; a damaged one is reported."""
    try:
        return read(root)
    except formats.Damaged as error:
        print(f"warning: {registry.sentence(error)}", file=sys.stderr)
        return {}


def commit() -> str | None:
    """Return the last commit of this code, "-dirty" if code differs; None outside of a checkout.

    A repository around an installed package belongs to the user, and does not count.

    Pages, records and tests may differ, as no run depends on them: they change from one published
    sweep to the next.
    """
    if not (ROOT / ".git").exists():
        return None
    try:
        ours = _git("log", "-1", "--format=%h", "--abbrev=12", "--", *_CODE)
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{ours}-dirty" if changed else ours


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True, timeout=10
    ).stdout.strip()
