"""Whether a program computes while it all-reduces, in as few lines as show it.

    python -m benchmarks.overlap --rate=1gbit      # two hosts, as root

A program all-reduces an array and, independently, multiplies matrices. If the two went on side by
side it would take as long as the longer one, as the links leave the cores alone; if a collective
keeps the program waiting it takes their sum.
"""

import sys

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from benchmarks import namespaces, output
from benchmarks.processes import free_port
from experiments import stopwatch

_RATE = flags.DEFINE_string("rate", "1gbit", "Of both links.")
_RANK = flags.DEFINE_integer("rank", None, "Number of this host; set by the first process.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "Set by the first process.")

HOSTS, TURNS = 2, 15
ELEMENTS = 500_000  # of the array, float32
WIDTH, PRODUCTS = 256, 40


def work() -> None:
    """Measure as one of the hosts; the first one says what it found."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(_COORDINATOR.value, HOSTS, _RANK.value, initialization_timeout=60)
    devices = jax.make_mesh((HOSTS,), (AXIS,), (AxisType.Auto,))
    stacked = NamedSharding(devices, P(AXIS))

    def place(row):
        return jax.make_array_from_single_device_arrays((HOSTS, *row.shape), stacked, [row[None]])

    def reduced(array, matrix):
        return jax.lax.psum(array, AXIS)

    def multiplied(array, matrix):
        product = matrix[0]
        for _ in range(PRODUCTS):
            product = jnp.tanh(product @ matrix[0])
        return product[None]

    def both(array, matrix):
        return reduced(array, matrix), multiplied(array, matrix)

    array = place(jnp.ones(ELEMENTS))
    matrix = place(jnp.full((WIDTH, WIDTH), 1 / WIDTH))
    programs = {
        body.__name__: jax.jit(
            jax.shard_map(body, mesh=devices, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
        )
        for body in (reduced, multiplied, both)
    }
    runs = {name: lambda run=run: run(array, matrix) for name, run in programs.items()}
    taken = stopwatch.seconds(runs, TURNS, warm_ups=2)
    if _RANK.value:
        return
    for name, seconds in taken.items():
        print(f"{name:10} {1e3 * seconds:7.1f} ms")
    longest = max(taken["reduced"], taken["multiplied"])
    hidden = taken["reduced"] + taken["multiplied"] - taken["both"]
    shorter = taken["reduced"] + taken["multiplied"] - longest
    print(f"side by side: {hidden / shorter:.0%} of the shorter one")
    found = {"hosts": HOSTS, "rate": _RATE.value, **taken}
    output.put("overlap", ("hosts", "rate"), [found])


def main(_) -> None:
    if _RANK.value is not None:
        work()
        return
    reason = namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    with namespaces.switch(HOSTS, _RATE.value) as places:
        where = f"--coordinator={places[0].address}:{free_port()}"
        command = [sys.executable, "-m", "benchmarks.overlap", *sys.argv[1:], where]
        commands = [[*command, f"--rank={rank}"] for rank in range(HOSTS)]
        with namespaces.started(places, commands, {}) as running:
            for process in running:
                process.wait()


if __name__ == "__main__":
    app.run(main)
