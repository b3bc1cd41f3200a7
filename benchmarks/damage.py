"""Damaged files, which readers must refuse in a sentence or read as something valid.

    python -m benchmarks.damage [--tries=10000] [--seed=0] [--only=schedule,summary]

Every reader of files gets `--tries` random damages of a good file: flipped bits, truncations,
foreign bytes, members of archives replaced or duplicated, JSON with values of other types, names
and depths, arrays of other shapes and types. A reader has to give a value, or raise a one-line
ValueError that names the file; anything else counts as broken. So do a schedule that is read and
then refused by `Schedule.validate`, a checkpoint that is read with another value, and a reader that
computes for more than ten seconds. The exit code is 1 if anything is broken.
"""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks import every_rule, harness
from experiments import checkpoints, formats, profiling, provenance, publish, records, report, train
from stragglers import processes, schedule

LIMIT = 10  # s of the processor that a reader may take
DEPTH = 100_000  # of JSON that is nested without end
VALUES = (
    None, True, -1, 0, 1.5, 1e308, 10**400, 2**63, "", "x", "\x1b[2J", "1/0", [], {}, [1], [[]],
    {"name": 3}, {"arms": 5}, [None], "\ud800", "2026-13-45", {"": {}},
)  # fmt: skip


# --- damages ---


def of_bytes(draw: random.Random, content: bytes) -> bytes:
    """Flip bits, cut a part off or out, repeat it, or overwrite it."""
    begin, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    flipped = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8, 64))):
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    return draw.choice((
        bytes(flipped), bytes(flipped), content[:begin], content[:begin] + content[end:],
        content[:end] + content[begin:],
        content[:begin] + draw.randbytes(draw.choice((1, 4, 100))) + content[begin + 4 :],
    ))  # fmt: skip


def of_json(draw: random.Random, content: bytes) -> bytes:
    """Change, remove or rename values in the JSON, nest it very deeply, or damage its bytes."""
    choice, objects = draw.random(), content.decode().splitlines(keepends=True)
    if not objects[0].endswith("}\n"):  # no object per line
        objects = ["".join(objects)]
    at = draw.randrange(len(objects))
    if choice < 0.3:
        return of_bytes(draw, content)
    if choice < 0.33:
        text = draw.choice(("[", '{"a":')) * DEPTH
    elif choice < 0.4:
        text = json.dumps(draw.choice(VALUES))
    else:
        tree = json.loads(objects[at])
        for _ in range(draw.choice((1, 1, 2))):
            _change(draw, tree)
        text = json.dumps(tree)
    objects[at] = f"{text}\n"
    return "".join(objects).encode("utf-8", "surrogatepass")


def _change(draw: random.Random, node: Any) -> None:
    """Change, remove or rename one value somewhere in a tree."""
    if not node:
        return
    key = draw.choice([*node] if isinstance(node, dict) else range(len(node)))
    if isinstance(node[key], dict | list) and draw.random() < 0.7:
        _change(draw, node[key])
    elif (choice := draw.random()) < 0.2:
        del node[key]
    elif choice < 0.3 and isinstance(node, dict):
        node[f"{key}x"] = node.pop(key)
    else:
        node[key] = [node[key]] if choice < 0.35 else copy.deepcopy(draw.choice(VALUES))


def of_archive(draw: random.Random, content: bytes) -> bytes:
    """Damage, replace, remove or repeat a member of an archive of arrays, or damage its bytes."""
    choice = draw.random()
    if choice < 0.4:
        return of_bytes(draw, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = draw.randrange(len(members))
    name, data = members[at]
    if choice < 0.55:
        members[at] = name, of_bytes(draw, data)
    elif choice < 0.9:
        file = io.BytesIO()
        np.save(file, _another_array(draw, np.load(io.BytesIO(data))))
        members[at] = name, file.getvalue()
    elif choice < 0.95:
        del members[at]
    else:
        members.append((draw.choice((name, "x.npy", "y", "../z.npy")), data))
    made = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(made, "w") as archive:
        for member in members:
            archive.writestr(*member)
    return made.getvalue()


def _another_array(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """Return an array of another shape, type or value."""
    with np.errstate(all="ignore"):
        match draw.randrange(6):
            case 0:
                kind = draw.choice(("f4", "f8", "i1", "i8", "u8", "?", "c16", "S3"))
                is_text = array.dtype.kind == "U"
                return np.zeros(array.shape, kind) if is_text else array.astype(kind)
            case 1:
                return array[: draw.randrange(3)] if array.ndim else array[None]
            case 2:
                return array[..., None]
            case 3:
                return np.empty(draw.choice(((0,), (1, 0), (3, 0, 2))), array.dtype)
        array = np.array(array)
        if array.size:  # the value wraps or rounds
            value = draw.choice((np.nan, np.inf, -1, 2**31, 2**62, -(2**62), 1e300, 7))
            array.ravel()[draw.randrange(array.size)] = np.array(value).astype(array.dtype)
        return array


# --- good files ---

MODEL = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def sweep(place: Path, *names: str) -> Path:
    """Write a sweep with one trained arm; return the path of one of its files."""
    config = every_rule.get_config()
    config.wait, config.workers, config.updates, config.evaluate_every = "first_finisher", 3, 9, 2.0
    config.task = "synthetic_logistic(samples=64, dimension=4)"
    config.name, config.baseline = "a", "b"
    train.run(config, place / "a")
    (place / "a" / formats.DIGESTS).unlink()  # as of an older run: readers are on their own
    summary = formats.read(place / "a" / records.SUMMARY, formats.WHOLE_SUMMARY)
    arm = summary | {"seeds": [0], "reached": "1/1", "train_loss_std": None}
    records.write_json(place / records.SUMMARY, {"arms": [arm]})
    provenance.begin(place, "python launch.py")
    provenance.claim(place, [("a claim", "yes")])
    return place.joinpath(*names)


def _trace(place: Path) -> Path:
    path = place / "trace.csv"
    rows = [f"{worker},{time},{0.1 * (1 + worker)}\n" for time in range(6) for worker in range(3)]
    path.write_text("".join(("worker,time,batch_time\n", *rows)), encoding="utf-8")
    return path


def _profile(place: Path) -> Path:
    path = place / "profile.json"
    times = (np.array([0.1, 0.2]), np.array([1e3, 2e3, 4e3]), np.array([0.1, 0.2, 0.3]))
    profiling.save(path, profiling.Profile([["a/b"], ["c"]], *times, 0.01))
    return path


def _taken(place: Path) -> Path:
    return publish.take(sweep(place / "sweep"), place / "taken")


def _checkpoint_file(file: str, model: Any = MODEL) -> Callable[[Path], Path]:
    """Return what writes a checkpoint that differs from the one at the arm's end.

    file: of the checkpoint; "": the arm's metrics.
    """

    def write(place: Path) -> Path:
        run = sweep(place, "a")
        count = len(records.read_metrics(run))
        packed, done = {"params/a": model, "clock/update": np.array([3])}, run / records.SCHEDULE
        made = checkpoints.Checkpoint(1, count, 0.5, packed, schedule.load(done))
        checkpoints.keep_only(run, None)
        checkpoints.write(run, made._replace(metrics=records.digest(run, count)))
        return run / checkpoints.CHECKPOINT / "1" / file if file else run / records.METRICS

    return write


# --- readers ---


class Reader(NamedTuple):
    """A file and what reads it.

    write: puts a good file, and what the reader needs beside it, into an empty directory, and
    returns the file's path. read: reads the file at that path. kind: damages the file's content.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    kind: Callable[[random.Random, bytes], bytes] = of_json


def _gather(path: Path) -> None:
    """Read all that a report reads below a workdir."""
    root = path.parent if path.parent.name != "a" else path.parent.parent
    report.gather(root)
    provenance.read(root)


def _read_lines(path: Path) -> None:
    """Read the metrics from which a run would resume."""
    (checkpoint,) = train.newest([path.parent], [str])
    assert len(records.read_metrics(path.parent)[: checkpoint.records]) == checkpoint.records


def _read_checkpoint(path: Path) -> None:
    """Read a checkpoint, and check that it is the written one, value for value."""
    checkpoint = checkpoints.read(path.parents[2], 1)
    packed = checkpoint.packed
    if checkpoint.bring is not None:
        packed = checkpoint.bring({"params/a": jnp.zeros_like(MODEL)})
    np.testing.assert_array_equal(packed["params/a"], MODEL)
    assert packed["clock/update"] == 3 and checkpoint.wall_seconds == 0.5
    assert checkpoint.schedule.updates == 9


def _read_schedule(path: Path) -> None:
    done = schedule.load(path)
    done.validate()
    if done.updates and done.workers.max() < 1000:  # a valid one may name very many
        _ = done.idle_fraction, done.mean_staleness, done.staleness.max()


def _read_trace(path: Path) -> None:
    worker, count = np.indices((3, 4))
    seconds = processes.trace(path=str(path)).seeded(0).draw(worker, np.zeros((3, 4)), count)
    assert np.isfinite(seconds).all() and (seconds > 0).all(), seconds


def _read_profile(path: Path) -> None:
    profile = profiling.load(path)
    if profile.ready is not None:
        _ = profile.fit, profile.cost


def _of(*names: str) -> Callable[[Path], Path]:
    return lambda place: sweep(place, *names)


READERS = {
    "schedule": Reader(_of("a", records.SCHEDULE), _read_schedule, of_archive),
    "trace": Reader(_trace, _read_trace, of_bytes),
    "summary": Reader(_of("a", records.SUMMARY), _gather),
    "sweep": Reader(_of(records.SUMMARY), _gather),
    "note": Reader(_of(provenance.NOTE), _gather),
    "metrics": Reader(_of("a", records.METRICS), _gather),
    "config": Reader(_of("a", records.CONFIG), _gather),
    "lines": Reader(_checkpoint_file(""), _read_lines),
    "profile": Reader(_profile, _read_profile),
    "published": Reader(_taken, lambda path: publish.arms(formats.read(path, formats.PUBLISHED))),
    "checkpoint": Reader(_checkpoint_file(checkpoints.STATE), _read_checkpoint, of_archive),
    "divided": Reader(_checkpoint_file(checkpoints.PART.format(0), jnp.asarray(MODEL)),
                      _read_checkpoint, of_archive),
    "digests": Reader(_checkpoint_file(checkpoints.DIGESTS), _read_checkpoint),
}  # fmt: skip


def attempt(reader: Reader, path: Path) -> str:
    """Return the outcome of reading a file: "read", "refused", or "broken: " and the reason."""

    def late(*_):
        raise TimeoutError(f"no end within {LIMIT} s")

    before = signal.signal(signal.SIGPROF, late)  # in the main thread alone
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's, above the sentence
            reader.read(path)
    except ValueError as error:
        named = path.name in str(error) or checkpoints.CHECKPOINT in str(error)
        if "\n" in str(error) or not named:
            return f"broken: a sentence without its file, or of several lines: {error!r}"[:300]
        return "refused"
    except BaseException as error:
        return f"broken: {type(error).__name__}: {' '.join(str(error).split())}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return "read"


def damage(name: str, tries: int, seed: int, place: Path) -> Counter:
    """Damage the file of a reader `tries` times; return the count of each outcome."""
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
    options = harness.options(
        __doc__, tries=(10_000, "damages of every file"), seed=(0, "of the damages"),
        only=([*READERS], "readers"),
    )  # fmt: skip
    print(f"{'reader':17} {'tries':>7} {'refused':>8} {'read':>7} {'broken':>7}")
    broken = 0
    for name in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            outcomes = damage(name, options.tries, options.seed, Path(scratch))
        refused, read = outcomes.pop("refused", 0), outcomes.pop("read", 0)
        broken += outcomes.total()
        harness.say(f"{name:17} {options.tries:7} {refused:8} {read:7} {outcomes.total():7}")
        for outcome, count in outcomes.most_common(8):
            print(f"    {count} x {outcome}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
