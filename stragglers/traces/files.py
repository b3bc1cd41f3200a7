"""Readers of recorded durations in common file formats.

| file | durations |
|---|---|
| CSV with commas, semicolons, tabs, bars or spaces, also gzip | in rows, or a column per worker |
| Parquet, JSON lines, JSON of pandas | in rows, or a column per worker |
| PyTorch profiler (Kineto), JSON, also gzip | of steps, without their exposed collectives |
| ByteDance StragglerAnalysis, Parquet | of a replica's micro-batches, by its slowest stage |
| a folder, or a pattern such as `rank*.csv` | of one worker in each file |
"""

import csv
import glob
import gzip
import io
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stragglers import reading
from stragglers.processes import Process, replayed

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
UNIT = re.compile(  # at the end of a column's name, as in step_time_ms, durationMs, time [µs]
    r"(?:^|[\W_]+|(?<=[a-z0-9])(?=[A-Z]))"
    r"(?i:(m|milli|u|[µμ]|micro|n|nano)?s(?:ecs?|econds?)?)\W*$"
)
LONG = re.compile(  # as in stepHours, took (h), and duration_min, which may also be a minimum
    r"(?:^|[\W_]+|(?<=[a-z0-9])(?=[A-Z]))(?i:mins?|minutes?|h|hrs?|hours?)\W*$"
)
PREFIXES = {"milli": "m", "micro": "u", "µ": "u", "μ": "u", "nano": "n"}  # both signs of micro
LONGEST_USUAL = 60.0  # s; if a trace has a longer median, the user must give the unit
IN_STEP = (
    "at equal times all workers took about equally long, as steps that end with an all-reduce do, "
    "which hides who is slow; log the time of computing alone, from the begin of a step to the end "
    "of its backward pass, or name the column of the rest as waiting=COLUMN; where workers do get "
    "slow together, give in_step=True"
)
MOST_SHOWN = 16  # most names of workers that a text lists
EQUAL, LEAST_EQUAL = 0.25, 10  # spread over workers / spread over time; fewest times


class Columns(NamedTuple):
    """Names of the columns in a table of durations."""

    worker: str = "worker"
    time: str | None = "time"
    duration: str = "batch_time"
    waiting: str | None = None  # is subtracted from a duration


HOSTS = {"node", "host", "hostname"}  # columns of hosts; below, of the workers on a host
LOCAL = ("local_rank", "gpu", "gpu_id", "device", "card", "rank")
STEP_TIME = "step", "time"  # in a table with both, the time is the duration
USUAL = (  # names of worker, time and duration that are taken where the default name is missing
    ("rank", "global_rank", "worker_id", "replica", "node", "host", "hostname"),
    ("step", "global_step", "iteration", "iter", "timestamp"),
    ("batch_time_norm", "compute_time", "step_time", "iteration_time", "duration", "seconds",
     "time"),
)  # fmt: skip


class Row(NamedTuple):
    """A line of a file in cells; the first row of a table has the names of its columns."""

    path: str
    line: int
    cells: list[str]

    def __str__(self) -> str:
        """Return the place of the row as a text."""
        return f"{self.path} line {self.line}"


class Recorded(NamedTuple):
    """Durations as they were recorded, before their unit is known.

    durations: name of a worker -> numbers in the order of time; times: the times of these numbers,
    or their places in the file. column, clock: names of the columns of numbers and of times. empty:
    number of rows without a value. in_step: True if workers seem to go in step. apart: time of the
    collectives in each profiled step of all workers, in the unit of the durations; else empty.
    """

    durations: dict[str, np.ndarray]
    column: str
    empty: int
    in_step: bool
    apart: np.ndarray
    times: dict[str, np.ndarray]
    clock: str | None


def trace(
    path: str,
    *,
    worker: str = "worker",
    time: str | None = "time",
    duration: str = "batch_time",
    waiting: str | None = None,
    scale: float | None = None,
    mean: float | None = None,
    in_step: bool = False,
) -> Process:
    """Replay recorded durations from files in a cycle, each worker's in the order of `time`.

    The head of this module lists the files. `worker`, `time` and `duration` name the columns of a
    table; a usual name replaces a missing default. time=None keeps the order of the rows.
    Lines that begin with # or sep= are left out. A table with a column per worker, such as rank0,
    rank1, is in the order of its times or steps, or else of its rows.
    A duration is the time of computing alone. If durations include a wait for workers, `waiting`
    names the column of the wait, which is subtracted.
    Recorded numbers times `scale` are seconds. By default the end of the column's name gives the
    unit, as in batch_time_ms or duration_microseconds. `mean` scales durations, and communication
    in profiles, to give durations this mean [s]. Workers are in the natural order of their names,
    rank2 before rank10; further workers reuse the records in turn. If a host has several workers at
    one time, the host with local_rank, gpu or device names a worker. The seed has no effect. `read`
    of the process has facts about the file. Raises ValueError for an unreadable file, for durations
    that can hardly be seconds, and, without `in_step`, for durations that vary over time but hardly
    between workers at one time.
    """
    for value in (scale, mean):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(
                f"trace: needs scale > 0 and mean > 0, got scale={scale}, mean={mean}; set seconds"
            )
    if mean is not None and scale is not None:
        raise ValueError(f"trace: scale={scale} and mean={mean} exclude each other; give one")
    found = read(path, Columns(worker, time, duration, waiting), scale)
    if found.in_step and not in_step:
        raise ValueError(f"trace: {path}: {IN_STEP}")
    names = sorted(found.durations, key=natural)
    everything = np.concatenate([found.durations[name] for name in names])
    named = unit_of(found.column)
    if mean is not None:
        scale, unit = mean / everything.mean(), f"scaled to mean={mean:g}"
    elif scale is not None:
        unit = f"scale={scale:g}"
    elif named:
        scale, unit = SECONDS[named], f"column {found.column} in {named}"
    elif LONG.search(found.column):
        raise ValueError(
            f"trace: {path} has {found.column}, minutes or hours by its name; give scale=60 for "
            "minutes, 3600 for hours, 1 for seconds"
        )
    else:
        scale, median = 1.0, np.median(everything)
        if median > LONGEST_USUAL:
            raise ValueError(
                f"trace: {path} has durations with a median of {median:.4g}, long for seconds of a "
                "mini-batch; give scale=1e-3 for milliseconds, 1e-6 for microseconds, 1e-9 "
                "for nanoseconds, 1 for seconds"
            )
        unit = f"taken as seconds{' (milliseconds have scale=0.001)' if median > 1 else ''}"
    with np.errstate(over="ignore"):
        records = [scale * found.durations[name] for name in names]
    if not all(np.isfinite(values).all() for values in records):
        raise ValueError(f"trace: {path} has {unit} durations that are not finite; scale them down")
    facts, exchange = [f"{path}: {described(names, records)}", unit], 0.0
    if found.apart.size:
        apart = scale * found.apart
        facts.append(f"communication apart, median {np.median(apart):.3g} s a step")
        # The last worker of a step waits for nobody: its time is the shortest of the step.
        exchange = float(np.quantile(apart, 0.5 / len(names)))
    facts += [f"{found.empty} empty rows left out"] if found.empty else []
    process = replayed(f"trace({path})", records)
    said = " ".join(", ".join(facts).split())
    return replace(process, names=tuple(names), read=said, exchange=exchange)


def read(path: str, wanted: Columns, scale: float | None = None) -> Recorded:
    """Return the durations in a file, a folder or the files of a pattern.

    wanted: names of the columns, see `trace`. scale: seconds of a recorded number; None: as the
    name of its column says. Raises ValueError for a file that cannot be read.
    """
    try:
        table = _table(path, wanted.worker)
    except (OSError, ValueError, TypeError, RuntimeError, csv.Error) as error:
        reason = " ".join(f"{getattr(error, 'strerror', None) or error}".split())
        raise ValueError(
            f"trace: cannot read {path} ({reason}); give the path of a CSV, Parquet or Kineto "
            "file, or a pattern with a file per worker, as 'rank*.csv'"
        ) from error
    full = [row for row in table if any(row.cells)]
    columns, rows = (full[0].cells, full[1:]) if full else ([], [])
    workers, when = _of_workers(columns, wanted)
    whose, waits, whats = None, None, [*workers]
    if not workers:
        whose, when, what, waits = _places(path, columns, wanted)
        whats = [what]
    if not rows:
        raise ValueError(f"trace: {path} has no records; give a file with at least one")
    unit = 1.0  # of the waits, in units of the durations
    if waits is not None and (own := unit_of(columns[waits])):
        unit = SECONDS[own] / (scale or SECONDS.get(unit_of(columns[what]), 1.0))
    commas = {  # files with a comma that cannot separate thousands
        row.path for row in rows for i in (when, *whats, waits)
        if i is not None and i < len(row.cells) and DECIMAL.fullmatch(row.cells[i])
    }  # fmt: skip

    found: list[tuple[Row, str, float, float]] = []  # line, worker, time, seconds
    for n, row in enumerate(rows):
        cells = row.cells + [None] * (len(columns) - len(row.cells))
        comma, fits = row.path in commas, not any(cells[len(columns) :])
        at = n if when is None else _time(cells[when], comma)
        wait = 0.0 if waits is None else unit * _number(cells[waits], comma)
        for what in whats:
            name, seconds = workers.get(what) or cells[whose], _number(cells[what], comma) - wait
            if not (fits and name and math.isfinite(at) and 0 < seconds < math.inf):
                shown = [i for i in (when, what, waits) if i is not None]
                shown = shown if name else [whose, *shown]
                seen = ", ".join(f"{columns[i]}={cells[i]!r:.200}" for i in shown)
                seen = seen if fits else f"{len(cells)} values for {len(columns)} columns"
                raise ValueError(
                    f"trace: {row} has {seen}; keep numbers and positive durations only, "
                    "or leave times aside with time=None"
                )
            found.append((row, name, at, seconds))

    lines, names, at, seconds = zip(*found, strict=True)
    plain, named = [_plain(column) for column in columns], whose is not None and columns[whose]
    local = next((plain.index(name) for name in LOCAL if name in plain), None)
    on_hosts = named and _plain(named) in HOSTS and None not in (local, when)
    if on_hosts and len({*zip(names, at, strict=True)}) < len(names):  # several on a host
        names = ["/".join(filter(None, (name, *row.cells[local : local + 1])))
                 for name, row in zip(names, lines, strict=True)]  # fmt: skip
    names, at, seconds = _as_written(names), np.array(at), np.array(seconds)
    _, worker = np.unique(names, return_inverse=True)
    order = np.lexsort((at, worker))
    ends = np.diff(worker[order]) > 0
    for i in np.flatnonzero(~ends & (np.diff(at[order]) == 0))[:1]:
        one, other = lines[order[i]], lines[order[i + 1]]
        again = other if other.path != one.path else f"line {other.line}"
        way = "take rows in their order with time=None"
        for host in sorted(HOSTS.intersection(columns) - {named}):
            way = f"if ranks are local, name workers by their host, too: worker={host!r}"
        raise ValueError(
            f"trace: {one} and {again} both have worker {names[order[i]]!r} at "
            f"{columns[when]}={at[order[i]]:.12g}, as where two runs are in one file; keep one, or "
            f"{way}"
        )
    parts = np.split(order, 1 + np.flatnonzero(ends))
    durations = {names[part[0]]: seconds[part] for part in parts}
    times = {names[part[0]]: at[part] for part in parts}
    have_times = when is not None or len(whats) > 1  # the lines of a table with workers' columns
    in_step = have_times and _in_step([*times.values()], [*durations.values()])
    apart = np.array([row.cells[columns.index(APART)] for row in rows if APART in columns], float)
    clock = None if when is None else columns[when]
    empty = len(table) - len(full)
    return Recorded(durations, columns[whats[0]], empty, in_step, apart, times, clock)


def described(names: Sequence[str], records: Sequence[np.ndarray]) -> str:
    """Return a text about the durations, the workers, the median and the slowest worker."""
    counts = [len(values) for values in records]
    each = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
    medians = np.array([np.median(values) for values in records])
    slowest = int(medians.argmax())
    said = f"{sum(counts)} durations of {len(names)} workers, {each} each"
    if list(names) != [str(i) for i in range(len(names))]:
        shown = names if len(names) <= MOST_SHOWN else [*names[:2], "...", names[-1]]
        shown = ", ".join(f"{name:.40}" for name in shown)
        said += f" (workers from 0 on are {shown}{_gap(names)})"
    return (
        f"{said}, median {np.median(np.concatenate(records)):.3g} s, slowest {names[slowest]:.40} "
        f"({medians[slowest] / np.median(medians):.3g} times the median worker, by medians)"
    )


def _gap(names: Sequence[str]) -> str:
    """Return a text about a gap in numbered names, as of missing records, or "" without a gap."""
    parts = [re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name, re.DOTALL) for name in names]
    if None in parts or len({(part[1], part[3]) for part in parts}) > 1:
        return ""
    for one, other in itertools.pairwise(parts):
        if int(other[2]) > int(one[2]) + 1:
            return f"; the file has none between {one[0]} and {other[0]}"
    return ""


def natural(name: str) -> str:
    """Return a key that sorts rank2 before rank10."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(18), name)


def unit_of(column: str) -> str | None:
    """Return the unit at the end of a column's name, a key of SECONDS; None without a unit."""
    ending = UNIT.search(column)
    prefix = (ending[1] or "").lower() if ending else None
    return None if prefix is None else PREFIXES.get(prefix, prefix) + "s"


# --- files ---

# A number with a decimal comma; 1,500 may be a thousand and a half thousand, too.
DECIMAL = re.compile(r"(?![-+]?[1-9]\d{0,2}(,\d{3})+$)[-+]?\d*,\d+")
COMMA = re.compile(r"[-+]?\d*,\d+(e[-+]?\d+)?", re.IGNORECASE)
APART = "communication apart"  # column of a table that is made from a profile
Lines = Iterable[tuple[int, list[str]]]  # numbers of lines and their cells, the header first


def _table(path: str, worker: str) -> list[Row]:
    """Return the rows of all files of a path.

    Where a profile, or one of several files, names no worker, the file's name is added as worker.
    """
    place = Path(path).expanduser()
    pattern = f"{glob.escape(str(place))}/*" if place.is_dir() else f"{place}"
    several = glob.has_magic(pattern) and not place.is_file()
    paths = [pattern]
    if several:
        found = filter(os.path.isfile, glob.glob(pattern, recursive=True))
        paths = sorted(found, key=natural)
    if not paths:
        raise ValueError("no file has a name of that pattern")
    joined: list[Row] = []
    for name, one in zip(_varying(paths), paths, strict=True):
        header, *rest = _rows(Path(one)) or [Row(one, 1, [])]
        is_named = _plain(worker) in map(_plain, header.cells)
        if not is_named and (several or APART in header.cells):
            if not any(any(row.cells) for row in rest):
                raise ValueError(f"{one} has no records of its worker, take it away")
            header = header._replace(cells=[worker, *header.cells])
            rest = [row._replace(cells=[name, *row.cells]) for row in rest]
        if joined and header.cells != joined[0].cells:
            raise ValueError(
                f"{paths[0]} has the columns {', '.join(joined[0].cells)}, {one} has "
                f"{', '.join(header.cells)}"
            )
        joined += rest if joined else [header, *rest]
    return joined


def _varying(paths: Sequence[str]) -> list[str]:
    """Return a name per path: the only number in which the paths differ, or the file's name.

    If files in several folders have one name, a name is the parts in which the path differs.
    """
    parts = [re.split("([0-9]+)", path) for path in paths]
    if len(set(map(len, parts))) == 1:
        differing = [one for one in zip(*parts, strict=True) if len(set(one)) > 1]
        if len(differing) == 1 and differing[0][0].isdecimal():
            return list(differing[0])
    stems = [Path(path).name.partition(".")[0] for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    steps = itertools.zip_longest(*(Path(path).parts for path in paths), fillvalue="")
    steps = [one for one in steps if len(set(one)) > 1]
    return ["/".join(filter(None, one)) for one in zip(*steps, strict=True)]


def _rows(path: Path) -> list[Row]:
    """Return the rows of a file."""
    with reading.opened(path) as file:
        start = file.peek(4)
        if start.startswith(b"PAR1"):
            return _numbered(path, enumerate(_of_parquet(file), 1))
        if start.startswith(b"PK"):
            raise ValueError("it is a zip or Excel file")
        packed = start.startswith(b"\x1f\x8b")
        try:
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(reading.MOST_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise ValueError("it ends too early or is damaged") from error
    if len(data) > reading.MOST_BYTES:
        raise ValueError(f"it has more than {reading.MOST_BYTES / 1e6:.0f} MB")
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        if re.search(rb"[\0-\x08\x0e-\x1f]", data):
            raise ValueError("it is no text") from error
        text = data.decode("latin-1")  # whose µ is not valid in UTF-8
    if "\0" in text:
        raise ValueError("it has zero bytes, as UTF-16 without a byte-order mark; save it as UTF-8")
    if text.lstrip()[:1] not in ("{", "["):
        return _numbered(path, _of_text(text))
    try:
        return _numbered(path, enumerate(_of_json(text)))
    except (AttributeError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"it has no records, and is no profile: {error!r:.200}") from error


def _numbered(path: Path, lines: Lines) -> list[Row]:
    return [Row(f"{path}", line, list(cells)) for line, cells in lines]


COMMENTS = "#", "sep="  # at the begin of a line; Excel understands the second


def _of_text(text: str) -> Lines:
    """Return the lines that are no comments.

    The header gives the delimiter. The header may be a comment above lines of numbers, as NumPy
    writes it, or be repeated, as in joined files. With semicolons, numbers have decimal commas.
    """
    above, header, below = "", "", ""  # the last comment, and the two lines behind it
    for line in filter(None, map(str.strip, io.StringIO(text))):
        if header:
            below = line
            break
        above, header = (line, "") if line.startswith(COMMENTS) else (above, line)
    delimiter = max(",;\t|", key=header.count)
    if delimiter not in header and len(header.split()) == len(below.split()):
        delimiter = " "

    def split(some: str) -> Lines:
        lines = io.StringIO(some, newline="")
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]

    lines = [(at, row) for at, row in split(text) if not row[0].startswith(COMMENTS)]
    if delimiter == ";":
        lines = [
            (at, [c.replace(",", ".") if COMMA.fullmatch(c) else c for c in row])
            for at, row in lines
        ]
    if above and lines and all(math.isfinite(_number(cell, True)) for cell in lines[0][1]):
        named = split(above.lstrip("# "))
        if named and len(named[0][1]) == len(lines[0][1]):
            lines.insert(0, (lines[0][0], named[0][1]))
    return [line for n, line in enumerate(lines) if n == 0 or line[1] != lines[0][1]]


def _of_parquet(file: io.BufferedReader) -> list[list[str]]:
    """Return the cells of a Parquet file, or the micro-batches of ByteDance's operations."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError("it is Parquet, which needs pyarrow: pip install pyarrow") from error
    try:
        table = parquet.read_table(file)
        columns = [
            column.cast(column.type.value_type) if pyarrow.types.is_dictionary(column.type)
            else column for column in table.columns
        ]  # fmt: skip
        values = [column.to_numpy(zero_copy_only=False) for column in columns]
    except pyarrow.ArrowException as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    names = table.column_names
    if OPERATIONS.issubset(names):
        return _micro_batches(dict(zip(names, values, strict=True)))
    for i, (name, column) in enumerate(zip(names, values, strict=True)):
        if column.dtype.kind == "M":  # a date is seconds since 1970
            values[i] = column = column - np.datetime64(0, "s")
        if column.dtype.kind == "m":  # a time span is in the unit of its column
            values[i] = column / np.timedelta64(1, unit_of(name) or "s")
    cells = (map(_cell, column.tolist()) for column in values)
    return [names, *map(list, zip(*cells, strict=True))]


def _cell(value: Any) -> str:
    """Return a value as the text of a cell, which is empty for a missing value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else f"{value}"


def _of_json(text: str) -> list[list[str]]:
    """Return the cells of a profile, of columns, or of records in a list or in lines."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        document = []
        for number, line in enumerate(text.split("\n"), 1):
            try:
                document += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as own:
                if not document:  # the text was meant as one value
                    raise error from None
                raise ValueError(f"{own.msg}: line {number} column {own.colno}") from None
    if isinstance(document, dict):
        if "traceEvents" in document:
            return _of_profile(document)
        columns = [dict(enumerate(c)) if isinstance(c, list) else c for c in document.values()]
        if all(isinstance(column, dict) for column in columns):  # of pandas' tables
            rows = dict.fromkeys(itertools.chain(*columns))
            document = [dict(zip(document, (c.get(r) for c in columns), strict=True)) for r in rows]
        else:
            document = [document]
    names = list(dict.fromkeys(name for record in document for name in record))
    return [names, *([_cell(record.get(name)) for name in names] for record in document)]


OPERATIONS = {"dp_rank", "stage", "rank", "step", "optype", "duration", "mb_id"}


def _micro_batches(columns: dict[str, np.ndarray]) -> list[list[str]]:
    """Return the seconds of each micro-batch of a replica, in its slowest pipeline stage.

    ByteDance's StragglerAnalysis (arXiv 2505.05713) records every operation of every rank. The
    seconds of a stage are its forward and backward computing, averaged over its ranks.
    """
    computing = np.isin(columns["optype"].astype(str), ("forward-compute", "backward-compute"))
    if not computing.any():
        raise ValueError("no optype of it is forward-compute or backward-compute")
    keys = ("dp_rank", "step", "mb_id", "stage", "rank")
    values, places = zip(
        *(np.unique(columns[key][computing], return_inverse=True) for key in keys), strict=True
    )
    shape = tuple(map(len, values[:-1]))
    seconds, ranks = np.zeros(shape), np.zeros(shape)
    np.add.at(seconds, places[:-1], columns["duration"][computing])
    whole = np.unique(np.stack(places, axis=1), axis=0)
    np.add.at(ranks, tuple(whole[:, :-1].T), 1)
    slowest = (seconds / np.maximum(ranks, 1)).max(axis=-1)
    rows = [["worker", "time", "batch_time_s"]]
    for replica, each in zip(values[0], slowest.reshape(shape[0], -1), strict=True):
        rows += [[f"{replica}", f"{at}", repr(x)] for at, x in enumerate(each.tolist()) if x]
    return rows


# Of profiles, also by PyTorch 1.8 to 1.11: names of events, and categories of the device's work.
COLLECTIVE = re.compile("nccl|rccl|gloo", re.IGNORECASE)
STEP = re.compile(r"ProfilerStep#(\d+)")
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


class Event(NamedTuple):
    """An event of a profile; times in us."""

    category: str
    name: str
    begin: float
    end: float


def _of_profile(document: dict) -> list[list[str]]:
    """Return cells: each step's computing and communication [us] in a rank's PyTorch profile.

    A step is a ProfilerStep. The time in which the device runs collectives and nothing else is
    subtracted, as this is the exchange with its wait for other workers.
    """
    if not isinstance(document["traceEvents"], list):
        raise ValueError("its traceEvents are no list, as a profiler writes it")
    events = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and "dur" in event:
            begin, category = float(event["ts"]), f"{event.get('cat')}".lower()
            end = begin + float(event["dur"])
            events.append(Event(category, f"{event.get('name', '')}", begin, end))
    host: dict[int, Event] = {}
    device: dict[int, Event] = {}  # over all streams
    for event in events:
        if found := STEP.match(event.name):
            spans = device if event.category == "gpu_user_annotation" else host
            known = spans.setdefault(int(found[1]), event)
            begin, end = min(known.begin, event.begin), max(known.end, event.end)
            spans[int(found[1])] = event._replace(begin=begin, end=end)
    steps = host | device
    if not steps:
        raise ValueError("it has no ProfilerStep; call the profiler's step() after each step")
    work = [event for event in events if event.category in DEVICE]
    busy = work or [event for event in events if event.category == "user_annotation"]
    collectives = [event for event in busy if COLLECTIVE.search(event.name)]
    others = [event for event in work if not COLLECTIVE.search(event.name)]
    rank = (document.get("distributedInfo") or {}).get("rank")
    rows = [["time", "batch_time_us", APART] + ["worker"] * (rank is not None)]
    for number, step in sorted(steps.items()):
        exposed = _covered(collectives + others, step) - _covered(others, step)
        computing = step.end - step.begin - exposed
        row = [f"{number}", repr(computing), repr(_covered(collectives, step))]
        rows.append(row + [f"{rank}"] * (rank is not None))
    return rows


def _covered(events: Sequence[Event], step: Event) -> float:
    """Return the time of a step that at least one of the events covers."""
    covered, until = 0.0, step.begin
    for begin, end in sorted((event.begin, event.end) for event in events):
        covered += max(0.0, min(end, step.end) - max(begin, until))
        until = max(until, min(end, step.end))
    return covered


# --- columns ---


def _places(path: str, columns: Sequence[str], wanted: Columns) -> list[int | None]:
    """Return the places of the wanted columns, or of usual ones if a default name is missing."""
    plain, default = [_plain(column) for column in columns], Columns()
    names = list(wanted)
    for i, others in enumerate(USUAL):
        if names[i] == default[i]:  # a usual name may be another parameter's column, as `time`
            taken = {_plain(name) for j, name in enumerate(names) if j != i}
            free = [name for name in (default[i], *others) if name not in taken]
            names[i] = next((name for name in free if name in plain), free[0])
    if wanted[1:3] == default[1:3] and names[2] not in plain and {*plain}.issuperset(STEP_TIME):
        names[1:3] = STEP_TIME
    places: list[int | None] = [None] * len(names)
    # A column that was asked for is missed before a usual one.
    for i in sorted(range(len(names)), key=lambda i: wanted[i] == default[i]):
        parameter, name = Columns._fields[i], names[i]
        if name is None:
            continue
        found = [at for at, column in enumerate(columns) if column == name]
        found = found or [at for at, column in enumerate(plain) if column == _plain(name)]
        if len(found) == 1:
            places[i] = found[0]
            continue
        known = " ".join(", ".join(columns).split())[:200] or "none"
        instead = "have a column per worker, as gpu0_ms, gpu1_ms, ..."
        if parameter == "time":
            instead = "take rows in their order with time=None"
        raise ValueError(
            f"trace: {path} has {'two columns' if found else 'no column'} {name!r}; it has "
            f"{known}; give the name of one as trace(path='{path}', {parameter}='...'), or "
            f"{instead}"
        )
    return places


def _of_workers(columns: list[str], wanted: Columns) -> tuple[dict[int, str], int | None]:
    """Return the places and workers of a table with a column per worker, and the place of times.

    The names of such columns differ only in a number, and there is no column of durations. Any
    other table has none.
    """
    default, none = Columns(), ({}, None)
    plain = [_plain(column) for column in columns]
    names = [UNIT.sub("", column) for column in columns]
    whose = {i: name for i, name in enumerate(names) if name[-1:].isdecimal()}
    alike = {(name.rstrip("0123456789"), unit_of(columns[i])) for i, name in whose.items()}
    numbered = len(whose) > 1 == len(alike) and len(set(names)) == len(names)
    has_rows = {default.worker, *USUAL[0], *USUAL[2]} - {default.time} | {default.duration}
    if not numbered or has_rows & {*plain} or wanted != default._replace(time=wanted.time):
        return none
    if all(math.isfinite(_number(column)) for column in columns):  # there is no header
        return none
    times = (default.time, *USUAL[1]) if wanted.time == default.time else (_plain(wanted.time),)
    when = next((plain.index(name) for name in times if name in plain), None)
    return none if when is None and wanted.time not in (None, default.time) else (whose, when)


def _plain(column: str | None) -> str:
    """Return a column's name in lower case, without unit, its words joined by underscores."""
    column = (column or "").strip()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W+", "_", UNIT.sub("", column) or column).lower()


def _as_written(names: Sequence[str]) -> list[str]:
    """Return the names of workers, 3 where a column of floats has 3.0 or 3.0e+00."""
    numbers = {name: _number(name) for name in set(names)}
    if all("." in name and number.is_integer() for name, number in numbers.items()):
        return [f"{numbers[name]:.0f}" for name in names]
    return list(names)


def _in_step(times: Sequence[np.ndarray], durations: Sequence[np.ndarray]) -> bool:
    """Return True if durations vary over time, but hardly between workers at one time."""
    each = [dict(zip(*columns, strict=True)) for columns in zip(times, durations, strict=True)]
    common = sorted(set.intersection(*map(set, each)))
    if len(common) < LEAST_EQUAL:  # times of clocks: the order gives the step
        each, common = durations, range(min(map(len, durations)))
    if len(each) < 2 or len(common) < LEAST_EQUAL:
        return False
    table = np.array([[mine[at] for at in common] for mine in each])  # [workers, times]
    # The longest ones, as of a compilation, say nothing about the others.
    shared = np.sort(np.median(table, axis=0))[: -1 - len(common) // 100]
    within, over = np.median(table.std(axis=0)), shared.std()
    return bool(within < EQUAL * over)


def _number(text: str | None, comma: bool = False) -> float:
    """Return a number, which may have a decimal comma; NaN for anything else."""
    text = text or ""
    try:
        return float(text.replace(",", ".") if comma else text)
    except ValueError:
        return math.nan


def _time(text: str | None, comma: bool) -> float:
    """Return a number, or the seconds of a date and time; a date without a zone is in UTC."""
    seconds = _number(text, comma)
    if math.isnan(seconds):
        try:
            at = datetime.fromisoformat(text or "")
        except ValueError:
            return math.nan
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return seconds
