"""In which type collectives of short floats travel in the compiled program of the device at hand.

    python -m benchmarks.wire_types

XLA on CPU widens every collective of bfloat16 to float32, which sends twice the bytes that the
program asked for. What `comms.two_phase` makes of `comms.short_floats` travels in 16 bits.
"""

import re

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AxisType, PartitionSpec
from rich.console import Console
from rich.table import Table

from comms import short_floats, two_phase
from comms.collectives import AXIS

_DEVICES = flags.DEFINE_integer("devices", 4, "Devices; a CPU is split.")

ENTRIES = 1024  # of a worker
COLLECTIVE = re.compile(r"= \(?(\w+)\[.*? (all-reduce|all-gather|all-to-all|collective-permute)\(")


def _bodies(workers: int) -> dict:
    to_next = [(i, (i + 1) % workers) for i in range(workers)]
    return {
        "psum": lambda x: jax.lax.psum(x, AXIS),
        "all_gather": lambda x: jax.lax.all_gather(x, AXIS),
        "all_to_all": lambda x: jax.lax.all_to_all(x.reshape(workers, -1), AXIS, 0, 0),
        "ppermute": lambda x: jax.lax.ppermute(x, AXIS, to_next),
        "two_phase, bf16": lambda x: two_phase.all_reduce(x, short_floats.BFLOAT16).total,
        "two_phase, fp16": lambda x: two_phase.all_reduce(x, short_floats.FLOAT16).total,
    }


def travelling(body, dtype, workers: int) -> list[tuple[str, str]]:
    """(collective, type of what it gives) of all collectives in the compiled program."""
    mesh = jax.make_mesh((workers,), (AXIS,), (AxisType.Auto,), devices=jax.devices()[:workers])
    stacked = PartitionSpec(AXIS)

    def of_worker(x):
        return body(x[0])[None]

    program = jax.shard_map(
        of_worker, mesh=mesh, in_specs=stacked, out_specs=stacked, check_vma=False
    )
    text = jax.jit(program).lower(jnp.zeros((workers, ENTRIES), dtype)).compile().as_text()
    return [(match[2], match[1]) for match in map(COLLECTIVE.search, text.splitlines()) if match]


def main(_) -> None:
    jax.config.update("jax_num_cpu_devices", _DEVICES.value)
    workers = len(jax.devices())
    table = Table(title=f"{workers} devices, {jax.default_backend()}")
    for column in ("program", "array", "travels as"):
        table.add_column(column)
    for name, body in _bodies(workers).items():
        for dtype in (jnp.float32,) if "two" in name else (jnp.bfloat16, jnp.float16):
            found = travelling(body, dtype, workers)
            said = ", ".join(f"{kind} of {collective}" for collective, kind in found)
            table.add_row(name, jnp.dtype(dtype).name, said)
    Console().print(table)


if __name__ == "__main__":
    app.run(main)
