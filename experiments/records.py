"""Records of a run in strict JSON, its schedule and model, and every name below a workdir.

config.json, metrics.jsonl, summary.json, schedule.npz (`stragglers.schedule.load` reads it) and
parameters.npz, the model whose losses and accuracies the summary has: arrays by
their path, such as params/layers_2/kernel; where workers have models of their own the mean of them.

A metrics line is written when it is measured, a summary when the run is complete, with the digests
of all these files in digests.json; until then there may be a directory `checkpoint`, see
`experiments.checkpoints`. NaN and infinities become null.

The list of names is in the code and not in the workdir: a file of names would have to be right
after a kill at any moment. A directory is ours by the `config.json` of a run, which is written
before anything else; a sweep's own directory by the note of its launch, or by an arm that lies
where its arms lie.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_collections

from experiments import checkpoints, distributed, files, formats, initial, registry

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
SCHEDULE = "schedule.npz"
MODULES = "modules"  # in a config: code that was brought along -> its SHA-256
INITIAL = "initial_sha256"  # in a config: of the parameters that `initial` names
PARAMETERS = "parameters.npz"
PROFILE = "measured_profile.json"  # of a method that plans with measured times
ERROR = "error.txt"  # of a run that has failed: the reason, then the traceback
REMOVED_BY = "removed_by.txt"  # in the place of a run that `--overwrite` has removed: the launch
LENGTHS = ("seconds", "updates")  # entries of a config that a later launch may make larger
DATA = "files_sha256"  # in a config: files and folders that its parts name -> their SHA-256
ENDS = 2**20  # bytes at both ends of a file in a folder, which count for all of it
BESIDE = {MODULES, INITIAL, DATA}  # what a config.json has that is no entry
# What `--overwrite` removes of a run before it begins: what could be taken for a part of the new
# one. The rest, config.json first, is replaced when it is written again.
REMOVED = (
    formats.DIGESTS, SUMMARY, METRICS, SCHEDULE, PARAMETERS, "timeline.json", ERROR, REMOVED_BY,
    PROFILE,
)  # fmt: skip
# Of a run, or of an arm of a sweep.
RUN_FILES = (CONFIG, *REMOVED, "output.txt", "wandb_id.txt", files.RUN_LOCK)
RUN_FOLDERS = ("checkpoint", "tensorboard", "wandb")
# Of a launch, beside the files of its one run or above the folders of its arms.
LAUNCH_FILES = (
    SUMMARY, "figure.png", "strip.png", "report.html", "report.json", files.LAUNCH_LOCK,
    # what the configs draw that have figures of their own
    "error_against_time.png", "compensated.png", "rho.png", "meetings.png", "meetings.json",
    "loss_and_bytes.png",
)  # fmt: skip
LAUNCH_FOLDERS = ("slurm", "figures")
FILES = frozenset((*RUN_FILES, *LAUNCH_FILES))
FOLDERS = frozenset((*RUN_FOLDERS, *LAUNCH_FOLDERS))
LOCKS = (files.RUN_LOCK, files.LAUNCH_LOCK)
_LOCKED_BY = re.compile(r"(process \d+ on .{0,255})?")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?")  # as JSON writes it
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # as in gs://, which is gs:/ as a Path
MOST_PATH = 3800  # bytes of a path, so that names below it have room in the system's 4096
MOST_NAME = 255  # bytes


class Recorder:
    """Writes one run's records; made by `start`.

    summary: of the finished run which `start` found, or what `finish` was given; until then None.
    records: the metrics so far. writes: whether to touch the disk, which one process does for all.
    As a context it closes the metrics file and gives the run free, whatever happens to it; so does
    `finish`.
    """

    def __init__(
        self,
        workdir: Path,
        summary: dict | None,
        writes: bool,
        opened: contextlib.ExitStack,
        longer: ml_collections.ConfigDict | None = None,
    ):
        """longer: the config of a run that is trained longer, which `begin` makes the run's."""
        self.workdir, self.summary, self.writes, self._longer = workdir, summary, writes, longer
        self.records: list[dict] = []
        self._metrics, self._opened = None, opened  # to be closed with the run

    @property
    def finished(self) -> bool:
        return self.summary is not None

    def begin(self, kept: int = 0) -> None:
        """Open the metrics, cut back to the first `kept` records; needed before `append`.

        ValueError if there are fewer.
        """
        path = self.workdir / METRICS
        if kept:
            digest(self.workdir, kept)
        lines, self.records = _lines(path, formats.LINE, kept) if kept else ([], [])
        if self.writes:
            if self._longer is not None:
                for name in REMOVED:
                    if name not in (METRICS, PROFILE):
                        files.remove(self.workdir / name)  # digests and the summary first
                _write_config(self.workdir, self._longer)
            files.write(path, "".join(f"{line}\n" for line in lines))
            self._metrics = files.Lines(path)
            self._opened.callback(self._metrics.close)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics, at once."""
        self.records.append(plain(record))
        if self.writes:
            self._metrics.add(_dumps(record))

    def sync(self) -> None:
        """Let all lines of metrics so far survive a power cut, before something relies on them."""
        if self.writes and self._metrics is not None:
            self._metrics.sync()

    def finish(self, summary: Mapping[str, Any]) -> dict:
        """Write the summary, close the metrics and return the summary as it will be read back."""
        if self.writes:
            self.sync()
            seal(self.workdir, _dumps(summary, indent=2) + "\n")
        self.summary = plain(summary)
        self._opened.close()
        return self.summary

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened.close()


def start(
    workdir: str | os.PathLike,
    config: ml_collections.ConfigDict,
    overwrite: bool = False,
    writes: bool = True,
) -> Recorder:
    """Open `workdir` for the run that `config` describes; without `writes`, only look at it.

    If that run is there and finished, the recorder has its `summary` and there is nothing to do.
    If it was interrupted, its metrics and checkpoints are there to go on from. So they are where it
    is to be trained longer: `seconds` or `updates` of the config are larger than they were.
    A directory that holds anything else is an error, and left alone, unless `overwrite`: then the
    run in it, finished or not, is removed. One that another process trains is left alone in any
    case: files.InUse.
    """
    check(workdir, config, overwrite)
    workdir = Path(workdir)
    with contextlib.ExitStack() as opened:
        if writes and (overwrite or not is_finished(workdir, config)):
            # A node that does not answer may still train what its job is queued again for.
            again = distributed.is_queued_again(os.environ)
            opened.enter_context(files.held(workdir / files.RUN_LOCK, waits=again))
        # Asked after that: somebody may just have finished the run.
        longer = not overwrite and is_longer(workdir, config)
        summary = None if overwrite or longer else read_summary(workdir)
        if summary is None and writes:
            if overwrite:
                checkpoints.keep_only(workdir, None)
                for name in REMOVED:
                    files.remove(workdir / name)
            files.tidy(workdir)
            if not longer:
                files.remove(workdir / formats.DIGESTS)  # of a summary that somebody has removed
                if overwrite or not (workdir / CONFIG).exists():  # else it may be an older one
                    _write_config(workdir, config)
        kept = opened.pop_all()  # for as long as the run is
    return Recorder(workdir, summary, writes, kept, config if longer else None)


def seal(workdir: Path, summary: str) -> None:
    """Write the digests of a run's files and then its summary, which ends it."""
    there = present(workdir, formats.SEALED)
    found = {name: files.digest(workdir / name) for name in there if name != SUMMARY}
    found[SUMMARY] = hashlib.sha256(summary.encode()).hexdigest()
    write_json(workdir / formats.DIGESTS, found)
    files.write(workdir / SUMMARY, summary)


def is_finished(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> bool:
    """Return whether a run of this config has its summary and is not to be trained longer."""
    return (Path(workdir) / SUMMARY).exists() and not is_longer(workdir, config)


def is_longer(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> bool:
    """Return whether a config, otherwise the same, trains the run that is there longer."""
    path = Path(workdir) / CONFIG
    there = read_json(path) if path.exists() else {}
    before = {name: there[name] for name in LENGTHS if registry.is_number(there.get(name))}
    return any(config.get(name, 0) > value for name, value in before.items())


def claim(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> None:
    """Make a directory ours, which `check` has passed, before anything else is written there."""
    if not (Path(workdir) / CONFIG).exists():
        files.make(workdir)
        _write_config(Path(workdir), config)


def _write_config(workdir: Path, config: ml_collections.ConfigDict) -> None:
    write_json(workdir / CONFIG, _described(config))


def _described(config: ml_collections.ConfigDict) -> dict:
    """Return the content of config.json: entries, with code, data and parameters they bring."""
    config = registry.canonical(config)
    modules, path = registry.brought(config), config.get("initial")
    brought = {MODULES: modules} if modules else {}
    if path is not None:
        initial.check(path)
        brought[INITIAL] = initial.digest(path)
    if found := sorted(_files_of(config)):
        brought[DATA] = {name: _digest(Path(name).expanduser()) for name in found}
    return config.to_dict() | brought


def _files_of(config: ml_collections.ConfigDict) -> set[str]:
    """Return the files and folders that the parts of a config name."""
    return _named_files([config.get(name) for name in registry.PLACES])


def _named_files(value: Any) -> set[str]:
    """Return the files that a value names anywhere, but as the name of a part; and `folder`s."""
    if isinstance(value, list | tuple):
        return set().union(*map(_named_files, value))
    if hasattr(value, "items"):
        found = _named_files([one for key, one in value.items() if key != "name"])
        folder = value.get("folder")
        is_folder = isinstance(folder, str) and os.path.isdir(os.path.expanduser(folder))
        return found | {folder} if is_folder else found
    is_file = isinstance(value, str) and os.path.isfile(os.path.expanduser(value))
    return {value} if is_file else set()


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's names and sizes and the ends of its files."""
    if path.is_file():
        return initial.digest(str(path))
    found = hashlib.sha256()
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        size = file.stat().st_size
        found.update(f"{file.relative_to(path).as_posix()} {size}\n".encode())
        with file.open("rb") as content:
            found.update(content.read(ENDS))
            content.seek(max(0, size - ENDS))
            found.update(content.read(ENDS))
    return found.hexdigest()


def check(
    workdir: str | os.PathLike, config: ml_collections.ConfigDict, overwrite: bool = False
) -> None:
    """Raise the ValueError that `start` would raise, and touch nothing."""
    check_path(workdir, "workdir")
    workdir = Path(workdir)
    for place in (workdir, *workdir.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(
                f"workdir {workdir}: {place} is not a directory; choose another --workdir"
            )
    at = workdir.resolve()
    for name in _files_of(config):
        if Path(name).expanduser().resolve() in (at, *at.parents):
            raise ValueError(
                f"workdir {workdir} lies in {name}, a folder of data that has to stay as it is; "
                "choose another --workdir"
            )
    # First what lies there, then whether it is ours: another process may be about to begin.
    there = present(workdir, (*RUN_FILES, *RUN_FOLDERS))
    mine = is_ours(workdir, config)
    if overwrite:
        check_initial(workdir, config)
    if mine is not None and CONFIG in there:
        raise ValueError(f"workdir {workdir} holds a {CONFIG} {mine}; choose another --workdir")
    if mine is None and not overwrite:
        _refuse_another_config(workdir, config)
        finished = read_summary(workdir) is not None
        if finished and is_longer(workdir, config) and not checkpoints.numbers(workdir):
            raise ValueError(
                f"workdir {workdir} holds a finished run without the checkpoint of its end, which "
                "a longer one goes on from; choose another --workdir, or --overwrite it"
            )
    refuse(workdir, there, ours=mine is None)


def check_initial(workdir: Path, config: ml_collections.ConfigDict) -> None:
    """Raise ValueError if overwriting a run would remove the file of `config.initial`."""
    path = config.get("initial")
    if path is not None and workdir.resolve() in Path(path).resolve().parents:
        raise ValueError(
            f"workdir {workdir}: --overwrite would remove {path}, which config.initial names; "
            "choose another --workdir"
        )


def is_ours(workdir: Path, config: ml_collections.ConfigDict) -> str | None:
    """Return None if a run of this code is there, else what speaks against it."""
    path = workdir / CONFIG
    refuse(workdir, (CONFIG,), ours=True)
    if not path.exists():
        return "that is missing"
    try:
        there = formats.read(path, formats.ANYTHING, sealed=False)
    except formats.Damaged as error:
        return f"that cannot be read ({error})"
    same_entries = set(there) - BESIDE == set(registry.canonical(config))
    return None if same_entries or formats.is_arm(there) else "that no run has written"


def _refuse_another_config(workdir: Path, config: ml_collections.ConfigDict) -> None:
    stored = read_json(workdir / CONFIG)
    brought = {name: stored[name] for name in BESIDE if name in stored}
    written = read_config(workdir / CONFIG).to_dict() | brought
    described = _described(config)
    if DATA not in stored:  # as in an older one
        described.pop(DATA, None)
    there, here = flat(written), flat(_with_numbers(json.loads(_dumps(described))))
    differing = [
        f"{key} ({registry.brief(there.get(key, 'absent'))} there, "
        f"{registry.brief(here.get(key, 'absent'))} here)"
        for key in sorted(there | here, key=str)
        if there.get(key, ...) != here.get(key, ...)
        and not (key in LENGTHS and registry.is_number(there.get(key)) and here[key] > there[key])
    ]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise ValueError(
            f"workdir {workdir} holds a run with another config, which differs in "
            f"{', '.join(differing[:3])}{more}; choose another --workdir, or --overwrite it"
        )


def read_metrics(workdir: str | os.PathLike, whole: bool = False) -> list[dict]:
    """Return all records of a run, finished or not; a line that was cut off by a kill is left out.

    whole: whether they are needed for tables and figures, with all columns that these show.
    """
    path = Path(workdir) / METRICS
    form = formats.WHOLE_LINE if whole else formats.LINE
    with formats.reading(path, form):
        formats.check_digest(path)
    _, lines = _lines(path, form)
    if whole and not lines:
        raise formats.damaged(path, "it has no records", form)
    for before, after in itertools.pairwise(lines if whole else ()):
        if any(after[axis] < before[axis] for axis in ("update", "samples", "seconds")):
            raise formats.damaged(path, f"its record of {after['seconds']} s goes back", form)
    return lines


def digest(workdir: str | os.PathLike, count: int) -> str:
    """Return the SHA-256 of the first lines of metrics; ValueError where there are fewer."""
    path = Path(workdir) / METRICS
    with formats.reading(path, formats.LINE):
        lines = files.read(path).split(b"\n")[:-1][:count]
    if len(lines) < count:
        raise ValueError(
            f"workdir {workdir}: {METRICS} has {len(lines)} records, the checkpoint was made after "
            f"{count}"
        )
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def read_summary(
    workdir: str | os.PathLike, form: formats.Format = formats.SUMMARY
) -> dict[str, Any] | None:
    """Return the summary of a finished run, sweep or analysis; None: there is none."""
    path = Path(workdir) / SUMMARY
    return formats.read(path, form) if path.exists() else None


def read_error(workdir: str | os.PathLike) -> str:
    """Return the reason of a failed run, which has an error.txt, on one line."""
    try:
        return registry.brief(files.read_text(Path(workdir) / ERROR).partition("\n")[0])
    except (OSError, ValueError) as error:
        return f"{ERROR} cannot be read ({registry.brief(error)})"


def read_json(path: str | os.PathLike) -> Any:
    """Return an object that `write_json` has written; ValueError where it cannot be read."""
    return formats.read(path, formats.ANYTHING)


def read_config(
    path: str | os.PathLike, form: formats.Format = formats.CONFIG
) -> ml_collections.ConfigDict:
    """Return the config that a run has written, with its parts as mappings."""
    stored = formats.read(path, form)
    try:
        values = {name: value for name, value in stored.items() if name not in BESIDE}
        return registry.canonical(ml_collections.ConfigDict(_with_numbers(values)))
    except Exception as error:  # ConfigDict and what makes parts of texts raise many kinds
        raise formats.damaged(path, error, form) from error


def _with_numbers(tree: Any) -> Any:
    """Return numbers as keys, as in factors={0: 4.0}, which JSON only knows as texts."""
    if isinstance(tree, list):
        return [_with_numbers(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    counts = bool(tree) and all(map(_NUMBER.fullmatch, tree))
    return {json.loads(key) if counts else key: _with_numbers(v) for key, v in tree.items()}


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write strict JSON such that a reader finds the old file or the new one, never a part."""
    files.write(path, _dumps(value, indent=2) + "\n")


def flat(tree, prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one, with dotted keys; an empty one stays a value."""
    if not isinstance(tree, dict) or (prefix and not tree):
        return {prefix: tree}
    return {
        dotted: leaf
        for key, value in tree.items()
        for dotted, leaf in flat(value, f"{prefix}.{key}" if prefix else key).items()
    }


def _lines(path: Path, form: formats.Format, most: int | None = None) -> tuple[list, list]:
    """Return the first lines of a file, and their records; a line without its end is left out."""
    with formats.reading(path, form):
        lines = files.read_text(path).split("\n")[:-1][:most]
        return lines, [formats.checked(formats.parse(line), path, form) for line in lines]


def _dumps(value, **options) -> str:
    return json.dumps(plain(value), allow_nan=False, **options)


def plain(value: Any) -> Any:
    """Return Python's own types for NumPy's and JAX's, None for what JSON cannot say."""
    if hasattr(value, "tolist"):  # arrays and array scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- names below a workdir ---


def present(place: Path, names: Iterable[str]) -> list[str]:
    """Return the names that are there in a directory, links that lead nowhere included."""
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
    """Return whether a file of a lock's name is one, perhaps left behind."""
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
