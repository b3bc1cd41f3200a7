"""The arms of a sweep, from one config: expansion, checks, execution and comparison."""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import platform
import secrets
import sys
import threading
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from experiments import (
    config_files,
    distributed,
    executors,
    files,
    formats,
    prepare,
    provenance,
    records,
    registry,
    restarts,
    runtime_builders,
)
from experiments.config_files import override, swept_arms
from experiments.executors import Arm
from experiments.stats import Numbers
from experiments.tables import as_table

MOST_ARMS = 100_000
MOST_CPU_DEVICES = 1024  # each has threads and memory of its own
PATIENCE = 5.0  # s between two messages on a long check
VISIBLE = 40.0  # s until a new file shows on another host, as NFS caches missing names
CODE = ("launch", "experiments", "runtimes", "algorithms", "stragglers", "comms")
# JAX's own settings that change numbers.
SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_threefry_partitionable", "jax_platforms",
)  # fmt: skip


@contextlib.contextmanager
def patience() -> Iterator[Callable[[str, Arm], contextlib.AbstractContextManager]]:
    """Yield a context for work on an arm: ("planning", arm), with whose path its errors begin.

    While such work goes on, it is printed on stderr every PATIENCE seconds.
    """
    doing, began, done = [""], time.monotonic(), threading.Event()

    def say() -> None:
        while not done.wait(PATIENCE):
            seconds = time.monotonic() - began
            print(f"{doing[0]}, {seconds:.0f} s so far", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def on(words: str, arm: Arm) -> Iterator[None]:
        doing[0] = f"{words} {arm.path or arm.config.name}"
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{arm.path}: {error}" if arm.path else str(error)) from error

    threading.Thread(target=say, daemon=True).start()
    try:
        yield on
    finally:
        done.set()


def expand(
    config: ConfigDict,
    swept: ModuleType | None,
    user: Mapping[str, Any],
    seeds: int,
    grids: Mapping[str, Sequence[str]] = MappingProxyType({}),
    only: Collection[str] = (),
) -> list[Arm]:
    """Return the arms to run: the config itself, or all arms of `sweep()` in the module `swept`.

    sweep() yields (name, {dotted key: value}), and gets the config if it takes an argument. The
    values `user` of the command line replace these values. Every arm runs at each point of the
    `grids`, see `config_files.read_grids`, and with each of `seeds` seeds: seed, seed + 1, ...
    only: the paths of the arms to return; other arms may be equal. Raises ValueError for an invalid
    arm, and for a path without an arm.
    """
    if "name" not in config:
        raise ValueError("config.name is missing; set it to a text")
    config = registry.canonical(config)
    named = [("", config)] if swept is None else _swept(swept, config, user, only)
    runs = len(named) * math.prod(map(len, grids.values())) * seeds
    if runs > MOST_ARMS:
        raise ValueError(
            f"{runs // seeds} arms with --seeds={seeds} are {runs} runs, and "
            f"{MOST_ARMS} are the most that one launch follows; give a part of them"
        )
    for key, entry in itertools.product(user, grids):
        if f"{key}.".startswith(f"{entry}."):
            raise ValueError(
                f"--grid={entry} replaces --config.{key}; write it into the grid's values, or "
                "leave it out"
            )
    if grids:
        named, before = list(_at_points(named, grids)), named
        _check_apart(named, before, "--grid", only)
    arms = []
    for place, arm in named:
        registry.check_arm(arm)
        for seed in range(arm.seed, arm.seed + seeds):
            path = "/".join(filter(None, (place, f"seed_{seed}" if seeds > 1 else "")))
            _check_path(path, arm.name)
            arms.append(Arm(path, override(arm, {"seed": seed}), arm.seed if seeds > 1 else None))
    by_path = {arm.path: arm for arm in arms}
    if len(set(map(pathlib.Path, by_path))) < len(arms):
        raise ValueError("two arms of the sweep have the same name; give every arm its own")
    for path in only:
        if path not in by_path:
            listed = f"known arms: {registry.listed(by_path)}"
            known = listed if any(by_path) else "add --sweep for arms"
            raise ValueError(f"there is no arm {path!r}; {registry.meant(path, by_path)}{known}")
    return [by_path[path] for path in dict.fromkeys(only)] if only else arms


def _swept(
    module: ModuleType, config: ConfigDict, user: Mapping[str, Any], only: Collection[str]
) -> list[tuple[str, ConfigDict]]:
    """Return the arms that `sweep()` of a config file yields; ValueError if it fails."""
    file = module.__file__
    if not hasattr(module, "sweep"):
        raise ValueError(f"{file} has no sweep(); run it without --sweep or write one")
    try:
        yielded = [(n, dict(changes)) for n, changes in swept_arms(module, override(config, user))]
    except Exception as error:  # a config file is code and can raise anything
        raise ValueError(
            f"sweep() of {file} fails with {type(error).__name__}: {error}; "
            "let it yield (name, changes) pairs"
        ) from error
    if not yielded:
        raise ValueError(f"sweep() of {file} yields no arms; yield (name, changes) pairs")
    named = []
    for name, changes in yielded:
        later = user | {"name": name}  # also replaces entries inside of its own
        kept = {
            entry: value for entry, value in changes.items()
            if not any(f"{entry}.".startswith(f"{other}.") for other in later)
        }  # fmt: skip
        named.append((name, override(config, kept | later)))
    varied = {entry for _, changes in yielded for entry in changes}
    both = [key for key in user if any(config_files.meet(key, entry) for entry in varied)]
    if both:
        before = [(name, override(config, changes)) for name, changes in yielded]
        _check_apart(named, before, ", ".join(f"--config.{key}" for key in both), only)
    return named


def _check_path(path: str, name: str) -> None:
    """Raise ValueError unless an arm of this name can lie at this path of the workdir."""
    if os.path.isabs(path) or ".." in pathlib.Path(path).parts:
        raise ValueError(f"arm {path!r} would leave the workdir; name it as method/variant")
    if not registry.is_visible(name):
        raise ValueError(f"arm {name!r} has control characters; rename it")
    if path:
        records.check_arm(path)


def _at_points(
    named: Sequence[tuple[str, ConfigDict]], grids: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, ConfigDict]]:
    """Yield every arm at every point of the grids; an arm's baseline is at the same point."""
    names, points = {name for name, _ in named}, list(config_files.grid_points(grids))
    for (name, arm), (point, texts_of) in itertools.product(named, points):
        place = "/".join(filter(None, (name, point)))
        values = {key: config_files.value(arm, key, text) for key, text in texts_of.items()}
        if arm.get("baseline") in names:
            values["baseline"] = f"{arm.baseline}/{point}"
        yield place, override(arm, {**values, "name": place})


def _check_apart(
    named: Sequence[tuple[str, ConfigDict]], before: Sequence, flag: str, only: Collection[str]
) -> None:
    """Raise ValueError if a flag expands an arm into equal arms, or makes different arms equal.

    only: the chosen paths, of arms or of their seeds; empty: all arms are chosen.
    """

    def content(arm: ConfigDict) -> str:
        return repr(override(arm, {"name": "", "baseline": None}).to_dict())

    paths = (path.split("/") for path in only)
    asked = {above for path in paths for above in itertools.accumulate(path, "{}/{}".format)}
    known: dict[str, tuple[str, int]] = {}
    for place, (name, arm) in enumerate(named):
        if only and name not in asked:
            continue
        origin = place * len(before) // len(named)
        other, its = known.setdefault(content(arm), (name, origin))
        if other != name and its == origin:
            way = "; leave out one of its values"
        elif content(before[its][1]) != content(before[origin][1]):
            way = f", as sweep() sets what it sets, too; leave out that {flag}, or --sweep"
        else:
            continue
        raise ValueError(f"with {flag} the arms {other!r} and {name!r} are the same{way}")


def provide_cpu_devices(arms: list[Arm]) -> None:
    """Split a CPU into the devices that the arms need, unless the user has set their number.

    Each of several processes gets an equal share of the devices, and the processes are connected.
    """
    wanted = max(runtime_builders.devices(arm.config) for arm in arms) // distributed.processes()
    if wanted > MOST_CPU_DEVICES and jax.config.jax_platforms in (None, "", "cpu"):
        raise ValueError(
            f"an arm asks for {wanted} devices of a process, and a CPU is split into at most "
            f"{MOST_CPU_DEVICES}; set config.devices, or config.workers of a mesh, to at most that"
        )
    chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if wanted > 1 and not (chosen or jax.config.jax_num_cpu_devices > 0):
        jax.config.update("jax_num_cpu_devices", wanted)
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter if JAX skips the named platform
        raise ValueError(
            f"JAX finds no device ({str(error) or 'of that kind'}); correct JAX_PLATFORMS="
            f"{os.environ.get('JAX_PLATFORMS', '')}, or unset it"
        ) from error
    distributed.connect()


def to_the_end(arms: list[Arm], shared: prepare.LastTask | None = None) -> list[Arm]:
    """Return the arms with a length in samples for learning-rate schedules that end with the run.

    All seeds of an arm have the same schedule, which is planned with the first seed. The devices
    have to exist before, see `provide_cpu_devices`. shared: holder of the task for what comes next.
    """
    planned: dict[str, ConfigDict] = {}
    shared, found = shared or prepare.LastTask(), []
    with patience() as on:
        for arm in arms:
            config, seed = arm.config, arm.config.seed
            if prepare.is_open(config):
                first = override(config, {"seed": seed if arm.first is None else arm.first})
                key = first.to_json_best_effort(sort_keys=True)
                if key not in planned:
                    with on("planning", arm):
                        planned[key] = shared.prepare(first).config
                config = override(planned[key], {"seed": seed})
            found.append(arm._replace(config=config))
    return found


def check(
    arms: list[Arm],
    workdir: str,
    overwrite: bool,
    here: bool = True,
    part: bool = False,
    shared: prepare.LastTask | None = None,
) -> None:
    """Raise ValueError, with nothing written, if any of the arms cannot run in the workdir.

    here: whether arms run on this host, so that the workdir has to be writable.
    part: whether these arms are a part of a sweep, whose other arms may be in the workdir.
    shared: holder of the task for what comes next.
    """
    records.check_path(workdir, "workdir")
    root = pathlib.Path(workdir)
    for arm in arms:
        records.check_path(root.absolute() / arm.path, "the place of an arm")
        records.check_links(root, arm.path)
    if any(arm.path for arm in arms) and (root / records.CONFIG).exists():
        raise ValueError(
            f"workdir {root} holds a single run, whose summary that of a sweep would replace; "
            "choose another --workdir"
        )
    there = next(place for place in (root, *root.absolute().parents) if place.exists())
    if here and there.is_dir() and not os.access(there, os.W_OK):
        raise ValueError(f"workdir {root}: {there} is not writable; choose another --workdir")
    # The files are listed before the records are read, as another process may be about to begin
    # and to write both.
    present = records.present(root, (*records.LAUNCH_FILES, *records.LAUNCH_FOLDERS))
    ours = False
    with contextlib.suppress(formats.Damaged):
        ours = bool(provenance.read(root))
    ours = ours or any(records.is_ours(root / arm.path, arm.config) is None for arm in arms)
    records.refuse(root, present, ours)
    asked = {root / arm.path for arm in arms}
    shared = shared or prepare.LastTask()
    with patience() as on:
        for number, arm in enumerate(arms, 1):
            place = root / arm.path  # with another number of seeds, arms lie above or below it
            is_seed = place.name.startswith("seed_")
            above = [place.parent] if is_seed else sorted(place.glob("seed_*"))
            beyond = sorted({*place.parent.glob("seed_*")} - asked) if is_seed and not part else []
            for others, fault in (
                (above, "holds the arm as another number of --seeds has laid it out, and a report "
                 "would count it too; choose another --workdir"),
                (beyond, "is beyond --seeds, and a report would count it too; give as many --seeds "
                 "as there are, or choose another --workdir"),
            ):  # fmt: skip
                for other in others:
                    if (other / records.CONFIG).exists():
                        raise ValueError(f"workdir {root}: {other} {fault}")
            records.check(place, arm.config, overwrite)
            for other in arms if overwrite and arm.config.get("initial") else ():
                records.check_initial(root / other.path, arm.config)
            with on(f"checking arm {number} of {len(arms)},", arm):
                prepared = shared.prepare(arm.config)
                if runtime_builders.RUNTIMES[arm.config.runtime].cluster:
                    prepared.runtime.check_room(prepared.shapes)


# --- the agreement of several processes on one run ---


def plans(arms: Sequence[Arm], flags: Mapping[str, Any]) -> dict[str, str]:
    """Return the plan of this process: names that a user knows -> texts.

    The plan has the flags, the arms, the entries of their configs, the versions of libraries, and
    digests of the code and of the files that configs name.
    """
    said = {f"--{name}": str(value) for name, value in flags.items()}
    said["the version of python"] = platform.python_version()
    for name in provenance.LIBRARIES:
        said[f"the version of {name}"] = importlib.metadata.version(name)
    said |= {name: str(getattr(jax.config, name, None)) for name in SETTINGS}
    # A digest of our own files, as the files may have changed since the commit.
    root, code = pathlib.Path(__file__).parents[1], hashlib.sha256()
    for name in CODE:
        for path in sorted((root / name).rglob("*.py")) or [root / f"{name}.py"]:
            code.update(f"{path.relative_to(root)}\0{files.digest(path)}\0".encode())
    said["the code"] = code.hexdigest()[:16]
    said["the arms"] = ", ".join(arm.path or arm.config.name for arm in arms)
    for arm in arms:
        where = f"{arm.path}: " if arm.path else ""
        for key, value in records.flat(registry.canonical(arm.config).to_dict()).items():
            said[f"{where}config.{key}"] = repr(value)
            if isinstance(value, str) and os.path.isfile(value):
                said[f"{where}the file {value} of config.{key}"] = files.digest(value)[:16]
    return said


def check_same(said: Mapping[str, str]) -> None:
    """Raise ValueError on all processes if the plan of any process differs from process 0's.

    said: the plan of this process, see `plans`. All processes call this function together, before
    anything is compiled or written. The error names the first difference.
    """
    packed = b64encode(zlib.compress(json.dumps(said).encode())).decode()
    first = json.loads(zlib.decompress(b64decode(distributed.agreed(packed))))
    names = (name for name in {**first, **said} if first.get(name) != said.get(name))
    found = next(([name, first.get(name), said.get(name)] for name in names), None)
    for process, different in enumerate(distributed.gathered(found)):
        if different is not None:
            name, mine, its = (registry.brief(text or "absent") for text in different)
            raise ValueError(
                f"several processes: they differ in {name}, which is {mine} in process 0 and {its} "
                f"in process {process}; start all of them with the same command and the same code, "
                "so that they train the same model"
            )


def check_workdir(workdir: str | os.PathLike) -> None:
    """Raise ValueError, on all processes, unless all see the workdir that process 0 writes.

    Process 0 writes a file there, and the other processes look for the file: once on the same host,
    and for VISIBLE seconds on another host. The file and new directories are then removed.
    """
    root, here = pathlib.Path(workdir), platform.node()
    probe = f"{secrets.token_hex(8)}.probe"
    made = [place for place in (root, *root.parents) if not place.exists()]
    try:
        if distributed.is_writer():
            with contextlib.suppress(OSError, ValueError):  # a later check refuses such a workdir
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


def alone(arms: list[Arm], workdir: str) -> contextlib.ExitStack:
    """Lock the workdir against other launches, until the returned stack is closed.

    Raises ValueError, on all processes, if another launch has the lock, if another process trains
    one of the arms, or if the workdir cannot be written.
    """
    root, taken, reason = pathlib.Path(workdir), contextlib.ExitStack(), None
    again = distributed.is_queued_again(os.environ)  # such a job waits for the locks of its runs
    if distributed.is_writer():
        try:
            taken.enter_context(files.held(root / files.LAUNCH_LOCK, waits=again))
            for arm in [] if again else arms:
                files.check_lock(root / arm.path / files.RUN_LOCK)
        except files.InUse as error:
            reason = str(error)
        except OSError as error:
            reason = f"workdir {root} cannot be written to ({error}); choose another --workdir"
    reason = distributed.agreed(reason)
    if reason is not None:
        taken.close()
        raise ValueError(reason)
    return taken


def groups(arms: list[Arm], together: bool) -> list[list[Arm]]:
    """Return the arms in groups: arms that train as one program if `together`, else single arms."""
    found: dict[str, list[Arm]] = {}
    for number, arm in enumerate(arms):
        shared = prepare.alike(arm.config) if together else None
        found.setdefault(shared or f"alone {number}", []).append(arm)
    return list(found.values())


def unfinished(arms: list[Arm], workdir: str, overwrite: bool) -> list[Arm]:
    """Return the unfinished arms; with `overwrite`, also arms whose old run is not removed yet."""
    left = []
    for arm in arms:
        place = pathlib.Path(workdir) / arm.path
        if (overwrite and not _has_removed(place)) or not records.is_finished(place, arm.config):
            left.append(arm)
    return left


def _has_removed(place: pathlib.Path) -> bool:
    """Return whether an earlier start of this launch has removed the run that was there."""
    note = place / records.REMOVED_BY
    by = files.read(note).decode(errors="replace").splitlines() if note.exists() else []
    return not restarts.names(os.environ, earlier=True).isdisjoint(by)


def run(
    arms: list[Arm],
    workdir: str,
    overwrite: bool,
    together: bool = False,
    execute: executors.Executor = executors.here,
) -> dict[str, str]:
    """Run the arms; return {path of an arm: the reason of its failure}.

    overwrite: whether to remove existing runs before the first arm begins, once per launch.
    together: whether to run arms that differ only in data as one program, see `prepare.alike`.
    """
    root = pathlib.Path(workdir)
    if distributed.is_writer():
        files.make(workdir)
        files.tidy(workdir)
        for arm in arms:
            records.claim(root / arm.path, arm.config)
        for arm in arms if overwrite else ():  # all at once, so that a second start resumes
            if not _has_removed(root / arm.path):
                with records.Recorder(root / arm.path, arm.config, overwrite=True):
                    pass
                if known := restarts.names(os.environ):
                    files.write(root / arm.path / records.REMOVED_BY, "\n".join(known))
    distributed.agreed(None)  # the other processes wait until the old runs are removed
    shown = executors.Shown(len(arms), quiet=not distributed.is_writer())
    return execute(groups(arms, together), root, shown)


def keep_programs() -> None:
    """Turn on JAX's cache of compiled programs; JAX_COMPILATION_CACHE_DIR sets its folder.

    Seeds, learning rates and delays are data of a program, so that the arms of a sweep share many.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", os.path.join(home, "gossax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def launch(
    arms: list[Arm],
    workdir: str,
    overwrite: bool,
    together: bool = False,
    execute: executors.Executor = executors.here,
    *,
    command: str = "",
    about: str | None = None,
    claims: Callable[[list[dict]], Iterable[tuple[str, str]]] | None = None,
    figures: Callable[[pathlib.Path], None] | None = None,
    numbers: Callable[[list[dict]], Iterable[Numbers]] | None = None,
) -> dict[str, str]:
    """Run the arms; write and print their comparison: a table, a figure, claims and a report.

    command, about: for the note of the launch; if no arm is left to run, an older note stays.
    claims: function of the arms' summaries, each with the arm's `config` and the `metrics` and
        `workdirs` of its seeds; returns (claim of a paper, measurement) pairs.
    figures: function of the workdir, which writes figures of its own there.
    numbers: function of the same summaries as `claims`; returns tables of numbers.
    All three are called only if no arm has failed; the table and the figure leave out failed arms.
    Returns {path of an arm: the reason of its failure}.
    """
    root, left = pathlib.Path(workdir), unfinished(arms, workdir, overwrite)
    if distributed.is_writer():
        files.make(root)
        if not arms[0].path:
            records.claim(root, arms[0].config)  # before any other file
        if left or not provenance.known(root):
            provenance.begin(root, command, about)
        for line in prepare.traces(arm.config for arm in left):
            print(f"delay: {line}")
    failures = run(arms, workdir, overwrite, together, execute)
    if not distributed.is_writer():
        return failures
    # Late: drawing takes a second to load, and arms can start now.
    from experiments import report, tables

    console = Console()
    summaries, claimed, counted, drawn = [], [], [], ""
    if finished := [arm for arm in arms if arm.path not in failures]:
        with _despite(failures):
            summaries = _compare(finished, root, console)
        drawn = f"   figure: {root / 'figure.png'}"
    # The functions of a config file; if one fails, as on a diverged arm, nothing else is lost.
    for name, tell in (
        ("claims", claims and (lambda: claimed.extend(_noted("claims", claims(summaries))))),
        ("numbers", numbers and (lambda: counted.extend(_noted("numbers", numbers(summaries))))),
        ("figures", figures and (lambda: figures(root))),
    ):
        try:
            if tell is not None and not failures:
                tell()
        except Exception as error:  # a config file is code and can raise anything
            claimed.append((f"{name}()", f"failed with {type(error).__name__}: {error}"))
    for table in counted:
        tables.print_table(console, as_table(table))
    if claimed:
        tables.print_claims(console, claimed)
    for path, reason in failures.items():
        where = root / path / records.ERROR
        seen = f"; see {where}" if where.exists() else ""
        print(f"failed: {path or root}: {reason}{seen}")
    print(f"records: {root}{drawn}")
    with _despite(failures):
        provenance.claim(root, claimed, counted)
        print(f"report: {report.write(root)}")
    return failures


@contextlib.contextmanager
def _despite(failures: Mapping[str, str]) -> Iterator[None]:
    """Only print that the disk is full if arms have failed, most likely for the same reason."""
    try:
        yield
    except files.NotWritten as error:
        if not failures:
            raise
        print(f"error: {error}", file=sys.stderr)


def _noted(name: str, found: Iterable) -> Iterator:
    """Yield the values of a config file's function; TypeError for one that no note can hold."""
    for one in found:
        written = records.plain(one._asdict() if isinstance(one, Numbers) else one)
        if not formats.fits([written], formats.NOTE.fields[name]):
            way = "pairs of texts" if name == "claims" else "stats.Numbers, a text a column"
            raise TypeError(f"it yields {registry.brief(repr(one))}; yield {way}")
        yield one


def _compare(arms: list[Arm], root: pathlib.Path, console: Console) -> list[dict]:
    """Write the summary and the figure of all arms, and print their table.

    If no arm's baseline is among them, the first arm is the baseline.
    Returns the summary of each arm with its `config`, `metrics` and `workdirs`.
    """
    from experiments import figures, tables

    found: dict[str, tuple[list, list, list]] = {}
    stopped = []
    for arm in arms:
        where = root / arm.path
        summary = records.read_summary(where, formats.WHOLE_SUMMARY)
        summaries, metrics, workdirs = found.setdefault(arm.config.name, ([], [], []))
        summaries.append(summary)
        metrics.append(records.read_metrics(where, whole=True))
        workdirs.append(where)
        if reason := summary.get("stopped"):
            stopped.append(f"stopped: {arm.config.name} seed {arm.config.seed}: {reason}")
    merged = [records.aggregate(summaries) for summaries, _, _ in found.values()]
    baselines = {arm["baseline"] for arm in merged} - {None}
    if len(merged) > 1 and baselines and not baselines & found.keys():
        for arm in merged:  # as in a grid
            arm["baseline"] = merged[0]["name"]
    if any(arm.path for arm in arms):
        records.write_json(root / records.SUMMARY, {"arms": merged})
    curves = [(name, metrics) for name, (_, metrics, _) in found.items()]
    figures.save(figures.draw(curves, *records.common(merged)), root / "figure.png")
    tables.print_table(console, tables.of_arms(merged))
    for line in stopped:
        print(line)
    configs = {arm.config.name: arm.config for arm in arms}
    return [
        summary | {"config": configs[name], "metrics": metrics, "workdirs": workdirs}
        for (name, (_, metrics, workdirs)), summary in zip(found.items(), merged, strict=True)
    ]
