"""What all of this is worth on the device at hand, most valuable first.

    python -m benchmarks.accelerator [--minutes=8] [--tiny] [--processes=2] [--folder=FOLDER]

A table, line by line as measured, and `FOLDER/accelerator_DEVICE.json`, which is replaced as a
whole after every line: a run that is cut off leaves what it has found. Every ratio is of seconds as
`experiments.stopwatch` takes them, of two sides in one process, compiled before. A row that would
not fit into the minutes is skipped with a word, and one that runs out of memory, or fails, says so
while the others go on. The exit code is 1 where a row has failed.

On a CPU it runs too, with smaller models and as many virtual devices as there are cores; then
nothing is learnt of accelerators but that the command works. `--tiny` takes a minute and measures
nothing of value.
"""

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from absl import app, flags, logging

from benchmarks import accelerator_rows as of_one
from benchmarks.accelerator_devices import device_rows
from benchmarks.accelerator_record import RAN, Line, Row, Skip, run
from experiments import peaks

_MINUTES = flags.DEFINE_float("minutes", 8.0, "After these no further row is begun.", 0.0)
_TINY = flags.DEFINE_bool("tiny", False, "The smallest sizes, to see that everything runs.")
_PROCESSES = flags.DEFINE_integer(
    "processes", None, "Processes with a device each; by default one per GPU.", lower_bound=1
)
_FOLDER = flags.DEFINE_string(
    "folder", None, "Where the record goes; by default docs/results/benchmarks, tiny: runs."
)

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED, UNPUBLISHED = ROOT / "docs" / "results" / "benchmarks", Path("runs")
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "flax")
PALLAS = 2.0  # a codec that misses its goal by as much is a candidate for a kernel
KEPT = re.compile(r"XLA_|MALLOC_|CUDA_VISIBLE_DEVICES|LIBTPU_INIT_ARGS")


def set_up() -> None:
    """What must be said before JAX looks for devices."""
    # A process per device needs memory that this one has not taken.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    platforms = jax.config.jax_platforms
    if platforms and "cpu" not in platforms.split(","):
        jax.config.update("jax_platforms", f"{platforms},cpu")  # where FLOPs are counted
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", min(8, max(2, os.cpu_count() or 1)))


def device() -> dict:
    """What this runs on, for the record."""
    first = jax.devices()[0]
    peak = peaks.peak_of(first.device_kind)
    return {
        "backend": jax.default_backend(),
        "kind": first.device_kind,
        "count": jax.device_count(),
        "peak": None if peak is None else peak._asdict(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def name_of(found: dict) -> str:
    """The device in the name of a file: cpu, or nvidia_h100_80gb_hbm3."""
    kind = found["backend"] if jax.devices()[0].platform == "cpu" else found["kind"]
    return re.sub(r"\W+", "_", kind.lower()).strip("_")


def versions() -> dict[str, str]:
    numbers = {"python": platform.python_version()}
    return numbers | {library: importlib.metadata.version(library) for library in LIBRARIES}


def rows(sizes: of_one.Sizes, found: dict, path: Path, measured: list) -> Iterator[Row]:
    """All rows, most valuable first; the last one looks at what was measured until then."""
    count = found["count"]
    known = []

    def remembered(some: Iterator[Row]) -> Iterator[Row]:
        for row in some:
            known.append(row)
            yield row

    yield from remembered(of_one.step_rows(sizes, count, peaks.peak_of(found["kind"])))
    yield from remembered(of_one.ratio_rows(sizes))
    yield from remembered(of_one.codec_rows(sizes))
    yield of_one.callback_row(sizes, count)
    yield from remembered(device_rows(sizes, count, _PROCESSES.value))
    folder = path.with_name(f"{path.stem}_profile")
    yield Row("profile", "profile", lambda _: profiled(known, measured, folder), always=True)


def profiled(known: list[Row], measured: list[dict], folder: Path) -> Iterator[Line]:
    """Trace two turns of the row that is furthest above its goal."""
    again = {row.name: row.again for row in known if row.again is not None}
    lines = [line for entry in measured for line in entry["lines"] if entry["name"] in again]
    lines = [Line(**{k: v for k, v in line.items() if k != "verdict"}) for line in lines]
    if not any(line.goal for line in lines):
        raise Skip("no row with a goal has been measured")
    slowest = max(lines, key=lambda line: line.excess)
    candidates = again[slowest.name]()
    for call in candidates.values():
        jax.block_until_ready(call())
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # what the host's Python does fills megabytes
    with jax.profiler.trace(str(folder), profiler_options=options):
        for name, call in candidates.items():
            with jax.profiler.TraceAnnotation(name):
                jax.block_until_ready(call())
    facts = {"folder": folder.name, "row": slowest.name}
    yield Line("slowest row, over its goal", slowest.excess, "x", None, {}, facts)


def ending(record: dict, say: Callable[[str], None]) -> None:
    """What the table means, and what it asks for."""
    lines = [line for row in record["rows"] for line in row["lines"]]
    goals = [line for line in lines if line["goal"] is not None]
    missed = [line for line in goals if line["value"] > line["goal"]]
    say(f"{len(goals) - len(missed)} of {len(goals)} goals are met")
    far = [
        line["name"]
        for row in record["rows"]
        if row["section"] == of_one.CODECS
        for line in row["lines"]
        if line in missed and line["value"] >= PALLAS * line["goal"]
    ]
    record["candidates_for_a_kernel"] = far
    if far:
        say(f"candidates for a Pallas kernel, twice their goal or more: {'; '.join(far)}")
    say(peaks.FORMULA)


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    set_up()
    found = device()
    sizes = of_one.CPU if jax.default_backend() == "cpu" else of_one.ACCELERATOR
    sizes = of_one.TINY if _TINY.value else sizes
    folder = _FOLDER.value or (UNPUBLISHED if _TINY.value else PUBLISHED)
    path = Path(folder) / f"accelerator_{name_of(found)}.json"
    given = [word for word in sys.argv[1:] if not word.startswith("--folder")]
    record = {
        "command": " ".join(["python -m benchmarks.accelerator", *given]),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions(),
        "device": found,
        "flags": {name: text for name, text in os.environ.items() if KEPT.match(name)},
        "sizes": sizes._asdict(),
        "formula": peaks.FORMULA,
        "complete": False,
        "rows": [],
    }

    def say(line: str) -> None:
        print(line, flush=True)

    say(
        f"{found['count']} x {found['kind']}, {found['backend']}; load {found['load']:.1f} on "
        f"{found['cores']} cores; peak {found['peak'] or 'unknown'}"
    )
    if found["backend"] == "cpu":
        say("there is no accelerator: small sizes, and ratios that say nothing of one")
    good = run(
        rows(sizes, found, path, record["rows"]),
        record,
        path,
        60 * _MINUTES.value,
        say,
        sizes.share,
    )
    ending(record, say)
    say(
        f"{sum(row['state'] == RAN for row in record['rows'])} of {len(record['rows'])} rows ran; "
        f"{path}"
    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    app.run(main)
