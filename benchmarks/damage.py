"""What readers make of damaged files: refused in a sentence, or read as something that is valid.

python -m benchmarks.damage [--tries=10000] [--seed=0] [--only=schedule,summary]

Every reader of files gets as many random damages of a good file: flipped bits, truncations, foreign
bytes, members of archives replaced or in double, JSON with values of other types, names and
depths, arrays of other shapes and types. Anything but a value or a ValueError on one line counts as
broken, as does a schedule that is read and refused by `Schedule.validate`, a checkpoint that is
read with another value, and a reader that takes longer than ten seconds. The exit code is 1 if
anything is broken.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import signal
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments import (
    checkpoints,
    formats,
    profiling,
    provenance,
    publish,
    records,
    report,
    saving,
)
from stragglers import delays, processes, schedule
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

LIMIT = 10  # s that a reader may take
DEPTH = 100_000  # of JSON that is nested without end


class Reader(NamedTuple):
    """A file and what reads it.

    write: puts a good file, and what the reader needs beside it, into an empty directory; the path
    of the file. read: gets that path. kind: how the file can be damaged.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    kind: Callable[[random.Random, bytes], bytes]


def flipped(draw: random.Random, content: bytes) -> bytes:
    """Some bits of the file are others."""
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8, 64))):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def cut(draw: random.Random, content: bytes) -> bytes:
    """The file ends too early, or a part of it is missing or there twice."""
    begin, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return draw.choice(
        (content[:begin], content[:begin] + content[end:], content[:end] + content[begin:])
    )


def overwritten(draw: random.Random, content: bytes) -> bytes:
    """Bytes of something else stand in the middle."""
    begin = draw.randrange(len(content))
    return content[:begin] + draw.randbytes(draw.choice((1, 4, 100))) + content[begin + 4 :]


def of_bytes(draw: random.Random, content: bytes) -> bytes:
    """Any damage that knows nothing of what the file holds."""
    return draw.choice((flipped, cut, overwritten))(draw, content)


_VALUES = (
    None, True, -1, 0, 1.5, 1e308, -1e308, 10**400, 2**63, "", "x", "\x1b[2J", "1/0", "9/", [], {},
    [1], [[]], {"name": 3}, {"arms": 5}, [None], "\ud800", "2026-13-45", {"": {}},
)  # fmt: skip


def of_json(draw: random.Random, content: bytes) -> bytes:
    """A value somewhere in the JSON is another one, is missing, or is nested without end."""
    if draw.random() < 0.3:
        return of_bytes(draw, content)
    lines = content.decode().splitlines()
    by_line = len(lines) > 1 and _is_json(lines[0])
    at = draw.randrange(len(lines)) if by_line else 0
    tree = json.loads(lines[at] if by_line else content)
    choice = draw.random()
    if choice < 0.03:
        text = draw.choice(("[", '{"a":')) * DEPTH
    elif choice < 0.1:
        text = json.dumps(draw.choice(_VALUES))
    else:
        for _ in range(draw.choice((1, 1, 2))):
            _change(draw, tree)
        text = json.dumps(tree)
    if by_line:
        lines[at] = text
        text = "\n".join(lines) + "\n"
    return text.encode("utf-8", "surrogatepass")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _change(draw: random.Random, tree: Any) -> None:
    """Change, remove or rename one value somewhere in a tree."""
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = draw.choice(list(keys))
        if not isinstance(node[key], dict | list) or draw.random() < 0.3:
            break
        node = node[key]
    choice = draw.random()
    if choice < 0.2:
        del node[key]
    elif choice < 0.3 and isinstance(node, dict):
        node[f"{key}x"] = node.pop(key)
    elif choice < 0.35:
        node[key] = [node[key]]
    else:
        node[key] = copy.deepcopy(draw.choice(_VALUES))


def of_archive(draw: random.Random, content: bytes) -> bytes:
    """A member of an archive of arrays is damaged, another array, missing or there twice."""
    if draw.random() < 0.4:
        return of_bytes(draw, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(members))
    choice = draw.random()
    if choice < 0.3:
        members[name] = of_bytes(draw, members[name])
    elif choice < 0.85:
        array = np.lib.format.read_array(io.BytesIO(members[name]))
        file = io.BytesIO()
        np.lib.format.write_array(file, _another_array(draw, array))
        members[name] = file.getvalue()
    elif choice < 0.93:
        del members[name]
    else:
        members[draw.choice(("x.npy", "y", "../z.npy"))] = members[name]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as zip:
        for member, data in members.items():
            zip.writestr(member, data)
        if choice > 0.98:
            with warnings.catch_warnings(action="ignore"):
                zip.writestr(name, data)
    return made.getvalue()


def _another_array(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """An array of another shape, type or value."""
    with np.errstate(all="ignore"):
        match draw.randrange(6):
            case 0:
                kind = draw.choice(("f4", "f8", "i1", "i8", "u8", "?", "c16", "S3"))
                return (
                    np.zeros(array.shape, kind) if array.dtype.kind == "U" else array.astype(kind)
                )
            case 1:
                return array[: draw.randrange(3)] if array.ndim else array[None]
            case 2:
                return array.ravel() if draw.random() < 0.5 else array[..., None]
            case 3:
                return np.empty(draw.choice(((0,), (0, 0), (1, 0), (3, 0, 2))), array.dtype)
            case _:
                array = np.array(array)
                worst = (np.nan, np.inf, -1, 2**31, 2**62, -(2**62), 1e300, 7)
                if array.size:
                    value = np.array(draw.choice(worst)).astype(array.dtype)  # wraps or rounds
                    array.ravel()[draw.randrange(array.size)] = value
                return array


def of_csv(draw: random.Random, content: bytes) -> bytes:
    """A cell of a table is another one, or the table is damaged as any file."""
    if draw.random() < 0.5:
        return of_bytes(draw, content)
    rows = [line.split(",") for line in content.decode().splitlines()]
    row = draw.choice(rows)
    cells = ("", "nan", "inf", "-1", "1e400", '"', "\x00", "x", "1e-320", "\ud800", "9" * 5000)
    row[draw.randrange(len(row))] = draw.choice(cells)
    return "\n".join(map(",".join, rows)).encode("utf-8", "surrogatepass")


def _schedule(place: Path) -> Path:
    rule = RULES["first_finisher"](
        Setting(delays.exponential(0.1), 3, 2, 0, communication=0.01),
    )
    done = whole(rule, 12)
    events = (schedule.Event(0.1, 2, "lost"), schedule.Event(0.2, 2, "restored", 0))
    path = place / records.SCHEDULE
    schedule.replace(done, events=events, population=3).save(path)
    return path


def _trace(place: Path) -> Path:
    path = place / "trace.csv"
    rows = [f"{worker},{time},{0.1 * (1 + worker)}" for time in range(6) for worker in range(3)]
    path.write_text("\n".join(("worker,time,batch_time", *rows)) + "\n", encoding="utf-8")
    return path


ARM = {"name": "a", "baseline": "b", "wait": "barrier", "workers": 3, "seed": 0, "clock": "virtual"}


def _line(number: int) -> dict:
    return {
        "update": 4 * number, "samples": 32 * number, "seconds": 0.5 * number, "train_loss": 0.7,
        "test_loss": 0.8, "test_accuracy": None, "consensus_distance": 0.0,
        "bytes_per_worker": 100.0 * number, "communication_seconds": 0.1, "wall_seconds": 0.2,
    }  # fmt: skip


def _run(place: Path) -> Path:
    """Records of a finished run in a directory."""
    place.mkdir(parents=True, exist_ok=True)
    config = {"name": "a", "seed": 0, "wait": "barrier", "delay": {"name": "jitter", "mean": 0.1}}
    records.write_json(place / records.CONFIG, config)
    lines = "".join(json.dumps(_line(number)) + "\n" for number in range(4))
    (place / records.METRICS).write_text(lines, encoding="utf-8")
    to_target = {"target_loss": 0.1, "seconds_to_target": 2.0, "idle_fraction": 0.25}
    summary = ARM | to_target | {"updates": 12, "stopped": None} | _line(3)
    del summary["update"]
    records.write_json(place / records.SUMMARY, summary)
    return place


def _sweep(place: Path) -> Path:
    _run(place / "a")
    summary = formats.read(place / "a" / records.SUMMARY, formats.WHOLE_SUMMARY)
    arm = summary | {"seeds": [0], "reached": "1/1", "train_loss_std": None}
    records.write_json(place / records.SUMMARY, {"arms": [arm]})
    provenance.begin(place, "python launch.py")
    provenance.claim(place, [("a claim", "yes")])
    return place


def _of_sweep(name: str) -> Callable[[Path], Path]:
    return lambda place: _sweep(place) / name


def _profile(place: Path) -> Path:
    path = place / "profile.json"
    times = (np.array([0.1, 0.2]), np.array([1e3, 2e3, 4e3]), np.array([0.1, 0.2, 0.3]))
    profiling.save(path, profiling.Profile([["a/b"], ["c"]], *times, 0.01))
    return path


def _taken(place: Path) -> Path:
    return publish.take(_sweep(place / "sweep"), place / "taken")


def _published(path: Path) -> list[dict]:
    return publish.arms(formats.read(path, formats.PUBLISHED))


MODEL = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def _made(place: Path, model) -> checkpoints.Checkpoint:
    packed = {"params/a": model, "clock/update": np.array([3])}
    return checkpoints.Checkpoint(1, 2, 0.5, packed, schedule.load(_schedule(place)))


def _checkpoint(place: Path) -> Path:
    checkpoints.save(place, _made(place, MODEL))
    return place / checkpoints.CHECKPOINT / "1" / checkpoints.STATE


def _divided(place: Path) -> Path:
    checkpoints.save(place, _made(place, jnp.asarray(MODEL)))
    return place / checkpoints.CHECKPOINT / "1" / checkpoints.PART.format(0)


def _lines_of(place: Path) -> Path:
    """Metrics that a run is to go on from."""
    path = _run(place) / records.METRICS
    made = _made(place, MODEL)._replace(records=4, metrics=records.digest(place, 4))
    checkpoints.save(place, made)
    return path


def _read_lines(path: Path) -> None:
    (checkpoint,) = saving.newest([path.parent], [str])
    assert records.read_metrics(path.parent)[: checkpoint.records] == [*map(_line, range(4))]


def _digests(place: Path) -> Path:
    return _checkpoint(place).with_name(checkpoints.DIGESTS)


def _read_checkpoint(path: Path) -> None:
    """A checkpoint that is read is the one that was written, value for value."""
    checkpoint = checkpoints.read(_workdir(path), 1)
    packed = checkpoint.packed
    if checkpoint.bring is not None:
        packed = checkpoint.bring({"params/a": jnp.zeros_like(MODEL)})
    np.testing.assert_array_equal(packed["params/a"], MODEL)
    assert packed["clock/update"] == 3 and checkpoint[:3] == (1, 2, 0.5)
    assert checkpoint.schedule.updates == 12


def _read_schedule(path: Path) -> None:
    done = schedule.load(path)
    done.validate()
    if done.updates:
        _ = done.idle_fraction, done.mean_staleness, done.staleness.max()


def _read_trace(path: Path) -> None:
    worker, count = np.indices((3, 4))
    seconds = processes.trace(path=str(path)).seeded(0).draw(worker, np.zeros((3, 4)), count)
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise AssertionError(f"a trace with the durations {seconds}")


def _read_profile(path: Path) -> None:
    profile = profiling.load(path)
    if profile.ready is not None:
        profiling.describe(profile)


def _gather(path: Path) -> None:
    """What a report reads of all that lies below a workdir."""
    root = path.parent if path.parent.name != "a" else path.parent.parent
    report.gather(root)
    provenance.read(root)


READERS = {
    "schedule": Reader(_schedule, _read_schedule, of_archive),
    "trace": Reader(_trace, _read_trace, of_csv),
    "summary": Reader(_of_sweep("a/summary.json"), _gather, of_json),
    "sweep": Reader(_of_sweep("summary.json"), _gather, of_json),
    "note": Reader(_of_sweep("report.json"), _gather, of_json),
    "metrics": Reader(_of_sweep("a/metrics.jsonl"), _gather, of_json),
    "config": Reader(_of_sweep("a/config.json"), _gather, of_json),
    "lines": Reader(_lines_of, _read_lines, of_json),
    "profile": Reader(_profile, _read_profile, of_json),
    "published": Reader(_taken, _published, of_json),
    "checkpoint": Reader(_checkpoint, _read_checkpoint, of_archive),
    "divided": Reader(_divided, _read_checkpoint, of_archive),
    "digests": Reader(_digests, _read_checkpoint, of_json),
}


def _workdir(path: Path) -> Path:
    """The workdir of a file of a checkpoint."""
    return next(place.parent for place in path.parents if place.name == checkpoints.CHECKPOINT)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """TimeoutError for a block that takes longer; in the main thread alone."""

    def late(*_):
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(reader: Reader, path: Path) -> str:
    """How a reader takes a file: "read", "refused", or in words what is broken about it."""
    try:
        with _limited(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's, above the sentence
            reader.read(path)
    except ValueError as error:
        named = path.name in str(error) or checkpoints.CHECKPOINT in str(error)
        if "\n" in str(error) or not named:
            return f"broken: a sentence without its file, or of several lines: {error!r}"[:300]
        return "refused"
    except BaseException as error:
        return f"broken: {type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return "read"


def damage(name: str, tries: int, seed: int, place: Path) -> Counter:
    """Damage the file of a reader again and again; return how often it ended in which way."""
    reader = READERS[name]
    path = reader.write(place)
    content, outcomes = path.read_bytes(), Counter()
    if attempt(reader, path) != "read":
        raise AssertionError(f"{name}: the good file is not read: {attempt(reader, path)}")
    for number in range(tries):
        draw = random.Random(f"{name} {seed} {number}")
        path.write_bytes(reader.kind(draw, content))
        outcomes[attempt(reader, path)] += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="damages of every file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(READERS), help="readers, with commas")
    options = parser.parse_args()
    print(f"{'reader':12} {'tries':>7} {'refused':>8} {'read':>7} {'broken':>7}")
    broken = 0
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            outcomes = damage(name, options.tries, options.seed, Path(scratch))
        wrong = {how: count for how, count in outcomes.items() if how.startswith("broken")}
        broken += sum(wrong.values())
        print(
            f"{name:12} {options.tries:7} {outcomes['refused']:8} {outcomes['read']:7} "
            f"{sum(wrong.values()):7}",
            flush=True,
        )
        for how, count in Counter(wrong).most_common(8):
            print(f"    {count} x {how}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
