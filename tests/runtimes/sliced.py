"""Methods of the battery with workers of two devices beside workers of one; as a program, a child.

python -m tests.runtimes.sliced OUTPUT METHOD...
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np

from runtimes import mesh, slices
from tests.algorithms.methods import METHODS, N
from tests.algorithms.test_contract import losses

ROOT = pathlib.Path(__file__).parents[2]
M, B, D = 2, 4, 6  # mini-batches, samples in a mini-batch, parameters
UPDATES = 12
PARAMS = {"w": np.linspace(-1, 1, D).astype(np.float32), "b": np.float32(0.5)}
_RNG = np.random.default_rng(1)
DATA = {
    "x": _RNG.standard_normal((64, D)).astype(np.float32),
    "y": _RNG.standard_normal(64).astype(np.float32),
}


class Counters:
    """The sample of (worker, counter, j) is a fixed index."""

    batch_size = B

    def indices(self, workers, counters):
        position = np.asarray(counters)[..., None] * B + np.arange(B)
        return ((position + 7 * np.asarray(workers)[..., None]) % 64).astype(np.int32)


def started(output, names):
    """A process with two devices for each worker, which writes what `main` says."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={2 * N}")
    return subprocess.run(
        [sys.executable, "-m", "tests.runtimes.sliced", str(output), *names],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=1200,
    )


def trained(name, **options) -> list[jax.Array]:
    """The arrays of all models, and of what the workers remember, after some updates."""
    runtime = mesh.Mesh(
        METHODS[name](), losses, DATA, Counters(), workers=N, mini_batches=M, **options
    )
    run, schedule = runtime.advance(runtime.start(PARAMS), np.inf, UPDATES)
    assert run.samples == schedule.batches.sum() * B == UPDATES * N * M * B
    return jax.tree.leaves(run.model.params)


def difference(ours, theirs) -> float:
    """The largest one, as a multiple of 1e-6 + 1e-5 of the value."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(ours, theirs, strict=True)]
    return max(float((abs(a - b) / (1e-6 + 1e-5 * abs(b))).max()) for a, b in pairs)


def copies_differ(array: jax.Array) -> bool:
    """Whether two devices hold the same part of an array, but not the same bits."""
    found: dict[str, bytes] = {}
    return any(
        found.setdefault(str(shard.index), bits) != bits
        for shard in array.addressable_shards
        for bits in [np.asarray(shard.data).tobytes()]
    )


def main(output, *names) -> None:
    """For every method: how far both shardings are from single devices, and whether copies are."""
    said = {}
    for name in names:
        alone = trained(name)
        for sharding in slices.SHARDINGS:
            ours = trained(name, devices_per_worker=2, sharding=sharding)
            assert all(len(array.sharding.device_set) == 2 * N for array in ours)
            held = {len(shard.data) for a in ours if a.ndim > 1 for shard in a.addressable_shards}
            assert held == {1}
            said[f"{sharding}/{name}"] = difference(ours, alone), any(map(copies_differ, ours))
    pathlib.Path(output).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
