"""Methods of the battery with workers of two devices beside workers of one; as a program, a child.

python -m tests.runtimes.sliced OUTPUT METHOD...
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from runtimes import mesh, slices
from tests.algorithms import traced
from tests.algorithms.methods import METHODS, N
from tests.algorithms.test_contract import losses

ROOT = pathlib.Path(__file__).parents[2]
S = 2  # devices of a worker
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
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={S * N}")
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
    """Return whether two devices hold the same part of an array with different bits."""
    found: dict[str, bytes] = {}
    return any(
        found.setdefault(str(shard.index), bits) != bits
        for shard in array.addressable_shards
        for bits in [np.asarray(shard.data).tobytes()]
    )


LARGE = {"w": np.zeros((64, 96), np.float32), "b": np.zeros((), np.float32)}


def exchange_text(method, team) -> str:
    """The compiled exchange of models that lie on the devices of their workers as `team` says."""
    devices, active, version = team.grid(N), None, method.settled
    if method.links is not None:
        rows = method.links.active(version, 50)
        active = rows[rows.any(1).argmax()]

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=devices,
        in_specs=P(AXIS),
        out_specs=P(AXIS),
        axis_names=team.manual,
        check_vma=False,
    )
    def program(contribution, params, state, batches):
        contribution, params, state, batches = jax.tree.map(
            lambda a: a[0], (contribution, params, state, batches)
        )
        if version:
            state = state._replace(update=jnp.int32(version))
        moved = method.exchange.update(
            contribution, state, params, weight=method.weight(batches), batches=batches,
            samples=0.0, nominal=M, worker=jax.lax.axis_index(AXIS), version=version, first=0,
            staleness=0, active=active, current=params,
        )  # fmt: skip
        return jax.tree.map(lambda a: a[None], team.kept(moved))

    def stacked(array):
        spec = P(AXIS, *team.split(np.shape(array)))
        shape = (N, *np.shape(array))
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=NamedSharding(devices, spec))

    model = LARGE, LARGE, method.exchange.init(LARGE), np.int32(0)
    return program.lower(*jax.tree.map(stacked, model)).compile().as_text()


def sent(method) -> tuple[float, float]:
    """Return the bytes that a device of a divided model sends in an exchange.

    To other workers, over what a worker of one device sends; and inside of its slice, over the
    bytes of the model.
    """
    alone = traced.sent_bytes(exchange_text(method, slices.Alone()), N)
    lines = exchange_text(method, slices.Sharded(S, streamed=False)).splitlines()
    between = "\n".join(line for line in lines if _stays(line) is not True)
    inside = "\n".join(line for line in lines if _stays(line) is not False)
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(LARGE))
    devices = N * S
    return (
        traced.sent_bytes(between, devices) / alone,
        traced.sent_bytes(inside, devices) / model,
    )


def _stays(line: str) -> bool | None:
    """Return whether a collective of compiled HLO stays inside slices; None: it is none."""
    if not re.search(rf" ({'|'.join(traced.COLLECTIVES)})\(", line):
        return None
    pairs = re.search(r"source_target_pairs=(\S+)", line)
    joined = re.findall(r"\{(\d+),(\d+)\}", pairs[1]) if pairs else traced.groups(line, N * S)
    slices_of = np.array(joined, int) // S
    return bool((slices_of == slices_of[:, :1]).all())


def main(output, *names) -> None:
    """For every method: how far both shardings are from single devices, and whether copies are.

    Of a method, not of its variants, also what it sends where the model is divided.
    """
    said = {}
    for name in names:
        alone = trained(name)
        for sharding in slices.SHARDINGS:
            ours = trained(name, devices_per_worker=S, sharding=sharding)
            assert all(len(array.sharding.device_set) == S * N for array in ours)
            held = {len(shard.data) for a in ours if a.ndim > 1 for shard in a.addressable_shards}
            assert held == {1}
            said[f"{sharding}/{name}"] = difference(ours, alone), any(map(copies_differ, ours))
        if "/" not in name:
            said[f"sent/{name}"] = sent(METHODS[name]())
        pathlib.Path(output).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
