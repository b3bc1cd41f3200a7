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
Codecs may shorten its messages (ZeRO++, G. Wang et al., arXiv 2306.10209): the devices gather coded
parameters, and an all-to-all of coded parts takes the place of the gradients' reduce-scatter.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from algorithms.compression import Encoder, Reducer, check_reducer
from comms.cost import ring_all_reduce_bytes
from comms.quantise import sum_by_halves
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
        """Return how a model's array of this shape is divided between the devices of the slice."""
        del shape
        return P()

    def shared(self, losses: Callable) -> Callable:
        """Return losses whose gradient is over the examples of the whole slice."""
        return losses

    def gathered(self, part: jax.Array, split: P) -> jax.Array:
        """Return the whole of an array of which every device of the slice has a part."""
        del split
        return part

    def sent_bytes(self, params: Tree) -> float:
        """Return a device's bytes to its slice for a gradient; params: arrays or shapes."""
        del params
        return 0.0

    def kept(self, model: Tree) -> Tree:
        """Return the model placed on the devices that keep its parts; for use inside a program."""
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

    def sent_bytes(self, params: Tree) -> float:
        """Return the bytes as `Alone.sent_bytes`; gradients travel in a ring all-reduce."""
        return sum(
            ring_all_reduce_bytes(leaf.size * leaf.dtype.itemsize, self.size, leaf.dtype.itemsize)
            for leaf in jax.tree.leaves(params)
        )

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

    def __init__(
        self, size: int, streamed: bool, parameters: Encoder | None, gradients: Encoder | None
    ):
        """Take the size of a slice; streamed: each device has only the examples that it takes.

        parameters, gradients: codecs of their messages; None: messages have the model's dtype.
        """
        self.size, self._streamed = size, streamed
        self._codecs = parameters, gradients

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
                whole = jax.tree.map(self.gathered, params, splits)
                return losses(whole, examples, *seen, **own)

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

    def gathered(self, part: jax.Array, split: P) -> jax.Array:
        """Return as `Alone.gathered`; a part's gradient is summed on the part's device."""
        if SLICE not in split:
            return part
        axis, (parameters, gradients) = split.index(SLICE), self._codecs
        whole = jax.custom_vjp(lambda part: _all_gathered(part, axis, parameters))
        whole.defvjp(
            lambda part: (whole(part), None),
            lambda _, gradient: (_reduce_scattered(gradient, axis, gradients),),
        )
        return whole(part)

    def sent_bytes(self, params: Tree) -> float:
        """Return the bytes of own parameters to all other devices, and of a gradient part to each.

        Gradients of arrays that the devices do not divide travel in a ring all-reduce.
        """
        divided, whole = [], []
        for leaf in jax.tree.leaves(params):
            (divided if SLICE in self.split(leaf.shape) else whole).append(leaf)
        sent = super().sent_bytes(whole)
        for leaf in divided:
            entries = math.prod(leaf.shape) // self.size
            for codec in self._codecs:
                dense = entries * np.dtype(leaf.dtype).itemsize
                coded = dense if codec is None else codec.payload_bytes(entries)
                sent += (self.size - 1) * coded
        return sent

    def _on_each(self, function: Callable, in_specs, out_specs) -> Callable:
        """Return the function mapped over the devices of the slice."""
        return jax.shard_map(
            function,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={SLICE},
            check_vma=False,
        )


def _all_gathered(part: jax.Array, axis: int, codec: Encoder | None) -> jax.Array:
    """Return the whole of an array, of which every device has encoded its part."""
    if codec is None:
        return jax.lax.all_gather(part, SLICE, axis=axis, tiled=True)
    message = codec.encode(part.ravel().astype(jnp.float32), None)
    rows = _decoded(codec, jax.lax.all_gather(message, SLICE), part)
    return jnp.concatenate(list(rows), axis).astype(part.dtype)


def _reduce_scattered(whole: jax.Array, axis: int, codec: Encoder | None) -> jax.Array:
    """Return this device's part of the sum of the devices' arrays, whose parts were encoded."""
    if codec is None:
        return jax.lax.psum_scatter(whole, SLICE, scatter_dimension=axis, tiled=True)
    parts = jnp.stack(jnp.split(whole, jax.lax.axis_size(SLICE), axis))
    rows = parts.reshape(len(parts), -1).astype(jnp.float32)
    messages = jax.vmap(lambda row: codec.encode(row, None))(rows)
    heard = jax.lax.all_to_all(messages, SLICE, split_axis=0, concat_axis=0)
    return sum_by_halves(_decoded(codec, heard, parts[0])).astype(whole.dtype)


def _decoded(codec: Encoder, messages: Any, like: jax.Array) -> jax.Array:
    """Return float32 [devices, *like.shape]."""
    return jax.vmap(lambda one: codec.decode(one, like.size).reshape(like.shape))(messages)


# A function of (devices of a worker, True if a device has only the examples that it takes).
Sharding = Callable[[int, bool], Alone]


def replicated() -> Sharding:
    """Keep the whole model on every device of a worker."""
    return lambda size, streamed: Replicated(size) if size > 1 else Alone()


REPLICATED = replicated()


def fsdp(parameters: Reducer | None = None, gradients: Reducer | None = None) -> Sharding:
    """Divide the model between a worker's devices, as ZeRO stage 3 (arXiv 1910.02054).

    parameters: codec in which the devices gather parameters, such as int8, see
        `algorithms.reducers`. Losses and gradients are those at the decoded parameters; the kept
        parts stay exact.
    gradients: codec of the parts that are summed where they are kept; each is rounded once.
    Codecs come from two-phase all-reduces and round to the nearest. Arrays that the devices do not
    divide travel as they are. Raises ValueError for other codecs, and for a single device.
    """
    codecs = [_encoder(*given) for given in (("parameters", parameters), ("gradients", gradients))]

    def of(size: int, streamed: bool) -> Alone:
        if size == 1:
            raise ValueError(
                "mesh: config.sharding='fsdp' divides a model between the devices of a worker, "
                "which is a single one; set config.devices_per_worker, or leave sharding out"
            )
        return Sharded(size, streamed, *codecs)

    return of


def _encoder(what: str, given: Reducer | None) -> Encoder | None:
    """Return the encoder of a reducer in two phases; ValueError for any other reducer."""
    if given is None:
        return None
    check_reducer("fsdp", given, what)
    if given.encoder is None or given.pushed is None:
        raise ValueError(
            f"fsdp: {what}={given.name} has no codes that round every entry to the nearest; take "
            "bf16, fp16, fp8, int8, int4 or mxfp4"
        )
    return given.encoder


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
