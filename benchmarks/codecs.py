"""What a codec costs beside the gradient that it makes smaller: encode and decode of one worker.

    python -m benchmarks.codecs [--size=10000000] [--density=0.02] [--output=FILE]

Throughput in GB of float32 gradient per second, and the ratio to one memory copy of the same
gradient, which takes its turns in the same process: of the faster halves of both, and the median,
the least and the greatest of a turn. The network is left out: a message is decoded by the worker
that encoded it, and the union is its own. Row-sparse gradients have rows of 500.

Fresh pages make a copy of 40 MB several times slower on Linux, and the ratios look better than
they are. Let the allocator keep its memory, as a long training run would:

    MALLOC_MMAP_THRESHOLD_=8000000000 MALLOC_TRIM_THRESHOLD_=16000000000 \\
        MALLOC_TOP_PAD_=1000000000 python -m benchmarks.codecs
"""

import jax
from absl import app, flags
from rich.console import Console
from rich.table import Table

from benchmarks import output, ratios
from benchmarks.codec_calls import candidates
from experiments import stopwatch

_SIZE = flags.DEFINE_integer("size", 10_000_000, "Entries of the gradient, a multiple of 500.")
_DENSITY = flags.DEFINE_float("density", 0.02, "Share of entries, or of rows, that are not zero.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Timed turns of every candidate.")

TARGETS = {"S2, rows, r = 1": 4, "S2, rows, r = 5": 4, "S2, coordinates, r = 1": 10}


def main(_) -> None:
    size = _SIZE.value
    found = candidates(size, _DENSITY.value)
    runs = {name: run for name, (run, _) in found.items()}
    times = stopwatch.taken(runs, _REPEATS.value)
    table = Table(
        title=f"encode + decode, {size:,} float32, {_DENSITY.value:.0%} of them not zero "
        f"where sparse, {jax.default_backend()}, {_REPEATS.value} turns"
    )
    for column in ("codec", "ms", "GB/s", "x copy", "target", "MB sent", "of dense"):
        table.add_column(column, justify="left" if column == "codec" else "right")
    rows = []
    for name, (_, payload) in found.items():
        seconds = stopwatch.faster_half(times[name])
        over_copy = ratios.over("copy", times[name], times["copy"])
        table.add_row(
            name,
            f"{1e3 * seconds:.1f}",
            f"{4e-9 * size / seconds:.2f}",
            ratios.as_text(over_copy),
            f"<= {TARGETS[name]}" if name in TARGETS else "",
            f"{1e-6 * payload:.2f}",
            f"{payload / (4 * size):.1%}",
        )
        point = {"codec": name, "size": size, "density": _DENSITY.value, "seconds": seconds}
        rows.append(point | over_copy)
    Console(width=120).print(table)
    output.put("codecs", ("codec", "size", "density"), rows)


if __name__ == "__main__":
    app.run(main)
