"""Every name that we write below a workdir, and whether what lies there is ours.

The list is in the code and not in the workdir: a file of names would have to be right after a kill
at any moment, could be damaged as any other, and older workdirs have none. What makes a directory
ours is the `config.json` of a run, which is written before anything else; a sweep's own directory
is ours by the note of its launch, or by an arm that lies where its arms lie.
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from experiments import files, registry

# Of a run, or of an arm of a sweep.
RUN_FILES = (
    "config.json", "metrics.jsonl", "summary.json", "schedule.npz", "parameters.npz",
    "timeline.json", "error.txt", "output.txt", "wandb_id.txt", "run.lock",
)  # fmt: skip
RUN_FOLDERS = ("checkpoint", "tensorboard", "wandb")
# Of a launch, beside the files of its one run or above the folders of its arms.
LAUNCH_FILES = (
    "summary.json", "figure.png", "strip.png", "report.html", "report.json", "launch.lock",
    # what the configs draw that have figures of their own
    "error_against_time.png", "compensated.png", "rho.png", "meetings.png", "meetings.json",
    "loss_and_bytes.png",
)  # fmt: skip
LAUNCH_FOLDERS = ("slurm", "figures")
FILES = frozenset((*RUN_FILES, *LAUNCH_FILES))
FOLDERS = frozenset((*RUN_FOLDERS, *LAUNCH_FOLDERS))
LOCKS = ("run.lock", "launch.lock")
# What `--overwrite` removes of a run before it begins: what could be taken for a part of the new
# one. The rest, config.json first, is replaced when it is written again.
REMOVED = (
    "summary.json", "metrics.jsonl", "schedule.npz", "parameters.npz",
    "timeline.json", "error.txt",
)  # fmt: skip
_LOCKED_BY = re.compile(r"(process \d+ on .{0,255})?")
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # as in gs://, which is gs:/ as a Path
MOST_PATH = 3800  # bytes of a path, so that names below it have room in the system's 4096
MOST_NAME = 255  # bytes


def present(place: Path, names: Iterable[str]) -> list[str]:
    """The names under which something lies in a directory, links that lead nowhere included."""
    return [name for name in names if os.path.lexists(place / name)]


def refuse(place: Path, names: Iterable[str], ours: bool) -> None:
    """Raise ValueError where something of these names lies that is not ours, and touch nothing.

    ours: whether ordinary files and directories of these names are.
    """
    for name in names:
        path = place / name
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        kind = "directory" if name in FOLDERS else "file"
        if not (stat.S_ISDIR(mode) if name in FOLDERS else stat.S_ISREG(mode)):
            raise ValueError(
                f"workdir {place}: {name} is no ordinary {kind}, and a run writes one of that "
                "name; move it away or choose another --workdir"
            )
        if not ours and not (name in LOCKS and is_lock(path)):
            raise ValueError(
                f"workdir {place} holds results without a config.json of a run, such as a sweep's "
                f"or somebody's own {name}; choose another --workdir"
            )


def is_lock(path: Path) -> bool:
    """Whether a file of a lock's name is one, perhaps left behind."""
    if os.path.getsize(path) > 400:
        return False
    return _LOCKED_BY.fullmatch(files.read(path).decode(errors="replace")) is not None


def check_path(path: str | os.PathLike, what: str) -> None:
    """Raise ValueError for a path that no file system takes, or that shows as something else."""
    text = os.fspath(path)
    refuse_remote(text, what)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = None  # half of a character
    if size is None or not registry.is_visible(text):
        reason = "has control characters or broken ones"
    elif size > MOST_PATH:
        reason = f"is longer than {MOST_PATH} bytes"
    elif any(len(part.encode()) > MOST_NAME for part in text.split("/")):
        reason = f"has a name of more than {MOST_NAME} bytes"
    else:
        return
    raise ValueError(f"{what} {text!r} {reason}; choose another name")


def refuse_remote(path: str, what: str) -> None:
    """Raise ValueError for the address of a remote store, as gs://bucket/x."""
    if path.startswith("file:"):
        raise ValueError(
            f"{what} {registry.brief(path)} is an address; give the path alone, without file:"
        )
    if _REMOTE.match(path):
        raise ValueError(
            f"{what} {registry.brief(path)} is on a remote store, without the locks and renames "
            "that records need; give a folder of a file system that this machine has mounted, and "
            "copy it there when the run has ended"
        )


def check_arm(path: str) -> None:
    """Raise ValueError for the name of an arm that cannot be a directory of its own."""
    check_path(path, "arm")
    names = path.split("/")
    taken = next((name for name in names if name.casefold() in FILES | FOLDERS), None)
    if taken is not None:
        raise ValueError(f"arm {path!r} would take the place of {taken}; give it another name")
    if any(name and name.strip(". ") == "" for name in names):
        raise ValueError(f"arm {path!r} has a part without a letter; name it as method/variant")


def check_links(root: Path, path: str) -> None:
    """Raise ValueError where a directory between a workdir and an arm is a link."""
    place = root
    for name in Path(path).parts:
        place = place / name
        if place.is_symlink():
            raise ValueError(
                f"workdir {root}: {place} is a link, and an arm lies in a directory of its own; "
                "remove the link or choose another --workdir"
            )
