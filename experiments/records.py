"""The records of a run in strict JSON, its schedule and model, and all file names of a workdir.

A run writes config.json, metrics.jsonl, summary.json, schedule.npz and parameters.npz. The function
`stragglers.schedule.load` reads schedule.npz. The arrays of parameters.npz are named by their path,
such as params/layers_2/kernel, and form the model whose losses the summary has. If each worker has
its own model, parameters.npz holds the mean of the models. NaN and infinities become null in JSON.

A metrics line is written after each evaluation. The digests of all these files (digests.json) and
then the summary are written when the run is complete. A directory `checkpoint` may be beside these
files, also after the run has ended; see `experiments.checkpoints`.

The names are listed in the code: a list in the workdir could be wrong after a kill. A run's own
directory is recognised by its config.json, which is written before any other file. A sweep's own
directory is recognised by report.json, the note of its launch, or by the config.json of an arm.
"""

import contextlib
import glob
import hashlib
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from experiments import checkpoints, distributed, files, formats, initial, registry
from stragglers.schedule import Schedule, load

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
SCHEDULE = "schedule.npz"
MODULES = "modules"  # in a config: modules of the user's own code -> their SHA-256
INITIAL = "initial_sha256"  # in a config: the SHA-256 of the parameters that `initial` names
PARAMETERS = "parameters.npz"
PROFILE = "measured_profile.json"  # measured times with which a method plans
ERROR = "error.txt"  # the reason and then the traceback of a run that has failed
REMOVED_BY = "removed_by.txt"  # the launch whose `--overwrite` has removed the run
LENGTHS = ("seconds", "updates")  # entries of a config that a later launch may make larger
DATA = "files_sha256"  # in a config: files and folders that its parts name -> their SHA-256
ENDS = 2**20  # bytes at both ends of a file in a folder; the digest reads no others
BESIDE = {MODULES, INITIAL, DATA}  # keys of a config.json that are no entries of the config
# The files of an old run that `--overwrite` removes before the new run begins, as they could be
# taken for records of the new run. The other files, config.json first, are written anew.
REMOVED = (
    formats.DIGESTS, SUMMARY, METRICS, SCHEDULE, PARAMETERS, "timeline.json", ERROR, REMOVED_BY,
    PROFILE,
)  # fmt: skip
# The files and folders of a run, or of an arm of a sweep.
RUN_FILES = (CONFIG, *REMOVED, "output.txt", "wandb_id.txt", files.RUN_LOCK)
RUN_FOLDERS = ("checkpoint", "tensorboard", "wandb")
# The files of a launch, beside the files of its one run or above the folders of its arms.
LAUNCH_FILES = (
    SUMMARY, "figure.png", "strip.png", "report.html", "report.json", files.LAUNCH_LOCK,
    # the figures of configs that draw their own
    "error_against_time.png", "compensated.png", "rho.png", "meetings.png", "meetings.json",
    "loss_and_bytes.png",
)  # fmt: skip
LAUNCH_FOLDERS = ("slurm", "figures")
FILES = frozenset((*RUN_FILES, *LAUNCH_FILES))
FOLDERS = frozenset((*RUN_FOLDERS, *LAUNCH_FOLDERS))
LOCKS = (files.RUN_LOCK, files.LAUNCH_LOCK)
# Fields of a summary over seeds that come with their deviation.
WITH_SPREAD = ("seconds_to_target", "train_loss", "test_loss", "test_accuracy", "wall_seconds")
_LOCKED_BY = re.compile(r"(process \d+ on .{0,255})?")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?")  # a number as JSON writes it
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # as in gs://; a Path turns gs:// into gs:/
MOST_PATH = 3800  # bytes of a workdir's path; the system allows 4096 with the names below it
MOST_NAME = 255  # bytes of one name of a path


class Recorder:
    """The writer of one run's records, in a workdir that it opens.

    If the run that `config` describes has finished, `summary` is its summary, and nothing is left
    to do. If that run was interrupted, its metrics and checkpoints stay, so that it can be resumed.
    They also stay if `seconds` or `updates` of the config have grown, which trains the run longer.
    With `overwrite`, the run in the workdir is removed, finished or not. Only the process that
    `writes` writes to the disk. records: the metrics so far.
    The end of a `with` block releases the run's lock, also after an error; so does `finish`.
    Raises ValueError if the workdir holds anything else or, without `overwrite`, another run.
    Raises files.InUse if another process trains in it. Both errors leave the workdir as it is.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        config: ml_collections.ConfigDict,
        overwrite: bool = False,
        writes: bool = True,
    ):
        check(workdir, config, overwrite)
        self.workdir, self.writes, self.records = Path(workdir), writes, []
        self._config = config
        with contextlib.ExitStack() as opened:
            if writes and (overwrite or not is_finished(workdir, config)):
                # If Slurm queues a job again, the old node may still hold the lock for a while.
                again = distributed.is_queued_again(os.environ)
                opened.enter_context(files.held(self.workdir / files.RUN_LOCK, waits=again))
            # Read under the lock, as another process may have finished the run just before.
            self._is_longer = not overwrite and is_longer(workdir, config)
            self.summary = None if overwrite or self._is_longer else read_summary(workdir)
            if writes and not self.finished:
                self._tidy(overwrite)
            self._opened = opened.pop_all()  # closed at the end of the run

    @property
    def finished(self) -> bool:
        return self.summary is not None

    def _tidy(self, overwrite: bool) -> None:
        """Remove what an older run has left over, and write config.json where there is none."""
        if overwrite:
            checkpoints.keep_only(self.workdir, None)
            for name in REMOVED:
                files.remove(self.workdir / name)
        files.tidy(self.workdir)
        if not self._is_longer:
            files.remove(self.workdir / formats.DIGESTS)  # left over if its summary was removed
            if overwrite or not (self.workdir / CONFIG).exists():  # an older config.json stays
                write_json(self.workdir / CONFIG, _described(self._config))

    def begin(self, kept: int = 0) -> None:
        """Begin the metrics file, cut to its first `kept` records; call it before `append`."""
        path, lines = self.workdir / METRICS, []
        if kept:
            lines, self.records = _lines(path, formats.RESUMED_LINE, kept)
        if self.writes:
            if self._is_longer:
                for name in REMOVED:
                    if name not in (METRICS, PROFILE):
                        files.remove(self.workdir / name)  # digests and the summary first
                write_json(self.workdir / CONFIG, _described(self._config))
            files.write(path, "".join(f"{line}\n" for line in lines))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record of metrics to the file at once, and add it to `records`."""
        self.records.append(plain(record))
        if self.writes:
            files.append(self.workdir / METRICS, _dumps(record))

    def sync(self) -> None:
        """Flush the metrics to the disk, so that all lines so far survive a power cut."""
        if self.writes and self.records:
            files.sync(self.workdir / METRICS)

    def finish(self, summary: Mapping[str, Any]) -> dict:
        """Write the summary, and return it as a reader will see it."""
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


def seal(workdir: Path, summary: str) -> None:
    """Write digests.json and then summary.json, which marks the run as complete."""
    there = present(workdir, formats.SEALED)
    found = {name: files.digest(workdir / name) for name in there if name != SUMMARY}
    found[SUMMARY] = hashlib.sha256(summary.encode()).hexdigest()
    write_json(workdir / formats.DIGESTS, found)
    files.write(workdir / SUMMARY, summary)


def is_finished(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> bool:
    """Return whether the workdir has a summary and the config does not train its run longer."""
    return (Path(workdir) / SUMMARY).exists() and not is_longer(workdir, config)


def is_longer(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> bool:
    """Return whether `seconds` or `updates` of a config exceed the values in config.json."""
    path = Path(workdir) / CONFIG
    there = read_json(path) if path.exists() else {}
    before = {name: there[name] for name in LENGTHS if registry.is_number(there.get(name))}
    return any(config.get(name, 0) > value for name, value in before.items())


def claim(workdir: str | os.PathLike, config: ml_collections.ConfigDict) -> None:
    """Write config.json, if missing, before any other file of a directory that `check` passed."""
    if not (Path(workdir) / CONFIG).exists():
        files.make(workdir)
        write_json(Path(workdir) / CONFIG, _described(config))


def _described(config: ml_collections.ConfigDict) -> dict:
    """Return the content of config.json: entries, and digests of code and files that they name."""
    config = registry.canonical(config)
    modules, path = registry.brought(config), config.get("initial")
    brought = {MODULES: modules} if modules else {}
    if path is not None:
        initial.check(path)
        brought[INITIAL] = initial.digest(path)
    if found := sorted(_files_of(config)):
        brought[DATA] = {name: _digest(name) for name in found}
    return config.to_dict() | brought


def _files_of(config: ml_collections.ConfigDict) -> set[str]:
    """Return the existing files, `folder`s and patterns of files that the parts of a config name.

    A `path` that is a folder, as of a trace, stands for the files in it, and not for those below.
    """
    found = set()
    for key, text in registry.texts(config):
        place = os.path.expanduser(text)
        is_folder = os.path.isdir(place)
        if (key != "name" and os.path.isfile(place)) or (key == "folder" and is_folder):
            found.add(text)
        elif key == "path" and (is_folder or glob.has_magic(text)):
            pattern = os.path.join(glob.escape(text), "*") if is_folder else text
            found |= {pattern} if _matching(pattern) else set()
    return found


def _matching(pattern: str) -> list[Path]:
    """Return the files of a pattern, or of a folder with all below it, in order."""
    place = Path(pattern).expanduser()
    paths = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))
    return sorted(one for one in paths if one.is_file())


def _digest(name: str) -> str:
    """Return the SHA-256 of a file; of several, that of their names, sizes and ends."""
    path = Path(name).expanduser()
    if path.is_file():
        return initial.digest(str(path))
    found = hashlib.sha256()
    for file in _matching(name):
        size = file.stat().st_size
        found.update(f"{os.path.relpath(file, path)} {size}\n".encode())
        with file.open("rb") as content:
            found.update(content.read(ENDS))
            content.seek(max(0, size - ENDS))
            found.update(content.read(ENDS))
    return found.hexdigest()


def check(
    workdir: str | os.PathLike, config: ml_collections.ConfigDict, overwrite: bool = False
) -> None:
    """Raise the ValueError with which `Recorder` refuses the workdir; write nothing."""
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
    # The files are listed before config.json is read, as another process may begin in between.
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
    """Return None if the workdir has a run of this code, else the fault of its config.json."""
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
    if DATA not in stored:  # as in a config.json of an older version
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
    """Return all metrics records of a run, finished or not, without a last line that a kill cut.

    whole: whether to require a record, all columns of the tables and figures, and rising times.
    """
    path = Path(workdir) / METRICS
    form = formats.WHOLE_LINE if whole else formats.LINE
    formats.check_digest(path, form)
    _, lines = _lines(path, form)
    if whole and not lines:
        raise formats.damaged(path, "it has no records", form)
    for before, after in itertools.pairwise(lines if whole else ()):
        if any(after[axis] < before[axis] for axis in ("update", "samples", "seconds")):
            raise formats.damaged(path, f"its record of {after['seconds']} s goes back", form)
    return lines


def digest(workdir: str | os.PathLike, count: int) -> str:
    """Return the SHA-256 of the first `count` lines of metrics.jsonl; ValueError for fewer."""
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
    """Return the summary of a finished run, sweep or analysis, or None if there is no summary."""
    path = Path(workdir) / SUMMARY
    return formats.read(path, form) if path.exists() else None


def read_schedule(path: str | os.PathLike) -> Schedule:
    """Return the schedule in a file; ValueError if it is unreadable or fails its run's digest."""
    formats.check_digest(path, formats.LINE)
    return load(path)


def read_error(workdir: str | os.PathLike) -> str:
    """Return the first line of a failed run's error.txt, or why it cannot be read."""
    try:
        return registry.brief(files.read_text(Path(workdir) / ERROR).partition("\n")[0])
    except (OSError, ValueError) as error:
        return f"{ERROR} cannot be read ({registry.brief(error)})"


def read_json(path: str | os.PathLike) -> Any:
    """Return the JSON object in a file; ValueError if it is unreadable or fails its digest."""
    return formats.read(path, formats.ANYTHING)


def read_config(
    path: str | os.PathLike, form: formats.Format = formats.CONFIG
) -> ml_collections.ConfigDict:
    """Return the config in a run's config.json, with its parts as mappings."""
    stored = formats.read(path, form)
    try:
        values = {name: value for name, value in stored.items() if name not in BESIDE}
        return registry.canonical(ml_collections.ConfigDict(_with_numbers(values)))
    except Exception as error:  # ConfigDict and the parser of parts raise many kinds
        raise formats.damaged(path, error, form) from error


def _with_numbers(tree: Any) -> Any:
    """Return a tree with numbers as keys, as in {0: 4.0}, where JSON has texts such as "0"."""
    if isinstance(tree, list):
        return [_with_numbers(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    counts = bool(tree) and all(map(_NUMBER.fullmatch, tree))
    return {json.loads(key) if counts else key: _with_numbers(v) for key, v in tree.items()}


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write strict JSON; a reader finds either the old file or the whole new file."""
    files.write(path, _dumps(value, indent=2) + "\n")


def flat(tree, prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one dict with dotted keys; an empty dict stays a value."""
    if not isinstance(tree, dict) or (prefix and not tree):
        return {prefix: tree}
    return {
        dotted: leaf
        for key, value in tree.items()
        for dotted, leaf in flat(value, f"{prefix}.{key}" if prefix else key).items()
    }


def _lines(path: Path, form: formats.Format, most: int | None = None) -> tuple[list, list]:
    """Return the first `most` lines of a file and their records, without an incomplete line."""
    with formats.reading(path, form):
        lines = files.read_text(path).split("\n")[:-1][:most]
        return lines, [formats.checked(formats.parse(line), path, form) for line in lines]


def _dumps(value, **options) -> str:
    return json.dumps(plain(value), allow_nan=False, **options)


def plain(value: Any) -> Any:
    """Return a value with arrays as lists of Python numbers, and None for NaN and infinities."""
    if hasattr(value, "tolist"):  # arrays and array scalars
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- several records ---


def common(summaries: Sequence[Mapping]) -> tuple[float | None, str]:
    """Return the target loss of all arms, or None if targets differ, and a text of their clocks."""
    targets = {summary["target_loss"] for summary in summaries}
    clocks = sorted({summary["clock"] for summary in summaries})
    return targets.pop() if len(targets) == 1 else None, " or ".join(clocks)


def at_target(
    records: Sequence[Mapping], target_loss: float | None, column: str = "seconds"
) -> float | None:
    """Return the value of `column` where the loss first is at most `target_loss`; None: nowhere.

    Between two evaluations log(train_loss) is taken to be linear in the column. Nothing is
    interpolated at the first record, after a loss that is not finite, or at a loss of 0.
    """
    if target_loss is None:
        return None
    before = None
    for record in records:
        loss, value = record["train_loss"], record[column]
        loss = math.nan if loss is None else loss
        if loss <= target_loss:
            if before is None or loss <= 0:  # nothing to interpolate, or no logarithm
                return value
            drop = math.log(before[0] / target_loss) / math.log(before[0] / loss)
            return before[1] + drop * (value - before[1])
        before = (loss, value) if math.isfinite(loss) else None
    return None


def aggregate(summaries: Sequence[Mapping]) -> dict:
    """Return one summary of an arm from the summaries of its seeds.

    Numbers that differ are averaged; the mean is null if any seed has null. `<field>_std` is the
    sample standard deviation of a field of WITH_SPREAD, null for a single seed. `<field>_by_seed`
    lists a field of BY_SEED over several seeds. `seeds` lists the seeds, and `reached` is "k/n" if
    k of n seeds came to the target. `stopped` comes from the first seed that has this field. All
    other fields, `seed` included, are the first seed's.
    """
    summaries = plain(summaries)
    merged = {}
    for field, first in summaries[0].items():
        values = [summary.get(field) for summary in summaries]
        is_whole = None not in values
        merged[field] = first  # equal values stay what they are: 8 workers, not 8.0
        if any(map(registry.is_number, values)) and (len(set(values)) > 1 or not is_whole):
            merged[field] = float(np.mean(values)) if is_whole else None
        if field in WITH_SPREAD:
            spread = is_whole and len(values) > 1
            merged[f"{field}_std"] = float(np.std(values, ddof=1)) if spread else None
        if field in formats.BY_SEED and len(values) > 1:
            merged[f"{field}_by_seed"] = values
    reached = sum(summary["seconds_to_target"] is not None for summary in summaries)
    return merged | {
        "stopped": next(filter(None, (summary.get("stopped") for summary in summaries)), None),
        "seed": summaries[0]["seed"],
        "seeds": [summary["seed"] for summary in summaries],
        "reached": f"{reached}/{len(summaries)}",
    }


# --- names below a workdir ---


def present(place: Path, names: Iterable[str]) -> list[str]:
    """Return which of the names exist in a directory; broken links count as existing."""
    return [name for name in names if os.path.lexists(place / name)]


def refuse(place: Path, names: Iterable[str], ours: bool) -> None:
    """Raise ValueError if a name in `place` is no ordinary file or directory, or is not ours.

    ours: whether ordinary files and directories of these names are ours; a lock need not be ours.
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
    """Return whether a file has the content of a lock: nothing, or the process that held it."""
    if os.path.getsize(path) > 400:
        return False
    return _LOCKED_BY.fullmatch(files.read(path).decode(errors="replace")) is not None


def check_path(path: str | os.PathLike, what: str) -> None:
    """Raise ValueError for a remote address, control characters or a path that is too long."""
    text = os.fspath(path)
    refuse_remote(text, what)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = None  # an unpaired surrogate
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
    """Raise ValueError for an address, such as gs://bucket/x or file:x, in place of a path."""
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
    """Raise ValueError for the name of an arm that cannot be the name of its directory."""
    check_path(path, "arm")
    names = path.split("/")
    taken = next((name for name in names if name.casefold() in FILES | FOLDERS), None)
    if taken is not None:
        raise ValueError(f"arm {path!r} would take the place of {taken}; give it another name")
    if any(name and name.strip(". ") == "" for name in names):
        raise ValueError(f"arm {path!r} has a part without a letter; name it as method/variant")


def check_links(root: Path, path: str) -> None:
    """Raise ValueError if a directory below the workdir on the path to an arm is a link."""
    place = root
    for name in Path(path).parts:
        place = place / name
        if place.is_symlink():
            raise ValueError(
                f"workdir {root}: {place} is a link, and an arm lies in a directory of its own; "
                "remove the link or choose another --workdir"
            )
