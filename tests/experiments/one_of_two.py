"""Two workers of four devices each, with models of their own; as a program, one of two processes.

python -m tests.experiments.one_of_two COORDINATOR RANK FOLDER
"""

import contextlib
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import dpsgd
from comms import topology
from experiments import checkpoints, distributed
from runtimes import mesh
from tests.runtimes.toy import DATA, SAMPLES
from tests.two_processes import free_port

ROOT = pathlib.Path(__file__).parents[2]
WIDTH = 4096


class _OfFour(type(SAMPLES)):
    """As `SAMPLES`, with mini-batches for four devices."""

    batch_size = 4

    def indices(self, workers, counters):
        position = np.asarray(counters)[..., None] * 4 + np.arange(4)
        return ((position + 5 * np.asarray(workers)[..., None]) % 48).astype(np.int32)


def losses(params, examples):
    return (jnp.tanh(examples["x"] @ params["in"]) @ params["out"] - examples["y"]) ** 2


def model():
    """Return parameters that a store can hardly compress."""
    generator = np.random.default_rng(0)
    shapes = {"in": (6, WIDTH), "out": (WIDTH,)}
    return {name: generator.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def begun(*, devices_per_worker=4, rounds=4):
    """Return a runtime with a divided model, and its run after some rounds of Adam."""
    method = dpsgd(optax.adam(1e-3), topology.ring(2))
    runtime = mesh.Mesh(
        method, losses, DATA, _OfFour(), workers=2, mini_batches=1,
        rounds_per_dispatch=4, devices_per_worker=devices_per_worker, sharding="fsdp",
    )  # fmt: skip
    run = runtime.start(model())
    if rounds:
        run, _ = runtime.advance(run, np.inf, rounds)
    return runtime, run


def text_of(index) -> str:
    """Return the part of an array as a text, of which `index_of` makes the part."""
    return ",".join(f"{part.start or 0}:{'' if part.stop is None else part.stop}" for part in index)


def index_of(text: str) -> tuple[slice, ...]:
    """Return the part of an array that `text_of` has written."""
    ends = (part.split(":") for part in text.split(","))
    return tuple(slice(int(start), int(stop) if stop else None) for start, stop in ends)


@contextlib.contextmanager
def started(folder):
    """Start both processes, with four devices each, which print into RANK.txt."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=4")
    command = [sys.executable, "-m", "tests.experiments.one_of_two", f"127.0.0.1:{free_port()}"]
    both = []
    try:
        for rank in range(2):
            with (folder / f"{rank}.txt").open("w") as output:
                both.append(
                    subprocess.Popen(
                        [*command, str(rank), str(folder)],
                        cwd=ROOT,
                        env=os.environ | {"XLA_FLAGS": flags},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield both
    finally:
        for process in both:
            process.kill()
            process.wait()


def main(coordinator, rank, folder) -> None:
    """Write a checkpoint, go on from it, and leave the parts of the state that are written here."""
    distributed.initialize(coordinator, 2, int(rank))
    workdir = pathlib.Path(folder) / "out"
    runtime, run = begun()
    packed = runtime.pack(run)
    own = {
        f"{name}|{text_of(shard.index)}": np.asarray(shard.data)
        for name, array in packed.items()
        if isinstance(array, jax.Array)
        for shard in array.addressable_shards
        if shard.replica_id == 0
    }
    writing = checkpoints.Writing(workdir, checkpoints.Checkpoint(1, 1, 0.0, packed, None))
    straight, _ = runtime.advance(run, np.inf, 4)
    writing.wait()
    assert checkpoints.resumable([workdir]) == [1]
    again = runtime.start(model())
    stored = checkpoints.read(workdir, 1).bring(runtime.pack(again))
    again, _ = runtime.advance(runtime.resume(again, stored, ())[0], np.inf, 4)
    jax.tree.map(np.testing.assert_array_equal, runtime.models(straight), runtime.models(again))
    np.savez(pathlib.Path(folder) / f"{rank}.npz", **own)
    distributed.leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
