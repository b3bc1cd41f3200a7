"""Slices: workers of several devices, which share a worker's mini-batches and its model.

The mesh then has a second axis, the devices of a worker. Methods name only the axis of workers: a
slice brings the same contribution to an exchange as a single device would. Every device takes an
equal part of each mini-batch.

| | `Alone` | `Replicated` | `Sharded` |
|---|---|---|---|
| devices of a worker | one | several | several |
| model on a device | whole | whole | a part |
| gradients | its own | averaged over the slice | summed where a part of the model is kept |
| host callbacks | its own | one device asks, all get the answer | none |

`Sharded` is fully sharded data parallelism (ZeRO stage 3, S. Rajbhandari et al., arXiv 1910.02054).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from comms.trees import Tree
from runtimes import worker

SLICE = "slice"  # the axis of the devices of a worker


class Alone:
    """Worker on a single device."""

    size = 1  # devices of a worker
    parts = 1  # number of parts of a mini-batch, of which a program sees one
    watched = True  # whether a program may call the host
    divides = False  # whether a device has a part of the model
    axes: tuple[str, ...] = (AXIS,)
    batches = examples = P(AXIS)  # for [workers, mini-batches, samples], streamed examples
    # The same placements, restricted to the axes that a program divides by hand; and these axes.
    seen_batches = seen_examples = P(AXIS)
    manual = frozenset({AXIS})

    def grid(self, workers: int) -> jax.sharding.Mesh:
        """Return the first devices as a mesh, [workers] or [workers, devices of a worker]."""
        shape = (workers, self.size)[: len(self.axes)]
        devices = jax.devices()[: workers * self.size]
        types = (AxisType.Auto,) * len(shape)
        return jax.make_mesh(shape, self.axes, axis_types=types, devices=devices)

    def split(self, shape: tuple[int, ...]) -> P:
        """Return the placement on the slice of an array of this shape in a worker's model."""
        del shape
        return P()

    def shared(self, losses: Callable) -> Callable:
        """Return losses whose gradient is that of the whole slice's examples."""
        return losses

    def kept(self, model: Tree) -> Tree:
        """Return the model, in a program, placed on the devices that keep its parts."""
        return model

    def taken(self, examples: Tree, indices, draws, augment: worker.Augment | None) -> Tree:
        """Return `worker.taken` of indices [mini-batches, samples]."""
        return worker.taken(examples, indices, draws, augment)

    def ask(self, callback: Callable, answer: jax.ShapeDtypeStruct, *given: Any) -> jax.Array:
        """Return the host's answer to a callback of the worker."""
        return io_callback(callback, answer, *given)


class Replicated(Alone):
    """Worker whose devices each have the whole model; all copies stay equal bit for bit."""

    axes = (AXIS, SLICE)
    batches, examples = P(AXIS, None, SLICE), P(AXIS, SLICE)
    seen_batches, seen_examples = batches, examples
    manual = frozenset(axes)

    def __init__(self, size: int):
        """Take the number of devices of a worker."""
        self.size = self.parts = size

    def shared(self, losses: Callable) -> Callable:
        """Return losses whose gradient, from a device's examples, is averaged over the slice."""

        @jax.custom_vjp
        def everywhere(params):
            return params

        def average(_, gradient):
            return (jax.lax.pmean(gradient, SLICE),)

        everywhere.defvjp(lambda params: (params, None), average)

        @functools.wraps(losses)
        def of_slice(params, examples, *seen, **own):
            return losses(everywhere(params), examples, *seen, **own)

        return of_slice

    def ask(self, callback: Callable, answer: jax.ShapeDtypeStruct, *given: Any) -> jax.Array:
        """Return the host's answer as `Alone.ask` does; only the first device calls the host."""
        said = jax.lax.cond(
            jax.lax.axis_index(SLICE) == 0,
            lambda: io_callback(callback, answer, *given),
            lambda: jnp.zeros(answer.shape, answer.dtype),
        )
        return jax.lax.psum(said, SLICE)


class Sharded(Replicated):
    """Worker whose devices each keep a part of every array of its model and of its states.

    Losses gather the parameters; each part of a gradient is summed on the device that keeps it. The
    compiler divides all other programs, which are written for whole arrays. Elementwise operations
    then work on parts, and other operations on gathered arrays.
    """

    parts = 1
    watched = False
    divides = True
    seen_batches = seen_examples = P(AXIS)
    manual = frozenset({AXIS})

    def __init__(self, size: int, streamed: bool):
        """Take the number of a worker's devices; streamed: each device has only its examples."""
        self.size, self._streamed = size, streamed

    def split(self, shape: tuple[int, ...]) -> P:
        """Return parts along the longest axis that the devices divide, or P() for a whole array."""
        axes = [axis for axis, length in enumerate(shape) if length and length % self.size == 0]
        if not axes:
            return P()
        return P(*[None] * max(axes, key=lambda axis: shape[axis]), SLICE)

    def shared(self, losses: Callable) -> Callable:
        """Return losses of the whole mini-batch, computed from gathered parameters."""

        @functools.wraps(losses)
        def of_slice(params, examples, *seen, **own):
            splits = jax.tree.map(lambda a: self.split(a.shape), params)

            def of_device(params, examples, seen, own):
                return losses(jax.tree.map(gathered, params, splits), examples, *seen, **own)

            return self._on_each(of_device, (splits, P(SLICE), P(), P()), P(SLICE))(
                params, examples, seen, own
            )

        return of_slice

    def kept(self, model: Tree) -> Tree:
        """Return the model with every array constrained to its placement by `split`."""
        return jax.tree.map(
            lambda a: jax.lax.with_sharding_constraint(a, self.split(jnp.shape(a))), model
        )

    def taken(self, examples: Tree, indices, draws, augment: worker.Augment | None) -> Tree:
        """Return examples as `Alone.taken` does; each device takes its own samples."""
        own = functools.partial(worker.taken, augment=augment)
        samples, rows = P(None, SLICE), P(SLICE) if self._streamed else P()
        return self._on_each(own, (rows, samples, samples), samples)(examples, indices, draws)

    def _on_each(self, function: Callable, in_specs, out_specs) -> Callable:
        """Return the function mapped over the devices of the slice."""
        return jax.shard_map(
            function,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={SLICE},
            check_vma=False,
        )


def gathered(part: jax.Array, split: P) -> jax.Array:
    """Return the whole array, of which every device of a slice has a part."""
    if SLICE not in split:
        return part
    return jax.lax.all_gather(part, SLICE, axis=split.index(SLICE), tiled=True)


SHARDINGS: dict[str, Callable[[int, bool], Alone]] = {
    "replicated": lambda size, streamed: Replicated(size),
    "fsdp": Sharded,
}


def of(devices_per_worker: int, sharding: str, streamed: bool) -> Alone:
    """Return the slice of a worker; raises ValueError for a sharding that it cannot have.

    streamed: whether examples are brought to the devices that take them.
    """
    if sharding not in SHARDINGS:
        raise ValueError(
            f"mesh: unknown config.sharding={sharding!r}; known shardings: {', '.join(SHARDINGS)}"
        )
    if devices_per_worker > 1:
        return SHARDINGS[sharding](devices_per_worker, streamed)
    if SHARDINGS[sharding] is Sharded:
        raise ValueError(
            f"mesh: config.sharding={sharding!r} divides a model between the devices of a worker, "
            "which is a single one; set config.devices_per_worker, or leave sharding out"
        )
    return Alone()


def check_batch(devices_per_worker: int, batch_size: int) -> None:
    """Raise ValueError for a mini-batch that a slice cannot share equally."""
    if batch_size % devices_per_worker:
        raise ValueError(
            f"mesh: the {devices_per_worker} devices of a worker cannot share config.batch_size="
            f"{batch_size} samples equally; set it to a multiple of {devices_per_worker}"
        )


def check_devices(workers: int, devices_per_worker: int = 1) -> None:
    """Raise ValueError for missing devices, unused processes, and slices that split unevenly."""
    devices, processes = jax.devices(), jax.process_count()
    wanted, several = workers * devices_per_worker, devices_per_worker > 1
    asked = f"config.workers={workers}"
    if several:
        asked += f" with config.devices_per_worker={devices_per_worker} each"
    if len(devices) < wanted:
        most = len(devices) // devices_per_worker
        fewer = f"set config.workers={most}" if most else f"at most {len(devices)} of them"
        raise ValueError(
            f"mesh: there are {len(devices)} devices but {asked}; {fewer} or, on CPU, XLA_FLAGS="
            f"--xla_force_host_platform_device_count={-(-wanted // processes)}"
        )
    here = jax.local_device_count()
    if processes > 1 and here % devices_per_worker and devices_per_worker % here:
        raise ValueError(
            f"mesh: config.devices_per_worker={devices_per_worker} neither divides the {here} "
            "devices of a process nor is a multiple of them; choose one that is"
        )
    used = len({device.process_index for device in devices[:wanted]})
    if used < processes:
        raise ValueError(
            f"mesh: {asked} leaves {processes - used} of {processes} processes without a "
            f"{'device' if several else 'worker'}; set config.workers="
            f"{len(devices) // devices_per_worker} or start {used} processes"
        )
