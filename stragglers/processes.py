"""Processes of durations that may depend on the worker and on the time: slow machines.

Randomness is addressed: a duration depends on (seed, worker, count), for processes with a state in
time also on the start; never on the order of the calls. Every waiting rule therefore meets the same
draws. Worker residuals of real clusters are strongly autocorrelated, so iid distributions flatter
methods that drop stragglers; the processes here do not.
"""

import contextlib
import csv
import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from stragglers import reading
from stragglers.delays import Law
from stragglers.speed_paths import InTime, Paths, finish
from stragglers.streams import addressed

MOST_SOJOURNS = 1000  # of a markov worker within one mini-batch
LONGEST_USUAL = 60.0  # s, the median of a trace above which the user must give a unit
MOST_SHOWN = 16  # names of workers that an error lists on a line
EQUAL, LEAST_EQUAL = 0.25, 10  # spread over workers by that over time, and the fewest times
IN_STEP = (
    "warning: at equal times all workers took about equally long, as steps that end with an "
    "all-reduce do, which hides who is slow; give times of computing alone, or waiting=COLUMN, the "
    "part of them that is waiting"
)
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
NO_TABLES = {  # first bytes of files that are not text in columns
    b"\x1f\x8b": "compressed by gzip",
    b"PK": "a zip or Excel file",
    b"PAR1": "Parquet",
    b"{": "JSON",
    b"[": "JSON",
}
_UNIT = re.compile(rf"(?:^|[\W_]+)({'|'.join(SECONDS)})\W*$")  # unit at the end of a column's name

Draw = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # worker, start, count -> s


@dataclass(frozen=True)
class Process:
    """Durations in seconds by worker, start and count; `seeded` binds it to a seed."""

    name: str
    shortest: float  # s, no duration is below it
    uses_time: bool  # True if a duration depends on its start
    workers: int = field(default=0, kw_only=True)  # fewest workers, as it names them
    bind: Callable[[int], Draw] = field(repr=False, compare=False)  # seed -> draw
    draw: Draw | None = field(default=None, repr=False, compare=False)
    in_time: Callable[[int], InTime] | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )  # seed -> parts of the durations, if they are the work that a changing speed does
    records: tuple[np.ndarray, ...] = field(
        default=(), repr=False, compare=False
    )  # recorded durations that it replays
    names: tuple[str, ...] = field(default=(), compare=False, kw_only=True)  # of these workers
    read: str = field(default="", compare=False, kw_only=True)  # facts about its file, on one line

    def seeded(self, seed: int) -> "Process":
        """Return a copy whose durations are a pure function of `seed` and their address."""
        return replace(self, draw=self.bind(seed))

    def duration(
        self, worker: ArrayLike, start_time: ArrayLike, count: ArrayLike = 0
    ) -> np.ndarray:
        """Return the seconds of the `count`-th mini-batch of `worker`, begun at `start_time`.

        The three broadcast against each other: int, seconds (float), int.
        """
        if self.draw is None:
            raise ValueError(f"{self.name}: has no seed; call .seeded(seed) first")
        return self.draw(*np.broadcast_arrays(worker, start_time, count))


def as_process(delay: Law | Process) -> Process:
    """Return the process itself, or one that draws from a distribution for every mini-batch."""
    return from_law(delay) if isinstance(delay, Law) else delay


def from_law(law: Law) -> Process:
    """Draw durations from the distribution, independent over workers and counts."""

    def bind(seed: int) -> Draw:
        table = addressed(seed, transform=law.quantile)
        return lambda worker, start, count: table(worker, count)

    return Process(str(law), float(law.quantile(0.0)), False, bind)


def persistent(law: Law | Process, factors: ArrayLike | Mapping[int, float]) -> Process:
    """Multiply durations by a constant per worker: an array, or {worker: factor}, else 1."""
    process = as_process(law)
    sparse = hasattr(factors, "items")
    values = np.array(list(factors.values() if sparse else factors), np.float64)
    if not (np.isfinite(values) & (values > 0)).all() or (not sparse and not values.size):
        raise ValueError(
            f"persistent: needs positive factors, got {factors}; give each worker's slowness"
        )
    if sparse:
        keys = [int(key) for key in factors]
        if min(keys, default=0) < 0:
            raise ValueError(
                f"persistent: needs workers 0, 1, ..., got {factors}; count from the first worker"
            )
        dense = np.ones(max(keys, default=-1) + 2)  # the last entry stands for all other workers
        dense[keys] = values
    else:
        dense = values

    def bind(seed: int) -> Draw:
        draw = process.seeded(seed).draw

        def factored(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            if sparse:
                return dense[np.minimum(worker, dense.size - 1)] * draw(worker, start, count)
            if worker.max(initial=0) >= dense.size:
                raise ValueError(
                    f"persistent: {dense.size} factors, but worker {worker.max()}; give one each"
                )
            return dense[worker] * draw(worker, start, count)

        return factored

    def in_time(seed: int) -> InTime:
        def of(workers: int) -> np.ndarray:
            return dense[np.minimum(np.arange(workers), dense.size - 1)]

        return process.in_time(seed)._replace(constant=of)

    # The rounding of factors of factors differs from that of one constant.
    plain = process.in_time is not None and process.in_time(0).constant is None
    return replace(
        process,
        name=f"persistent({process.name})",
        shortest=process.shortest * float(dense.min()),
        workers=max(dense.size - sparse, process.workers),
        bind=bind,
        draw=None,
        in_time=in_time if plain else None,
        records=(),
    )


def spells(law: Law | Process, mini_batches: int) -> Process:
    """Hold one draw of `law` for `mini_batches` successive mini-batches of a worker.

    Like a draw per round, but stragglers stay slow for the same amount of work, whatever the length
    of a method's rounds.
    """
    if not mini_batches >= 1:
        raise ValueError(f"spells: needs mini_batches >= 1, got {mini_batches}; set at least 1")
    process = as_process(law)

    def bind(seed: int) -> Draw:
        draw = process.seeded(seed).draw
        return lambda worker, start, count: draw(worker, start, count // mini_batches)

    def in_time(seed: int) -> InTime:
        inner = process.in_time(seed)
        return inner._replace(work=lambda worker, count: inner.work(worker, count // mini_batches))

    return replace(
        process,
        name=f"spells({process.name})",
        bind=bind,
        draw=None,
        in_time=in_time if process.in_time is not None else None,
        records=(),
    )


def markov(law: Law, factor: float, mean_normal: float, mean_slow: float) -> Process:
    """Let a worker alternate between normal and `factor` times slower, in time.

    Sojourns are exponential with means `mean_normal` and `mean_slow` seconds and start in the
    stationary state. A mini-batch is `law` seconds of work at speed 1 or 1/factor; its duration
    integrates the speed over the state path exactly.
    """
    if not 1 <= factor < math.inf:
        raise ValueError(f"markov: needs factor >= 1, got {factor}; give how many times slower")
    for key, value in (("mean_normal", mean_normal), ("mean_slow", mean_slow)):
        if not 0 < value < math.inf:
            raise ValueError(f"markov: needs {key} > 0, got {key}={value}; set it in seconds")
    work = float(law.quantile(0.5))
    if mean_normal + mean_slow < work / MOST_SOJOURNS:
        raise ValueError(
            f"markov: a mini-batch of {work:.3g} s would see more than {MOST_SOJOURNS} sojourns of "
            f"mean_normal={mean_normal} and mean_slow={mean_slow} s; make them longer, or take "
            "their mean speed as a law"
        )

    known: dict[int, InTime] = {}  # paths are drawn once; a cached function has no pickle

    def in_time(seed: int) -> InTime:
        if seed not in known:
            paths = Paths(addressed(seed, 1), factor, mean_normal, mean_slow)
            known[seed] = InTime(addressed(seed, transform=law.quantile), paths, factor)
        return known[seed]

    def bind(seed: int) -> Draw:
        work, paths, _, _ = in_time(seed)

        def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            target = work(worker, count)
            latest = np.max(start + factor * target, initial=0.0)  # in case all of it is slow
            path = paths.beyond(worker.max(initial=0) + 1, latest)
            return finish(path, worker, start, target) - start

        return draw

    shortest = float(law.quantile(0.0))
    return Process(f"markov({law})", shortest, True, bind, in_time=in_time)


def trace(
    path: str,
    *,
    worker: str = "worker",
    time: str | None = "time",
    duration: str = "batch_time",
    waiting: str | None = None,
    scale: float | None = None,
    mean: float | None = None,
) -> Process:
    """Replay recorded durations from a CSV file, per worker in the order of `time`, cyclic.

    `worker`, `time` and `duration` name the columns; without `time` the order is that of the rows.
    Commas, semicolons or tabs part them, and lines from # on are left out. A table with a column
    per worker, such as rank0, rank1, is read too, in the order of its rows unless it has a `time`.
    A duration is that of computing alone. If it includes a wait for other workers, `waiting` names
    the column of that wait, which is subtracted.
    Recorded numbers times `scale` are seconds, by default in the unit that ends the column's name,
    as in batch_time_ms; `mean` scales them instead so that they have this mean. Workers are in the
    natural order of their names, rank2 before rank10; workers beyond the file's reuse them in turn.
    The seed has no effect. `read` of the process gives the facts about the file. Raises ValueError
    for an unreadable file, and for durations that can hardly be seconds.
    """
    for value in (scale, mean):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(
                f"trace: needs scale > 0 and mean > 0, got scale={scale}, mean={mean}; set seconds"
            )
    if mean is not None and scale is not None:
        raise ValueError(f"trace: scale={scale} and mean={mean} exclude each other; give one")
    recorded, column, empty, in_step = _recorded(path, worker, time, duration, waiting)
    names = sorted(recorded, key=_natural)
    everything = np.concatenate([recorded[name] for name in names])
    ending = _UNIT.search(column)
    if mean is not None:
        scale, unit = mean / everything.mean(), f"scaled to mean={mean:g}"
    elif scale is not None:
        unit = f"scale={scale:g}"
    elif ending:
        scale, unit = SECONDS[ending[1]], f"column {column} in {ending[1]}"
    else:
        scale, median = 1.0, np.median(everything)
        if median > LONGEST_USUAL:
            raise ValueError(
                f"trace: {path} has durations with a median of {median:.4g}, long for seconds of a "
                "mini-batch; give scale=1e-3 for milliseconds, 1e-6 for microseconds, 1e-9 "
                "for nanoseconds, 1 for seconds"
            )
        unit = f"taken as seconds{' (milliseconds have scale=0.001)' if median > 1 else ''}"
    records = [scale * recorded[name] for name in names]
    facts = [f"{path}: {_described(names, records)}", unit]
    facts += [f"{empty} empty rows left out"] if empty else []
    facts += [IN_STEP] if in_step else []
    process = replayed(f"trace({path})", records)
    return replace(process, names=tuple(names), read=" ".join(", ".join(facts).split()))


def replayed(name: str, records: Sequence[np.ndarray]) -> Process:
    """Replay listed durations [s] per worker, cyclic; workers beyond reuse them in turn."""
    lengths = np.array([len(row) for row in records])
    table = np.zeros((len(records), lengths.max()))
    for row, values in zip(table, records, strict=True):
        row[: len(values)] = values

    def draw(worker: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
        row = worker % len(lengths)
        return table[row, count % lengths[row]]

    shortest = min(float(values.min()) for values in records)
    return Process(name, shortest, False, lambda seed: draw, records=tuple(records))


PROCESSES: dict[str, Callable[..., Process]] = {
    factory.__name__: factory for factory in (persistent, spells, markov, trace)
}


def _recorded(
    path: str, worker: str, time: str | None, duration: str, waiting: str | None
) -> tuple[dict[str, np.ndarray], str, int, bool]:
    """Return durations by the name of a worker in the order of their times, and facts about them.

    These are their column, the number of empty rows, and True if workers seem to go in step.
    """
    try:
        rows, comma = _rows(path)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(
            f"trace: cannot read {path} ({error}); give the path of a CSV file"
        ) from error
    full = [(line, row) for line, row in rows if any(row)]
    empty = len(rows) - len(full)
    if full and worker == "worker" and waiting is None:
        full = _long(full, time, duration)
    columns = full[0][1] if full else []
    places = []
    named = {"worker": worker, "time": time, "duration": duration, "waiting": waiting}
    for parameter, name in named.items():
        found = [i for i, column in enumerate(columns) if column == name]
        found = found or [i for i, column in enumerate(columns) if _plain(column) == _plain(name)]
        if name is not None and len(found) != 1:
            known = " ".join(", ".join(columns).split())[:200] or "none"
            raise ValueError(
                f"trace: {path} has {'two columns' if found else 'no column'} {name!r}; it has "
                f"{known}; give the name of one as trace(path='{path}', {parameter}='...')"
            )
        places.append(found[0] if found else None)
    whose, when, what, waits = places
    unit = 1.0 if waits is None else _seconds(columns[waits]) / _seconds(columns[what])
    if not full[1:]:
        raise ValueError(f"trace: {path} has no records; give a file with at least one")
    observed: dict[str, list[tuple[float, int, float]]] = {}
    for line, row in full[1:]:
        cells = row + [None] * (len(columns) - len(row))
        at = line if when is None else _time(cells[when], comma)
        seconds = _number(cells[what], comma)
        seconds -= 0.0 if waits is None else unit * _number(cells[waits], comma)
        fits = not any(row[len(columns) :])
        if not (fits and cells[whose] and math.isfinite(at) and 0 < seconds < math.inf):
            shown = [whose] if not cells[whose] else []
            shown += [place for place in (when, what, waits) if place is not None]
            seen = ", ".join(f"{columns[i]}={cells[i]!r:.200}" for i in shown)
            seen = seen if fits else f"{len(row)} values for {len(columns)} columns"
            raise ValueError(
                f"trace: {path} line {line} has {seen}; keep numbers and positive durations only, "
                "or leave times aside with time=None"
            )
        observed.setdefault(cells[whose], []).append((at, line, seconds))
    for name, records in observed.items():
        records.sort()
        for (at, line, _), (other, later, _) in itertools.pairwise(records):
            if at == other:
                raise ValueError(
                    f"trace: {path} lines {line} and {later} both have worker {name!r} at "
                    f"{columns[when]}={at:.12g}, as where two runs are in one file; keep one, or "
                    "take rows in their order with time=None"
                )
    durations = {name: np.array([row[2] for row in each]) for name, each in observed.items()}
    in_step = when is not None and _in_step(list(observed.values()))
    return durations, columns[what], empty, in_step


def _rows(path: str) -> tuple[list[tuple[int, list[str]]], str]:
    """Return the numbered cells of lines that are no comments, and the decimal mark.

    The header says whether commas, semicolons or tabs part them; numbers have decimal commas only
    between semicolons.
    """
    with reading.opened(Path(path).expanduser()) as file:
        start = file.peek(4)
        for first, kind in NO_TABLES.items():
            if start.startswith(first):
                raise ValueError(f"it is {kind}")
        encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        text = io.TextIOWrapper(file, encoding, newline="").read()
    lines = (line for line in io.StringIO(text) if line.strip() and not line.startswith("#"))
    header = next(lines, "")
    delimiter = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    comma = "," if delimiter == ";" else "."
    return [(line, row) for line, row in rows if not row[0].startswith("#")], comma


def _long(
    rows: list[tuple[int, list[str]]], time: str | None, duration: str
) -> list[tuple[int, list[str]]]:
    """Return a table with a column per worker as one with a row per duration; others as they are.

    Such columns differ in a number alone, and the table has no column of durations.
    """
    columns = rows[0][1]
    names = [_UNIT.sub("", column) for column in columns]
    whose = {i: name.rstrip("0123456789") for i, name in enumerate(names) if name[-1:].isdecimal()}
    numbered = len(whose) > 1 and len(set(whose.values())) == 1 and len(set(names)) == len(names)
    if not numbered or len({_seconds(columns[i]) for i in whose}) > 1:
        return rows
    if {"worker", _plain(duration)} & set(map(_plain, columns)):
        return rows
    if len(whose) == len(columns) and "" in whose.values():  # numbers without a header
        return rows
    when = names.index(time) if time in names else None
    ending = _UNIT.search(columns[next(iter(whose))])
    header = ["worker", time or "time", f"{duration}_{ending[1]}" if ending else duration]
    found = [(rows[0][0], header)]
    for line, row in rows[1:]:
        cells = row + [""] * (len(columns) - len(row))
        at = str(line) if when is None else cells[when]
        found += [(line, [names[i], at, cells[i], *row[len(columns) :]]) for i in whose]
    return found


def _plain(column: str | None) -> str:
    """Return the name of a column without its unit and without capitals."""
    return _UNIT.sub("", column or "").lower()


def _in_step(observed: Sequence[Sequence[tuple[float, int, float]]]) -> bool:
    """Return True if durations vary over time, and at one time hardly over workers."""
    each = [{at: seconds for at, _, seconds in rows} for rows in observed]
    common = sorted(set.intersection(*map(set, each)))
    if not common and len(set(map(len, each))) == 1:  # times of clocks: the order gives the step
        each = [dict(enumerate(mine[at] for at in sorted(mine))) for mine in each]
        common = sorted(each[0])
    if len(each) < 2 or len(common) < LEAST_EQUAL:
        return False
    table = np.array([[mine[at] for at in common] for mine in each])  # [workers, times]
    within, over = np.median(table.std(axis=0)), np.median(table, axis=0).std()
    return bool(within < EQUAL * over)


def _seconds(column: str) -> float:
    """Return the unit that ends the name of a column, in seconds; 1 where there is none."""
    ending = _UNIT.search(column)
    return SECONDS[ending[1]] if ending else 1.0


def _described(names: Sequence[str], records: Sequence[np.ndarray]) -> str:
    """Return the number of durations, the workers, the median and the slowest as a text."""
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
        f"({medians[slowest] / np.median(medians):.3g} times the median worker)"
    )


def _gap(names: Sequence[str]) -> str:
    """Return a text about a gap in numbered names, as of missing records; "": there is none."""
    parts = [re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name, re.DOTALL) for name in names]
    if None in parts or len({(part[1], part[3]) for part in parts}) > 1:
        return ""
    for one, other in itertools.pairwise(parts):
        if int(other[2]) > int(one[2]) + 1:
            return f"; the file has none between {one[0]} and {other[0]}"
    return ""


def _natural(name: str) -> str:
    """Return a key that sorts rank2 before rank10."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(18), name)


def _number(text: str | None, comma: str) -> float:
    """Return a number, or nan for another text."""
    try:
        return float((text or "").replace(comma, "."))
    except ValueError:
        return math.nan


def _time(text: str | None, comma: str) -> float:
    """Return a number, or the seconds of a date and time; without a zone it is taken as UTC."""
    seconds = _number(text, comma)
    if math.isnan(seconds):
        with contextlib.suppress(ValueError):
            at = datetime.fromisoformat(text or "")
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return seconds
